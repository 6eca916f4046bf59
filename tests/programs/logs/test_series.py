"""Steps of a log become one run for each batch size, each start and each setup."""

from meshwise.programs.logs.series import Series
from meshwise.runs.reading import Reading
from support.audits import read_text


def test_a_batch_that_ramps_up_is_a_run_for_each_batch():
    line = "iteration {}/100 | elapsed time per iteration (ms): {} | global batch size: {} | lm loss: 1.0E+01 |\n"
    text = "".join(line.format(i, 100 * (1 + i // 5), 32 * (1 + i // 5)) for i in range(1, 15))
    assert [run.number("batch") for run in read_text(text, "megatron").runs] == [32, 64, 96]


def test_a_run_that_starts_anew_is_another_run():
    line = "iteration {}/100 | elapsed time per iteration (ms): {} | global batch size: 32 | lm loss: {}E+01 |\n"
    text = "".join(line.format(i, 100, 1.0) for i in range(1, 9)) + "".join(line.format(i, 50, 0.4) for i in range(5, 12))
    first, second = read_text(text, "megatron").runs
    assert (first.number("seconds"), second.number("seconds")) == (0.1, 0.05)
    assert second.number("loss_step") == 5


def test_a_run_has_the_median_time_the_first_loss_and_the_peak_memory():
    reading = Reading()
    series = Series(reading, "x")
    series.fact("dp", 4.0)
    for step, seconds in enumerate((9.0, 5.0, 1.0, 1.0, 1.0, 1.2), 1):
        series.step(step, f"line {step}", {"seconds": seconds, "loss": 11.0 - step, "memory": 1e9 * step})
    series.flush()
    (run,) = reading.runs
    assert (run.number("seconds"), run.number("first_loss"), run.number("loss_step"), run.number("memory")) == (1.0, 10.0, 1, 6e9)
    assert (run.number("steps_seen"), run.number("dp"), run.where, run.text("framework")) == (6, 4, "line 1", "x")


def test_a_fact_that_changes_after_steps_starts_another_run_without_the_old_facts():
    reading = Reading()
    series = Series(reading, "x")
    series.fact("dp", 4.0)
    series.fact("tp", 2.0)
    series.step(1, "line 1", {"seconds": 1.0})
    series.fact("dp", 8.0)
    series.step(2, "line 2", {"seconds": 2.0})
    series.flush()
    first, second = reading.runs
    assert (first.number("dp"), first.number("tp")) == (4, 2)
    assert second.number("dp") == 8
    assert not second.stated("tp")
