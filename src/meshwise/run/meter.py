"""Read the power of this machine's devices while something runs: NVML for NVIDIA's, rocm-smi for AMD's, RAPL for CPUs."""

import ctypes
import json
import shutil
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

NVML = "libnvidia-ml.so.1"
RAPL = Path("/sys/class/powercap")
EVERY = 0.1
"""Seconds between two readings of a meter that shows watts; counters of joules are read at the beginning and the end."""


@dataclass(frozen=True)
class Metered:
    """What a meter saw."""

    joules: float
    seconds: float
    meter: str
    """nvml, rocm-smi or rapl."""
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
    counts: bool
    """Whether `read` returns joules so far; otherwise watts."""


def nvml() -> Source | None:
    """Return the counters of NVIDIA's GPUs: joules so far where the driver counts them, else watts; None without a driver or GPU."""
    try:
        library = ctypes.CDLL(NVML)
    except OSError:
        return None
    number = ctypes.c_uint()
    if library.nvmlInit_v2() or library.nvmlDeviceGetCount_v2(ctypes.byref(number)) or not number.value:
        return None
    cards = [ctypes.c_void_p() for _ in range(number.value)]
    if any(library.nvmlDeviceGetHandleByIndex_v2(i, ctypes.byref(card)) for i, card in enumerate(cards)):
        return None

    def joules() -> float:
        total = ctypes.c_ulonglong()
        return sum(_value(library.nvmlDeviceGetTotalEnergyConsumption, card, total) for card in cards) / 1e3

    def watts() -> float:
        now = ctypes.c_uint()
        return sum(_value(library.nvmlDeviceGetPowerUsage, card, now) for card in cards) / 1e3

    first = ctypes.c_ulonglong()
    counts = library.nvmlDeviceGetTotalEnergyConsumption(cards[0], ctypes.byref(first)) == 0
    return Source("nvml", len(cards), joules if counts else watts, counts)


def _value(call: Callable[..., int], card: ctypes.c_void_p, value: "ctypes.c_uint | ctypes.c_ulonglong") -> float:
    """Return what one query of NVML fills in; 0 where it fails."""
    return float(value.value) if call(card, ctypes.byref(value)) == 0 else 0.0


def rocm() -> Source | None:
    """Return the watts of AMD's GPUs as rocm-smi prints them; None without it."""
    if shutil.which("rocm-smi") is None:
        return None

    def watts() -> float:
        return sum(_rocm_watts())

    return Source("rocm-smi", len(_rocm_watts()), watts, counts=False) if _rocm_watts() else None


def _rocm_watts() -> list[float]:
    try:
        done = subprocess.run(["rocm-smi", "--showpower", "--json"], capture_output=True, text=True, check=False, timeout=10)
        cards = json.loads(done.stdout)
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return []
    found: list[float] = []
    for card in cards.values():
        text = next((str(value) for key, value in card.items() if "power (w)" in key.lower()), "")
        found += [float(text)] if text.replace(".", "", 1).isdigit() else []
    return found


def rapl(folder: Path = RAPL) -> Source | None:
    """Return the counters of CPU packages; None where the kernel does not show them to this user."""
    files = sorted(folder.glob("intel-rapl:?/energy_uj"))

    def joules() -> float:
        return sum(float(file.read_text(encoding="ascii")) for file in files) / 1e6

    try:
        return Source("rapl", len(files), joules, counts=True) if files and joules() >= 0 else None
    except (OSError, ValueError):
        return None


def find() -> Source | None:
    """Return the meter of this machine's accelerators, else that of its CPU; None where there is none."""
    return nvml() or rocm() or rapl()


class Meter:
    """Meters what happens inside a `with`; `metered` is None where the machine has no meter."""

    def __init__(self, source: Source | None = None) -> None:
        self.source = source or find()
        self.metered: Metered | None = None
        self._stop = threading.Event()
        self._joules = 0.0
        self._thread: threading.Thread | None = None

    def __enter__(self) -> "Meter":
        self._begin = time.monotonic()
        if self.source and self.source.counts:
            self._joules = self.source.read()
        elif self.source:
            self._thread = threading.Thread(target=self._integrate, daemon=True)
            self._thread.start()
        return self

    def _integrate(self) -> None:
        assert self.source
        last = time.monotonic()
        while not self._stop.wait(EVERY):
            now = time.monotonic()
            self._joules += self.source.read() * (now - last)
            last = now

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self.source is None:
            return
        seconds = time.monotonic() - self._begin
        if self.source.counts:
            self._joules = self.source.read() - self._joules
        else:
            self._stop.set()
            assert self._thread
            self._thread.join()
        self.metered = Metered(max(0.0, self._joules), seconds, self.source.name, self.source.devices)
