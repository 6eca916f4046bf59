"""Unsloth, mlx-lm, ms-swift and NeMo AutoModel: plans in their words, with keys that they list, and read back as the same prediction."""

import ast
from pathlib import Path
from typing import Any

import pytest

from meshwise import api
from meshwise.errors import UserError
from meshwise.plan.ask import TrainAsk
from meshwise.plan.train.plan import TrainPlan, make
from meshwise.programs.read.tree import settings as tree_settings
from meshwise.programs.source import Source
from support.every import check_every
from support.referees import listed

FILES = {"unsloth": "unsloth_train.py", "mlx-lm": "mlx_lora.yaml", "ms-swift": "train.sh", "automodel": "automodel.yaml"}
METHODS = ("full", "lora:16", "qlora:8:q_proj,v_proj")


def planned(program: str, finetune: str, **change: Any) -> TrainPlan:
    on = "1xm2-ultra" if program == "mlx-lm" else "1xa100-80gb-sxm"
    return make(
        TrainAsk(
            **({"model": "llama-3.2-3b", "on": on, "batch": 8, "seq": 2048, "framework": program, "finetune": finetune} | change)
        )
    )


def saved(folder: Path, program: str, plan: TrainPlan) -> Path:
    api.export(plan, to=program).save(folder)
    return folder / FILES[program]


def test_a_plan_is_read_back_from_its_file_as_the_same_prediction(tmp_path: Path) -> None:
    def check(program: str, finetune: str) -> None:
        plan = planned(program, finetune)
        file = saved(tmp_path / f"{program}-{finetune}".replace(":", "-"), program, plan)
        found = api.check(str(file), on=plan.ask.on, model=plan.ask.model)
        assert found.own is not None, found.unknown
        assert (found.own.peak, found.own.step) == pytest.approx((plan.best.peak, plan.best.step))

    check_every(check, ((program, finetune) for program in FILES for finetune in METHODS))


def written_keys(program: str, text: str) -> set[str]:
    """The keys that a file has, without the calls or sections that they are in."""
    if program == "unsloth":
        calls = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
        return {str(one.arg) for call in calls if "FastLanguageModel" in ast.unparse(call.func) for one in call.keywords}
    if program == "ms-swift":
        return {word.removeprefix("--") for word in text.split("swift sft", 1)[1].split() if word.startswith("--")}
    keys = (one.key for one in tree_settings(Source(FILES[program], text)))
    return {part for key in keys for part in key.split(".") if not part.isdecimal()}


def test_every_key_is_one_that_the_program_lists(tmp_path: Path) -> None:
    def check(program: str, finetune: str) -> None:
        known = listed(program) | (listed("trainer") if program == "ms-swift" else set())
        file = saved(tmp_path / f"{program}-{finetune}".replace(":", "-"), program, planned(program, finetune))
        assert written_keys(program, file.read_text()) - known == set()

    check_every(check, ((program, finetune) for program in FILES for finetune in METHODS))


NOTEBOOK = """
from unsloth import FastLanguageModel
max_seq_length = 2048
model, tokenizer = FastLanguageModel.from_pretrained(
    model_name="unsloth/Llama-3.2-3B-Instruct", max_seq_length=max_seq_length, dtype=None, load_in_4bit=True)
model = FastLanguageModel.get_peft_model(model, r=16, target_modules=["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj",
    "up_proj", "down_proj"], lora_alpha=16, lora_dropout=0, bias="none", use_gradient_checkpointing="unsloth")
trainer = SFTTrainer(model=model, tokenizer=tokenizer, train_dataset=dataset, args=SFTConfig(
    per_device_train_batch_size=2, gradient_accumulation_steps=4, max_steps=60, optim="adamw_8bit", seed=3407))
"""


def test_a_notebook_of_unsloth_is_read_without_running_it(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(NOTEBOOK)
    found = api.check(str(tmp_path / "train.py"), on="1xt4", model="llama-3.2-3b")
    assert found.fits
    assert "--framework unsloth" in found.plan_command
    assert "--optimizer adamw-8bit" in found.plan_command
    assert "--finetune qlora:16:" in found.plan_command
    (tmp_path / "other.py").write_text("import torch\nprint(1)\n")
    with pytest.raises(UserError, match="Python is not read, but for calls"):
        api.check(str(tmp_path / "other.py"))
    (tmp_path / "broken.py").write_text("FastLanguageModel.from_pretrained(\n")
    with pytest.raises(UserError, match="not readable as Python"):
        api.check(str(tmp_path / "broken.py"))


def test_adapters_of_some_layers_are_told(tmp_path: Path) -> None:
    """mlx_lm.lora adapts the last 16 layers unless num_layers says otherwise."""
    (tmp_path / "lora.yaml").write_text("model: x\nfine_tune_type: lora\nbatch_size: 4\nmax_seq_length: 1024\niters: 600\n")
    found = api.check(str(tmp_path / "lora.yaml"), on="1xm2-max", model="llama-3.2-3b")
    assert found.program == "mlx-lm"
    assert any("last 16 layers" in note for note in found.notes)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            {"framework": "unsloth", "on": "1xm2-max"},
            r"Unsloth does not train on M2 Max \(NVIDIA, AMD and Intel only\): expected mlx-lm",
        ),
        ({"framework": "mlx-lm"}, "mlx-lm does not train on A100 .*Apple chips only"),
        ({"framework": "unsloth", "finetune": "dora:16"}, "Unsloth has no dora: expected --finetune lora:16 or --framework"),
        (
            {"framework": "torchtune", "finetune": "lora:16", "base": "int8"},
            "over no base in int8: expected nf4, or lora in 16 bits",
        ),
        ({"framework": "torchtune", "loss": "fused"}, "torchtune has no fused loss: expected --loss kernel or materialised"),
        ({"framework": "torchtune+deepspeed"}, "torchtune does not shard through DeepSpeed"),
        ({"framework": "trl", "in_backward": True}, "TRL has none: expected --framework torchtune --finetune full"),
        ({"on": "2xtrn1"}, "no program of the catalogue fine-tunes on Trainium"),
        ({"finetune": "full", "base": "nf4"}, "a base in nf4 is frozen, and full trains it"),
    ],
)
def test_what_excludes_each_other_is_named_with_the_nearest_that_works(change: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        make(
            TrainAsk(
                **({"model": "llama-3.2-3b", "on": "1xa100-80gb-sxm", "batch": 8, "seq": 2048, "finetune": "qlora:16"} | change)
            )
        )


AXOLOTL = """
base_model: meta-llama/Llama-3.1-8B
sequence_len: 4096
micro_batch_size: 2
gradient_accumulation_steps: 4
gradient_checkpointing: true
bf16: true
optimizer: adamw_torch_fused
datasets: [{path: rows.jsonl, type: alpaca}]
adapter: lora
lora_r: 16
"""


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ("load_in_8bit: true", "--base int8"),
        ("lora_target_modules: '.*\\.self_attn\\.(q|v)_proj'", "--finetune lora:16:q_proj,v_proj"),
        ("plugins: [axolotl.integrations.cut_cross_entropy.CutCrossEntropyPlugin]", "--loss fused"),
        ("liger_fused_linear_cross_entropy: true", "--loss fused"),
        ("rl: dpo", "--objective dpo"),
    ],
)
def test_a_file_of_axolotl_is_planned_with_what_it_says(tmp_path: Path, lines: str, expected: str) -> None:
    (tmp_path / "axolotl.yaml").write_text(f"{AXOLOTL}{lines}\n")
    found = api.check(str(tmp_path / "axolotl.yaml"), on="1xh100-sxm")
    assert found.own is not None, found.unknown
    assert expected in found.plan_command
    assert "--framework axolotl" in found.plan_command


def test_modules_that_are_trained_whole_are_told_with_their_bytes(tmp_path: Path) -> None:
    """128,256 x 4,096 values of each table: 8 bytes of each are 3.9 GiB."""
    (tmp_path / "axolotl.yaml").write_text(f"{AXOLOTL}lora_modules_to_save: [embed_tokens, lm_head]\n")
    notes = api.check(str(tmp_path / "axolotl.yaml"), on="1xh100-sxm").notes
    assert any("embed_tokens, lm_head: about 7.8 GiB more" in note for note in notes)


def test_a_micro_batch_of_dpo_is_a_pair(tmp_path: Path) -> None:
    """Files count pairs; a layout counts their sequences."""
    (tmp_path / "axolotl.yaml").write_text(f"{AXOLOTL}rl: dpo\n")
    found = api.check(str(tmp_path / "axolotl.yaml"), on="1xh100-sxm")
    assert found.own is not None
    assert found.own.layout["mbs"] == 4
    plan = make(TrainAsk("llama-3.2-3b", on="1xh100-sxm", batch=8, seq=2048, finetune="lora:16", objective="simpo"))
    assert all(int(choice.layout["mbs"]) % 2 == 0 for choice in plan.choices)
