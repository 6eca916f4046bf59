"""Predicted against measured as an SVG file: both axes logarithmic, the diagonal, and a band of 10% on either side."""

import math
import re
from collections.abc import Callable, Sequence
from html import escape
from typing import NamedTuple

from meshwise.calibrate.train.score import near_best
from meshwise.calibrate.train.validate import TrainValidation
from meshwise.runs.train.case import Case
from meshwise.ui.views.svg.drawing import COLOURS, GRID, INK, document

WIDTH, HEIGHT = 720, 540
LEFT, RIGHT, TOP, BOTTOM = 74, 184, 64, 56  # room for the labels of the axes, the legend, and the title
BAND_SHARE = 0.10
STEPS = (
    (1,), (1, 3), (1, 2, 5), (1, 1.5, 2, 3, 4, 5, 7), tuple(n / 5 for n in range(5, 50)),
    tuple(n / 20 for n in range(20, 200)),
)  # fmt: skip
"""Ticks within a power of ten; the first set that gives TICKS of them is used."""
TICKS = 4


def scatter(validation: TrainValidation) -> str:
    """Return a picture with one dot per timed run, coloured by the column that tells the runs apart."""
    close = set(near_best(validation.cases))
    rows = [i for i, case in enumerate(validation.cases) if case.timed]
    predicted = validation.predicted.seconds.tolist()
    values = [value for i in rows for value in (validation.cases[i].seconds, predicted[i])] or [1.0]
    scale = Scale.over(min(values), max(values))
    label = _label([validation.cases[i] for i in rows])
    series: dict[str, list[Dot]] = {}
    for i in sorted(rows, key=lambda i: _natural(label(validation.cases[i]))):
        series.setdefault(label(validation.cases[i]), []).append(Dot(validation.cases[i].seconds, predicted[i], i in close))
    return document(WIDTH, HEIGHT, [*_title(validation), *_axes(scale), *_dots(series, scale)])


class Dot(NamedTuple):
    measured: float
    predicted: float
    near: bool  # whether it is within a factor of 2 of the best run of its group


class Scale:
    """Converts seconds to pixels, with the same range on both axes."""

    def __init__(self, low: float, high: float) -> None:
        self.low, self.high = math.log10(low), math.log10(high)

    @staticmethod
    def over(low: float, high: float) -> "Scale":
        """Return a scale a little wider than the values, and at least a factor of 1.5 wide."""
        room = max(0.06 * math.log10(high / low), math.log10(1.5) / 2 - math.log10(high / low) / 2, 0.02)
        return Scale(low / 10**room, high * 10**room)

    def share(self, seconds: float) -> float:
        return (math.log10(seconds) - self.low) / (self.high - self.low)

    def x(self, seconds: float) -> float:
        return LEFT + self.share(seconds) * (WIDTH - LEFT - RIGHT)

    def y(self, seconds: float) -> float:
        return HEIGHT - BOTTOM - self.share(seconds) * (HEIGHT - TOP - BOTTOM)

    @property
    def ends(self) -> tuple[float, float]:
        return 10**self.low, 10**self.high

    def ticks(self) -> list[float]:
        """Return round numbers, at least TICKS of them where possible."""
        powers = range(math.floor(self.low) - 1, math.ceil(self.high) + 1)
        low, high = self.ends
        ticks: list[float] = []
        for steps in STEPS:
            ticks = [value for power in powers for step in steps if low <= (value := step * 10.0**power) <= high]
            if len(ticks) >= TICKS:
                break
        return ticks


def _title(validation: TrainValidation) -> list[str]:
    time = validation.score["time"]
    words = [f"{validation.score['timed_rows']} runs"]
    if time["mape"] is not None:
        same = abs(time["mape"] - time["mape_near"]) < 0.001
        words.append(
            f"mean error {100 * time['mape']:.1f}%" + ("" if same else f" ({100 * time['mape_near']:.1f}% within 2x of the best)")
        )
    words += [f"rank correlation {time['spearman']:.3f}"] if time["spearman"] is not None else []
    return [
        f'<text x="{LEFT}" y="26" font-size="17" font-weight="600">{escape(validation.table)}: seconds per step</text>',
        f'<text x="{LEFT}" y="47">{escape(", ".join(words))}</text>',
        f'<text x="{WIDTH - 12}" y="{HEIGHT - 14}" text-anchor="end" font-size="12">{escape(_provenance(validation))}</text>',
    ]


def _provenance(validation: TrainValidation) -> str:
    left = validation.score.get("left_out")
    return f"each {left} predicted by a fit without it" if left else f"calibration: {validation.score['calibration']}"


def _axes(scale: Scale) -> list[str]:
    low, high = scale.ends
    x0, x1, y0, y1 = LEFT, WIDTH - RIGHT, HEIGHT - BOTTOM, TOP
    corners = [
        (low, low * (1 - BAND_SHARE)),
        (high, high * (1 - BAND_SHARE)),
        (high, high * (1 + BAND_SHARE)),
        (low, low * (1 + BAND_SHARE)),
    ]
    band = " ".join(f"{scale.x(a):.1f},{scale.y(b):.1f}" for a, b in corners)
    lines = [
        f'<clipPath id="frame"><rect x="{x0}" y="{y1}" width="{x1 - x0}" height="{y0 - y1}"/></clipPath>',
        f'<g stroke="{GRID}">',
        *(f'<path d="M{scale.x(t):.1f} {y0}V{y1}M{x0} {scale.y(t):.1f}H{x1}"/>' for t in scale.ticks()),
        "</g>",
        f'<polygon points="{band}" fill="#9a9a9a" fill-opacity="0.25" clip-path="url(#frame)"/>',
        f'<path d="M{x0} {y0}L{x1} {y1}" stroke="#555555" stroke-dasharray="5 4"/>',
        f'<rect x="{x0}" y="{y1}" width="{x1 - x0}" height="{y0 - y1}" fill="none" stroke="{INK}"/>',
    ]
    for tick in scale.ticks():
        lines.append(f'<text x="{scale.x(tick):.1f}" y="{y0 + 18}" text-anchor="middle">{tick:g}</text>')
        lines.append(f'<text x="{x0 - 8}" y="{scale.y(tick) + 4.5:.1f}" text-anchor="end">{tick:g}</text>')
    middle = (y0 + y1) / 2
    lines.append(f'<text x="{(x0 + x1) / 2}" y="{HEIGHT - 14}" text-anchor="middle">measured, s</text>')
    lines.append(f'<text x="20" y="{middle}" text-anchor="middle" transform="rotate(-90 20 {middle})">predicted, s</text>')
    return lines


def _dots(series: dict[str, list[Dot]], scale: Scale) -> list[str]:
    """Return dots as round ends of lines without length, which take a sixth of the bytes of circles. Runs far from the best are faint."""
    many = sum(map(len, series.values()))
    size = 7 if many <= 100 else 5 if many <= 500 else 3.5
    lines: list[str] = []
    entries: list[tuple[str, str]] = []
    for i, (name, dots) in enumerate(series.items()):
        colour = COLOURS[i % len(COLOURS)]
        for opacity, close in ((0.25, False), (0.75, True)):
            where = "".join(f"M{scale.x(d.measured):.1f} {scale.y(d.predicted):.1f}h0" for d in dots if d.near == close)
            style = f'stroke="{colour}" stroke-opacity="{opacity}" stroke-width="{size}" stroke-linecap="round"'
            lines += [f'<path d="{where}" {style}/>'] if where else []
        if len(series) > 1:
            entries.append((name, f'<path d="M0 0h0" stroke="{colour}" stroke-width="9" stroke-linecap="round"/>'))
    if any(not dot.near for dots in series.values() for dot in dots):
        faint = '<path d="M0 0h0" stroke="#555555" stroke-opacity="0.35" stroke-width="9" stroke-linecap="round"/>'
        entries.append(("2x the best, or more", faint))
    entries.append(
        (f"within {100 * BAND_SHARE:.0f}%", '<rect x="-6" y="-5" width="12" height="10" fill="#9a9a9a" fill-opacity="0.35"/>')
    )
    for i, (name, mark) in enumerate(entries):
        lines.append(
            f'<g transform="translate({WIDTH - RIGHT + 18} {TOP + 12 + 20 * i})">{mark}<text x="12" y="4.5">{escape(name)}</text></g>'
        )
    return lines


def _label(cases: Sequence[Case]) -> Callable[[Case], str]:
    """Return the function that labels a run for its colour: the finest one with few enough values to tell apart."""
    choices: list[Callable[[Case], str]] = [
        lambda case: case.date,
        lambda case: f"{_billions(case)}, {case.cluster.devices} devices",
        _billions,
        lambda case: f"{case.model.decoder.hidden} wide, tp {case.layout['tp']}",
        lambda case: f"tp {case.layout['tp']}, pp {case.layout['pp']}",
        lambda case: f"{case.cluster.devices} devices",
    ]
    for choice in choices:
        if 2 <= len({choice(case) for case in cases}) <= len(COLOURS):
            return choice
    return lambda case: ""


def _billions(case: Case) -> str:
    billions = case.model.params / 1e9
    return f"{billions:.3g}B" if billions < 1000 else f"{billions:.0f}B"


def _natural(text: str) -> list[tuple[float, str]]:
    """Return a key that puts '8 devices' before '64 devices'."""
    return [(float(number), rest) for number, rest in re.findall(r"(\d+\.?\d*)?([^\d]*)", text) if number] or [(0.0, text)]
