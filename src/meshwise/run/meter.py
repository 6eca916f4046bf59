"""Read the power of this machine's devices while something runs: NVML for NVIDIA's, rocm-smi for AMD's, RAPL for CPUs."""

import ctypes
import json
import os
import threading
import time
from bisect import bisect
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from meshwise.workers import tool

NVML = "libnvidia-ml.so.1"
RAPL = Path("/sys/class/powercap")
MAX_READINGS = 20_000  # readings that are kept; every second one of longer runs is dropped


@dataclass(frozen=True)
class Metered:
    """What a meter saw."""

    joules: float
    seconds: float
    meter: str  # nvml, rocm-smi or rapl
    devices: int

    @property
    def watts(self) -> float:
        """Mean power of all devices."""
        return self.joules / self.seconds if self.seconds else 0.0


@dataclass(frozen=True)
class Source:
    """A meter: joules so far, or watts now."""

    name: str
    devices: int
    read: Callable[[], float]
    counts: bool  # whether `read` returns joules so far; otherwise watts
    wraps: float = 0.0  # joules at which a counter begins again; 0: never
    every: float = 0.1  # seconds between two readings


def nvml(devices: int = 0) -> Source | None:
    """Return the counters of the first `devices` NVIDIA GPUs: joules so far where the driver counts them, else watts; None without any."""
    try:
        library = ctypes.CDLL(NVML)
    except OSError:
        return None
    number = ctypes.c_uint()
    if library.nvmlInit_v2() or library.nvmlDeviceGetCount_v2(ctypes.byref(number)) or not number.value:
        return None
    chosen = visible(number.value)[: devices or None]
    cards = [ctypes.c_void_p() for _ in chosen]
    if not cards or any(
        library.nvmlDeviceGetHandleByIndex_v2(i, ctypes.byref(card)) for i, card in zip(chosen, cards, strict=True)
    ):
        return None

    counts = library.nvmlDeviceGetTotalEnergyConsumption(cards[0], ctypes.byref(ctypes.c_ulonglong())) == 0
    call, kind = library.nvmlDeviceGetPowerUsage, ctypes.c_uint
    if counts:
        call, kind = library.nvmlDeviceGetTotalEnergyConsumption, ctypes.c_ulonglong

    def read() -> float:
        value = kind()
        return sum(float(value.value) if call(card, ctypes.byref(value)) == 0 else 0.0 for card in cards) / 1e3

    return Source("nvml", len(cards), read, counts)


def visible(number: int) -> list[int]:
    """Return the GPUs that CUDA_VISIBLE_DEVICES leaves to programs; all of them where it is unset or names them by another word."""
    words = os.environ.get("CUDA_VISIBLE_DEVICES", "").replace(" ", "").split(",")
    return [int(word) for word in words if int(word) < number] if all(word.isdecimal() for word in words) else list(range(number))


def rocm() -> Source | None:
    """Return the watts of AMD's GPUs as rocm-smi prints them; None without it."""
    found = _rocm_watts()
    return Source("rocm-smi", len(found), lambda: sum(_rocm_watts()), counts=False, every=1.0) if found else None


def _rocm_watts() -> list[float]:
    try:
        cards = list(json.loads(tool.output("rocm-smi", "--showpower", "--json")).values())
        texts = [next((str(value) for key, value in card.items() if "power (w)" in key.lower()), "") for card in cards]
    except (ValueError, AttributeError, RecursionError):  # a tool that is missing, fails, or prints something else
        return []
    return [float(text) for text in texts if text.isascii() and text.replace(".", "", 1).isdigit()]


def rapl(folder: Path = RAPL) -> Source | None:
    """Return the counters of CPU packages; None where the kernel does not show them to this user."""
    files = sorted(folder.glob("intel-rapl:?/energy_uj"))

    def joules() -> float:
        return sum(float(file.read_text(encoding="ascii")) for file in files) / 1e6

    try:
        most = min(
            (float((file.parent / "max_energy_range_uj").read_text(encoding="ascii")) / 1e6 for file in files), default=0.0
        )
        return Source("rapl", len(files), joules, counts=True, wraps=most) if files and joules() >= 0 else None
    except (OSError, ValueError):
        return None


def find(devices: int = 0) -> Source | None:
    """Return the meter of this machine's accelerators, else that of its CPU; None where there is none."""
    return nvml(devices) or rocm() or rapl()


class Meter:
    """Meters what happens inside a `with`; `metered` is None where the machine has no meter."""

    def __init__(self, source: Source | None = None, devices: int = 0) -> None:
        self.source = source or find(devices)
        self.metered: Metered | None = None
        self._stop = threading.Event()
        self._readings: list[tuple[float, float]] = []
        """Seconds since 1970, and joules since the beginning."""
        self._count = 0.0

    def __enter__(self) -> "Meter":
        if self.source:
            self._count = self.source.read() if self.source.counts else 0.0
            self._readings.append((time.time(), 0.0))
            self._thread = threading.Thread(target=self._watch, daemon=True)
            self._thread.start()
        return self

    def _watch(self) -> None:
        assert self.source
        while not self._stop.wait(self.source.every):
            self._read()

    def _read(self) -> None:
        """Add what was drawn since the last reading. A counter that fell has begun again, or could not be read."""
        assert self.source
        (last, joules), now, value = self._readings[-1], time.time(), self.source.read()
        more = value - self._count if self.source.counts else value * (now - last)
        if more < 0:
            more += self.source.wraps
        if more >= 0:
            self._count = value
        self._readings.append((now, joules + max(0.0, more)))
        if len(self._readings) > MAX_READINGS:
            del self._readings[1:-1:2]

    def between(self, begin: float, end: float) -> Metered | None:
        """Return what was drawn between two moments, in seconds since 1970; None without a meter, or before it was read twice."""
        if self.source is None or end <= begin or begin < self._readings[0][0] or end > self._readings[-1][0]:
            return None
        return Metered(self._at(end) - self._at(begin), end - begin, self.source.name, self.source.devices)

    def _at(self, moment: float) -> float:
        """Return the joules until a moment, between two readings in proportion to time."""
        after = min(len(self._readings) - 1, max(1, bisect(self._readings, (moment, 0.0))))
        (begin, less), (end, more) = self._readings[after - 1 : after + 1]
        return less + (more - less) * (moment - begin) / max(1e-9, end - begin)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self.source is None:
            return
        self._stop.set()
        self._thread.join()
        self._read()
        self.metered = self.between(self._readings[0][0], self._readings[-1][0])
