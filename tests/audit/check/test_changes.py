"""A patched file says the best layout of the same task, whatever layout the file had."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwise.audit.check.ask import CheckAsk
from meshwise.audit.check.judge import judge
from meshwise.programs.program import Job, launchers, programs
from meshwise.programs.read.files import read_sources
from meshwise.programs.source import Source
from meshwise.programs.write import nearest
from support.launch_files import base, with_layout

ON = "8x8xh100-sxm"
PROGRAMS = (
    "megatron",
    "torchtitan",
    "torchtitan-0.2",
    "nanotron",
    "axolotl",
    "torchtune",
    "trainer",
    "llama-factory",
    "accelerate",
    "maxtext",
)
TASK = ("batch", "seq", "tokens", "steps", "precision", "devices", "layers", "model")


@st.composite
def layouts(draw: st.DrawFn) -> dict[str, Any]:
    """Draw a layout of 64 devices."""
    tp, pp = draw(st.sampled_from([1, 2, 4, 8])), draw(st.sampled_from([1, 1, 2, 4]))
    dp, zero = 64 // (tp * pp), draw(st.sampled_from([0, 1, 2, 3]))
    return {
        "tp": tp, "pp": pp, "cp": 1, "vpp": 1, "schedule": "1f1b", "ep": 1, "etp": 1, "zero": zero, "mbs": draw(st.sampled_from([1, 2, 4])),
        "dp_replicate": 1 if zero else dp, "dp_shard": dp if zero else 1, "sp": draw(st.integers(0, 1)) if tp > 1 else 0,
        "recompute": draw(st.sampled_from(["none", "full"])), "offload": draw(st.sampled_from(["none", "none", "optimizer"])),
    }  # fmt: skip


@pytest.mark.parametrize("name", PROGRAMS)
@settings(max_examples=8)
@given(layout=layouts())
def test_a_patched_file_says_the_best_layout_of_the_same_task(name: str, layout: dict[str, Any]) -> None:
    program = programs()[name]
    setup = with_layout(base("dense"), layout)
    setup = replace(setup, values={**setup.values, "steps": 1000})
    near = nearest(program, setup, list(program.refuse(setup)))
    assert near is not None
    setup = near
    assert program.write is not None
    written = program.write(setup)
    job = Job("job", 8, 8, written.command, written.starter, written.environment, files=written.files)
    files = {**launchers()["torchrun"].write(job), **written.files}
    before = judge(read_sources([Source(file, text) for file, text in files.items()], {}), CheckAsk(on=ON))
    assert before.own is not None, before.unknown
    if before.best is None:
        return
    assert before.patched, [str(change) for change in before.changes]
    after = judge(
        read_sources([Source(file, text) for file, text in (files | dict(before.patched)).items()], {}), CheckAsk(on=ON)
    )
    assert after.own is not None
    assert after.own.layout == before.best.layout
    assert {fact: after.facts.value(fact) for fact in TASK} == {fact: before.facts.value(fact) for fact in TASK}
