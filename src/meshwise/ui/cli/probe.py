"""The verb `probe`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from meshwise.catalogue import here
from meshwise.errors import UserError

if TYPE_CHECKING:
    from meshwise.calibrate.train.probe import Machine, Row


def probe(
    seconds: Annotated[float, typer.Option(min=2, max=3600, help="About how long it may take.")] = 60.0,
    device: Annotated[str, typer.Option(help="cuda or cpu (default: what is here).")] = "",
    ranks: Annotated[
        int | None, typer.Option(min=1, max=1024, help="Devices, or processes on a CPU (default: all GPUs; 2).")
    ] = None,
    show: Annotated[bool, typer.Option("--show", help="Draw the curves of the last probe; measure nothing.")] = False,
    read: Annotated[
        Path | None,
        typer.Option(help="File rows that were measured elsewhere: torchrun ... -m meshwise.workers.probe rows.jsonl 60"),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Write the rows to this .jsonl too.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON: the rows.")] = False,
) -> None:
    """Measure this machine in about a minute, so that plans for it (--on here) rest on its own numbers."""
    from meshwise.calibrate.train import probe as probed
    from meshwise.run import probe as probing
    from meshwise.ui.views import tables
    from meshwise.ui.views.probe import curves

    if show:
        kept = probing.kept()
        if json:
            typer.echo(tables.as_json(kept))
            return
        console = tables.console()
        for key, rows in kept.items():
            console.print(f"{key}: {rows[0]['name']}, {rows[0]['date']}", style="bold")
            console.print(curves(rows), soft_wrap=True)
            _say(probed.machine(rows, key))
        return
    measured = {"here": probed.read(read)} if read is not None else _measured(seconds, device, ranks)
    machines = {key: probing.file_away(rows, key) for key, rows in measured.items()}
    if out is not None:
        from meshwise.catalogue.files import write

        write(out, "".join(map(probing.lines_of, measured.values())))
    if json:
        typer.echo(tables.as_json(measured))
        return
    for found in machines.values():
        _say(found)
    _next(machines)


def _measured(seconds: float, device: str, ranks: int | None) -> "dict[str, list[Row]]":
    """Rows by the chip they stand for, with a bar on standard error."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    from meshwise.run import probe as probing

    gpus = len(here.gpus())
    chosen = device or ("cuda" if gpus else "cpu")
    if chosen not in ("cuda", "cpu"):
        raise UserError(f"--device {device!r} is neither cuda nor cpu")
    if chosen == "cuda" and not gpus:
        raise UserError("--device cuda: nvidia-smi names no GPU here; --device cpu measures the processor")
    count = ranks or probing.usual_ranks(chosen, gpus)
    if chosen == "cuda" and count > gpus:
        raise UserError(f"--ranks {count}: this machine has {gpus} GPUs")
    probing.check_torch()
    found: dict[str, list[Row]] = {}
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:3.0f}%"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        for session in probing.sessions(chosen, count, seconds):
            task = bar.add_task(session.key, total=100)
            found[session.key] = probing.measure(
                session, chosen, lambda what, done, task=task: bar.update(task, description=what, completed=done)
            )
    return found


def _say(found: "Machine") -> None:
    from meshwise.ui.views import tables
    from meshwise.ui.views.probe import summary

    tables.console().print(summary(found), soft_wrap=True)


def _next(machines: "dict[str, Machine]") -> None:
    from meshwise.catalogue import files
    from meshwise.ui.views import tables

    chip = machines["here"].chip
    console = tables.console()
    console.print(f"filed in {files.user_folder()}: chips/here.toml, calibration/probe.toml, probes/here.jsonl", soft_wrap=True)
    batch = "8x2048" if chip.kind == "gpu" else "8x64"
    model = "llama-3.2-1b" if chip.kind == "gpu" else "llama-debug"
    console.print(
        f"plan with it: meshwise plan {model} --on here --batch {batch} --framework meshwise", soft_wrap=True, highlight=False
    )
