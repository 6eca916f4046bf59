"""Rates of a served model: whether of all requests or each, one device or all, with prompts or without."""

import math
import re

from meshwise.catalogue.engines import Runtime
from meshwise.cost.serve.load.requests import Lengths, Load
from meshwise.cost.work import Serve
from meshwise.errors import UserError
from meshwise.runs.run import Run, amount
from meshwise.runs.table import LIMITLESS

PER_DEVICE = re.compile(r"per[- ](?:gpu|device|card|chip)", re.IGNORECASE)
PER_USER = re.compile(r"per[- ](?:user|request|stream|sequence)|each (?:user|request|stream)", re.IGNORECASE)
DECODE_ONLY = re.compile(r"decode[- ]only|llama-bench|batched-bench|without (?:prompts|prefill)|\btg\d+", re.IGNORECASE)
BARE_PROGRAM = re.compile(r"llama-bench|batched-bench|\b(?:pp|tg)\d+", re.IGNORECASE)
"""Programs that time products without choosing tokens."""
REQUESTS = re.compile(r"(\d+)/(\d+) (\d+)")
DEPTH = re.compile(r"@ ?d(\d+)|\bdepth[ =](\d+)", re.IGNORECASE)


def length(run: Run, name: str) -> int:
    """Return a length in tokens, 0 where it is not stated."""
    value = amount(run, name)
    if not math.isnan(value) and not value < 2**40:
        raise UserError(f"{run.word(name)} is {value:g}, too long")
    return 0 if math.isnan(value) else round(value)


def is_most(run: Run) -> bool:
    """Return whether as many requests run as the engine admits: a concurrency of 'max', or all requests queued."""
    return run.text("users").strip().lower().startswith(LIMITLESS)


def users(run: Run) -> int:
    """Return the concurrent requests of a run; 1 where they are not stated or as many as fit."""
    if is_most(run):
        return 1
    value = amount(run, "users")
    if not math.isnan(value) and (value >= 2**31 or value != int(value)):
        raise UserError(f"{run.word('users')} is {value:g}, not a whole number")
    return 1 if math.isnan(value) else max(1, int(value))


def depth(run: Run) -> int:
    """Return the cached tokens before the prompt: the field 'depth', or 'pp512 @ d32768' in the note."""
    value = amount(run, "depth")
    noted = DEPTH.search(run.text("note"))
    return round(value) if not math.isnan(value) else int(noted[1] or noted[2]) if noted else 0


def output_rate(run: Run, users: int, devices: int) -> float:
    """Return output tokens per second of all requests on all devices, whatever `rate_of` says they are counted for."""
    value = amount(run, "decode")
    if math.isnan(value):
        return amount(run, "each") * users
    words = run.text("rate_of")
    if PER_DEVICE.search(words):
        return value * devices
    return value * users if PER_USER.search(words) and not re.search(r"\btotal\b", words, re.IGNORECASE) else value


def load_of(run: Run, work: Serve, runtime: Runtime) -> Load | None:
    """Return the load under which the output rate was measured with prompts counted; None where it is of decode steps alone."""
    most, note = is_most(run), run.text("note")
    rate = amount(run, "rate")
    alone = work.users == 1 and not most and math.isnan(rate)
    if (
        alone
        or not work.prompt
        or not work.output
        or not runtime.continuous
        or DECODE_ONLY.search(f"{run.text('rate_of')} {note}")
    ):
        return None
    listed = {(int(a), int(b)): int(c) for a, b, c in REQUESTS.findall(note)}
    number = amount(run, "requests")
    requests = int(number) if not math.isnan(number) else listed.get((work.prompt, work.output), 0)
    draft, accept, prefix = (amount(run, name) for name in ("draft", "accept", "prefix"))
    spreads = (amount(run, name) for name in ("prompt_spread", "output_spread"))
    prompt_spread, output_spread = (0.0 if math.isnan(value) else value for value in spreads)
    return Load(
        prompt=Lengths(work.prompt, prompt_spread), output=Lengths(work.output, output_spread),
        users=0 if most or not math.isnan(rate) else work.users, rate=0.0 if math.isnan(rate) else rate, requests=requests,
        depth=work.depth, prefix=0.0 if math.isnan(prefix) else prefix, draft=0 if math.isnan(draft) else int(draft),
        accept=0.0 if math.isnan(accept) else accept,
    )  # fmt: skip
