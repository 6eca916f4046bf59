"""The verbs `generate` and `make-gguf`."""

import sys
from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from meshwise import api, units
from meshwise.run.train.ask import GenerateAsk
from meshwise.ui.cli import output
from meshwise.ui.cli.options import Given, completer, plain_verb, verb

app = typer.Typer()


@verb(app, "generate", GenerateAsk, examples=(
    'meshwise generate llama-debug --weights run/weights --prompt "the old river" --tokens 40',
    "meshwise generate llama-debug --weights run/weights --temperature 0.8 --seed 1",
    "meshwise generate llama-debug --weights run/weights --eval text.txt",
))  # fmt: skip
def generate(given: Given) -> None:
    """Reads the weights that 'meshwise run --save' wrote, with the tokenizer next to them."""

    def warn(line: str) -> None:
        typer.echo(line, err=True)

    words = given.of(GenerateAsk)
    generated = api.generate(words.pop("model", ""), weights=words.pop("weights", ""), say=warn, **words)
    if generated.loss is not None:
        output.emit(f"loss {generated.loss:.4f} per token over {generated.tokens:,} tokens")
    else:
        sys.stdout.buffer.write(generated.text + b"\n")


@plain_verb(app, "make-gguf",
    "meshwise make-gguf smollm2-135m --out smollm2.gguf",
    "meshwise make-gguf llama-3-8b --layers 2 --type q8_0 --out tiny.gguf",
    "meshwise make-gguf llama-3-70b --header-only --out llama-3-70b.gguf",
)  # fmt: skip
def make_gguf(
    model: Annotated[str, Argument(metavar="MODEL", help="Preset, HF id, config.json or its folder.",
        autocompletion=completer("models"))],
    out: Annotated[Path, Option(metavar="FILE", help="The .gguf file to write.")],
    type: Annotated[str, Option(metavar="TYPE", help="Type of the weights: q4_k_m, q8_0, f16. [q4_k_m]")] = "q4_k_m",
    layers: Annotated[int | None, Option(min=1, max=1000, metavar="N", help="Fewer layers than the model has.")] = None,
    seed: Annotated[int, Option(min=0, metavar="N", help="Seed of the weights.")] = 0,
    header_only: Annotated[bool,
        Option("--header-only", help="No weights: a sparse file for llama.cpp's dry run, llama-fit-params.")] = False,
) -> None:  # fmt: skip
    """llama.cpp loads it as it would the real model."""
    made = api.make_gguf(model, out, type=type, layers=layers, seed=seed, header_only=header_only)
    kind = f"{made.weights.format}, {made.weights.bits_per_weight:.2f} bits per weight"
    size = units.show(out.stat().st_size, "bytes", binary=True, digits=4)
    what = "header of a file with" if header_only else "random weights in"
    output.emit(f"{out}: {what} {len(made.model.layers)} layers of {made.model.name}, {kind}, {size}")
