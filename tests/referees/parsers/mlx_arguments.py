"""The parsers of `mlx_lm.server` and `mlx_lm.lora`, stopped once they have read their words."""

import argparse
import sys
from typing import Any

import judge
from mlx_lm import lora, server  # pyright: ignore[reportMissingImports]

KEEP = argparse.ArgumentParser.parse_args


class Read(Exception):
    """What a parser read."""


def stop(self: argparse.ArgumentParser, *words: Any, **names: Any) -> Any:
    raise Read(vars(KEEP(self, *words, **names)))


def take(case: dict[str, Any]) -> dict[str, Any]:
    sys.argv = ["mlx", *case["words"]]
    argparse.ArgumentParser.parse_args = stop  # type: ignore[method-assign]
    try:
        (lora if case["program"] == "mlx-lm" else server).main()
    except Read as read:
        return {"model": read.args[0]["model"]}
    finally:
        argparse.ArgumentParser.parse_args = KEEP  # type: ignore[method-assign]
    raise ValueError("it read no words")


judge.answer(take)
