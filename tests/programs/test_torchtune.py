"""torchtune's YAML: the functions and recipes that say a plan, what is read back from it, and what torchtune cannot say."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from meshwise import api
from meshwise.errors import UserError
from meshwise.models import find
from meshwise.plan.ask import TrainAsk
from meshwise.plan.train.plan import make
from meshwise.programs.program import programs
from meshwise.programs.train import torchtune_builders as builders
from meshwise.programs.write import Exported
from support.every import check_every

ASK = TrainAsk("llama-3.1-8b", on="1xh100-sxm", batch=8, seq=2048, finetune="lora:16")
NODE: dict[str, Any] = {"on": "8xh100-sxm", "batch": 64, "framework": "fsdp", "fix": ("zero=3", "dp_replicate=1")}
GOLDEN = """\
model:
  _component_: torchtune.models.llama3_1.qlora_llama3_1_8b
  lora_attn_modules: ["q_proj", "v_proj"]
  apply_lora_to_mlp: false
  lora_rank: 64
  lora_alpha: 128
tokenizer:
  max_seq_len: 2048
  _component_: torchtune.models.llama3.llama3_tokenizer
  path: ["REPLACE_ME: a file of the tokenizer, as text"]
dataset:
  packed: true
  _component_: "REPLACE_ME: a function of torchtune.datasets"
batch_size: 4
gradient_accumulation_steps: 2
max_steps_per_epoch: 62
optimizer:
  _component_: bitsandbytes.optim.PagedAdamW8bit
  lr: "REPLACE_ME: the peak learning rate"
loss:
  _component_: torchtune.modules.loss.CEWithChunkedOutputLoss
dtype: bf16
compile: true
enable_activation_checkpointing: true
enable_activation_offloading: false
checkpointer:
  _component_: torchtune.training.FullModelHFCheckpointer
  checkpoint_dir: ["REPLACE_ME: the folder of meta-llama/Llama-3.1-8B, as text"]
  checkpoint_files: "REPLACE_ME: a list of its safetensors files"
  output_dir: "${output_dir}"
  model_type: LLAMA3
output_dir: ["REPLACE_ME: the folder of checkpoints, as text"]
epochs: 1
resume_from_checkpoint: false
shuffle: true
seed: null
device: cuda
lr_scheduler:
  _component_: torchtune.training.lr_schedulers.get_cosine_schedule_with_warmup
  num_warmup_steps: "REPLACE_ME: the number of steps"
metric_logger:
  _component_: torchtune.training.metric_logging.DiskLogger
  log_dir: "${output_dir}/logs"
log_peak_memory_stats: true
"""


def exported(**change: Any) -> Exported:
    return api.export(make(replace(ASK, **change)), to="torchtune")


def without_comments(text: str) -> str:
    return "".join(line for line in text.splitlines(keepends=True) if not line.startswith("#"))


def test_the_yaml_of_a_qlora_plan_on_one_device() -> None:
    made = exported(
        finetune="qlora:64:q_proj,v_proj",
        optimizer="adamw-paged-8bit",
        compile=True,
        tokens="1M",
        fix=("mbs=4", "recompute=full"),
    )
    assert without_comments(made.files["torchtune.yaml"]) == GOLDEN
    assert "tune run lora_finetune_single_device \\\n    --config torchtune.yaml\n" in made.files["train.sh"]
    assert made.check == "tune validate torchtune.yaml"


def test_a_node_runs_the_distributed_recipes() -> None:
    lora = exported(**NODE).files
    full = exported(**NODE | {"finetune": "", "fix": ("zero=2",)}).files
    assert "--nproc_per_node 8 lora_finetune_distributed \\\n    --config torchtune.yaml" in lora["train.sh"]
    assert "fsdp_reshard_after_forward: true" in lora["torchtune.yaml"]
    assert "--nproc_per_node 8 full_finetune_distributed \\\n" in full["train.sh"]
    assert "fsdp_reshard_after_forward: false" in full["torchtune.yaml"]
    assert "optimizer_in_bwd: false" in full["torchtune.yaml"]
    assert "without a float32 copy" in full["torchtune.yaml"]
    assert "without a float32 copy" not in lora["torchtune.yaml"]
    assert "than predicted" not in lora["torchtune.yaml"]


def test_a_model_whose_products_are_separate_in_torchtune_says_so() -> None:
    assert "as separate layers: adapters have more parameters" in exported(model="phi-3-mini").files["torchtune.yaml"]


def test_several_nodes_meet_at_an_endpoint_without_which_torchtune_starts_one_node_alone() -> None:
    text = exported(**NODE | {"on": "2x8xh100-sxm"}).files["train.sh"]
    for words in ("--nnodes $NNODES", '--rdzv_endpoint "$MASTER_ADDR:$MASTER_PORT"', "--nproc_per_node 8"):
        assert words.replace('"', "") in text.replace('"', ""), words


def test_keys_that_change_a_plan_are_written_and_read_back(tmp_path: Path) -> None:
    cases: dict[str, tuple[dict[str, Any], str, str]] = {
        "dora": ({"finetune": "dora:8"}, "use_dora: true", "--finetune dora:8"),
        "8-bit AdamW": ({"optimizer": "adamw-8bit"}, "torchao.optim.AdamW8bit", "--optimizer adamw-8bit"),
        "loss": ({"loss": "materialised"}, "torch.nn.CrossEntropyLoss", "--loss materialised"),
        "compile": ({"compile": True}, "compile: true", "--compile"),
        "qlora of Qwen": ({"model": "qwen2.5-7b", "finetune": "qlora:8"}, "quantize_base: true", "--finetune qlora:8"),
        "instruct": ({"model": "Qwen/Qwen2.5-7B-Instruct"}, "qwen2_5.lora_qwen2_5_7b_instruct", "plan qwen2.5-7b"),
    }

    def check(name: str, change: dict[str, Any], written: str, read: str) -> None:
        made = exported(**NODE | {"fix": ("dp_replicate=1", "tp=1")} | change)
        assert written in made.files["torchtune.yaml"]
        paths = made.save(tmp_path / name)
        verdict = api.check(*map(str, paths), on="8xh100-sxm")
        assert read in verdict.plan_command
        assert verdict.own is not None
        assert verdict.own.devices == 8

    check_every(check, ((name, *case) for name, case in cases.items()))


def test_offload_and_tensor_parallelism_are_read_back(tmp_path: Path) -> None:
    cases: dict[str, tuple[tuple[str, ...], str]] = {
        "parameters": (("offload=parameters", "zero=3", "tp=1", "recompute=full"), "fsdp_cpu_offload: true"),
        "activations": (
            ("offload=activations", "recompute=full", "tp=1", "dp_replicate=1"),
            "enable_activation_offloading: true",
        ),
        "tp": (
            ("tp=2", "sp=0", "zero=3"),
            "tensor_parallel_dim: 2\ntensor_parallel_plan:\n  _component_: torchtune.models.llama3.",
        ),
    }

    def check(name: str, fix: tuple[str, ...], written: str) -> None:
        plan = make(replace(ASK, **NODE | {"finetune": "", "fix": fix}))
        made = api.export(plan, to="torchtune")
        assert written in made.files["torchtune.yaml"]
        verdict = api.check(*map(str, made.save(tmp_path / name)), on="8xh100-sxm")
        assert verdict.own is not None
        assert verdict.own.layout == plan.choices[0].layout

    check_every(check, ((name, *case) for name, case in cases.items()))


def test_what_torchtune_cannot_say_is_refused_with_what_it_can() -> None:
    cases: dict[str, tuple[dict[str, Any], str]] = {
        "model": ({"model": "qwen3-8b"}, r"no model builder for Qwen/Qwen3-8B; it has llama-2-7b, .*qwen2.5-72b$"),
        "targets": ({"finetune": "lora:16:gate_proj,q_proj"}, r"all of gate_proj, up_proj, down_proj; expected .* --finetune lora:16$"),
        "MLP alone": ({"finetune": "lora:16:mlp"}, r"attaches adapters to some of q_proj, .* --finetune lora:16$"),
        "fused products": ({"model": "phi-3-mini", "finetune": "lora:16:qkv_proj"}, r"attaches adapters to some of q_proj"),
        "DoRA": (
            {"model": "llama-3.1-405b", "on": "64x8xh200", "batch": 512, "finetune": "dora:8", "framework": "fsdp"},
            r"no DoRA for meta-llama/Llama-3.1-405B; expected --finetune lora:8",
        ),
        "objective": ({"objective": "dpo"}, r"dpo is another recipe, .* expected --objective sft"),
        "fused loss": ({"loss": "fused"}, r"has no fused loss; the nearest .*--loss kernel"),
        "paged": (NODE | {"optimizer": "adamw-paged-8bit"}, r"no optimizer adamw-paged-8bit and zero 2/3 together"),
        "DDP": (NODE | {"framework": "ddp", "fix": ()}, r"only FSDP on several devices, no ZeRO 0; the nearest layout .*zero=3"),
        "HSDP": (NODE | {"fix": ("dp_replicate=2", "zero=3")}, r"without replicas \(dp_replicate 2\); the nearest .*dp_shard=8"),
        "tp of adapters": (NODE | {"fix": ("tp=2", "sp=0")}, r"tensor parallelism only for full fine-tuning of llama3, .*tp=1"),
        "pp": (NODE | {"framework": "megatron", "finetune": "", "fix": ("pp=2",)}, r"has no pipeline \(pp 2\).*; the nearest"),
        "offload": (NODE | {"fix": ("offload=activations", "recompute=none")}, r"only with full recompute; the nearest"),
    }  # fmt: skip

    def check(name: str, change: dict[str, Any], words: str) -> None:
        with pytest.raises(UserError, match=words) as refused:
            exported(**change)
        assert "\n" not in str(refused.value)

    check_every(check, ((name, *case) for name, case in cases.items()))


def test_every_builder_is_of_a_preset_and_read_back_as_it() -> None:
    def check(preset: str, function: str) -> None:
        assert find.find_preset(preset) is not None
        assert function.partition(".")[0] in builders.FAMILIES
        for adapter in ("", "lora", "dora", "qlora"):
            assert builders.parts(builders.component(function, adapter))[0] == preset

    check_every(check, builders.BUILDERS.items())


def test_a_published_configuration_is_read_with_the_overrides_of_its_command(tmp_path: Path) -> None:
    config = tmp_path / "mine.yaml"
    config.write_text(
        "model:\n  _component_: torchtune.models.qwen2.lora_qwen2_7b\n  lora_attn_modules: ['q_proj', 'v_proj', 'output_proj']\n"
        "  apply_lora_to_mlp: True\ntokenizer:\n  max_seq_len: null\nbatch_size: 2\ngradient_accumulation_steps: 8\ndtype: bf16\n"
        "optimizer:\n  _component_: torch.optim.AdamW\nenable_activation_checkpointing: True\n"
    )
    script = tmp_path / "run.sh"
    script.write_text(
        "tune run --nproc_per_node 4 lora_finetune_distributed --config mine.yaml tokenizer.max_seq_len=4096 batch_size=4\n"
    )
    facts = api.read(str(script), str(config)).facts
    wanted: dict[str, Any] = {
        "model": "qwen2.5-7b", "adapter": "lora", "rank": 8, "alpha": 16, "mbs": 4, "seq": 4096, "accumulation": 8, "zero": 3,
        "recompute": "full", "devices_per_node": 4, "targets": ("q_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"),
    }  # fmt: skip
    assert {name: facts.value(name) for name in wanted} == wanted
    assert facts.values["rank"].how == "default"


def test_recipes_are_those_that_commands_name() -> None:
    recognises = programs()["torchtune"].recognises
    assert recognises((), None, "recipes/full_finetune_distributed.py")
    assert not recognises((), None, "lora_dpo_distributed")
