"""Read a snapshot of torch.cuda.memory: segments and blocks, without running anything that the pickle holds."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false, reportUntypedBaseClass=false, reportUnknownLambdaType=false
import gzip
import io
import pickle
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from meshwise.audit.doctor.fault import Fault
from meshwise.catalogue import files
from meshwise.errors import UserError

MAX_BYTES = 1 << 29
FRAGMENTED = 0.2  # share of the reserved memory that is free but split up from which on it is worth a finding
PLAIN = b"\x80\x95.(N\x88\x89JKM\x8aG\x8cX]ae})t\x85\x86\x87\x94qrhjc\x93"
"""Opcodes of plain data (pickle.PROTO to LONG_BINGET), and the two of names, which are refused with the name."""
EXPANDABLE = "PYTORCH_ALLOC_CONF=expandable_segments:True"


@dataclass(frozen=True)
class Memory:
    """What a snapshot holds, in bytes."""

    source: str
    reserved: float
    allocated: float
    peak: float  # largest allocated memory in the recorded history, counted back from its end
    segments: int
    largest_free: float
    returned: int  # segments that were given back to the driver in the history
    failed: int  # allocations that ran out of memory
    allocations: int


class _Plain(cast(Any, pickle)._Unpickler):
    """An unpickler of lists, tuples, dicts, texts and numbers. Whatever names a class or function is refused, so nothing can be run; it is
    Python's own, since C's fills memory for a large memo index, and hashes tuples of tuples without end where they are keys."""

    dispatch = {code: load for code, load in cast(Any, pickle)._Unpickler.dispatch.items() if code in PLAIN}  # noqa: RUF012

    def find_class(self, module: str, name: str) -> Any:
        raise UserError(f"it names {module[:60]}.{name[:60]}; a snapshot of torch.cuda.memory has plain data alone")

    def put(self, items: list[Any]) -> None:
        if not all(isinstance(key, str | int) for key in items[::2]):
            raise pickle.UnpicklingError("a key that is neither text nor a number")
        self.stack[-1].update(zip(items[::2], items[1::2], strict=True))

    dispatch[pickle.SETITEMS[0]] = lambda self: self.put(self.pop_mark())
    dispatch[pickle.SETITEM[0]] = lambda self: self.put([self.stack.pop(-2), self.stack.pop()])


def read(path: Path) -> Memory:
    """Read a snapshot; refuse whatever is not plain data."""
    raw = files.bytes_of(path, MAX_BYTES)
    if raw[:2] == b"\x1f\x8b":
        with gzip.GzipFile(fileobj=io.BytesIO(raw)) as file:
            try:
                raw = file.read(MAX_BYTES + 1)
            except (OSError, EOFError, zlib.error) as error:
                raise UserError(f"{path.name}: damaged gzip ({error})") from None
    if len(raw) > MAX_BYTES:
        raise UserError(f"{path.name}: larger than {MAX_BYTES >> 20} MiB")
    try:
        found = _Plain(io.BytesIO(raw)).load()
    except UserError as error:
        raise UserError(f"{path.name}: not read, since a pickle can run code: {error}") from None
    except Exception as error:  # a damaged pickle raises whatever its codes happen to do
        raise UserError(f"{path.name}: not a snapshot of torch.cuda.memory ({type(error).__name__})") from None
    if not isinstance(found, dict) or not isinstance(cast(dict[Any, Any], found).get("segments"), list):
        raise UserError(f"{path.name}: not a snapshot of torch.cuda.memory: it has no segments")
    return _summed(path.name, cast(dict[str, Any], found))


def _summed(name: str, found: dict[str, Any]) -> Memory:
    segments = [one for one in found["segments"] if isinstance(one, dict)]
    blocks = [block for one in segments for block in _list(one.get("blocks")) if isinstance(block, dict)]
    free = [_bytes(block.get("size")) for block in blocks if block.get("state") == "inactive"]
    allocated = sum(_bytes(one.get("allocated_size")) for one in segments)
    actions: list[dict[str, Any]] = [entry for history in _list(found.get("device_traces")) for entry in _list(history)
                                     if isinstance(entry, dict)]  # fmt: skip
    now = peak = allocated
    kinds = [kind if isinstance(kind := entry.get("action"), str) else "" for entry in actions]
    for kind, entry in zip(reversed(kinds), reversed(actions), strict=True):
        size = _bytes(entry.get("size"))
        now += {"alloc": -size, "free_completed": size}.get(kind, 0.0)
        peak = max(peak, now)
    return Memory(name, sum(_bytes(one.get("total_size")) for one in segments), allocated, peak, len(segments), max(free, default=0.0),
        sum(kind in ("segment_free", "segment_unmap") for kind in kinds), kinds.count("oom"), kinds.count("alloc"))  # fmt: skip


def _list(value: object) -> list[Any]:
    return cast(list[Any], value) if isinstance(value, list) else []


def _bytes(value: object) -> float:
    return float(value) if isinstance(value, int | float) and 0 <= value < 1e18 else 0.0


def faults(memory: Memory) -> Iterator[Fault]:
    """Yield what is wrong with the memory of a run; a snapshot does not tell seconds."""
    held = f"{memory.source}: peak {memory.peak / 2**30:.2f} GiB allocated of {memory.reserved / 2**30:.2f} GiB reserved"
    unused = memory.reserved - memory.allocated
    if memory.failed:
        change = "a smaller micro-batch, recompute, or more sharding"
        yield Fault("out of memory", "certain", 1e-3, f"{memory.failed} allocations ran out of memory", change, held)
    if memory.returned > 2:
        message = f"{memory.returned} segments were given back to the driver: retries near the limit, or empty_cache()"
        yield Fault("allocator", "certain", 1e-4, message, f"leave room: a smaller micro-batch, recompute, or {EXPANDABLE}", held)
    if memory.reserved and memory.peak < (1 - FRAGMENTED) * memory.reserved and unused > FRAGMENTED * memory.reserved:
        message = f"{unused / 2**30:.2f} GiB are reserved but not allocated, in {memory.segments} segments"
        evidence = f"{held}, largest free block {memory.largest_free / 2**30:.2f} GiB"
        yield Fault("fragmented memory", "unusual", 1e-5, message, EXPANDABLE, evidence)
