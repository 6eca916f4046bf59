"""Bad input: cut, coloured, mixed, endless or hostile files are read as far as they make sense; what is skipped is counted."""

import io
import math
import tracemalloc

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from meshwise.audit import report
from meshwise.audit.logs import detect
from meshwise.audit.logs.lines import LONGEST, lines
from meshwise.audit.logs.run import MOST_RUNS, Reading, Sample
from meshwise.errors import UserError
from support.audits import FIXTURES


def read(text: str, name: str) -> Reading:
    return detect.find_format(name).read(lines(io.StringIO(text)))


def fixture(name: str) -> str:
    return (FIXTURES / name).read_text(encoding="utf-8")


CUT = {
    "megatron": "megatron-lm-22b.log",
    "nanotron": "nanotron-0001.log",
    "torchtitan": "torchtitan-0001.log",
    "deepspeed": "deepspeed-2.log",
    "jsonl": "measurement.jsonl",
    "llama-bench": "llama-bench.jsonl",
    "hf-trainer": "hf-a.log",
}


@pytest.mark.parametrize("name", CUT)
def test_a_log_cut_mid_line_loses_that_line_and_says_so(name: str):
    text = fixture(CUT[name]).rstrip("\n")
    last = text.rindex("\n") + 1
    whole, cut = read(text + "\n", name), read(text[: last + int(0.7 * (len(text) - last))], name)
    assert len(cut.runs) >= len(whole.runs) - 1
    if name == "hf-trainer":  # its last line is the summary
        assert not cut.runs[0].stated("samples_per_second")
    else:
        assert any("cut off" in line for line in cut.skipped.lines())


def test_colours_and_progress_bars_change_nothing():
    text = fixture("megatron-lm-22b.log")
    coloured = text.replace("elapsed", "\x1b[1;32melapsed\x1b[0m").replace(" [2024", "50%|#####     | 4/8\r [2024")
    assert read(coloured, "megatron").runs[0].get("seconds") == read(text, "megatron").runs[0].get("seconds")
    assert detect.detect(coloured) is detect.find_format("megatron")


def test_a_german_csv_is_read_as_it_is_meant():
    text = "Nodes;Size;TP;PP;Sec/it;Mem (GiB)\n48;181B;8;12;1.143,31;29,5\n48;181B;8;6;139,82;38\n"
    assert detect.detect(text) is detect.find_format("csv")
    first, second = read(text, "csv").runs
    assert first.get("seconds") == pytest.approx(1143.31)
    assert first.get("memory") == pytest.approx(29.5 * 2**30)
    assert second.get("seconds") == pytest.approx(139.82)


def test_two_notations_in_one_table_are_not_guessed_between():
    text = "gpus;step time (ms);tflops\n8;1,234;100.5\n8;12,5;90,25\n8;1.234,5;80\n"
    reading = read(text, "csv")
    assert [run.get("seconds") for run in reading.runs] == [pytest.approx(math.nan, nan_ok=True), 0.0125, 1.2345]
    assert any("unambiguous" in line for line in reading.skipped.lines())


def test_milliseconds_and_mebibytes_of_a_header_are_si():
    text = "gpus,iteration time (ms),peak memory (MiB)\n8,372.16,1024\n"
    (run,) = read(text, "csv").runs
    assert run.get("seconds") == pytest.approx(0.37216)
    assert run.get("memory") == 2**30


def test_missing_columns_leave_a_run_with_less():
    (run,) = read("model,tokens_per_sec_per_gpu\nllama-3-8b,5000\n", "csv").runs
    audit = report.audit([("t.csv", read("model,tokens_per_sec_per_gpu\nllama-3-8b,5000\n", "csv"))])
    assert run.get("tokens_per_second_per_gpu") == 5000
    assert not audit.findings


def test_rows_of_another_width_are_counted_and_named():
    reading = read("gpus,sec_per_iter\n8,1.5\n8,1.5,9\n8\n16,0.8\n", "csv")
    assert len(reading.runs) == 2
    assert reading.skipped.lines() == [
        "1 x 3 cells in a row under a header of 2 (line 3)",
        "1 x 1 cell in a row under a header of 2 (line 4)",
    ]


def test_nan_losses_are_told_and_never_a_speed():
    text = fixture("megatron-lm-22b.log").replace("lm loss: 1.060000E+01", "lm loss: NaN")
    (run,) = read(text, "megatron").runs
    assert run.get("nans") == 1
    audit = report.audit([("x", read(text, "megatron"))], planned=False)
    assert [one.rule for one in audit.findings] == ["NaN"]


def test_another_model_in_the_same_log_is_another_run():
    both = fixture("megatron-deepspeed-1node.log") + fixture("megatron-deepspeed-10nodes.log")
    first, second = read(both, "megatron").runs
    assert (first.get("n_layers"), second.get("n_layers")) == (8, 80)
    assert (first.get("seconds"), second.get("seconds")) == (769.99, 844.81)
    assert second.get("n_gpus") == 80


def test_a_batch_that_ramps_up_is_a_run_for_each_batch():
    line = "iteration {}/100 | elapsed time per iteration (ms): {} | global batch size: {} | lm loss: 1.0E+01 |\n"
    text = "".join(line.format(i, 100 * (1 + i // 5), 32 * (1 + i // 5)) for i in range(1, 15))
    assert [run.get("global_batch_seqs") for run in read(text, "megatron").runs] == [32, 64, 96]


def test_a_run_that_starts_anew_is_another_run():
    line = "iteration {}/100 | elapsed time per iteration (ms): {} | global batch size: 32 | lm loss: {}E+01 |\n"
    text = "".join(line.format(i, 100, 1.0) for i in range(1, 9)) + "".join(line.format(i, 50, 0.4) for i in range(5, 12))
    first, second = read(text, "megatron").runs
    assert (first.get("seconds"), second.get("seconds")) == (0.1, 0.05)
    assert second.get("loss_step") == 5


HOSTILE = [
    "| Nodes | Sec/it |\n| --- | --- |\n" + "| 1 | 1.0 |\n" * 50 + "|" * 5000 + "\n",
    "| a | b |\n|---|---|\n| " + "9" * 5000 + " | 1 |\n",
    "#" * 5000 + " x\n",
    "**" * 4000 + "GPU 0: 1 tokens/sec\n",
    "- GPU 99999999999: 5 tokens/sec\n- Batch Size: 9e999\n",
    "1 * " * 3000 + "= 5\n",
    "A (" * 2000,
    "[/red]{{x}}\x1b]0;title\x07 | Sec/it | TFLOPs |\n| --- | --- |\n| <script> | nan |\n",
    "NHIDDEN=" + "1" * 400 + "\n\n| GPUs | Sec/it |\n|--|--|\n| 8 | 1e400 |\n| 0 | 0 |\n| -8 | -1 |\n",
    "| GPUs | DP | TP | PP | MBS | GBS | Size | Sec/it | TFLOPs |\n|-|-|-|-|-|-|-|-|-|\n| 0 | 0 | 0 | 0 | 0 | 0 | 0B | 0.0 | 0 |\n",
]


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_markdown_is_read_and_audited(text: str):
    audit = report.audit([("hostile.md", read(text, "markdown"))])
    assert audit.verdict
    assert audit.to_json()


def test_a_line_without_end_is_cut():
    stream = io.StringIO("x" * (3 * LONGEST + 17) + "\nnext\n")
    first, second = lines(stream)
    assert len(first.text) == LONGEST
    assert first.cut
    assert (second.number, second.text) == (2, "next")


def test_the_sample_of_a_long_series_keeps_its_median():
    sample = Sample(size=64)
    for i in range(100_000):
        sample.add(float(i * 7919 % 1000))
    assert len(sample.kept) < 64
    assert sample.median() == pytest.approx(500, abs=60)


class Endless(io.TextIOBase):
    """A file of so many lines that is never whole in memory."""

    def __init__(self, header: str, line: str, rows: int) -> None:
        self.header, self.line, self.rows, self.number = header, line, rows, 0

    def readline(self, size: int = -1) -> str:  # pyright: ignore[reportIncompatibleMethodOverride]
        self.number += 1
        if self.number == 1 and self.header:
            return self.header
        return self.line.format(self.number) if self.number <= self.rows else ""


STEP = "iteration {0}/999999 | elapsed time per iteration (ms): 100.5 | global batch size: 32 | lm loss: 1.0E+01 |"


@pytest.mark.parametrize(
    ("name", "header", "line"),
    [
        ("megatron", "", STEP + " " * 13_000 + "\n"),
        ("csv", "gpus,sec_per_iter,note\n", "8,1.5,{0}" + "x" * 13_000 + "\n"),
        ("markdown", "# A page\n", "words of no meaning " * 650 + "{0}\n"),
    ],
)
def test_a_file_of_fifty_megabytes_takes_little_memory(name: str, header: str, line: str):
    source = lines(Endless(header, line, 4_000))  # pyright: ignore[reportArgumentType]
    tracemalloc.start()
    reading = detect.find_format(name).read(source)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert 4_000 * len(line) > 50e6
    assert peak < 15e6
    assert len(reading.runs) == {"megatron": 1, "csv": 3_999, "markdown": 0}[name]


def test_rows_beyond_the_most_are_counted():
    text = "gpus,sec_per_iter\n" + "8,1.5\n" * (MOST_RUNS + 7)
    reading = read(text, "csv")
    assert len(reading.runs) == MOST_RUNS
    assert reading.skipped.counts == {f"beyond the first {MOST_RUNS:,} runs": 7}


def test_bytes_that_are_no_text_are_refused_or_skipped(tmp_path):
    path = tmp_path / "x.csv"
    path.write_bytes(b"gpus,sec_per_iter\n8,1.5\n\xff\xfe\x00,9\n")
    reading = detect.read_file(path, "csv")
    assert [run.get("n_gpus") for run in reading.runs if run.stated("n_gpus")] == [8]
    assert reading.skipped.lines() == ["1 x 'gpus' is not an unambiguous number (line 3)"]
    (tmp_path / "utf16.csv").write_bytes("gpus,sec_per_iter\n8,1.5\n".encode("utf-16"))
    assert len(detect.read_file(tmp_path / "utf16.csv").runs) == 1
    with pytest.raises(UserError, match="is a folder"):
        detect.read_file(tmp_path)
    with pytest.raises(UserError, match="cannot read"):
        detect.read_file(tmp_path / "none.csv")


PIECES = st.sampled_from(
    [
        *(fixture(name) for name in (*CUT.values(), "eight-gpus.md", "rig-b.md", "llama-bench.md", "trainer_state-a.json")),
        *HOSTILE,
    ]
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(PIECES, st.sampled_from(detect.formats()), st.integers(0, 4000), st.integers(0, 400), st.text(max_size=30))
def test_any_file_read_as_any_format_with_anything_in_it_is_audited(text: str, one: detect.Format, at: int, gone: int, put: str):
    reading = one.read(lines(io.StringIO(text[:at] + put + text[at + gone :])))
    audit = report.audit([("x", reading)], planned=False)
    assert audit.verdict
    audit.to_json()


@settings(max_examples=60, deadline=None)
@given(
    st.dictionaries(
        st.sampled_from(
            [
                "GPUs",
                "DP",
                "TP",
                "PP",
                "MBS",
                "GBS",
                "Size",
                "Sec/it",
                "TFLOPs",
                "Mem",
                "NHIDDEN",
                "Layers",
                "tok/s",
                "loss",
                "MFU",
            ]
        ),
        st.sampled_from(["0", "1", "8", "1e30", "0.001", "200B", "4096", "1e-300", "64", "7.5"]),
        min_size=2,
    )
)
def test_any_figures_are_audited_with_the_planner(row: dict[str, str]):
    text = "gpu," + ",".join(row) + ",seq_len\nh100," + ",".join(row.values()) + ",2048\n"
    audit = report.audit([("x", read(text, "csv"))])
    assert audit.verdict
    audit.to_json()
