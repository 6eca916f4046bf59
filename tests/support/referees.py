"""Keys that programs list themselves, from their packages (`tools/referees.py keys`)."""

import json
from pathlib import Path

LISTS = Path(__file__).parents[1] / "fixtures" / "referees"


def listed(name: str) -> set[str]:
    return set(json.loads((LISTS / f"{name}.json").read_text(encoding="utf-8")))
