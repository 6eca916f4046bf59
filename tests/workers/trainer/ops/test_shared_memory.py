"""Kernels with large tiles run only where a multiprocessor holds them."""

from types import SimpleNamespace

import pytest
import torch

from meshwise.workers.trainer.ops.shared_memory import holds_large_tiles

CHIPS = {"H200": (232448, True), "A100": (166912, False), "RTX 4090": (101376, False), "RTX 5090": (101376, False)}


@pytest.mark.parametrize("name", CHIPS)
def test_large_tiles_need_the_shared_memory_of_hopper(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    shared, expected = CHIPS[name]
    chip = SimpleNamespace(shared_memory_per_block_optin=shared)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: chip)
    assert holds_large_tiles.__wrapped__(torch.device("cuda", 0)) is expected


def test_other_devices_have_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace())
    assert not holds_large_tiles.__wrapped__(torch.device("cuda", 0))  # an AMD GPU
    assert not holds_large_tiles.__wrapped__(torch.device("cpu"))
