"""The trainer's kernels on a GPU against plain PyTorch. The last results are in docs/reports/trainer-speed.md."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import nn

if not torch.cuda.is_available():
    pytest.skip("no GPU here: kernels are checked by hand on one", allow_module_level=True)

from meshwise.workers.trainer.models.base import Fusable, Span, build
from meshwise.workers.trainer.ops.adamw import SplitAdamW
from meshwise.workers.trainer.ops.attention import UNSHARDED, Rule, attend, make_scores
from meshwise.workers.trainer.ops.experts import EXPERT_ROWS_MULTIPLE, arrange, best_of, load_of
from meshwise.workers.trainer.ops.fp8 import fp8_gated_product, fp8_linear
from meshwise.workers.trainer.ops.fused_projections import GATES
from meshwise.workers.trainer.ops.grouped_products import gated_product_by_rows, product_by_weights
from meshwise.workers.trainer.ops.loss import head_loss
from meshwise.workers.trainer.ops.wide_attention import wide_attention


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
    # 6e-6 on an H200, where torch itself is 5e-6 from float64 and this 3e-6 (docs/reports/trainer-speed.md)
    assert (ours.value(split) - whole).abs().max().item() < 1e-5
    assert (split.float() - whole).abs().max().item() < 2**-8 * start.abs().max().item()


def test_moments_of_16_bits_move_weights_nearly_as_those_of_32() -> None:
    dice = torch.Generator("cuda").manual_seed(3)
    start = torch.randn(1000, 300, generator=dice, device="cuda")
    weights = [nn.Parameter(start.clone()) for _ in range(2)]
    both = [
        SplitAdamW([{"params": [weight], "weight_decay": 0.0}], betas=(0.9, 0.95), moments=kind)
        for weight, kind in zip(weights, (torch.float32, torch.bfloat16), strict=True)
    ]
    for _ in range(50):
        grad = torch.randn(start.shape, generator=dice, device="cuda").bfloat16()
        for one, weight in zip(both, weights, strict=True):
            one.rate.fill_(1e-3)
            weight.grad = grad
            one.step()
    assert both[1].state[weights[1]]["exp_avg_sq"].dtype == torch.bfloat16
    long, short = (one.value(weight) - start for one, weight in zip(both, weights, strict=True))
    assert ((long - short).norm() / long.norm()).item() < 0.01


@pytest.mark.parametrize("kind", ["eight", "even"])
def test_gradients_of_experts_and_their_squares_equal_torchs(kind: str) -> None:
    dice = torch.Generator("cuda").manual_seed(4)
    choices = torch.randint(64, (8192,), generator=dice, device="cuda")
    found = arrange(choices // 8 * 8 if kind == "eight" else choices, 64)
    left, right = (torch.randn(len(found.choices), n, generator=dice, device="cuda").bfloat16() for n in (512, 256))
    gradient, squares = product_by_weights(left, right, found.ends)
    theirs = torch._grouped_mm(left.T, right, offs=found.ends)  # pyright: ignore[reportPrivateImportUsage]
    assert ((gradient.float() - theirs.float()).norm() / theirs.float().norm()).item() < 1e-3
    torch.testing.assert_close(squares.sum(), gradient.float().square().sum(), rtol=1e-5, atol=0)


@pytest.mark.parametrize("kind", ["eight", "even"])
def test_gated_products_of_experts_equal_torchs(kind: str) -> None:
    dice = torch.Generator("cuda").manual_seed(6)
    choices = torch.randint(64, (8192,), generator=dice, device="cuda")
    found = arrange(choices // 8 * 8 if kind == "eight" else choices, 64)
    last = int(found.ends[-1])
    rows = torch.randn(len(found.choices), 256, generator=dice, device="cuda").bfloat16()
    gate_up = (torch.randn(64, 1024, 256, generator=dice, device="cuda") / 16).bfloat16()
    shares = torch.rand(len(rows), generator=dice, device="cuda")
    both, gated = (part[:last].float() for part in gated_product_by_rows(rows, gate_up, shares, found.ends, GATES["silu"]))
    theirs = torch._grouped_mm(rows, gate_up.mT, offs=found.ends)  # pyright: ignore[reportPrivateImportUsage]
    theirs = theirs[:last].float()
    right = F.silu(both[:, :512]) * both[:, 512:] * shares[:last, None]
    assert ((both - theirs).norm() / theirs.norm()).item() < 1e-3
    assert ((gated - right).norm() / right.norm()).item() < 4e-3


@pytest.mark.parametrize(("tokens", "count", "chosen"), [(8192, 64, 8), (1000, 256, 8), (300, 6, 2)])
def test_experts_are_chosen_counted_and_arranged_as_on_a_cpu(tokens: int, count: int, chosen: int) -> None:
    dice = torch.Generator("cuda").manual_seed(5)
    scores = torch.rand(tokens, count, generator=dice, device="cuda")
    experts = best_of(scores, chosen)
    assert torch.equal(experts.sort().values, scores.topk(chosen).indices.sort().values)
    groups = experts.view(2, -1)
    assert torch.equal(load_of(groups, count).cpu(), load_of(groups.cpu(), count))
    right = arrange(experts.cpu().flatten(), count, EXPERT_ROWS_MULTIPLE)
    for one, other in zip(arrange(experts.flatten(), count), right, strict=True):
        assert torch.equal(one.cpu(), other)


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


def by_definition(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, rule: Rule) -> torch.Tensor:
    keys, values = (x.repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
    scores = rule.cap * torch.tanh(q @ keys.mT * rule.factor / rule.cap)
    seen = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).tril()
    return scores.masked_fill(~seen, -torch.inf).softmax(-1) @ values


@pytest.mark.parametrize(
    ("heads", "shared", "length", "size", "rule"),
    [
        (8, 4, 2048, 256, Rule(1 / 16, 4096, 50.0)),  # Gemma 2 2B
        (16, 8, 1000, 256, Rule(1 / 16, cap=50.0)),  # Gemma 2 9B
        (3, 1, 130, 160, Rule(0.3, cap=20.0)),
        (4, 4, 700, 256, Rule(1.0, cap=50.0)),  # scores of up to 80
    ],
)
def test_wide_attention_is_near_float64(heads: int, shared: int, length: int, size: int, rule: Rule) -> None:
    dice = torch.Generator("cuda").manual_seed(3)
    joined = torch.randn(2, length, heads + 2 * shared, size, generator=dice, device="cuda").bfloat16()
    q, k, v = parts = [x.transpose(1, 2).requires_grad_() for x in joined.split([heads, shared, shared], 2)]
    found = attend(q, k, v, make_scores(rule, UNSHARDED, length, joined.device, size), rule, UNSHARDED, True)
    wide = [x.detach().double().requires_grad_() for x in parts]
    right = by_definition(wide[0], wide[1], wide[2], rule)
    outer = torch.randn(right.shape, generator=dice, device="cuda").bfloat16()
    grads = torch.autograd.grad(found, parts, outer), torch.autograd.grad(right, wide, outer.double())
    far = [((x.double() - y).norm() / y.norm()).item() for x, y in zip((found, *grads[0]), (right, *grads[1]), strict=True)]
    assert max(far) < 0.01, far


def test_wide_attention_is_the_same_compiled_and_captured() -> None:
    dice = torch.Generator("cuda").manual_seed(4)
    parts = [torch.randn(2, n, 300, 256, generator=dice, device="cuda").bfloat16() for n in (4, 2, 2)]

    def gradients(run: Callable[..., torch.Tensor]) -> tuple[torch.Tensor, ...]:
        # new leaves: those of an earlier pass belong to its stream, which no graph of another stream may wait for
        q, k, v = leaves = [x.detach().requires_grad_() for x in parts]
        y = run(q, k, v, 1 / 16, 50.0)
        return y.detach(), *torch.autograd.grad(y.float().square().sum(), leaves)

    expected, compiled = gradients(wide_attention), torch.compile(wide_attention)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):  # nothing may be compiled while a graph is captured
        gradients(compiled)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = gradients(compiled)
    graph.replay()
    torch.cuda.synchronize()
    assert [(one - other).abs().max().item() for one, other in zip(found, expected, strict=True)] == [0.0] * 4
