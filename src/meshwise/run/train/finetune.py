"""Fine-tuning of a run: `--finetune`, `--adapter` and their options as the trainer's FinetuneMethod, checked against the model."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from meshwise.cost.finetune import parse
from meshwise.errors import UserError
from meshwise.run.train.ask import TrainRun
from meshwise.workers.trainer.contract.files.safetensors import WeightsError
from meshwise.workers.trainer.contract.finetune import adapter_config
from meshwise.workers.trainer.contract.finetune.method import FULL, FinetuneMethod
from meshwise.workers.trainer.contract.finetune.targets import chosen, problem_of
from meshwise.workers.trainer.contract.models.registry import sizes_of
from meshwise.workers.trainer.contract.recipe import ADAPTER_RATE, FINETUNE_RATE

TOKENIZER = "tokenizer.json"


def finetune_of(run: TrainRun, values: dict[str, Any], name: str) -> FinetuneMethod:
    """Return what a run trains; refuse what the model cannot do, before any process starts."""
    finetune = _asked(run)
    if run.adapter:
        finetune = _continued(run, finetune, values, name)
    elif finetune.adapts:
        finetune = replace(finetune, alpha=float(run.lora_alpha or 2 * finetune.rank))
    options = {"--lora-alpha": bool(run.lora_alpha), "--lora-dropout": bool(run.lora_dropout), "--merge": run.merge}
    given = [flag for flag, used in options.items() if used]
    if given and not finetune.adapts:
        raise UserError(f"{given[0]} applies to adapters: give --finetune lora:RANK, dora:RANK or qlora:RANK with it")
    if finetune.adapts and run.save:
        raise UserError(
            "--save writes all weights, but this run trains adapters, which it always saves; --merge adds them to the weights"
        )
    finetune = replace(finetune, dropout=run.lora_dropout, merge=run.merge)
    if problem := problem_of(values, finetune):
        raise UserError(f"--finetune {run.finetune or finetune.method}: {problem}")
    return finetune


def _asked(run: TrainRun) -> FinetuneMethod:
    if not run.finetune:
        return FULL
    given = parse(run.finetune)
    return FinetuneMethod(method=given.method, rank=given.rank, targets=given.targets, frozen_layers=given.frozen_layers)


def _continued(run: TrainRun, finetune: FinetuneMethod, values: dict[str, Any], name: str) -> FinetuneMethod:
    """Return the method of an adapter to start from; `--finetune` may repeat it, and may ask for nf4 weights."""
    folder = Path(run.adapter)
    try:
        found = adapter_config.read_finetune(folder)
        if finetune.adapts:
            if finetune.rank != found.rank or (finetune.magnitudes != found.magnitudes):
                raise UserError(
                    f"--adapter {folder} is {found.method}:{found.rank}, but --finetune asks for {finetune.method}:{finetune.rank}"
                )
            found = replace(found, method=finetune.method)
        elif run.finetune:
            raise UserError(f"--adapter {folder} needs --finetune {found.method}:{found.rank}, not {run.finetune}")
        if run.lora_alpha and run.lora_alpha != found.alpha:
            raise UserError(f"--adapter {folder} has alpha {found.alpha:g}: drop --lora-alpha {run.lora_alpha:g}")
        adapter_config.check(values, found, name, folder)
    except WeightsError as error:
        raise UserError(f"--adapter {error}") from None
    return replace(found, adapter=str(folder.absolute()))


def default_rate(run: TrainRun, finetune: FinetuneMethod, training: float) -> float:
    """Return the peak learning rate: that of training from scratch unless the run fine-tunes."""
    if finetune.adapts:
        return ADAPTER_RATE
    return FINETUNE_RATE if run.finetune else training


def tokenizer_of(run: TrainRun) -> str:
    """Return the tokenizer as --tokenizer names it; of a run that fine-tunes, by default the one beside its weights."""
    folder = Path(run.weights)
    beside = bool(run.weights and (run.finetune or run.adapter)) and (folder / TOKENIZER).is_file()
    return run.tokenizer or (str(folder) if beside else "")


def check_length(run: TrainRun, values: dict[str, Any], seq: int) -> None:
    """Refuse to fine-tune on sequences longer than the model was made for."""
    longest = values.get("max_position_embeddings")
    if (run.finetune or run.adapter) and isinstance(longest, int) and seq > longest:
        raise UserError(f"--seq {seq} is longer than the {longest} positions of the model: use at most {longest}")


def trained_note(finetune: FinetuneMethod, values: dict[str, Any], params: int) -> str:
    """Return what a run trains, in a line; empty if everything."""
    if finetune.method == "freeze":
        return f"the embedding and the first {finetune.frozen_layers} layers are frozen"
    if not finetune.adapts:
        return ""
    targets = chosen(values, finetune.targets)
    count = sum(finetune.rank * (target.inputs + target.outputs) + target.outputs * finetune.magnitudes for target in targets)
    words = ", ".join(dict.fromkeys(target.word for target in targets))
    stored = "in nf4" if finetune.quantized else "frozen"
    return (
        f"{finetune.method} of rank {finetune.rank} and alpha {finetune.alpha:g} on {words}: {count:,} parameters are trained, "
        f"and the {params:,} of the model are {stored}"
    )


def trained_share(finetune: FinetuneMethod, values: dict[str, Any]) -> float:
    """Return the FLOPs of a step over those of training everything: frozen weights have no gradient, frozen first layers no backward."""
    if finetune.adapts:
        return 2 / 3
    layers = sizes_of(values).layers
    return (1 + 2 * (layers - finetune.frozen_layers) / layers) / 3
