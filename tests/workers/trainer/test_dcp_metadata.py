"""A checkpoint's `.metadata` is a pickle: it is read without running what somebody put into it, and damage falls back."""

import contextlib
import io
import os
import pickle
import pickletools
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint.filesystem import _StorageInfo  # pyright: ignore[reportPrivateUsage]
from torch.distributed.checkpoint.metadata import BytesStorageMetadata, Metadata

from meshwise.workers.trainer.contract.marker import read_marker
from meshwise.workers.trainer.dcp_metadata import MetadataError, read_metadata
from support.nursery import Nursery
from support.tiny_runs import WHOLE, losses, trained


class Hostile:
    """An object that creates a file when it is unpickled as usual."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.file),)


@pytest.fixture(scope="module")
def checkpoints(nursery: Nursery, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run with checkpoints after steps 3 and 6."""
    out = tmp_path_factory.mktemp("metadata")
    losses(nursery, WHOLE, out)
    return out / "checkpoints"


def forge(target: Path, data: bytes) -> None:
    """Replace the description, with marker and checksums that fit it."""
    (target / ".metadata").write_bytes(data)
    marker = read_marker(target)
    assert marker
    files = dict(marker.files) | {".metadata": (len(data), zlib.crc32(data))}
    (target / "complete").write_text(replace(marker, files=files).text())


def test_code_in_a_checkpoint_is_not_run_and_the_one_before_is_used(nursery: Nursery, checkpoints: Path, tmp_path: Path) -> None:
    newest, evil = checkpoints / "step-6", tmp_path / "evil"
    good = (newest / ".metadata").read_bytes()
    metadata: Metadata = pickle.loads(good)
    metadata.planner_data = Hostile(evil)
    forge(newest, pickle.dumps(metadata))
    printed = trained(nursery, replace(WHOLE, steps=6), checkpoints.parent)
    assert "step 6 is damaged (.metadata asks for posix.mkdir, which no checkpoint needs)" in printed
    assert "resuming after step 3" in printed
    assert not evil.exists()


def test_only_what_dcp_writes_is_read(checkpoints: Path, tmp_path: Path) -> None:
    target = checkpoints / "step-3"
    marker = read_marker(target)
    assert marker
    good = (target / ".metadata").read_bytes()
    assert read_metadata(target, marker.files).state_dict_metadata.keys() == pickle.loads(good).state_dict_metadata.keys()
    asked = {
        str(value) for code, value, _ in pickletools.genops(good) if code.name == "SHORT_BINUNICODE" and "torch" in str(value)
    }
    assert asked  # the protocol of this torch version is one that the test reads

    def changed(change: Callable[[Metadata], object]) -> bytes:
        metadata: Metadata = pickle.loads(good)
        change(metadata)
        return pickle.dumps(metadata)

    def first(metadata: Metadata) -> _StorageInfo:
        return next(iter(metadata.storage_data.values()))

    huge = b"\x80\x04N" + b"r\xff\xff\xff\x7f" + b"."  # LONG_BINPUT far beyond any memory
    cases: dict[str, bytes] = {
        "os.system": pickle.dumps(Hostile(tmp_path / "evil")),
        "builtins": b"cbuiltins\neval\n(S'1'\ntR.",
        "a torch function": b"ctorch\nload\n(S'x'\ntR.",
        "a bytes object, which DCP would unpickle": changed(lambda m: m.state_dict_metadata.update({"weight.x": BytesStorageMetadata()})),
        "a part elsewhere": changed(lambda m: setattr(first(m), "relative_path", "../../../etc/passwd")),
        "a part beyond its file": changed(lambda m: setattr(first(m), "length", 1 << 40)),
        "a negative offset": changed(lambda m: setattr(first(m), "offset", -1)),
        "a transform": changed(lambda m: setattr(first(m), "transform_descriptors", ["zstd"])),
        "no tensors": changed(lambda m: setattr(m, "state_dict_metadata", None)),
        "nothing": b"",
        "a number": pickle.dumps(5),
        "cut short": good[:-50],
        "too many brackets": b"(" * 100_000 + b"t" * 100_000 + b".",
    }  # fmt: skip
    believed: list[str] = []
    for what, data in cases.items():
        forged = tmp_path / "forged"
        forged.mkdir(exist_ok=True)
        (forged / ".metadata").write_bytes(data)
        with contextlib.suppress(MetadataError):
            read_metadata(forged, marker.files)
            believed.append(what)
    assert believed == []
    assert not (tmp_path / "evil").exists()
    (tmp_path / "forged" / ".metadata").write_bytes(huge)
    with pytest.raises(MetadataError, match="holds no description"):
        read_metadata(tmp_path / "forged", marker.files)


def test_every_data_type_and_an_empty_pickle_stream_are_handled() -> None:
    from meshwise.workers.trainer.dcp_metadata import _Unpickler

    for dtype in (torch.float32, torch.bfloat16, torch.int64, torch.float8_e4m3fn):
        assert _Unpickler(io.BytesIO(pickle.dumps(dtype))).load() is dtype
