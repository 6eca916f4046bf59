"""Counts of models on a terminal: one column per model, and the training budget on a cluster."""

from collections.abc import Callable, Sequence

from rich.console import Group, RenderableType

from meshwise import units
from meshwise.models.count import Count, Tally
from meshwise.ui.views.tables import Table, at_path, grid, whole_at, wrapped

DAY_SECONDS = 86400.0
Row = tuple[str, Callable[[Tally], str]]


def _bytes(path: str, *, binary: bool = False) -> Callable[[Tally], str]:
    return lambda tally: units.show(value, "bytes", binary=binary) if (value := at_path(tally, path)) else ""


def _flops(path: str) -> Callable[[Tally], str]:
    return lambda tally: f"{value:.4g}" if (value := at_path(tally, path)) else ""


def _share(path: str) -> Callable[[Tally], str]:
    """Return a function that formats a number of parameters with its share of the total."""

    def cell(tally: Tally) -> str:
        value = at_path(tally, path)
        return f"{value:,} {100 * value / tally['parameters']['total']:5.1f}%" if value else ""

    return cell


def counts_view(counts: Sequence[Count], width: int) -> RenderableType:
    """Return tables with as many models side by side as fit, and notes; or the budget of each model on its cluster."""
    if all("budget" in count.more for count in counts):
        return Group(*(part for count in counts for part in _budget(count, width)))
    parts: list[RenderableType] = []
    left = [count.to_json() for count in counts]
    while left:
        tables = [table(left[:number]) for number in range(1, len(left) + 1)]
        number = max(1, sum(each.width() <= width for each in tables))
        parts.append(tables[number - 1].whole())
        left = left[number:]
    notes = [f"{count.model.name}: {note}" for count in counts for note in count.model.notes]
    return Group(*parts, *(wrapped(note, width, indent="  ") for note in notes))


def table(tallies: Sequence[Tally]) -> Table[Sequence[str]]:
    """Return everything that `count` computes: one column per model, rows grouped by subject."""
    titles: list[list[str]] = []
    rows: list[Sequence[str]] = []
    for title, filled in sections(tallies):
        titles.append([title, *[""] * len(tallies)])
        rows += [titles[-1], *((f"  {name}", *cells) for name, cells in filled)]
    names = [tally["model"] for tally in tallies]
    return grid(["", *names], rows, edged=True, style=lambda row: "bold cyan" if row in titles else "")


def sections(tallies: Sequence[Tally]) -> list[tuple[str, list[tuple[str, list[str]]]]]:
    """Return titles with their rows, a name and a cell for each model; without rows that no model fills."""
    every = [
        (title, [(name, cells) for name, cell in rows if any(cells := [cell(tally) for tally in tallies])])
        for title, rows in _sections(tallies)
    ]
    return [(title, rows) for title, rows in every if rows]


def _sections(tallies: Sequence[Tally]) -> list[tuple[str, list[Row]]]:
    """Return the titles and rows of the table, those that no model fills included."""
    names = list(dict.fromkeys(name for tally in tallies for name in tally["hyperparameters"]))
    parts = list(dict.fromkeys(part for tally in tallies for part in tally["parameters"]["parts"]))
    mixture = any(tally["parameters"]["active"] != tally["parameters"]["total"] for tally in tallies)
    tokens = units.show(tallies[0]["training_flops"]["tokens"], "count")
    shares = [(part, _share(f"parameters/parts/{part}")) for part in parts]
    named = {"active per token": "active", "  with the embedding": "active_with_embedding"} if mixture else {}
    active = [(name, _share(f"parameters/{key}")) for name, key in named.items()]
    return [
        ("hyperparameters", [(name, whole_at(f"hyperparameters/{name}")) for name in names]),
        ("parameters", [*shares, ("total", _share("parameters/total")), *active]),
        ("training FLOPs", [
            ("sequence length", whole_at("training_flops/seq")),
            ("per token, 6N", _flops("training_flops/per_token_6n")),
            ("per token, exact", _flops("training_flops/per_token")),
            ("  matrix products", _flops("training_flops/per_token_matmul")),
            ("  attention", _flops("training_flops/per_token_attention")),
            (f"for {tokens} tokens, 6N", _flops("training_flops/total_6n")),
            (f"for {tokens} tokens, exact", _flops("training_flops/total")),
        ]),
        ("cache of one sequence, bf16", [
            ("KV per token", _bytes("cache/kv_bytes_per_token", binary=True)),
            ("KV at the sequence length", _bytes("cache/kv_bytes", binary=True)),
            ("state, any length", _bytes("cache/state_bytes", binary=True)),
        ]),
        ("weights", [(name, _bytes(f"weight_bytes/{name}")) for name in ("fp32", "bf16", "fp8", "int4", "file")]),
        ("training state", [
            ("gradients, bf16", _bytes("training_bytes/gradients_bf16")),
            ("gradients, fp32", _bytes("training_bytes/gradients_fp32")),
            ("AdamW, fp32 master and moments", _bytes("training_bytes/adamw")),
        ]),
    ]  # fmt: skip


def _budget(count: Count, width: int) -> list[RenderableType]:
    """Return the training budget on a cluster, each step of the arithmetic with its numbers, and the rooflines."""
    budget = count.more["budget"]
    made = grid((f"{count.model.name} on {budget['cluster']}", "", "how"), budget_rows(budget), words=(0, 2), edged=True)
    return [made.whole(), *(wrapped(line, width) for line in budget["rooflines"])]


def budget_rows(b: Tally) -> list[tuple[str, str, str]]:
    tokens, few, size = units.show(b["tokens"], "count"), f"{b['least_devices']:,}", units.show(b["memory"], "bytes")
    return [
        ("FLOPs per token", f"{b['flops_per_token']:.3g}", "6 per active parameter"),
        ("one token on one device", units.show(b['token_seconds'], "seconds", digits=3), "at its peak"),
        ("FLOPs in all", f"{b['flops']:.3g}", f"{tokens} tokens"),
        ("one device", f"{b['device_seconds'] / DAY_SECONDS / 365:,.0f} years", "at its peak"),
        (f"{b['devices']:,} devices", f"{b['seconds'] / DAY_SECONDS:,.1f} days", f"at {100 * b['mfu']:g}% MFU"),
        ("weights", units.show(b['weights'], "bytes", digits=3), "2 bytes each"),
        ("optimizer", units.show(b['optimizer'], "bytes", digits=3), "8 bytes each: two float32 moments"),
        ("activation checkpoints", units.show(b['activations'], "bytes", digits=4), f"{b['checkpoints']} per layer and token, 2 B x width"),
        ("memory in all", size, ""),
        ("devices at least", few, f"{size} over {units.show(b['device_memory'], 'bytes')}; {b['least_seconds'] / DAY_SECONDS:,.0f} days"),
        ("memory per device", units.show(b['device_bytes'], "bytes", digits=2), f"on {b['devices']:,}"),
    ]  # fmt: skip
