"""`meshwise generate`: the errors before any process starts, and a text and a loss from weights in a folder."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from meshwise.run.text import tokenizer
from meshwise.workers.trainer import weights
from meshwise.workers.trainer.generate import generate, loss_of, predictor_of
from meshwise.workers.trainer.models.base import Span, build
from support.command import Run, refused

TINY: dict[str, Any] = {
    "model_type": "ttt", "ttt_layer_type": "linear", "vocab_size": 256, "hidden_size": 32, "intermediate_size": 48,
    "num_hidden_layers": 2, "num_attention_heads": 4, "mini_batch_size": 4, "tie_word_embeddings": True, "max_position_embeddings": 64,
}  # fmt: skip


@pytest.fixture
def trained(tmp_path: Path) -> tuple[Any, list[str]]:
    """A model, and the words that name it and its weights."""
    model = build(TINY, Span(0, 2, 2))
    weights.init_random([model], 0, 0.3)
    weights.save([model], tmp_path / "weights", skip="lm_head.weight")
    (tmp_path / "config.json").write_text(json.dumps(TINY), encoding="utf-8")
    return model.requires_grad_(False), [str(tmp_path / "config.json"), "--weights", str(tmp_path / "weights"), "--device", "cpu"]


REFUSED: dict[str, tuple[list[str], str]] = {
    "a folder without weights": (
        ["llama-debug", "--weights", "nowhere"],
        "--weights nowhere: no such folder or .safetensors file",
    ),
    "a misspelt model": (["lama-debug", "--weights", "nowhere"], "did you mean 'llama-debug'"),
    "no weights": (["llama-debug"], "missing --weights: meshwise generate llama-debug --weights run/weights"),
}
OF_A_MODEL: dict[str, tuple[list[str], str]] = {
    "no such text": (["--eval", "nowhere"], "--eval nowhere: no such file"),
    "an empty text": (["--eval", "empty"], "--eval empty: it has 0 tokens, but a loss needs two"),
    "a text that is none": (["--eval", "weights/model.safetensors"], "not a text file (UTF-8)"),
    "no such tokenizer": (["--tokenizer", "nowhere"], "expected bytes, bpe:N, HF's tokenizer.json or its folder"),
    "a tokenizer that run has yet to learn": (
        ["--tokenizer", "bpe:300"],
        "'run' learns it and writes tokenizer.json into its folder; give that file",
    ),
    "a tokenizer for a larger model": (["--tokenizer", "larger.json"], "has token ids up to 279, but"),
}


@pytest.mark.parametrize("name", OF_A_MODEL)
def test_a_text_or_tokenizer_that_the_model_cannot_read_is_refused(
    run: Run, name: str, trained: tuple[Any, list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: pytest.fail("a process was started"))
    Path("empty").touch()
    Path("larger.json").write_text(learned(280).source, encoding="utf-8")
    more, reason = OF_A_MODEL[name]
    assert reason in refused(run("generate", *trained[1], *more))


def learned(size: int) -> tokenizer.Tokenizer:
    """A tokenizer of as many tokens: of few sentences, so that all of them are learned."""
    sentences = [
        (f"the {word} river turns {i} times around the {word} bridge " * 3, True) for i, word in enumerate(("old", "new", "grey"))
    ]
    return tokenizer.learn(tokenizer.find(f"bpe:{size}"), sentences)


@pytest.mark.parametrize("name", REFUSED)
def test_a_missing_model_or_weights_are_refused(run: Run, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: pytest.fail("a process was started"))
    words, reason = REFUSED[name]
    assert reason in refused(run("generate", *words))


@pytest.mark.slow
def test_a_text_goes_on_from_its_prompt_with_the_likeliest_bytes(trained: tuple[Any, list[str]], tmp_path: Path) -> None:
    model, words = trained
    asked = [sys.executable, "-c", "from meshwise.ui.cli.main import main; main()", "generate", *words]
    done = subprocess.run([*asked, "--prompt", "The river", "--tokens", "7"], capture_output=True, check=True)
    tokens = generate(predictor_of(model), torch.tensor([list(b"The river")]), 7)
    assert done.stdout == b"The river" + bytes(tokens[0].tolist()) + b"\n"


@pytest.mark.slow
def test_the_loss_of_a_text_is_printed(trained: tuple[Any, list[str]], tmp_path: Path) -> None:
    model, words = trained
    (tmp_path / "text").write_bytes(b"every bridge")
    asked = [
        sys.executable,
        "-c",
        "from meshwise.ui.cli.main import main; main()",
        "generate",
        *words,
        "--eval",
        str(tmp_path / "text"),
    ]
    done = subprocess.run(asked, capture_output=True, text=True, check=True)
    loss, count = loss_of(model, torch.tensor(list(b"every bridge")), 2048)
    assert done.stdout == f"loss {loss:.4f} per token over {count} tokens\n"


@pytest.mark.slow
def test_a_text_goes_on_in_the_tokens_of_the_run(tmp_path: Path) -> None:
    """Its tokenizer lies beside the weights, and nobody has to name it."""
    words = learned(300)
    larger = TINY | {"vocab_size": words.size}
    model = build(larger, Span(0, 2, 2))
    weights.init_random([model], 0, 0.3)
    weights.save([model], tmp_path / "weights", skip="lm_head.weight")
    (tmp_path / "config.json").write_text(json.dumps(larger), encoding="utf-8")
    (tmp_path / "weights" / "tokenizer.json").write_text(words.source, encoding="utf-8")
    (tmp_path / "tokenizer.json").write_text(learned(270).source, encoding="utf-8")  # of a later run in the folder
    asked = [sys.executable, "-c", "from meshwise.ui.cli.main import main; main()", "generate", str(tmp_path / "config.json")]
    asked += ["--weights", str(tmp_path / "weights"), "--device", "cpu"]
    read = tokenizer.encoder(words)([("the old river", False)]).tolist()
    assert len(read) < len("the old river")
    tokens = generate(predictor_of(model.requires_grad_(False)), torch.tensor([read]), 7)[0].tolist()
    done = subprocess.run([*asked, "--prompt", "the old river", "--tokens", "7"], capture_output=True, check=True)
    assert done.stdout == tokenizer.decode(words, [*read, *tokens]) + b"\n"
    assert done.stdout.startswith(b"the old river")
    (tmp_path / "text").write_text("the grey bridge", encoding="utf-8")
    asked[asked.index("--weights") + 1] += "/model.safetensors"  # the file instead of its folder: the tokenizer is found as well
    done = subprocess.run([*asked, "--eval", str(tmp_path / "text")], capture_output=True, text=True, check=True)
    loss, count = loss_of(model, torch.tensor(tokenizer.encoder(words)([("the grey bridge", False)]).tolist()), 2048)
    assert done.stdout == f"loss {loss:.4f} per token over {count} tokens\n"


def test_weights_of_another_model_are_refused_in_one_line(
    run: Run, trained: tuple[Any, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: pytest.fail("a process was started"))
    _, words = trained
    assert "model.embed_tokens.weight is 256 x 32, but llama-debug needs 512 x 256" in refused(
        run("generate", "llama-debug", *words[1:])
    )
