"""A short run with default settings learns, whatever the family: its loss falls, and neither loss nor gradient starts or becomes huge."""

import json
from pathlib import Path
from typing import Any

import pytest

from meshwise.run.train.ask import TrainRun
from meshwise.run.train.launch import prepare
from meshwise.workers.trainer.contract.models.registry import families
from support.nursery import Nursery
from support.small_families import FAMILIES
from support.tiny_runs import trained

QUICK = ("llama", "granite, no factors")
LARGEST_FIRST_NORM, LARGEST_RISE = 20.0, 0.3
DEEP = {"num_hidden_layers": 24, "hidden_size": 64, "intermediate_size": 128}
CASES: dict[str, dict[str, Any]] = {
    **FAMILIES,
    "granite, no factors": {
        key: value for key, value in FAMILIES["granite"].items() if not key.endswith(("multiplier", "scaling"))
    },
    **{f"{name}, deep": FAMILIES[name] | DEEP for name in ("mistral", "granite", "gpt_neox", "olmo2", "ttt")},
    "mistral, a large vocabulary": FAMILIES["mistral"] | {"vocab_size": 8192},
}


def test_every_family_has_a_case() -> None:
    assert set(families()) <= {config["model_type"] for config in CASES.values()}


@pytest.mark.parametrize("name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in CASES])
def test_the_loss_of_a_default_run_falls(name: str, nursery: Nursery, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CASES[name]))
    trained(nursery, prepare(TrainRun(str(tmp_path / "config.json"), device="cpu")).settings, tmp_path / "run")
    rows = [json.loads(line) for line in (tmp_path / "run" / "steps.jsonl").read_text().splitlines()]
    losses = [row["loss"] for row in rows]
    assert len(rows) == 40
    assert losses[-1] < losses[0] - 0.5
    assert max(losses) < losses[0] + LARGEST_RISE
    assert rows[0]["grad_norm"] < LARGEST_FIRST_NORM
