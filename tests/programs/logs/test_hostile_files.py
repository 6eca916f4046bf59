"""Cut, coloured, endless or hostile files are read as far as possible, in bounded memory, and never end in a traceback."""

import io
import tracemalloc

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from meshwise.audit import report
from meshwise.programs.logs import detect
from meshwise.programs.logs.lines import lines
from support.audits import FIXTURES, read_text


def fixture(name: str) -> str:
    return (FIXTURES / name).read_text(encoding="utf-8")


CUT = {
    "megatron": "megatron-lm-22b.log",
    "nanotron": "nanotron-0001.log",
    "torchtitan": "torchtitan-8b.log",
    "deepspeed": "deepspeed-2.log",
    "jsonl": "measurement.jsonl",
    "llama-bench": "llama-bench.jsonl",
    "hf-trainer": "hf-a.log",
}


def test_a_log_cut_mid_line_loses_that_line_and_counts_it():
    for name, file in CUT.items():
        text = fixture(file).rstrip("\n")
        last = text.rindex("\n") + 1
        whole, cut = read_text(text + "\n", name), read_text(text[: last + int(0.7 * (len(text) - last))], name)
        assert len(cut.runs) >= len(whole.runs) - 1, name
        if name == "hf-trainer":  # its last line is the summary
            assert not cut.runs[0].stated("samples_per_second")
        else:
            assert any("cut off" in line for line in cut.skipped.lines()), name


def test_colours_and_progress_bars_change_nothing():
    text = fixture("megatron-lm-22b.log")
    coloured = text.replace("elapsed", "\x1b[1;32melapsed\x1b[0m").replace(" [2024", "50%|#####     | 4/8\r [2024")
    assert read_text(coloured, "megatron").runs[0].number("seconds") == read_text(text, "megatron").runs[0].number("seconds")
    assert detect.detect(coloured) is detect.find_format("megatron")


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


def test_hostile_markdown_is_read_and_audited():
    for text in HOSTILE:
        audit = report.audit([("hostile.md", read_text(text, "markdown"))])
        assert audit.verdict, text[:80]
        assert audit.to_json(), text[:80]


class Endless(io.TextIOBase):
    """A file of `rows` lines that is never whole in memory."""

    def __init__(self, header: str, line: str, rows: int) -> None:
        self.header, self.line, self.rows, self.number = header, line, rows, 0

    def readline(self, size: int = -1) -> str:  # pyright: ignore[reportIncompatibleMethodOverride]
        self.number += 1
        if self.number == 1 and self.header:
            return self.header
        return self.line.format(self.number) if self.number <= self.rows else ""


STEP = "iteration {0}/999999 | elapsed time per iteration (ms): 100.5 | global batch size: 32 | lm loss: 1.0E+01 |"


@pytest.mark.slow
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


PIECES = st.sampled_from(
    [
        *(
            fixture(name)
            for name in (
                *CUT.values(),
                "torchtitan-0001.log",
                "eight-gpus.md",
                "rig-b.md",
                "llama-bench.md",
                "trainer_state-a.json",
            )
        ),
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
    audit = report.audit([("x", read_text(text, "csv"))])
    assert audit.verdict
    audit.to_json()
