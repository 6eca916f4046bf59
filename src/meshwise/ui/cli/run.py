"""The verb `run`."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from meshwise.errors import DoesNotFit, UserError, quoted

if TYPE_CHECKING:
    from meshwise.run.train.launch import Launch, Wish

LAYOUT = "The layout"
TEXT = "The text"
FAULTS = "When something breaks"
HOSTS = "Several machines (under Slurm, Kubernetes or torchrun they are known)"
WATCH = "What is watched"
STEPS, SHORT = 40, 8
"""Of a run, and of each run of a sweep or of --report."""
SERVING = "A plan to serve, or a .gguf"


def run(
    context: typer.Context,
    what: Annotated[
        str,
        typer.Argument(
            metavar="[PLAN|MODEL]", help="A plan.json to train or serve, a model as for plan (llama-debug), or a .gguf."
        ),
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
    steps: Annotated[
        int | None, typer.Option(min=1, help=f"Steps to train ({STEPS}; {SHORT} in each run of a sweep).", show_default=False)
    ] = None,
    data: Annotated[
        str,
        typer.Option(
            metavar="PATH",
            help="Text (.txt, .jsonl, .parquet) or token files (.tokens, .bin): a file, a folder or a quoted pattern (default: built in).",
            rich_help_panel=TEXT,
        ),
    ] = "",
    tokenizer: Annotated[
        str,
        typer.Option(
            help="bytes (default), a tokenizer.json of HF's or its folder, or bpe:N to learn N tokens.", rich_help_panel=TEXT
        ),
    ] = "",
    text_key: Annotated[
        str, typer.Option(help="The key or column of a document's text in .jsonl and .parquet (text).", rich_help_panel=TEXT)
    ] = "",
    lr: Annotated[float, typer.Option(min=0, help="The highest learning rate.")] = 3e-3,
    seed: Annotated[int, typer.Option(min=0, help="Of the weights and the text.")] = 0,
    device: Annotated[str, typer.Option(help="cpu or cuda (default: what is here).")] = "",
    precision: Annotated[str, typer.Option(help="bf16 (default on GPUs) or fp32 (on CPUs).")] = "",
    compiled: Annotated[
        bool | None, typer.Option("--compile/--no-compile", help="Compile the blocks with torch.compile (default: on GPUs).")
    ] = None,
    graph: Annotated[bool, typer.Option("--graph/--no-graph", help="Replay steps of one GPU as a CUDA graph.")] = True,
    weights: Annotated[Path | None, typer.Option(help="HF safetensors to start from, a file or a folder.")] = None,
    save: Annotated[bool, typer.Option("--save", help="Write the weights as HF safetensors at the end.")] = False,
    checkpoint_every: Annotated[
        int, typer.Option(min=0, help="Steps between checkpoints; a run goes on from the newest in its folder, in any layout.")
    ] = 0,
    keep: Annotated[int, typer.Option(min=1, help="Checkpoints that are kept.", rich_help_panel=FAULTS)] = 3,
    max_restarts: Annotated[
        int | None,
        typer.Option(min=0, help="Times to go on after a lost rank (3 with checkpoints, else 0).", rich_help_panel=FAULTS),
    ] = None,
    timeout: Annotated[
        str, typer.Option(help="Without progress for so long, the run ends and names who is behind.", rich_help_panel=FAULTS)
    ] = "10m",
    on_nan: Annotated[
        str, typer.Option(help="stop, or skip steps whose loss or gradient is no number.", rich_help_panel=FAULTS)
    ] = "stop",
    nodes: Annotated[int | None, typer.Option("--nodes", "--nnodes", min=1, help="Machines.", rich_help_panel=HOSTS)] = None,
    node_rank: Annotated[int | None, typer.Option(min=0, help="Which of them this is, from 0.", rich_help_panel=HOSTS)] = None,
    rendezvous: Annotated[
        str,
        typer.Option("--rendezvous", "--rdzv-endpoint", help="HOST:PORT of node 0, where they meet.", rich_help_panel=HOSTS),
    ] = "",
    on: Annotated[str, typer.Option(help="The machine in words, such as 1x8xh200, for MFU and the prediction.")] = "",
    out: Annotated[Path, typer.Option(help="The folder of the run.")] = Path("run"),
    sweep: Annotated[
        str | None,
        typer.Option(
            metavar="AXIS=VALUES...",
            help="Measure every combination of axes, batch, seq and compile, such as 'mbs=1,2,4 tp=1,2'.",
        ),
    ] = None,
    report: Annotated[
        bool, typer.Option("--report", help="A full report, with short runs at several sequence lengths.", rich_help_panel=WATCH)
    ] = False,
    report_lengths: Annotated[
        str, typer.Option(help="With --report: the lengths (128,512,1024,2048).", rich_help_panel=WATCH)
    ] = "",
    tensorboard: Annotated[
        bool, typer.Option("--tensorboard", help="Write curves for TensorBoard.", rich_help_panel=WATCH)
    ] = False,
    profile: Annotated[
        str, typer.Option(metavar="START:COUNT", help="Trace these steps of rank 0 with torch's profiler.", rich_help_panel=WATCH)
    ] = "",
    memory_snapshot: Annotated[
        bool, typer.Option("--memory-snapshot", help="Write the history of GPU memory.", rich_help_panel=WATCH)
    ] = False,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Print the command and every weight's shape, or what a server would take on each device; start nothing.",
        ),
    ] = False,
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Where to listen; 0 takes a free one.", rich_help_panel=SERVING)
    ] = 8080,
    host: Annotated[str, typer.Option(help="The address to listen on.", rich_help_panel=SERVING)] = "127.0.0.1",
    engine_path: Annotated[str, typer.Option(help="Folder of llama.cpp, or xllamacpp.", rich_help_panel=SERVING)] = "",
    model_file: Annotated[str, typer.Option(help="The .gguf, if not where the plan says.", rich_help_panel=SERVING)] = "",
    rpc: Annotated[str, typer.Option(help="host1=ADDRESS, or host1=loopback to start it.", rich_help_panel=SERVING)] = "",
    serve_rpc: Annotated[str, typer.Option(help="host1=ADDRESS: be that host of a plan.", rich_help_panel=SERVING)] = "",
    threads: Annotated[int, typer.Option(min=0, help="Of a CPU (default: the engine's).", rich_help_panel=SERVING)] = 0,
    start_within: Annotated[str, typer.Option(help="How long it may take to load.", rich_help_panel=SERVING)] = "600s",
) -> None:
    """Run a plan: train with its layout, or serve with its split, and lay what was measured beside the prediction."""
    from meshwise import units
    from meshwise.cost.work import parse_batch
    from meshwise.run.train import launch
    from meshwise.ui.cli import run_cli_engine

    serving = run_cli_engine.serves(what)
    run_cli_engine.check_flags(context, serving)
    if serving:
        run_cli_engine.run(
            what, on, run_cli_engine.Asked(port, host, engine_path, model_file, rpc, serve_rpc, threads, start_within, dry_run)
        )
        return

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
    wish = launch.Wish(
        what=what,
        axes=chosen,
        batch=sequences,
        seq=length,
        on=on,
        device=device,
        precision=precision,
        data=data,
        tokenizer=tokenizer,
        text_key=text_key,
        nodes=nodes,
        node_rank=node_rank,
        rendezvous=rendezvous,
        max_restarts=max_restarts,
        dry_run=dry_run,
        options={
            "steps": steps or (SHORT if sweep else STEPS),
            "lr": lr,
            "seed": seed,
            "graph": graph,
            **({} if compiled is None else {"compile": compiled}),
            "weights": str(weights or ""),
            "save": save,
            "checkpoint_every": checkpoint_every,
            "keep": keep,
            "timeout": _seconds(timeout),
            "on_nan": on_nan,
            "tensorboard": tensorboard,
            "memory_snapshot": memory_snapshot,
            "out": str(out),
            **_profile(profile),
        },
    )
    if report_lengths and not report:
        raise UserError("--report-lengths are those of --report; give that too")
    if not lr < float("inf"):
        raise UserError(f"--lr {lr:g}: expected a number")
    if sweep is not None:
        watched = {"--tensorboard": tensorboard, "--profile": profile, "--memory-snapshot": memory_snapshot, "--report": report}
        _sweep(wish, sweep, out, watched | {"--dry-run": dry_run, "--save": save, "--checkpoint-every": checkpoint_every})
        return
    ready = launch.prepare(wish)
    _check_watching(ready)
    launch.check_torch()
    if dry_run:
        _shapes(ready, out)
    elif report:
        from meshwise.run.train import lengths, start

        start.run_reported(wish, ready, report_lengths or lengths.LENGTHS, SHORT, out, typer.echo)
    else:
        _train(ready, out)


def _profile(text: str) -> dict[str, int]:
    """'5:3' as the steps to trace; nothing traces none."""
    if not text:
        return {}
    first, _, count = text.partition(":")
    if not (first.isdecimal() and count.isdecimal() and int(first[:9]) and int(count[:9])):
        raise UserError(f"--profile {quoted(text)}: expected START:COUNT, such as 5:3 for steps 5, 6 and 7")
    return {"profile_from": int(first) - 1, "profile_steps": int(count)}


def _check_watching(ready: "Launch") -> None:
    """What is watched can be, or is refused before anything starts."""
    import importlib.util

    s = ready.settings
    if s.memory_snapshot and s.device != "cuda":
        raise UserError("--memory-snapshot is of GPU memory, and this run is on a CPU; --profile works there")
    if s.tensorboard and importlib.util.find_spec("tensorboard") is None:
        raise UserError("--tensorboard needs TensorBoard, which is not installed: pip install tensorboard")
    if s.profile_steps and s.profile_from >= s.steps:
        raise UserError(f"--profile starts at step {s.profile_from + 1}, and the run has {s.steps} steps")


def _sweep(wish: "Wish", text: str, out: Path, others: "dict[str, Any]") -> None:
    for name, given in others.items():
        if given:
            raise UserError(f"--sweep measures short runs; leave out {name}")
    from meshwise.run.train import start

    start.run_sweep(wish, text, out, typer.echo)


def _shapes(ready: "Launch", out: Path) -> None:
    """The command, and the shapes from a process that holds no weights; in a folder of its own, for nothing is started."""
    import subprocess
    import sys
    from tempfile import TemporaryDirectory

    from meshwise.run.train import launch, processes

    typer.echo(shlex.join(launch.command(ready, out / "config.json")))
    with TemporaryDirectory() as folder:
        file = processes.write(ready, Path(folder))
        asked = [sys.executable, "-m", "meshwise.workers.trainer.shapes", str(file)]
        done = subprocess.run(asked, env=processes.environment(ready), capture_output=True, text=True, check=False)
    if done.returncode:
        raise DoesNotFit(f"the shapes could not be made: {(done.stderr.strip().splitlines() or ['no reason given'])[-1]}")
    typer.echo(done.stdout.rstrip())


def _train(ready: "Launch", out: Path) -> None:
    import os
    import sys

    from meshwise.run.train import launch, previous, processes, start

    with previous.alone(out, ready):
        previous.check(ready, out)
        if ready.hosts.worker:
            ready = processes.reading(ready, out, typer.echo)
            command = launch.command(ready, processes.write(ready, out))
            sys.stdout.flush()
            os.execve(command[0], command, processes.environment(ready))
        done = start.train(ready, out, typer.echo)
        if done is not None:
            start.report(ready, out, *done, more=[], say=typer.echo)


def _seconds(text: str) -> float:
    from meshwise import units

    found = units.parse(
        f"{text}in" if text[:-1].isdecimal() and text.endswith("m") else text, "seconds"
    )  # 10m is what people type
    if found < 1:
        raise UserError(f"--timeout {text}: expected at least 1s")
    return found
