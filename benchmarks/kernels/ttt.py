"""TTT-Linear 125M on one GPU: tokens per second of forward + backward + AdamW in bf16, with kernels and with the plain loop.

python benchmarks/kernels/ttt.py [--plain] [--shapes 16x128,16x512,8x2048]
"""

import argparse
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx

from meshwise.workers.trainer import weights
from meshwise.workers.trainer.models.base import Span, build

CONFIG: dict[str, Any] = {
    "model_type": "ttt", "ttt_layer_type": "linear", "vocab_size": 50257, "hidden_size": 768, "intermediate_size": 2048,
    "num_hidden_layers": 12, "num_attention_heads": 12, "mini_batch_size": 16, "tie_word_embeddings": True,
}  # fmt: skip


def model_of(config: dict[str, Any]) -> Any:
    layers = config["num_hidden_layers"]
    with torch.device("cuda"):
        model: Any = build(config, Span(0, layers, layers))
    weights.init_random([model], 0, 0.02, "model.embed_tokens.weight")
    model.tie()
    return model


@torch.compile
def slope(logits: Tensor, targets: Tensor, tokens: int, vocab: int) -> tuple[Tensor, Tensor]:
    """Return the mean cross-entropy and its gradient by the logits, without the padding beyond `vocab`."""
    places = torch.arange(logits.shape[1], device=logits.device)
    wide = torch.where(places < vocab, logits.float(), float("-inf"))
    total = wide.logsumexp(-1, keepdim=True)
    loss = (total - wide.gather(1, targets[:, None])).sum() / tokens
    return loss, (((wide - total).exp() - (places == targets[:, None]).float()) / tokens).to(logits.dtype)


class HeadLoss(torch.autograd.Function):
    """Mean cross-entropy of x W' in chunks of tokens, whose gradients are computed in the forward pass so that no logits are kept.

    50257 rows are not a multiple of 8, which the tensor cores' fast kernels need: 47 rows of zeros take 31 ms off an 8 x 2048 step.
    """

    @staticmethod
    def forward(ctx: FunctionCtx, x: Tensor, weight: Tensor, targets: Tensor, chunk: int) -> Tensor:
        vocab = len(weight)
        low = torch.nn.functional.pad(weight.to(torch.bfloat16), (0, 0, 0, -vocab % 64))
        loss, d_weight, d_x = torch.zeros((), device=x.device), x.new_zeros(()), []
        for rows, row_targets in zip(x.split(chunk), targets.split(chunk), strict=True):
            part, d_logits = slope(rows @ low.T, row_targets, len(x), vocab)
            loss = loss + part
            d_x.append(d_logits @ low)
            grown = torch.mm(d_logits.T, rows, out_dtype=torch.float32)
            d_weight = d_weight + grown if d_weight.dim() else grown
        ctx.save_for_backward(torch.cat(d_x), d_weight[:vocab])
        return loss

    @staticmethod
    def backward(ctx: Any, d_loss: Tensor) -> tuple[Tensor, Tensor, None, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        d_x, d_weight = ctx.saved_tensors
        return d_x * d_loss, d_weight, None, None


def hidden(model: Any, tokens: Tensor) -> Tensor:
    """Return the hidden states before the head."""
    from meshwise.workers.trainer.models.ttt.model import rotation_of

    x = model.model.embed_tokens(tokens)
    rotation = rotation_of(model.config, x.device)
    for block in model.model.layers.values():
        block.seq_modeling_block.choose_kernels(x.device)
        x = block(x, rotation)
    return model.model.norm(x)


def step_of(model: Any, batch: int, seq: int, fast: bool) -> tuple[Callable[[], None], Tensor, Tensor, Tensor]:
    """Return a training step, and the tensors that hold its tokens, its targets and its loss."""
    tokens = torch.randint(0, 256, (batch, seq), device="cuda")
    targets = torch.randint(0, 256, (batch, seq), device="cuda")
    loss_now = torch.zeros((), device="cuda")
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True, capturable=True)

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.bfloat16, cache_enabled=False):
            x = hidden(model, tokens)
            if fast:
                loss = HeadLoss.apply(x.flatten(0, 1).bfloat16(), model.lm_head.weight, targets.flatten(), 4096)
            else:
                loss = torch.nn.functional.cross_entropy(model.lm_head(x).float().flatten(0, 1), targets.flatten())
        loss.backward()
        optimizer.step()
        loss_now.copy_(loss.detach())

    return step, tokens, targets, loss_now


def graphed(step: Callable[[], None]) -> Callable[[], None]:
    """Capture a step as a CUDA graph and return its replay."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


def speed(step: Callable[[], None], times: int) -> float:
    """Return the mean seconds of a step."""
    step()
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(times):
        step()
    torch.cuda.synchronize()
    return (time.perf_counter() - began) / times


def parts(step: Callable[[], None], top: int = 14) -> None:
    """Print the time of a step by kernel."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        for _ in range(3):
            step()
        torch.cuda.synchronize()
    rows = sorted(seen.key_averages(), key=lambda row: -row.self_device_time_total)
    total = sum(row.self_device_time_total for row in rows) / 3
    print(f"  kernels {total / 1e3:.2f} ms, {sum(row.count for row in rows) // 3} of them")
    for row in rows[:top]:
        print(f"  {row.self_device_time_total / 3e3:7.3f} ms {row.count // 3:4d} x {row.key[:90]}", flush=True)


def decode(count: int = 400) -> None:
    """Print the difference from the plain decoder's logits, and tokens per second after a prompt that is not whole mini-batches."""
    from meshwise.workers.trainer.generate import captured, generate, predictor_of
    from meshwise.workers.trainer.models.ttt.decode import Decoding

    model = model_of(CONFIG).requires_grad_(False)
    prompt = torch.randint(0, 256, (1, 1000), device="cuda")
    fast = predictor_of(model)
    plain = Decoding(model)
    for block in plain.layers:
        block.seq_modeling_block.fast = False
    a, b = fast.prompt(prompt), plain.prompt(prompt)
    off = [float((a - b).norm() / b.norm())]
    for i in range(40):
        a, b = fast.step(prompt[:, i]), plain.step(prompt[:, i])
        off.append(float((a - b).norm() / b.norm()))
    print(f"decode: logits off by {off[0]:.1e} after the prompt, {max(off):.1e} at most in 40 steps", flush=True)
    generate(fast, prompt, 8)
    for name, speaker, batch in (("kernels", fast, 1), ("kernels", predictor_of(model, 16), 16), ("plain, graph", plain, 1)):
        token = torch.zeros(batch, dtype=torch.long, device="cuda")
        replay: Any = captured(lambda speaker=speaker, token=token: token.copy_(speaker.step(token).argmax(-1)))  # pyright: ignore
        each = speed(replay, count)
        print(f"decode {name:12} batch {batch:2}: {batch / each:9,.0f} tok/s  {each * 1e6:.0f} us", flush=True)
    began = time.perf_counter()
    generate(fast, prompt, count).tolist()
    print(f"generate {count} tokens after 1000, capture included: {time.perf_counter() - began:.2f} s", flush=True)


def without_kernels(model: Any) -> Any:
    """Return the model with kernels disabled."""
    for block in model.blocks():
        block.seq_modeling_block.limits = None  # no shape is within the kernels' limits
    return model


def plain_loop(shape: str) -> None:
    """Print the speed of the paper's formulation: one mini-batch after the other in eager PyTorch."""
    batch, seq = map(int, shape.split("x"))
    each = speed(step_of(without_kernels(model_of(CONFIG)), batch, seq, False)[0], 2)
    print(f"{shape:8} plain loop, eager: {batch * seq / each:10,.0f} tok/s  {each * 1e3:7.0f} ms", flush=True)


def curve(steps: int = 200, batch: int = 16, seq: int = 128) -> None:
    """Print the losses of the same steps on the embedded text, with kernels and in the plain loop."""
    from meshwise.workers.trainer.data.samples import sample

    losses: dict[str, list[float]] = {}
    for name in ("kernels", "plain"):
        torch.manual_seed(0)  # the warm-up steps before graph capture also update the weights
        model = model_of(CONFIG)
        if name == "plain":
            without_kernels(model)
        step, tokens, targets, loss = step_of(model, batch, seq, True)
        replay, losses[name] = graphed(step), []
        for i in range(steps):
            rows = torch.stack([torch.tensor(list(sample(0, i * batch + j, seq + 1))) for j in range(batch)]).cuda()
            tokens.copy_(rows[:, :-1])
            targets.copy_(rows[:, 1:])
            replay()
            losses[name].append(loss.item())
        print(f"loss, {name:8}", *(f"{losses[name][i]:.4f}" for i in (0, 9, 19, 49, 99, 149, steps - 1)), flush=True)
    off = [abs(a - b) for a, b in zip(*losses.values(), strict=True)]
    print(f"largest difference {max(off):.4f}, mean {sum(off) / len(off):.5f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--shapes", default="16x128,16x512,8x2048")
    parser.add_argument("--plain", action="store_true", help="time the plain loop too")
    parser.add_argument("--parts", action="store_true", help="print the time of each kernel")
    parser.add_argument("--decode", action="store_true", help="time generation too")
    parser.add_argument("--curve", action="store_true", help="200 steps with and without kernels")
    options = parser.parse_args()
    for shape in filter(None, options.shapes.split(",")):
        batch, seq = map(int, shape.split("x"))
        torch.manual_seed(0)
        torch.compiler.reset()
        began = time.time()
        model = model_of(CONFIG)
        for block in model.blocks():
            block.compile(dynamic=False)
        torch.cuda.reset_peak_memory_stats()
        step, *_ = step_of(model, batch, seq, True)
        replay = graphed(step)
        each = speed(replay, 20)
        peak = torch.cuda.max_memory_allocated() / 2**30
        ready = time.time() - began
        row = f"{shape:8} kernels: {batch * seq / each:10,.0f} tok/s  {each * 1e3:7.2f} ms  peak {peak:.2f} GiB"
        print(f"{row}  (ready in {ready:.0f} s)", flush=True)
        if options.parts:
            parts(replay)
        del replay, step, model
        torch.cuda.empty_cache()
        if options.plain and seq <= 512:  # 128 mini-batches of 12 layers are a million launches per step
            plain_loop(shape)
    if options.curve:
        curve()
    if options.decode:
        decode()


if __name__ == "__main__":
    main()
