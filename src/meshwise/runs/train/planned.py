"""The run that a layout of a plan describes, before anything is measured."""

from collections.abc import Mapping

from meshwise.cost.axes import NAMES
from meshwise.cost.layout import Layouts
from meshwise.cost.train.question import Question
from meshwise.runs.run import Run, Value


def planned(q: Question, layout: Mapping[str, int | str], model: str = "", cluster: str = "") -> Run:
    """Return one layout of a question as a run. `model` and `cluster`: their names in the words of the question."""
    d, axes = q.model.decoder, Layouts.from_row(layout)
    sharded, replicated = int(layout["dp_shard"]), int(layout["dp_replicate"])
    told: dict[str, Value] = {
        "model": model or q.model.name, "params": q.model.params, "layers": d.layers, "hidden": d.hidden, "ffn": d.ffn,
        "heads": d.heads, "kv_heads": d.kv_heads, "vocab": d.vocab, "seq": q.work.seq, "chip": q.chip.key, "cluster": cluster,
        "devices": int(axes.devices[0]), "devices_per_node": q.cluster.node.devices, "framework": q.work.framework.key,
        "precision": q.work.precision, "dp": sharded * replicated,
        **{axis: layout[axis] for axis in NAMES if axis != "dp_replicate"},
        "sharding": "hsdp" if replicated > 1 and sharded > 1 else "fsdp" if sharded > 1 else "ddp", "batch": int(q.work.batch),
        "sp": bool(layout["sp"]), "compile": q.work.compiled,
    }  # fmt: skip
    return Run.told("", told)
