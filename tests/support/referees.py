"""Keys that programs list themselves, from their packages (`tools/referees.py keys`)."""

import json

from meshwise.catalogue.files import BUILT_IN

LISTS = BUILT_IN / "programs" / "keys"


def listed(name: str) -> set[str]:
    return set(json.loads((LISTS / f"{name}.json").read_text(encoding="utf-8")))
