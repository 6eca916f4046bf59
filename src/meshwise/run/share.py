"""A bench as rows that anybody can check and add to a table, without addresses, paths, names of hosts, commands or notes."""

import csv
import hashlib
import io
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from meshwise.catalogue import files
from meshwise.errors import UserError
from meshwise.run.serve import report
from meshwise.runs.fields import BY_NAME
from meshwise.version import VERSION

COLUMNS: tuple[str, ...] = (
    "source", "row_id", "model", "params_b", "bits_per_weight", "quant", "engine", "gpu", BY_NAME["devices"].title, "n_hosts", "split",
    "prompt_len",
    "gen_len", "batch_or_concurrency", "prefill_tok_s", "decode_tok_s", "rate_of", "ttft_ms", "power_w", "outcome", "date",
)  # fmt: skip
"""The only columns of a shared row."""
NEEDED = ("model", "quant", "gpu")
SAFE = re.compile(r"[^\w.:+() -]+")
MAX_CHARS = 80


@dataclass(frozen=True)
class Shared:
    """Rows to share, and the file they would be written to."""

    table: tuple[dict[str, str], ...]
    path: Path
    written: bool = False

    @property
    def text(self) -> str:
        """The file: a CSV table."""
        out = io.StringIO()
        writer = csv.DictWriter(out, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(self.table)
        return out.getvalue()

    def rows(self) -> list[dict[str, str]]:
        """Return the rows."""
        return list(self.table)

    def to_json(self) -> dict[str, Any]:
        """Return rows and file as JSON values."""
        return {"rows": self.rows(), "file": str(self.path), "written": self.written}


def share(path: Path, folder: Path, *, write: bool = False) -> Shared:
    """Return the rows of a report of `bench --out`; `write`: into a file of a folder, named after what was run."""
    data = report.read(path)
    facts: Any = data.get("facts")
    if not isinstance(facts, dict) or not all(cast(dict[str, Any], facts).get(name) for name in NEEDED):
        raise UserError(
            f"{path}: the report does not say which model, format and chip were measured; bench a plan, a .gguf or a model of this machine"
        )
    power: dict[str, float] = data["power"] if isinstance(data.get("power"), dict) else {}
    watts = f"{power['watts']:.0f}" if power.get("watts") else ""
    rows = [_row(one, watts, str(data["date"])[:10]) for one in report.rows(data, None)]
    rows = [row for row in rows if row["outcome"] == "ok"]
    if not rows:
        raise UserError(f"{path}: no setting was measured; there is nothing to share")
    first = rows[0]
    digest = hashlib.sha256(repr(rows).encode()).hexdigest()[:8]
    name = re.sub(r"[^a-z0-9.]+", "-", f"{first['gpu']}-{first['engine']}-{first['model']}-{first['quant']}".lower()).strip("-")
    made = Shared(tuple(rows), folder / f"{name}-{digest}.csv")
    if not write:
        return made
    folder.mkdir(parents=True, exist_ok=True)
    files.write(made.path, made.text)
    return Shared(made.table, made.path, written=True)


def _row(row: dict[str, Any], watts: str, date: str) -> dict[str, str]:
    """Return a row with the columns that are shared, each a short word: a path is its last part."""
    kept = {name: row.get(name, "") for name in COLUMNS} | {
        "source": f"meshwise {VERSION} bench, shared by its user", "power_w": watts, "date": date,
    }  # fmt: skip
    words = {name: re.split(r"[/\\]", str(value))[-1] if name == "model" else str(value) for name, value in kept.items()}
    return {name: SAFE.sub("_", word)[:MAX_CHARS] for name, word in words.items()}
