"""Fine-tuning of a run: `--tune`, `--adapter` and their options as the trainer's Tune, checked against the model."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from meshwise.cost.finetune import parse
from meshwise.errors import UserError
from meshwise.run.train.ask import TrainRun
from meshwise.workers.trainer.contract.files.safetensors import WeightsError
from meshwise.workers.trainer.contract.finetune import adapter_config
from meshwise.workers.trainer.contract.finetune.method import FULL, Tune
from meshwise.workers.trainer.contract.finetune.targets import chosen, problem_of
from meshwise.workers.trainer.contract.models.registry import sizes_of
from meshwise.workers.trainer.contract.recipe import ADAPTER_RATE, TUNING_RATE

TOKENIZER = "tokenizer.json"


def tune_of(run: TrainRun, values: dict[str, Any], name: str) -> Tune:
    """Return what a run trains; refuse what the model cannot do, before any process starts."""
    tune = _asked(run)
    if run.adapter:
        tune = _continued(run, tune, values, name)
    elif tune.adapts:
        tune = replace(tune, alpha=float(run.lora_alpha or 2 * tune.rank))
    given = [flag for flag, used in _options(run).items() if used]
    if given and not tune.adapts:
        raise UserError(f"{given[0]} applies to adapters: give --tune lora:RANK, dora:RANK or qlora:RANK with it")
    if tune.adapts and run.save:
        raise UserError(
            "--save writes all weights, but this run trains adapters, which it always saves; --merge adds them to the weights"
        )
    tune = replace(tune, dropout=run.lora_dropout, merge=run.merge)
    if problem := problem_of(values, tune):
        raise UserError(f"--tune {run.tune or tune.method}: {problem}")
    return tune


def _options(run: TrainRun) -> dict[str, bool]:
    return {"--lora-alpha": bool(run.lora_alpha), "--lora-dropout": bool(run.lora_dropout), "--merge": run.merge}


def _asked(run: TrainRun) -> Tune:
    if not run.tune:
        return FULL
    given = parse(run.tune)
    return Tune(method=given.method, rank=given.rank, targets=given.targets, frozen_layers=given.frozen_layers)


def _continued(run: TrainRun, tune: Tune, values: dict[str, Any], name: str) -> Tune:
    """Return the tuning of an adapter to start from; `--tune` may repeat it, and may ask for nf4 weights."""
    folder = Path(run.adapter)
    try:
        found = adapter_config.read_tune(folder)
        if tune.adapts:
            if tune.rank != found.rank or (tune.magnitudes != found.magnitudes):
                raise UserError(
                    f"--adapter {folder} is {found.method}:{found.rank}, but --tune asks for {tune.method}:{tune.rank}"
                )
            found = replace(found, method=tune.method)
        elif run.tune:
            raise UserError(f"--adapter {folder} needs --tune {found.method}:{found.rank}, not {run.tune}")
        if run.lora_alpha and run.lora_alpha != found.alpha:
            raise UserError(f"--adapter {folder} has alpha {found.alpha:g}: drop --lora-alpha {run.lora_alpha:g}")
        adapter_config.check(values, found, name, folder)
    except WeightsError as error:
        raise UserError(f"--adapter {error}") from None
    return replace(found, adapter=str(folder.absolute()))


def default_rate(run: TrainRun, tune: Tune, training: float) -> float:
    """Return the peak learning rate: that of training from scratch unless the run fine-tunes."""
    if tune.adapts:
        return ADAPTER_RATE
    return TUNING_RATE if run.tune else training


def tokenizer_of(run: TrainRun) -> str:
    """Return the tokenizer as --tokenizer names it; of a run that fine-tunes, by default the one beside its weights."""
    folder = Path(run.weights)
    beside = bool(run.weights and (run.tune or run.adapter)) and (folder / TOKENIZER).is_file()
    return run.tokenizer or (str(folder) if beside else "")


def check_length(run: TrainRun, values: dict[str, Any], seq: int) -> None:
    """Refuse to fine-tune on sequences longer than the model was made for."""
    longest = values.get("max_position_embeddings")
    if (run.tune or run.adapter) and isinstance(longest, int) and seq > longest:
        raise UserError(f"--seq {seq} is longer than the {longest} positions of the model: use at most {longest}")


def trained_note(tune: Tune, values: dict[str, Any], params: int) -> str:
    """Return what a run trains, in a line; empty if everything."""
    if tune.method == "freeze":
        return f"the embedding and the first {tune.frozen_layers} layers are frozen"
    if not tune.adapts:
        return ""
    targets = chosen(values, tune.targets)
    count = sum(tune.rank * (target.inputs + target.outputs) + target.outputs * tune.magnitudes for target in targets)
    words = ", ".join(dict.fromkeys(target.word for target in targets))
    stored = "in nf4" if tune.quantized else "frozen"
    return (
        f"{tune.method} of rank {tune.rank} and alpha {tune.alpha:g} on {words}: {count:,} parameters are trained, "
        f"and the {params:,} of the model are {stored}"
    )


def trained_share(tune: Tune, values: dict[str, Any]) -> float:
    """Return the FLOPs of a step over those of training everything: frozen weights have no gradient, frozen first layers no backward."""
    if tune.adapts:
        return 2 / 3
    layers = sizes_of(values).layers
    return (1 + 2 * (layers - tune.frozen_layers) / layers) / 3
