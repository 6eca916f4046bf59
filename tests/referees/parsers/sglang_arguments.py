"""SGLang's own parser of `launch_server`. What follows asks the device."""

import argparse
from typing import Any

import judge
import stubs

stubs.install("torchcodec", "flash_attn", "aiohttp")
from sglang.srt.server_args import ServerArgs  # pyright: ignore[reportMissingImports]  # noqa: E402

PARSER = argparse.ArgumentParser()
ServerArgs.add_cli_args(PARSER)


def take(case: dict[str, Any]) -> dict[str, Any]:
    read = PARSER.parse_args(case["words"])
    return {"tp": read.tp_size, "pp": read.pp_size, "context": read.context_length}


judge.answer(take)
