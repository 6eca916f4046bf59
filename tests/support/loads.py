"""Replicas, and random settings of load, that tests and benchmarks of serving share."""

import random
from collections.abc import Iterator
from dataclasses import replace
from functools import cache

from meshwise.catalogue.calibrations import choose_serve
from meshwise.catalogue.chips import host_cpu
from meshwise.catalogue.clusters import find_cluster
from meshwise.catalogue.engines import find_runtime
from meshwise.cost.serve.load.estimate import highest_rate
from meshwise.cost.serve.load.requests import Lengths, Limits, Load
from meshwise.cost.serve.memory.cache import CacheRequest, layer_caches
from meshwise.cost.serve.memory.placement import split_tensors
from meshwise.cost.serve.passes.demand import demand
from meshwise.cost.serve.passes.speed import PassCost
from meshwise.cost.serve.rig import Rig
from meshwise.cost.work import Serve
from meshwise.models.find import find_model
from meshwise.models.formats import FORMATS, weights

REPLICAS = (
    ("llama-3.1-8b", "fp8", "h100-sxm", 1, 1),
    ("llama-3.1-70b", "fp8", "4xh100-sxm", 4, 1),
    ("llama-3.1-70b", "fp8", "8xh100-sxm", 4, 2),
    ("qwen3-30b-a3b", "bf16", "h200", 1, 1),
    ("llama-3.1-8b", "bf16", "rtx4090", 1, 1),
    ("gpt-oss-20b", "mxfp4", "h100-sxm", 1, 1),
)


@cache
def replica(name: str = "llama-3.1-8b", fmt: str = "fp8", on: str = "h100-sxm", tp: int = 1, pp: int = 1) -> PassCost:
    """The seconds of passes of a model with vLLM."""
    model, runtime = find_model(name), find_runtime("vllm")
    stored, cluster = weights(model, FORMATS[fmt]), find_cluster(on)
    placed = split_tensors(model, stored, layer_caches(model, runtime, CacheRequest(context=544)), tp, pp)
    work = Serve(prompt=512, output=32, context=544)
    asked = demand(model, stored, placed, Rig.of(cluster, host_cpu(cluster)), runtime, work)
    return PassCost(asked, lambda chip: choose_serve(chip, "vllm"))


def random_settings(number: int, seed: int, *, options: bool = False) -> Iterator[tuple[PassCost, Load, Limits]]:
    """Yield replicas with loads of one to 512 users, or of 20 to 80% of the highest rate, and with limits of common engines. `options`:
    also with drafts, cached prefixes and earlier turns, each in some of them."""
    rng = random.Random(seed)
    while number:
        cost, spread = replica(*rng.choice(REPLICAS)), rng.choice((0.0, 0.5, 1.0))
        prompt, output = (Lengths(round(2 ** rng.uniform(*ends)), spread) for ends in ((6, 13), (5, 10.5)))
        load = Load(prompt=prompt, output=output)
        if options:
            drafted = {"draft": rng.choice((1, 3, 5)), "accept": rng.uniform(0.4, 0.85)} if rng.random() < 0.4 else {}
            prefix, depth = rng.choice((0.0, 0.0, 0.3, 0.7)), rng.choice((0, 0, 1024, 8192))
            load = replace(load, prefix=prefix, depth=depth, **drafted)
        limits = Limits(
            sequences=rng.choice((64, 256, 1024)),
            tokens=rng.choice((2048, 4096, 8192)),
            cache=float(round(2 ** rng.uniform(16.5, 20))),
            reserves=rng.random() < 0.5,
        )
        if limits.running(load) < 2:
            continue
        if rng.random() < 0.5:
            yield cost, replace(load, users=round(2 ** rng.uniform(0, 9))), limits
        else:
            bursty = replace(load, burst=rng.choice((1.0, 1.0, 1.5)))
            yield cost, replace(bursty, rate=highest_rate(cost, bursty, limits) * rng.uniform(0.2, 0.8)), limits
        number -= 1
