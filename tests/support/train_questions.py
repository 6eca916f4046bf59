"""Questions about training, and layouts to evaluate, that the tests of cost and plan share."""

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from math import prod
from typing import Any

import numpy as np
from hypothesis import strategies as st

from meshwise.catalogue.calibrations import Calibration
from meshwise.catalogue.clusters import find_cluster
from meshwise.catalogue.frameworks import Framework, find_framework
from meshwise.cost.axes import OFFLOAD, RECOMPUTE
from meshwise.cost.finetune import parse
from meshwise.cost.layout import Layouts
from meshwise.cost.train.question import Question
from meshwise.cost.train.step import evaluate
from meshwise.cost.work import OBJECTIVES, Train
from meshwise.models.find import find_model
from meshwise.plan.train.rules import cut_rules
from meshwise.plan.train.search import divisors

MODELS = (
    "llama-debug",
    "llama-3-8b",
    "bloom-560m",
    "mixtral-8x7b",
    "deepseek-v2-lite",
    "mamba2-130m",
    "ttt-linear-125m",
    "gemma-2-2b",
)
CLUSTERS = (
    "1x8xh100-sxm",
    "jean-zay:4",
    "8xrtx4090",
    "2x(4xrtx3090)@10Gbps",
    "tpu-v5e:4x4",
    "2x(2x8xh100-sxm)@100Gbps,20ms",
    "1xh200",
    "2x8xmi300x",
)
FRAMEWORKS = (
    "megatron",
    "megatron-bridge",
    "megatron-deepspeed",
    "torchtitan",
    "nanotron",
    "fsdp",
    "deepspeed",
    "accelerate",
    "ddp",
    "maxtext",
    "hai-llm",
    "meshwise",
    "mlx-lm",
)

METHODS = ("full", "full", "full", "lora:16", "dora:8", "qlora:8", "freeze:1")

found_model = cache(find_model)
found_cluster = cache(find_cluster)


def question(
    model: str = "llama-3-8b",
    cluster: str = "1x8xh100-sxm",
    framework: str | Framework = "megatron",
    calibration: Calibration | None = None,
    **work: Any,
) -> Question:
    """A question about names of the catalogue, with the default prior unless a calibration is given."""
    program = find_framework(framework) if isinstance(framework, str) else framework
    train = Train(**({"batch": 48, "seq": 2048, "framework": program} | work))
    return Question.of(found_model(model), found_cluster(cluster), train, calibration or Calibration())


@st.composite
def questions(draw: st.DrawFn) -> Question:
    """Any of the models on any of the clusters in any framework. Evaluation checks no rule, so nothing is too large."""
    model, cluster, framework = (draw(st.sampled_from(names)) for names in (MODELS, CLUSTERS, FRAMEWORKS))
    return question(
        model,
        cluster,
        framework,
        batch=draw(st.sampled_from((1, 6, 48, 512))),
        seq=draw(st.sampled_from((512, 2048, 8192))),
        finetune=parse(draw(st.sampled_from(METHODS))),
        objective=OBJECTIVES[draw(st.sampled_from(("sft", "sft", "dpo", "reward")))],
    )


def stages(q: Question) -> list[int]:
    """Numbers of stages that the layers of a model can be split into, evenly or as its framework does."""
    numbers = np.arange(1, q.model.decoder.layers + 1)
    return numbers[cut_rules(q, Layouts.of(pp=numbers))["pp cuts the layers into stages"]].tolist()


@st.composite
def rows(draw: st.DrawFn, q: Question) -> dict[str, int]:
    """A layout that divides the batch, the layers and the experts of a question, on any number of devices."""
    d, batch = q.model.decoder, int(q.work.batch)

    def divisor(n: int) -> int:
        return draw(st.sampled_from(divisors(n)))

    dp_replicate = divisor(batch)
    dp_shard = divisor(batch // dp_replicate)
    pp, cp = draw(st.sampled_from(stages(q))), draw(st.sampled_from((1, 2, 4)))
    tp = draw(st.sampled_from([n for n in (1, 2, 4, 8) if max(d.heads, 8) % n == 0]))
    vpp = divisor(d.layers // pp) if pp > 1 and d.layers % pp == 0 else 1
    expert = any(op.expert for op in q.model.ops)
    zero = draw(st.sampled_from((1, 2, 3))) if dp_shard * cp > 1 else 0
    etp = draw(st.sampled_from(sorted({1, tp}))) if expert else 1
    return {
        "dp_replicate": dp_replicate,
        "dp_shard": dp_shard,
        "tp": tp,
        "pp": pp,
        "cp": cp,
        "ep": draw(st.sampled_from([n for n in divisors(dp_shard * cp * tp // etp) if n <= 8])) if expert else 1,
        "etp": etp,
        "mbs": divisor(batch // (dp_replicate * dp_shard)),
        "vpp": vpp,
        "zero": zero,
        "recompute": draw(st.integers(0, len(RECOMPUTE) - 1)),
        "sp": draw(st.sampled_from((0, 1))) if tp > 1 else 0,
        "schedule": 1 if vpp > 1 else draw(st.sampled_from((0, 2))) if pp > 1 else 0,
        "offload": draw(st.integers(0, len(OFFLOAD) - 1)),
    }


@st.composite
def questions_with_layouts(draw: st.DrawFn, most: int = 6) -> tuple[Question, Layouts]:
    """A question and some layouts of it."""
    q = draw(questions())
    return q, block(draw(st.lists(rows(q), min_size=1, max_size=most)))


def block(table: list[dict[str, int]]) -> Layouts:
    return Layouts.of(**{axis: np.array([row[axis] for row in table]) for axis in table[0]})


def cost(q: Question, **axes: int) -> tuple[dict[str, float], dict[str, float]]:
    """Seconds by part and bytes by kind of one layout, named by the axes that are not 1 (or 0)."""
    found = evaluate(q, Layouts.of(**axes))
    return {part: float(value[0]) for part, value in found.time.items()}, {k: float(v[0]) for k, v in found.memory.items()}


def seconds(q: Question, **axes: int) -> float:
    return sum(cost(q, **axes)[0].values())


def faster(
    q: Question,
    *,
    memory: float = 1,
    link: float = 1,
    network: float = 1,
    flops: float = 1,
    capacity: float = 1,
    latency: float = 1,
) -> Question:
    """The question on a cluster whose rates and memory are multiplied by these factors, and whose latencies are divided by one."""
    chip = replace(
        q.chip,
        bandwidth=q.chip.bandwidth * memory,
        memory=q.chip.memory * capacity,
        flops={dtype: rate * flops for dtype, rate in q.chip.flops.items()},
    )
    (count, node), wire = q.cluster.nodes[0], q.cluster.network
    wires = replace(node.link, bandwidth=node.link.bandwidth * link) if node.link else None
    nodes = ((count, replace(node, chips=((node.devices, chip),), link=wires)),)
    across = replace(wire, bandwidth=wire.bandwidth * network) if wire else None
    waits = {name: getattr(q.calibration, name) / latency for name in ("link_latency", "network_latency")}
    tiers = tuple(replace(tier, latency=tier.latency and tier.latency / latency) for tier in q.cluster.tiers)
    cluster = replace(q.cluster, nodes=nodes, network=across, tiers=tiers)
    return Question.of(q.model, cluster, q.work, replace(q.calibration, **waits))


def sums_to(parts: Mapping[str, Any], total: Any) -> bool:
    return bool(np.allclose(np.sum([*parts.values()], axis=0), total, rtol=1e-12))


def devices(row: Mapping[str, int | str]) -> int:
    return prod(int(row[axis]) for axis in ("dp_replicate", "dp_shard", "tp", "pp", "cp"))


QUIET = Calibration(layer_launch=0, layer_gap=0, stage_launch=0, step=0)


def only(parts: dict[str, Any]) -> dict[str, float]:
    return {name: value.item() for name, value in parts.items()}
