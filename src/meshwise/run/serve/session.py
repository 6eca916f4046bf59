"""Serving: an engine that is up, as `meshwise run` starts it; and its dry run, which starts nothing."""

import shlex
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from meshwise.errors import DoesNotFit, UserError
from meshwise.plan.serve.plan import ServePlan, read
from meshwise.run.callbacks import Say, ignore
from meshwise.run.serve import memory, programs
from meshwise.run.serve.allocations import DRY_RUN_PROGRAM, dry_run, from_log
from meshwise.run.serve.ask import ServeRun
from meshwise.run.serve.deployment import Deployment, ask_here, ask_of, deployment
from meshwise.run.serve.process import INSECURE, OutOfMemory, Program, Running, private_address, started


@dataclass(frozen=True)
class ServeDryRun:
    """The commands that a run would start, and the bytes that each device would hold."""

    commands: tuple[str, ...]
    memory: tuple[memory.Row, ...]  # planned and reported bytes per device; empty where llama.cpp's dry run is not installed
    source: str = DRY_RUN_PROGRAM


class Serving:
    """The running programs of a serving plan. `stop` ends them, as does leaving a `with` block."""

    def __init__(self, run: ServeRun, plan: ServePlan | None = None, *, say: Say = ignore) -> None:
        """Start every program and wait until the server answers. `say` gets warnings and the engine's log."""
        self.deployment, processes = _resolve(run, plan, say)
        self.rpc_only = bool(run.serve_rpc)
        self._stack = ExitStack()
        up = (
            started(processes, say, run.start_within)
            if self.rpc_only
            else memory.started_and_checked(self.deployment, run, processes, say, say)
        )
        try:
            self.running: list[Running] = self._stack.enter_context(up)
        except OutOfMemory as error:
            raise OutOfMemory(f"{error}; {self.deployment.memory_summary()}") from None

    @property
    def server(self) -> Program:
        return self.running[-1].program

    @property
    def address(self) -> str:
        return f"{self.server.host}:{self.server.port}"

    @property
    def url(self) -> str:
        return f"http://{self.address}"

    def memory(self) -> list[memory.Row]:
        """Return planned bytes beside those that llama.cpp logged, a row per device; empty where it logged none."""
        log = list(self.running[-1].log)
        return memory.compare(self.deployment, from_log(log, memory.rpc_addresses(self.server.command)))

    def lines(self) -> list[str]:
        """Return lines with the model, layout, predicted speed and URL."""
        planned = self.deployment
        if self.rpc_only:
            return [f"RPC servers of {planned.layout.name} listen on {self.address}; stop them with Ctrl-C"]
        best, chip = planned.predict(), planned.question.cluster.chip
        speed = f", predicted {best.per_user:.3g} tokens/s for one request on {chip.name}" if best else ""
        return [
            f"{planned.question.model.name}, {planned.layout.name}, with {self.server.name}{speed}",
            f"{self.url} answers; measure it with 'meshwise bench {self.url}', stop it with Ctrl-C",
        ]

    def wait(self) -> None:
        """Wait until a program ends, and raise the reason. Ctrl-C and SIGTERM raise KeyboardInterrupt."""
        while True:
            for process in self.running:
                try:
                    process.check()
                except UserError as error:
                    raise (error if isinstance(error, DoesNotFit) else DoesNotFit(str(error))) from None
            time.sleep(0.2)

    def stop(self) -> None:
        """End every program."""
        self._stack.close()

    def __enter__(self) -> "Serving":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()


def rehearse(run: ServeRun, plan: ServePlan | None = None, *, say: Say = ignore) -> ServeDryRun:
    """Return the commands of a run and the result of llama.cpp's own dry run, if it is installed. RPC servers run meanwhile."""
    planned, processes = _resolve(run, plan, say)
    lines = tuple(
        " ".join([*(f"{name}={value}" for name, value in program.environment.items()), shlex.join(program.command)])
        for program in processes
    )
    command = () if run.serve_rpc else programs.dry_run_command(planned, run)
    if not command:
        return ServeDryRun(lines, ())
    with started(processes[:-1], ignore, run.start_within):
        reported = dry_run(command, run.start_within)
    rows = memory.compare(planned, reported)
    if not rows:
        raise DoesNotFit(memory.other_devices(planned, reported))
    return ServeDryRun(lines, tuple(rows))


def _resolve(run: ServeRun, plan: ServePlan | None, say: Say) -> tuple[Deployment, list[Program]]:
    """Return the layout to serve with and the programs to start."""
    gguf = run.what.lower().endswith(".gguf")
    if run.on and not gguf:
        raise UserError("--on does not apply to a plan, which has its cluster; drop it, or plan again")
    planned = deployment(ask_here(run.what, run.on) if gguf else ask_of(plan or read(Path(run.what))))
    if run.serve_rpc:
        private_address(next(iter(run.addresses.values())))
    processes = programs.rpc_servers(planned, run) if run.serve_rpc else programs.programs(planned, run)
    if run.addresses:
        say(INSECURE)
    return planned, processes
