"""DeepSpeed logs: throughput timer, flops profiler and the pipeline engine. Figures: tests/fixtures/audit/README.md."""

import pytest

from meshwise.programs.logs import detect
from support.audits import read_text, runs_of


def test_deepspeed_states_samples_and_its_profiler_a_step():
    profiled, run = runs_of("deepspeed-1.log")
    assert profiled.number("seconds") == pytest.approx(0.37216, rel=1e-4)  # vTrain's first row
    assert profiled.number("params") == 355e6
    assert run.number("samples_per_second") == pytest.approx(16 / 0.372160408, rel=0.01)
    assert run.number("memory") == pytest.approx(9.88 * 2**30)


def test_lines_of_the_pipeline_engine_are_steps():
    text = "".join(f"steps: {i} loss: {11 - i / 10:.4f} iter time (s): 1.250 samples/sec: 25.600\n" for i in range(1, 6))
    assert detect.detect(text) is detect.find_format("deepspeed")
    (run,) = read_text(text, "deepspeed").runs
    assert (run.number("seconds"), run.number("samples_per_second"), run.number("steps_seen")) == (1.25, 25.6, 5)
    assert run.number("first_loss") == 10.9
