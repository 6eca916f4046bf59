"""The verb `run`."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from meshwise.errors import DoesNotFit, UserError

if TYPE_CHECKING:
    from meshwise.launch import Launch

LAYOUT = "The layout"


def run(
    what: Annotated[
        str, typer.Argument(metavar="[PLAN|MODEL]", help="A plan.json, or a model as for plan (default: llama-debug).")
    ] = "",
    dp_replicate: Annotated[int | None, typer.Option(min=1, help="Copies of the model.", rich_help_panel=LAYOUT)] = None,
    dp_shard: Annotated[
        int | None, typer.Option(min=1, help="Devices that share the state (FSDP).", rich_help_panel=LAYOUT)
    ] = None,
    tp: Annotated[int | None, typer.Option(min=1, help="Tensor and sequence parallel.", rich_help_panel=LAYOUT)] = None,
    pp: Annotated[int | None, typer.Option(min=1, help="Pipeline stages.", rich_help_panel=LAYOUT)] = None,
    cp: Annotated[int | None, typer.Option(min=1, help="Context parallel.", rich_help_panel=LAYOUT)] = None,
    mbs: Annotated[int | None, typer.Option(min=1, help="Sequences of a micro-batch.", rich_help_panel=LAYOUT)] = None,
    vpp: Annotated[int | None, typer.Option(min=1, help="Model chunks of a stage.", rich_help_panel=LAYOUT)] = None,
    zero: Annotated[
        int | None,
        typer.Option(min=2, max=3, help="3, or 2 to keep gathered weights until the backward pass.", rich_help_panel=LAYOUT),
    ] = None,
    schedule: Annotated[str, typer.Option(help="1f1b, interleaved, zero-bubble or zbv.", rich_help_panel=LAYOUT)] = "",
    recompute: Annotated[str, typer.Option(help="none, selective or full.", rich_help_panel=LAYOUT)] = "",
    batch: Annotated[str, typer.Option(help="Sequences a step (8), or tokens, as for plan.")] = "",
    seq: Annotated[str, typer.Option(help="Sequence length (64).")] = "",
    steps: Annotated[int, typer.Option(min=1, help="Steps to train.")] = 40,
    lr: Annotated[float, typer.Option(min=0, help="The highest learning rate.")] = 3e-3,
    seed: Annotated[int, typer.Option(min=0, help="Of the weights and the text.")] = 0,
    device: Annotated[str, typer.Option(help="cpu or cuda (default: what is here).")] = "",
    precision: Annotated[str, typer.Option(help="bf16 (default on GPUs) or fp32 (on CPUs).")] = "",
    compiled: Annotated[bool, typer.Option("--compile", help="Compile the blocks with torch.compile.")] = False,
    weights: Annotated[Path | None, typer.Option(help="A folder of HF safetensors to start from.")] = None,
    save: Annotated[bool, typer.Option("--save", help="Write the weights as HF safetensors at the end.")] = False,
    checkpoint_every: Annotated[
        int, typer.Option(min=0, help="Steps between checkpoints; a run goes on from the newest in its folder, in any layout.")
    ] = 0,
    on: Annotated[str, typer.Option(help="The machine in words, such as 1x8xh200, for MFU and the prediction.")] = "",
    out: Annotated[Path, typer.Option(help="The folder of the run.")] = Path("run"),
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the command and every weight's shape; start nothing.")
    ] = False,
) -> None:
    """Train a model with a layout, a plan's or your own, and lay what was measured beside the prediction."""
    from meshwise import launch, units
    from meshwise.workload import parse_batch

    axes = {
        "dp_replicate": dp_replicate,
        "dp_shard": dp_shard,
        "tp": tp,
        "pp": pp,
        "cp": cp,
        "mbs": mbs,
        "vpp": vpp,
        "zero": zero,
    }
    chosen: dict[str, Any] = {name: value for name, value in axes.items() if value is not None}
    chosen |= {name: word for name, word in (("schedule", schedule), ("recompute", recompute)) if word}
    length = units.whole_length(seq) if seq else 0
    sequences, length = parse_batch(batch, length or launch.SEQ) if batch else (0, length)
    if weights is not None and not any(weights.glob("*.safetensors")):
        raise UserError(f"--weights {weights}: no .safetensors in it")
    wish = launch.Wish(
        what=what,
        axes=chosen,
        batch=sequences,
        seq=length,
        on=on,
        device=device,
        precision=precision,
        options={
            "steps": steps,
            "lr": lr,
            "seed": seed,
            "compile": compiled,
            "weights": str(weights or ""),
            "save": save,
            "checkpoint_every": checkpoint_every,
            "out": str(out),
        },
    )
    ready = launch.prepare(wish)
    launch.check_torch()
    (_shapes if dry_run else _train)(ready, out)


def _file(ready: "Launch", out: Path) -> Path:
    try:
        out.mkdir(parents=True, exist_ok=True)
        ready.settings.write(out / "config.json")
    except OSError as error:
        raise UserError(f"--out {out}: cannot be written ({error.strerror})") from None
    return out / "config.json"


def _environment(ready: "Launch") -> dict[str, str]:
    import os

    from meshwise import launch

    # passive: where other programs want the cores, threads that spin while they wait take them from the ones that compute
    return {"OMP_NUM_THREADS": launch.threads(ready.settings), "OMP_WAIT_POLICY": "passive"} | dict(os.environ)


def _shapes(ready: "Launch", out: Path) -> None:
    """The command, and the shapes from a process that holds no weights; in a folder of its own, for nothing is started."""
    import subprocess
    import sys
    from tempfile import TemporaryDirectory

    from meshwise import launch

    typer.echo(shlex.join(launch.command(ready.settings, out / "config.json")))
    with TemporaryDirectory() as folder:
        file = _file(ready, Path(folder))
        asked = [sys.executable, "-m", "meshwise.trainer.shapes", str(file)]
        done = subprocess.run(asked, env=_environment(ready), capture_output=True, text=True, check=False)
    if done.returncode:
        raise DoesNotFit(f"the shapes could not be made: {(done.stderr.strip().splitlines() or ['no reason given'])[-1]}")
    typer.echo(done.stdout.rstrip())


def _train(ready: "Launch", out: Path) -> None:
    import subprocess

    from meshwise import launch

    s = ready.settings
    file = _file(ready, out)
    typer.echo(
        f"{s.name}: {ready.model.params:,} parameters, {s.batch} x {s.seq} tokens a step in {s.microbatches} micro-batches, "
        f"{s.precision} on {s.layout.devices} {s.device} process{'es' if s.layout.devices > 1 else ''}"
    )
    code = subprocess.run(launch.command(s, file), env=_environment(ready), check=False).returncode
    if code:
        raise DoesNotFit(f"training stopped with exit code {code}; what the workers said is above")
    _report(ready, out)


def _report(ready: "Launch", out: Path) -> None:
    """Predicted against measured."""
    import json

    from meshwise import launch

    if not (out / "measurement.jsonl").is_file():  # a run that was stopped after its last checkpoint
        typer.echo(f"all {ready.settings.steps} steps were done before: no step was measured")
        return
    seen = json.loads((out / "measurement.jsonl").read_text(encoding="utf-8").splitlines()[-1])
    rows = [("measured", float(seen["sec_per_iter"]), float(seen["mem_gb"]))]
    if ready.on:
        choice = launch.predicted(ready)
        rows.insert(0, ("predicted", choice.seconds, choice.memory / 2**30))
    tokens = ready.settings.batch * ready.settings.seq
    for label, seconds, memory in rows:
        typer.echo(f"{label:<9}  {seconds:8.4f} s a step  {tokens / seconds:>12,.0f} tok/s  {memory:7.2f} GiB a device")
    if not ready.on:
        typer.echo("no prediction: the catalogue does not know this GPU; name the machine with --on, such as 1x8xh200")
    elif ready.settings.device == "cpu" and ready.on.endswith("xcpu"):
        typer.echo("the prediction is for a generic 16-core CPU and says nothing of this machine; 'meshwise probe' measures it")
    typer.echo(f"kept in {out}: config.json, environment.json, steps.jsonl, measurement.jsonl")
