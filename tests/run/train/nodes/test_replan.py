"""A run on fewer nodes gets the planner's fastest layout that the trainer can run, with the same batch."""

from pathlib import Path
from typing import Any

import pytest

from meshwise.errors import UserError
from meshwise.run.train.ask import TrainRun
from meshwise.run.train.hosts import Hosts, find, node_range
from meshwise.run.train.launch import Launch, prepare
from meshwise.run.train.nodes import replan
from meshwise.workers.trainer.contract.settings import broken_rules
from support.command import one_line


def ready(nodes: int, **axes: Any) -> Launch:
    made = prepare(TrainRun(device="cpu", dry_run=True, on=f"{nodes}x1xcpu@10Gbps", checkpoint_every=5, **axes))
    return Launch(made.settings, made.model, made.on, hosts=Hosts(nodes, 0, "a:1", least=1))


@pytest.mark.parametrize("nodes", [3, 6])
def test_a_layout_for_fewer_nodes_uses_them_all_and_breaks_no_rule(nodes: int) -> None:
    run = ready(nodes, dp_shard=nodes, batch=60)
    for left in range(1, nodes + 1):
        made = replan.for_nodes(run, left).ready
        assert made.settings.layout.devices == left
        assert broken_rules(made.settings) == []
        assert made.settings.batch == run.settings.batch
        assert replan.for_nodes(run, left).ready.settings == made.settings  # the same again


def test_the_cluster_of_fewer_nodes_keeps_its_chips_and_network() -> None:
    run = ready(3, dp_shard=3, batch=12)
    assert replan.on_nodes(run, 2) == "2x1xcpu@10Gbps"
    words = replan.for_nodes(run, 2).words
    assert words.startswith("layout ")
    assert " instead of dp3 " in words
    assert replan.for_nodes(run, 3).ready is run


def test_a_run_that_could_not_go_on_is_refused_at_the_start() -> None:
    run = ready(6, dp_shard=6, batch=12)
    with pytest.raises(UserError) as refused:
        replan.check_all(run)
    assert "on 5 nodes trains 12 sequences per step" in one_line(refused.value)


def test_a_range_of_nodes_is_read_as_torchrun_reads_it(tmp_path: Path) -> None:
    assert (node_range("4"), node_range("2:4")) == ((4, 4), (2, 4))
    found = find({}, 8, nodes="2:4", node_rank=3, rendezvous="localhost")
    assert (found.nodes, found.least, found.rank) == (4, 2, 3)
    kubeflow = {"PET_NNODES": "1:2", "PET_NODE_RANK": "0", "PET_MASTER_ADDR": "a"}
    assert (find(kubeflow, 8).nodes, find(kubeflow, 8).least) == (2, 1)
    for text in ("0", "3:2", "a", "1:2:3", "-1", "٣", "9999999"):
        with pytest.raises(UserError, match="MIN:MAX"):
            node_range(text)
    with pytest.raises(UserError, match="--checkpoint-every"):
        TrainRun(nodes="2:3")
    with pytest.raises(UserError, match="--report"):
        TrainRun(nodes="2:3", checkpoint_every=5, report=True)
