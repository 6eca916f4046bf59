"""Generation of answers: seconds and bytes of a serving engine on some devices, from the cost model of serving."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from meshwise.catalogue.chips import Cluster
from meshwise.cost.serve.question import ServeQuestion
from meshwise.plan.ask import ServeAsk, TrainAsk
from meshwise.plan.serve import lookup
from meshwise.plan.serve.search import Option, search

ENGINE = "vllm"


@dataclass(frozen=True, kw_only=True)
class Rollout:
    """The generation of all answers of a step."""

    layout: str
    users: int
    """Answers that are generated at once, on all devices."""
    seconds: float
    weights: float
    """Bytes of the fullest device."""
    cache: float


def generate(ask: TrainAsk, cluster: Cluster, devices: int, number: int, taken: float = 0.0) -> Rollout | None:
    """Return the fastest way to generate `number` answers on `devices` devices, of whose memory `taken` bytes are in use; None where the
    model does not fit. As many are generated at once as the cache holds, or fewer where that is faster."""
    best: Rollout | None = None
    if _fastest(ask, cluster, devices, 1, taken) is None:
        return None
    for users in _halved(number):
        option = _fastest(ask, cluster, devices, users, taken)
        if option is None:
            continue
        found = _rollout(ask, option, number)
        if best is not None and found.seconds > best.seconds:
            return best
        best = found
    return best


def _halved(number: int) -> Iterator[int]:
    while number >= 1:
        yield number
        number //= 2


def _fastest(ask: TrainAsk, cluster: Cluster, devices: int, users: int, taken: float) -> Option | None:
    """Return the fastest way to serve this many concurrent users; None if none fits."""
    q = _question(ask, cluster, devices, users, taken)
    return next((one for one in search(q).options if one.speed), None) if q else None


def _question(ask: TrainAsk, cluster: Cluster, devices: int, users: int, taken: float) -> ServeQuestion | None:
    """Return the question on some devices of the cluster with less memory; None where none is left."""
    node = cluster.node
    chip = replace(cluster.chip, memory=cluster.chip.memory - taken)
    if chip.memory <= 0:
        return None
    served = ServeAsk(
        ask.model, on=ask.on, engine=ENGINE, users=users, context=ask.seq, prompt=ask.prompt, output=ask.seq - ask.prompt
    )
    inside = min(devices, node.devices)
    shape = (max(1, devices // node.devices), replace(node, chips=((inside, chip),)))
    return replace(lookup.question(served), cluster=replace(cluster, nodes=(shape,)))


def _rollout(ask: TrainAsk, option: Option, number: int) -> Rollout:
    """Return the time of waves of answers: their prompts, then one step per token. Answers to one prompt share its pass and its cache
    (vLLM's prefix caching is on by default)."""
    speed, copies = option.speed, option.layout.replicas
    assert speed is not None
    waves = max(1.0, number / (speed.users * copies))
    prompts = max(1.0, speed.users / ask.answers)
    seconds = waves * ((ask.seq - ask.prompt) * speed.step + prompts * speed.prefill_seconds)
    held = option.footprints[1:]
    return Rollout(
        layout=option.layout.name, users=min(number, speed.users * copies), seconds=seconds,
        weights=max(one.weights for one in held), cache=max(one.cache for one in held),
    )  # fmt: skip
