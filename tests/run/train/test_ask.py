"""TrainRun: flags, keywords and the command that reproduces a run agree."""

import pytest

from meshwise.cost.axes import BY_NAME
from meshwise.errors import UserError
from meshwise.plan.fields import spec
from meshwise.run.train.ask import AXES, SHORT, STEPS, TrainRun
from support.command import one_line


def test_the_command_of_a_run_reproduces_it() -> None:
    run = TrainRun(
        "llama-125m", batch="64x2048", tp=2, zero=2, compile=False, graph=False, timeout="10m", weights="w", nodes=2, node_rank=0,
        rendezvous="a:1", lr=1e-4, sweep=None, profile="5:3",
    )  # fmt: skip
    assert run.command() == (
        "meshwise run llama-125m --batch 64x2048 --tp 2 --zero 2 --lr 0.0001 --no-compile --no-graph --weights w --nodes 2 "
        "--node-rank 0 --rendezvous a:1 --profile 5:3"
    )
    assert TrainRun().command() == "meshwise run"
    assert TrainRun(timeout="90s").command() == "meshwise run --timeout 90s"


def test_help_of_an_axis_is_that_of_the_planner() -> None:
    fields = spec(TrainRun)
    assert all(fields[axis].help.startswith(BY_NAME[axis].help) for axis in AXES)


def test_only_given_axes_are_passed_on() -> None:
    assert TrainRun().axes == {}
    assert TrainRun(tp="2", recompute="full", dp_shard=4).axes == {"dp_shard": 4, "tp": 2, "recompute": "full"}


def test_runs_of_a_sweep_are_short_unless_their_length_is_given() -> None:
    assert [TrainRun(sweep=text).options["steps"] for text in (None, "mbs=1,2")] == [STEPS, SHORT]
    assert TrainRun(sweep="mbs=1,2", steps=3).options["steps"] == 3


def test_a_batch_keeps_the_sequence_length_of_the_plan_unless_it_states_its_own() -> None:
    """A plan of 64 sequences of 2,048 tokens, run with another batch."""
    assert TrainRun().shape(64, 2048) == (64, 2048)
    assert TrainRun(batch=8).shape(64, 2048) == (8, 2048)
    assert TrainRun(batch="32k").shape(64, 2048) == (16, 2048)
    assert TrainRun(batch="8x512").shape(64, 2048) == (8, 512)
    assert TrainRun(seq="1k").shape(64, 2048) == (64, 1024)


def test_compiling_is_left_to_the_device_unless_it_is_given() -> None:
    assert "compile" not in TrainRun().options
    assert [TrainRun(compile=value).options["compile"] for value in (True, False)] == [True, False]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"tp": "0"}, "--tp '0': expected a whole number from 1"),
        ({"zero": 1}, "--zero 1: expected a whole number from 2 to 3"),
        ({"timeout": "0s"}, "--timeout '0s': expected at least 1s"),
        ({"schedule": "1f2b"}, "--schedule '1f2b': expected one of 1f1b, interleaved, zero-bubble, zbv; did you mean '1f1b'?"),
        ({"report_lengths": "64"}, "--report-lengths requires --report"),
        ({"sweep": "mbs=1", "save": True}, "--sweep measures short runs; drop --save"),
    ],
)
def test_values_that_no_run_can_have_are_refused_with_their_flag(words: dict[str, object], message: str) -> None:
    with pytest.raises(UserError) as error:
        TrainRun(**words)  # pyright: ignore[reportArgumentType]
    assert message in one_line(error.value)
