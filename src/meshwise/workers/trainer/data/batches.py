"""Batches read ahead, so that the loop never waits for them."""

from queue import Empty, Full, Queue
from threading import Event, Thread

import torch
from torch import Tensor

from meshwise.workers.trainer.data.samples import own_batch
from meshwise.workers.trainer.parallel import Ranks
from meshwise.workers.trainer.settings import Settings

AHEAD = 2
"""Steps that are read before they are asked for."""
KEPT = 8
"""Steps for which a batch in pinned memory stays as it is: the device has long copied it."""


class Batches:
    """What this rank reads of each step from `first` to the last, in turn, read ahead by a thread of its own.

    On a GPU's host the tensors lie in pinned memory, so `.to(device, non_blocking=True)` does not wait; it is used again KEPT steps later.
    The thread makes no call to CUDA, which would break the capture of a graph.
    """

    def __init__(self, settings: Settings, ranks: Ranks, first: int = 0, ahead: int = 0) -> None:
        self.settings, self.ranks, self.first, self.ahead = settings, ranks, first, ahead
        shape = (2, settings.batch // settings.layout.dp, settings.seq // settings.layout.cp)
        # kept, in the loop's hands, ready, and being filled
        rooms = KEPT + 1 + AHEAD + 1 if settings.device == "cuda" else 0
        self._rooms = [torch.empty(shape, dtype=torch.int64, pin_memory=True) for _ in range(rooms)]
        self._ready: Queue[tuple[Tensor, Tensor] | BaseException] = Queue(AHEAD)
        self._closed = Event()
        self._thread = Thread(target=self._read, name="batches", daemon=True)
        self._thread.start()

    def __iter__(self) -> "Batches":
        return self

    def __next__(self) -> tuple[Tensor, Tensor]:
        if self._closed.is_set():
            raise StopIteration
        found = self._ready.get()
        if isinstance(found, BaseException):
            self.close()
            raise found
        return found

    def close(self) -> None:
        """Stop reading ahead; safe to call twice."""
        self._closed.set()
        try:
            while True:  # room for the thread to put what it has, and see that it is over
                self._ready.get_nowait()
        except Empty:
            self._thread.join()

    def __enter__(self) -> "Batches":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _read(self) -> None:
        try:
            for step in range(self.first, self.settings.steps):
                self._put(self._housed(step))
                if self._closed.is_set():
                    return
            self._put(StopIteration())
        except BaseException as error:  # whatever it is, the loop must hear of it, or it would wait for ever
            self._put(error)

    def _housed(self, step: int) -> tuple[Tensor, Tensor]:
        tokens, targets = own_batch(self.settings, self.ranks, step, self.ahead)
        if not self._rooms:
            return tokens.contiguous(), targets.contiguous()
        room = self._rooms[step % len(self._rooms)]
        return room[0].copy_(tokens), room[1].copy_(targets)

    def _put(self, item: tuple[Tensor, Tensor] | BaseException) -> None:
        waiting = True
        while waiting and not self._closed.is_set():
            try:
                self._ready.put(item, timeout=0.2)
                waiting = False
            except Full:
                pass  # the loop is busy with an earlier step
