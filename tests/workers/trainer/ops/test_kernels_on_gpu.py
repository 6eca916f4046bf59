"""The trainer's kernels on a GPU against plain PyTorch. The last results are in docs/trainer.md."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

if not torch.cuda.is_available():
    pytest.skip("no GPU here: kernels are checked by hand on one", allow_module_level=True)

from meshwise.workers.trainer.models.base import Fusable, Span, build
from meshwise.workers.trainer.ops.adamw import SplitAdamW
from meshwise.workers.trainer.ops.fp8 import fp8_gated_product, fp8_linear
from meshwise.workers.trainer.ops.loss import head_loss


@pytest.mark.parametrize(("tokens", "vocabulary", "hidden"), [(300, 1000, 64), (4096, 50257, 768), (2000, 128256, 512)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_loss_equals_float64(tokens: int, vocabulary: int, hidden: int, dtype: torch.dtype) -> None:
    dice = torch.Generator("cuda").manual_seed(tokens)
    x = torch.randn(tokens, hidden, generator=dice, device="cuda").to(dtype).requires_grad_()
    weight = (torch.randn(vocabulary, hidden, generator=dice, device="cuda") / hidden**0.5).to(dtype).requires_grad_()
    targets = torch.randint(vocabulary, (tokens,), generator=dice, device="cuda")
    a, b = x.detach().double().requires_grad_(), weight.detach().double().requires_grad_()
    expected = F.cross_entropy(a @ b.T, targets) * 3
    gradients = torch.autograd.grad(expected, (a, b))
    found = head_loss(x, weight, targets, at_once=2**26) * 3
    near = 1e-5 if dtype == torch.float32 else 1e-2
    assert abs(found.item() - expected.item()) < near * expected.item()
    for one, other in zip(torch.autograd.grad(found, (x, weight)), gradients, strict=True):
        assert ((one.double() - other).norm() / other.norm()).item() < near


def test_split_weights_follow_float32_ones() -> None:
    dice = torch.Generator("cuda").manual_seed(0)
    start = torch.randn(1000, 37, generator=dice, device="cuda")
    whole, split = nn.Parameter(start.clone()), nn.Parameter(start.clone())
    usual = torch.optim.AdamW([whole], lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1)
    ours = SplitAdamW([{"params": [split], "weight_decay": 0.1}], betas=(0.9, 0.95))
    ours.rate.fill_(1e-3)
    assert torch.equal(ours.value(split), start)
    for step in range(50):
        grad = torch.randn(1000, 37, generator=dice, device="cuda").bfloat16()
        whole.grad, split.grad = grad.float(), grad
        usual.step()
        ours.step()
        if step == 20:  # a NaN gradient changes nothing
            split.grad = torch.full_like(grad, torch.nan)
            ours.step(scale=torch.tensor(torch.nan, device="cuda"))
    # 6e-6 on an H200, where torch itself is 5e-6 from float64 and this 3e-6 (docs/trainer.md)
    assert (ours.value(split) - whole).abs().max().item() < 1e-5
    assert (split.float() - whole).abs().max().item() < 2**-8 * start.abs().max().item()


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("by_row", [False, True])
def test_products_of_8_bits_are_near_those_of_float64(gated: bool, by_row: bool) -> None:
    """Three bits of mantissa round by 3% on average, and two bits (gradients with one scale) by 6%: sums stay near that."""
    if torch.cuda.get_device_capability() < (8, 9):
        pytest.skip("this GPU has no 8-bit products")
    dice = torch.Generator("cuda").manual_seed(2)

    def drawn(*shape: int) -> torch.Tensor:
        return (torch.randn(*shape, generator=dice, device="cuda") / shape[-1] ** 0.5).bfloat16().requires_grad_()

    x = drawn(4, 512, 256)
    weights = [drawn(1024, 256), drawn(1024, 256), drawn(256, 1024)] if gated else [drawn(256, 256), drawn(128, 256)]
    y = fp8_gated_product(x, *weights, "silu", by_row)[0] if gated else fp8_linear(x, weights, by_row)[0]
    wide, *others = (part.detach().double().requires_grad_() for part in (x, *weights))
    right = (F.silu(wide @ others[0].T) * (wide @ others[1].T)) @ others[2].T if gated else wide @ torch.cat(others).T
    outer = torch.randn(y.shape, generator=dice, device="cuda").bfloat16()
    found = [y, *torch.autograd.grad(y, (x, *weights), outer)]
    expected = [right, *torch.autograd.grad(right, (wide, *others), outer.double())]
    far = [((one.double() - other).norm() / other.norm()).item() for one, other in zip(found, expected, strict=True)]
    assert far[0] < (0.08 if gated else 0.05), far
    assert max(far[1:]) < (0.15 if gated else 0.09), far


@pytest.mark.parametrize("heads", [(8, 8), (8, 2)])
@pytest.mark.parametrize("compiled", [False, True])
def test_fused_products_are_as_near_to_float64_as_separate_ones(heads: tuple[int, int], compiled: bool) -> None:
    config = {"model_type": "llama", "hidden_size": 512, "intermediate_size": 1408, "num_hidden_layers": 2, "vocab_size": 1000}
    config |= {"num_attention_heads": heads[0], "num_key_value_heads": heads[1]}
    dice = torch.Generator("cuda").manual_seed(1)
    tokens = torch.randint(1000, (2, 300), generator=dice, device="cuda")
    drawn: list[torch.Tensor] = []
    found: dict[str, list[torch.Tensor]] = {}
    for kind in ("float64", "separate", "fused"):
        model = build(config, Span(0, 2, 2)).cuda()
        drawn = drawn or [torch.randn(p.shape, generator=dice, device="cuda").bfloat16() * 0.04 for p in model.parameters()]
        for parameter, values in zip(model.parameters(), drawn, strict=True):
            parameter.data = values.double() if kind == "float64" else values.clone()
        for part in (part for part in model.modules() if isinstance(part, Fusable) and kind == "fused"):
            part.fuse()
        run = torch.compile(model, fullgraph=True, dynamic=False) if compiled and kind != "float64" else model
        logits = run(tokens)
        F.cross_entropy(logits.flatten(0, 1).double(), tokens.roll(1).flatten()).backward()
        found[kind] = [parameter.grad.double() for parameter in model.parameters() if parameter.grad is not None]
        assert len(found[kind]) == len(drawn)
    for right, separate, fused in zip(*found.values(), strict=True):
        far = [((one - right).norm() / right.norm()).item() for one in (separate, fused)]
        assert far[1] < max(1.3 * far[0], 1e-2), far
