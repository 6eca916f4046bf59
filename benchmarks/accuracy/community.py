"""Self-reported runs with whole machines left out, and watts against meters: `python benchmarks/accuracy/community.py`.

Decode of `localmaxxing_community` with the shipped calibrations, and without those that have rows of it in their fit; watts of its rows;
nodes of MLPerf's meters (issue 39) as `plan` predicts Llama 2 70B with LoRA there, and with devices at their limit.
"""

import csv
import statistics
from collections.abc import Sequence
from typing import Any

from meshwise import api
from meshwise.calibrate.serve.validate import ServeValidation
from meshwise.catalogue import calibrations
from meshwise.catalogue.chips import find_chip
from meshwise.catalogue.files import BUILT_IN
from meshwise.catalogue.power import power_of
from meshwise.cost.power import node_watts
from meshwise.errors import UserError
from meshwise.plan.ask import EnergyAsk, ServeAsk
from meshwise.plan.serve.energy import served
from meshwise.run.bench.speeds import Setting
from meshwise.run.serve.deployment import deployment

TABLE = "localmaxxing_community"
METERS = (
    ("h100-sxm", 1, 8, 4, 1, 7.0),
    ("h100-sxm", 8, 8, 4, 2, 5.8),
    ("h100-sxm", 64, 64, 4, 2, 5.1),
    ("b200", 1, 8, 1, 2, 9.6),
)
"""Chip, nodes, sequences of a batch, tp, cp, and kW of a node by MLPerf's meters."""


def scored(drop: Sequence[str]) -> None:
    """Print coverage and error of decode without some calibrations."""
    every = calibrations.serve_calibrations()
    kept = tuple(one for one in every if one.key not in drop)
    plain, calibrations.serve_calibrations = calibrations.serve_calibrations, lambda: kept
    try:
        found = api.validate(TABLE)
        assert isinstance(found, ServeValidation)
    finally:
        calibrations.serve_calibrations = plain
    flagged = {row["row_id"] for row in rows() if row["chk_flag"]}
    pairs: list[tuple[Any, Any]] = [
        (row["predicted_decode"], row["measured_decode"]) for row in found.rows() if row["row_id"] not in flagged
    ]
    errors = [abs(predicted / measured - 1) for predicted, measured in pairs if predicted and measured]
    inside, middle = found.score["decode"]["coverage"], statistics.median(errors)
    print(f"decode without {', '.join(drop) or 'nothing'}: {inside:.1%} of all inside 90%, median {middle:.1%} of {len(errors)}")


def rows() -> list[dict[str, str]]:
    with (BUILT_IN / f"measurements/{TABLE}.csv").open(encoding="utf-8") as table:
        return list(csv.DictReader(table))


def watts() -> None:
    """Print predicted and reported watts of the rows that state them."""
    for row in rows():
        if not row["power_w"]:
            continue
        setting = Setting(prompt=int(row["prompt_len"]), output=int(row["gen_len"]), users=1)
        try:
            chip = find_chip(row["gpu"])
            planned = deployment(ServeAsk(f"{row['model']}:{row['quant']}", on=f"1x{chip.key}", engine="llama.cpp", context=8192))
            option = planned.predict(setting)
            found = served(EnergyAsk(), planned.at(setting), option) if option else None
        except UserError as error:
            print(f"{row['row_id']} {row['model']}: {str(error)[:60]}")
            continue
        if found:
            seen, words = float(row["power_w"]), f"{row['row_id']} {chip.name} {row['model']} {row['quant']}"
            print(f"{words}: {found.watts:.0f} W, reported {seen:.0f} ({found.watts / seen - 1:+.0%})")


def nodes() -> None:
    """Print kW of nodes by plan, and of devices that draw what they are held at."""
    for name, number, batch, tp, cp, metered in METERS:
        chip = find_chip(name)
        plan = api.plan(
            "llama-2-70b", on=f"{number}x8x{name}", batch=f"{batch}x8192", seq=8192, finetune="lora:16", precision="fp8",
            framework="megatron", fix=[f"tp={tp}", f"cp={cp}", "pp=1"],
        )  # fmt: skip
        assert plan.energy
        each = plan.energy.wall / number / 1e3
        full = node_watts(chip, 8, power_of(chip).held * (chip.tdp or 0.0)) / 1e3
        print(
            f"{number} x 8 {chip.name}: {each:.2f} kW by plan ({each / metered - 1:+.0%}), {full:.2f} kW at the limit, {metered} metered"
        )


if __name__ == "__main__":
    scored(())
    scored([one.key for one in calibrations.serve_calibrations() if TABLE in one.fitted_on])
    watts()
    nodes()
