"""One step on the device: forward, backward, clip, update. The host runs ahead of the device and reads a step's results later."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
import time
import zlib
from dataclasses import dataclass, field

import torch
from torch import Tensor

from meshwise.workers.trainer.contract.recipe import rate_at
from meshwise.workers.trainer.contract.settings import Settings
from meshwise.workers.trainer.gradients import NamedParameters, gradient_norm, known_squares, reduce_gradients
from meshwise.workers.trainer.optimizer import StepOptimizer
from meshwise.workers.trainer.parallel import Ranks
from meshwise.workers.trainer.passes import Passes
from meshwise.workers.trainer.phases import PhaseTimes
from meshwise.workers.trainer.ranks.faults import is_finite

EAGER_STEPS = 3  # steps before one is captured: the first ones compile and choose kernels, and capturing runs nothing


@dataclass
class Moment:
    """A point in time on the device, or on the host if it does the work."""

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
        """Return seconds since an earlier moment; waits until the device has reached this one."""
        if self.event is None or earlier.event is None:
            return self.clock - earlier.clock
        self.event.synchronize()
        return earlier.event.elapsed_time(self.event) / 1e3


@dataclass
class LaunchedStep:
    """A step that the device may still be computing."""

    step: int
    numbers: Tensor  # loss, gradient norm and imbalance of experts, on the host once `end` has passed
    end: Moment
    phases: PhaseTimes


class Stepper:
    """Runs steps, from the fourth on as one CUDA graph if the settings ask for it: replaying it has no CPU launch overhead."""

    def __init__(
        self, settings: Settings, ranks: Ranks, passes: Passes, optimizer: StepOptimizer, parameters: NamedParameters
    ) -> None:
        self.settings, self.ranks, self.passes, self.optimizer, self.parameters = settings, ranks, passes, optimizer, parameters
        self.squares = known_squares(passes.models)
        self.graph: torch.cuda.CUDAGraph | None = None
        self.inputs: tuple[Tensor, Tensor] | None = None
        self.numbers: Tensor | None = None
        self.done = 0

    def launch(self, step: int, tokens: Tensor, targets: Tensor) -> LaunchedStep:
        """Start a step without waiting for the device."""
        device = self.passes.device
        tokens, targets = (part.to(device, non_blocking=True) for part in (tokens, targets))
        self.optimizer.set_rate(rate_at(self.settings, step))
        if self.settings.finetune.dropout:  # the same after a restart
            torch.manual_seed(zlib.crc32(f"{self.settings.seed}:{step}:{self.ranks.replica}".encode()))
        numbers = self._replay(tokens, targets) if self.settings.cuda_graph else self._run(tokens, targets)
        self.done += 1
        if device.type == "cuda":
            numbers = torch.empty(len(numbers), pin_memory=True).copy_(numbers, non_blocking=True)
        return LaunchedStep(step, numbers, Moment.now(device), self.passes.phases.end())

    def _run(self, tokens: Tensor, targets: Tensor) -> Tensor:
        loss = self.passes.run(tokens, targets)
        phases = self.passes.phases
        with phases("reduce"):
            reduce_gradients(self.settings, self.ranks, self.parameters)
            total = gradient_norm(self.settings, self.ranks, self.parameters, self.squares)
        with phases("optimizer"):
            # a loss that is not finite may leave a finite gradient
            self.optimizer.apply(torch.where(is_finite(loss, total), total, torch.nan), self.settings.clip)
            for leaf in (*(parameter for _, parameter in self.parameters), *self.squares.values()):
                leaf.grad = None
        return torch.stack((loss.float(), total, self.passes.balance.finish_step()))

    def _replay(self, tokens: Tensor, targets: Tensor) -> Tensor:
        if self.graph is None and self.done < EAGER_STEPS:
            # on a separate stream, as capturing requires
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
