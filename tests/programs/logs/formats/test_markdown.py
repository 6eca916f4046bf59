"""Markdown pages: tables with and without edges, tables of ranks, log lines in code. Whole documents: ../../test_documents.py."""

from support.audits import read_text


def test_a_table_without_bars_at_its_edges_is_a_table():
    (run,) = read_text("Nodes | TP | Sec/it\n--- | ---: | ---:\n4 | 8 | 12.5\n\nwords | more words\n", "markdown").runs
    assert (run.number("nodes"), run.number("tp"), run.number("seconds")) == (4, 8, 12.5)


def test_a_table_with_a_rank_a_row_is_one_run():
    text = "# Run\n\n- Total Throughput: 4,000 tokens/sec\n\n| GPU | tok/s | loss |\n|--|--|--|\n| 0 | 1,010 | 10.8 |\n| 1 | 990 | 10.9 |\n"
    (run,) = read_text(text, "markdown").runs
    assert run.ranks == {"tokens_per_second": (1010, 990), "loss": (10.8, 10.9)}
    assert run.number("tokens_per_second") == 4000


def test_a_transposed_table_has_a_run_a_column_and_ranges_are_left_out():
    rows = (
        "Metric | 128 tokens | 512 tokens",
        "--|--|--",
        "Throughput | 15,570 tok/s | 8,000 tok/s",
        "Memory/GPU | 2.5GB | 8-12GB",
    )
    text = "".join(f"| {row} |\n" for row in rows)
    first, second = read_text(text, "markdown").runs
    assert [(run.number("seq"), run.number("tokens_per_second")) for run in (first, second)] == [(128, 15570), (512, 8000)]
    assert first.number("memory") == 2.5e9
    assert not second.stated("memory")


def test_a_row_of_another_width_is_skipped_and_named():
    reading = read_text("| GPUs | Sec/it |\n|--|--|\n| 8 | 1.5 |\n| 8 |\n", "markdown")
    assert len(reading.runs) == 1
    assert reading.skipped.lines() == ["1 x a row with more or fewer cells than its header (line 4)"]
