"""`pick` names models that fit, are fast enough and can be downloaded, the best published scores first; else what is missing."""

import shlex
import time

import pytest

from meshwise import api
from meshwise.catalogue.releases import USES, offers
from meshwise.errors import DoesNotFit, UserError
from meshwise.models import find
from meshwise.plan.pick import ranking
from meshwise.plan.pick.answer import Pick
from meshwise.plan.pick.machines import Machines
from meshwise.units import GIB
from support.machines import MACHINES


@pytest.mark.parametrize("on", MACHINES)
def test_the_first_model_fits_and_serve_agrees(on: str) -> None:
    found = api.pick(on=on, top=1)
    assert isinstance(found, Pick)
    best = found.best
    assert best.scores
    assert best.speed >= 10
    assert best.memory < best.capacity
    assert best.longest >= best.context
    served = api.serve(f"{best.preset}:{best.format}", on=on, engine=best.engine, context=best.context)
    assert served.fits
    assert served.best.spare > 0
    words = shlex.split(best.commands[-1])
    assert words[0] in ("llama-server", "vllm", "mlx_lm.server")
    assert not any("path/to" in word or word.endswith(".gguf") for word in words)


def test_every_offer_is_a_model_that_can_be_counted_and_has_a_source() -> None:
    for offer in offers():
        assert find.find_model(offer.id).params > 1e8, offer.id
        assert offer.release.url.startswith("https://")
        assert offer.uses
        assert all(0 < score.percent < 100 for score in offer.scores)


def test_a_larger_model_of_a_family_ranks_higher() -> None:
    order = [offer.id for offer in ranking.order("chat", offers())]
    sizes = ("32B", "14B", "8B", "4B", "1.7B", "0.6B")
    assert [name for name in order if name in {f"Qwen/Qwen3-{size}" for size in sizes}] == [
        f"Qwen/Qwen3-{size}" for size in sizes
    ]


def test_a_model_without_a_score_for_the_use_is_not_ranked() -> None:
    found = api.pick(on="1xrtx3090", purpose="agents")
    assert isinstance(found, Pick)
    assert all(one.scores for one in found.models)
    assert found.unranked
    assert not any(one.scores for one in found.unranked)


@pytest.mark.parametrize("use", USES)
def test_every_use_has_an_answer_on_one_card(use: str) -> None:
    found = api.pick(on="1xrtx4090", purpose=use, top=2)
    assert isinstance(found, Pick)
    assert found.models
    assert ("--embedding" in found.best.commands[-1]) == (use == "embedding")


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (
            {"on": "cpu:1GB"},
            r"chat .* at 10 tokens/s: the smallest, HuggingFaceTB/SmolLM2-135M-Instruct in Q4_K_M, needs \d+ MiB more",
        ),
        ({"on": "cpu:1GB", "purpose": "code"}, r"no model for code runs on cpu:1GB .* the smallest, .* more"),
        ({"on": "cpu:1GB", "purpose": "embedding"}, r"with 2,048 tokens of context: the smallest"),
        ({"on": "1xrtx4060", "context": "4M"}, r"the nearest, \S+, was trained for 262,144 tokens of context"),
    ],
)
def test_nothing_fits_says_the_smallest_and_what_is_missing(asked: dict[str, str], words: str) -> None:
    with pytest.raises(DoesNotFit, match=words):
        api.pick(**asked)  # pyright: ignore[reportArgumentType]


def test_too_slow_says_the_fastest_that_fits() -> None:
    with pytest.raises(DoesNotFit, match=r"the fastest that fits, \S+ in \S+, gives \d+"):
        api.pick(on="cpu:64GB", tokens_per_second=900)


def test_a_longer_context_takes_a_smaller_format_or_model() -> None:
    short, long = (api.pick(on="1xrtx3060-12gb", context=context, top=1) for context in ("4k", "128k"))
    assert isinstance(short, Pick)
    assert isinstance(long, Pick)
    assert long.best.context == 131072
    assert long.best.memory < 12 * GIB
    assert (long.best.model, long.best.format) != (short.best.model, short.best.format) or long.best.memory > short.best.memory


def test_a_model_of_ones_own_is_listed() -> None:
    found = api.pick(on="1xrtx3090", model=["llama-3-8b"], top=1)
    assert isinstance(found, Pick)
    assert "llama-3-8b" in [one.model for one in found.unranked]


def test_ollama_is_started_by_its_tag() -> None:
    found = api.pick(on="1xrtx3090", engine="ollama", top=1)
    assert isinstance(found, Pick)
    assert found.best.commands[-1].startswith("ollama run ")


def test_what_two_thousand_dollars_buy() -> None:
    found = api.pick(buy=2000, top=3)
    assert isinstance(found, Machines)
    assert all(one.dollars <= 2000 and one.source for one in found.machines)
    with pytest.raises(DoesNotFit, match="no machine with a list price"):
        api.pick(rent="$0.01/h")


def test_contradictions_are_refused() -> None:
    with pytest.raises(UserError, match="two questions"):
        api.pick(buy=1000, rent="$1/h")
    with pytest.raises(UserError, match="leave out --on"):
        api.pick(buy=1000, on="1xrtx3090")
    with pytest.raises(UserError, match="expected one of chat, code"):
        api.pick(on="1xrtx3090", purpose="poems")


def test_it_takes_little_time() -> None:
    start = time.process_time()
    api.pick(on="2xrtx3090", purpose="code")
    assert time.process_time() - start < 3
