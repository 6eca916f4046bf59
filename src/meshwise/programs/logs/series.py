"""Collect the steps of a log into runs, in bounded memory: medians of times and rates, the first loss, peak memory."""

import math
from collections.abc import Mapping

from meshwise.runs.reading import Reading, Sample
from meshwise.runs.run import Run, Value

MEDIANS = (
    "seconds", "tokens_per_second", "tokens_per_second_per_device", "samples_per_second", "tflops", "hardware_tflops",
    "mfu", "forward_seconds",
)  # fmt: skip
PEAKS = ("memory", "reserved", "allocated")
WARM_UP_STEPS = 2  # steps left out of the medians


class Series:
    """The current run of a log. A changed fact, another batch size or a step number that decreases starts a new run."""

    def __init__(self, reading: Reading, framework: str) -> None:
        self.reading, self.framework = reading, framework
        self.facts: dict[str, float] = {}
        self.texts: dict[str, str] = {}
        self.rough: set[str] = set()
        self.first_loss: tuple[float, float] | None = None
        self._begin()

    def _begin(self) -> None:
        self.samples = {name: Sample() for name in MEDIANS}
        self.peaks: dict[str, float] = {}
        self.steps, self.last, self.nans, self.start = 0, -math.inf, 0, ""
        self.batch = math.nan

    def fact(self, name: str, value: float) -> None:
        """Set a number that holds for all following steps."""
        if not (math.isfinite(value) and value >= 0):
            return
        if self.steps and name in self.facts and self.facts[name] != value:
            self.flush()
            self.facts, self.texts, self.first_loss = {}, {}, None  # another model or layout: the old facts no longer hold
        self.facts[name] = value

    def text(self, name: str, value: str) -> None:
        """Set a text that holds for all following steps."""
        if value.strip():
            self.texts[name] = value.strip()[:200]

    def step(self, number: float, where: str, numbers: Mapping[str, float]) -> None:
        """Add the figures of a step; it may start a new run."""
        batch = numbers.get("batch", math.nan)
        if self.steps and (number < self.last or (math.isfinite(batch) and math.isfinite(self.batch) and batch != self.batch)):
            restarted = number < self.last
            self.flush()
            if restarted:
                self.first_loss = None
        self.start = self.start or where
        self.steps, self.last = self.steps + 1, number
        self.batch = batch if math.isfinite(batch) else self.batch
        loss = numbers.get("loss", math.nan)
        if "loss" in numbers and not math.isfinite(loss):
            self.nans += 1
        if self.first_loss is None and math.isfinite(loss):
            self.first_loss = (loss, number)
        for name, sample in self.samples.items():
            if numbers.get(name, 0.0) > 0:
                sample.add(numbers[name])
        for name in PEAKS:
            if numbers.get(name, 0.0) > 0:
                self.raise_peak(name, numbers[name])
        self.nans += int(numbers.get("nans", 0.0) > 0)

    def raise_peak(self, name: str, value: float) -> None:
        """Keep the largest value seen in this run."""
        self.peaks[name] = max(self.peaks.get(name, 0.0), value)

    def flush(self) -> None:
        """Add the current run to the reading, if it has any steps, and start the next one."""
        if not self.steps:
            return
        told: dict[str, Value] = {
            "framework": self.framework, **self.texts, **self.facts, **self.peaks, "steps_seen": float(self.steps),
        }  # fmt: skip
        told |= {name: value for name, sample in self.samples.items() if math.isfinite(value := sample.median(WARM_UP_STEPS))}
        if math.isfinite(self.batch):
            told["batch"] = self.batch
        if self.first_loss is not None and self.first_loss[1] <= self.last:
            told |= {"first_loss": self.first_loss[0], "loss_step": self.first_loss[1]}
        if self.nans:
            told["nans"] = float(self.nans)
        self.reading.add_run(Run.told(self.start, told, self.rough, section="log"))
        self._begin()
