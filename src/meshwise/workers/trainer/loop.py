"""The loop: read, forward, backward, clip, step, say so."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
import os
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from meshwise.workers.trainer import weights
from meshwise.workers.trainer.checkpoint import Checkpoints, Place
from meshwise.workers.trainer.data.batches import Batches
from meshwise.workers.trainer.gradients import named
from meshwise.workers.trainer.hf.expected import config_json
from meshwise.workers.trainer.optimizer import updates_of
from meshwise.workers.trainer.parallel import Ranks, tied_name
from meshwise.workers.trainer.passes import Passes
from meshwise.workers.trainer.ranks.faults import Skips, Trouble
from meshwise.workers.trainer.ranks.heartbeat import Heartbeat, guarded
from meshwise.workers.trainer.ranks.speech import say
from meshwise.workers.trainer.report.lines import memory_peak
from meshwise.workers.trainer.report.rows import Step
from meshwise.workers.trainer.report.watch import Watch, memory_history
from meshwise.workers.trainer.settings import Settings, Sizes
from meshwise.workers.trainer.step import Launched, Moment, Stepper


def train(settings: Settings) -> None:
    """Train, with as many processes as the layout has devices; torchrun has told each which it is."""
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if settings.device == "cuda" else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    with guarded(settings, device) as heart, memory_history(settings):
        _train(settings, device, heart)


def _train(settings: Settings, device: torch.device, heart: Heartbeat) -> None:
    ranks = Ranks.of(settings.layout, settings.device)
    passes = Passes(settings, ranks, device)
    parameters = named(passes.models)
    updates = updates_of(settings, parameters)
    kept = Checkpoints(settings, parameters, updates, tied_name(settings), heart.moves) if settings.checkpoint_every else None
    begun, skipped, ahead = kept.resume() if kept else Place()
    watch = Watch(settings, ranks, device, passes.phases, begun)
    skips, done = Skips(settings, skipped), begun
    stepper = Stepper(settings, ranks, passes, updates, parameters)
    behind = Behind(device, watch, skips)
    heart.began(begun)
    with Batches(settings, ranks, begun, ahead) as batches:
        while heart.begin(done) and done < settings.steps:
            with passes.phases("data"):
                tokens, targets = next(batches)
            with watch.step(done):
                behind.add(stepper.launch(done, tokens, targets))
            done += 1
            if kept and (done % settings.checkpoint_every == 0 or done == settings.steps):
                behind.read()
                kept.save(done, skips.total)
    behind.read()
    unwritten = [kept.end(done, skips.total) if kept and done else "", _measured(watch)]
    if settings.save and done == settings.steps:
        unwritten.append(save_weights(settings, ranks, passes))
    _check(unwritten, done)
    if done < settings.steps:
        heart.stopped(done, saved=kept is not None)


def _measured(watch: Watch) -> str:
    """Write what was measured; why that could not be."""
    try:
        watch.end()
    except OSError as error:
        return f"what was measured could not be written in {watch.folder}: {error.strerror}"
    return ""


def _check(unwritten: list[str], done: int) -> None:
    """End where a rank could not write something, the same on all of them."""
    every: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(every, unwritten)
    told = dict.fromkeys(words for some in every for words in some if words)
    if told:
        raise Trouble("disk", "; ".join(told), step=done)


class Behind:
    """Reads the numbers of a step once the next is under way on a GPU, which else would wait for the host at every step."""

    def __init__(self, device: torch.device, watch: Watch, skips: Skips) -> None:
        self.device, self.watch, self.skips = device, watch, skips
        self.last = Moment.now(device)
        self.waiting: Launched | None = None

    def add(self, launched: Launched) -> None:
        self.read()
        self.waiting = launched
        if self.device.type == "cpu":
            self.read()

    def read(self) -> None:
        """Say and keep the step that was not read yet."""
        if self.waiting is None:
            return
        done, self.waiting = self.waiting, None
        seconds = done.end.since(self.last)
        self.last = done.end
        loss, total = done.numbers.tolist()
        parts = done.parts
        self.watch.saw(Step(done.step, loss, total, seconds, memory_peak(self.device), parts.seconds(), parts.cpu_seconds()))
        _say(self.skips.saw(done.step, loss, total))


def _say(text: str) -> None:
    if text and dist.get_rank() == 0:
        say(text)


def save_weights(settings: Settings, ranks: Ranks, passes: Passes) -> str:
    """What transformers opens, under `weights/` of the run's folder, one file per rank of the pipeline; or why it could not be written."""
    lead = all(ranks.at(axis) == 0 for axis in ("dp_replicate", "dp_shard", "cp", "tp"))
    skip = "lm_head.weight" if Sizes.of(settings.model).tied else ""
    dtype = next(passes.models[0].parameters()).dtype
    beside = {"config.json": config_json(settings.model, str(dtype).removeprefix("torch."))}
    tokenizer = Path(settings.out, weights.TOKENIZER)
    if settings.tokenizer and tokenizer.is_file():
        beside[weights.TOKENIZER] = tokenizer.read_text(encoding="utf-8")
    return weights.save(passes.models, Path(settings.out, "weights"), ranks.at("pp"), settings.layout.pp, lead, skip, beside)
