"""Token files: split over ranks and steps without loss or repetition, in any layout, and read ahead of the loop."""

import struct
import threading
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from meshwise.workers.trainer.contract.settings import Layout, Settings, TokenFile
from meshwise.workers.trainer.data.batches import PINNED_STEPS, Batches
from meshwise.workers.trainer.data.samples import batch_of, local_batch


@dataclass(frozen=True)
class Rank:
    """The coordinates of a rank that reading needs, without processes."""

    replica: int
    cp: int = 0

    def at(self, axis: str) -> int:
        assert axis == "cp"
        return self.cp


def rank(replica: int, cp: int = 0) -> Any:
    return cast(Any, Rank(replica, cp))


def written(folder: Path, counts: list[int], width: int = 2, offset: int = 0) -> tuple[TokenFile, ...]:
    """Files of tokens 0, 1, 2, ... numbered through all files, so that a token shows where it was."""
    files, first = [], 0
    for i, count in enumerate(counts):
        path = folder / f"{i}.bin"
        path.write_bytes(b"x" * offset + struct.pack(f"<{count}{'H' if width == 2 else 'I'}", *range(first, first + count)))
        files.append(TokenFile(str(path), offset, count, width))
        first += count
    return tuple(files)


def settings(files: tuple[TokenFile, ...], **changes: Any) -> Settings:
    model = {"model_type": "llama", "vocab_size": 70_000}
    return Settings(**({"name": "x", "model": model, "layout": Layout(), "batch": 4, "seq": 5, "data": files} | changes))


@given(
    counts=st.lists(st.integers(0, 90), min_size=1, max_size=4).filter(lambda found: max(found) > 10),
    width=st.sampled_from([2, 4]), offset=st.sampled_from([0, 4, 64]), stop=st.integers(0, 30), seed=st.integers(0, 99),
    before=st.sampled_from([(1, 1, 1), (2, 1, 1), (1, 2, 1), (2, 2, 3)]), after=st.sampled_from([(1, 1, 1), (4, 1, 1), (1, 4, 3)]),
    batch=st.sampled_from([4, 8, 12]), then=st.sampled_from([4, 8, 12]),
)  # fmt: skip
def test_no_sample_is_lost_or_repeated_in_an_epoch_that_resumes_in_another_layout(
    counts: list[int],
    width: int,
    offset: int,
    stop: int,
    seed: int,
    before: tuple[int, ...],
    after: tuple[int, ...],
    batch: int,
    then: int,
) -> None:
    with TemporaryDirectory() as folder:
        files = written(Path(folder), counts, width, offset)
        total = sum(max(0, count - 1) // 6 for count in counts)
        rows: list[tuple[int, ...]] = []
        step = 0
        while len(rows) < total:
            copies, shards, cp = before if step < stop else after
            size = batch if step < stop else then
            asked = settings(files, seed=seed, layout=Layout(dp_replicate=copies, dp_shard=shards, cp=cp), batch=size, seq=6)
            ahead = 0 if step < stop else stop * (batch - then)
            for replica in range(copies * shards):
                parts = [local_batch(asked, rank(replica, part), step, ahead) for part in range(cp)]
                tokens, targets = (torch.cat(halves, 1) for halves in zip(*parts, strict=True))
                assert torch.equal(tokens + 1, targets)
                rows += [tuple(sorted(row)) for row in tokens.tolist()]  # ranks have parts from both ends of a sequence
            step += 1
        epoch = rows[:total]
        starts = sorted(row[0] for row in epoch)
        firsts = [sum(counts[:i]) for i in range(len(counts))]
        assert starts == [
            first + 6 * i for first, count in zip(firsts, counts, strict=True) for i in range(max(0, count - 1) // 6)
        ]
        assert all(row == tuple(range(row[0], row[0] + 6)) for row in epoch)


def test_tokens_of_four_bytes_and_of_the_upper_half_of_two_come_out_as_they_are(tmp_path: Path) -> None:
    for width, values in ((2, [0, 65535, 40000, 1, 2, 3]), (4, [0, 69_999, 65_536, 1, 2, 3])):
        path = tmp_path / f"{width}.bin"
        path.write_bytes(struct.pack("<6" + ("H" if width == 2 else "I"), *values))
        tokens, targets = batch_of(settings((TokenFile(str(path), 0, 6, width),), batch=1), 0)
        assert (tokens.tolist(), targets.tolist()) == ([values[:5]], [values[1:]])


def test_a_token_outside_the_vocabulary_stops_the_run_with_its_number(tmp_path: Path) -> None:
    files = written(tmp_path, [41])
    with pytest.raises(SystemExit, match="token 40 in the corpus is outside the vocabulary of 40"):
        batch_of(settings(files, text="the corpus", model={"model_type": "llama", "vocab_size": 40}, batch=8), 0)


@pytest.mark.parametrize("embedded", [False, True])
def test_batches_are_those_of_each_step_in_turn_and_then_end(tmp_path: Path, embedded: bool) -> None:
    asked = settings(() if embedded else written(tmp_path, [300]), steps=9)
    with Batches(asked, rank(0), 2, ahead=3) as batches:
        found = list(batches)
        assert len(found) == 7
        for step, (tokens, targets) in enumerate(found, 2):
            assert torch.equal(tokens, local_batch(asked, rank(0), step, 3)[0])
            assert torch.equal(targets, local_batch(asked, rank(0), step, 3)[1])
        assert next(batches, None) is None


def test_a_batch_in_pinned_memory_stays_as_it_is_while_the_device_may_still_copy_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = torch.empty
    monkeypatch.setattr(torch, "empty", lambda shape, dtype, pin_memory: plain(shape, dtype=dtype))  # no GPU here to pin for
    asked = settings(written(tmp_path, [2000]), steps=40, device="cuda")
    with Batches(asked, rank(0)) as batches:
        held: list[tuple[torch.Tensor, torch.Tensor]] = []
        for step, batch in enumerate(batches):
            held.append(batch)
            for before in range(max(0, step - PINNED_STEPS), step + 1):
                assert torch.equal(held[before][0], local_batch(asked, rank(0), before)[0])
                assert torch.equal(held[before][1], local_batch(asked, rank(0), before)[1])
        assert len({tokens.data_ptr() for tokens, _ in held}) < 40  # the memory is reused


def test_closing_early_ends_the_thread_and_twice_is_no_error(tmp_path: Path) -> None:
    batches = Batches(settings(written(tmp_path, [300]), steps=1000), rank(0))
    next(batches)
    batches.close()
    batches.close()
    assert next(batches, None) is None
    assert not [thread for thread in threading.enumerate() if thread.name == "batches"]


def test_an_error_while_reading_ahead_is_raised_in_the_loop(tmp_path: Path) -> None:
    files = written(tmp_path, [300])
    gone = replace(files[0], path=str(tmp_path / "gone.bin"))
    with Batches(settings((gone,)), rank(0)) as batches, pytest.raises(FileNotFoundError):
        next(batches)
