"""Exported files start: on one node too, they go on from their last checkpoint, and say what the prediction assumes."""

import os
import subprocess
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest
import yaml

from meshwise import api
from meshwise.errors import UserError
from meshwise.plan.ask import ServeAsk, TrainAsk
from meshwise.plan.serve.plan import make as serve
from meshwise.plan.train.plan import TrainPlan, make
from meshwise.programs.engines import commands
from meshwise.programs.launch import script, torchrun
from meshwise.programs.program import Job, Setup, programs
from meshwise.programs.setup import of_plan, save_every
from meshwise.programs.write import export, nearest

TRAINING = sorted(name for name, one in programs().items() if one.kind == "train" and one.write is not None)
STUBS = (
    "torchrun", "python", "accelerate", "axolotl", "llamafactory-cli", "meshwise", "tune", "deepspeed", "automodel", "swift", "mlx_lm.lora",
    "unsloth",
)  # fmt: skip


@cache
def plan(model: str, on: str, batch: str, framework: str = "") -> TrainPlan:
    return make(TrainAsk(model=model, on=on, batch=batch, framework=framework, top=1))


def near(program: str, setup: Setup) -> Setup:
    """Return the nearest layout that a program can write."""
    found = nearest(programs()[program], setup, list(programs()[program].refuse(setup)))
    if found is None:
        pytest.skip(f"{program} cannot write this model")
    return found


def started(text: str, folder: Path) -> list[str]:
    """Run a script of a node with programs that only print their words; return the words of the last one."""
    for name in STUBS:
        stub = folder / name
        stub.write_text('#!/bin/bash\nprintf "%s\\n" "$@"\n')
        stub.chmod(0o755)
    (folder / "train.sh").write_text(text)
    names = {word.partition(":?")[0].rpartition("${")[2] for word in text.split() if ":?" in word}
    variables = {name: f"/some/{name.lower()}" for name in names if name.isidentifier()}
    done = subprocess.run(
        ["bash", "train.sh"],
        cwd=folder,
        env={"PATH": f"{folder}:{os.environ['PATH']}", **variables},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize("program", TRAINING)
def test_a_script_for_one_node_needs_no_variable_of_several(program: str, tmp_path: Path) -> None:
    setup = near(program, of_plan(plan("llama-3-8b", "8xh100-sxm", "128x8192")))
    if program == "megatron-deepspeed":
        pytest.skip("it has no grouped queries")
    write = programs()[program].write
    assert write is not None
    made = write(setup)
    job = Job("x", 1, 8, made.command, made.starter, made.environment, files=made.files, chip="h100-sxm", others=made.others)
    assert started(torchrun.write(job)["train.sh"], tmp_path)


@pytest.mark.parametrize(
    ("program", "model", "on", "batch"),
    [("megatron", "llama-3-8b", "8xh100-sxm", "128x8192"), ("megatron-bridge", "llama-3-8b", "8xh100-sxm", "128x8192"),
     ("megatron-deepspeed", "bloom-176b", "jean-zay:48", "2048x2048")],
)  # fmt: skip
def test_a_restart_loads_the_folder_that_it_saves_to(program: str, model: str, on: str, batch: str, tmp_path: Path) -> None:
    setup = near(program, of_plan(plan(model, on, batch, "megatron-deepspeed" if "bloom" in model else "")))
    write = programs()[program].write
    assert write is not None
    made = write(setup)
    words = started(
        torchrun.write(Job("x", 1, 8, made.command, made.starter, made.environment, chip="h100-sxm"))["train.sh"], tmp_path
    )
    pairs = dict(pairwise(words)) | dict(word.split("=", 1) for word in words if "=" in word)
    saved = pairs.get("--save") or pairs["checkpoint.save"]
    assert saved == "/some/checkpoints"
    assert (pairs.get("--load") or pairs["checkpoint.load"]) == saved


def test_megatron_has_the_flags_that_the_prediction_assumes() -> None:
    setup = near("megatron", of_plan(plan("qwen3-30b-a3b", "4x8xh100-sxm", "1024x4096", "megatron")))
    write = programs()["megatron"].write
    assert write is not None
    words = write(setup).command
    flags = dict(pairwise(words))
    assert {flags["--attention-dropout"], flags["--hidden-dropout"]} == {"0"}
    assert "--moe-grouped-gemm" in words
    assert float(flags["--moe-aux-loss-coeff"]) == 0.001  # router_aux_loss_coef of its config.json
    assert flags["--moe-token-dispatcher-type"] == ("flex" if setup.whole("ep") > 1 else "alltoall")
    assert "--overlap-grad-reduce" in words


def test_checkpoints_are_as_far_apart_as_the_plan_says() -> None:
    made = plan("llama-3-70b", "8x8xh100-sxm", "512x8192")
    best = made.choices[0]
    steps = save_every(best)
    assert steps * best.step <= 4 * 3600 + best.step
    assert of_plan(made).values["save_every"] == steps
    assert steps == pytest.approx(min(best.goodput["interval"], 4 * 3600) / best.step, abs=0.5)


def test_deepseek_is_written_whole_for_megatron() -> None:
    setup = of_plan(plan("deepseek-v3", "64x8xh200", "4096x4096", "megatron"))
    assert not [one.why for one in programs()["megatron"].refuse(near("megatron", setup))]
    write = programs()["megatron"].write
    assert write is not None
    words = write(near("megatron", setup)).command
    flags = dict(pairwise(words))
    assert flags["--moe-layer-freq"] == "([0]*3+[1]*58)"
    assert (flags["--kv-lora-rank"], flags["--q-lora-rank"], flags["--mtp-num-layers"]) == ("512", "1536", "1")
    assert {"--multi-latent-attention", "--moe-router-enable-expert-bias"} <= set(words)


def test_nanotron_reads_numbers_as_numbers_and_has_what_its_loader_requires() -> None:
    setup = near("nanotron", of_plan(plan("llama-3-8b", "8xh100-sxm", "128x8192")))
    write = programs()["nanotron"].write
    assert write is not None
    config = yaml.safe_load(write(setup).files["nanotron.yaml"])  # YAML 1.1, as nanotron reads it
    assert config["model"]["model_config"]["rms_norm_eps"] == 1e-5
    assert config["optimizer"]["optimizer_factory"]["adam_eps"] == 1e-8
    optimizer = config["optimizer"]
    assert {"weight_decay", "accumulate_grad_in_fp32", "clip_grad", "zero_stage"} <= set(optimizer)
    assert optimizer["learning_rate_scheduler"]["lr_warmup_style"] == "linear"
    assert config["checkpoints"]["resume_checkpoint_path"] == config["checkpoints"]["checkpoints_path"]


@pytest.mark.parametrize(("on", "gpu"), [("8x8xh100-sxm", True), ("tpu-v5p:4x4x4", False)])
def test_maxtext_on_nodes_with_gpus_finds_its_first_node(on: str, gpu: bool) -> None:
    setup = near("maxtext", of_plan(plan("llama-3-70b", on, "512x8192", "maxtext")))
    write = programs()["maxtext"].write
    assert write is not None
    made = write(setup)
    assert ("hardware=gpu" in made.command) == gpu
    assert ("max_segments_per_seq=32" in made.command) == gpu, "MaxText 0.2.5 stops without it where attention is cudnn_flash_te"
    assert made.environment == ({"JAX_COORDINATOR_IP": "$MASTER_ADDR", "JAX_COORDINATOR_PORT": "$MASTER_PORT"} if gpu else {})


def test_maxtext_has_no_accumulation_with_fp8() -> None:
    setup = near("maxtext", of_plan(plan("llama-3-70b", "8x8xh100-sxm", "512x8192", "maxtext")))
    refused = programs()["maxtext"].refuse(replace(setup, values={**setup.values, "precision": "fp8", "accumulation": 2}))
    assert any("no gradient accumulation with fp8" in one.why for one in refused)


def test_megatron_refuses_a_model_whose_norms_it_has_no_flag_for() -> None:
    """OLMo-2 norms queries and keys over all heads; --qk-layernorm norms each head, and no flag moves the layers' norms behind them."""
    refused = programs()["megatron"].refuse(of_plan(plan("olmo-2-7b", "8xh100-sxm", "64x4096", "fsdp")))
    assert any("do not describe the layers of olmo2" in one.why for one in refused)


def test_variables_of_the_environment_come_after_those_that_they_use() -> None:
    job = Job("x", 4, 8, ("true",), "node", {"JAX_COORDINATOR_IP": "$MASTER_ADDR"}, chip="h100-sxm")
    from meshwise.programs.launch import slurm

    text = slurm.write(job)["train.sbatch"]
    assert text.index("export MASTER_ADDR") < text.index("export JAX_COORDINATOR_IP")
    lines = script.lines(job, script.variables("4", "0", "here"))
    assert lines.index("export MASTER_ADDR=here") < lines.index('export JAX_COORDINATOR_IP="$MASTER_ADDR"')


@pytest.mark.parametrize(
    ("launcher", "file"), [("torchrun", "serve.sh"), ("slurm", "serve.sbatch"), ("leaderworkerset", "serve.yaml")]
)
def test_files_of_servers_and_of_trainings_have_names_of_their_own(launcher: str, file: str) -> None:
    served = serve(ServeAsk(model="llama-3.1-8b", on="8xh100-sxm", engine="vllm"), commands)
    made = export(served, "vllm", launcher)
    assert file in made.files
    assert file in made.start
    assert "train." not in made.files[file]
    trained = export(plan("llama-3-8b", "8xh100-sxm", "128x8192"), "accelerate", launcher)
    assert next(iter(trained.files)) == file.replace("serve", "train")


def test_mlx_is_not_written_for_other_chips() -> None:
    served = serve(ServeAsk(model="llama-3.1-8b", on="8xh100-sxm", engine="vllm"), commands)
    with pytest.raises(UserError, match="runs on Apple chips"):
        export(served, "mlx")


@pytest.mark.parametrize("engine", ["vllm", "sglang", "tensorrt-llm"])
def test_gpt_oss_is_served(engine: str) -> None:
    served = serve(ServeAsk(model="gpt-oss-120b", on="2xh100-sxm", engine=engine, fix=("replicas=1",)), commands)
    assert "openai/gpt-oss-120b" in str(export(served, engine).files)


@pytest.mark.parametrize(
    ("framework", "model", "on", "batch"),
    [("torchtitan", "qwen3-30b-a3b", "4x8xh100-sxm", "1024x4096"), ("deepspeed", "llama-3-8b", "8xh100-sxm", "128x8192"),
     ("nanotron", "llama-3-8b", "8xh100-sxm", "128x8192"), ("torchtune", "llama-3-8b", "8xh100-sxm", "128x8192"),
     ("trainer", "llama-3-8b", "8xh100-sxm", "128x8192"), ("megatron", "deepseek-v3", "64x8xh200", "4096x4096")],
)  # fmt: skip
def test_a_plan_for_a_framework_has_only_layouts_that_export_can_write(framework: str, model: str, on: str, batch: str) -> None:
    made = api.plan(model, on=on, batch=batch, framework=framework, top=3)
    for row in range(1, len(made.choices) + 1):
        assert api.export(made, to=framework, row=row).files


def test_a_plan_for_a_program_that_cannot_say_the_model_names_the_reason() -> None:
    made = api.plan("gemma-2-9b", on="8xh100-sxm", batch="128x8192", framework="torchtitan")
    assert any("export --to torchtitan can write none of these layouts" in note for note in made.notes)


@pytest.mark.parametrize(
    ("program", "model", "fix"),
    [
        ("megatron", "deepseek-v2-lite", ("pp=2", "vpp=1", "ep=8")),
        ("megatron", "deepseek-v2-lite", ("pp=1", "ep=8")),
        ("maxtext", "llama-3.1-8b", ()),
    ],
)
def test_a_run_has_one_prediction_whether_it_is_planned_or_read(
    program: str, model: str, fix: tuple[str, ...], tmp_path: Path
) -> None:
    """benchmarks/launch/exports.py asks this of ten models and every program."""
    made = api.plan(model, on="2x8xh100-sxm", batch="256x4096", framework=program, fix=fix, top=1)
    found = api.check(*api.export(made, to=program).save(tmp_path), on="2x8xh100-sxm")
    assert found.own is not None
    assert found.own.name == made.choices[0].name
    assert found.own.step == pytest.approx(made.choices[0].step, rel=0.01)
