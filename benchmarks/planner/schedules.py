"""Difference between the closed form of a pipeline's time and the simulated schedule, over random layouts."""

import random
from functools import cache

import numpy as np

from meshwise.catalogue.calibrations import Calibration
from meshwise.catalogue.clusters import find_cluster
from meshwise.catalogue.frameworks import find_framework
from meshwise.cost.axes import SCHEDULES
from meshwise.cost.layout import Layouts
from meshwise.cost.train.question import Question
from meshwise.cost.train.schedule import simulate
from meshwise.cost.train.stages import layers_before
from meshwise.cost.train.step import evaluate, layer_and_head, pass_times
from meshwise.cost.work import Train
from meshwise.models.find import find_model
from meshwise.plan.train.rules import cut_rules
from meshwise.plan.train.search import divisors

MODELS = ("llama-3-8b", "llama-3-70b", "bloom-176b", "gemma-2-2b", "mixtral-8x7b", "mamba2-130m")
FRAMEWORKS = ("torchtitan", "megatron-deepspeed", "nanotron")
DRAWN = 100
"""Layouts per schedule, with fewer micro-batches than stages and without."""
model_of, cluster_of = cache(find_model), cache(find_cluster)


def draw(rng: random.Random, schedule: str) -> tuple[Question, Layouts] | None:
    """Return a random layout, or None where its framework does not run it."""
    program, model = find_framework(rng.choice(FRAMEWORKS)), model_of(rng.choice(MODELS))
    pp, rounds = rng.choice((2, 3, 4, 6, 8, 12, 16, 24, 32)), rng.randint(1, 6)
    m = pp * rounds if schedule == "interleaved" else rng.choice((rng.randint(1, pp), rng.randint(pp, 6 * pp)))
    work = Train(batch=m, seq=rng.choice((2048, 8192)), framework=program)
    q = Question.of(model, cluster_of("jean-zay:4"), work, Calibration())
    depths = divisors(model.decoder.layers // pp)[1:] if model.decoder.layers % pp == 0 else []
    axes = {"pp": pp, "tp": rng.choice((1, 2)), "recompute": rng.choice((0, 1, 2)), "schedule": SCHEDULES.index(schedule)}
    if schedule not in program.schedules or (schedule == "interleaved" and not depths):
        return None
    layout = Layouts.of(**axes, vpp=rng.choice(depths) if schedule == "interleaved" else 1)
    rules = cut_rules(q, layout)
    return (q, layout) if rules["pp cuts the layers into stages"][0] and pp <= model.decoder.layers else None


def differences(q: Question, layout: Layouts) -> tuple[float, float]:
    """Return the relative differences of the closed form and of the published bubble from the simulated schedule, first forward to last
    backward pass."""
    a, m, schedule = layout.as_floats(), int(q.work.batch), SCHEDULES[int(layout.schedule[0])]
    layer, head = (
        np.stack([p.forward, p.backward, p.weight])[:, 0]
        for p in (pass_times(q, a, parts) for parts in layer_and_head(q, layout))
    )
    pp, vpp = int(layout.pp[0]), int(layout.vpp[0])
    seconds = layer[:, None, None] * np.diff(layers_before(q, a, np.arange(pp + 1.0)))[:, None] / vpp * np.ones(vpp)
    seconds[:, -1, -1] += head
    outside = ("p2p", "dp", "optimizer", "offload", "fixed")
    inside = sum(float(value[0]) for part, value in evaluate(q, layout).time.items() if part not in outside)
    simulated, slot = simulate(schedule, seconds, m).makespan, seconds.sum(axis=(0, 2)).max()
    idle = 1 - 2 * layer[2] / layer.sum() if schedule == "zero-bubble" else 1 / vpp
    published = m * slot + (seconds.sum() - slot) * idle
    return abs((inside - m * q.calibration.stage_launch) / simulated - 1), abs(published / simulated - 1)


def main() -> None:
    print(f"{'largest difference from the simulated schedule':58}{'closed form':>14}{'as for equal stages':>22}")
    for schedule in SCHEDULES:
        if not any(schedule in find_framework(name).schedules for name in FRAMEWORKS):
            continue  # naive stages run one after another: there is nothing to simulate
        kinds = {False: "micro-batches >= stages", True: "micro-batches < stages"}
        if schedule == "interleaved":  # needs a multiple of the stages
            del kinds[True]
        rng, drawn = random.Random(0), dict[bool, list[tuple[float, float]]]()
        while min(len(drawn.get(fewer, ())) for fewer in kinds) < DRAWN:
            case = draw(rng, schedule)
            if case is not None:
                drawn.setdefault(int(case[0].work.batch) < int(case[1].pp[0]), []).append(differences(*case))
        for fewer, words in kinds.items():
            closed, published = np.max(drawn[fewer][:DRAWN], axis=0)
            print(f"{f'{schedule}, {words}, {DRAWN} layouts':58}{closed:14.4%}{published:22.1%}")


if __name__ == "__main__":
    main()
