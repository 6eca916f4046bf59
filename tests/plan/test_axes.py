"""Each axis of a training question changes its own part and nothing else."""

from dataclasses import asdict
from typing import Any

import pytest

from meshwise.errors import UserError
from meshwise.plan.ask import TrainAsk
from meshwise.plan.axes import TRAIN_AXES
from meshwise.plan.train import lookup
from meshwise.plan.vary import parse, variants
from support.command import one_line

ASK = TrainAsk(model="llama-3-8b", on="4x8xh100-sxm", batch=512, seq=4096, framework="megatron")


def varied(*texts: str) -> list[TrainAsk]:
    found = variants(ASK, parse(texts, TRAIN_AXES, ASK), TRAIN_AXES)
    assert all(variant.ask for variant in found)
    return [variant.ask for variant in found if variant.ask]


@pytest.mark.parametrize(
    ("text", "changed"),
    [
        ("nodes=16", {"on": "16x8xh100-sxm"}),
        ("devices=16", {"on": "2x8xh100-sxm"}),
        ("gpus=16", {"on": "2x8xh100-sxm"}),
        ("chip=h200-141gb", {"on": "4x8xh200"}),
        ("link=900GB/s", {"link": 900e9}),
        ("network=800Gbps", {"on": "4x8xh100-sxm@100GB/s:infiniband"}),
        ("batch=4M", {"batch": 1024}),
        ("batch=48", {"batch": 48}),
        ("batch=48x4096", {"batch": 48}),
        ("seq=8k", {"seq": 8192, "batch": 256}),  # the tokens of a step stay
        ("precision=fp8", {"precision": "fp8"}),
        ("optimizer=muon", {"optimizer": "muon"}),
        ("framework=TorchTitan", {"framework": "torchtitan"}),
    ],
)
def test_an_axis_changes_its_own_part_and_nothing_else(text: str, changed: dict[str, Any]) -> None:
    (found,) = varied(text)
    assert asdict(found) == asdict(ASK) | changed


def test_every_example_of_an_axis_can_be_typed() -> None:
    for axis in TRAIN_AXES.values():
        assert parse([f"{axis.name}={axis.example}"], TRAIN_AXES, ASK)[0].axis is axis


def test_a_varied_link_or_network_reaches_the_question() -> None:
    q = lookup.question(varied("link=123GB/s")[0])
    assert q.cluster.node.link
    assert q.cluster.node.link.bandwidth == 123e9
    q = lookup.question(varied("network=400Gbps")[0])
    assert q.cluster.network
    assert q.cluster.network.bandwidth == 50e9


def test_batch_and_sequence_length_do_not_depend_on_their_order() -> None:
    for texts in (("batch=1M,2M", "seq=4k,8k"), ("seq=4k,8k", "batch=1M,2M")):
        found = {(ask.batch * ask.seq, ask.seq) for ask in varied(*texts)}
        assert found == {(2**20, 4096), (2**20, 8192), (2**21, 4096), (2**21, 8192)}


def test_a_length_that_does_not_divide_the_tokens_is_a_point_with_the_reason() -> None:
    (found,) = variants(ASK, parse(["seq=3000"], TRAIN_AXES, ASK), TRAIN_AXES)
    assert found.ask is None
    assert found.refusal == "a batch of 2,097,152 tokens is not a whole number of sequences of 3,000"


def test_labels_are_as_people_write_them() -> None:
    for text, labels in (
        ("batch=1M..4M", ["1M", "2M", "4M"]),
        ("batch=1000", ["1000x4096"]),  # 4,096,000 tokens are not a round number of M
        ("link=64GB/s,1TB/s", ["64 GB/s", "1 TB/s"]),
        ("nodes=1024", ["1,024"]),
        ("seq=4k,6000", ["4k", "6000"]),
    ):
        assert [v.labels[0] for v in variants(ASK, parse([text], TRAIN_AXES, ASK), TRAIN_AXES)] == labels


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("nodes=0", "'0' is not a number of nodes or devices"),
        ("nodes=-1", "'-1' is not a number"),
        ("nodes=1.5", "'1.5' is not a number"),
        ("nodes=" + "9" * 5000, "is not a number of nodes"),
        ("chip=h100x", "unknown chip 'h100x'; did you mean 'h100-sxm'?"),
        ("link=12", "'12' is not a bandwidth: it has no unit"),
        ("link=0GB/s", "'0GB/s': expected more than 0"),
        ("network=80GiB", "'80GiB' is not a bandwidth but a size"),
        ("batch=5k", "not a whole number of sequences"),
        ("batch=64x2048", "has another sequence length than 4,096"),
        ("batch=0", "is not a batch"),
        ("seq=0", "is not a sequence length"),
        ("precision=int3", "'int3': expected one of bf16, fp16, fp8"),
        ("optimizer=adam", "'adam': expected one of adamw"),
        ("framework=megatorn", "did you mean 'megatron'?"),
        ("nodes=4 --vary devices=32", "is not a number"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_an_invalid_value_is_refused_in_one_line(text: str, words: str) -> None:
    with pytest.raises(UserError) as caught:
        parse([text], TRAIN_AXES, ASK)
    assert words in one_line(caught.value)


def test_nodes_and_devices_contradict_each_other() -> None:
    with pytest.raises(UserError, match="--vary nodes and --vary devices both set the number of devices"):
        parse(["nodes=4", "gpus=32"], TRAIN_AXES, ASK)
