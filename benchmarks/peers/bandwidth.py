"""The rule of thumb for decoding one request: every token reads the weights once, at the bandwidth of the devices that work at once."""

from meshwise.runs.serve.case import ServeCase


def decode(case: ServeCase) -> float | None:
    """Return tokens per second: bandwidth / bytes of the weights that a token uses. Devices that each hold layers work one after the other,
    those of a tensor-parallel group at once. None for several requests, for which the rule says nothing, and for layers on a host."""
    if case.work.users > 1 or case.load is not None or not case.rig.chips or not case.fits:
        return None
    together = max(1, case.placement.tp)
    active = float(case.model.active_params) / float(case.model.params)
    return together * min(chip.bandwidth for chip in case.rig.chips) / (case.weights.bytes * active)
