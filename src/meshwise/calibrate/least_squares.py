"""Least squares between bounds: what fits use of an optimizer, on numpy alone."""

from collections.abc import Callable

import numpy as np

from meshwise.cost.layout import Floats

FIRST_DAMPING, MOST_DAMPING, SLOPE_STEP = 1e-3, 1e9, 1e-3  # SLOPE_STEP: change of an unknown for slopes, in its widths
LEAST_GAIN_SHARE = 1e-6  # share of the sum of squares that a step must remove for another to follow


def bounded_step(curvature: Floats, pull: Floats, least: Floats, most: Floats) -> Floats:
    """Return the x between `least` <= 0 and `most` >= 0 that minimizes x'Cx/2 - pull'x, by an active set (Nocedal and Wright 2006, 16.5):
    from 0, towards the minimum over all that is free, up to the first bound, which holds until the slope leads away from it."""
    x, side = np.zeros(len(pull)), np.zeros(len(pull))  # side: 1 where held at `most`, -1 at `least`
    while True:
        free, aim = side == 0, x.copy()
        aim[free] = np.linalg.solve(curvature[np.ix_(free, free)], pull[free] - curvature[np.ix_(free, ~free)] @ x[~free])
        bound = np.clip(aim, least, most)
        over = np.flatnonzero(aim != bound)
        if len(over):
            shares = (bound - x)[over] / (aim - x)[over]
            first = over[np.argmin(shares)]
            x = x + min(shares) * (aim - x)
            x[first], side[first] = bound[first], np.sign(aim[first] - bound[first])
            continue
        inward = side * (curvature @ aim - pull)
        if np.max(inward, initial=0.0) <= 1e-10 * np.max(np.abs(pull), initial=0.0):
            return aim
        x, side[np.argmax(inward)] = aim, 0.0


def minimize(
    residuals: Callable[[Floats], Floats], start: Floats, least: Floats, most: Floats, width: Floats, rounds: int = 100
) -> tuple[Floats, float]:
    """Return the unknowns with the least sum of squared residuals between bounds, and half that sum: Levenberg-Marquardt steps from
    `start`. `width` is the size of a change in each that matters."""
    x = np.minimum(np.maximum(start, least), most)
    at, damping = residuals(x), FIRST_DAMPING
    for _ in range(rounds):
        steps = np.where(x + SLOPE_STEP * width <= most, SLOPE_STEP, -SLOPE_STEP) * width
        slopes = np.array([(residuals(x + step) - at) / step[i] for i, step in enumerate(np.diag(steps))]).T
        curvature, pull, before = slopes.T @ slopes, -slopes.T @ at, at @ at
        while damping < MOST_DAMPING:
            move = bounded_step(curvature + damping * np.diag(np.diag(curvature)), pull, least - x, most - x)
            aim = np.minimum(np.maximum(x + move, least), most)
            reached = residuals(aim)
            if reached @ reached < before:
                x, at, damping = aim, reached, damping / 10
                break
            damping *= 10
        if before - at @ at <= LEAST_GAIN_SHARE * before:
            break
    return x, float(at @ at) / 2
