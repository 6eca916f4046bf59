"""The verb `generate`."""

import sys

import typer

from meshwise import api
from meshwise.run.train.ask import GenerateAsk
from meshwise.ui.cli import output
from meshwise.ui.cli.options import Given, verb

app = typer.Typer()


@verb(
    app,
    "generate",
    GenerateAsk,
    examples=(
        'meshwise generate llama-debug --weights run/weights --prompt "the old river" --tokens 40',
        "meshwise generate llama-debug --weights run/weights --temperature 0.8 --seed 1",
        "meshwise generate llama-debug --weights run/weights --eval text.txt",
    ),
)
def generate(given: Given) -> None:
    """Reads the weights that 'meshwise run --save' wrote, with the tokenizer next to them."""

    def warn(line: str) -> None:
        typer.echo(line, err=True)

    words = given.of(GenerateAsk)
    found = api.generate(words.pop("model", ""), weights=words.pop("weights", ""), say=warn, **words)
    if found.loss is not None:
        output.emit(f"loss {found.loss:.4f} per token over {found.tokens:,} tokens")
    else:
        sys.stdout.buffer.write(found.text + b"\n")
