"""A serving question is looked up: the format of the weights."""

import pytest

from meshwise.errors import DoesNotFit, UserError
from meshwise.plan.ask import ServeAsk
from meshwise.plan.serve.lookup import question
from meshwise.plan.serve.refusal import refuse
from meshwise.plan.serve.search import search


@pytest.mark.parametrize(
    ("model", "fmt"),
    [
        ("deepseek-v3", "fp8"),
        ("gpt-oss-120b", "mxfp4"),
        ("kimi-k2-thinking", "int4-g32"),
        ("llama-3.3-70b", "bf16"),
        ("deepseek-v3:bf16", "bf16"),
        ("RedHatAI/Llama-3.3-70B-Instruct-FP8-dynamic", "fp8"),
        ("Qwen/Qwen3-32B-AWQ", "awq"),
    ],
)
def test_without_a_format_weights_are_served_as_they_are_published(model: str, fmt: str) -> None:
    assert question(ServeAsk(model=model, on="8xh200-sxm", engine="vllm")).weights.format == fmt


def test_a_gguf_file_name_states_its_format() -> None:
    q = question(ServeAsk(model="GLM-4.6-UD-Q4_K_XL-00001-of-00005.gguf", on="8xh200-sxm"))
    assert (q.model.name, q.engine.name, q.weights.format) == ("glm-4.6", "llama.cpp", "Q4_K_M")


def test_an_engine_that_does_not_run_the_published_format_takes_its_own_default() -> None:
    assert question(ServeAsk(model="deepseek-v3", on="8xh200-sxm", engine="llama.cpp")).weights.format == "Q4_K_M"


@pytest.mark.parametrize(
    ("on", "engine", "fmt"),
    [
        ("l40s", "vllm", "bf16"),
        ("gh200", "vllm", "bf16"),
        ("mi210", "vllm", "bf16"),
        ("rtxpro6000-server", "vllm", "bf16"),
        ("rtx4090", "llama.cpp", "Q4_K_M"),
        ("m3-ultra", "llama.cpp", "Q4_K_M"),
    ],
)
def test_cards_of_servers_are_served_by_vllm(on: str, engine: str, fmt: str) -> None:
    q = question(ServeAsk(model="llama-3.1-8b", on=on))
    assert (q.engine.name, q.weights.format) == (engine, fmt)


@pytest.mark.parametrize(
    ("on", "fmt"), [("4xh100-sxm", "bf16"), ("2xh100-sxm", "fp8"), ("h100-sxm", "awq"), ("2xl40s", "fp8"), ("2xa40", "awq")]
)
def test_a_model_too_large_in_16_bits_is_planned_in_a_narrower_format(on: str, fmt: str) -> None:
    assert question(ServeAsk(model="llama-3.3-70b", on=on)).weights.format == fmt


def test_unified_memory_is_counted_once() -> None:
    q = question(ServeAsk(model="deepseek-r1", on="m3-ultra-256gb"))
    found = search(q)
    assert not found.options
    assert "on its fullest device" in str(refuse(q, found))


def test_layers_in_host_memory_need_room_there() -> None:
    enough, little = (ServeAsk("llama-3.3-70b:q4_k_m", on="rtx4090", ram=ram) for ram in ("64GB", "8GB"))
    assert search(question(enough)).options
    q = question(little)
    error = refuse(q, search(q))
    assert isinstance(error, DoesNotFit)
    assert "12.5 GiB more host memory" in str(error)
    with pytest.raises(UserError, match="--ram: these devices compute in the memory of their host"):
        question(ServeAsk(model="llama-3.3-70b", on="m3-ultra-256gb", ram="1GB"))
