"""The timeline of a step as an SVG file: a row per stage, a box per operation, and the middle left out where it repeats itself."""

from collections.abc import Iterator
from dataclasses import dataclass
from html import escape

import numpy as np

from meshwise import units
from meshwise.cost.parts import TRAIN_WORDS
from meshwise.plan.train.timeline import COMPUTED, INNER_PARTS, STREAMS, Timeline, after
from meshwise.ui.views.svg.drawing import GRID, INK, document

WIDTH, LEFT, RIGHT, TOP = 1100, 70, 16, 66
BREAK_PIXELS = 26  # pixels between the two ends of a step whose middle is left out
MAX_MICRO_BATCHES_DRAWN = 26
"""The middle is left out if there are more micro-batches than this, not counting those that fill the pipeline."""
TONES = ("#8ec9f0", "#7fc29b", "#f2c14e")
"""Colours of forward, backward and weight-gradient passes."""
WAITS = {"tp": "#cc79a7", "cp": "#7a3db8", "ep": "#b00020", "p2p": "#5b5b5b"}
CLOSING = {"dp": "#d55e00", "offload": "#7a3db8", "optimizer": "#8a6d00", "fixed": "#9a9a9a"}
MIN_BOX_PIXELS = 0.2  # pixels below which a box is not visible
DIGIT_PIXELS = 6.5  # width of a digit in pixels


@dataclass(frozen=True)
class Window:
    """An interval of the step, in seconds, and where it is drawn, in pixels."""

    start: float
    end: float
    left: float
    right: float

    def x(self, seconds: float) -> float:
        share = (min(max(seconds, self.start), self.end) - self.start) / (self.end - self.start)
        return self.left + share * (self.right - self.left)


def gantt(timeline: Timeline, name: str) -> str:
    """Return the picture of a step; `name` is the layout in its title."""
    row = max(7.0, min(26.0, 560 / timeline.stages))
    bottom = TOP + row * timeline.stages
    lines = [*_title(timeline, name), *_axis(timeline, bottom)]
    for window in _windows(timeline):
        lines += _boxes(timeline, window, row)
    lines += [f'<path d="M{LEFT} {bottom:.1f}H{WIDTH - RIGHT}" stroke="{INK}"/>', *_stages(timeline, row)]
    return document(WIDTH, round(bottom + 90), [*lines, *_legend(timeline, bottom + 56)])


def _windows(timeline: Timeline) -> list[Window]:
    """Return one window for the whole step, or two for its beginning and its end."""
    total, slot = timeline.choice.step, timeline.pipeline / (timeline.microbatches + timeline.stages - 1)
    length = (timeline.stages + MAX_MICRO_BATCHES_DRAWN / 2) * slot
    tail = length + total - timeline.pipeline
    if length + tail > 0.9 * total:
        return [Window(0.0, total, LEFT, WIDTH - RIGHT)]
    middle = LEFT + (WIDTH - LEFT - RIGHT - BREAK_PIXELS) * length / (length + tail)
    return [Window(0.0, length, LEFT, middle), Window(total - tail, total, middle + BREAK_PIXELS, WIDTH - RIGHT)]


def _title(timeline: Timeline, name: str) -> list[str]:
    choice, bare = timeline.choice, name.removesuffix(f" {timeline.schedule}")
    idle = choice.time["bubble"] / choice.step
    words = f"{units.show(choice.step, 'seconds')} per step, {timeline.microbatches} micro-batches, bubble {100 * idle:.1f}%"
    return [
        f'<text x="{LEFT}" y="26" font-size="17" font-weight="600">{escape(f"{timeline.schedule}: {bare}")}</text>',
        f'<text x="{LEFT}" y="47">{escape(words)}</text>',
    ]


def _axis(timeline: Timeline, bottom: float) -> Iterator[str]:
    """Yield round numbers of seconds under each window, and an ellipsis where the middle is left out."""
    windows = _windows(timeline)
    step = _round((windows[0].end - windows[0].start) / (8 if len(windows) == 1 else 4))
    digits = max(0, -int(np.floor(np.log10(step))))
    for window in windows:
        for tick in np.arange(np.ceil(window.start / step), window.end / step) * step:
            x = window.x(float(tick))
            yield f'<path d="M{x:.1f} {TOP}V{bottom + 5:.1f}" stroke="{GRID}"/>'
            yield f'<text x="{x:.1f}" y="{bottom + 20:.1f}" text-anchor="middle">{tick:.{digits}f}</text>'
    yield f'<text x="{WIDTH - RIGHT}" y="{bottom + 36:.1f}" text-anchor="end">seconds</text>'
    for window in windows[1:]:
        x = window.left - BREAK_PIXELS / 2
        yield f'<text x="{x:.1f}" y="{(TOP + bottom) / 2:.1f}" text-anchor="middle" font-size="20">…</text>'


def _round(value: float) -> float:
    """Return 1, 2 or 5 times a power of ten, at least `value`."""
    power = 10.0 ** np.floor(np.log10(value))
    return float(next(step * power for step in (1, 2, 5, 10) if step * power >= value * 0.999))


def _stages(timeline: Timeline, row: float) -> Iterator[str]:
    every = int(np.ceil(14 / row))
    for stage in range(0, timeline.stages, every):
        yield f'<text x="{LEFT - 8}" y="{TOP + row * (stage + 0.5) + 4.5:.1f}" text-anchor="end">stage {stage}</text>'


def _boxes(timeline: Timeline, window: Window, row: float) -> list[str]:
    """Return the operations of a window. Boxes of one colour are one path, which takes a fraction of the bytes."""
    run, paths, texts = timeline.run, dict[tuple[str, float], list[str]](), list[str]()
    first, last = INNER_PARTS.index(COMPUTED[0]), INNER_PARTS.index(COMPUTED[-1]) + 1
    seen = (run.end > window.start) & (run.start < window.end)
    pieces = timeline.inside[:, run.kind, run.stage, run.chunk][:, seen]
    edges: list[list[float]] = (
        run.start[seen] + np.concatenate([np.zeros((1, int(seen.sum()))), np.cumsum(pieces, axis=0)])
    ).T.tolist()
    for (stage, what, chunk, microbatch), at in zip(run.rows(seen), edges, strict=True):
        y, tone = TOP + row * stage, (TONES[what], 1 - 0.55 * chunk / timeline.chunks)
        paths.setdefault(tone, []).append(_box(window, at[first], at[last], y, row))
        for i, part in enumerate(INNER_PARTS):
            if part in WAITS and window.x(at[i + 1]) - window.x(at[i]) > MIN_BOX_PIXELS:
                paths.setdefault((WAITS[part], 1.0), []).append(_box(window, at[i], at[i + 1], y, row))
        left, right = window.x(at[first]), window.x(at[last])
        if right - left >= DIGIT_PIXELS * len(str(microbatch)) + 1 and row >= 2 * DIGIT_PIXELS:
            texts.append(f'<text x="{(left + right) / 2:.1f}" y="{y + row / 2 + 4:.1f}">{microbatch}</text>')
    for part, start, end in after(timeline):
        if end > window.start:
            boxes = [_box(window, start, end, TOP + row * stage, row) for stage in range(timeline.stages)]
            paths.setdefault((CLOSING[part], 1.0), []).extend(boxes)
    drawn = [f'<path d="{"".join(d)}" fill="{colour}" fill-opacity="{opacity:.2g}"/>' for (colour, opacity), d in paths.items()]
    return [*drawn, '<g font-size="11" text-anchor="middle">', *texts, "</g>"]


def _box(window: Window, start: float, end: float, y: float, row: float) -> str:
    """Return the path of a rectangle with a thin white margin, unless it is too narrow for one."""
    left, right = window.x(start), window.x(end)
    gap = 0.5 if right - left > 2 else 0.0
    return f"M{left:.1f} {y + 0.7:.1f}H{right - gap:.1f}V{y + row - 0.7:.1f}H{left:.1f}z"


def _legend(timeline: Timeline, y: float) -> Iterator[str]:
    """Yield the legend of the colours that occur."""
    paler = " (paler: later model chunks)" if timeline.chunks > 1 else ""
    entries = [("forward", TONES[0]), (f"backward{paler}", TONES[1])]
    entries += [("gradients of weights", TONES[2])] if timeline.schedule == "zero-bubble" and timeline.stages > 1 else []
    parts = timeline.choice.time
    entries += [(STREAMS[part], colour) for part, colour in WAITS.items() if parts[part] > 0]
    entries += [(TRAIN_WORDS[part], colour) for part, colour in CLOSING.items() if parts[part] > 0]
    x = float(LEFT)
    for words, colour in entries:
        if x + 18 + 6.1 * len(words) > WIDTH - RIGHT:
            x, y = float(LEFT), y + 20
        yield f'<rect x="{x:.0f}" y="{y - 11:.0f}" width="13" height="13" fill="{colour}"/>'
        yield f'<text x="{x + 18:.0f}" y="{y:.0f}" font-size="12">{escape(words)}</text>'
        x += 34 + 6.1 * len(words)
