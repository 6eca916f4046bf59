"""What a serving plan says of its own figures: measured runs near it, the width of its interval, and what would narrow it."""

import meshwise as mw
from meshwise.catalogue import evidence


def test_a_plan_near_measured_runs_counts_them_and_lists_the_nearest_first() -> None:
    lines = mw.serve("llama-3-8b:q4_k_m", on="1xrtx3090").believe()
    assert lines[0].startswith("Calibration llama.cpp")
    assert "measured runs of llama.cpp near it" in lines[1]
    assert "llama-3-8b Q4_K_M on 1 rtx3090, 1 user" in lines[2]
    assert lines[-2].startswith("Interval: ")
    assert lines[-1].startswith("What would narrow it most: ")


def test_a_plan_far_from_every_run_says_that_it_is_extrapolated() -> None:
    lines = mw.serve("llama-3.1-405b:q4_k_m", on="8xm4-max:128GB@10Gbps").believe()
    assert "no measured run of llama.cpp is near this one" in lines[1]
    assert any("parts of a step that it was not fitted to" in line or "errors of the calibration" in line for line in lines)


def test_every_run_of_an_engine_states_both_speeds_and_whether_its_fit_has_seen_it() -> None:
    runs = evidence.served()
    assert len({run.table for run in runs}) > 8
    assert all(run.measured > 0 and run.predicted > 0 for run in runs)
    assert all(run.left_out for run in runs if run.table == "engines_at_load")


def test_the_causes_of_an_interval_add_up_to_it() -> None:
    made = mw.serve("gpt-oss-120b", on="m4-max:128GB")
    line = next(line for line in made.believe() if line.startswith("Interval"))
    assert f"{made.best.low:.4g} to {made.best.high:.4g}" in line
    assert "experts, which it was not fitted to" in line
