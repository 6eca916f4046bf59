"""Plans with pools of their own for prompts: where they win, and where they are asked for."""

import pytest

from meshwise.errors import UserError
from meshwise.plan.ask import ServeAsk
from meshwise.plan.serve import lookup
from meshwise.plan.serve.capacity import max_rate, most_within
from meshwise.plan.serve.choice import choice
from meshwise.plan.serve.search import meets
from support.serve_questions import found, question

LOAD = {"context": 8192, "prompt": 4096, "output": 256, "rate": 20.0}
MODEL, RIG = "llama-3.1-8b:fp8", "4xh100-sxm"


def test_pools_are_planned_where_only_they_meet_the_targets() -> None:
    asked = LOAD | {"ttft": "500ms", "tpot": "9ms"}
    q, best = question(MODEL, RIG, **asked), found(MODEL, RIG, **asked).options[0]
    assert best.layout.prefill
    assert best.layout.devices <= 4
    assert meets(q, best)
    assert not any(meets(q, option) for option in found(MODEL, RIG, **asked).options if not option.pool)
    assert LOAD["rate"] <= most_within(q, best) <= max_rate(q, best)


def test_pools_that_would_win_by_less_than_they_err_are_not_planned() -> None:
    """vLLM's page on disaggregated prefill says that it does not improve throughput; here it would be 28%, of 51% that are uncertain."""
    options = found("qwen3-32b", "8xh100-sxm", context=8192, prompt=512, output=128, users=200, ttft="1s").options
    assert not any(option.pool for option in options)


def test_without_targets_no_pool_takes_devices_from_the_others() -> None:
    assert not any(option.pool for option in found(MODEL, RIG, **LOAD).options)


def test_pools_that_are_asked_for() -> None:
    asked = LOAD | {"fix": ("prefill=2",)}
    options = found(MODEL, RIG, **asked).options
    assert options
    for option in options:
        assert option.layout.prefill
        assert option.layout.prefill.replicas == 2
        assert option.layout.name.startswith("2 prefill (")
    made = choice(question(MODEL, RIG, **asked), options[0])
    assert (made.prefill_replicas, made.prefill_cards) == (2, 1)
    assert 0 < made.transfer < 0.1
    assert made.watts == 700 * options[0].layout.devices
    assert made.throughput == pytest.approx(20 * 256, rel=0.01)


def test_pools_need_an_engine_that_moves_caches() -> None:
    with pytest.raises(UserError, match=r"transformers cannot compute prompts on other devices than outputs"):
        lookup.question(ServeAsk(model="llama-3.1-8b:bf16", on=RIG, engine="transformers", fix=("prefill=1",)))
