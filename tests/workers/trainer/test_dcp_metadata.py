"""What a checkpoint holds is read from JSON of our own: DCP's `.metadata`, a pickle, is never read, and damage falls back."""

import contextlib
import json
import pickle
import struct
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from meshwise.errors import UserError
from meshwise.run.train import previous
from meshwise.workers.trainer.contract.marker import format_refusal, read_marker
from meshwise.workers.trainer.dcp_metadata import MetadataError, read_metadata
from support.nursery import Nursery
from support.tiny_runs import WHOLE, losses, trained

VICTIM = "victim"


def gadgets(victim: str) -> dict[str, bytes]:
    """Return pickles that run code, change a class, hang or fill memory when they are loaded."""
    called = {
        "os.mkdir": "os\nmkdir", "posix.mkdir": "posix\nmkdir", "os.makedirs": "os\nmakedirs", "os.system": "os\nsystem",
        "pathlib.Path.touch": "pathlib\nPosixPath", "io.open": "io\nopen", "builtins.eval": "builtins\neval",
        "builtins.exec": "builtins\nexec", "builtins.open": "builtins\nopen", "builtins.__import__": "builtins\n__import__",
        "subprocess.call": "subprocess\ncall", "subprocess.Popen": "subprocess\nPopen", "shutil.rmtree": "shutil\nrmtree",
        "torch.load": "torch\nload", "torch.hub.load": "torch.hub\nload", "runpy.run_path": "runpy\nrun_path",
        "importlib.import_module": "importlib\nimport_module", "pickle.loads": "pickle\nloads", "code.interact": "code\ninteract",
        "operator.attrgetter": "operator\nattrgetter", "ctypes.CDLL": "ctypes\nCDLL", "webbrowser.open": "webbrowser\nopen",
    }  # fmt: skip
    found = {name: f"c{path}\n(S{victim!r}\ntR.".encode() for name, path in called.items()}
    # BUILD with (None, {...}) sets attributes of whatever is on the stack, here of a class
    found["BUILD on PosixPath"] = f"cpathlib\nPosixPath\n(N(dS'_str'\nS{victim!r}\nstb.".encode()
    found["BUILD on Metadata"] = b"ctorch.distributed.checkpoint.metadata\nMetadata\n(N(dS'state_dict_metadata'\nI1\nstb."
    nested = b"N" + b"".join(b"q" + bytes([i]) + b"h" + bytes([i]) + b"\x86" for i in range(60))
    found["a key of 2^60 hashes"] = b"\x80\x02}" + nested + b"K\x01s."
    found["LONG_BINPUT beyond any memory"] = b"\x80\x04Nr\xff\xff\xff\x7f."
    found["a text of 2^60 bytes"] = b"\x80\x04\x8d" + struct.pack("<Q", 1 << 60)
    found["brackets"] = b"(" * 100_000 + b"t" * 100_000 + b"."
    found["a number"] = pickle.dumps(5)
    return found


@pytest.fixture(scope="module")
def checkpoints(nursery: Nursery, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run with checkpoints after steps 3 and 6."""
    out = tmp_path_factory.mktemp("metadata")
    losses(nursery, WHOLE, out)
    return out / "checkpoints"


def forge(target: Path, name: str, data: bytes) -> None:
    """Replace a file, with marker and checksums that fit it."""
    (target / name).write_bytes(data)
    marker = read_marker(target)
    assert marker
    files = dict(marker.files) | {name: (len(data), zlib.crc32(data))}
    (target / "complete").write_text(replace(marker, files=files).text())


def test_no_gadget_in_a_checkpoint_has_an_effect(checkpoints: Path, tmp_path: Path) -> None:
    target = checkpoints / "step-3"
    marker = read_marker(target)
    assert marker
    before = read_metadata(target, marker.files)
    good, pickled = (target / "tensors.json").read_bytes(), (target / ".metadata").read_bytes()
    try:
        for name, data in gadgets(str(tmp_path / VICTIM)).items():
            (target / ".metadata").write_bytes(data)
            assert read_metadata(target, marker.files) == before, name
            (target / "tensors.json").write_bytes(data)
            with pytest.raises(MetadataError):
                read_metadata(target, marker.files)
            (target / "tensors.json").write_bytes(good)
    finally:
        (target / ".metadata").write_bytes(pickled)
    assert not (tmp_path / VICTIM).exists()
    assert str(Path("a")) == "a"


def test_the_description_is_that_of_dcp(checkpoints: Path) -> None:
    target = checkpoints / "step-3"
    marker = read_marker(target)
    assert marker
    ours, dcp = read_metadata(target, marker.files), pickle.loads((target / ".metadata").read_bytes())
    assert ours.storage_data == dcp.storage_data
    assert ours.state_dict_metadata.keys() == dcp.state_dict_metadata.keys()
    for name, tensor in ours.state_dict_metadata.items():
        theirs = dcp.state_dict_metadata[name]
        assert isinstance(tensor, TensorStorageMetadata)
        assert (tensor.size, tensor.chunks, tensor.properties.dtype) == (theirs.size, theirs.chunks, theirs.properties.dtype)


def test_only_what_a_run_writes_is_read(checkpoints: Path, tmp_path: Path) -> None:
    target = checkpoints / "step-3"
    marker = read_marker(target)
    assert marker
    good = (target / "tensors.json").read_bytes()

    def changed(change: Callable[[dict[str, Any]], object]) -> bytes:
        values = json.loads(good)
        change(next(iter(values["tensors"].values())))
        return json.dumps(values).encode()

    def part(number: int, value: object) -> bytes:
        return changed(lambda tensor: tensor["parts"][0].__setitem__(number, value))

    cases: dict[str, bytes] = {
        "a part elsewhere": part(2, "../../../etc/passwd"),
        "a part in the marker": part(2, "complete"),
        "no name of a file": part(2, ["__0_0.distcp"]),
        "a part beyond its file": part(4, 1 << 40),
        "a negative offset": part(3, -1),
        "a negative length": part(4, -1),
        "an offset that is no number": part(3, True),
        "an offset of 400 digits": part(3, 10**400),
        "a fraction": part(3, 0.5),
        "a part outside of its tensor": part(0, [1 << 40, 0]),
        "a part of other dimensions": part(1, [1, 1, 1, 1]),
        "a thousand dimensions": changed(lambda tensor: tensor.update(size=[1] * 1000)),
        "a function for a data type": changed(lambda tensor: tensor.update(dtype="load")),
        "a module for a data type": changed(lambda tensor: tensor.update(dtype="os")),
        "a number for a data type": changed(lambda tensor: tensor.update(dtype=5)),
        "no parts": changed(lambda tensor: tensor.pop("parts")),
        "parts that are no list": changed(lambda tensor: tensor.update(parts=5)),
        "no tensors": b"{}",
        "a list": b"[]",
        "nothing": b"",
        "cut short": good[:-50],
        "bytes that are no text": b"\xff\xfe\x00",
        "brackets": b"[" * 100_000,
    }
    believed: list[str] = []
    for what, data in cases.items():
        (tmp_path / "tensors.json").write_bytes(data)
        with contextlib.suppress(MetadataError):
            read_metadata(tmp_path, marker.files)
            believed.append(what)
    assert believed == []


def test_a_damaged_description_falls_back_and_a_pickle_is_never_loaded(
    nursery: Nursery, checkpoints: Path, tmp_path: Path
) -> None:
    forge(checkpoints / "step-6", "tensors.json", b"{}")
    forge(checkpoints / "step-3", ".metadata", gadgets(str(tmp_path / VICTIM))["os.mkdir"])
    printed = trained(nursery, replace(WHOLE, steps=6), checkpoints.parent)
    assert "step 6 is damaged (tensors.json cannot be read (KeyError))" in printed
    assert "resuming after step 3" in printed
    assert not (tmp_path / VICTIM).exists()


def test_a_checkpoint_of_an_older_version_is_refused_in_one_line(checkpoints: Path, tmp_path: Path) -> None:
    marker = read_marker(checkpoints / "step-3")
    assert marker
    old = tmp_path / "checkpoints" / "step-3"
    old.mkdir(parents=True)
    files = {name: file for name, file in marker.files.items() if name != "tensors.json"}
    (old / "complete").write_text(replace(marker, files=files).text())
    assert "described checkpoints in a pickle" in format_refusal(old)
    ready: Any = type("Ready", (), {"settings": WHOLE})
    with pytest.raises(UserError, match="resume it with that version, or choose another --out"):
        previous.check(ready, tmp_path)
