"""Each format is recognised by its content and read to the figures that its fixture carries (tests/fixtures/audit/README.md)."""

import io

import pytest

from meshwise.audit.logs import detect
from meshwise.audit.logs.lines import lines
from meshwise.audit.logs.run import Run
from meshwise.errors import UserError
from support.audits import FIXTURES

FORMAT = {
    "measurement.jsonl": "jsonl",
    "hf-a.log": "hf-trainer",
    "trainer_state-a.json": "hf-trainer",
    "megatron-deepspeed-1node.log": "megatron",
    "megatron-lm-22b.log": "megatron",
    "megatron-lm-old.log": "megatron",
    "nanotron-0001.log": "nanotron",
    "torchtitan-0001.log": "torchtitan",
    "deepspeed-1.log": "deepspeed",
    "llama-bench.jsonl": "llama-bench",
    "llama-bench.csv": "llama-bench",
    "llama-bench.md": "llama-bench",
    "tuning-notes.md": "markdown",
    "eight-gpus.md": "markdown",
    "rig-a.md": "markdown",
}


def runs(name: str) -> list[Run]:
    return detect.read_file(FIXTURES / name).runs


@pytest.mark.parametrize("name", FORMAT)
def test_the_format_is_told_by_the_content(name: str):
    assert detect.read_file(FIXTURES / name).format == FORMAT[name]


@pytest.mark.parametrize("path", sorted(FIXTURES.iterdir()), ids=lambda path: path.name)
def test_whole_files_are_read_without_skipping_anything(path):
    if path.name != "README.md":
        assert detect.read_file(path).skipped.lines() == []


def test_there_are_three_runs_of_every_format():
    counts: dict[str, int] = {}
    for path in FIXTURES.iterdir():
        if path.name != "README.md":
            reading = detect.read_file(path)
            counts[reading.format] = counts.get(reading.format, 0) + len(reading.runs)
    assert set(counts) == {one.name for one in detect.formats()} - {"csv"}  # the tables of data/measurements are its fixtures
    assert min(counts.values()) >= 3


def test_megatron_deepspeed_states_seconds_tflops_and_its_arguments():
    (run,) = runs("megatron-deepspeed-10nodes.log")
    assert run.get("seconds") == pytest.approx(844.81)
    assert run.get("tflops") == pytest.approx(98.87e12)
    assert (run.get("tp"), run.get("pp"), run.get("n_gpus")) == (8, 10, 80)
    assert (run.get("n_layers"), run.get("d_model"), run.get("vocab"), run.get("seq_len")) == (80, 14400, 250880, 2048)
    assert run.text("framework") == "Megatron-DeepSpeed"


def test_megatron_lm_states_milliseconds_and_mebibytes():
    (run,) = runs("megatron-lm-22b.log")
    assert run.get("seconds") == pytest.approx(1.42)  # the first step, three times as long, is not the median
    assert run.get("memory") == 61440 * 2**20
    assert run.get("loss_step") == 1
    assert run.text("recompute") == "full"


def test_a_log_without_arguments_still_has_its_times():
    (run,) = runs("megatron-lm-old.log")
    assert run.get("seconds") == pytest.approx(18.13)
    assert run.get("global_batch_seqs") == 64
    assert not run.stated("n_gpus")


@pytest.mark.parametrize(
    ("name", "rate", "memory"), [("0001", 38894.51, 41.76e9), ("0003", 7503.28, 63.07e9), ("0005", 38299.12, 26.41e9)]
)
def test_nanotron_and_torchtitan_state_the_rate_of_a_device(name: str, rate: float, memory: float):
    (nanotron,), (titan,) = runs(f"nanotron-{name}.log"), runs(f"torchtitan-{name}.log")
    assert nanotron.get("tokens_per_second_per_gpu") == pytest.approx(rate, rel=0.005)
    assert titan.get("tokens_per_second_per_gpu") == pytest.approx(rate, rel=0.005)
    assert nanotron.get("memory") == pytest.approx(memory, rel=0.005)
    assert titan.get("memory") == pytest.approx(memory, rel=0.001)
    assert [titan.get(axis) for axis in ("dp", "tp", "pp")] == [nanotron.get(axis) for axis in ("dp", "tp", "pp")]
    assert titan.text("gpu") == "NVIDIA H100 80GB HBM3"
    assert nanotron.get("micro_batch") == titan.get("per_device_batch")


def test_what_nanotron_rounds_is_marked_as_rough():
    assert "tokens_per_second" in runs("nanotron-0001.log")[0].rough


def test_deepspeed_states_samples_and_its_profiler_a_step():
    profiled, run = runs("deepspeed-1.log")
    assert profiled.get("seconds") == pytest.approx(0.37216, rel=1e-4)  # vTrain's first row
    assert profiled.get("params") == 355e6
    assert run.get("samples_per_second") == pytest.approx(16 / 0.372160408, rel=0.01)
    assert run.get("memory") == pytest.approx(9.88 * 2**30)


@pytest.mark.parametrize("letter", "abc")
def test_trainer_state_and_console_of_one_run_agree(letter: str):
    (printed,), (kept,) = runs(f"hf-{letter}.log"), runs(f"trainer_state-{letter}.json")
    assert printed.get("steps") == kept.get("steps") == 12
    assert printed.get("samples_per_second") == pytest.approx(kept.get("samples_per_second"), rel=0.001)
    assert printed.get("loss") == pytest.approx(kept.get("loss"), rel=0.001)
    assert printed.get("per_device_batch") == kept.get("per_device_batch")


def test_our_own_rows_state_everything():
    first, second, third = runs("measurement.jsonl")
    assert first.get("seq_len") == 64
    assert second.get("seq_len") == 128
    assert third.get("dp") == 2
    assert first.get("memory") == pytest.approx(0.5 * 2**30, rel=0.05)


@pytest.mark.parametrize("ending", ["jsonl", "csv", "md"])
def test_llama_bench_is_the_same_in_every_output(ending: str):
    found = runs(f"llama-bench.{ending}")
    assert [run.get("decode") for run in found[:4]] == [115.42, 111.74, 97.31, pytest.approx(87.5, abs=0.1)]
    assert found[4].get("prefill") == 4030.4
    assert found[0].text("quant") == "Q4_K_M"
    assert found[0].get("params") == pytest.approx(8.03e9, rel=1e-3)


@pytest.mark.parametrize("ending", ["jsonl", "csv", "md"])
def test_llama_bench_of_today_is_read_and_tokens_behind_a_filled_cache_are_behind_a_prompt(ending: str):
    """As it printed them: 64 tokens of prompt and 16 generated, with an empty cache and behind 256 tokens."""
    found = runs(f"llama-bench-cpu.{ending}")
    assert [(run.get("prompt"), run.get("output")) for run in found] == [(64, 0), (0, 16), (64, 0), (256, 16)]
    speeds = [run.get("decode" if run.get("output") else "prefill") for run in found]
    printed = [116.542, 30.642, 136.835, 29.898] if ending == "csv" else [65.16, 9.03, 112.28, 37.75]
    assert speeds == pytest.approx(printed, abs=0.01)
    assert {run.text("quant") for run in found} == {"Q4_K_M"}
    assert found[0].get("params") == pytest.approx(134.515e6, rel=1e-4)


def test_a_format_can_be_told_and_a_wrong_name_is_refused():
    with pytest.raises(UserError, match="did you mean 'megatron'"):
        detect.read_file(FIXTURES / "megatron-lm-22b.log", "megatrom")
    told = detect.read_file(FIXTURES / "megatron-lm-22b.log", "nanotron")
    assert told.runs == []


def test_a_file_of_no_format_is_refused_with_the_formats(tmp_path):
    path = tmp_path / "noise.log"
    path.write_text("hello\nworld\n")
    with pytest.raises(UserError, match="no known format"):
        detect.read_file(path)


def read(text: str, name: str) -> list[Run]:
    return detect.find_format(name).read(lines(io.StringIO(text))).runs


def test_a_table_without_bars_at_its_edges_is_a_table():
    (run,) = read("Nodes | TP | Sec/it\n--- | ---: | ---:\n4 | 8 | 12.5\n\nwords | more words\n", "markdown")
    assert (run.get("nodes"), run.get("tp"), run.get("seconds")) == (4, 8, 12.5)


def test_a_table_with_a_rank_a_row_is_one_run():
    text = "# Run\n\n- Total Throughput: 4,000 tokens/sec\n\n| GPU | tok/s | loss |\n|--|--|--|\n| 0 | 1,010 | 10.8 |\n| 1 | 990 | 10.9 |\n"
    (run,) = read(text, "markdown")
    assert run.ranks == {"tokens_per_second": (1010, 990), "loss": (10.8, 10.9)}
    assert run.get("tokens_per_second") == 4000


def test_lines_of_deepspeeds_pipeline_engine_are_steps():
    text = "".join(f"steps: {i} loss: {11 - i / 10:.4f} iter time (s): 1.250 samples/sec: 25.600\n" for i in range(1, 6))
    assert detect.detect(text) is detect.find_format("deepspeed")
    (run,) = read(text, "deepspeed")
    assert (run.get("seconds"), run.get("samples_per_second"), run.get("steps")) == (1.25, 25.6, 5)
    assert run.get("loss") == 10.9


def test_steps_of_our_own_trainer_are_one_run_in_bytes():
    text = "".join(
        f'{{"step": {i}, "loss": {6.2 - i / 10}, "grad_norm": 1.0, "seconds": 0.5, "memory": 480002048.0}}\n' for i in range(6)
    )
    assert detect.detect(text) is detect.find_format("jsonl")
    (run,) = read(text, "jsonl")
    assert (run.get("seconds"), run.get("memory"), run.get("steps")) == (0.5, 480002048, 6)
    assert (run.get("loss"), run.get("loss_step")) == (6.2, 0)
