"""Files without end, devices and pipes: every reader has a bound on what it reads, whatever the file system says."""

import contextlib
import gzip
import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from meshwise.catalogue import files
from meshwise.errors import UserError
from meshwise.run.text import documents
from meshwise.workers.trainer.contract.files.safetensors import WeightsError, contents
from support.command import Run, one_line, refused

ZERO = Path("/dev/zero")
PROGRAM = "import sys; from meshwise.ui.cli.main import main; main()"


def meshwise(*words: str, stdout: "int | None" = None, before: str = "") -> "subprocess.CompletedProcess[str]":
    """Run a verb as a process, with at most 4 GB of addresses: one without a bound would take more."""
    limit = "import resource; resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30)); "
    output = subprocess.PIPE if stdout is None else stdout
    return subprocess.run(
        [sys.executable, "-c", f"{limit}{before}{PROGRAM}", *words], stdout=output, stderr=subprocess.PIPE, text=True, check=False
    )


@pytest.mark.skipif(not ZERO.exists(), reason="no /dev/zero here")
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("config.json", ("count", "{}")),
        ("plan.json", ("run", "{}")),
        ("a.gguf", ("count", "{}")),
        ("runs.csv", ("validate", "{}")),
        ("runs.jsonl", ("validate", "{}")),
        ("run.log", ("audit", "{}")),
        ("rows.jsonl", ("probe", "--read", "{}")),
        ("before.json", ("bench", "http://127.0.0.1:1", "--against", "{}")),
        ("model.safetensors", ("run", "--weights", "{}")),
        ("text.txt", ("run", "--data", "{}")),
        ("tokenizer.json", ("run", "--data", "text", "--tokenizer", "{}")),
        ("cluster.toml", ("plan", "llama-3-8b", "--batch", "8", "--on", "{}")),
    ],
)
def test_a_link_to_an_endless_device_is_refused(run: Run, tmp_path: Path, name: str, words: tuple[str, ...]) -> None:
    (tmp_path / name).symlink_to(ZERO)
    refused(run(*(word.format(tmp_path / name) for word in words)))


def test_pipes_are_read_up_to_the_bound_and_one_without_a_writer_does_not_hang(tmp_path: Path) -> None:
    pipe = tmp_path / "config.json"
    os.mkfifo(pipe)
    assert files.bytes_of(pipe) == b""
    reader, writer = os.pipe()

    def flood() -> None:
        with contextlib.suppress(BrokenPipeError):
            while True:
                os.write(writer, bytes(1 << 16))

    thread = threading.Thread(target=flood)
    thread.start()
    with pytest.raises(UserError) as error:
        files.bytes_of(Path(f"/dev/fd/{reader}"), 1 << 20)
    os.close(reader)
    thread.join()
    os.close(writer)
    assert "larger than 1 MiB" in one_line(error.value)


def test_a_file_larger_than_it_says_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_bytes(b"#" * 3000)
    assert len(files.bytes_of(tmp_path / "a.toml", 3000)) == 3000
    with pytest.raises(UserError, match="larger than 0 MiB"):
        files.bytes_of(tmp_path / "a.toml", 2999)
    with pytest.raises(UserError, match="it is a folder"):
        files.bytes_of(tmp_path)


def test_damaged_and_hostile_archives_are_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "MAX_LINE_BYTES", 1 << 16)
    bomb, damaged = tmp_path / "bomb.jsonl.gz", tmp_path / "damaged.jsonl.gz"
    bomb.write_bytes(gzip.compress(b'{"text": "' + b"x" * (1 << 20)))
    good = bytearray(gzip.compress(b'{"text": "a"}\n' * 500))
    good[30] ^= 0xFF
    damaged.write_bytes(good)
    with pytest.raises(UserError, match="line 1: longer than 0 MiB, so it is no document"):
        list(documents.pieces(bomb, "text"))
    with pytest.raises(UserError, match="cannot read"):
        list(documents.pieces(damaged, "text"))


@pytest.mark.parametrize("name", ["../elsewhere.safetensors", "/etc/passwd", "..", "", "a\0b", "x" * 5000])
def test_an_index_of_weights_does_not_leave_its_folder(tmp_path: Path, name: str) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": name}}))
    with pytest.raises(WeightsError, match=r"which is not a file of its folder|which does not exist"):
        contents(tmp_path)


def test_results_that_cannot_be_written_are_one_line_and_exit_1(tmp_path: Path) -> None:
    closed = "import os; os.close(1); "
    full = os.open("/dev/full", os.O_WRONLY) if Path("/dev/full").exists() else None
    for words in (
        ("count", "llama-3-8b"),
        ("show", "chips", "--json"),
        ("plan", "llama-3-8b", "--on", "1x8xh200", "--batch", "64", "--json"),
    ):
        cases = [(meshwise(*words, before=closed), "Bad file descriptor")]
        cases += [(meshwise(*words, stdout=full), "No space left on device")] if full is not None else []
        for done, why in cases:
            assert (done.returncode, done.stderr) == (1, f"meshwise: cannot write the output: {why}\n"), words
    if full is not None:
        os.close(full)


def test_numbers_that_nothing_has_are_refused_in_one_line(run: Run) -> None:
    for batch in ("1e30", "9" * 400, "-1", "nan", "1e400"):
        refused(run("run", "--batch", batch, "--device", "cpu"))
        refused(run("plan", "llama-3-8b", "--on", "1x8xh200", "--batch", batch))
