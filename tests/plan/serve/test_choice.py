"""A serving plan: the question, the choices, the file and the errors."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwise.errors import DoesNotFit, UserError
from meshwise.plan.ask import ServeAsk
from meshwise.plan.serve.choice import choice, contexts, largest_format
from meshwise.plan.serve.plan import ServePlan, make, read, refuse
from meshwise.plan.serve.search import search
from support.command import one_line
from support.serve_questions import found, question, split


def plan_of(**more: Any) -> ServePlan:
    ask = ServeAsk(**({"model": "llama-3.3-70b:q4_k_m", "on": "4xrtx4060ti-16gb", "context": 16384, "top": 5} | more))
    return make(ask, lambda q, layout: {"llama.cpp": ("llama-server",)})


def test_a_plan_comes_back_from_its_json(tmp_path: Path) -> None:
    made = plan_of()
    file = tmp_path / "plan.json"
    file.write_text(json.dumps(made.to_json()))
    assert json.loads(file.read_text())["kind"] == "serve"
    assert read(file) == made


paths = st.lists(
    st.one_of(st.integers(0, 3), st.sampled_from(["ask", "choices", "devices", "time_parts", "weights"])), max_size=4
)


@given(paths, st.sampled_from([None, "x", -1, [], {}, float("inf")]))
def test_a_damaged_plan_is_refused_in_one_line(tmp_path_factory: pytest.TempPathFactory, path: list[Any], bad: Any) -> None:
    table: Any = json.loads(json.dumps(DAMAGED))
    inside = table
    for step in path:
        known = isinstance(inside, dict) and step in inside
        listed = isinstance(inside, list) and isinstance(step, int) and step < len(inside)
        inside = inside[step] if known or listed else inside
    if isinstance(inside, dict):
        inside[sorted(inside)[0]] = bad
    elif inside:
        inside[0] = bad
    file = tmp_path_factory.mktemp("plans") / "plan.json"
    file.write_text(json.dumps(table))
    message = ""
    try:
        assert read(file).choices
    except UserError as error:
        message = one_line(error)
    assert not message or "plan.json" in message


DAMAGED = plan_of().to_json()


def test_a_training_plan_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    file.write_text(json.dumps({"format": 2, "ask": {}}))
    with pytest.raises(UserError, match="a plan for training; expected a plan for serving"):
        read(file)


def test_assumptions_are_noted() -> None:
    shared = plan_of(model="llama-3-8b", on="2xh200", engine="transformers", fix=("tp=2",))
    assert any("on several GPUs transformers runs its own layers" in note for note in shared.notes)
    assert any("no format given: Q4_K_M" in note for note in plan_of(model="llama-3-8b", on="rtx3090").notes)
    assert any("no --context given: 8,192" in note for note in plan_of(model="llama-3-8b", on="rtx3090", context=0).notes)


def test_a_context_beyond_training_is_a_warning_and_not_an_error() -> None:
    made = plan_of(model="llama-3-8b:q4_k_m", on="rtx3090", context=65536)
    assert any("longer than the 8,192 that llama-3-8b was trained for" in note for note in made.notes)
    assert made.fits


# Where nothing fits or meets the targets.


def test_a_model_that_does_not_fit_is_refused_with_the_missing_bytes_and_what_would_fit() -> None:
    q = question("llama-3.3-70b:bf16", "4xrtx3090", engine="vllm")
    error = refuse(q, search(q))
    assert isinstance(error, DoesNotFit)
    assert "does not fit on 4xrtx3090 with vllm and a context of 16,384" in one_line(error)
    assert "GiB more on its fullest card" in str(error)
    assert "fp8 would fit" in str(error)


def test_a_target_that_nothing_meets_names_the_closest() -> None:
    q = question(per_user=100.0, ttft=0.1)
    error = refuse(q, search(q))
    assert "a time to first token of 100 ms at p95 and a time per output token of 10 ms on average: the closest is" in one_line(
        error
    )
    assert error.exit_code == 1


def test_the_widest_format_fits_and_the_next_wider_one_does_not() -> None:
    """Q5_K_M is 46.5 GiB and Q6_K 53.9 of the 61 GiB that four cards offer; 5 GiB of it are cache."""
    widest = largest_format(question(), split(found(), "layer", 4))
    assert widest
    assert widest[0] == "Q5_K_M"


def test_contexts_are_listed_for_the_requested_cache_type_and_smaller_ones() -> None:
    layered = {"fix": ("split=layer",)}
    assert set(contexts(question(**layered), found(**layered).options[0])) == {"f16", "q8_0", "q4_0"}
    assert set(contexts(question(), split(found(), "tensor", 4))) == {"f16"}  # llama.cpp cuts no quantised cache
    assert set(contexts(question(kv="q8_0"), found(kv="q8_0").options[0])) == {"q8_0", "q4_0"}
    assert set(contexts(question("llama-3-8b:bf16", "h200"), found("llama-3-8b:bf16", "h200").options[0])) == {"f16", "fp8"}


def test_watts_and_dollars_where_they_are_known() -> None:
    """An RTX 4060 Ti has 165 W and no price to rent; an H100 SXM 700 W and $6.88 an hour (chips/*.toml)."""
    home = choice(question(), split(found(), "layer", 4))
    assert home.watts == 4 * 165
    assert home.dollars_per_million is None
    best = found("llama-3-8b:bf16", "h100-sxm", users=8).options[0]
    there = choice(question("llama-3-8b:bf16", "h100-sxm", users=8), best)
    assert there.dollars_per_million == pytest.approx(6.88 / 3600 / best.throughput * 1e6)
    assert there.kwh_per_million == pytest.approx(700 / best.throughput * 1e6 / 3.6e6)


def test_devices_add_up_to_the_model() -> None:
    made = choice(question(), split(found(), "layer", 4))
    assert sum(device.layers for device in made.devices) == 80
    assert [device.head for device in made.devices] == [False, False, False, True]
    weights = sum(device.weights for device in made.devices)
    embedding = question().weights.embedding[0].bytes
    assert weights + embedding == pytest.approx(question().weights.bytes, rel=1e-3)
