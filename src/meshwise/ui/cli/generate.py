"""The verb `generate`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from meshwise.catalogue import here
from meshwise.errors import DoesNotFit, UserError

if TYPE_CHECKING:
    from meshwise.run.text.tokenizer import Tokenizer


def generate(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="The model that was trained, as for run.")],
    weights: Annotated[Path, typer.Option(help="HF safetensors, a file or a folder, such as weights/ of a run with --save.")],
    prompt: Annotated[str, typer.Option(help="The text to go on with.")] = "",
    tokenizer: Annotated[
        str,
        typer.Option(help="bytes, or HF's tokenizer.json or its folder (default: the one beside the weights, else bytes)."),
    ] = "",
    tokens: Annotated[int, typer.Option(min=1, help="Tokens to write.")] = 64,
    temperature: Annotated[float, typer.Option(min=0, help="0 takes the likeliest token, 1 draws by probability.")] = 0.0,
    seed: Annotated[int, typer.Option(min=0, help="Of the draws.")] = 0,
    device: Annotated[str, typer.Option(help="cpu or cuda (default: what is here).")] = "",
    text: Annotated[Path | None, typer.Option("--eval", help="A text file whose loss to say instead.")] = None,
    seq: Annotated[int, typer.Option(min=2, help="With --eval: tokens read in one piece.")] = 2048,
) -> None:
    """Go on with a text, or say the loss of one, with a model that run trained."""
    import json
    import subprocess
    import sys
    from tempfile import TemporaryDirectory

    from meshwise.run.text import tokenizer as tokenizers
    from meshwise.run.train import launch

    values, label = launch.buildable(model)
    launch.check_torch("generate")
    launch.check_weights(values, label, weights)
    words = _tokenizer(tokenizer, weights, label, int(values["vocab_size"]))
    read = _read(words, prompt, text)
    device = here.device(device)
    with TemporaryDirectory() as folder:
        config, given, answer = (Path(folder, name) for name in ("config.json", "read.json", "answer.json"))
        config.write_text(json.dumps(values), encoding="utf-8")
        given.write_text(json.dumps(read), encoding="utf-8")
        asked = [sys.executable, "-m", "meshwise.workers.trainer.generate", str(config), "--weights", str(weights)]
        asked += ["--read", str(given), "--write", str(answer), "--tokens", str(tokens), "--temperature", str(temperature)]
        asked += ["--seed", str(seed), "--device", device, *(["--eval", "--seq", str(seq)] if text is not None else [])]
        done = subprocess.run(asked, check=False, stderr=subprocess.PIPE, text=True)
        told = done.stderr.strip().splitlines()
        if done.returncode:
            reason = told[-1] if told else f"generating stopped with exit code {done.returncode}"
            raise (UserError if done.returncode == 2 else DoesNotFit)(reason)
        found = json.loads(answer.read_text(encoding="utf-8"))
    for line in told:
        typer.echo(line, err=True)
    if text is not None:
        typer.echo(f"loss {found['loss']:.4f} a token over {found['tokens']:,} tokens")
    else:
        sys.stdout.buffer.write(tokenizers.text_of(words, [*read, *found["generated"]]) + b"\n")


def _tokenizer(given: str, weights: Path, model: str, vocabulary: int) -> "Tokenizer":
    """The tokenizer asked for; else the one that `run --save` laid beside the weights, or bytes."""
    from meshwise.run.text import documents
    from meshwise.run.text import tokenizer as tokenizers

    if given.startswith("bpe:"):
        raise UserError(f"--tokenizer {given} is learned by run, which leaves it as tokenizer.json in its folder: give that")
    beside = (weights.parent if weights.is_file() else weights) / "tokenizer.json"
    given = given or (str(beside) if beside.is_file() else "")
    if given not in ("", "bytes"):
        documents.need("tokenizers", f"--tokenizer {given}")
    found = tokenizers.find(given)
    if found.size > vocabulary:
        raise UserError(f"--tokenizer {found.words} has tokens up to {found.size - 1}, and {model} a vocabulary of {vocabulary}")
    return found


def _read(words: "Tokenizer", prompt: str, text: Path | None) -> list[int]:
    """The tokens of a text to judge or of a prompt; where there is none, the end of a document before."""
    from meshwise.run.text import tokenizer as tokenizers

    if text is None:
        found = tokenizers.encoder(words)([(prompt or "\n", False)]).tolist()
        return [words.end] if not prompt and words.source and words.end is not None else found
    if not text.is_file():
        raise UserError(f"--eval {text}: no such file")
    try:
        found = tokenizers.encoder(words)([(text.read_text(encoding="utf-8"), False)]).tolist()
    except UnicodeDecodeError:
        raise UserError(f"--eval {text}: not UTF-8 text") from None
    if len(found) < 2:
        raise UserError(f"--eval {text}: has {len(found)} tokens, and a loss needs two")
    return found
