"""The verbs `generate` and `make-gguf`."""

import sys
from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from meshwise import api, units
from meshwise.run.train.ask import GenerateAsk
from meshwise.ui.cli import output
from meshwise.ui.cli.options import Given, Json, completer, plain_verb, verb

app = typer.Typer()


@verb(app, "generate", GenerateAsk)
def generate(given: Given, json: Json = False) -> None:
    """Reads the weights that 'meshwise run --save' wrote, with the tokenizer next to them."""

    def warn(line: str) -> None:
        typer.echo(line, err=True)

    words = given.of(GenerateAsk)
    generated = api.generate(words.pop("model", ""), weights=words.pop("weights", ""), say=warn, **words)
    if json:
        text = None if generated.loss is not None else generated.text.decode(errors="replace")
        output.data({"text": text, "loss": generated.loss, "tokens": generated.tokens})
    elif generated.loss is not None:
        output.emit(f"loss {generated.loss:.4f} per token over {generated.tokens:,} tokens")
    else:
        sys.stdout.buffer.write(generated.text + b"\n")


@plain_verb(app, "make-gguf")
def make_gguf(
    model: Annotated[str, Argument(metavar="MODEL", help="Preset, HF id, config.json or its folder.",
        autocompletion=completer("models"))],
    out: Annotated[Path, Option(metavar="FILE", help="The .gguf file to write.")],
    type: Annotated[str, Option(metavar="TYPE", help="Type of the weights: q4_k_m, q8_0, f16. [q4_k_m]")] = "q4_k_m",
    layers: Annotated[int | None, Option(min=1, max=1000, metavar="N", help="Fewer layers than the model has.")] = None,
    seed: Annotated[int, Option(min=0, metavar="N", help="Seed of the weights.")] = 0,
    header_only: Annotated[bool,
        Option("--header-only", help="No weights: a sparse file for llama.cpp's dry run, llama-fit-params.")] = False,
    json: Json = False,
) -> None:  # fmt: skip
    """llama.cpp loads it as it would the real model."""
    made = api.make_gguf(model, out, type=type, layers=layers, seed=seed, header_only=header_only)
    if json:
        weights, layers = made.weights, len(made.model.layers)
        output.data({"path": str(out), "model": made.model.name, "layers": layers, "format": weights.format,
                     "bits_per_weight": weights.bits_per_weight, "bytes": out.stat().st_size, "header_only": header_only})  # fmt: skip
        return
    kind = f"{made.weights.format}, {made.weights.bits_per_weight:.2f} bits per weight"
    size = units.show(out.stat().st_size, "bytes", binary=True, digits=4)
    what = "header of a file with" if header_only else "random weights in"
    output.emit(f"{out}: {what} {len(made.model.layers)} layers of {made.model.name}, {kind}, {size}")
