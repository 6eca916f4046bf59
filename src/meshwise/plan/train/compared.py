"""Compare ways to use several devices, and programs, for one fine-tuning question."""

from dataclasses import replace

from meshwise.catalogue.frameworks import tuners
from meshwise.cost.axes import Bounds, layout_name
from meshwise.cost.train.question import Question
from meshwise.errors import UserError
from meshwise.plan.ask import TrainAsk
from meshwise.plan.train import lookup
from meshwise.plan.train.fallback import MODEL_PARALLEL, fastest_way, in_each_way
from meshwise.plan.train.finetune import Rival, Way
from meshwise.plan.train.search import search


def ways(ask: TrainAsk, q: Question) -> tuple[Way, ...]:
    """Return the best layout of each way in which several devices can be used: DDP, FSDP, DeepSpeed's ZeRO and a device_map."""
    devices = q.cluster.devices
    if not lookup.tunes(ask) or lookup.mixed(ask) or devices == 1:
        return ()
    found: list[Way] = []
    for one in in_each_way(ask, q):
        f = one.work.framework
        sharded = ("ZeRO of DeepSpeed" if f.key == "deepspeed" else "FSDP") if f.zero else ""
        cuts: dict[str, Bounds] = {"DDP": {"dp_shard": (1, 1), "pp": (1, 1)}} if f.replicates else {}
        cuts |= {sharded: {"dp_shard": (2, devices), "pp": (1, 1)}} if sharded else {}
        cuts |= {"device_map": {"pp": (devices, devices)}} if "naive" in f.schedules else {}
        found += [_way(ask, one, name, bounds) for name, bounds in cuts.items()]
    return tuple(found)


def _way(ask: TrainAsk, q: Question, name: str, cut: Bounds) -> Way:
    plain = dict.fromkeys(MODEL_PARALLEL, (1, 1))
    found = search(q, bounds={**plain, **ask.bounds, **cut}, top=1)
    if not len(found.layouts):
        return Way(name, None)
    return Way(name, float(found.cost.step[0]), layout_name(found.layouts.row(0)))


def rivals(ask: TrainAsk, q: Question) -> tuple[Rival, ...]:
    """Return the best layouts of the other programs that fine-tune on these devices, the fastest first; () where one was named."""
    if ask.framework or not lookup.tunes(ask) or lookup.mixed(ask) or q.work.objective.generates:
        return ()
    own = q.work.framework.program.partition("+")[0]
    found: list[Rival] = []
    for name in tuners(q.chip.kind, q.chip.vendor, q.model.model_type):
        named = replace(ask, framework=name)
        try:
            best = fastest_way(named, lookup.question(named, q.model), (), 1) if name != own else None
        except UserError:  # it lacks the method, or the base
            continue
        if best is not None and best.fits:
            f, cost = best.question.work.framework, best.found.cost
            found.append(
                Rival(f.program, f.name, float(cost.step[0]), float(cost.peak[0]), layout_name(best.found.layouts.row(0)))
            )
    return tuple(sorted(found, key=lambda one: one.seconds))
