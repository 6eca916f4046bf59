"""Adapters of a plan are written in the keys of programs on PEFT, and files with such keys are read back as the same method."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from meshwise import api
from meshwise.errors import UserError
from meshwise.plan.ask import TrainAsk
from meshwise.plan.train.plan import make
from support.every import check_every

ASK = TrainAsk("llama-3.1-8b", on="1xh100-sxm", batch=8, seq=2048)
METHODS = ("lora:16", "lora:8:q_proj,v_proj", "dora:32", "qlora:64", "qlora:8:attention")
PROGRAMS = {
    "axolotl": "axolotl.yaml",
    "llama-factory": "llama_factory.yaml",
    "torchtune": "torchtune.yaml",
    "trainer": "train.sh",
}


FRAMEWORKS = {"trainer": "trl"}
"""The framework that predicts a program, where it has another name."""


def written(folder: Path, finetune: str, program: str, **change: Any) -> Path:
    framework = FRAMEWORKS.get(program, program)
    api.export(make(replace(ASK, finetune=finetune, framework=framework, **change)), to=program).save(folder)
    return folder / PROGRAMS[program]


def test_a_file_with_adapters_is_read_back_as_the_same_method(tmp_path: Path) -> None:
    def check(finetune: str, program: str) -> None:
        file = written(tmp_path / f"{finetune}-{program}".replace(":", "-"), finetune, program)
        verdict = api.check(str(file), on="1xh100-sxm", model="llama-3.1-8b")
        names = finetune.replace("attention", "q_proj,k_proj,v_proj,o_proj")
        assert f"--finetune {names}" in verdict.plan_command
        assert verdict.fits

    check_every(check, ((finetune, program) for finetune in METHODS for program in PROGRAMS))


ON = {"1xh100-sxm": 8, "4xa100-80gb-sxm": 32}


def test_a_plan_and_the_check_of_its_file_give_one_prediction(tmp_path: Path) -> None:
    """A file to which `plan` said 46.9 GiB was once told 91.8 by `check`."""

    def check(program: str, finetune: str, on: str, shards: str) -> None:
        folder = tmp_path / f"{program}-{finetune}-{on}-{shards}".replace(":", "-")
        plan = make(replace(ASK, finetune=finetune, framework=FRAMEWORKS.get(program, program) + shards, on=on, batch=ON[on]))
        api.export(plan, to=program).save(folder)
        others = [str(file) for file in folder.glob("ds_config.json")]
        found = api.check(str(folder / PROGRAMS[program]), *others, on=on, model=ASK.model).own
        assert (found.peak, found.step) == pytest.approx((plan.best.peak, plan.best.step))

    alone = ((program, finetune, "1xh100-sxm", "") for program in PROGRAMS for finetune in ("lora:16", "qlora:16"))
    ways = (("axolotl", "+deepspeed"), ("llama-factory", "+deepspeed"), ("trainer", ""), ("torchtune", ""), ("axolotl", ""))
    check_every(check, (*alone, *((program, "full", "4xa100-80gb-sxm", shards) for program, shards in ways)))


def test_the_keys_are_those_of_the_programs(tmp_path: Path) -> None:
    text = {name: written(tmp_path / name, "qlora:16:q_proj,v_proj", name).read_text() for name in PROGRAMS}
    expected = 'adapter: qlora\nlora_r: 16\nlora_alpha: 32\nlora_target_modules: ["q_proj", "v_proj"]\nload_in_4bit: true'
    assert expected in text["axolotl"]
    assert "finetuning_type: lora" in text["llama-factory"]
    assert 'lora_rank: 16\nlora_alpha: 32\nlora_target: "q_proj,v_proj"\nquantization_bit: 4' in text["llama-factory"]
    for words in ("--use_peft True", "--lora_target_modules q_proj v_proj", "--use_bnb_nested_quant True"):
        assert words in text["trainer"]


def test_frozen_layers_are_the_ones_that_llama_factory_does_not_train(tmp_path: Path) -> None:
    text = written(tmp_path, "freeze:24", "llama-factory", optimizer="adamw-8bit").read_text()
    assert "finetuning_type: freeze" in text
    assert "freeze_trainable_layers: 8" in text


def test_a_program_without_adapters_says_which_have_them() -> None:
    with pytest.raises(
        UserError,
        match="has no setting for adapters; expected --to automodel or axolotl or llama-factory or mlx-lm or ms-swift or",
    ):
        api.export(make(replace(ASK, finetune="lora:16")), to="megatron")
