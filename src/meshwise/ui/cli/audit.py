"""The verb `audit`."""

from pathlib import Path
from typing import Annotated, Any

import typer

from meshwise.errors import UserError

FLAGS = {
    "params": ("params", "count"),
    "seq": ("seq_len", "length"),
    "tokens_per_sec": ("tokens_per_second", "count"),
    "step": ("seconds", "seconds"),
    "vocab": ("vocab", "count"),
    "memory": ("memory", "bytes"),
    "tflops": ("tflops", "FLOP/s"),
    "mfu": ("mfu", "share"),
}
"""Flags that are one number, with the field of a run and the quantity."""


def audit(
    files: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[FILE]...", help="Logs, tables (CSV, JSONL, Markdown), reports; any number of them."),
    ] = None,
    format: Annotated[str, typer.Option(help="The format of the files, where their content does not tell.")] = "",
    predicted: Annotated[Path | None, typer.Option(help="The folder of a run: predicted against measured, part by part.")] = None,
    model: Annotated[str, typer.Option(help="Preset, HF id or config.json of the runs.")] = "",
    params: Annotated[str, typer.Option(help="Parameters, such as 124M.")] = "",
    seq: Annotated[str, typer.Option(help="Sequence length, such as 4k.")] = "",
    batch: Annotated[str, typer.Option(help="Sequences a step; '16/gpu' for each device.")] = "",
    gpus: Annotated[str, typer.Option(help="The machine, such as 8xh100-sxm or 48x8xa100-80gb; or a chip.")] = "",
    tokens_per_sec: Annotated[str, typer.Option(help="Stated throughput of all devices, such as 15570.")] = "",
    step: Annotated[str, typer.Option(help="Stated time of a step, such as 7.5s.")] = "",
    tflops: Annotated[str, typer.Option(help="Stated rate of a device, such as 140T.")] = "",
    mfu: Annotated[str, typer.Option(help="Stated MFU, such as 45%.")] = "",
    memory: Annotated[str, typer.Option(help="Stated memory of a device, such as 56GB.")] = "",
    loss0: Annotated[float | None, typer.Option(help="Loss at the first step.")] = None,
    vocab: Annotated[str, typer.Option(help="Vocabulary, such as 50257.")] = "",
    layers: Annotated[int | None, typer.Option(min=1)] = None,
    hidden: Annotated[int | None, typer.Option(min=1)] = None,
    dp: Annotated[int | None, typer.Option(min=1)] = None,
    tp: Annotated[int | None, typer.Option(min=1)] = None,
    pp: Annotated[int | None, typer.Option(min=1)] = None,
    mbs: Annotated[int | None, typer.Option(min=1)] = None,
    framework: Annotated[str, typer.Option(help="Training program, such as megatron.")] = "",
    no_plan: Annotated[bool, typer.Option("--no-plan", help="Arithmetic only: do not ask the planner.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Check reported results: what follows from their figures, what does not add up, and what to try next."""
    from meshwise.ui.views.audit import audit_view, parts_view

    if predicted is not None:
        from meshwise.audit.profile import parts

        found = parts.compare(predicted)
        _show(json, found.to_json(), parts_view(found))
        return
    from meshwise.audit import report

    given = {
        "params": params,
        "seq": seq,
        "tokens_per_sec": tokens_per_sec,
        "step": step,
        "vocab": vocab,
        "memory": memory,
        "tflops": tflops,
        "mfu": mfu,
    }
    whole = {"n_layers": layers, "d_model": hidden, "dp": dp, "tp": tp, "pp": pp, "micro_batch": mbs}
    numbers, texts = _told(given, whole, batch, gpus, loss0)
    texts |= {name: text for name, text in (("model", model), ("framework", framework)) if text}
    if model:
        from meshwise.models import find

        find.find_model(model)  # an unknown name is said now, in its words
    if not files and not numbers:
        raise UserError(
            "nothing to audit: give files, or a run such as --params 124M --seq 128 --batch 16 --gpus 8xh100-sxm --step 7.5s"
        )
    readings = report.read_files(files, format, numbers, texts) if files else [report.read_flags(numbers, texts)]
    if not any(reading.runs or reading.claims for _, reading in readings):
        found = "; ".join(", ".join((f"{name} as {one.format}", *one.skipped.lines()[:3])) for name, one in readings)
        raise UserError(f"nothing that could be checked was found: {found}")
    done = report.audit(readings, planned=not no_plan)
    _show(json, done.to_json(), audit_view(done))


def _told(
    given: dict[str, str], whole: dict[str, int | None], batch: str, gpus: str, loss0: float | None
) -> tuple[dict[str, float], dict[str, str]]:
    """Flags as the numbers and words of a run."""
    import math

    from meshwise import units
    from meshwise.catalogue.chips import known_chip
    from meshwise.catalogue.clusters import find_cluster

    numbers = {FLAGS[flag][0]: units.parse(text, FLAGS[flag][1]) for flag, text in given.items() if text}
    numbers |= {name: float(value) for name, value in whole.items() if value is not None}
    texts: dict[str, str] = {}
    if batch:
        each = batch.lower().replace(" per ", "/").replace("device", "gpu").removesuffix("/gpu")
        numbers["per_device_batch" if each != batch.lower() else "global_batch_seqs"] = units.parse(each.strip(), "length")
    if gpus and known_chip(gpus):  # a kind of chip, and however many the files say
        texts["gpu"] = gpus
    elif gpus:
        cluster = find_cluster(gpus)
        node = cluster.node
        numbers |= {"n_gpus": float(cluster.devices), "gpus_per_node": float(node.devices)}
        texts["gpu"] = node.chips[0][1].key
    if loss0 is not None:
        if not math.isfinite(loss0):
            raise UserError("--loss0 is not a number; expected a loss such as 10.8")
        numbers |= {"loss": loss0, "loss_step": 0.0}
    return numbers, texts


def _show(json: bool, data: dict[str, Any], view: Any) -> None:
    from meshwise.ui.views import tables

    if json:
        typer.echo(tables.as_json(data))
    else:
        tables.console().print(view, soft_wrap=True)
