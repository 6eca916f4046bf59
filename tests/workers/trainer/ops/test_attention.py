"""Attention by rules: windows, caps, ALiBi and documents equal a loop over queries; parts of a sequence are balanced over ranks."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from meshwise.workers.trainer.models.base import Span, build
from meshwise.workers.trainer.ops.attention import UNSHARDED, LocalShard, Rule, attend, make_scores, slopes_of
from meshwise.workers.trainer.weights import init_random
from support.tiny_runs import LLAMA

RULES = {
    "plain": Rule(0.3),
    "window": Rule(0.3, window=3),
    "a window longer than the sequence": Rule(0.3, window=99),
    "cap": Rule(0.3, cap=2.0),
    "ALiBi": Rule(0.3, alibi=4),
    "everything": Rule(0.3, window=5, cap=2.0, alibi=4),
}


def by_loop(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, rule: Rule, documents: torch.Tensor | None) -> torch.Tensor:
    out = torch.zeros_like(q)
    for b, h, i in ((b, h, i) for b in range(q.shape[0]) for h in range(q.shape[1]) for i in range(q.shape[2])):
        first = max(0, i - rule.window + 1) if rule.window else 0
        seen = [j for j in range(first, i + 1) if documents is None or documents[b, j] == documents[b, i]]
        group = h // (q.shape[1] // k.shape[1])
        scores = k[b, group, seen] @ q[b, h, i] * rule.factor
        scores = rule.cap * torch.tanh(scores / rule.cap) if rule.cap else scores
        if rule.alibi:
            scores = scores - slopes_of(rule.alibi, q.device)[h] * torch.tensor([i - j for j in seen])
        out[b, h, i] = scores.softmax(-1) @ v[b, group, seen]
    return out


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("name", RULES)
def test_a_rule_equals_a_loop_over_queries(name: str, packed: bool) -> None:
    dice = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, heads, 9, 8, generator=dice) for heads in (4, 2, 2))
    documents = torch.randint(0, 2, (2, 9), generator=dice).cumsum(1) if packed else None
    scores = make_scores(RULES[name], UNSHARDED, 9, q.device, 8, documents)
    found = attend(q, k, v, scores, RULES[name], UNSHARDED, False)
    torch.testing.assert_close(found, by_loop(q, k, v, RULES[name], documents), rtol=1e-5, atol=1e-6)


@given(st.integers(1, 8), st.integers(1, 5))
def test_ranks_share_a_sequence_and_have_as_many_keys_before_their_queries(cp: int, half: int) -> None:
    shards = [LocalShard(cp=cp, cp_rank=rank) for rank in range(cp)]
    queries = [shard.positions(2 * half, torch.device("cpu"))[0] for shard in shards]
    assert torch.cat(queries).sort().values.tolist() == list(range(2 * half * cp))
    assert len({int(part.sum()) for part in queries}) == 1
    assert all(torch.equal(shard.positions(2 * half, torch.device("cpu"))[1], torch.cat(queries)) for shard in shards)


def test_packed_documents_have_the_logits_that_they_have_alone() -> None:
    model: Any = build(LLAMA, Span(0, 4, 4))
    init_random([model], 0, 0.1)
    documents = [torch.randint(1, 256, (1, length)) for length in (5, 9, 3)]
    for document in documents:
        document[0, -1] = 0  # the token that ends it
    model.document_end = 0
    with torch.no_grad():
        together = model(torch.cat(documents, 1)).split([5, 9, 3], 1)
        alone = [model(document) for document in documents]
    for found, expected in zip(together, alone, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
