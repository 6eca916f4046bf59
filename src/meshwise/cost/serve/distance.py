"""How uncertain a prediction is: the errors of its calibration, and the distance of the question from what that was fitted on."""

import math

from meshwise.catalogue.calibrations import ServeCalibration
from meshwise.catalogue.chips import Chip

SOURCE_STD = 0.04
"""Standard deviation of ln(predicted / measured) between machines with the same chip and engine: drivers, clocks, versions. Spreads of
calibrations that left whole sources or chips out contain it."""
EXPERTS_STD = 0.2  # for a model with experts, where only dense ones were fitted
UNMEASURED_PART_STD = 0.4
"""For unmeasured parts of a step: all-reduces, other hosts, layers in host memory (31 rows of localmaxxing_community: 0.40)."""
UNTESTED_SPLIT_STD = 0.15  # for a split of an engine that no row has
POOLS_STD = 0.25
"""For output tokens/s with pools for prompts, an assumption: 83 rows (disaggregated.csv), their model left out, are 15% off (median)."""
POOLS_RATIO = 1.5  # factor by which pools must win to stand first: the upper end of 90% at `POOLS_STD`


def distance(
    fitted: ServeCalibration, chip: Chip, *, experts: bool, unmeasured: float = 0.0, untested: bool = False, prefill: bool = False
) -> float:
    """Return the standard deviation of ln(predicted / measured)."""
    found = terms(fitted, chip, experts=experts, unmeasured=unmeasured, untested=untested, prefill=prefill)
    return math.hypot(*found.values())


def terms(
    fitted: ServeCalibration, chip: Chip, *, experts: bool, unmeasured: float = 0.0, untested: bool = False, prefill: bool = False
) -> dict[str, float]:
    """Return the causes of the standard deviation of ln(predicted / measured). `unmeasured`: the share of a step that no row of the fit
    has. The spread of a prior is that of chips without rows; the spread of a fit to one machine lacks what differs between machines."""
    return {
        "errors of the calibration": fitted.prefill_spread if prefill else fitted.spread,
        "machines of one kind": SOURCE_STD if fitted.shipped and is_of(fitted, chip) and not fitted.between_sources else 0.0,
        "experts, which it was not fitted to": EXPERTS_STD if experts and not fitted.experts else 0.0,
        "parts of a step that it was not fitted to": UNMEASURED_PART_STD * unmeasured,
        "a split that nobody measured": UNTESTED_SPLIT_STD if untested else 0.0,
    }


def is_of(fitted: ServeCalibration, chip: Chip) -> bool:
    """Return whether a calibration was fitted to rows of this chip or of its architecture."""
    return chip.key in fitted.chips or chip.architecture in fitted.architectures
