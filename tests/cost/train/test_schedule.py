"""Pipeline schedules: every operation once and in order, and the closed form of the bubble against the schedule played out."""

from collections import Counter
from itertools import product

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from meshwise.cost.axes import SCHEDULES
from meshwise.cost.layout import Layouts
from meshwise.cost.train.question import Question
from meshwise.cost.train.schedule import BACKWARD, FORWARD, WEIGHT, Simulation, order, simulate
from meshwise.cost.train.stages import layers_before
from meshwise.cost.train.step import evaluate, layer_and_head, pass_times, stage_launch
from support.every import check_every
from support.train_questions import FRAMEWORKS, MODELS, question, stages

WORK = ("matmul", "attention", "elementwise", "recompute", "tp", "cp", "ep")


@st.composite
def cases(draw: st.DrawFn) -> tuple[str, np.ndarray, int]:
    """A schedule, seconds of every pass, stage and chunk, and micro-batches."""
    schedule, pp = draw(st.sampled_from(SCHEDULES)), draw(st.integers(1, 9))
    chunks = draw(st.integers(2, 4)) if schedule == "interleaved" else 1
    m = pp * draw(st.integers(1, 4)) if schedule == "interleaved" else draw(st.integers(1, 20))
    size = 3 * pp * chunks
    seconds = np.array(draw(st.lists(st.floats(0, 9), min_size=size, max_size=size))).reshape(3, pp, chunks)
    return schedule, seconds, m


def passes(schedule: str) -> tuple[int, ...]:
    return (FORWARD, BACKWARD, WEIGHT) if schedule == "zero-bubble" else (FORWARD, BACKWARD)


@given(cases())
def test_every_operation_runs_once_and_none_waits_for_ever(case: tuple[str, np.ndarray, int]) -> None:
    schedule, seconds, m = case
    run = simulate(schedule, seconds, m)
    _, pp, chunks = seconds.shape
    expected = {
        (stage, what, chunk, j) for stage in range(pp) for what in passes(schedule) for chunk in range(chunks) for j in range(m)
    }
    assert Counter(run.rows()) == Counter(expected)


@given(cases(), st.sampled_from((0.0, 0.5)))
def test_nothing_starts_before_what_it_needs_and_a_stage_does_one_thing_at_a_time(
    case: tuple[str, np.ndarray, int], between: float
) -> None:
    schedule, seconds, m = case
    run = simulate(schedule, seconds, m, between)
    _, pp, chunks = seconds.shape
    start = dict(zip(run.rows(), run.start.tolist(), strict=True))
    end = dict(zip(run.rows(), run.end.tolist(), strict=True))
    for (stage, kind, chunk, j), begun in start.items():
        place = chunk * pp + stage  # of the model's pieces, from the input to the loss
        if kind == FORWARD and place > 0:
            assert begun >= end[(place - 1) % pp, FORWARD, (place - 1) // pp, j] + between * (pp > 1)
        if kind == BACKWARD:
            assert begun >= end[stage, FORWARD, chunk, j]
            if place + 1 < pp * chunks:
                assert begun >= end[(place + 1) % pp, BACKWARD, (place + 1) // pp, j] + between * (pp > 1)
        if kind == WEIGHT:
            assert begun >= end[stage, BACKWARD, chunk, j]
    for stage in range(pp):
        rows = run.stage == stage
        assert (run.start[rows][1:] >= run.end[rows][:-1]).all()


def in_flight(run: Simulation, stage: int, freed_by: int) -> int:
    """Return the most micro-batches whose activations a stage holds at once."""
    rows = run.stage == stage
    steps = np.where(run.kind[rows] == FORWARD, 1, np.where(run.kind[rows] == freed_by, -1, 0))
    return int(np.cumsum(steps).max())


@pytest.mark.parametrize(("pp", "m"), [(4, 16), (8, 8), (8, 3)])
def test_stages_hold_as_many_micro_batches_as_published(pp: int, m: int) -> None:
    """Stage i of 1F1B holds p - i micro-batches (arXiv:2104.04473, 2.2.1); no stage of ZB-H1 more than its first (arXiv:2401.10241)."""
    plain, split = simulate("1f1b", np.ones((3, pp, 1)), m), simulate("zero-bubble", np.ones((3, pp, 1)), m)
    for stage in range(pp):
        assert in_flight(plain, stage, BACKWARD) == min(m, pp - stage)
        assert in_flight(split, stage, WEIGHT) <= min(m, pp)


def test_orders_match_the_published_ones() -> None:
    """1F1B of arXiv:2104.04473: the last of 4 stages alternates at once, the first runs 3 ahead. ZB-H1's last puts off 3 weights."""
    orders = ["".join(f"{'FBW'[kind]}{j}" for kind, _, j in order("1f1b", stage, 4, 4)) for stage in (0, 3)]
    assert orders == ["F0F1F2F3B0B1B2B3", "F0B0F1B1F2B2F3B3"]
    last = "".join(f"{'FBW'[kind]}{j}" for kind, _, j in order("zero-bubble", 3, 4, 5))
    assert last == "F0B0F1B1F2B2F3B3W0F4B4W1W2W3W4"


def test_equal_stages_idle_as_published() -> None:
    """(p - 1)(F + B), over v interleaved (arXiv:2104.04473, 2.2), and (p - 1)(F + B - W) in ZB-H1 (arXiv:2401.10241, Table 2)."""

    def check(pp: int, rounds: int) -> None:
        m, f, b, w = pp * rounds, 1.0, 1.2, 0.8
        whole = np.array([f, b + w, 0.0])[:, None, None] * np.ones((pp, 1))
        split = np.array([f, b, w])[:, None, None] * np.ones((pp, 1))
        work = m * (f + b + w)
        assert simulate("1f1b", whole, m).makespan - work == pytest.approx((pp - 1) * (f + b + w))
        assert simulate("interleaved", np.repeat(whole / 4, 4, axis=2), m).makespan - work == pytest.approx(
            (pp - 1) * (f + b + w) / 4
        )
        assert simulate("zero-bubble", split, m).makespan - work == pytest.approx((pp - 1) * (f + b - w))

    check_every(check, product([2, 4, 8], [1, 4]))


# The closed form.


@st.composite
def layouts(draw: st.DrawFn) -> tuple[Question, dict[str, int]]:
    """Any model in any framework, cut into stages in a schedule that the framework has, with few micro-batches or many."""
    framework = draw(st.sampled_from(FRAMEWORKS))
    q = question(draw(st.sampled_from(MODELS)), "jean-zay:4", framework, seq=draw(st.sampled_from((512, 4096))))
    pp = draw(st.sampled_from([n for n in stages(q) if n <= 32])) if q.work.framework.schedules else 1
    schedule = draw(st.sampled_from(q.work.framework.schedules)) if pp > 1 else "1f1b"
    per_stage, over = divmod(q.model.decoder.layers, pp)
    chunks = [v for v in range(2, per_stage + 1) if per_stage % v == 0] if not over else []
    assume(schedule != "interleaved" or chunks)
    interleaved = schedule == "interleaved"
    m = pp * draw(st.integers(1, 8)) if interleaved else draw(st.one_of(st.integers(1, 40), st.sampled_from((64, 512))))
    row = {
        "pp": pp,
        "vpp": draw(st.sampled_from(chunks)) if interleaved else 1,
        "schedule": SCHEDULES.index(schedule),
        "recompute": draw(st.sampled_from((0, 1, 2))),
        "tp": draw(st.sampled_from((1, 2))),
    }
    return question(q.model.name, "jean-zay:4", framework, batch=m, seq=q.work.seq), row


def played(q: Question, row: dict[str, int], m: int) -> float:
    """The schedule with the seconds that the cost model has for each stage."""
    one = Layouts.of(**row)
    a = one.as_floats()
    layer, head = (
        np.array([float(one[0]) for one in (found.forward, found.backward, found.weight)])
        for found in (pass_times(q, a, parts) for parts in layer_and_head(q, one))
    )
    layers = np.diff(layers_before(q, a, np.arange(row["pp"] + 1.0)))
    assert layers.sum() == q.model.decoder.layers
    seconds = layer[:, None, None] * layers[:, None] * np.full(row["vpp"], 1 / row["vpp"])
    seconds[:, -1, -1] += head
    return simulate(SCHEDULES[row["schedule"]], seconds, m).makespan


@pytest.mark.slow
@settings(max_examples=400, deadline=None)
@given(layouts())
def test_the_closed_form_agrees_with_the_simulated_schedule_to_a_thousandth(case: tuple[Question, dict[str, int]]) -> None:
    q, row = case
    m = int(q.work.batch)
    time = {part: float(value[0]) for part, value in evaluate(q, Layouts.of(**row)).time.items()}
    closed = sum(time[part] for part in (*WORK, "launch", "bubble")) - m * float(stage_launch(q, Layouts.of(**row))[0])
    assert closed == pytest.approx(played(q, row, m), rel=1e-3)


def test_a_faster_last_stage_shortens_the_bubble() -> None:
    """Two stages of 1 s forward and 2 s backward and a last of 0.5 and 1, 4 micro-batches, played out by hand.

    Stage 1: F0 1 to 2, F1 to 3, B0 3.5 to 5.5 (the last stage has it done at 3.5), F2, B1, F3 8.5 to 9.5, B2 to 11.5, B3 to 13.5.
    """
    seconds = np.array([[1, 1, 0.5], [2, 2, 1.0], [0, 0, 0]])[:, :, None]
    run = simulate("1f1b", seconds, 4)
    assert run.end[run.stage == 1].max() == 13.5
    assert run.makespan == 15.5  # a second less than the other stages' time on top of 4 x 3 s
