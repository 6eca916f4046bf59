"""Reads batches ahead, so that the training loop never waits for them."""

from queue import Empty, Full, Queue
from threading import Event, Thread

import torch
from torch import Tensor

from meshwise.workers.trainer.contract.settings import Settings
from meshwise.workers.trainer.data.samples import local_batch
from meshwise.workers.trainer.parallel import Ranks

BATCHES_AHEAD = 2  # batches that are read before the loop asks for them
PINNED_STEPS = 8  # steps for which a batch in pinned memory stays unchanged: by then the device has long copied it


class Batches:
    """Iterates over this rank's batches of the steps from `first` to the last, which a thread reads ahead. For a GPU the tensors are in
    pinned memory, so that `.to(device, non_blocking=True)` does not wait; a buffer is reused after PINNED_STEPS steps. The thread makes
    no call to CUDA, which would break the capture of a graph."""

    def __init__(self, settings: Settings, ranks: Ranks, first: int = 0, ahead: int = 0) -> None:
        self.settings, self.ranks, self.first, self.ahead = settings, ranks, first, ahead
        shape = (2, settings.batch // settings.layout.dp, settings.seq // settings.layout.cp)
        # kept, in use by the loop, ready, and being filled
        buffers = PINNED_STEPS + 1 + BATCHES_AHEAD + 1 if settings.device == "cuda" else 0
        self._buffers = [torch.empty(shape, dtype=torch.int64, pin_memory=True) for _ in range(buffers)]
        self._ready: Queue[tuple[Tensor, Tensor] | BaseException] = Queue(BATCHES_AHEAD)
        self._closed = Event()
        self._thread = Thread(target=self._read, name="batches", daemon=True)
        self._thread.start()

    def __iter__(self) -> "Batches":
        return self

    def __next__(self) -> tuple[Tensor, Tensor]:
        if self._closed.is_set():
            raise StopIteration
        item = self._ready.get()
        if isinstance(item, BaseException):
            self.close()
            raise item
        return item

    def close(self) -> None:
        """Stop reading ahead; may be called twice."""
        self._closed.set()
        try:
            while True:  # make room, so that the thread can put its batch and notice the end
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
                self._put(self._load(step))
                if self._closed.is_set():
                    return
            self._put(StopIteration())
        except BaseException as error:  # pass any error to the loop, which would wait forever otherwise
            self._put(error)

    def _load(self, step: int) -> tuple[Tensor, Tensor]:
        tokens, targets = local_batch(self.settings, self.ranks, step, self.ahead)
        if not self._buffers:
            return tokens.contiguous(), targets.contiguous()
        buffer = self._buffers[step % len(self._buffers)]
        return buffer[0].copy_(tokens), buffer[1].copy_(targets)

    def _put(self, item: tuple[Tensor, Tensor] | BaseException) -> None:
        waiting = True
        while waiting and not self._closed.is_set():
            try:
                self._ready.put(item, timeout=0.2)
                waiting = False
            except Full:
                pass  # the loop is busy with an earlier step
