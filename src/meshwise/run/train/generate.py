"""Generate text, or compute the loss of one, with a model that `run --save` trained."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from meshwise.catalogue import files, here
from meshwise.errors import DoesNotFit, UserError
from meshwise.run import packages
from meshwise.run.callbacks import Say, ignore
from meshwise.run.children import with_parent
from meshwise.run.packages import require_torch
from meshwise.run.scratch import ScratchFile
from meshwise.run.text import tokenizer as tokenizers
from meshwise.run.text.tokenizer import Tokenizer
from meshwise.run.train import launch
from meshwise.run.train.ask import GenerateAsk

MAX_TEXT_BYTES = 1 << 28  # bytes of a text to evaluate, at most


@dataclass(frozen=True)
class Generated:
    """Generated text, or the loss of a text."""

    text: bytes = b""  # the prompt and its continuation
    loss: float | None = None  # mean cross-entropy per token of `--eval`, in nats
    tokens: int = 0  # number of tokens that were generated, or over which the loss is the mean


def generate(ask: GenerateAsk, *, say: Say = ignore) -> Generated:
    """Run the worker that generates. `say` gets its warnings."""
    if not ask.model or not ask.weights:
        raise UserError(f"missing {'--weights' if ask.model else 'MODEL'}: meshwise generate llama-debug --weights run/weights")
    values, label = launch.buildable(ask.model)
    require_torch("generate")
    weights = Path(ask.weights)
    launch.check_weights(values, label, weights)
    tokenizer = _tokenizer(ask.tokenizer, weights, label, int(values["vocab_size"]))
    read = _tokens(tokenizer, ask)
    answer = _answer(ask, values, read, ask.device or here.device(), say)
    if ask.text:
        return Generated(loss=answer["loss"], tokens=answer["tokens"])
    return Generated(text=tokenizers.decode(tokenizer, [*read, *answer["generated"]]), tokens=len(answer["generated"]))


def _answer(ask: GenerateAsk, values: dict[str, Any], read: list[int], device: str, say: Say) -> dict[str, Any]:
    """Run the worker and return its answer; raise its error message if it fails."""
    with ScratchFile(json.dumps(values)) as config, ScratchFile(json.dumps(read)) as given, ScratchFile() as answer:
        command = [sys.executable, "-m", "meshwise.workers.trainer.generate", str(config.path), "--weights", ask.weights]
        command += ["--read", str(given.path), "--write", str(answer.path), "--tokens", str(ask.tokens)]
        command += ["--temperature", str(ask.temperature), "--seed", str(ask.seed), "--device", device]
        command += ["--eval", "--seq", str(ask.seq)] if ask.text else []
        done = subprocess.run(command, check=False, stderr=subprocess.PIPE, text=True, preexec_fn=with_parent())
        lines = done.stderr.strip().splitlines()
        if done.returncode:
            reason = lines[-1] if lines else f"the worker ended with exit code {done.returncode}"
            raise (UserError if done.returncode == 2 else DoesNotFit)(reason)
        for line in lines:
            say(line)
        return json.loads(answer.path.read_text(encoding="utf-8"))


def _tokenizer(given: str, weights: Path, model: str, vocabulary: int) -> Tokenizer:
    """Return the given tokenizer; else the one that `run --save` put next to the weights, or bytes."""
    if given.startswith("bpe:"):
        raise UserError(f"--tokenizer {given}: 'run' learns it and writes tokenizer.json into its folder; give that file")
    saved = (weights.parent if weights.is_file() else weights) / "tokenizer.json"
    given = given or (str(saved) if saved.is_file() else "")
    if given not in ("", "bytes"):
        packages.require("tokenizers", f"--tokenizer {given}")
    tokenizer = tokenizers.find(given)
    if tokenizer.size > vocabulary:
        raise UserError(
            f"--tokenizer {tokenizer.name} has token ids up to {tokenizer.size - 1}, but {model} has a vocabulary of {vocabulary}"
        )
    return tokenizer


def _tokens(tokenizer: Tokenizer, ask: GenerateAsk) -> list[int]:
    """Return the tokens of the text to evaluate, or of the prompt; without a prompt, the end-of-document token."""
    if not ask.text:
        tokens = tokenizers.encoder(tokenizer)([(ask.prompt or "\n", False)]).tolist()
        return [tokenizer.end] if not ask.prompt and tokenizer.source and tokenizer.end is not None else tokens
    text = Path(ask.text)
    if not os.path.exists(text):
        raise UserError(f"--eval {text}: no such file")
    try:
        tokens = tokenizers.encoder(tokenizer)([(files.text_of(text, MAX_TEXT_BYTES), False)]).tolist()
    except UserError as error:
        raise UserError(f"--eval {error}") from None
    if len(tokens) < 2:
        raise UserError(f"--eval {text}: it has {len(tokens)} tokens, but a loss needs two")
    return tokens
