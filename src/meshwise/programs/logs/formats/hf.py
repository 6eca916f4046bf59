"""HF Trainer, with or without accelerate: the dicts it prints, its summary before training, the progress bar, and trainer_state.json."""

import re
from collections.abc import Iterable, Iterator

from meshwise.programs.logs.arguments import Recipe, read_arguments, read_release
from meshwise.programs.logs.lines import Line
from meshwise.programs.logs.series import Series
from meshwise.runs.numbers import amount, number_or_nan
from meshwise.runs.reading import Reading

name = "hf-trainer"
order = 70  # after deepspeed, whose lines hold more figures where the Trainer uses it
_KEY = re.compile(
    r"""['"]([A-Za-z_][\w/]*)['"]\s*:\s*['"]?([+-]?(?:nan|inf|[\d.]+(?:e[+-]?\d+)?))['"]?\s*(?=[,}]|$)""", re.IGNORECASE
)
_BANNER = re.compile(r"^\s*(?:\[INFO\S*.*?\]\s*>>)?\s*([A-Z][\w .,&()-]+?)\s*=\s*([\d,]+)\s*$")
_BANNERS = {
    "instantaneous batch size per device": "per_device_batch",
    "total train batch size (w. parallel, distributed & accumulation)": "batch",
    "gradient accumulation steps": "accumulation",
    "number of trainable parameters": "params",
}
_BAR = re.compile(r"(\d+)/(\d+) \[[\d:]+<[\d:?]+,\s*([\d.]+)\s*(it/s|s/it)\]")
MAX_ARGUMENT_CHARS = 2000  # characters of a line that may hold arguments
MAX_OBJECT_CHARS = 1 << 15  # characters kept of one object


def matches(head: str) -> bool:
    return ('"log_history"' in head or "'train_runtime'" in head or '"train_runtime"' in head) or bool(
        re.search(r"\{'loss':.*'epoch':", head)
    )


def objects(lines: Iterable[Line], series: Series, recipe: Recipe) -> Iterator[tuple[Line, str]]:
    """Yield flat objects, also over several lines; lines outside of objects are read as facts of the series."""
    held, start = "", None
    for line in lines:
        text = line.text
        opened = text.rfind("{")
        if start is None and opened < 0:
            _read_fact(series, text)
            if "=" in text and len(text) < MAX_ARGUMENT_CHARS:
                recipe.read(text)
            continue
        if start is None or (opened >= 0 and "}" not in text[:opened]):
            held, start = "", line  # an inner object starts: drop the keys of the outer one read so far
            text = text[opened:]
        held += text + " "
        if "}" in text or len(held) > MAX_OBJECT_CHARS:
            yield start, held
            held, start = "", None
    if start is not None:
        yield start._replace(cut=True), held


def read(lines: Iterable[Line]) -> Reading:
    reading = Reading(name)
    series = Series(reading, "HF Trainer")
    count, summary, recipe = 0, dict[str, float](), Recipe("trainer", "liger")
    for line, text in objects(lines, series, recipe):
        if "transformers_version" in text:
            read_release(series, text, "transformers")
        values = {key: number_or_nan(value) for key, value in _KEY.findall(text)}
        if "train_runtime" in values and "}" in text:
            summary = values
        elif "loss" in values and ("epoch" in values or "step" in values or "learning_rate" in values):
            if "}" not in text:
                reading.skipped.add("a dict cut off", f"line {line.number}")
                continue
            count += 1
            recipe.tell(series)
            series.step(values.get("step", float(count)), f"line {line.number}", {"loss": values["loss"]})
        elif "}" not in text and "loss" in text:
            reading.skipped.add("a dict cut off", f"line {line.number}")
    recipe.tell(series)
    _add_summary(series, summary)
    series.flush()
    return reading


def _add_summary(series: Series, summary: dict[str, float]) -> None:
    """Add the rates of the Trainer's summary, which cover the whole run with its first steps."""
    if not summary:
        return
    if not series.steps:
        series.step(0, "the summary", {})
    steps, samples, tokens = (summary.get(f"train_{what}_per_second", 0.0) for what in ("steps", "samples", "tokens"))
    # The Trainer prints three decimals: 0.004 steps a second is too coarse to check a step time against.
    if steps >= 0.5:
        series.samples["seconds"].add(1 / steps)
        series.rough.add("seconds")
    if samples:
        series.samples["samples_per_second"].add(samples)
    if tokens:
        series.samples["tokens_per_second"].add(tokens)


def _read_fact(series: Series, text: str) -> None:
    """Read a line outside of objects: the summary before training, a progress bar, or arguments."""
    banner = _BANNER.match(text)
    known = _BANNERS.get(banner[1].strip().lower()) if banner else None
    if banner and known and (number := amount(banner[2], "count")):
        series.fact(known, number.value)
        return
    bar = _BAR.search(text)
    pace = number_or_nan(bar[3]) if bar else 0.0
    if bar and pace > 0:
        series.samples["seconds"].add(pace if bar[4] == "s/it" else 1 / pace)
        series.rough.add("seconds")
        return
    state = re.match(r'\s*"(train_batch_size|num_train_epochs)"\s*:\s*(\d+)', text)
    if state and state[1] == "train_batch_size":
        series.fact("per_device_batch", float(state[2]))
    elif "=" in text and len(text) < MAX_ARGUMENT_CHARS:
        read_arguments(series, text)
    if "transformers" in text:
        read_release(series, text, "transformers")
