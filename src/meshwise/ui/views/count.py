"""A budget on a terminal: the steps of the arithmetic, each with its numbers."""

from rich import box
from rich.table import Table

from meshwise import units
from meshwise.plan.budget import Budget

DAY = 86400.0


def budget_table(name: str, cluster: str, b: Budget) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
    for column in (f"{name} on {cluster}", "", "how"):
        table.add_column(column, justify="right" if not column else "left")
    for row in _rows(b):
        table.add_row(*row)
    return table


def _rows(b: Budget) -> list[tuple[str, str, str]]:
    tokens, few, size = units.show(b.tokens, "count"), f"{b.least_devices:,}", units.show(b.memory, "bytes")
    return [
        ("FLOPs per token", f"{b.flops_per_token:.3g}", "6 per active parameter"),
        ("one token on one device", units.show(b.token_seconds, "seconds", digits=3), "at its peak"),
        ("FLOPs in all", f"{b.flops:.3g}", f"{tokens} tokens"),
        ("one device", f"{b.device_seconds / DAY / 365:,.0f} years", "at its peak"),
        (f"{b.devices:,} devices", f"{b.seconds / DAY:,.1f} days", f"at {100 * b.mfu:g}% MFU"),
        ("weights", units.show(b.weights, "bytes", digits=3), "2 bytes each"),
        ("optimizer", units.show(b.optimizer, "bytes", digits=3), "8 bytes each: two float32 moments"),
        ("checkpoints", units.show(b.activations, "bytes", digits=4), f"{b.checkpoints} per layer and token of a batch, 2 bytes x width"),
        ("memory in all", size, ""),
        ("devices at least", few, f"{size} over {units.show(b.device_memory, 'bytes')}; they would take {b.least_seconds / DAY:,.0f} days"),
        ("memory per device", units.show(b.device_bytes, "bytes", digits=2), f"on {b.devices:,}"),
    ]  # fmt: skip
