"""The verb `make-gguf`."""

from pathlib import Path
from typing import Annotated

import typer

from meshwise.errors import UserError


def make_gguf(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="Preset, HF id, config.json or its folder.")],
    out: Annotated[Path, typer.Option(help="The .gguf file to write.")],
    type: Annotated[str, typer.Option(metavar="TYPE", help="Type of the weights, such as q4_k_m, q8_0, f16.")] = "q4_k_m",
    layers: Annotated[int | None, typer.Option(min=1, max=1000, help="Fewer layers than the model has.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the weights.")] = 0,
    header_only: Annotated[
        bool, typer.Option("--header-only", help="No weights: a sparse file for llama.cpp's dry run, llama-fit-params.")
    ] = False,
) -> None:
    """Write a .gguf with random weights and the real shapes: for measuring speed where no model can be downloaded."""
    from meshwise import units
    from meshwise.models import make_gguf
    from meshwise.models.formats import find_format

    if out.suffix != ".gguf":
        raise UserError(f"--out {out}: the name of a GGUF file ends in .gguf")
    made = make_gguf.prepare(model, find_format(type), layers)
    length = make_gguf.write(made, out, header_only=header_only, seed=seed)
    kind = f"{made.weights.format}, {made.weights.bits_per_weight:.2f} bits a weight"
    size = units.show(length, "bytes", binary=True, digits=4)
    what = "header of a file with" if header_only else "random weights in"
    typer.echo(f"{out}: {what} {len(made.model.layers)} layers of {made.model.name}, {kind}, {size}")
