"""Launch: what `run` was asked for as the settings of the trainer, refused before any process starts where it cannot run."""

import importlib.util
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, cast

from meshwise.catalogue import chips, clusters, here
from meshwise.cost.train.question import Question
from meshwise.errors import UserError, one_of, quoted
from meshwise.models import find
from meshwise.models.model import Model, build
from meshwise.plan import ask, of_run
from meshwise.plan.train import plan
from meshwise.plan.train.choice import Choice
from meshwise.run.text import corpus
from meshwise.run.text.fingerprint import fingerprint
from meshwise.run.train.hosts import Hosts, meeting
from meshwise.run.train.hosts import find as find_hosts
from meshwise.units import GIB
from meshwise.workers.trainer.hf import expected
from meshwise.workers.trainer.models.registry import family_of, sizes_of, unsupported
from meshwise.workers.trainer.settings import (
    ON_NAN,
    PRECISIONS,
    RECOMPUTE,
    SCHEDULES,
    SPLIT_BACKWARD,
    Layout,
    Settings,
    broken_rules,
    valid_choices,
)

DEFAULT = "llama-debug"
BATCH, SEQ = 8, 64
RESTARTS = 3
"""Times that workers are started again, where there are checkpoints to go on from."""
PROCESSES = 4
"""Processes for each core of a CPU, at most: more of them would wait for each other for minutes."""
STATE = 16
"""Bytes of a parameter, its gradient and AdamW's two moments, all float32: what training holds on a CPU at the least."""


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
        dropout = family_of(self.settings.model).ignored_dropout(self.settings.model)
        notes = [f"the config asks for dropout of {dropout:g}; the trainer has none, and trains without"] if dropout else []
        if self.assumed:
            other = self.on.replace(here.NETWORK, "25Gbps")
            notes.append(
                f"the prediction takes {here.NETWORK} between the nodes, for it knows no better; --on {other} would name another"
            )
        return notes

    def question(self) -> Question:
        """The planner's question for the same model, batch and machine."""
        return of_run.question_of(self.settings, self.model, self.on)

    def predicted(self) -> Choice:
        """The predicted cost of this layout."""
        return of_run.predicted(self.settings, self.model, self.on)

    def reading(self, say: Callable[[str], None]) -> "Launch":
        """The same with token files to read, which are made where there are none yet."""
        if self.text is None:
            return self
        files = corpus.tokenized(self.text, Path(self.settings.out), self.settings.seq, say)
        return replace(self, settings=replace(self.settings, data=files))


def prepare(wish: Wish) -> Launch:
    """Everything looked up and checked."""
    device = here.device(wish.device)
    precision = wish.precision or ("bf16" if device == "cuda" else "fp32")
    one_of("--precision", precision, PRECISIONS)
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
            _check_kind(ask.on)
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
    one_of("--on-nan", settings.on_nan, ON_NAN)
    if settings.weights:
        check_weights(values, name, Path(settings.weights))
    rules = broken_rules(settings)
    if rules:
        raise BrokenRules(rules, valid_choices(settings))
    on = wish.on or (ask.on if ask else here.cluster_text(device, layout.devices // hosts.nodes, hosts.nodes))
    model = build(values, name, "")
    # without a checkpoint a restart would begin at the first step
    restarts = (RESTARTS if settings.checkpoint_every else 0) if wish.max_restarts is None else wish.max_restarts
    assumed = not (wish.on or ask) and on.endswith(f"@{here.NETWORK}")
    return Launch(replace(settings, facts=_facts(model, settings, on)), model, on, text, hosts, restarts, assumed=assumed)


def _text(wish: Wish, name: str, values: dict[str, Any], seq: int) -> "corpus.Corpus | None":
    found = corpus.look(wish.data, wish.tokenizer, wish.text_key, int(wish.options.get("seed", 0)))
    if found:
        corpus.fits(found, name, sizes_of(values).vocab, seq)
    return found


def _is_plan(what: str) -> bool:
    return what.endswith(".json") and os.path.isfile(what) and "ask" in find.values_of(Path(what))


def _planned(what: str) -> tuple[ask.TrainAsk, "dict[str, int | str]"]:
    """The question of a plan and its best layout, less what the trainer does of its own."""
    made = plan.read(Path(what))
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
    values, label, _ = find.find_values(name)
    reason = unsupported(values)
    if reason:
        raise UserError(f"the trainer cannot build {label}: {reason}; try llama-debug or bloom-560m")
    build(values, label, "")  # what the planner refuses of a config, such as a missing key, is said in its words
    return {key: value for key, value in values.items() if key != "meshwise"}, label


def check_weights(values: dict[str, Any], name: str, given: Path) -> None:
    """Refuse `--weights` that are not those of this model, by the tables at the heads of their files."""
    try:
        expected.check(values, name, given)
    except expected.WeightsError as error:
        raise UserError(f"--weights {error}") from None


def _devices(axes: "dict[str, int | str]") -> int:
    return Layout(**cast(Any, axes)).devices


def _layout(axes: "dict[str, int | str]", batch: int) -> Layout:
    for name, valid in (("schedule", SCHEDULES), ("recompute", RECOMPUTE)):
        if name in axes:
            one_of(f"--{name}", str(axes[name]), valid)
    found = Layout(**cast(Any, axes))
    if "mbs" in axes:
        return found
    # a pipeline of p stages idles (p - 1) / m of m micro-batches: twice as many as stages where the batch has them
    rounds = 1 if found.pp == 1 else found.pp * max(r for r in (1, 2) if r == 1 or batch % (found.dp * found.pp * r) == 0)
    return replace(found, mbs=max(1, batch // max(1, found.dp * rounds)))


def _check_devices(need: int, device: str) -> None:
    """Of this machine alone."""
    cores = os.cpu_count() or 1
    have = len(here.gpus()) if device == "cuda" else PROCESSES * cores
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
    whole, have = STATE * params, here.host_memory()
    need = whole * layout.dp_replicate / nodes
    if need <= have:
        return
    machines = -(-whole // have)
    helps = f"{machines:.0f} such machines hold it with --nodes {machines:.0f} --dp-shard {machines:.0f}"
    if need > whole / nodes <= have:
        helps = f"--dp-shard {layout.dp} instead of --dp-replicate keeps it once, in {whole / nodes / GIB:.1f} GiB"
    raise UserError(
        f"weights, gradients and AdamW's state of {name} take {need / GIB:.1f} GiB on this machine's CPU, which has "
        f"{have / GIB:.1f} GiB; {helps}, and a smaller model takes less"
    )


def _check_kind(cluster: str) -> None:
    """A batch for GPUs takes a CPU hours and all of its memory: that must be asked for."""
    nodes = clusters.find_cluster(cluster).nodes
    if not any(chip.kind == "cpu" for _, node in nodes for _, chip in node.chips):
        raise UserError(f"the plan is for {cluster}, and no GPU is here; --device cpu trains it on this CPU all the same")


def _facts(model: Model, settings: Settings, on: str) -> "dict[str, float | str]":
    """What the trainer cannot know: FLOPs a token, and the peak and memory of the chip."""
    tokens = float(settings.seq)
    found: dict[str, float | str] = {"flops_per_token": model.flops(tokens, settings.seq) / tokens, "params": float(model.params)}
    if settings.device == "cuda" and on:
        from meshwise.catalogue.clusters import find_cluster

        chip = find_cluster(on).chip
        peak = chip.flops.get(cast(Any, settings.precision))
        known = chips.catalogued(chip) if chip.key == chips.HERE else chip
        found |= {"gpu": (known or chip).key, "capacity": chip.memory} | ({"peak": peak} if peak else {})
    return found


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
