"""Releases and variants of frameworks: dated facts with sources, found by name or day, and never worse by a later release's changes."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

import pytest

from meshwise.catalogue.frameworks import (
    FLASH_SHARES,
    KERNELS,
    LOSSES,
    Framework,
    find_framework,
    names,
    published,
    release_in_text,
)
from meshwise.cost.layout import Layouts
from meshwise.cost.train.question import Question
from meshwise.cost.train.step import evaluate
from meshwise.errors import UserError
from support.train_questions import question

PROGRAMS = sorted(set(names().values()))


def released() -> Iterator[tuple[str, str]]:
    for name in PROGRAMS:
        yield from ((name, release.release) for release in find_framework(name).releases)


def with_framework(q: Question, framework: Framework) -> Question:
    return replace(q, work=replace(q.work, framework=framework))


@pytest.mark.parametrize(("name", "release"), list(released()))
def test_every_release_has_a_day_and_a_source(name: str, release: str) -> None:
    found = find_framework(name, release)
    of = next(one for one in found.releases if one.release == release)
    assert found.release == release
    assert len(of.date) == 10
    assert of.source


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_newest_release_is_the_default_and_a_day_before_all_has_none(name: str) -> None:
    newest, oldest = find_framework(name), find_framework(name, "2010-01-01")
    assert newest.release == (newest.releases[-1].release if newest.releases else "")
    assert oldest.release == ""
    assert (oldest.key, oldest.program) == (newest.key, newest.program)


@pytest.mark.parametrize("name", [name for name in PROGRAMS if find_framework(name).releases])
def test_a_later_release_is_never_slower_by_its_stated_changes(name: str) -> None:
    """BigScience's optimizer is the exception: it keeps more, and sums in a kernel of its own, so that training in bf16 converges."""
    if find_framework(name).program == "bigscience":
        return
    q = question("mixtral-8x7b", framework=find_framework(name).key)
    layouts = Layouts.of(dp_shard=8, ep=8, mbs=1, zero=max(find_framework(name).zero or (0,)))
    days = ["2010-01-01", *(release.date for release in find_framework(name).releases)]
    steps = [float(evaluate(with_framework(q, find_framework(name, day)), layouts).step[0]) for day in days]
    assert all(after <= before * 1.0001 for before, after in pairwise(steps))


def test_an_unknown_release_or_kernel_is_refused_with_those_known() -> None:
    with pytest.raises(UserError, match=r"unknown release '9.9'; known: .*26.06"):
        find_framework("megatron-bridge", "9.9")
    with pytest.raises(UserError, match=r"attention kernel 'fa7': expected one of .*fa2"):
        find_framework("torchtitan").told(attention="fa7")
    with pytest.raises(UserError, match="overlap 'xx': expected one of tp, ep, pp, dp"):
        find_framework("torchtitan").told(overlap="tp,xx")


@pytest.mark.parametrize(
    ("text", "release"),
    [("26.07.01 NeMo Container", "26.06"), ("26.02", "2010-01-01"), ("h200_202506", "2025-06"), ("2048 tokens", ""), ("", "")],
)
def test_the_words_of_a_source_state_a_release_or_a_day(text: str, release: str) -> None:
    assert release_in_text(find_framework("megatron-bridge"), text) == release


def test_a_publication_tells_which_program_ran() -> None:
    stated = find_framework("megatron")
    assert published("MLPerf Training v4.0 result logs", stated) == find_framework("NeMo at MLPerf")
    assert published("somebody's notes", stated) is stated
    torchtitan = find_framework("torchtitan")
    assert published("MLPerf Training v4.0 result logs", torchtitan) is torchtitan


def test_torchtitan_ran_flash_attention_2_on_hopper_until_late_2025() -> None:
    kernels = [find_framework("torchtitan", day).kernel("Hopper") for day in ("2024-12", "2025-06", "2026-01")]
    assert kernels == ["fa2", "fa2", "cudnn"]
    assert find_framework("torchtitan", "2025-06").kernel("Blackwell") == "cudnn"


def test_a_stated_fact_replaces_only_what_it_names() -> None:
    f = find_framework("megatron")
    told = f.told(overlap="tp,no-dp")
    assert (told.overlaps_tp, told.overlaps_reduction, told.overlaps_experts) == (True, False, f.overlaps_experts)
    assert f.told(gradients="bf16").wire_bytes("bf16") == 2
    assert f.told() is f


@pytest.mark.parametrize("loss", LOSSES)
def test_fewer_bytes_per_logit_never_need_more_memory(loss: str) -> None:
    q = question("llama-3-8b", framework="megatron")
    layouts = Layouts.of(dp_shard=8, mbs=1, zero=1)
    order = sorted(("materialised", "compiled", "kernel"), key=lambda kind: q.work.framework.bytes_per_logit(kind))
    peaks = [float(evaluate(replace(q, work=replace(q.work, loss=kind)), layouts).peak[0]) for kind in order]
    assert peaks == sorted(peaks)
    assert float(evaluate(replace(q, work=replace(q.work, loss=loss)), layouts).peak[0]) > 0


def test_every_kernel_has_a_share_of_the_peak() -> None:
    assert set(FLASH_SHARES) | {"unfused"} == set(KERNELS)
