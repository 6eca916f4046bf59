"""Steps of a log gathered into runs, in bounded memory: medians of times and rates, the first loss, the most memory."""

import math
from collections.abc import Mapping

from meshwise.audit.logs.run import Reading, Run, Sample

MEDIANS = (
    "seconds",
    "tokens_per_second",
    "tokens_per_second_per_gpu",
    "samples_per_second",
    "tflops",
    "hardware_tflops",
    "mfu",
    "forward_seconds",
)
MOST = ("memory", "reserved", "allocated")
WARM_UP = 2


class Series:
    """The run that a log is in. Facts that change, another batch or a step number that goes back begin a new one."""

    def __init__(self, reading: Reading, framework: str) -> None:
        self.reading, self.framework = reading, framework
        self.facts: dict[str, float] = {}
        self.texts: dict[str, str] = {}
        self.rough: set[str] = set()
        self.first_loss: tuple[float, float] | None = None
        self._begin()

    def _begin(self) -> None:
        self.samples = {name: Sample() for name in MEDIANS}
        self.most: dict[str, float] = {}
        self.steps, self.last, self.nans, self.start = 0, -math.inf, 0, ""
        self.batch = math.nan

    def fact(self, name: str, value: float) -> None:
        """Something that holds for all steps that follow."""
        if not (math.isfinite(value) and value >= 0):
            return
        if self.steps and name in self.facts and self.facts[name] != value:
            self.flush()
            self.facts, self.texts, self.first_loss = {}, {}, None  # another model or layout: nothing of the old one holds
        self.facts[name] = value

    def text(self, name: str, value: str) -> None:
        if value.strip():
            self.texts[name] = value.strip()[:200]

    def step(self, number: float, where: str, numbers: Mapping[str, float]) -> None:
        batch = numbers.get("global_batch_seqs", math.nan)
        if self.steps and (number < self.last or (math.isfinite(batch) and math.isfinite(self.batch) and batch != self.batch)):
            again = number < self.last
            self.flush()
            if again:
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
        for name in MOST:
            if numbers.get(name, 0.0) > 0:
                self.most[name] = max(self.most.get(name, 0.0), numbers[name])
        self.nans += int(numbers.get("nans", 0.0) > 0)

    def flush(self) -> None:
        """The run so far, where any step was seen."""
        if not self.steps:
            return
        numbers = dict(self.facts) | self.most | {"steps": float(self.steps)}
        numbers |= {name: value for name, sample in self.samples.items() if math.isfinite(value := sample.median(WARM_UP))}
        if math.isfinite(self.batch):
            numbers["global_batch_seqs"] = self.batch
        if self.first_loss is not None and self.first_loss[1] <= self.last:
            numbers |= {"loss": self.first_loss[0], "loss_step": self.first_loss[1]}
        if self.nans:
            numbers["nans"] = float(self.nans)
        texts = {"framework": self.framework} | self.texts
        self.reading.keep(Run(where=self.start, numbers=numbers, texts=texts, rough=frozenset(self.rough), section="log"))
        self._begin()
