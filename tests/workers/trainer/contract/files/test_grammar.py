"""The embedded text: deterministic, split without loss or repetition, and ASCII."""

import random

import torch
from hypothesis import given
from hypothesis import strategies as st

from meshwise.workers.trainer.contract.files.grammar import GRAMMAR, sample, sentence
from meshwise.workers.trainer.contract.settings import Layout, Settings
from meshwise.workers.trainer.data.samples import batch_of


def settings(**changes: int) -> Settings:
    return Settings(**({"name": "x", "model": {}, "layout": Layout(), "batch": 8, "seq": 32} | changes))  # pyright: ignore[reportArgumentType]


@given(st.integers(0, 2**40))
def test_a_sentence_ends_and_holds_no_word_of_the_grammar(seed: int) -> None:
    text = sentence(random.Random(seed))
    assert text.endswith((". ", "? "))
    assert not {word.strip(".,?") for word in text.split()} & set(GRAMMAR)


@given(st.integers(0, 1000), st.integers(0, 10**6), st.integers(1, 600))
def test_a_sample_is_the_same_each_time_and_longer_ones_begin_with_it(seed: int, number: int, length: int) -> None:
    text = sample(seed, number, length)
    assert len(text) == length
    assert sample(seed, number, length + 50).startswith(text)


def test_shares_of_a_step_are_the_step_in_order() -> None:
    whole, _ = batch_of(settings(), 3)
    shares = [batch_of(settings(), 3, first, 2)[0] for first in (0, 2, 4, 6)]
    assert torch.equal(torch.cat(shares), whole)


def test_another_batch_size_reads_the_same_samples() -> None:
    large = torch.cat([batch_of(settings(batch=8), step)[0] for step in range(2)])
    small = torch.cat([batch_of(settings(batch=4), step)[0] for step in range(4)])
    assert torch.equal(large, small)
    assert len({tuple(row) for row in large.tolist()}) == 16


def test_targets_are_the_tokens_one_place_on() -> None:
    tokens, targets = batch_of(settings(), 0)
    assert torch.equal(tokens[:, 1:], targets[:, :-1])
    assert int(tokens.max()) < 128
