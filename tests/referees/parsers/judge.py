"""The protocol of a parser: cases as JSON on standard input, what it takes each for as one JSON line at the end."""

import json
import os
import sys
from collections.abc import Callable
from typing import Any


def answer(take: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Print what a parser takes each case for, or how it refuses it."""
    found: list[dict[str, Any]] = []
    for case in json.load(sys.stdin):
        os.chdir(case["folder"])
        try:
            found.append(take(case))
        except (Exception, SystemExit) as error:
            found.append({"error": f"{type(error).__name__}: {error}"[:2000]})
    print(f"\n{json.dumps(found)}")
