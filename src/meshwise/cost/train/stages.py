"""Layers of each pipeline stage."""

import numpy as np

from meshwise.cost.layout import Floats, Ints, Layouts
from meshwise.cost.train.question import Question


def stage_layers(q: Question, a: Layouts) -> tuple[Floats, Floats]:
    """Return the layers of the fullest stage and of the last, which has the head. All stages are equal where pp divides the layers.
    Otherwise the embedding and the head count as a layer each, and the last stage has the remainder: 61 layers over 16 stages are 3,
    fourteen times 4, and 2. Where the framework balances stages by FLOPs, the head counts as many layers as its FLOPs are worth: 16
    layers and a head worth 4 over 2 stages are 10 and 6."""
    middle = layers_before(q, a, np.ones(1)) if q.work.framework.balances_stages else _middle_layers(q, a)[0]
    return middle, q.model.decoder.layers - layers_before(q, a, a.pp - 1)


def _middle_layers(q: Question, a: Layouts) -> tuple[Floats, Ints]:
    """Return the layers of a stage between the first and the last, and whether all stages have that many."""
    each = q.model.decoder.layers / a.pp
    even = each == np.floor(each)
    return np.where(even, each, np.ceil((q.model.decoder.layers + 2) / a.pp)), even


def layers_before(q: Question, a: Layouts, stage: Floats) -> Floats:
    """Return the number of layers on stages 0 to `stage` - 1. Stage s has layers_before(s + 1) - layers_before(s) of them."""
    layers = q.model.decoder.layers
    if q.work.framework.balances_stages:
        inner = sum(op.flops(1) for block, op in q.model.placed if block not in ("embedding", "head"))
        head = sum(op.flops(1) for block, op in q.model.placed if block == "head") * layers / inner
        return np.minimum(layers, np.ceil(stage * ((layers + head) / a.pp)))
    each, even = _middle_layers(q, a)
    return np.where(stage < a.pp, stage * each - (~even & (stage > 0)), layers)
