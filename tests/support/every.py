"""One test over many cases that reports every case that fails, instead of one test item per case."""

from collections.abc import Callable, Iterable
from typing import Any

import pytest

from meshwise.errors import quoted


def check_every(check: Callable[..., None], cases: Iterable[tuple[Any, ...]]) -> None:
    """Call `check` with the values of each case, then fail with all cases that failed. No cases at all are a failure too."""
    failures: list[str] = []
    number = 0
    for case in cases:
        number += 1
        try:
            check(*case)
        except (Exception, pytest.fail.Exception) as error:
            failures.append(f"{', '.join(map(quoted, case))}: {type(error).__name__}: {error}")
    assert number, "there are no cases to check"
    assert not failures, f"{len(failures)} of {number} cases failed:\n" + "\n".join(failures)
