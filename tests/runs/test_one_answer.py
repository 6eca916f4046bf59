"""Whatever judges a run gives the same answer: validate, audit and the API for every row of every built-in table."""

import math
from functools import cache
from pathlib import Path

import pytest

import meshwise
from meshwise.audit.check.train import model_of_file
from meshwise.audit.figures import Figures
from meshwise.audit.report import Audit
from meshwise.calibrate.dispatch import is_served
from meshwise.calibrate.serve.validate import ServeValidation
from meshwise.calibrate.train.validate import TrainValidation
from meshwise.catalogue import files
from meshwise.plan.ask import ServeAsk, TrainAsk
from meshwise.plan.serve import lookup as serve_lookup
from meshwise.plan.train import lookup as train_lookup
from meshwise.runs.serve import case as serve
from meshwise.runs.table import run_of
from meshwise.runs.train import case as train

TABLES = sorted(set(files.files("measurements", ".csv")) - {"local_rig_notes", "rl_steps"})
"""Every built-in table but one whose rows name no model that could be evaluated."""
TRAINED = [name for name in TABLES if not is_served(name)]
SERVED = [name for name in TABLES if is_served(name)]


def same(a: float, b: float) -> bool:
    return abs(a / b - 1) < 1e-9


@cache
def audited(table: str) -> Audit:
    return meshwise.audit(table)


@pytest.mark.parametrize("table", TRAINED)
def test_audit_predicts_every_row_of_a_training_table_as_validate_does(table: str) -> None:
    validated = meshwise.validate(table)
    assert isinstance(validated, TrainValidation)
    pairs = zip(validated.cases, validated.predicted.seconds, validated.predicted.memory, strict=True)
    expected = [(case.layout, case.seconds, seconds, memory) for case, seconds, memory in pairs]
    found = [(p.case.layout, p.case.seconds, p.seconds, p.memory) for p in audited(table).predictions.train]
    assert len(found) == len(expected)
    for mine, other in zip(found, expected, strict=True):
        assert mine[0] == other[0]
        assert same(mine[1], other[1]) or (math.isnan(mine[1]) and math.isnan(other[1]))
        assert same(mine[2], other[2])
        assert same(mine[3], other[3])


@pytest.mark.parametrize("table", SERVED)
def test_audit_predicts_every_row_of_a_serving_table_as_validate_does(table: str) -> None:
    validated = meshwise.validate(table)
    assert isinstance(validated, ServeValidation)
    pairs = zip(validated.cases, validated.predicted, strict=True)
    expected = [(speed.decode, speed.prefill if case.work.prompt else math.nan) for case, speed in pairs]
    found = [(p.decode, p.prefill) for p in audited(table).predictions.serve]
    assert len(found) == len(expected)
    for mine, other in zip(found, expected, strict=True):
        assert all(same(a, b) or (math.isnan(a) and math.isnan(b)) for a, b in zip(mine, other, strict=True))


NAMES = {
    "Qwen3-8B-AWQ": "qwen3-8b",
    "unsloth/GLM-4.6-GGUF": "glm-4.6",
    "Llama 3 70B Chat": "llama-3-70b",
    "llama3.3:70b": "llama-3.3-70b",
    "DeepSeekV3 (w/o MTP)": "deepseek-v3",
    "meta-llama/Meta-Llama-3-8B-Instruct": "llama-3-8b",
    "LLaMA 1 30B": "llama-33b",
    "mistralai/Mixtral-8x7B-Instruct-v0.1": "mixtral-8x7b",
    "Llama-3.1-8B-Instruct-FP8": "llama-3.1-8b",
    "GLM-4.6-UD-Q4_K_XL-00001-of-00005.gguf": "glm-4.6",
    "Qwen3-30B-A3B-Instruct-2507": "qwen3-30b-a3b",
    "gpt2-xl": "gpt2-xl",
    "BLOOM 176B": "bloom-176b",
    "Llama3-70B": "llama-3-70b",
    "llama-2-7b-chat-hf": "llama-2-7b",
    "Mistral-7B-v0.3": "mistral-7b-v0.3",
    "google/gemma-2-9b-it": "gemma-2-9b",
    "DeepSeek-V3-0324": "deepseek-v3",
    "deepseek-ai/DeepSeek-R1": "deepseek-r1",
    "Qwen2.5-72B-Instruct-GPTQ-Int4": "qwen2.5-72b",
    "gpt-oss-120b": "gpt-oss-120b",
    "openai/gpt-oss-20b": "gpt-oss-20b",
    "qwen3:30b-a3b": "qwen3-30b-a3b",
    "Llama 4 Maverick": "llama-4-maverick",
    "meta-llama/Llama-4-Scout-17B-16E-Instruct": "llama-4-scout",
    "GPT-3 175B": "gpt3-175b",
    "phi4:14b": "phi-4",
    "nvidia/Llama-3.3-70B-Instruct-FP4": "llama-3.3-70b",
    "TinyLlama-1.1B-Chat-v1.0": "tinyllama-1.1b",
    "LLAMA3.1 405B": "llama-3.1-405b",
}
"""Names as people write them in tables, logs, launch files and on the command line."""
TASK = {"n_gpus": 8, "gpu": "H100-80GB", "global_batch_seqs": 8, "seq_len": 1024, "sec_per_iter": 1.0}


def doors(name: str) -> dict[str, str]:
    """Return the model that a name means, by door."""
    row = run_of({"model": name, **TASK})
    served = run_of({"model": name, "quant": "Q8_0", "gpu": "H100-80GB", "n_gpus": 1, "decode_tok_s": 1.0, "gen_len": 64})
    audited = Figures(row, "").named
    checked = model_of_file(row)[0]
    return {
        "plan": train_lookup.question(TrainAsk(name, on="8xh100-sxm", batch=8, seq=1024)).model.name,
        "serve": serve_lookup.question(ServeAsk(name, on="8xh200")).model.name,
        "validate": train.setup(row).model.name,
        "validate, served": serve.case_of(served, "").model.name,
        "audit": audited.name if audited else "",
        "check": checked.name if checked else "",
    }


@pytest.mark.parametrize(("name", "preset"), NAMES.items())
def test_a_name_means_one_model_through_every_door(name: str, preset: str) -> None:
    assert doors(name) == dict.fromkeys(doors(name), preset)


@pytest.mark.parametrize(
    ("model", "on", "batch", "framework"),
    [
        ("llama-3-8b", "4x8xh100-sxm", "256x8192", "megatron"),
        ("bloom-176b", "jean-zay:12", "512x2048", "megatron-deepspeed"),
        ("llama-3-70b", "16x8xh100-sxm", "1024x8192", "torchtitan"),
    ],
)
def test_a_plan_its_exported_script_and_its_log_have_one_prediction(
    model: str, on: str, batch: str, framework: str, tmp_path: Path
) -> None:
    plan = meshwise.plan(model, on=on, batch=batch, framework=framework)
    script, *_ = meshwise.export(plan, to=framework, launcher="slurm").save(tmp_path)
    figures = f"elapsed time per iteration (s): {plan.best.step} | global batch size: {plan.ask.batch} | lm loss: 6.38E+00 |"
    log = tmp_path / "main.log"
    log.write_text("".join(f" iteration {step}/ 9 | {figures}\n" for step in range(2, 6)))
    checked = meshwise.check(*tmp_path.glob("*[!g]"), on=on).own
    (predicted,) = meshwise.audit(log, script, on=on).predictions.train
    assert checked.layout == plan.best.layout
    assert same(checked.step, plan.best.step)
    assert same(predicted.seconds, plan.best.step)
    assert same(predicted.memory, plan.best.peak)
    assert predicted.ratio == pytest.approx(1, rel=1e-3)
