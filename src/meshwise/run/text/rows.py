"""Tokenized conversations laid out as rows of one length: several in a row, or one, filled up with a token that no conversation has."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from meshwise.workers.trainer.contract.settings import HIDDEN_TOKEN_BIT

if TYPE_CHECKING:
    import numpy as np

    Tokens = np.ndarray[Any, Any]

MAX_OPEN_ROWS = 256  # rows with room for another conversation, at most; the fullest are closed first


@dataclass
class Counts:
    """How many conversations were used, cut or left out."""

    conversations: int = 0
    rows: int = 0
    real: int = 0  # tokens of conversations
    trained: int = 0  # tokens with a loss
    cut: int = 0  # conversations longer than a row, which were cut off
    dropped: int = 0  # conversations whose answers are all beyond the end of a row

    def text(self, length: int) -> str:
        """Return the counts in a line."""
        whole = max(1, self.rows * length)
        parts = [
            f"{self.conversations:,} conversations in {self.rows:,} sequences of {length}",
            f"{self.real / whole:.0%} of the tokens are text, and {self.trained / whole:.0%} have a loss",
        ]
        parts += [f"{self.cut:,} were longer and cut off"] * bool(self.cut)
        parts += [f"{self.dropped:,} were left out, since their answers begin after the cut"] * bool(self.dropped)
        return "; ".join(parts)


@dataclass(eq=False)
class _Row:
    """A row with room for more."""

    parts: list["Tokens"] = field(default_factory=list["Tokens"])
    used: int = 0


def lay_out(conversations: Iterable["Tokens"], length: int, pack: bool, filler: int, counts: Counts) -> Iterator["Tokens"]:
    """Yield rows of `length` tokens, hidden ones with that bit; if `pack`, conversations share rows, each followed by the filler."""
    import numpy as np

    hidden_filler = np.uint32(filler + HIDDEN_TOKEN_BIT)
    ends = np.array([hidden_filler], np.uint32)
    open_rows: list[_Row] = []

    def closed(row: _Row) -> "Tokens":
        counts.rows += 1
        return np.concatenate([*row.parts, np.full(length - row.used, hidden_filler, np.uint32)])

    for given in conversations:
        tokens = given[:length].copy()
        tokens[0] |= HIDDEN_TOKEN_BIT
        trained = int((tokens < HIDDEN_TOKEN_BIT).sum())
        counts.cut += len(given) > length
        if not trained:
            counts.dropped += 1
            continue
        counts.conversations += 1
        counts.real += len(tokens)
        counts.trained += trained
        row = next((row for row in open_rows if row.used + len(tokens) <= length), None) if pack else None
        if row is None:
            row = _Row()
            open_rows.append(row)
        row.parts += [tokens, ends][: 1 + (row.used + len(tokens) < length)]
        row.used += min(len(tokens) + 1, length - row.used)
        if not pack or row.used == length:
            open_rows.remove(row)
            yield closed(row)
        elif len(open_rows) > MAX_OPEN_ROWS:
            fullest = max(open_rows, key=lambda row: row.used)
            open_rows.remove(fullest)
            yield closed(fullest)
    yield from map(closed, open_rows)
