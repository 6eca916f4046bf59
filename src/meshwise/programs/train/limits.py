"""Limits of programs: the values that each axis may have, and the nearest layout within them."""

from collections.abc import Iterator, Sequence

from meshwise.cost.axes import BY_NAME
from meshwise.programs.program import Refusal, Setup
from meshwise.runs.fields import BY_NAME as FACTS
from meshwise.runs.run import Value

Limits = dict[str, tuple[Value, ...]]
"""Values that a program can say, by axis or fact; an axis that is missing here may have any value."""
NO_PIPELINE: Limits = {"pp": (1,), "vpp": (1,), "schedule": ("1f1b",)}
NO_EXPERTS: Limits = {"ep": (1,)}
TRANSFORMERS: Limits = {
    **NO_PIPELINE, **NO_EXPERTS, "recompute": ("none", "full"), "precision": ("bf16", "fp16"),
    "offload": ("none", "optimizer", "parameters"),
    "optimizer": ("adamw", "adamw-8bit", "adamw-paged", "adamw-paged-8bit", "adafactor", "galore", "lomo", "sgd"),
    "loss": ("", "fused"),
}  # fmt: skip
"""Limits of programs on transformers' models."""
MORE_RECOMPUTE = {"selective": "full", "mlp": "full", "minimal": "full", "save_qkv_proj": "full", "save_out_proj": "full"}
"""The nearest way that recomputes at least as much; layernorm and moe_act save so little that no recomputation is nearer."""


def limited(setup: Setup, title: str, limits: Limits) -> Iterator[Refusal]:
    """Yield a refusal for each fact of a plan whose value is not within the limits."""
    for name, allowed in limits.items():
        value = setup.values.get(name)
        if value is None or value in allowed:
            continue
        if name == "zero" and setup.whole("dp_shard") * setup.whole("cp") == 1:
            continue  # nothing is sharded, whatever the stage
        yield Refusal(_why(title, name, value), {name: _nearest(name, value, allowed)})


def offload_needs_shards(setup: Setup, title: str) -> Iterator[Refusal]:
    """Yield a refusal where something is offloaded that is not sharded: only ZeRO's own optimizers and weights can be."""
    offload, zero = setup.text("offload", "none"), setup.whole("zero", 0)
    least = {"optimizer": 1, "parameters": 3}.get(offload, 0)
    if zero < least:
        yield Refusal(f"{title} offloads {offload} only with ZeRO {least}", {"offload": "none"})


def _why(title: str, name: str, value: Value) -> str:
    degrees = {"pp": "pipeline", "vpp": "interleaved pipeline"}
    degrees |= {"cp": "context parallelism", "ep": "expert parallelism", "tp": "tensor parallelism"}
    words = {axis: f"has no {what} ({axis} {value})" for axis, what in degrees.items()} | {
        "zero": f"has no ZeRO {value}", "recompute": f"cannot recompute {value}" if value != "none" else "always recomputes",
        "offload": f"cannot offload {value}", "schedule": f"has no {value} schedule", "precision": f"has no precision {value}",
        "optimizer": f"has no optimizer {value}", "loss": f"has no {value} loss",
        "compile": "does not compile layers" if value else "always compiles layers",
        "sp": f"{'has no' if value else 'always uses'} sequence parallelism",
    }  # fmt: skip
    known = FACTS[name].help if name in FACTS else name
    return f"{title} {words.get(name, f'cannot say {name} {value} ({known})')}"


def _nearest(name: str, value: Value, allowed: Sequence[Value]) -> int | str:
    """Return the nearest allowed value: what recomputes or shards at least as much, so that it still fits."""
    if name in BY_NAME and not BY_NAME[name].values and all(isinstance(one, int) for one in allowed):
        numbers = sorted(int(one) for one in allowed if isinstance(one, int))
        above = [one for one in numbers if isinstance(value, int) and one >= value]
        return above[0] if above else numbers[-1]
    more = MORE_RECOMPUTE.get(str(value))
    choice = more if more in allowed else allowed[0]
    return choice if isinstance(choice, int | str) else str(choice)
