"""The verb `generate`."""

from pathlib import Path
from typing import Annotated

import typer

from meshwise.errors import DoesNotFit, UserError


def generate(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="The model that was trained, as for run.")],
    weights: Annotated[Path, typer.Option(help="A folder of HF safetensors, such as weights/ of a run with --save.")],
    prompt: Annotated[str, typer.Option(help="The text to go on with.")] = "",
    tokens: Annotated[int, typer.Option(min=1, help="Tokens to write, a byte each.")] = 64,
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

    from meshwise import launch

    values, _ = launch.buildable(model)
    launch.check_torch("generate")
    if not any(weights.glob("*.safetensors")):
        raise UserError(f"--weights {weights}: no .safetensors in it")
    if text is not None and not text.is_file():
        raise UserError(f"--eval {text}: no such file")
    device = launch.device_of(device)
    with TemporaryDirectory() as folder:
        file = Path(folder, "config.json")
        file.write_text(json.dumps(values), encoding="utf-8")
        asked = [sys.executable, "-m", "meshwise.trainer.generate", str(file), "--weights", str(weights), f"--prompt={prompt}"]
        asked += ["--tokens", str(tokens), "--temperature", str(temperature), "--seed", str(seed), "--device", device]
        asked += ["--eval", str(text), "--seq", str(seq)] if text is not None else []
        done = subprocess.run(asked, check=False, stderr=subprocess.PIPE, text=True)
    told = done.stderr.strip().splitlines()
    if done.returncode:
        words = told[-1] if told else f"generating stopped with exit code {done.returncode}"
        raise (UserError if done.returncode == 2 else DoesNotFit)(words)
    for line in told:
        typer.echo(line, err=True)
