"""Run with TRITON_INTERPRET=1: the kernels of a step on the CPU, against plain PyTorch. Fails if one differs."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.library import opcheck

from meshwise.cost.train.passes import JOINED_OUTPUTS_MULTIPLE
from meshwise.cost.train.step import MAX_WEIGHTS_UPDATED_TOGETHER
from meshwise.workers.trainer.models.base import Fusable, Span, build
from meshwise.workers.trainer.models.ttt.linear import ROWS_MULTIPLE, LinearLearner
from meshwise.workers.trainer.ops import grouped_products, squares, wide_attention
from meshwise.workers.trainer.ops.adamw import MAX_GROUPED_WEIGHTS, SplitAdamW
from meshwise.workers.trainer.ops.attention import UNSHARDED, Rule, Scores, attend
from meshwise.workers.trainer.ops.expert_kernels import expert_product, spread_rows, squares_of_gradients, sum_rows
from meshwise.workers.trainer.ops.experts import EXPERT_ROWS_MULTIPLE, arrange, load_of
from meshwise.workers.trainer.ops.fp8 import FORWARD, cast, fp8_gated_product, fp8_linear
from meshwise.workers.trainer.ops.fused_heads import norm_and_rotate, split_and_rotate
from meshwise.workers.trainer.ops.fused_projections import FUSED_ROWS_MULTIPLE, GATES, fused_linear, gated_product, stack
from meshwise.workers.trainer.ops.routing_kernels import arrange_choices, best_experts, count_choices
from meshwise.workers.trainer.ops.softmax import loss_and_gradient, scale

dice = torch.Generator().manual_seed(0)


def check_loss_and_gradient(rows: int, vocabulary: int, width: int, dtype: torch.dtype = torch.float32, cap: float = 0.0) -> None:
    logits = torch.randn(rows, width, generator=dice).to(dtype)
    targets = torch.randint(vocabulary, (rows,), generator=dice)
    targets[1::5] = -100  # without a loss
    plain = logits[:, :vocabulary].float().clone().requires_grad_()
    expected = F.cross_entropy(cap * torch.tanh(plain / cap) if cap else plain, targets, reduction="none") * 0.5
    expected.sum().backward()
    assert plain.grad is not None
    torch.testing.assert_close(loss_and_gradient(logits, targets, vocabulary, 0.5, cap), expected.detach())
    near = 1e-5 if dtype == torch.float32 else 2**-7
    torch.testing.assert_close(logits[:, :vocabulary].float(), plain.grad, rtol=near, atol=1e-7)
    assert not logits[:, vocabulary:].any()


def check_split_adamw() -> None:
    """Small tensors, which are updated together, and a large one; of odd sizes, so that there are gaps between them."""
    starts = [torch.randn(*shape, generator=dice) for shape in ((50, 37), (7,), (300, 300), (1, 3))]
    whole, split, halved = ([nn.Parameter(start.clone()) for start in starts] for _ in range(3))
    usual = torch.optim.AdamW(whole, lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1)
    ours = SplitAdamW([{"params": split, "weight_decay": 0.1}], betas=(0.9, 0.95))
    short = SplitAdamW([{"params": halved, "weight_decay": 0.1}], betas=(0.9, 0.95), moments=torch.bfloat16)
    for one in (ours, short):
        one.rate.fill_(1e-3)
    for start, parameter in zip(starts, split, strict=True):
        assert parameter.dtype == torch.bfloat16
        assert parameter.data_ptr() % 16 == 0
        assert torch.equal(ours.value(parameter), start)
    for _ in range(5):
        for one, *others in zip(whole, split, halved, strict=True):
            grad = torch.randn(one.shape, generator=dice).bfloat16()
            one.grad = grad.float() / 4
            for other in others:
                other.grad = grad
        usual.step()
        for one in (ours, short):
            one.step(scale=torch.tensor(0.25))
        # a NaN gradient changes neither the weights nor the count of steps
        for other in (*split, *halved):
            other.grad = torch.full_like(other, torch.nan)
        for one in (ours, short):
            one.step(scale=torch.tensor(torch.nan))
    assert ours.count.item() == 5
    for one, other, third in zip(whole, split, halved, strict=True):
        torch.testing.assert_close(ours.value(other), one.detach(), rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(other.detach().float(), one.detach(), rtol=2**-8, atol=1e-6)
        assert {short.state[third][kind].dtype for kind in ("exp_avg", "exp_avg_sq")} == {torch.bfloat16}
        # weights keep their float32 precision: steps of 1e-3 are off by the 8 bits of their moments
        torch.testing.assert_close(short.value(third), one.detach(), rtol=0, atol=5 * 1e-3 * 2**-5)


def check_grouped_products() -> None:
    """Rows of experts by their matrices: some experts have no rows, tiles end after their expert, and rows follow the last."""
    tile = grouped_products.Tile(32, 32, 16, 4, 2)
    loads, ends = [0, 48, 96, 0, 33], torch.tensor([0, 48, 144, 144, 177], dtype=torch.int32)
    rows, weights = torch.randn(200, 48, generator=dice), torch.randn(5, 48, 64, generator=dice)
    found = grouped_products.product_by_rows(rows, weights, ends, tile)
    for part, weight in zip(zip(rows[:177].split(loads), found[:177].split(loads), strict=True), weights, strict=True):
        torch.testing.assert_close(part[1], part[0] @ weight, rtol=1e-4, atol=1e-4)
    shares, gates = torch.rand(200, generator=dice), torch.randn(5, 64, 48, generator=dice)
    both, gated = grouped_products.gated_product_by_rows(rows, gates, shares, ends, GATES["silu"], tile)
    right = torch.cat([part @ gate.T for part, gate in zip(rows[:177].split(loads), gates, strict=True)])
    torch.testing.assert_close(both[:177], right, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(gated[:177], F.silu(right[:, :32]) * right[:, 32:] * shares[:177, None], rtol=1e-4, atol=1e-4)
    loads, ends = [0, 48, 96, 0, 32], torch.tensor([0, 48, 144, 144, 176], dtype=torch.int32)
    left, right = torch.randn(200, 64, generator=dice), torch.randn(200, 96, generator=dice)
    gradients, sums = grouped_products.product_by_weights(left, right, ends, tile)
    for gradient, one, other in zip(gradients, left[:176].split(loads), right[:176].split(loads), strict=True):
        torch.testing.assert_close(gradient, one.T @ other, rtol=1e-4, atol=1e-4)
    tiles = gradients.unflatten(1, (-1, tile.tall)).unflatten(3, (-1, tile.wide)).square().sum((2, 4))
    torch.testing.assert_close(sums, tiles.flatten())
    assert grouped_products.weight_tiles(torch.Size((5, 64, 80)), tile) == 0


def check_squares_of_experts() -> None:
    """Autograd leaves the squares of both weights' gradients as the gradient of a leaf; the other gradients stay the same.

    In float16: the interpreter multiplies bfloat16 wrongly.
    """
    ends, shares = (
        torch.tensor([EXPERT_ROWS_MULTIPLE, 3 * EXPERT_ROWS_MULTIPLE], dtype=torch.int32),
        torch.rand(3 * EXPERT_ROWS_MULTIPLE, generator=dice),
    )
    shapes = ((3 * EXPERT_ROWS_MULTIPLE, 256), (2, 512, 256), (2, 256, 256))
    given = [(torch.randn(*shape, generator=dice) * 0.1).half().requires_grad_() for shape in shapes]
    leaf = squares_of_gradients(*given[1:])
    assert leaf is not None
    with_squares = expert_product(*given, shares, ends, leaf, "silu")[0]
    plain = expert_product(*given, shares, ends, None, "silu")[0]
    outer = torch.randn(plain.shape, generator=dice).half()
    *found, sums = torch.autograd.grad(with_squares, (*given, leaf), outer)
    for one, other in zip(found, torch.autograd.grad(plain, given, outer), strict=True):
        assert (one.float() - other.float()).norm() <= 0.01 * other.float().norm()
    torch.testing.assert_close(sums.sum(), sum(gradient.float().square().sum() for gradient in found[1:]))
    opcheck(expert_product, (*given, shares.requires_grad_(), ends, leaf, "silu"), test_utils=("test_schema", "test_faketensor"))
    assert squares_of_gradients(torch.empty(2, 512, 200), torch.empty(2, 256, 256)) is None


def check_routing(tokens: int, count: int, chosen: int, aligned: int) -> None:
    """Experts are chosen as by torch's topk, counted and arranged as on a CPU, also in blocks that are not full."""
    scores = torch.randn(tokens, count, generator=dice)
    scores[0] = -torch.inf
    scores[1, count // 2] = torch.nan
    experts = best_experts(scores, chosen)
    assert all(len(row.unique()) == chosen for row in experts)
    assert torch.equal(experts[2:].sort().values, scores[2:].topk(chosen).indices.sort().values)
    assert count // 2 in experts[1]
    flat = experts.flatten()
    assert torch.equal(count_choices(experts.view(2, -1), count).sum(1), load_of(experts.view(2, -1), count))
    right = arrange(flat, count, aligned)
    for one, other in zip(arrange_choices(flat, count, len(right.choices), aligned), right, strict=True):
        assert one.dtype == other.dtype
        assert torch.equal(one, other)
    nothing = arrange(flat[:0], count, aligned)
    assert torch.equal(arrange_choices(flat[:0], count, len(nothing.choices), aligned)[1], nothing.choices)
    opcheck(arrange_choices, (flat, count, len(right.choices), aligned))
    opcheck(count_choices, (experts.view(2, -1), count))
    opcheck(best_experts, (scores, chosen))


def check_squares() -> None:
    squares.PROGRAMS, squares.AT_ONCE, squares.MIN_OWN_LAUNCH_ELEMENTS = 3, 64, 1000
    tensors = [torch.randn(*shape, generator=dice) for shape in ((30, 41), (7, 5), (3,))]
    torch.testing.assert_close(squares.sum_of_squares(tensors), sum(tensor.square().sum() for tensor in tensors))
    torch.testing.assert_close(squares.sum_of_squares(tensors[:1]), tensors[0].square().sum())


def check_wide_attention(
    heads: int, shared: int, length: int, size: int, cap: float, scores: tuple[int, int], at_once: int
) -> None:
    """Sequences that end within tiles, heads narrower than tiles, several parts of the heads, against scores as a whole."""
    tile = wide_attention.Tile
    wide_attention.TILES = wide_attention.Tiles(tile(32, 16, 0, 4, 2), tile(*scores, 16, 4, 2), tile(32, 0, 16, 4, 2))
    wide_attention.AT_ONCE = at_once
    joined = torch.randn(2, length, heads + 2 * shared, size, generator=dice).requires_grad_()
    q, k, v = (x.transpose(1, 2) for x in joined.split([heads, shared, shared], 2))
    found = wide_attention.wide_attention(q, k, v, 0.7, cap)
    right = attend(
        q, k, v, Scores(mask=torch.ones(length, length, dtype=torch.bool).tril()), Rule(0.7, cap=cap), UNSHARDED, False
    )
    outer = torch.randn(right.shape, generator=dice)
    grads = (torch.autograd.grad(y, joined, outer, retain_graph=True)[0] for y in (found, right))
    for one, other in ((found, right), tuple(grads)):
        assert (one - other).norm() < 1e-5 * other.norm(), ((one - other).norm() / other.norm()).item()


def check_scale() -> None:
    x = torch.randn(9000, generator=dice)
    torch.testing.assert_close(scale(x.clone(), torch.tensor(1 / 3)), x / 3)


def check_fused(config: dict[str, object], number: int = 4, length: int = 12) -> None:
    """A model with `number` fused modules has the loss and gradients of a plain one, and its 16-bit weights keep the stacked order.

    Each token is a program of the kernels, which the interpreter runs one by one: two short sequences are enough.
    """
    plain, fused = (build(config, Span(0, 2, 2)) for _ in range(2))
    for one, other in zip(plain.parameters(), fused.parameters(), strict=True):
        one.data = torch.randn(one.shape, generator=dice) * 0.1
        other.data = one.data.clone()
    parts: list[Any] = [part for part in fused.modules() if isinstance(part, Fusable)]
    for part in parts:
        part.fuse()
    assert len([part for part in parts if part.fused]) == number
    tokens = torch.randint(100, (2, length), generator=dice)
    losses = [model(tokens, tokens.roll(1)) for model in (plain, fused)]
    torch.testing.assert_close(losses[1], losses[0])
    for loss in losses:
        loss.backward()
    for (name, one), other in zip(plain.named_parameters(), fused.parameters(), strict=True):
        assert one.grad is not None
        assert other.grad is not None
        assert (one.grad - other.grad).norm() <= 1e-5 * one.grad.norm(), name
    SplitAdamW([{"params": list(fused.parameters()), "weight_decay": 0.1}], betas=(0.9, 0.95))
    gate, up = (weight for name, weight in fused.named_parameters() if ".0.mlp.gate" in name or ".0.mlp.up" in name)
    assert gate.dtype == torch.bfloat16
    assert number < 4 or up.data_ptr() - gate.data_ptr() == gate.numel() * 2
    for one, other in zip(plain.parameters(), fused.parameters(), strict=True):
        torch.testing.assert_close(other.float(), one, rtol=2**-8, atol=0)


def check_operations() -> None:
    """The shapes and gradients that each operation registers for torch.compile are right, also for weights that need padding."""

    def drawn(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=dice).requires_grad_()

    x, weights = drawn(2, 5, 8), [drawn(7, 8), drawn(3, 1, 8)]
    expected = x @ torch.cat([weight.detach().flatten(0, -2) for weight in weights]).T
    stack(weights)
    assert fused_linear(x, weights).shape == (2, 5, 16)
    torch.testing.assert_close(fused_linear(x, weights)[..., :10], expected)
    assert not fused_linear(x, weights)[..., 10:].any()
    gates = [drawn(16, 8), drawn(16, 8)]
    stack(gates)
    opcheck(fused_linear, (x, weights))
    for activation in GATES:
        opcheck(gated_product, (x, *gates, drawn(8, 16), activation))
    rotation = torch.randn(2, 5, 4, generator=dice)
    opcheck(split_and_rotate, (drawn(2, 5, 32), rotation, 2))
    opcheck(norm_and_rotate, (drawn(2, 5, 32), rotation, drawn(4), drawn(4), 2, 1e-6, 1.0))


def check_experts(activation: str) -> None:
    """Grouped products with the kernel between them have the outputs and gradients of a loop over experts; rows are padded."""
    count, hidden, width, tokens = 4, 16, 24, 20
    choices = torch.randint(0, count, (2 * tokens,), generator=dice)
    # rows of an expert are padded on a GPU alone
    rows, ends, shares = [], [], []
    for expert in range(count):
        load = int((choices == expert).sum())
        padded = -(-load // EXPERT_ROWS_MULTIPLE) * EXPERT_ROWS_MULTIPLE
        rows.append(F.pad(torch.randn(load, hidden, generator=dice), (0, 0, 0, padded - load)))
        shares.append(F.pad(torch.rand(load, generator=dice), (0, padded - load)))
        ends.append((ends[-1] if ends else 0) + padded)
    given: list[Tensor] = [
        torch.cat(rows),
        *(torch.randn(count, *size, generator=dice) * 0.3 for size in ((2 * width, hidden), (hidden, width))),
    ]
    given = [part.bfloat16().requires_grad_() for part in given] + [torch.cat(shares).requires_grad_()]
    stops = torch.tensor(ends, dtype=torch.int32)
    out = expert_product(*given, stops, None, activation)[0]
    wide = [part.detach().float().requires_grad_() for part in given]
    expected = torch.cat(
        [
            _feed_forward(wide[0][first:last], wide[1][expert], activation) * wide[3][first:last, None] @ wide[2][expert].T
            for expert, (first, last) in enumerate(zip([0, *ends], ends, strict=False))
        ]
    )
    outer = torch.randn(out.shape, generator=dice).bfloat16()
    found, right = torch.autograd.grad(out, given, outer), torch.autograd.grad(expected, wide, outer.float())
    for one, other in zip((out, *found), (expected, *right), strict=True):
        assert (one.float() - other).norm() < 0.01 * other.norm()
    places = torch.randperm(len(given[0]), generator=dice)[:40]
    tokens, found = torch.randn(20, 1070, generator=dice), arrange(torch.arange(40) % 3, 3, 16)
    expected = torch.cat((tokens, torch.zeros(1, 1070)))[found.choices // 2]
    torch.testing.assert_close(spread_rows(tokens, found.places, found.choices, 2), expected)
    summed = sum_rows(given[0].detach(), places, 2)
    torch.testing.assert_close(summed, given[0].detach()[places].view(20, 2, -1).float().sum(1).bfloat16())


def _feed_forward(x: Tensor, gate_up: Tensor, activation: str) -> Tensor:
    gate, up = (x @ gate_up.T).chunk(2, -1)
    return (F.silu(gate) if activation == "silu" else F.gelu(gate, approximate="tanh")) * up


def check_eight_bits(by_row: bool) -> None:
    """Products of 8-bit numbers are those of their factors. The interpreter truncates casts, which doubles their error."""
    x, weights = (
        torch.randn(2, 16, 32, generator=dice).requires_grad_(),
        [torch.randn(n, 32, generator=dice).requires_grad_() for n in (32, 16)],
    )
    y = fp8_linear(x, weights, by_row)[0]
    expected = x @ torch.cat(weights).T
    outer = torch.randn(y.shape, generator=dice)
    found, right = (torch.autograd.grad(one, (x, *weights), outer) for one in (y, expected))
    far = [((one - other).norm() / other.norm()).item() for one, other in zip((y, *found), (expected, *right), strict=True)]
    assert max(far) < 0.2, far
    opcheck(fp8_linear, (x, weights, by_row), test_utils=("test_faketensor",))
    gates = [torch.randn(*size, generator=dice).requires_grad_() for size in ((48, 32), (48, 32), (32, 48))]
    opcheck(fp8_gated_product, (x, *gates, "silu", by_row), test_utils=("test_faketensor",))
    y = fp8_gated_product(x, *gates, "silu", by_row)[0]
    expected = _feed_forward(x, torch.cat(gates[:2]), "silu") @ gates[2].T
    outer = torch.randn(y.shape, generator=dice)
    found, right = (torch.autograd.grad(one, (x, *gates), outer) for one in (y, expected))
    far = [((one - other).norm() / other.norm()).item() for one, other in zip((y, *found), (expected, *right), strict=True)]
    assert max(far) < 0.3, far


def check_casts() -> None:
    """A cast times its scale is near the tensor in both orders, also if rows differ in size: then one scale loses the small ones."""

    def far(found: Tensor, right: Tensor) -> list[float]:
        """Return the relative distance of each row; the interpreter halves some values that round up to a power of two."""
        return ((found - right).norm(dim=1) / right.norm(dim=1).clamp(min=1e-30)).tolist()

    x = torch.randn(140, 80, generator=dice)
    made = cast(x, FORWARD)
    assert torch.equal(made.plain.float().T, made.turned.float())
    assert max(far(made.plain.float() * made.scale, x)) < 0.25
    x *= torch.logspace(-6, 6, 140)[:, None]
    x[17] = 0
    lost = cast(x, FORWARD)
    assert far(lost.plain.float() * lost.scale, x)[0] == 1.0
    made = cast(x, FORWARD, by_row=True)
    torch.testing.assert_close(made.scale, x.abs().amax(1).clamp(min=1e-12) / 448)
    torch.testing.assert_close(made.turned_scale, x.abs().amax(0) / 448)
    assert max(far(made.plain.float() * made.scale[:, None], x)) < 0.25
    assert max(far(made.turned.float() * made.turned_scale[:, None], x.T)) < 0.25
    again = cast(x, FORWARD, by_row=True, plain=False, scale=made.turned_scale)
    assert max(far(again.turned.float(), made.turned.float())) < 1e-3
    assert not again.plain.numel()


LLAMA: dict[str, object] = {
    "model_type": "llama", "hidden_size": 64, "intermediate_size": 80, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 100, "rms_norm_eps": 1e-5,
}  # fmt: skip

check_fused(LLAMA)
check_fused(LLAMA | {"num_key_value_heads": 4, "num_attention_heads": 8, "head_dim": 16, "tie_word_embeddings": True})
check_fused(
    LLAMA | {"hidden_size": 24, "num_attention_heads": 3, "num_key_value_heads": 1, "intermediate_size": 40}, 2
)  # 40 rows
check_fused(LLAMA | {"intermediate_size": 20, "head_dim": 6, "num_key_value_heads": 1}, 0)
check_fused(LLAMA | {"attention_bias": True})
check_fused(LLAMA | {"model_type": "qwen3", "head_dim": 16})
check_fused(LLAMA | {"model_type": "olmo2"})
check_fused(LLAMA | {"model_type": "gemma3_text", "head_dim": 16, "sliding_window": 8})
check_fused(LLAMA | {"model_type": "gemma2", "head_dim": 16, "sliding_window": 8})
check_fused(LLAMA | {"model_type": "glm4", "head_dim": 16})
# heads that are no power of two
check_fused(LLAMA | {"model_type": "qwen3", "head_dim": 24}, length=3)
check_fused(LLAMA | {"model_type": "olmo2", "hidden_size": 96}, length=3)
check_fused(LLAMA | {"model_type": "gpt_neox", "hidden_size": 96, "num_key_value_heads": 4, "rotary_pct": 0.5}, 2, length=3)
LinearLearner.choose_kernels = lambda self, device: setattr(self, "fast", self.fused)  # the interpreter runs on a CPU too
check_fused(LLAMA | {"model_type": "ttt", "num_attention_heads": 2, "mini_batch_size": 16}, length=24)  # a mini-batch and a tail
check_operations()
for kind in GATES:
    check_experts(kind)
check_routing(700, 6, 2, 16)
check_routing(90, 40, 8, 64)
check_eight_bits(by_row=False)
check_eight_bits(by_row=True)
check_casts()
assert JOINED_OUTPUTS_MULTIPLE == FUSED_ROWS_MULTIPLE == ROWS_MULTIPLE
assert MAX_WEIGHTS_UPDATED_TOGETHER == MAX_GROUPED_WEIGHTS
check_scale()
check_squares()
check_grouped_products()
check_wide_attention(4, 2, 40, 16, 5.0, (32, 32), 2**30)
check_wide_attention(3, 1, 33, 24, 50.0, (16, 32), 4 * 3 * 33 * 40)
check_wide_attention(2, 2, 70, 16, 20.0, (16, 16), 1)
opcheck(wide_attention.attend_wide, (*(torch.randn(1, n, 5, 16, requires_grad=True) for n in (2, 1, 1)), 0.7, 5.0))
check_squares_of_experts()
check_loss_and_gradient(5, 100, 128)
check_loss_and_gradient(5, 100, 128, cap=2.0)
check_loss_and_gradient(3, 9000, 9024, torch.bfloat16, cap=30.0)
check_loss_and_gradient(3, 40000, 40064)
check_loss_and_gradient(3, 9000, 9024, torch.bfloat16)
check_loss_and_gradient(2, 70000, 70016, torch.bfloat16)
check_split_adamw()
