"""A question in words, and back: the command that a plan prints asks the same again."""

import json
import shlex
from functools import cache
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import meshwise as mw
from meshwise.audit.ask import AuditAsk
from meshwise.catalogue import records
from meshwise.plan.ask import ServeAsk, ShapeAsk, TrainAsk
from meshwise.plan.fields import Ask, spec
from support.command import once

ASKS: list[type[Ask]] = [TrainAsk, ShapeAsk, ServeAsk, AuditAsk]

WORDS = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"]), max_size=12).map(str.strip)
PLAIN = WORDS.filter(lambda text: not text.startswith("-"))
"""No shell tells a model called '-x' from an option."""
SOME = PLAIN.filter(bool)
LENGTHS = st.integers(1, 2**40)
POSITIVE = st.floats(1e-6, 1e18)
TARGETS = st.tuples(st.floats(1e-6, 1e6), st.sampled_from(["p50", "p95", "p99", "mean"])).map(
    lambda pair: f"{pair[0]!r}s@{pair[1]}"
)
RANGES: dict[str, st.SearchStrategy[Any]] = {
    "batch": st.integers(1, 2**20),
    "seq": st.integers(1, 2**20),
    "params": st.floats(1e6, 1e13),
    "imbalance": st.floats(1, 100),
    "ramp": st.lists(LENGTHS, max_size=3).map(tuple),
    "users": st.integers(1, 999_999),
    "top": st.integers(1, 1000),
    "finetune": st.sampled_from(("full", "lora:16", "qlora:8:q_proj,v_proj", "freeze:3")),
    **{name: st.integers(1, 4096) for name in ("images", "answers", "epochs")},
    "rate": st.floats(1e-6, 1e8),
    "burst": st.floats(0.1, 10),
    "prompt_spread": st.floats(0, 5),
    "output_spread": st.floats(0, 5),
    "prefix": st.floats(0, 1),
    "draft": st.integers(0, 999),
    "accept": st.floats(0, 0.99),
    "lora": st.tuples(st.integers(1, 99), st.integers(1, 1024)).map(lambda pair: f"{pair[0]}:{pair[1]}"),
    **dict.fromkeys(("ttft", "tpot", "e2e"), TARGETS),
    "vocab": st.integers(1, 2**24),
    "base": st.sampled_from(("", "nf4", "int8", "gptq")),
    "grid": st.sampled_from(("", "germany", "240")),
    "energy_price": st.floats(0, 100),
    "pue": st.floats(1, 5),
    "updates": st.integers(1, 1024),
    "engine_memory": st.floats(0, 1),
    "engine_tp": st.integers(0, 64),
    "rollout_devices": st.integers(0, 2**20),
    "answer": st.sampled_from(("", "900", "900:3072")),
    "spares": st.none() | st.integers(0, 10**5),
    "loss0": st.none() | st.floats(-1e9, 1e9),
}
AUDITED: dict[str, st.SearchStrategy[Any]] = {
    "batch": PLAIN, "params": POSITIVE, "vocab": POSITIVE, "seq": LENGTHS,
    **{name: st.integers(1, 10**6) for name in ("layers", "hidden", "dp", "tp", "pp", "mbs")},
}  # fmt: skip


def values(ask: type[Ask], name: str) -> st.SearchStrategy[Any]:
    """Any value of a field."""
    ranges = RANGES | (AUDITED if ask is AuditAsk else {})
    if name in ranges:
        return ranges[name]
    kind = spec(ask)[name].kind
    if kind.repeated:
        return st.lists(SOME, max_size=3).map(tuple)
    if not kind.metavar:
        return st.booleans()
    if "|" in kind.metavar:
        return st.sampled_from(kind.metavar.split("|"))
    if kind.metavar == "TOKENS":
        return LENGTHS
    if kind.ordered:
        return st.none() | POSITIVE if getattr(ask(), name) is None else POSITIVE
    return PLAIN


def asks(ask: type[Ask]) -> st.SearchStrategy[Ask]:
    """Questions with any of their fields given."""
    return st.fixed_dictionaries({}, optional={name: values(ask, name) for name in spec(ask)}).map(lambda words: ask(**words))


@cache
def command(verb: str) -> Any:
    """The command of a verb, as typer made it."""
    import typer

    from meshwise.ui.cli.main import app

    group: Any = typer.main.get_command(app)
    return group.get_command(None, verb)


def read_back(ask: Ask) -> Ask:
    """The question that the command line makes of the words of another."""
    program, verb, *words = shlex.split(ask.command())
    assert (program, verb) == ("meshwise", ask.verb)
    given_words = command(verb).make_context(verb, words).params
    return type(ask)(**{name: given_words[name] for name in spec(type(ask)) if given_words[name] is not None})


@pytest.mark.parametrize("cls", ASKS, ids=lambda cls: cls.__name__)
@given(data=st.data())
def test_the_words_of_a_question_ask_the_same_again(cls: type[Ask], data: st.DataObject) -> None:
    ask = data.draw(asks(cls))
    assert read_back(ask) == ask


@pytest.mark.parametrize("cls", ASKS, ids=lambda cls: cls.__name__)
@given(data=st.data())
def test_a_question_as_json_reads_back_equal(cls: type[Ask], data: st.DataObject) -> None:
    ask = data.draw(asks(cls))
    assert records.restore(cls, json.loads(json.dumps(records.plain(ask)))) == ask


def test_the_command_of_a_plan_is_the_one_that_makes_it() -> None:
    trained = mw.plan("bloom-176b", on="jean-zay:48", batch="2048x2048", framework="megatron-deepspeed")
    served = mw.serve("llama-3.3-70b:q4_k_m", on="4xrtx4060ti-16gb", context="16k")
    for made in (trained, served):
        assert read_back(made.ask) == made.ask
        assert json.loads(once(*shlex.split(made.command)[1:], "--json").out) == made.to_json()
