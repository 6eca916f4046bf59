"""Generation of answers: seconds and bytes of the engines on some devices, from the cost model of serving.

All answers of a step start together (or as soon as the cache has room), and the number that is still decoded falls until the longest one
ends: a step of decoding is evaluated at the batch and the context of each moment.
"""

import heapq
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

from meshwise.catalogue.chips import Cluster
from meshwise.catalogue.rl_programs import Overheads, RlProgram
from meshwise.cost.finetune import parse
from meshwise.cost.serve.layouts import ServeLayout, refuses
from meshwise.cost.serve.passes.speed import Batch, PassCost
from meshwise.cost.serve.passes.tokens import adapted_products
from meshwise.cost.serve.question import ServeQuestion
from meshwise.plan.ask import ServeAsk, TrainAsk
from meshwise.plan.rl.lengths import Answers
from meshwise.plan.serve import lookup
from meshwise.plan.serve.option import Option
from meshwise.plan.serve.search import with_memory, with_speed

MOMENTS = 40  # moments of a rollout at which a step of decoding is evaluated
EAGER_LAYER_SECONDS = 1.6e-4
"""Host seconds to launch the kernels of a layer one by one, where the calibration of the engine has none: that of vLLM (data/serving)."""
RDMA_RATE, RDMA_LATENCY_SECONDS = 12e9, 2e-6
"""Networks of at least 100 Gbit/s between nodes of accelerators are RDMA; the latency of one step of a collective on them."""
MOST_SIMULATED = 4096
"""Answers of one engine that are followed one by one; more are followed as this many, each standing for several."""


@dataclass(frozen=True)
class Engine:
    """The policy on `tp` devices, as an engine of one program runs it."""

    option: Option
    tp: int
    sequences: int  # the most answers at once, by its settings
    launch: float
    """Seconds in which the host launches the kernels of a step one by one, while the device computes; 0 with CUDA graphs."""
    between: float  # seconds between two steps in which the device waits for the host

    @property
    def cost(self) -> PassCost:
        assert self.option.cost
        return self.option.cost

    @cached_property
    def weights(self) -> float:
        """Bytes of the fullest device."""
        return max(one.weights for one in self.option.footprints[1:])

    @property
    def cache_tokens(self) -> float:
        return self.option.limits.cache

    def step(self, decodes: float, context: float) -> float:
        """Return the seconds of one step of decoding: `decodes` answers with `context` tokens each."""
        reached = self.cost.d.reached(context)
        batch = Batch(decodes, tuple(decodes * tokens for tokens in reached), groups=1)
        return max(self.cost.seconds(batch), self.launch) + self.between

    def prompt(self, tokens: int) -> float:
        """Return the seconds of one prompt."""
        return self.cost.seconds(self.cost.prompt_batch(tokens)) if tokens else 0.0

    def slots(self, answers: Answers, prompt: int, share: float) -> int:
        """Return how many answers run at once: as the cache holds, with the tokens that a running answer has on average. `share`: answers
        to one prompt, which share its cache."""
        held = prompt / max(1.0, share) + answers.squared / 2 + self.option.limits.fixed
        return max(1, min(self.sequences, math.floor(self.cache_tokens / held)))


@dataclass(frozen=True, kw_only=True)
class Rollout:
    """The generation of all answers of a step."""

    layout: str
    tp: int
    engines: int
    at_once: int  # answers that are generated at once, on all devices
    seconds: float
    tail: float  # seconds in which fewer than half of these are still generated
    weights: float  # bytes of the fullest device
    cache: float


def engines(ask: TrainAsk, program: RlProgram, cluster: Cluster, share: float, taken: float, o: Overheads) -> list[Engine]:
    """Return every engine that fits in `share` of a device's memory, of which `taken` bytes are in use; by tensor-parallel size."""
    found: list[Engine] = []
    q: ServeQuestion | None = None
    for tp in _sizes(ask, cluster):
        nodes = max(1, tp // cluster.node.devices)
        if q is None or len(q.cards) < tp:
            q = _question(ask, program, cluster, nodes, share, taken)
        if q is None:
            continue
        cards = tuple(range(tp))
        layout = ServeLayout(split="tensor", cards=cards, tp=tp, hosts=nodes, unit="card")
        if refuses(layout, q.model, q.weights):
            continue
        option = with_memory(q, layout)
        if option.fits and option.limits.cache >= ask.seq:
            found.append(_engine(ask, program, q, with_speed(q, option), o))
    return found


def _sizes(ask: TrainAsk, cluster: Cluster) -> Iterator[int]:
    """Yield tensor-parallel sizes: powers of two inside a node, and whole nodes beyond."""
    if ask.engine_tp:
        yield ask.engine_tp
        return
    tp, inside = 1, cluster.node.devices
    while tp <= min(cluster.devices, 64):
        if tp <= inside or tp % inside == 0:
            yield tp
        tp *= 2


def _question(
    ask: TrainAsk, program: RlProgram, cluster: Cluster, nodes: int, share: float, taken: float
) -> ServeQuestion | None:
    """Return the question of serving on the devices of one engine; None where no memory is left."""
    chip = replace(cluster.chip, memory=cluster.chip.memory - taken)
    if chip.memory <= 0:
        return None
    how = parse(ask.finetune or "full")
    served = ServeAsk(
        ask.model, on=ask.on, engine=program.engine, context=ask.seq, prompt=ask.prompt, output=ask.seq - ask.prompt,
        lora=f"1:{how.rank}" if how.adapts else "",
    )  # fmt: skip
    q = lookup.question(served)
    node = replace(cluster.node, chips=((cluster.node.devices, chip),))
    runtime = replace(q.runtime, usable={**q.runtime.usable, chip.kind: share * cluster.chip.memory / chip.memory})
    if runtime.usable[chip.kind] > 1:  # the share counts from the whole memory
        runtime = replace(runtime, usable={**runtime.usable, chip.kind: 1.0})
    return replace(q, cluster=replace(cluster, nodes=((nodes, node),), network=_rdma(cluster), torus=()), runtime=runtime)


def _rdma(cluster: Cluster):
    """Return the network with the latency of RDMA, where it is as fast and states none."""
    link = cluster.network
    known = link is None or link.latency is not None or link.bandwidth < RDMA_RATE
    return link if known or link is None else replace(link, latency=RDMA_LATENCY_SECONDS)


def _engine(ask: TrainAsk, program: RlProgram, q: ServeQuestion, option: Option, o: Overheads) -> Engine:
    assert option.cost
    cost, launch = option.cost, 0.0
    if ask.eager or program.eager:
        launch = cost.units * (cost.first.prompt_launch or EAGER_LAYER_SECONDS) + cost.first.step
        if q.work.adapters:
            launch += 2 * sum(adapted_products(q.model, q.runtime.joined)) * o.adapter_launch
    most = min(option.limits.sequences, program.sequences or option.limits.sequences)
    return Engine(option, option.layout.tp, most, launch, o.engine_layer * cost.units)


def generate(ask: TrainAsk, engine: Engine, cluster: Cluster, devices: int, answers: Answers, *, steady: bool) -> Rollout | None:
    """Return the generation of all answers on `devices` devices; None where no whole engine fits on them. `steady`: engines do not wait
    for the longest answer, since others are already under way."""
    inside = cluster.node.devices
    copies = devices // inside * (inside // engine.tp) if devices >= inside and engine.tp <= inside else devices // engine.tp
    if not copies:
        return None
    number = math.ceil(answers.number / copies)
    share = min(float(number), float(ask.answers))
    slots = min(number, engine.slots(answers, ask.prompt, share))
    if steady:
        context = ask.prompt + answers.squared / 2
        seconds, tail = number * answers.mean / slots * engine.step(slots, context), 0.0
    else:
        seconds, tail = _decoded(engine, answers.drawn(min(number, MOST_SIMULATED)), slots, number, ask.prompt)
    prompts = number / share * engine.prompt(ask.prompt)
    held = slots * (ask.prompt / share + answers.squared / 2)
    footprint = engine.option.footprints[1:]
    layout = replace(engine.option.layout, replicas=copies)
    return Rollout(
        layout=layout.name, tp=engine.tp, engines=copies, at_once=min(answers.number, slots * copies),
        seconds=seconds + prompts, tail=tail, weights=engine.weights,
        cache=min(1.0, held / engine.cache_tokens) * max(0.0, engine.option.rooms[0] - engine.weights - footprint[0].compute),
    )  # fmt: skip


def _decoded(engine: Engine, lengths: Sequence[float], slots: int, number: int, prompt: int) -> tuple[float, float]:
    """Return the seconds of decoding answers of these lengths, `slots` at a time, and those in which fewer than half of the slots are in
    use. Long and short answers arrive mixed; the longest is in the middle."""
    each = number / len(lengths)
    room = max(1, round(slots / each))
    spans = _scheduled(_mixed(lengths), room)
    last = max(end for _, end in spans)
    edges = [last * i / MOMENTS for i in range(MOMENTS + 1)]
    seconds = tail = 0.0
    for begin, end in pairwise(edges):
        middle = (begin + end) / 2
        alive = [middle - start for start, stop in spans if start <= middle < stop]
        if not alive:
            continue
        taken = (end - begin) * engine.step(max(1.0, len(alive) * each), prompt + sum(alive) / len(alive))
        seconds += taken
        tail += taken if len(alive) * each < slots / 2 else 0.0
    return seconds, tail


def _mixed(lengths: Sequence[float]) -> list[float]:
    """Return lengths in an order without trend: by the golden ratio, which spreads neighbours."""
    size = len(lengths)
    order = sorted(range(size), key=lambda i: (i * 0.6180339887498949) % 1.0)
    return [lengths[i] for i in order]


def _scheduled(lengths: Sequence[float], slots: int) -> list[tuple[float, float]]:
    """Return begin and end of each answer, in steps of decoding, where one starts as soon as another ends."""
    if len(lengths) <= slots:
        return [(0.0, length) for length in lengths]
    busy = [0.0] * slots
    spans: list[tuple[float, float]] = []
    for length in lengths:
        start = heapq.heappop(busy)
        spans.append((start, start + length))
        heapq.heappush(busy, start + length)
    return spans
