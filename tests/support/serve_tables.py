"""Published inference tables for tests, and the presets and chips that their names mean."""

import csv
from functools import cache

from meshwise.catalogue import files
from meshwise.models.find import find_model
from meshwise.models.formats import Weights, find_format, weights
from meshwise.models.model import Model
from meshwise.runs.serve.case import ServeCase, read_cases
from meshwise.runs.table import Skipped, find_table

MIB = 2.0**20
GIB = 2.0**30

MODELS = {
    "LLaMA 1 7B": "llama-7b",
    "LLaMA 1 13B": "llama-13b",
    "LLaMA 1 30B": "llama-33b",
    "LLaMA 1 65B": "llama-65b",
    "Llama 2 7B": "llama-2-7b",
    "Llama 2 13B": "llama-2-13b",
    "Llama 2 70B": "llama-2-70b",
    "Llama 3 8B": "llama-3-8b",
    "Llama 3 70B": "llama-3-70b",
}
CHIPS = {
    "3090 24GB": "rtx3090",
    "4090 24GB": "rtx4090",
    "A100 80GB": "a100-80gb-sxm",
    "A100 PCIe 80GB": "a100-80gb-pcie",
    "A100 SXM 80GB": "a100-80gb-sxm",
    "M2 Ultra 76-Core GPU 192GB": "m2-ultra",
    "M2ultra 192GB": "m2-ultra",
}


def rows(table: str) -> list[dict[str, str]]:
    with (files.BUILT_IN / "measurements" / f"{table}.csv").open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


@cache
def built_in(name: str) -> tuple[list[ServeCase], list[Skipped]]:
    """Return the cases and skipped rows of a built-in table, read once per process. Do not change the lists."""
    return read_cases(find_table(name))


@cache
def model(name: str) -> Model:
    return find_model(MODELS.get(name, name))


@cache
def stored(name: str, quant: str, by_file: bool = False) -> Weights:
    return weights(model(name), find_format(quant), by_file=by_file)
