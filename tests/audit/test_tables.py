"""The clean rows of the tables of measured runs raise next to no alarm, and the faults that the tables name are found."""

from functools import cache

import pytest

from meshwise.audit import report
from meshwise.audit.report import Audit
from meshwise.catalogue import files

TABLES = (
    "bloom_prequel",
    "korthikanti2022_iteration",
    "megatron2021_table1",
    "nanotron_h100_small",
    "vtrain_a100_single_node",
)
CHIP = {"vtrain_a100_single_node": {"gpu": "A100-80GB", "framework": "Megatron-DeepSpeed"}}
"""What vTrain's file leaves to its paper."""


@cache
def audited(table: str) -> Audit:
    path = files.files("measurements", ".csv")[table]
    numbers = {"vocab": 51200.0, "gpus_per_node": 8.0} if table in CHIP else {}
    return report.audit(report.read([path], "", numbers, CHIP.get(table, {})), planned=True)


def alarms(table: str) -> tuple[int, int]:
    """Clean rows that any finding accuses, and all clean rows."""
    audit = audited(table)
    clean = {f.where for f in audit.runs if not f.run.text("chk_flag")}
    accused = {place for one in audit.findings for place in one.where}
    return len(clean & accused), len(clean)


@pytest.mark.parametrize("table", TABLES)
def test_at_most_two_in_a_hundred_clean_rows_are_accused(table: str):
    wrong, rows = alarms(table)
    assert rows > 5
    assert wrong <= 0.02 * rows


def test_every_row_of_a_table_is_read():
    assert [len(audited(table).runs) for table in TABLES] == [112, 10, 10, 905, 1440]


def test_of_runs_that_the_planner_can_price_nearly_all_are():
    priced = {table: len(audited(table).expected) for table in TABLES}
    assert priced["vtrain_a100_single_node"] == 1440
    assert priced["nanotron_h100_small"] >= 400


@pytest.mark.parametrize(
    ("flag", "rule"),
    [
        ("SWAPPED", "swapped"),
        ("dp*tp*pp*cp=640!=n_gpus=320", "layout"),
        ("Mem 65GB", "memory"),
        ("GBS=1568", "batch and time"),
        ("same configuration as the previous row", "quoted twice"),
        ("heading says GBS=512", "printed FLOPs"),
    ],
)
def test_a_fault_that_the_table_names_is_found_without_reading_its_flag(flag: str, rule: str):
    audit = audited("bloom_prequel")
    flagged = {f.where for f in audit.runs if flag in f.run.text("chk_flag")}
    assert flagged
    assert flagged <= {place for one in audit.findings if one.rule == rule for place in one.where}


def test_the_formula_behind_printed_figures_is_recognised():
    # Korthikanti et al. 2022 use 72 B L s h^2 (1 + s/6h + V/12Lh), which for a tied GPT is PaLM's formula; the eras of the BLOOM
    # notes are 8 x 12 L h^2, then 96 B s L h^2 (1 + s/6h + V/16Lh).
    stated = [f for f in audited("korthikanti2022_iteration").runs if f.run.stated("mfu", "seconds")]
    assert len(stated) == 5
    assert {f.used[0] for f in stated} <= {"Megatron", "PaLM"}
    bloom = [f for f in audited("bloom_prequel").runs if f.run.stated("seconds", "tflops") and not f.run.text("chk_flag")]
    assert {f.used[0] for f in bloom} == {"8N of the layers", "Megatron + recompute"}


def test_prompts_that_were_ill_are_the_only_alarm_of_served_models():
    """One A100 SXM of May 2024 read prompts in F16 ten times slower than in Q4_K_M: measure_serve.ILL."""
    audit = audited("xiongjiedai_llama3_bench")
    accused = {place for one in audit.findings for place in one.where}
    assert len(audit.served) == 336  # 346 cells, ten of them out of memory
    assert 0 < len(accused) <= 0.03 * len(audit.runs)
    assert all("reads prompts" in one.words for one in audit.findings)
