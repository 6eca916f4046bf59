"""The loop on measured tables."""

import json
from pathlib import Path

import numpy as np
import pytest

from meshwise.catalogue.levels import levels
from meshwise.errors import UserError
from meshwise.tune.replay.groups import left_out, read_groups
from meshwise.tune.replay.replay import learned_order, replay
from meshwise.tune.replay.rivals import optimizer_order, planner, random_order, rule_of_thumb

MUST = {"nanotron_h100_small": (0.02, 0.005), "nanotron_h100_128": (0.25, 0.07)}
"""Time lost after 1 and after 3 runs, at most."""


@pytest.mark.parametrize("table", MUST)
def test_few_runs_find_the_best_layout_of_a_table_that_no_calibration_saw(table: str):
    groups = read_groups(table)[0]
    curves = np.array([group.regret(learned_order(group, 10), 10) for group in groups])
    drawn = np.array([group.regret(random_order(group, seed), 10) for group in groups for seed in range(10)])
    first, third = MUST[table]
    assert np.all(np.diff(curves, axis=1) <= 0)
    assert np.mean(curves[:, 0]) <= first
    assert np.mean(curves[:, 2]) <= third
    assert np.mean(curves[:, 9]) <= 0.01
    assert np.all(np.mean(curves, axis=0) < np.mean(drawn, axis=0))


def test_no_calibration_of_a_built_in_table_was_fitted_to_it():
    for table in ("bloom_prequel", "vtrain_a100_single_node", "nanotron_h100_small", "nanotron_h100_128"):
        assert table in levels().fitted_on
        for group in read_groups(table)[0][:1]:
            calibration = left_out(group.cases[0])
            assert calibration is not None
            assert table not in calibration.fitted_on.split(", ")


def test_an_order_runs_every_row_once():
    group = read_groups("bloom_prequel")[0][0]
    rows = list(range(len(group.cases)))
    orders = (learned_order(group, 99), planner(group), rule_of_thumb(group), random_order(group, 3))
    assert [sorted(order) for order in orders] == [rows] * 4


def test_until_a_run_succeeds_the_slowest_counts():
    group = next(group for group in read_groups("bloom_prequel")[0] if np.isinf(group.seconds).any())
    failed = int(np.argmax(np.isinf(group.seconds)))
    best, slowest = int(np.argmin(group.seconds)), np.max(group.seconds[np.isfinite(group.seconds)])
    assert group.regret([failed, best], 3).tolist() == [slowest / group.seconds[best] - 1, 0.0, 0.0]


def test_the_answer_is_plain_data_with_every_strategy():
    result = replay("bloom_prequel", runs=4, seeds=2)
    stated = json.loads(json.dumps(result.to_json()))
    names = {"meshwise tune", "planner's order", "rule of thumb", "random order"}
    assert names <= set(stated["regret"])
    assert all(len(curve) == 4 for curve in stated["regret"].values())
    assert len(stated["groups"]) == 3
    assert {row["strategy"] for row in result.rows()} == set(stated["regret"])
    assert result.shown == (1, 2, 3, 4)


def test_a_table_without_a_choice_is_refused(tmp_path: Path):
    rows = "n_gpus,gpu,framework,d_model,n_layers,n_heads,vocab,seq_len,global_batch_seqs,micro_batch,tp,sec_per_iter\n"
    path = tmp_path / "one.csv"
    path.write_text(rows + "8,H100,nanotron,2048,16,16,32000,2048,64,1,2,1.5\n")
    with pytest.raises(UserError, match="nothing to choose among"):
        replay(str(path))


def test_a_table_of_served_models_is_refused():
    with pytest.raises(UserError, match="of served models"):
        replay("h200_transformers_8b")


def test_an_optimizer_runs_each_row_once_and_is_told_what_it_ran():
    optuna = pytest.importorskip("optuna")
    group = next(group for group in read_groups("bloom_prequel")[0] if np.isinf(group.seconds).any())
    sampler = optuna.samplers.TPESampler(seed=0, n_startup_trials=3)
    order = optimizer_order(optuna, sampler, group, len(group.cases))
    assert sorted(order) == list(range(len(group.cases)))


def test_a_table_of_ones_own_is_predicted_by_what_ships(tmp_path: Path):
    head = "n_gpus,gpu,framework,d_model,n_layers,n_heads,d_ff,vocab,seq_len,global_batch_seqs,micro_batch,tp,pp,sec_per_iter,outcome\n"
    rows = [
        f"8,H100-80GB,nanotron,2048,16,32,8192,32000,2048,64,{mbs},{tp},{pp},{1 + 0.1 * tp + 0.2 * pp + 0.1 / mbs},ok"
        for tp in (1, 2, 4)
        for pp in (1, 2)
        for mbs in (1, 2)
    ]
    path = tmp_path / "mine.csv"
    path.write_text(head + "\n".join(rows) + "\n")
    result = replay(str(path), runs=5, seeds=3)
    assert result.strategies[0].mean(5) < 0.1
    assert "h100" in result.notes[0]
