"""`run` of a serving plan or of a .gguf: the engine, until it is told to end."""

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from meshwise.errors import DoesNotFit, UserError

FLAGS = ("port", "host", "engine_path", "model_file", "rpc", "serve_rpc", "threads", "start_within")
SHARED = ("what", "on", "dry_run")


@dataclass(frozen=True)
class Asked:
    """The flags of serving, as they were typed."""

    port: int
    host: str
    engine_path: str
    model_file: str
    rpc: str
    serve_rpc: str
    threads: int
    start_within: str
    dry_run: bool


def serves(what: str) -> bool:
    """Whether this is to be served: a plan of that kind, or a model that only engines run."""
    if what.lower().endswith(".gguf"):
        return True
    if not what.endswith(".json") or not os.path.isfile(what):
        return False
    from meshwise.models import find

    return find.values_of(Path(what)).get("kind") == "serve"


def check_flags(given: typer.Context, serving: bool) -> None:
    for name in given.params:
        source = given.get_parameter_source(name)
        if source is None or source.name != "COMMANDLINE" or name in SHARED:
            continue
        flag = "--compile" if name == "compiled" else f"--{name.replace('_', '-')}"
        if serving and name not in FLAGS:
            raise UserError(f"{flag} is of training, and this is served: leave it out")
        if not serving and name in FLAGS:
            raise UserError(f"{flag} is of a plan to serve, and this is trained: leave it out")


def run(what: str, on: str, asked: Asked) -> None:
    """Start, say where, show the log, and leave nothing behind."""
    from meshwise import units
    from meshwise.plan.serve import choice
    from meshwise.run.serve import memory as serve_memory
    from meshwise.run.serve import start
    from meshwise.run.serve.process import INSECURE, OutOfMemory, private, started

    wish = start.Wish(
        folder=asked.engine_path,
        host=asked.host,
        port=asked.port,
        file=asked.model_file,
        rpc=start.rpc_addresses(asked.rpc or asked.serve_rpc),
        threads=asked.threads,
    )
    if what.lower().endswith(".gguf"):
        planned = start.planned(start.ask_here(what, on))
    elif on:
        raise UserError("--on: the plan says where it runs; leave it out, or plan again")
    else:
        planned = start.planned(start.plan_ask(choice.read(Path(what))))
    if asked.serve_rpc:
        private(next(iter(wish.rpc.values())))
        programs = start.rpc_servers(planned, wish)
    else:
        programs = start.programs(planned, wish)
    if wish.rpc:
        typer.echo(INSECURE, err=True)
    patience = units.parse(asked.start_within, "seconds")
    if asked.dry_run:
        _dry_run(planned, wish, programs, patience, remote=bool(asked.serve_rpc))
        return
    try:
        up_with = (
            started(programs, _log, patience)
            if asked.serve_rpc
            else serve_memory.checked(planned, wish, programs, _log, patience, _log)
        )
        with up_with as up:
            try:
                _tell(planned, up, bool(asked.serve_rpc))
                _watch(up)
            except KeyboardInterrupt:
                typer.echo("stopping")
    except OutOfMemory as error:
        raise OutOfMemory(f"{error}; {start.memory_sum(planned)}") from None


def _log(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _dry_run(planned: Any, wish: Any, programs: list[Any], patience: float, *, remote: bool) -> None:
    """The commands, and where llama.cpp has its own dry run what it would take on each device; RPC servers run for as long."""
    import shlex

    from meshwise.run.serve import memory as serve_memory
    from meshwise.run.serve import start
    from meshwise.run.serve.allocations import DRY_RUN, dry_run
    from meshwise.run.serve.process import started

    for program in programs:
        settings = [f"{name}={value}" for name, value in program.environment.items()]
        typer.echo(" ".join([*settings, shlex.join(program.command)]))
    command = () if remote else start.dry_run_command(planned, wish)
    if not command:
        return
    with started(programs[:-1], lambda line: None, patience):
        said = dry_run(command, patience)
    rows = serve_memory.beside(planned, said)
    if not rows:
        raise DoesNotFit(serve_memory.other_devices(planned, said))
    typer.echo(_memory(rows, DRY_RUN))


def _memory(rows: list[Any], who: str) -> str:
    from meshwise.ui.views import tables
    from meshwise.ui.views.bench import memory_view

    console = tables.console()
    with console.capture() as shown:
        console.print(memory_view(rows, who), soft_wrap=True)
    return shown.get()


def _tell(planned: Any, up: list[Any], remote: bool) -> None:
    from meshwise.run.serve import memory as serve_memory
    from meshwise.run.serve.allocations import logged

    program = up[-1].program
    where = f"{program.host}:{program.port}"
    if remote:
        typer.echo(f"RPC servers of {planned.layout.name} listen on {where}; stop them with Ctrl-C")
        return
    # Made before anything is said: whoever reads that it answers may end it at once.
    rows = serve_memory.beside(planned, logged(list(up[-1].log), serve_memory.remotes(program.command)))
    memory = _memory(rows, "it says") if rows else ""
    best = planned.at_own()
    chip = planned.question.cluster.chip
    speed = f", predicted {best.per_user:.3g} tokens/s for one user on {chip.name}" if best else ""
    typer.echo(f"{planned.question.model.name}, {planned.layout.name}, with {program.name}{speed}")
    typer.echo(f"http://{where} answers; measure it with 'meshwise bench http://{where}', stop it with Ctrl-C")
    if memory:
        typer.echo(memory)


def _watch(up: list[Any]) -> None:
    """Until a program ends, which is a failure."""
    import time

    from meshwise.run.serve.process import failure

    while True:
        for one in up:
            if one.process.poll() is not None:
                one.reader.join(2)
                told = failure(one)
                raise DoesNotFit(f"{told}") if not isinstance(told, DoesNotFit) else told
        time.sleep(0.2)
