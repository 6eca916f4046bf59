"""`meshwise make-gguf`: the file is the model's own in shape, type and length, and llama.cpp loads it."""

from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType, GGUFReader
from gguf.quants import dequantize

from meshwise.errors import UserError
from meshwise.models import make_gguf
from meshwise.models.formats import find_format, weights
from meshwise.models.gguf import header as gguf_header
from meshwise.models.gguf.random import SCALES, pool
from support.command import Run, refused


def made(path: Path, name: str = "llama-debug", kind: str = "q4_k_m", layers: int | None = None, header: bool = False) -> Path:
    make_gguf.write(make_gguf.prepare(name, find_format(kind), layers), path, header_only=header)
    return path


@pytest.mark.parametrize("name", ["llama-debug", "qwen3-0.6b", "gemma-3-270m", "qwen3-30b-a3b"])
def test_the_file_holds_the_tensors_that_the_planner_counts(tmp_path: Path, name: str) -> None:
    """Read back, its tensors have the types and bytes that a plan for the same model counts with."""
    file = made(tmp_path / "m.gguf", name, layers=2, header=True)
    stored = gguf_header.read(file)
    planned = make_gguf.prepare(name, find_format("q4_k_m"), 2)
    counted = {w.name: (w.type, w.bytes) for w in planned.weights.tensors if w.slot.stored}
    assert {t.name: (t.type, t.bytes) for t in stored.tensors} == counted
    assert (stored.params, stored.notes) == (planned.model.params, ())
    assert weights(stored).bytes == planned.weights.bytes


def test_a_header_only_file_takes_no_disk_space(tmp_path: Path) -> None:
    """The 8B in Q4_K_M is 4.58 GiB long (llama.cpp prints 4.58 GiB for it); the sparse file takes its vocabulary alone."""
    file = made(tmp_path / "m.gguf", "llama-3-8b", header=True)
    assert file.stat().st_size / 2**30 == pytest.approx(4.58, abs=0.01)
    assert file.stat().st_blocks * 512 < 10 * 2**20


@pytest.mark.parametrize("kind", sorted(SCALES))
def test_random_blocks_have_the_mean_and_deviation_of_fresh_weights(kind: str) -> None:
    """By the gguf package's own reading: finite, about 0.02 wide and around zero, whatever the type."""
    size = len(pool(kind, 0)) // 4093
    values = dequantize(np.frombuffer(pool(kind, 0), np.uint8).reshape(4093, size), GGMLQuantizationType[kind])
    assert np.isfinite(values).all()
    assert values.std() == pytest.approx(0.02, rel=0.15)
    assert abs(values.mean()) < 0.003


def test_the_vocabulary_has_every_byte_and_no_word_twice(tmp_path: Path) -> None:
    reader = GGUFReader(made(tmp_path / "m.gguf", "smollm2-135m", layers=1, header=True))
    tokens = reader.fields["tokenizer.ggml.tokens"]
    words = [bytes(tokens.parts[i]).decode() for i in tokens.data]
    assert len(words) == len(set(words)) == 49152


def test_the_same_seed_writes_the_same_file(tmp_path: Path) -> None:
    plan = make_gguf.prepare("llama-debug", find_format("q8_0"))
    texts: list[bytes] = []
    for seed in (0, 0, 1):
        make_gguf.write(plan, tmp_path / "m.gguf", seed=seed)
        texts.append((tmp_path / "m.gguf").read_bytes())
    assert texts[0] == texts[1] != texts[2]


def test_a_file_that_cannot_be_written_is_refused_in_one_line_and_leaves_nothing(run: Run, tmp_path: Path) -> None:
    out = ["--out", str(tmp_path / "m.gguf")]
    assert "make-gguf does not write gpt2 (gpt2); it writes gemma, " in refused(run("make-gguf", "gpt2", *out))
    assert "unknown quantization 'q4_k_x'; did you mean" in refused(run("make-gguf", "llama-debug", "--type", "q4_k_x", *out))
    assert "IQ1_M cannot be made" in refused(run("make-gguf", "llama-3.2-1b", "--layers", "1", "--type", "iq1_m", *out))
    assert "ends in .gguf" in refused(run("make-gguf", "llama-debug", "--out", str(tmp_path / "m.bin")))
    assert "No such file" in refused(run("make-gguf", "llama-debug", "--out", str(tmp_path / "no" / "m.gguf")))
    assert not list(tmp_path.iterdir())
    with pytest.raises(UserError, match="is a GGUF file already"):
        make_gguf.prepare("x.gguf", find_format("q8_0"))


def test_the_command_prints_the_file_it_wrote(run: Run, tmp_path: Path) -> None:
    done = run("make-gguf", "llama-debug", "--layers", "2", "--out", str(tmp_path / "m.gguf"))
    assert (done.code, done.err) == (0, "")
    assert "random weights in 2 layers of llama-debug, Q4_K_M" in done.out
