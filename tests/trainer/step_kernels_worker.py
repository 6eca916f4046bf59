"""Run with TRITON_INTERPRET=1: the kernels of a step on the CPU, against plain PyTorch. Fails where one differs."""

import torch
import torch.nn.functional as F
from torch import nn

from meshwise.trainer.adamw import SplitAdamW
from meshwise.trainer.softmax import scale, slopes

dice = torch.Generator().manual_seed(0)


def check_slopes(rows: int, vocabulary: int, width: int, dtype: torch.dtype = torch.float32) -> None:
    logits = torch.randn(rows, width, generator=dice).to(dtype)
    targets = torch.randint(vocabulary, (rows,), generator=dice)
    plain = logits[:, :vocabulary].float().clone().requires_grad_()
    wanted = F.cross_entropy(plain, targets, reduction="none") * 0.5
    wanted.sum().backward()
    assert plain.grad is not None
    torch.testing.assert_close(slopes(logits, targets, vocabulary, 0.5), wanted.detach())
    near = 1e-5 if dtype == torch.float32 else 2**-7
    torch.testing.assert_close(logits[:, :vocabulary].float(), plain.grad, rtol=near, atol=1e-7)
    assert not logits[:, vocabulary:].any()


def check_split_adamw() -> None:
    start = torch.randn(50, 37, generator=dice)
    whole, split = nn.Parameter(start.clone()), nn.Parameter(start.clone())
    usual = torch.optim.AdamW([whole], lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1)
    ours = SplitAdamW([{"params": [split], "weight_decay": 0.1}], betas=(0.9, 0.95))
    ours.rate.fill_(1e-3)
    assert split.dtype == torch.bfloat16
    assert torch.equal(ours.whole(split), start)
    for _ in range(5):
        grad = torch.randn(50, 37, generator=dice).bfloat16()
        whole.grad, split.grad = grad.float() / 4, grad
        usual.step()
        ours.step(scale=torch.tensor(0.25))
        # a gradient that is no number changes nothing, nor the count of steps
        split.grad = torch.full_like(grad, torch.nan)
        ours.step(scale=torch.tensor(torch.nan))
    assert ours.count.item() == 5
    torch.testing.assert_close(ours.whole(split), whole.detach(), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(split.float(), whole.detach(), rtol=2**-8, atol=1e-6)


def check_scale() -> None:
    x = torch.randn(9000, generator=dice)
    torch.testing.assert_close(scale(x.clone(), torch.tensor(1 / 3)), x / 3)


check_scale()
check_slopes(5, 100, 128)
check_slopes(3, 40000, 40064)
check_slopes(3, 9000, 9024, torch.bfloat16)
check_slopes(2, 70000, 70016, torch.bfloat16)
check_split_adamw()
