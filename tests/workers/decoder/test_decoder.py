"""The transformers engine: its fused layers compute what HF's do, and its worker measures on a CPU as on a GPU."""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from meshwise.errors import DoesNotFit
from meshwise.run.bench.speeds import Setting
from meshwise.run.serve import transformers
from meshwise.workers.decoder.__main__ import main
from meshwise.workers.decoder.rows import COLUMNS, row, spread
from meshwise.workers.decoder.settings import Job, Point
from support.command import Run
from support.nursery import Nursery


@pytest.mark.slow
def test_the_fused_layers_compute_what_hf_does(interpreted: Nursery) -> None:
    """Qwen2 has biases, Qwen3 norms of heads, Llama neither."""
    printed = interpreted.run(str(Path(__file__).with_name("fused_worker.py")))
    assert printed.split() == ["Qwen2Config", "True", "Qwen3Config", "True"]


def values() -> dict[str, object]:
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 64}
    return {"model_type": "llama", "num_key_value_heads": 1, **sizes}


Worker = Callable[[Job], tuple[int, list[dict[str, object]]]]


@pytest.fixture
def worker(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Worker:
    """Run the program in this process; `bench` below starts it as a process."""

    def measured(job: Job) -> tuple[int, list[dict[str, object]]]:
        (tmp_path / "job.json").write_text(job.to_json())
        code = main(tmp_path / "job.json")
        return code, [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    return measured


def test_a_worker_measures_every_point_on_a_cpu(worker: Worker) -> None:
    points = (Point(prompt=5, output=3, users=1), Point(prompt=5, output=2, users=3))
    job = Job(name="small", model=values(), points=points, device="cpu", precision="fp32", repeats=2)
    code, (ready, *found) = worker(job)
    assert (code, ready["device"]) == (0, "cpu")
    # 64 x 32 twice (table and head), 4 x 32 x 32 less half the keys' and values', 3 x 32 x 48, three gains: by hand
    assert ready["params"] == 2 * 64 * 32 + 3 * 32 * 32 + 3 * 32 * 48 + 3 * 32
    assert [(one["prompt"], one["output"], one["users"], one["outcome"]) for one in found] == [(5, 3, 1, "ok"), (5, 2, 3, "ok")]
    assert all(len(one["decode_s"]) == len(one["prefill_s"]) == 2 for one in found)  # pyright: ignore[reportArgumentType]


@pytest.mark.slow
def test_two_processes_that_share_each_layer_compute_what_one_does(nursery: Nursery, tmp_path: Path) -> None:
    """Logits of a prompt and of two steps, and the tokens chosen; each process holds half of all that can be sharded."""
    model = values() | {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8}
    (tmp_path / "job.json").write_text(Job(name="x", model=model, points=(), device="cpu", precision="fp32", tp=2).to_json())
    nursery.run(str(Path(__file__).with_name("sharded_worker.py")), str(tmp_path / "job.json"), processes=2)
    no_plan = "transformers has no tensor-parallel plan for gpt2"
    for rank in range(2):
        found = json.loads((tmp_path / f"{rank}.json").read_text())
        assert found == {"llama": [True] * 3, "qwen3": [True] * 3, "gpt2": no_plan}


def test_a_plan_with_tensor_parallelism_is_timed_by_as_many_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program of ours starts them; a stand-in prints its arguments instead."""
    stand_in = tmp_path / "python"
    stand_in.write_text(f"#!{sys.executable}\nimport json, sys; print(json.dumps({{'error': ' '.join(sys.argv[1:8])}}))\n")
    stand_in.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(stand_in))
    asked = transformers.job("llama-debug", [Setting(prompt=5, output=2, users=1)], device="cpu", repeats=1, tp=2)
    with pytest.raises(DoesNotFit, match=r"meshwise\.workers\.local 2 meshwise\.workers\.decoder"):
        transformers.timed(asked, lambda: None)


def test_a_worker_reports_in_one_line_why_it_fails(worker: Worker) -> None:
    job = Job(name="odd", model={"model_type": "no-such-type"}, points=(), device="cpu")
    code, (printed,) = worker(job)
    assert code == 3
    assert "no-such-type" in str(printed["error"])


@pytest.mark.slow
def test_bench_times_a_model_without_weights(run: Run) -> None:
    """Without a GPU it is timed on the CPU, and not compared with a prediction for a GPU."""
    words = ["--engine", "transformers", "--on", "1xh200", "--prompt", "8", "--output", "3", "--users", "1,2", "--repeats", "1"]
    done = run("bench", "llama-debug", *words, "--json")
    assert done.code == 0
    found = json.loads(done.out)
    assert found["engine"] == "transformers"
    assert [point["users"] for point in found["points"]] == [1, 2]
    assert all(point["decode"] > 0 and point["prefill"] > 0 for point in found["points"])
    assert found["device"] != "cpu" or all(point["predicted"] is None for point in found["points"])


def test_a_row_has_the_columns_of_the_tables_and_rates_by_the_median() -> None:
    """Worked: 32 tokens for each of 4 users in 0.64 s are 200 a second; a prompt of 128 in 0.1 s is 1280."""
    found = {"prompt": 128, "output": 32, "users": 4, "outcome": "ok", "memory": 2**31, "variant": "fused"}
    made = row(found | {"prefill_s": [0.1, 0.1, 0.5], "decode_s": [0.64, 0.6, 0.7]}, {"model": "m", "note": "torch 2"})
    assert tuple(made) == COLUMNS
    assert (made["decode_tok_s"], made["prefill_tok_s"], made["ttft_ms"], made["mem_gb"]) == ("200", "1280", "100", "2")
    assert spread([0.64, 0.6, 0.7]) == pytest.approx(0.1 / 0.64)
    lost = row(found | {"outcome": "oom", "prefill_s": [], "decode_s": [], "memory": 0}, {"model": "m"})
    assert (lost["decode_tok_s"], lost["outcome"]) == ("", "oom")
