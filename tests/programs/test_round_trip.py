"""Every layout that a program can say is read back as the same layout; everything else is refused with a layout that it can say."""

from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from meshwise.cost.axes import OFFLOAD, RECOMPUTE, SCHEDULES
from meshwise.programs.program import Program, Setup, programs
from meshwise.programs.write import nearest
from support.launch_files import UNSAID, base, layout_of, read_again, with_layout

WRITTEN = {name: program for name, program in programs().items() if program.kind == "train" and program.write is not None}
NAMES = sorted(WRITTEN)
ONE_DEVICE = ("mlx-lm", "unsloth")
"""Programs that have no layout of many devices to say."""
POWERS = st.sampled_from([1, 2, 4, 8])


@st.composite
def setups(draw: st.DrawFn, names: tuple[str, ...]) -> Setup:
    """Draw any layout of a plan's devices, possible or not."""
    setup = base(draw(st.sampled_from(names)))
    devices, batch = setup.whole("devices"), setup.whole("batch")
    stages = st.sampled_from([3, 6, 12, 24]) if devices % 3 == 0 else POWERS
    tp, pp, cp = draw(POWERS), draw(stages), draw(st.sampled_from([1, 2, 4]))
    assume(devices % (tp * pp * cp) == 0)
    dp = devices // (tp * pp * cp)
    replicate = draw(st.sampled_from([size for size in (1, 2, 4, 8) if dp % size == 0]))
    zero = draw(st.integers(0, 3))
    vpp = draw(st.sampled_from([1, 2, 4])) if pp > 1 else 1
    schedule = draw(st.sampled_from(SCHEDULES)) if pp > 1 else "1f1b"
    assume((schedule == "interleaved") == (vpp > 1) or schedule == "zero-bubble")
    ep = draw(st.sampled_from([1, 2, 4, 8])) if setup.values.get("experts") else 1
    assume((dp // replicate) * cp * tp % ep == 0)
    layout: dict[str, Any] = {
        "tp": tp, "pp": pp, "cp": cp, "vpp": vpp, "schedule": schedule, "zero": zero, "ep": ep,
        "etp": draw(st.sampled_from([1, tp])) if ep > 1 else tp if setup.values.get("experts") else 1,
        "dp_replicate": dp if zero == 0 else replicate, "dp_shard": 1 if zero == 0 else dp // replicate,
        "mbs": draw(st.sampled_from([1, 2, 4, 8])), "sp": draw(st.integers(0, 1)) if tp > 1 else 0,
        "recompute": draw(st.sampled_from(RECOMPUTE)), "offload": draw(st.sampled_from(OFFLOAD)),
    }  # fmt: skip
    assume(batch % (dp * layout["mbs"]) == 0)
    assume(zero == 0 or dp // replicate * cp > 1)
    more = {"precision": draw(st.sampled_from(["bf16", "fp16", "fp8", "fp8-row", "mxfp8", "nvfp4"]))}
    return with_layout(setup, layout, **more)


def check(program: Program, setup: Setup) -> None:
    """Assert that a setup is read back as it was written."""
    facts, row = read_again(program, setup)
    wanted = {axis: value for axis, value in layout_of(setup).items() if axis not in UNSAID.get(program.name, ())}
    assert row == wanted
    assert facts.value("batch") == setup.values["batch"]
    assert facts.value("precision") == setup.values["precision"]
    if program.name != "deepspeed":
        assert facts.value("seq") == setup.values["seq"]


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=40)
@given(data=st.data())
def test_a_layout_is_read_back_or_refused(name: str, data: st.DataObject) -> None:
    program = WRITTEN[name]
    setup = data.draw(setups(("bloom",) if name == "megatron-deepspeed" else ("dense", "experts")))
    refusals = list(program.refuse(setup))
    if not refusals:
        check(program, setup)
        return
    assert all(refusal.why for refusal in refusals)
    near = nearest(program, setup, refusals)
    if near is not None:
        assert not list(program.refuse(near))
        assert near.whole("dp") * near.whole("tp") * near.whole("pp") * near.whole("cp") == setup.whole("devices")
        check(program, near)


def test_every_program_can_say_some_layout() -> None:
    """A refusal of everything would pass the test above."""
    plain = {"tp": 1, "pp": 1, "cp": 1, "ep": 1, "etp": 1, "vpp": 1, "schedule": "1f1b", "sp": 0, "offload": "none", "mbs": 1,
             "recompute": "none"}  # fmt: skip
    kinds = {stage: {"zero": stage, "dp_replicate": 1, "dp_shard": 64} for stage in (1, 2, 3)}
    for name, program in WRITTEN.items():
        if name in ONE_DEVICE:  # tests/programs/test_tuners.py
            continue
        setup = base("bloom") if name == "megatron-deepspeed" else base("dense")
        said = [setup] if name == "megatron-deepspeed" else [with_layout(setup, plain | kind) for kind in kinds.values()]
        assert any(not list(program.refuse(one)) for one in said), name
