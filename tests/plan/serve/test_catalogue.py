"""Every model of the catalogue is planned by every engine that runs it, or refused in words."""

from collections.abc import Hashable
from functools import cache

import pytest

from meshwise import api
from meshwise.catalogue.engines import engines
from meshwise.errors import DoesNotFit, UserError
from meshwise.models.find import find_model, presets
from meshwise.models.model import Model

NEWEST = ("gpt-oss-20b", "gpt-oss-120b", "deepseek-v4-flash", "gemma-4-26b-a4b", "opt-1.3b", "opt-350m")
"""Experts with biases, compressed attention, a mixture beside a dense layer, learned positions: each once ended in a traceback."""
SIZES = (1, 2, 4, 8)


def clusters(engine: str) -> list[str]:
    return ["m3-ultra", "2xm3-ultra@10Gbps"] if engine == "mlx" else [f"{number}xh200" for number in SIZES]


def outcome(model: str, engine: str, cluster: str) -> str:
    """Plan a model; anything but a plan, a refusal or too little memory is raised."""
    try:
        plan = api.serve(model, on=cluster, engine=engine, users=4)
    except DoesNotFit:
        return "does not fit"
    except UserError:
        return "refused"
    assert plan.best.throughput > 0
    return "planned"


@pytest.mark.parametrize("model", NEWEST)
@pytest.mark.parametrize("engine", ["vllm", "tensorrt-llm", "llama.cpp"])
def test_unusual_models_are_planned_on_one_card_and_on_eight(model: str, engine: str) -> None:
    found = [outcome(model, engine, cluster) for cluster in ("h200", "8xh200")]
    assert found == ["refused", "refused"] if engine == "llama.cpp" and "refused" in found else found[1] == "planned"


def check(model: str, engine: str) -> None:
    """What fits on one card also fits on more; a model that an engine refuses, it refuses everywhere."""
    found = [outcome(model, engine, cluster) for cluster in clusters(engine)]
    assert "refused" not in found or set(found) == {"refused"}, (model, engine, found)
    assert found == sorted(found), (model, engine, found)  # "does not fit" first, then "planned"


@cache
def architectures() -> list[str]:
    """Return the largest model of each type and set of operators: others of the catalogue differ in their sizes."""
    largest: dict[Hashable, Model] = {}
    for model in map(find_model, sorted(presets())):
        kind = (model.model_type, frozenset(op.name for op in model.ops), bool(model.quantization))
        largest[kind] = max(largest.get(kind, model), model, key=lambda one: one.params)
    return [model.name for model in largest.values()]


@pytest.mark.slow
@pytest.mark.parametrize("engine", sorted(engines()))
def test_a_model_of_each_architecture_is_planned_by_every_engine(engine: str) -> None:
    for model in architectures():
        check(model, engine)


@pytest.mark.long
@pytest.mark.parametrize("model", sorted(presets()))
def test_the_catalogue_is_planned_by_every_engine(model: str) -> None:
    for engine in engines():
        check(model, engine)
