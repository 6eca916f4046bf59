"""Launch: a TrainRun as the trainer's settings. A run that cannot work is refused before any process starts."""

import os
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from meshwise.catalogue import chips, clusters, here
from meshwise.cost.axes import AXES
from meshwise.cost.train.question import Question
from meshwise.errors import UserError, quoted
from meshwise.models import find
from meshwise.models.model import Model, build
from meshwise.plan.ask import TrainAsk
from meshwise.plan.train import own_run
from meshwise.plan.train.choice import Choice
from meshwise.run.callbacks import Say
from meshwise.run.packages import require
from meshwise.run.text.fingerprint import fingerprint, weights_fingerprint
from meshwise.run.train import hosts
from meshwise.run.train.ask import AXES as OWN_AXES
from meshwise.run.train.ask import DEFAULT, TrainRun
from meshwise.run.train.finetune import check_length, default_rate, finetune_of, tokenizer_of, trained_note, trained_share
from meshwise.run.train.hosts import Hosts
from meshwise.units import GIB
from meshwise.workers.trainer.contract.files import expected
from meshwise.workers.trainer.contract.finetune.method import FinetuneMethod
from meshwise.workers.trainer.contract.models.registry import description_of, family_of, sizes_of, unsupported
from meshwise.workers.trainer.contract.recipe import default_rate as training_rate
from meshwise.workers.trainer.contract.recipe import default_warm_up
from meshwise.workers.trainer.contract.settings import PRECISIONS, SPLIT_BACKWARD, Layout, Settings, broken_rules, valid_choices

if TYPE_CHECKING:
    from meshwise.run.train.data import Text

BATCH, SEQ = 8, 64
MAX_RESTARTS = 3  # restarts of the workers, where there are checkpoints to resume from
MAX_PROCESSES_PER_CORE = 4  # most processes per CPU core: more would wait for each other for minutes
STATE, FROZEN, QUANTIZED = 16, 4, 1
"""Bytes per parameter: weight, gradient and AdamW's two moments, all float32; a frozen weight in float32; one in nf4, with its copy while
it is used. Training on a CPU holds at least this."""

FORMATS = {optimizer: moments for moments, optimizer in own_run.OPTIMIZERS.items()}
"""Formats of AdamW's moments, by the planner's names of the optimizer."""
Axes = dict[str, int | str]


class BrokenRules(UserError):
    """A layout that the trainer cannot run, with values that it could."""

    def __init__(self, rules: list[str], other: str) -> None:
        super().__init__(f"the layout cannot run: {'; '.join(rules)}" + (f" ({other} would work)" if other else ""))
        self.rules = rules


@dataclass(frozen=True)
class Launch:
    """A run that can start."""

    settings: Settings
    model: Model
    on: str  # the cluster in words; '' if the chip is not in the catalogue
    assumed: bool = field(default=False, kw_only=True)  # whether the network between nodes is an assumption
    text: "Text | None" = None  # the data; None is the embedded text as bytes
    eval_text: "Text | None" = None  # the data of the validation loss, if there is one
    hosts: Hosts = field(default_factory=Hosts)
    max_restarts: int = 0

    @property
    def processes_here(self) -> int:
        """Workers on this machine."""
        return self.settings.layout.devices // self.hosts.nodes

    @property
    def notes(self) -> list[str]:
        """Differences from the model's config, and assumptions about the machines."""
        dropout = family_of(self.settings.model).ignored_dropout(self.settings.model)
        notes = [f"the config has dropout {dropout:g}, which the trainer does not support: it trains without"] if dropout else []
        if trained := trained_note(self.settings.finetune, self.settings.model, self.model.params):
            notes.append(trained)
        window = description_of(self.settings.model).longest_window
        if window >= self.settings.seq:
            notes.append(
                f"the model's window of {window} tokens covers the whole sequence of {self.settings.seq}: no token is left out"
            )
        if self.assumed:
            other = self.on.replace(here.NETWORK, "25Gbps")
            notes.append(f"the prediction assumes {here.NETWORK} between nodes; state another with --on {other}")
        return notes

    def question(self) -> Question:
        """Return the planner's question for this model, batch and machine."""
        return own_run.question(self.settings, self.model, self.on)

    def predicted(self) -> Choice:
        """Return the predicted cost of this layout."""
        return own_run.predict(self.settings, self.model, self.on)

    def tokenize(self, say: Say) -> "Launch":
        """Return the launch with token files to read; they are made where none are cached."""
        if not self.text and not self.eval_text:
            return self
        from meshwise.run.train.data import tokenized

        return replace(self, settings=tokenized(self.settings, self.text, self.eval_text, say))


def prepare(run: TrainRun) -> Launch:
    """Look up and check everything that a run needs."""
    planned, axes = _read_plan(run.what) if _is_plan(run.what) else (None, Axes())
    if planned and planned.finetune and not run.finetune:
        run = replace(run, finetune=planned.finetune)
    device = _device(run, planned)
    given = planned.model if planned else run.what or DEFAULT
    values, name = buildable(given)
    batch, seq = run.shape(planned.batch, planned.seq) if planned else run.shape(BATCH, SEQ)
    layout = _layout(axes | run.axes, batch)
    if planned and layout.devices != _devices(axes):
        raise UserError(f"the plan is for {_devices(axes)} devices, but the axes given with it multiply to {layout.devices}")
    nodes = _hosts(run, layout, planned)
    model = build(values, name, "")
    finetune = finetune_of(run, values, name)
    check_length(run, values, seq)
    if not nodes.worker and not run.dry_run:
        _check_machine(layout, nodes, device, planned if not run.device else None, model, finetune)
    text, eval_text = _texts(run, name, sizes_of(values).vocab, seq)
    # split backward passes cannot be compiled, and on a CPU compiling takes longer than most runs
    defaults: dict[str, Any] = {"compile": device == "cuda" and layout.schedule not in SPLIT_BACKWARD}
    defaults |= {
        "lr": default_rate(run, finetune, training_rate(model.active_params, run.options["steps"])),
        "warmup": default_warm_up(model.active_params, run.options["steps"]),
    }
    settings = Settings(
        name=name, given=given, model=values, layout=layout, batch=batch, seq=seq, device=device,
        precision=run.precision or ((planned.precision if planned else "bf16") if device == "cuda" else "fp32"),
        moments=run.moments or (FORMATS[planned.optimizer] if planned else "fp32"),
        text=text.description if text else "", eval_text=eval_text.description if eval_text else "",
        tokenizer=bool(text and text.has_tokenizer_file), finetune=finetune, answers=any(each.hides for each in (text, eval_text) if each),
        document_end=text.document_end if text else -1, **(defaults | run.options),
    )  # fmt: skip
    if settings.weights:
        check_weights(values, name, Path(settings.weights))
    settings = _with_fingerprints(settings, text)
    _check_settings(settings, text, run.on or (planned.on if planned else ""))
    on = run.on or (planned.on if planned else here.cluster_text(device, layout.devices // nodes.nodes, nodes.nodes))
    facts = _facts(model, settings, on)
    # without a checkpoint a restart would begin at the first step
    restarts = (MAX_RESTARTS if settings.checkpoint_every else 0) if run.max_restarts is None else run.max_restarts
    if nodes.least and not settings.checkpoint_every and not run.dry_run:
        raise UserError(
            f"{nodes.least}:{nodes.nodes} nodes go on from a checkpoint when one is lost: this needs --checkpoint-every"
        )
    assumed = not (run.on or planned) and on.endswith(f"@{here.NETWORK}")
    return Launch(replace(settings, facts=facts), model, on, text, eval_text, nodes, restarts, assumed=assumed)


def _texts(run: TrainRun, name: str, vocabulary: int, seq: int) -> "tuple[Text | None, Text | None]":
    """Return the data of a run and of its validation loss, checked against the model; None for the embedded text as bytes."""
    text = eval_text = None
    if run.data or run.eval_data or run.text_key or tokenizer_of(run) not in ("", "bytes"):
        from meshwise.run.train.data import eval_text_of, text_of

        text = text_of(run, run.data, name, vocabulary, seq, run.pack)
        eval_text = eval_text_of(run, name, vocabulary, seq)
    if run.train_on and not (text and text.chats):
        raise UserError(f"--train-on {run.train_on} applies to conversations with answers, which --data does not hold")
    return text, eval_text


def _with_fingerprints(settings: Settings, text: "Text | None") -> Settings:
    """Return the settings with what tells a checkpoint's text and frozen weights from others, if there will be checkpoints."""
    if not settings.checkpoint_every:
        return settings
    base = weights_fingerprint(Path(settings.weights)) if settings.weights and settings.finetune.freezes else ""
    return replace(settings, base=base, fingerprint=fingerprint(text) if text else "")


def _check_settings(settings: Settings, text: "Text | None", on: str) -> None:
    """Refuse settings that no layout, chip or text allows."""
    if settings.pack and settings.document_end < 0 and not (text and text.chats):
        given = (
            f"{text.description} does not state the token that ends a document" if text else "the embedded text has no documents"
        )
        raise UserError(f"--pack: {given}; give text with --data and a --tokenizer that has one")
    if settings.eight:
        _check_eight_bits(settings.precision, settings.device, on or here.cluster_text(settings.device, 1, 1))
    rules = broken_rules(settings)
    if rules:
        raise BrokenRules(rules, valid_choices(settings))
    _check_monitoring(settings)


def _device(run: TrainRun, planned: TrainAsk | None) -> str:
    """Return cpu or cuda. A dry run takes the cluster's kind, whatever this machine has."""
    on = run.on or (planned.on if planned else "")
    if run.dry_run and on and not run.device:
        return "cpu" if clusters.find_cluster(on).chip.kind == "cpu" else "cuda"
    return run.device or here.device()


def _hosts(run: TrainRun, layout: Layout, planned: TrainAsk | None) -> Hosts:
    """Return the machines of the run. A dry run takes its cluster's, with placeholders for rank and address."""
    if not run.dry_run:
        given = {"nodes": str(run.nodes), "node_rank": run.node_rank, "rendezvous": run.rendezvous}
        return hosts.find(os.environ, layout.devices, **cast(Any, given))
    on = run.on or (planned.on if planned else "")
    each = clusters.find_cluster(on).node.devices if on else layout.devices
    nodes = hosts.node_range(str(run.nodes))[1] if run.nodes else max(1, -(-layout.devices // each))
    if layout.devices % nodes:
        raise UserError(f"the layout is for {layout.devices} devices, which {nodes} nodes cannot share evenly")
    return Hosts(nodes, run.node_rank or 0, run.rendezvous or hosts.PLACEHOLDER) if nodes > 1 else Hosts()


def _is_plan(what: str) -> bool:
    return what.endswith(".json") and os.path.isfile(what) and "ask" in find.values_of(Path(what))


def _read_plan(what: str) -> tuple[TrainAsk, Axes]:
    """Return the question of a plan and the axes of its best layout; refuse a plan that the trainer cannot run."""
    from meshwise.plan.train import plan

    made = plan.read(Path(what))
    row = made.best.layout
    for axis in AXES:
        if axis.name not in (*OWN_AXES, "etp", "sp") and row[axis.name] != axis.default:
            raise UserError(f"{what}: the trainer has no {axis.name}; plan with --fix {axis.name}={axis.default}")
    if int(row["ep"]) > 1 and int(row["etp"]) > 1:
        raise UserError(f"{what}: the trainer does not cut an expert over tensor-parallel ranks; plan with --fix etp=1")
    if made.ask.precision not in PRECISIONS or made.ask.optimizer not in FORMATS:
        raise UserError(
            f"{what} is for {made.ask.precision} and {made.ask.optimizer}, but the trainer has bf16, fp8 or fp8-row, and "
            f"{' or '.join(FORMATS)}: plan with these"
        )
    if made.ask.objective != "sft":
        raise UserError(
            f"{what} is for {made.ask.objective}, but the trainer has the loss of answers alone: plan with --objective sft"
        )
    return made.ask, {name: row[name] for name in OWN_AXES}


def buildable(name: str) -> tuple[dict[str, Any], str]:
    """Return the config.json and the name of a model; refuse one that the trainer cannot build."""
    if name.lower().endswith(".gguf"):
        raise UserError(f"{quoted(name)}: the trainer builds models from a config.json, not from a .gguf")
    values, label, _ = find.find_values(name)
    reason = unsupported(values)
    if reason:
        raise UserError(f"the trainer cannot build {label}: {reason}; try llama-debug or bloom-560m")
    build(values, label, "")  # refuses a config that lacks a key, with the planner's message
    return {key: value for key, value in values.items() if key != "meshwise"}, label


def check_weights(values: dict[str, Any], name: str, given: Path) -> None:
    """Refuse `--weights` that do not belong to this model, by the headers of their files."""
    try:
        expected.check(values, name, given)
    except expected.WeightsError as error:
        raise UserError(f"--weights {error}") from None


def _devices(axes: Axes) -> int:
    return Layout(**cast(Any, axes)).devices


def _layout(axes: Axes, batch: int) -> Layout:
    """Return the layout, with the largest micro-batch where none is given."""
    layout = Layout(**cast(Any, axes))
    if "mbs" in axes or min(layout.devices, layout.pp) < 1:
        return layout
    # with m micro-batches a pipeline of p stages idles (p - 1) / m of the time: use twice as many as stages where the batch allows it
    rounds = 1 if layout.pp == 1 else layout.pp * max(r for r in (1, 2) if r == 1 or batch % (layout.dp * layout.pp * r) == 0)
    return replace(layout, mbs=max(1, batch // max(1, layout.dp * rounds)))


def _check_machine(
    layout: Layout, nodes: Hosts, device: str, planned: TrainAsk | None, model: Model, finetune: FinetuneMethod
) -> None:
    """Refuse a run that this machine cannot hold. `planned`: the plan's question, unless --device was given with it."""
    _check_devices(layout.devices // nodes.nodes, device)
    if device == "cpu":
        if planned:
            _check_kind(planned.on)
        state = (QUANTIZED if finetune.quantized else FROZEN) if finetune.adapts else STATE
        _check_memory(state * model.params, layout, nodes.nodes, model.name)


def _check_devices(need: int, device: str) -> None:
    cores = os.cpu_count() or 1
    have = len(here.gpus()) if device == "cuda" else MAX_PROCESSES_PER_CORE * cores
    if not have:
        raise UserError("--device cuda: this machine has no NVIDIA GPU; --device cpu trains on its CPU")
    if need > have:
        unit = "GPUs" if device == "cuda" else f"processes on its {cores} CPU cores"
        raise UserError(
            f"the layout is for {need} device{'s' * (need != 1)}, but this machine has {have} {unit}; "
            f"choose axes that multiply to at most {have}"
        )


def _check_memory(whole: int, layout: Layout, nodes: int, name: str) -> None:
    """Refuse a model whose weights, gradients and optimizer state alone exceed this machine's memory."""
    have = here.host_memory()
    need = whole * layout.dp_replicate / nodes
    if need <= have:
        return
    machines = -(-whole // have)
    fix = f"{machines:.0f} such machines hold it with --nodes {machines:.0f} --dp-shard {machines:.0f}"
    if need > whole / nodes <= have:
        fix = f"--dp-shard {layout.dp} instead of --dp-replicate needs {whole / nodes / GIB:.1f} GiB"
    raise UserError(
        f"weights, gradients and AdamW's state of {name} need {need / GIB:.1f} GiB on this machine's CPU, which has "
        f"{have / GIB:.1f} GiB; {fix}, or use a smaller model"
    )


def _check_kind(cluster: str) -> None:
    """Refuse a plan for GPUs on a CPU unless --device asks for it: its batch would take hours and all memory."""
    nodes = clusters.find_cluster(cluster).nodes
    if not any(chip.kind == "cpu" for _, node in nodes for _, chip in node.chips):
        raise UserError(f"the plan is for {cluster}, but this machine has no GPU; --device cpu trains it on the CPU anyway")


def _check_eight_bits(precision: str, device: str, on: str) -> None:
    """Refuse products of 8 bits on a chip that has none."""
    chip = clusters.find_cluster(on).chip if on and device == "cuda" else None
    if device != "cuda" or (chip and not chip.flops.get("fp8")):
        where = chip.name if chip else "this run is on a CPU"
        raise UserError(
            f"--precision {precision} needs a GPU with 8-bit products, such as an H100 or newer ({where}); use --precision bf16"
        )


def _check_monitoring(s: Settings) -> None:
    """Refuse a profile, snapshot or curves that cannot be recorded."""
    if s.memory_snapshot and s.device != "cuda":
        raise UserError("--memory-snapshot records GPU memory, but this run is on a CPU; --profile works there")
    if s.tensorboard:
        require("tensorboard", "--tensorboard")
    for name in s.track:
        require(name, f"--track {name}")
    if s.metrics_file and not Path(s.metrics_file).parent.is_dir():
        raise UserError(f"--metrics-file {s.metrics_file}: the folder {Path(s.metrics_file).parent} does not exist")
    if s.metrics_file and (os.path.isdir(s.metrics_file) or not os.access(Path(s.metrics_file).parent, os.W_OK)):
        why = "is a folder" if os.path.isdir(s.metrics_file) else "cannot be written there"
        raise UserError(f"--metrics-file {s.metrics_file} {why}; expected the path of a file, such as run.prom")
    if s.profile_steps and s.profile_from >= s.steps:
        raise UserError(f"--profile starts at step {s.profile_from + 1}, but the run has {s.steps} steps")


def _facts(model: Model, settings: Settings, on: str) -> "dict[str, float | str]":
    """Return facts that the trainer cannot find out: FLOPs per token, and the peak and memory of the chip."""
    tokens = float(settings.seq)
    flops = model.flops(tokens, settings.seq) / tokens * trained_share(settings.finetune, settings.model)
    facts: dict[str, float | str] = {"flops_per_token": flops, "params": float(model.params)}
    if settings.finetune.freezes:
        facts["finetune"] = own_run.finetune_words(settings)
    if settings.device == "cuda" and on:
        chip = clusters.find_cluster(on).chip
        peak = chip.flops.get(cast(Any, "fp8" if settings.eight else settings.precision))
        known = chips.catalogued(chip) if chip.key == chips.PROBED_CHIP else chip
        facts |= {"gpu": (known or chip).key, "capacity": chip.memory} | ({"peak": peak} if peak else {})
    return facts


def command(launch: Launch, file: Path) -> list[str]:
    """Return the command that starts this machine's workers, or the one worker that another program started this process to be."""
    if launch.hosts.worker:
        return [sys.executable, *_worker(file)]
    return agent_command(launch, hosts.rendezvous_options(launch.hosts, launch.settings.timeout), file)


def agent_command(launch: Launch, rendezvous: list[str], file: Path) -> list[str]:
    """Return the command of torchrun's agent with these options for the rendezvous."""
    each = ["--nproc-per-node", str(launch.processes_here), "--max-restarts", str(launch.max_restarts)]
    return [sys.executable, "-m", "meshwise.workers.trainer.ranks.agent", *rendezvous, *each, *_worker(file)]


def _worker(file: Path) -> list[str]:
    return ["-m", "meshwise.workers.trainer", str(file)]


def threads(launch: Launch) -> str:
    """Return the CPU threads of each process: an even share of the cores."""
    each = max(1, launch.processes_here)
    return str(max(1, (os.cpu_count() or 1) // each)) if launch.settings.device == "cpu" else "8"
