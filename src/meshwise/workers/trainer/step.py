"""One step on the device: forward, backward, clip, update. The host runs ahead of it, and asks for a step's numbers later."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
import time
from dataclasses import dataclass, field

import torch
from torch import Tensor

from meshwise.workers.trainer.gradients import Named, norm, settle
from meshwise.workers.trainer.optimizer import Updates, rate_at
from meshwise.workers.trainer.parallel import Ranks
from meshwise.workers.trainer.passes import Passes
from meshwise.workers.trainer.ranks.faults import finite
from meshwise.workers.trainer.report.phases import Parts
from meshwise.workers.trainer.settings import Settings

EAGER = 3
"""Steps before one is captured: kernels are compiled and chosen in the first ones, and capturing runs none."""


@dataclass
class Moment:
    """A time on the device, or on the host where it does the work."""

    event: torch.cuda.Event | None = None
    clock: float = field(default_factory=time.perf_counter)

    @staticmethod
    def now(device: torch.device) -> "Moment":
        if device.type != "cuda":
            return Moment()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return Moment(event)

    def since(self, earlier: "Moment") -> float:
        """Seconds, once the device has got here."""
        if self.event is None or earlier.event is None:
            return self.clock - earlier.clock
        self.event.synchronize()
        return earlier.event.elapsed_time(self.event) / 1e3


@dataclass
class Launched:
    """A step that the device may still be busy with."""

    step: int
    numbers: Tensor
    """Loss and norm of the gradient, on the host once the moment has passed."""
    end: Moment
    parts: Parts


class Stepper:
    """Runs steps, from the fourth on as one CUDA graph where settings say so: replaying it costs the host nothing."""

    def __init__(self, settings: Settings, ranks: Ranks, passes: Passes, updates: Updates, parameters: Named) -> None:
        self.settings, self.ranks, self.passes, self.updates, self.parameters = settings, ranks, passes, updates, parameters
        self.graph: torch.cuda.CUDAGraph | None = None
        self.inputs: tuple[Tensor, Tensor] | None = None
        self.numbers: Tensor | None = None
        self.done = 0

    def launch(self, step: int, tokens: Tensor, targets: Tensor) -> Launched:
        device = self.passes.device
        tokens, targets = (part.to(device, non_blocking=True) for part in (tokens, targets))
        self.updates.set_rate(rate_at(self.settings, step))
        numbers = self._replay(tokens, targets) if self.settings.graphed else self._run(tokens, targets)
        self.done += 1
        if device.type == "cuda":
            numbers = torch.empty(2, pin_memory=True).copy_(numbers, non_blocking=True)
        return Launched(step, numbers, Moment.now(device), self.passes.phases.end())

    def _run(self, tokens: Tensor, targets: Tensor) -> Tensor:
        loss = self.passes.run(tokens, targets)
        phases = self.passes.phases
        with phases("reduce"):
            settle(self.settings, self.ranks, self.parameters)
            total = norm(self.settings, self.ranks, self.parameters)
        with phases("optimizer"):
            # a loss that is no number may leave a gradient that is one
            self.updates.apply(torch.where(finite(loss, total), total, torch.nan), self.settings.clip)
            for _, parameter in self.parameters:
                parameter.grad = None
        return torch.stack((loss.float(), total))

    def _replay(self, tokens: Tensor, targets: Tensor) -> Tensor:
        if self.graph is None and self.done < EAGER:
            # on a stream of its own, as capturing asks
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                numbers = self._run(tokens, targets)
            torch.cuda.current_stream().wait_stream(stream)
            return numbers
        if self.graph is None or self.inputs is None or self.numbers is None:
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
            self.inputs = (tokens.clone(), targets.clone())
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph):
                self.numbers = self._run(*self.inputs)
        for kept, given in zip(self.inputs, (tokens, targets), strict=True):
            kept.copy_(given)
        self.graph.replay()
        return self.numbers.clone()
