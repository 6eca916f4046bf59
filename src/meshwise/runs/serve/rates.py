"""The meaning of columns about load and rates in a table of served models: all requests or each, one device or all, with prompts or
without."""

import math
import re

from meshwise.catalogue.engines import Runtime
from meshwise.cost.serve.load.requests import Lengths, Load
from meshwise.cost.work import Serve
from meshwise.errors import UserError, quoted
from meshwise.runs.table import Row

RANGE = re.compile(r"^\s*([\d.,]+)\s*(?:-|–|\.\.|to)\s*([\d.,]+)\s*$")
PER_DEVICE = re.compile(r"per[- ](?:gpu|device|card|chip)", re.IGNORECASE)
PER_USER = re.compile(r"per[- ](?:user|request|stream|sequence)|each (?:user|request|stream)", re.IGNORECASE)
DECODE_ONLY = re.compile(r"decode[- ]only|llama-bench|batched-bench|without (?:prompts|prefill)|\btg\d+", re.IGNORECASE)
REQUESTS = re.compile(r"(\d+)/(\d+) (\d+)")
DEPTH = re.compile(r"@ ?d(\d+)|\bdepth[ =](\d+)", re.IGNORECASE)


def stated(row: Row, *columns: str) -> float:
    """Return the first number in these columns; the middle of a range such as '40-50'; NaN where none is stated."""
    for column in columns:
        text = row.get(column, "").replace("~", "").strip()
        if not text:
            continue
        ends = RANGE.match(text)
        try:
            values = [float(end.replace(",", "")) for end in (ends.groups() if ends else (text,))]
        except ValueError:
            raise UserError(f"{column} is {quoted(row[column])}, not a number") from None
        value = sum(values) / len(values)
        if value < 0 or math.isinf(value):
            raise UserError(f"{column} is {quoted(row[column])}; expected a number of zero or more")
        return value
    return math.nan


def length(row: Row, column: str) -> int:
    """Return a length in tokens, 0 where it is not stated."""
    value = stated(row, column)
    if not math.isnan(value) and not value < 2**40:
        raise UserError(f"{column} is {value:g}, too long")
    return 0 if math.isnan(value) else round(value)


def is_most(row: Row) -> bool:
    """Return whether as many requests run as the engine admits: a concurrency of 'max', or all requests queued."""
    return row.get("batch_or_concurrency", "").strip().lower().startswith(("max", "all", "inf"))


def users(row: Row) -> int:
    """Return the concurrent requests of a row; 1 where they are not stated or as many as fit."""
    if is_most(row):
        return 1
    value = stated(row, "batch_or_concurrency", "n_seq")
    if not math.isnan(value) and (value >= 2**31 or value != int(value)):
        raise UserError(f"batch_or_concurrency is {value:g}, not a whole number")
    return 1 if math.isnan(value) else max(1, int(value))


def depth(row: Row) -> int:
    """Return the cached tokens before the prompt: the column 'depth', or 'pp512 @ d32768' in the note."""
    value = stated(row, "depth")
    noted = DEPTH.search(row.get("note", ""))
    return round(value) if not math.isnan(value) else int(noted[1] or noted[2]) if noted else 0


def output_rate(row: Row, users: int, devices: int) -> float:
    """Return output tokens per second of all requests on all devices, whatever the row states them for."""
    value = stated(row, "decode_tok_s")
    if math.isnan(value):
        each = stated(row, "tok_s_per_user")
        return each * users
    words = f"{row.get('rate_of', '')} {row.get('note', '')}"
    if PER_DEVICE.search(words):
        return value * devices
    return value * users if PER_USER.search(words) and not re.search(r"\btotal\b", words, re.IGNORECASE) else value


def load_of(row: Row, work: Serve, runtime: Runtime) -> Load | None:
    """Return the load under which the output rate was measured with prompts counted; None where it is of decode steps alone: one request,
    an engine that starts all requests together, or a benchmark that times decoding by itself."""
    most, note = is_most(row), row.get("note", "")
    rate = stated(row, "requests_per_s", "rate")
    alone = work.users == 1 and not most and math.isnan(rate)
    if (
        alone
        or not work.prompt
        or not work.output
        or not runtime.continuous
        or DECODE_ONLY.search(f"{row.get('rate_of', '')} {note}")
    ):
        return None
    listed = {(int(a), int(b)): int(c) for a, b, c in REQUESTS.findall(note)}
    number = stated(row, "n_requests")
    requests = int(number) if not math.isnan(number) else listed.get((work.prompt, work.output), 0)
    draft, accept, prefix = (stated(row, column) for column in ("draft", "accept", "prefix"))
    return Load(
        prompt=Lengths(work.prompt),
        output=Lengths(work.output),
        users=0 if most or not math.isnan(rate) else work.users,
        rate=0.0 if math.isnan(rate) else rate,
        requests=requests if most else 0,
        depth=work.depth,
        prefix=0.0 if math.isnan(prefix) else prefix,
        draft=0 if math.isnan(draft) else int(draft),
        accept=0.0 if math.isnan(accept) else accept,
    )
