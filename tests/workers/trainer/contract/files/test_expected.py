"""Files given with --weights are checked against the model by their tables, before any process starts."""

import json
import struct
import subprocess
from collections.abc import Callable
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

from meshwise.run.train import launch
from meshwise.run.train.ask import TrainRun
from meshwise.workers.trainer import weights
from meshwise.workers.trainer.contract.files import expected, safetensors
from meshwise.workers.trainer.contract.models.registry import sizes_of
from meshwise.workers.trainer.models.base import Span, build
from meshwise.workers.trainer.ranks.faults import TrainingError
from support.command import Run, refused

LLAMA: dict[str, Any] = {
    "model_type": "llama", "vocab_size": 256, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3,
    "num_attention_heads": 4, "num_key_value_heads": 2,
}  # fmt: skip
TTT: dict[str, Any] = {
    "model_type": "ttt", "vocab_size": 256, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "mini_batch_size": 8,
}  # fmt: skip
GPT2: dict[str, Any] = {"model_type": "gpt2", "vocab_size": 257, "n_embd": 48, "n_layer": 2, "n_head": 4, "n_positions": 96}
MODELS: dict[str, dict[str, Any]] = {
    "Llama": LLAMA,
    "Llama, tied": LLAMA | {"tie_word_embeddings": True},
    "Llama with biases and wide heads": LLAMA | {"attention_bias": True, "mlp_bias": True, "head_dim": 16},
    "BLOOM": {"model_type": "bloom", "vocab_size": 257, "hidden_size": 48, "n_layer": 2, "n_head": 4},
    "GPT-2": GPT2,
    "GPT-2 of another width, untied": GPT2 | {"n_inner": 96, "tie_word_embeddings": False},
    "TTT-Linear": TTT | {"ttt_layer_type": "linear"},
    "TTT-MLP, untied": TTT | {"ttt_layer_type": "mlp", "tie_word_embeddings": False},
}


def saved(config: dict[str, Any], folder: Path) -> Path:
    layers = sizes_of(config).layers
    model = build(config, Span(0, layers, layers))
    weights.save([model], folder)
    return folder


@pytest.mark.parametrize("name", MODELS)
def test_names_and_shapes_are_those_that_the_model_saves(name: str, tmp_path: Path) -> None:
    found = safetensors.contents(saved(MODELS[name], tmp_path))
    assert {key: one.shape for key, one in found.items()} == expected.shapes(MODELS[name])
    expected.check(MODELS[name], "it", tmp_path)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def of(name: str, shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> Callable[[Path], None]:
    """Replace the weight of this name, or add it."""

    def change(path: Path) -> None:
        kept = {key: weights.read(one) for key, one in safetensors.table(path).items()}
        save_file(kept | {name: torch.zeros(shape, dtype=dtype)}, path)

    return change


DAMAGED: dict[str, tuple[Callable[[Path], Any], str]] = {
    "cut off": (cut, "model.safetensors is truncated: it has "),
    "cut off in its table": (lambda path: path.write_bytes(path.read_bytes()[:99]), "is truncated: it has 99 bytes, but its table alone"),
    "too long": (lambda path: path.write_bytes(path.read_bytes() + b"more"), "is too long: it has "),
    "junk": (lambda path: path.write_bytes(b"no weights at all"), "model.safetensors is not a safetensors file"),
    "nothing": (lambda path: path.write_bytes(b""), "model.safetensors is not a safetensors file"),
    "a table of something else": (
        lambda path: path.write_bytes(struct.pack("<Q", 8) + b'{"a": 1}'),
        "model.safetensors is not a safetensors file",
    ),
    "another shape": (of("model.norm.weight", (16,)), "model.norm.weight is 16, but tiny.json needs 32"),
    "another type": (of("model.norm.weight", (32,), torch.int8), "model.norm.weight has type I8; the trainer reads F64, F32"),
    "more layers": (of("model.layers.3.input_layernorm.weight", (32,)), "holds model.layers.3.input_layernorm.weight, which"),
    "no file": (Path.unlink, "holds no .safetensors file"),
}  # fmt: skip


@pytest.mark.parametrize("name", DAMAGED)
@pytest.mark.parametrize("verb", ["run", "generate"])
def test_files_of_other_weights_are_refused_before_a_process_starts(
    run: Run, verb: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    damage, words = DAMAGED[name]
    damage(saved(LLAMA, tmp_path / "weights") / "model.safetensors")
    (tmp_path / "tiny.json").write_text(json.dumps(LLAMA), encoding="utf-8")
    for starter in ("run", "Popen"):
        monkeypatch.setattr(subprocess, starter, lambda *_, **__: pytest.fail("a process was started"))
    message = refused(run(verb, str(tmp_path / "tiny.json"), "--weights", str(tmp_path / "weights"), "--device", "cpu"))
    assert words in message
    assert str(tmp_path / "weights") in message


def test_weights_of_another_kind_of_model_are_refused_with_what_is_missing(tmp_path: Path) -> None:
    given = saved(LLAMA, tmp_path)
    values, label = launch.buildable("bloom-560m")
    with pytest.raises(expected.WeightsError, match=r"lacks transformer.word_embeddings.weight of bloom-560m \(293 of 293 are"):
        expected.check(values, label, given)


@pytest.mark.parametrize(
    ("stated", "says"),
    [
        (
            {"num_attention_heads": 8, "head_dim": 4},
            "has 8 attention heads, but tiny has 4; these weights belong to another model",
        ),
        ({"hidden_act": "gelu"}, "has gelu as the activation, but tiny has silu; these weights belong"),
        ({"rope_theta": 5e5, "rms_norm_eps": 1e-6}, ""),
        ({"model_type": "a type of another program"}, ""),
    ],
)
def test_a_config_beside_the_weights_must_state_the_same_model(stated: dict[str, Any], says: str, tmp_path: Path) -> None:
    """Weights of the same shapes with other heads belong to another model; other rotary positions or norms may be a choice."""
    given = saved(LLAMA, tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(LLAMA | stated), encoding="utf-8")
    with pytest.raises(expected.WeightsError, match=says) if says else nullcontext():
        expected.check(LLAMA, "tiny", given / "model.safetensors")


def test_a_file_stands_for_its_folder_and_one_of_several_for_all(tmp_path: Path) -> None:
    one = saved(LLAMA, tmp_path / "one") / "model.safetensors"
    assert launch.prepare(TrainRun(_config(tmp_path), device="cpu", weights=str(one))).settings.weights == str(one)
    every = {key: weights.read(kept) for key, kept in safetensors.table(one).items()}
    parts, names = tmp_path / "parts", sorted(every)
    parts.mkdir()
    for number, some in enumerate((names[:5], names[5:]), 1):
        save_file({key: every[key] for key in some}, parts / f"part-{number}.safetensors")
    where = {key: f"part-{1 + (key in names[5:])}.safetensors" for key in names}
    (parts / safetensors.INDEX).write_text(json.dumps({"weight_map": where}), encoding="utf-8")
    expected.check(LLAMA, "tiny", parts / "part-2.safetensors")
    (parts / "part-1.safetensors").unlink()
    with pytest.raises(expected.WeightsError, match=r"names part-1.safetensors, which does not exist"):
        expected.check(LLAMA, "tiny", parts)


def _config(folder: Path) -> str:
    path = folder / "tiny.json"
    path.write_text(json.dumps(LLAMA), encoding="utf-8")
    return str(path)


def test_buffers_that_older_files_hold_beside_weights_are_ignored(tmp_path: Path) -> None:
    file = saved(GPT2, tmp_path) / "model.safetensors"
    kept = {key.removeprefix("transformer."): weights.read(one) for key, one in safetensors.table(file).items()}
    save_file(kept | {"h.0.attn.bias": torch.ones(1, 1, 96, 96), "h.0.attn.masked_bias": torch.tensor(-1e4)}, file)
    expected.check(GPT2, "gpt2", tmp_path)


def test_a_worker_that_finds_other_weights_says_so_without_a_traceback(tmp_path: Path) -> None:
    """As on another host, whose launcher checked other files."""
    cut(saved(LLAMA, tmp_path) / "model.safetensors")
    with pytest.raises(TrainingError, match=r"model.safetensors is truncated"):
        weights.load([build(LLAMA, Span(0, 3, 3))], tmp_path)


@given(at=st.integers(0, 600), byte=st.integers(0, 255))
def test_a_damaged_table_is_refused_or_read_and_never_a_traceback(
    at: int, byte: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    file = tmp_path_factory.getbasetemp() / "damaged.safetensors"
    save_file({"a": torch.zeros(3, 4), "b": torch.zeros(2, dtype=torch.bfloat16)}, file)
    data = bytearray(file.read_bytes())
    data[at % len(data)] = byte
    file.write_bytes(data)
    with suppress(safetensors.WeightsError):
        for one in safetensors.contents(file).values():
            assert 8 <= one.start <= one.end <= len(data)
