"""The validation loss is that of the same samples at every step, in any layout, and leaves the training as it is."""

import json
import struct
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest

from meshwise.workers.trainer.contract.settings import Layout, Settings, TokenFile
from support.nursery import Nursery
from support.tiny_runs import LLAMA, WHOLE, losses

pytestmark = pytest.mark.slow

MIXTRAL = LLAMA | {"model_type": "mixtral", "num_local_experts": 4}


class Plain(NamedTuple):
    """A run on one device: what was asked, its folder, and its losses."""

    asked: Settings
    out: Path
    losses: dict[int, float]


@pytest.fixture(scope="module")
def plain(nursery: Nursery, tmp_path_factory: pytest.TempPathFactory) -> Plain:
    folder = tmp_path_factory.mktemp("evaluation")
    path = folder / "eval.bin"
    path.write_bytes(struct.pack("<300H", *(i * 7 % 256 for i in range(300))))
    file = TokenFile(str(path), 0, 300, 2)
    asked = replace(WHOLE, model=MIXTRAL, checkpoint_every=0, steps=4, eval_data=(file,), eval_text="numbers", eval_every=2)
    return Plain(asked, folder / "plain", losses(nursery, asked, folder / "plain"))


def test_a_validation_leaves_the_training_as_it_is(nursery: Nursery, tmp_path: Path, plain: Plain) -> None:
    assert losses(nursery, replace(plain.asked, eval_data=(), eval_every=0), tmp_path) == plain.losses


@pytest.mark.parametrize("layout", [Layout(mbs=4, dp_shard=2), Layout(mbs=2, pp=2), Layout(mbs=2, tp=2)])
def test_every_layout_has_the_same_validation_losses(nursery: Nursery, tmp_path: Path, plain: Plain, layout: Layout) -> None:
    assert losses(nursery, replace(plain.asked, layout=layout), tmp_path) == pytest.approx(plain.losses, rel=1e-4)
    uneven = [
        json.loads(line)["imbalance"]
        for folder in (plain.out, tmp_path)
        for line in (folder / "steps.jsonl").read_text().splitlines()
    ]
    assert all(1 <= one <= 4 / 2 for one in uneven)  # two of four experts: the busiest has at most every token
    assert uneven[:4] == pytest.approx(uneven[4:], rel=1e-6)
    rows = [
        [json.loads(line) for line in (folder / "evaluations.jsonl").read_text().splitlines()] for folder in (plain.out, tmp_path)
    ]
    assert [row["step"] for row in rows[0]] == [2, 4]
    assert rows[0][0]["tokens"] == 2 * 8 * 16  # 18 samples hold two batches
    assert [row["loss"] for row in rows[1]] == pytest.approx([row["loss"] for row in rows[0]], rel=1e-4)
