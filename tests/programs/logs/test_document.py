"""Facts of a page outside its tables go to the runs that they describe. Whole documents: ../test_documents.py."""

from support.audits import read_text

TABLE = "| GPUs | TP | GBS | Sec/it |\n|--|--|--|--|\n| 8 | 8 | 512 | 12.5 |\n"


def test_a_line_above_a_table_sets_shape_and_batch_of_its_rows_and_no_layout():
    (run,) = read_text(f"NHIDDEN=4096 / NLAYERS=32 / PP=4\n\n{TABLE}", "markdown").runs
    assert (run.number("hidden"), run.number("layers"), run.number("tp")) == (4096, 32, 8)
    assert not run.stated("pp")


def test_a_batch_that_contradicts_the_line_above_is_a_claim_to_check():
    (claim,) = read_text(f"GBS=2048\n\n{TABLE}", "markdown").claims
    assert (claim.kind, claim.values) == ("conflict", (2048, 512))
    assert claim.text == "the batch is 512 in the row and 2048 in the text above its table"


def test_a_chip_is_that_of_all_runs_if_the_page_names_one():
    (run,) = read_text(f"On A100 80GB nodes with 8 GPUs per node.\n\n{TABLE}", "markdown").runs
    assert (run.text("chip"), run.number("devices_per_node")) == ("A100 80GB", 8)
    (run,) = read_text(f"On A100, later on H100.\n\n{TABLE}", "markdown").runs
    assert run.text("chip") == ""


def test_bullets_are_one_run_and_a_second_value_is_a_conflict():
    reading = read_text(
        "- Step time: 7.5 seconds per step\n- Batch Size: 16 per device\n- Step time: 9 seconds per step\n", "markdown"
    )
    (run,) = reading.runs
    assert (run.number("seconds"), run.number("per_device_batch")) == (7.5, 16)
    assert [claim.text for claim in reading.claims] == ["Step time is 9 here and 7.5 above"]


def test_bullets_under_a_heading_of_plans_are_no_run():
    assert read_text("# Expected next\n\n- Step time: 7.5 seconds per step\n", "markdown").runs == []


def test_a_size_that_has_one_shape_in_the_document_has_it_everywhere():
    text = "20B model: NLAYERS=8, NHIDDEN=14400\n\n# Later\n\n| Size | GPUs | Sec/it |\n|--|--|--|\n| 20B | 8 | 12.5 |\n"
    (run,) = read_text(text, "markdown").runs
    assert (run.number("layers"), run.number("hidden")) == (8, 14400)
