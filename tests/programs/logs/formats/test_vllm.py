"""vLLM: results of its benchmark as text and JSON, and the log of its server."""

import json

import pytest

from meshwise.programs.logs.formats import vllm
from meshwise.programs.logs.lines import Line
from meshwise.runs.reading import Reading

RESULT = """\
============ Serving Benchmark Result ============
Successful requests:                     1000
Maximum request concurrency:             50
Benchmark duration (s):                  60.12
Total input tokens:                      512000
Total generated tokens:                  128000
Output token throughput (tok/s):         2129.07
---------------Time to First Token----------------
Mean TTFT (ms):                          120.33
P99 TTFT (ms):                           512.70
Mean TPOT (ms):                          22.10
=================================================="""
RATE = "INFO [loggers.py:118] Engine 000: Avg prompt throughput: {} tokens/s, Avg generation throughput: {} tokens/s, Running: {} reqs, "
LOG = "\n".join([
    "INFO [cli_args.py:309] non-default args: {'model': 'Qwen/Qwen3-32B', 'tensor_parallel_size': 2, 'max_model_len': 8192}",
    RATE.format("512.3", "128.1", 4) + "Waiting: 0 reqs, GPU KV cache usage: 1.2%",
    RATE.format("2048.0", "512.9", 16) + "Waiting: 0 reqs, GPU KV cache usage: 5.1%",
    RATE.format("2050.0", "518.0", 16) + "Waiting: 0 reqs, GPU KV cache usage: 5.0%",
    RATE.format("2050.0", "999.0", 16) + "Waiting: 9 reqs, GPU KV cache usage: 5.0%",
])  # fmt: skip


def read(text: str) -> Reading:
    assert vllm.matches(text)
    return vllm.read(Line(number, line) for number, line in enumerate(text.splitlines(), 1))


def test_a_result_has_mean_lengths_load_throughput_and_latencies() -> None:
    (run,) = read(RESULT).runs
    stated = {name: run.value(name) for name in ("requests", "users", "prompt", "output", "decode", "ttft", "tpot")}
    assert stated == pytest.approx(
        {"requests": 1000, "users": 50, "prompt": 512, "output": 128, "decode": 2129.07, "ttft": 0.12033, "tpot": 0.0221}
    )


def test_the_json_of_a_result_says_the_same_as_its_text() -> None:
    values = {
        "model_id": "Qwen/Qwen3-32B-FP8", "completed": 1000, "total_input_tokens": 512000, "total_output_tokens": 128000,
        "output_throughput": 2129.07, "mean_ttft_ms": 120.33, "mean_tpot_ms": 22.1, "max_concurrency": 50, "request_rate": "inf",
    }  # fmt: skip
    (run,), (told,) = read(json.dumps(values, indent=1)).runs, read(RESULT).runs
    for name in ("users", "prompt", "output", "decode", "ttft", "tpot"):
        assert run.value(name) == told.value(name)
    assert run.value("weights") == "fp8"


def test_a_log_has_a_run_per_number_of_requests_that_nothing_waited_behind() -> None:
    (run,) = read(LOG).runs
    assert (run.value("users"), run.value("decode"), run.value("tp")) == (16, 518.0, 2)
    assert run.value("model") == "Qwen/Qwen3-32B"
