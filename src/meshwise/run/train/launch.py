"""Launch: what `run` was asked for as the settings of the trainer, refused before any process starts where it cannot run."""

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, cast

from meshwise.catalogue import chips as hardware
from meshwise.catalogue import clusters
from meshwise.cost.train.step import Question, price
from meshwise.errors import UserError, nearest, quoted
from meshwise.models import find as lookup
from meshwise.models.model import Model, build
from meshwise.plan.train import choice as plans
from meshwise.run.text import corpus
from meshwise.run.text.fingerprint import fingerprint
from meshwise.run.train.hosts import Hosts, meeting
from meshwise.run.train.hosts import find as find_hosts
from meshwise.workers.trainer.hf import expected as wanted
from meshwise.workers.trainer.settings import (
    DEVICES,
    ON_NAN,
    PRECISIONS,
    RECOMPUTE,
    SCHEDULES,
    SPLIT_BACKWARD,
    Layout,
    Settings,
    Sizes,
    broken,
    dropout_of,
    unbuildable,
    would_do,
)

DEFAULT = "llama-debug"
BATCH, SEQ = 8, 64
RESTARTS = 3
"""Times that workers are started again, where there are checkpoints to go on from."""
NETWORK = "10Gbps"
"""Between nodes of which nothing is known."""
PROCESSES = 4
"""Processes for each core of a CPU, at most: more of them would wait for each other for minutes."""
STATE = 16
"""Bytes of a parameter, its gradient and AdamW's two moments, all float32: what training holds on a CPU at the least."""
LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
"""Where Linux tells a container its bytes, in the second and the first version of control groups."""


@dataclass(frozen=True, kw_only=True)
class Wish:
    """What a user typed; what is empty or None was left open."""

    what: str = ""
    axes: dict[str, int | str] = field(default_factory=dict[str, "int | str"])
    batch: int = 0
    seq: int = 0
    on: str = ""
    device: str = ""
    precision: str = ""
    data: str = ""
    tokenizer: str = ""
    text_key: str = ""
    nodes: int | None = None
    node_rank: int | None = None
    rendezvous: str = ""
    max_restarts: int | None = None
    dry_run: bool = False
    """Nothing is started, so the devices need not be here."""
    options: dict[str, Any] = field(default_factory=dict[str, Any])
    """Fields of Settings that need no thought: steps, lr, seed, out, weights, save, compile."""


class BrokenRules(UserError):
    """A layout that the trainer cannot run, and what would do."""

    def __init__(self, rules: list[str], other: str) -> None:
        super().__init__(f"the layout cannot run: {'; '.join(rules)}" + (f" ({other} would do)" if other else ""))
        self.rules = rules


@dataclass(frozen=True)
class Launch:
    """A run that can start."""

    settings: Settings
    model: Model
    on: str
    """The cluster in words; empty where the chip is not in the catalogue."""
    assumed: bool = field(default=False, kw_only=True)
    """Whether nobody has said what joins its nodes."""
    text: "corpus.Corpus | None" = None
    """What is read; None is the embedded text in bytes."""
    hosts: Hosts = field(default_factory=Hosts)
    max_restarts: int = 0

    @property
    def notes(self) -> list[str]:
        """What is done in another way than the model's config says, and what is assumed of the machines."""
        dropout = dropout_of(self.settings.model)
        notes = [f"the config asks for dropout of {dropout:g}; the trainer has none, and trains without"] if dropout else []
        if self.assumed:
            other = self.on.replace(NETWORK, "25Gbps")
            notes.append(
                f"the prediction takes {NETWORK} between the nodes, for it knows no better; --on {other} would name another"
            )
        return notes

    def reading(self, say: Callable[[str], None]) -> "Launch":
        """The same with token files to read, which are made where there are none yet."""
        if self.text is None:
            return self
        files = corpus.tokenized(self.text, Path(self.settings.out), self.settings.seq, say)
        return replace(self, settings=replace(self.settings, data=files))


def prepare(wish: Wish) -> Launch:
    """Everything looked up and checked."""
    device = device_of(wish.device)
    precision = wish.precision or ("bf16" if device == "cuda" else "fp32")
    _one_of("--precision", precision, PRECISIONS)
    ask, axes = _planned(wish.what) if _is_plan(wish.what) else (None, dict[str, "int | str"]())
    given = ask.model if ask else wish.what or DEFAULT
    values, name = buildable(given)
    batch, seq = wish.batch or (ask.batch if ask else BATCH), wish.seq or (ask.seq if ask else SEQ)
    layout = _layout(axes | wish.axes, batch)
    if ask and layout.devices != _devices(axes):
        raise UserError(f"the plan is for {_devices(axes)} devices, and the axes given beside it multiply to {layout.devices}")
    hosts = find_hosts(os.environ, layout.devices, nodes=wish.nodes, node_rank=wish.node_rank, rendezvous=wish.rendezvous)
    if not hosts.worker and not wish.dry_run:
        _check_devices(layout.devices // hosts.nodes, device)
        if ask and device == "cpu" and not wish.device:
            _check_kind(ask.cluster)
        if device == "cpu":
            _check_memory(build(values, name, "").params, layout, hosts.nodes, name)
    text = _text(wish, name, values, seq)
    # split backward passes cannot be compiled, and a CPU takes longer to compile than most of its runs
    usual: dict[str, Any] = {"compile": device == "cuda" and layout.schedule not in SPLIT_BACKWARD}
    settings = Settings(
        name=name, given=given, model=values, layout=layout, batch=batch, seq=seq, precision=precision, device=device,
        text=text.words if text else "", tokenizer=bool(text and text.laid), **(usual | wish.options),
    )  # fmt: skip
    if text and settings.checkpoint_every:
        settings = replace(settings, fingerprint=fingerprint(text))
    _one_of("--on-nan", settings.on_nan, ON_NAN)
    if settings.weights:
        check_weights(values, name, Path(settings.weights))
    rules = broken(settings)
    if rules:
        raise BrokenRules(rules, would_do(settings))
    on = wish.on or (ask.cluster if ask else _here(device, layout.devices // hosts.nodes, hosts.nodes))
    model = build(values, name, "")
    # without a checkpoint a restart would begin at the first step
    restarts = (RESTARTS if settings.checkpoint_every else 0) if wish.max_restarts is None else wish.max_restarts
    assumed = not (wish.on or ask) and on.endswith(f"@{NETWORK}")
    return Launch(replace(settings, facts=_facts(model, settings, on)), model, on, text, hosts, restarts, assumed=assumed)


def _text(wish: Wish, name: str, values: dict[str, Any], seq: int) -> "corpus.Corpus | None":
    found = corpus.look(wish.data, wish.tokenizer, wish.text_key, int(wish.options.get("seed", 0)))
    if found:
        corpus.fits(found, name, Sizes.of(values).vocab, seq)
    return found


def device_of(given: str) -> str:
    """What was asked for, or what is here."""
    device = given or ("cuda" if gpus() else "cpu")
    _one_of("--device", device, DEVICES)
    return device


def _one_of(option: str, given: str, valid: tuple[str, ...]) -> None:
    if given not in valid:
        raise UserError(f"{option} {quoted(given)} is none of {', '.join(valid)}{nearest(given, valid)}")


def _is_plan(what: str) -> bool:
    return what.endswith(".json") and os.path.isfile(what) and "ask" in lookup.values_of(Path(what))


def _planned(what: str) -> tuple[plans.Ask, "dict[str, int | str]"]:
    """The question of a plan and its best layout, less what the trainer does of its own."""
    made = plans.read(Path(what))
    row = made.choices[0].layout
    if int(row["ep"]) > 1 or row["offload"] != "none":
        raise UserError(f"{what}: the trainer has no expert parallelism and no offload; plan with --fix ep=1,offload=none")
    if made.ask.precision not in PRECISIONS or made.ask.optimizer != "adamw":
        raise UserError(
            f"{what} is for {made.ask.precision} and {made.ask.optimizer}; the trainer has bf16 and adamw: plan with these"
        )
    return made.ask, {f.name: row[f.name] for f in fields(Layout)}


def buildable(name: str) -> tuple[dict[str, Any], str]:
    """The config.json of a model that the trainer has, and its name."""
    if name.lower().endswith(".gguf"):
        raise UserError(f"{quoted(name)}: the trainer builds models from a config.json, not from a .gguf")
    values, label, _ = lookup.find_values(name)
    reason = unbuildable(values)
    if reason:
        raise UserError(f"the trainer cannot build {label}: {reason}; try llama-debug or bloom-560m")
    build(values, label, "")  # what the planner refuses of a config, such as a missing key, is said in its words
    return {key: value for key, value in values.items() if key != "meshwise"}, label


def check_weights(values: dict[str, Any], name: str, given: Path) -> None:
    """Refuse `--weights` that are not those of this model, by the tables at the heads of their files."""
    try:
        wanted.check(values, name, given)
    except wanted.Unfit as error:
        raise UserError(f"--weights {error}") from None


def _devices(axes: "dict[str, int | str]") -> int:
    return Layout(**cast(Any, axes)).devices


def _layout(axes: "dict[str, int | str]", batch: int) -> Layout:
    for name, valid in (("schedule", SCHEDULES), ("recompute", RECOMPUTE)):
        if name in axes:
            _one_of(f"--{name}", str(axes[name]), valid)
    found = Layout(**cast(Any, axes))
    if "mbs" in axes:
        return found
    # a pipeline of p stages idles (p - 1) / m of m micro-batches: twice as many as stages where the batch has them
    rounds = 1 if found.pp == 1 else found.pp * max(r for r in (1, 2) if r == 1 or batch % (found.dp * found.pp * r) == 0)
    return replace(found, mbs=max(1, batch // max(1, found.dp * rounds)))


def gpus() -> list[str]:
    """The names of this machine's NVIDIA GPUs, as many as CUDA_VISIBLE_DEVICES leaves."""
    if shutil.which("nvidia-smi") is None:
        return []
    asked = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    done = subprocess.run(asked, capture_output=True, text=True, check=False)
    names = [line.strip() for line in done.stdout.splitlines() if line.strip()] if done.returncode == 0 else []
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return names if visible is None else names[: len([one for one in visible.split(",") if one.strip()])]


def _check_devices(need: int, device: str) -> None:
    """Of this machine alone."""
    cores = os.cpu_count() or 1
    have = len(gpus()) if device == "cuda" else PROCESSES * cores
    if not have:
        raise UserError("--device cuda: no NVIDIA GPU is here; --device cpu trains on this CPU")
    if need > have:
        what = "GPUs" if device == "cuda" else f"processes on its {cores} CPU cores"
        raise UserError(
            f"the layout is for {need} device{'s' * (need != 1)}, and this machine has {have} {what}; "
            f"choose axes that multiply to at most {have}"
        )


def _check_memory(params: int, layout: Layout, nodes: int, name: str) -> None:
    """Refuse what no activation is needed for to fill this machine, whose processes share its memory."""
    whole, have = STATE * params, host_memory()
    need = whole * layout.dp_replicate / nodes
    if need <= have:
        return
    machines = -(-whole // have)
    helps = f"{machines:.0f} such machines hold it with --nodes {machines:.0f} --dp-shard {machines:.0f}"
    if need > whole / nodes <= have:
        helps = f"--dp-shard {layout.dp} instead of --dp-replicate keeps it once, in {whole / nodes / 2**30:.1f} GiB"
    raise UserError(
        f"weights, gradients and AdamW's state of {name} take {need / 2**30:.1f} GiB on this machine's CPU, which has "
        f"{have / 2**30:.1f} GiB; {helps}, and a smaller model takes less"
    )


def host_memory() -> float:
    """Bytes that processes of this machine may hold: what it has, or what a container was given."""
    found = [float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))]
    for limit in LIMITS:
        try:
            found.append(float(Path(limit).read_text(encoding="ascii")))
        except (OSError, ValueError):  # no such group, or the word max
            continue
    return min(found)


def _check_kind(cluster: str) -> None:
    """A batch for GPUs takes a CPU hours and all of its memory: that must be asked for."""
    nodes = clusters.find_cluster(cluster).nodes
    if not any(chip.kind == "cpu" for _, node in nodes for _, chip in node.chips):
        raise UserError(f"the plan is for {cluster}, and no GPU is here; --device cpu trains it on this CPU all the same")


def _here(device: str, devices: int, nodes: int) -> str:
    """As many machines as this one in the words of a cluster: as `meshwise probe` measured it, or as the catalogue knows its chip."""
    own = hardware.known_chip(hardware.part_of_here(devices if device == "cpu" else 1))
    if device == "cpu":
        chip = own if own and own.kind == "cpu" else hardware.find_chip("cpu")
    else:
        name = next(iter(gpus()), "")
        chip = hardware.known_chip(name.removeprefix("NVIDIA ")) if name else None
        if own and name and own.name == f"{own.key}: {chip.name if chip else name}":
            chip = own
    if chip is None:
        return ""
    # cards that come with a network of their vendor's have that
    return f"{nodes}x{devices}x{chip.key}" + (f"@{NETWORK}" if nodes > 1 and chip.network is None else "")


def _facts(model: Model, settings: Settings, on: str) -> "dict[str, float | str]":
    """What the trainer cannot know: FLOPs a token, and the peak and memory of the chip."""
    tokens = float(settings.seq)
    found: dict[str, float | str] = {"flops_per_token": model.flops(tokens, settings.seq) / tokens, "params": float(model.params)}
    if settings.device == "cuda" and on:
        from meshwise.catalogue.clusters import find_cluster

        chip = find_cluster(on).nodes[0][1].chips[0][1]
        peak = chip.flops.get(cast(Any, settings.precision))
        known = hardware.catalogued(chip) if chip.key == hardware.HERE else chip
        found |= {"gpu": (known or chip).key, "capacity": chip.memory} | ({"peak": peak} if peak else {})
    return found


def question_of(launch: Launch) -> Question:
    """What the planner would be asked for the same model, batch and machine."""
    s = launch.settings
    half = "bf16" if s.precision == "fp32" else s.precision
    ask = plans.Ask(model=s.name, cluster=launch.on, batch=s.batch, seq=s.seq, framework="meshwise", precision=half)
    return ask.question(launch.model)


def predicted(launch: Launch) -> plans.Choice:
    """The planner's answer for the same layout."""
    asked, a = question_of(launch), launch.settings.layout
    row: dict[str, int | str] = {f.name: getattr(a, f.name) for f in fields(Layout)}
    row |= {"ep": 1, "sp": int(a.tp > 1), "offload": "none", "zero": a.zero if a.dp_shard > 1 else 0}
    row |= {"schedule": "zero-bubble" if a.schedule == "zbv" else a.schedule}
    layouts = plans.layouts_of(row)
    return plans.choice(asked, layouts, price(asked, layouts), 0)


def check_torch(verb: str = "run") -> None:
    if importlib.util.find_spec("torch") is None:
        raise UserError(
            f"'meshwise {verb}' needs PyTorch, which is not installed: pip install '.[train]' in the folder of meshwise"
        )


def command(launch: Launch, file: Path) -> list[str]:
    """What starts the workers of this machine; where another program started them, what makes this process one."""
    worker = ["-m", "meshwise.workers.trainer", str(file)]
    if launch.hosts.worker:
        return [sys.executable, *worker]
    each = [
        "--nproc-per-node",
        str(launch.settings.layout.devices // launch.hosts.nodes),
        "--max-restarts",
        str(launch.max_restarts),
    ]
    return [
        sys.executable,
        "-m",
        "meshwise.workers.trainer.ranks.agent",
        *meeting(launch.hosts, launch.settings.timeout),
        *each,
        *worker,
    ]


def threads(launch: Launch) -> str:
    """Cores for each process of a CPU run, shared out evenly."""
    each = max(1, launch.settings.layout.devices // launch.hosts.nodes)
    return str(max(1, (os.cpu_count() or 1) // each)) if launch.settings.device == "cpu" else "8"
