"""Dataset: the lengths of the rows of a JSONL file, and how many tokens a run over them computes, packed or padded."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import numpy as np

from meshwise.catalogue import files
from meshwise.cost.layout import Floats, Ints
from meshwise.cost.work import Objective
from meshwise.errors import UserError, nearest, quoted

CHARS_PER_TOKEN = 4.0
"""Characters per token of English text in vocabularies of 50,000 to 250,000 words. An assumption where no row states its tokens."""
TOKEN_COLUMNS = ("tokens", "length", "num_tokens", "input_ids")
"""Columns that state the tokens of a row, as a number or as the list of them."""
TEMPLATE_TOKENS = 8  # tokens that a chat template adds to each message. An assumption.
ANSWER_ROLES = {"assistant", "gpt", "model", "chatbot", "bot"}
"""Roles whose messages are answers, in the words of OpenAI's, ShareGPT's, Gemma's and Cohere's formats."""
MAX_ROWS = 5_000_000


@dataclass(frozen=True)
class Dataset:
    """The tokens of every sequence that rows of data become."""

    path: str
    rows: int
    lengths: Ints  # tokens of each sequence: two per row for pairs of answers
    counted: bool  # whether the rows state their tokens; otherwise they follow from characters

    @cached_property
    def tokens(self) -> int:
        """Tokens of all sequences."""
        return int(self.lengths.sum())

    def longer_than(self, seq: int) -> int:
        """Return how many sequences are longer than `seq` tokens, and are cut to it."""
        return int(np.count_nonzero(self.lengths > seq))

    def cut(self, seq: int) -> Ints:
        """Return the lengths with longer sequences cut to `seq`."""
        return np.minimum(self.lengths, seq)

    def packed(self, seq: int) -> tuple[float, float]:
        """Return the packed sequences of `seq` tokens, and the share of their tokens that are real. Sequences are packed whole, the longest
        first, each where it leaves least room (best-fit decreasing, as TRL and Axolotl pack)."""
        bins = _best_fit(self.cut(seq), seq)
        return float(bins), float(self.cut(seq).sum() / (bins * seq))

    def padded(self, seq: int, together: int) -> tuple[float, float]:
        """Return the mean tokens per sequence where `together` random ones are padded to the longest of them, and the share that is real.
        Worked: lengths 1 and 3, two together (with replacement): the longest is 1 with probability 1/4, so its mean is 2.5: 0.8 is
        real."""
        cut = np.sort(self.cut(seq)).astype(float)
        upper = (np.arange(1, len(cut) + 1) / len(cut)) ** together
        longest = float((cut * np.diff(upper, prepend=0.0)).sum())
        return longest, float(cut.mean() / longest)


def _best_fit(lengths: Ints, seq: int) -> int:
    """Return the number of bins of `seq` tokens. Bins with equal room are one entry of a table, so that a million rows take a second."""
    room = np.zeros(seq + 1, dtype=np.int64)
    bins = 0
    values, counts = np.unique(lengths[lengths > 0], return_counts=True)
    for length, count in zip(values[::-1].tolist(), counts[::-1].tolist(), strict=True):
        left = count
        while left:
            fitting = np.flatnonzero(room[length:])
            if not len(fitting):
                each = seq // length
                whole, rest = divmod(left, each)
                room[seq - each * length] += whole
                if rest:
                    room[seq - rest * length] += 1
                bins += whole + bool(rest)
                break
            free = length + int(fitting[0])
            used = min(left, int(room[free]))
            room[free] -= used
            room[free - length] += used
            left -= used
    return max(1, bins)


def read(path: str, objective: Objective) -> Dataset:
    """Read the lengths of a JSONL file. UserError for a file that is missing, a row that is no object, or one without an answer."""
    file = Path(path)
    if not file.is_file():
        raise UserError(f"--data {quoted(path)}: no such file; expected a JSONL file of rows")
    lengths: list[int] = []
    rows, counted = 0, True
    for number, row in _rows(file):
        found, stated = _lengths(row, objective, f"{file.name}:{number}")
        lengths += found
        counted &= stated
        rows += 1
    if not rows:
        raise UserError(f"--data {quoted(path)}: it has no rows; expected one JSON object per line")
    return Dataset(path, rows, np.array(lengths, dtype=np.int64), counted)


def _rows(file: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    try:
        with file.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                if number > MAX_ROWS:
                    raise UserError(f"--data {file.name}: more than {MAX_ROWS:,} rows; give --tokens instead")
                if not line.strip():
                    continue
                row: object = json.loads(line)
                if not isinstance(row, dict):
                    raise UserError(f"{file.name}:{number}: {quoted(row)} is not a row; expected a JSON object")
                yield number, cast(dict[str, Any], row)
    except (OSError, UnicodeDecodeError) as error:
        raise files.unreadable(file, error) from None
    except (json.JSONDecodeError, RecursionError) as error:
        raise UserError(f"--data {file.name}: not JSONL ({error}); expected one JSON object per line") from None


def _lengths(row: dict[str, Any], objective: Objective, where: str) -> tuple[list[int], bool]:
    """Return the tokens of each sequence of a row, and whether the row states them."""
    stated: object = next((row[name] for name in TOKEN_COLUMNS if name in row), None)
    if stated is not None:
        number: object = len(cast(list[object], stated)) if isinstance(stated, list) else stated
        if isinstance(number, bool) or not isinstance(number, int | float) or not 0 < number < 1e9:
            raise UserError(f"{where}: {quoted(number)} tokens; expected a number above 0")
        return [int(number)] * objective.sequences, True
    columns = next((names for names in objective.columns if all(name in row for name in names)), None)
    if columns is None:
        expected = " or ".join("+".join(names) for names in objective.columns)
        hint = nearest(next(iter(row), ""), [name for names in objective.columns for name in names])
        raise UserError(
            f"{where}: no answers for {objective.name} in columns {', '.join(list(row)[:6]) or '(none)'}{hint}; expected {expected}"
        )
    if objective.sequences == 1 and not objective.generates and not _answers(row, columns):
        raise UserError(f"{where}: {columns[-1]} has no answer to train on; expected text, or a message of the assistant")
    if objective.sequences == 1 or columns == ("prompt", "completion"):
        return [_tokens([row[name] for name in columns])], False
    shared = [row["prompt"]] if "prompt" in row and "prompt" not in columns else []
    return [_tokens([*shared, row[name]]) for name in columns], False


def _answers(row: dict[str, Any], columns: tuple[str, ...]) -> bool:
    """Return whether a row has an answer: text in its last column, or in a message of the assistant."""
    last = cast(object, row[columns[-1]])
    items = cast(list[object], last) if isinstance(last, list) else []
    if items and all(isinstance(item, dict) for item in items):
        said = cast(list[dict[str, object]], items)
        roles = {str(message.get("role", message.get("from", ""))).lower() for message in said}
        if roles - {""} and not roles & ANSWER_ROLES:
            return False
    calls = any(isinstance(item, dict) and "tool_calls" in item for item in items)
    return calls or any(text.strip() for text in _texts(cast(object, row[columns[-1]])))


def _tokens(values: list[object]) -> int:
    """Return the tokens of texts, or of lists of messages, by their characters."""
    characters, messages = 0, 0
    for value in values:
        for text in _texts(value):
            characters += len(text)
            messages += 1
    return max(1, round(characters / CHARS_PER_TOKEN) + TEMPLATE_TOKENS * messages)


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for item in cast(list[object], value):
            yield from _texts(item)
    elif isinstance(value, dict):
        table = cast(dict[str, object], value)
        for name in ("content", "value", "text"):
            if name in table:
                yield from _texts(table[name])


def epoch(data: Dataset, seq: int, together: int, *, packing: bool) -> Floats:
    """Return sequences per epoch, the tokens that each computes, and the share of them that are real."""
    if packing:
        bins, real = data.packed(seq)
        return np.array([bins, seq, real])
    longest, real = data.padded(seq, together)
    return np.array([len(data.lengths), longest, real])
