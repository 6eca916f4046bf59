"""TTT-MLP's Gluon kernels, executed on the CPU: outputs and every gradient are those of the plain form in float64."""

from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest
import torch

from meshwise.workers.trainer.models.ttt.dispatch import MLP, why_no_kernels

pytest.importorskip("triton")

from meshwise.workers.trainer.models.ttt.kernels import mlp
from support.gluon_on_cpu import OnCPU
from support.ttt_mlp_cases import inputs, layer, operator

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True, scope="module")
def _kernels_on_the_cpu() -> Iterator[None]:
    torch.manual_seed(0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mlp, "KERNELS", {name: OnCPU(kernel) for name, kernel in mlp.KERNELS.items()})
        yield


CASES: dict[str, Callable[[], dict[str, float]]] = {
    "several mini-batches": lambda: operator(2, 3, 2, 64, 16),
    "one mini-batch": lambda: operator(1, 1, 1, 64, 16),
    "a layer": lambda: layer(32),
    "a layer with a tail": lambda: layer(40),
    "a layer with joined projections": lambda: layer(32, fused=True),
}


@pytest.mark.parametrize("case", CASES)
def test_kernels_compute_the_plain_form_and_all_its_gradients(case: str) -> None:
    seen = CASES[case]()
    # written so that NaN fails
    assert [name for name, error in seen.items() if not error < 1e-5] == []
    assert len(seen) > 10


def test_the_operator_keeps_the_promises_that_the_compiler_relies_on() -> None:
    given = [one.float().requires_grad_() for one in inputs(1, 2, 1, 64, 16)]
    checked = torch.library.opcheck(mlp.ttt_mlp, tuple(given))
    assert set(checked.values()) == {"SUCCESS"}


def test_a_layer_on_a_cpu_does_not_use_the_kernels() -> None:
    assert "not cpu" in why_no_kernels(torch.device("cpu"), torch.bfloat16, 64, 16, MLP)


def test_with_an_older_triton_a_layer_does_not_use_the_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    hopper = SimpleNamespace(major=9, minor=0, shared_memory_per_block_optin=227 << 10, name="H200")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: hopper)
    for version, reason in (("3.5.1", "they need triton 3.6 or later; 3.5.1 is installed"), ("3.6.0", "")):
        monkeypatch.setattr("importlib.metadata.version", lambda name, version=version: version)
        assert why_no_kernels.__wrapped__(torch.device("cuda"), torch.bfloat16, 64, 16, MLP) == reason
