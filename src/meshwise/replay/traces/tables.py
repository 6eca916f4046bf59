"""Traces as CSV with a header: our own columns, Azure's, BurstGPT's, and other words for the same."""

import csv
from collections.abc import Iterator, Sequence
from pathlib import Path

from meshwise.errors import UserError, quoted
from meshwise.replay.traces import text
from meshwise.replay.traces.request import Row, seconds_of, tokens_of

TIME_COLUMNS = ("seconds", "timestamp", "time", "arrived_at", "arrival", "arrival_time", "arrivaltime", "start_time", "sent")
PROMPT_COLUMNS = (
    "prompt", "prompt_tokens", "contexttokens", "request tokens", "input_length", "input_tokens", "input_len", "prompt_len",
    "num_prefill_tokens", "input", "isl",
)  # fmt: skip
OUTPUT_COLUMNS = (
    "output", "output_tokens", "generatedtokens", "response tokens", "output_length", "output_len", "completion_tokens",
    "num_decode_tokens", "generated_tokens", "gen_len", "osl",
)  # fmt: skip
BLOCK_COLUMNS = ("blocks", "hash_ids", "block_hash_ids")
MAX_RANGED_BLOCKS = 2**25  # blocks that ranges such as 14-27 may stand for in a trace, at most: a few bytes state millions
MILLISECONDS = ("timestamp_ms", "arrival_ms", "milliseconds", "ms")


def looks_like(head: str) -> bool:
    """Return whether the first line of a file is the header of such a table."""
    names = [name.strip().lower() for name in next(csv.reader([head[:100_000].replace("\r", " ")]), list[str]())]
    return _index(names, PROMPT_COLUMNS) is not None and _index(names, OUTPUT_COLUMNS) is not None


def kind_of(head: str) -> str:
    """Return whose table it is, by its header."""
    lowered = head.lower()
    return "Azure CSV" if "contexttokens" in lowered else "BurstGPT CSV" if "request tokens" in lowered else "CSV"


def rows(path: Path) -> Iterator[Row]:
    """Yield the rows of a table."""
    found = text.lines(path)
    names = [name.strip().lower() for name in _cells(path, *next(found, (1, "")))]
    scale = 1.0
    at = _index(names, TIME_COLUMNS)
    if at is None:
        at, scale = _index(names, MILLISECONDS), 1e-3
    prompt, output, blocks = (_index(names, known) for known in (PROMPT_COLUMNS, OUTPUT_COLUMNS, BLOCK_COLUMNS))
    for what, index, example in (("time", at, "seconds"), ("prompt", prompt, "prompt"), ("output", output, "output")):
        if index is None:
            raise UserError(f"{path.name}: no column of {what}, such as '{example}'; found {', '.join(names)[:200]}")
    assert at is not None
    assert prompt is not None
    assert output is not None
    left = MAX_RANGED_BLOCKS
    for number, line in found:
        where = f"{path.name}, row {number}"
        cells = _cells(path, number, line)
        if len(cells) < max(at, prompt, output) + 1:
            raise UserError(f"{where}: {len(cells)} cells; expected {len(names)}")
        ids, left = _ids(cells[blocks], where, left) if blocks is not None and blocks < len(cells) else ((), left)
        yield Row(
            number, seconds_of(cells[at], where, scale), tokens_of(cells[prompt], "prompt", where),
            tokens_of(cells[output], "output", where), ids,
        )  # fmt: skip


def _cells(path: Path, number: int, line: str) -> list[str]:
    try:
        return next(csv.reader([line], strict=True), list[str]())
    except csv.Error as error:
        raise UserError(f"{path.name}, row {number}: not valid CSV: {error}") from None


def _ids(cell: str, where: str, left: int) -> tuple[tuple[int, ...], int]:
    """Return block ids of '0 1 2', '[0, 1, 2]' or '0 14-27', and how many more ranges may stand for than the `left` ones of before."""
    words = cell.strip("[] ").replace(",", " ").split()
    try:
        if "-" not in cell:
            return tuple(map(int, words)), left
        ids: list[int] = []
        for word in words:
            first, dash, last = word[1:].partition("-")
            low = int(word[0] + first)
            high = int(last) if dash else low
            if not 0 <= high - low < left:
                raise ValueError
            left -= high - low
            ids += range(low, high + 1)
    except ValueError:
        raise UserError(
            f"{where}: blocks {quoted(cell)}; expected whole numbers such as 0 14-27, {MAX_RANGED_BLOCKS:,} in ranges"
        ) from None
    return tuple(ids), left


def _index(names: Sequence[str], known: Sequence[str]) -> int | None:
    """Return the first column whose name is known, by the order of `known`."""
    return next((names.index(name) for name in known if name in names), None)
