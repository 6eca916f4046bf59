"""How uncertain a prediction is: the errors of its calibration, and the distance of the question from what that was fitted on."""

import math

from meshwise.catalogue.calibrations import ServeCalibration
from meshwise.catalogue.chips import Chip

SOURCE = 0.05
"""Standard deviation of ln(predicted / measured) between machines with the same chip and engine: drivers, clocks, versions."""
OTHER_CHIP = 0.1
"""For a chip that no row of the fit has, in addition to the spread of its prior."""
EXPERTS = 0.2
"""For a model with experts, where only dense ones were fitted."""
UNSURE = 0.3
"""For unmeasured parts of a step: all-reduces, other hosts, layers in host memory."""
UNTESTED = 0.15
"""For a split of an engine that no row has."""


def distance(
    fitted: ServeCalibration, chip: Chip, *, experts: bool, unmeasured: float = 0.0, untested: bool = False, prefill: bool = False
) -> float:
    """Return the standard deviation of ln(predicted / measured). `unmeasured`: the share of a step that no row of the fit has."""
    own = chip.key in fitted.chips or chip.architecture in fitted.architectures
    terms = [
        fitted.prefill_spread if prefill else fitted.spread,
        SOURCE if fitted.shipped else 0.0,
        0.0 if own else OTHER_CHIP,
        EXPERTS if experts and not fitted.experts else 0.0,
        UNSURE * unmeasured,
        UNTESTED if untested else 0.0,
    ]
    return math.hypot(*terms)
