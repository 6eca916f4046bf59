"""TTT-Linear forward: the serial chain of states, then every mini-batch's output at once from the states kept."""

# Triton's language is not Python's: a kernel's arguments and loops have types of their own
# pyright: basic, reportArgumentType=false, reportGeneralTypeIssues=false, reportOperatorIssue=false
import triton
import triton.language as tl

from meshwise.trainer.models.ttt.kernels.linear_tiles import (
    EPS,
    read_angles,
    read_place,
    read_places,
    read_rate,
    read_tile,
    rotate,
    slope,
    write_tile,
)


@triton.jit
def forward_chain(
    packed, rotation, w1, b1, gamma, beta, token_idx, lr_bias, states, biases, last_state, pending,
    seq, row, width, heads, count, scale,
    T: tl.constexpr, F: tl.constexpr, PRECISION: tl.constexpr, KEEP: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """States W', b' at the start of each of `count` mini-batches. Grid: batch x heads, one serial chain each.

    Z = K W + b; G = slope(Z); W <- W - K'(e G), b <- b - sum e G, with e = place_T rate.
    All transposed (outputs x tokens): the state and the gradient then go from one product into the next without leaving registers.
    states (batch, heads, count, F out, F in) in the operands' dtype; biases (batch, heads, count, F) in float32.
    KEEP also writes, for a decoder, W and b after the last whole mini-batch, and the sums of rate K'G of the tokens after it.
    """
    pid = tl.program_id(0)
    batch, head = pid // heads, pid % heads
    dtype = packed.dtype.element_ty
    f = tl.arange(0, F)
    square = f[:, None] * F + f[None, :]
    g = tl.load(gamma + head * F + f).to(tl.float32)
    shift = tl.load(beta + head * F + f).to(tl.float32)
    cos, sin = read_angles(rotation, T, F)
    w = tl.load(w1 + head * F * F + f[None, :] * F + f[:, None]).to(tl.float32)
    w -= (tl.sum(w, 0) / F)[None, :]
    b = tl.load(b1 + head * F + f).to(tl.float32)
    b -= tl.sum(b, 0) / F
    last = read_place(token_idx, T - 1)
    for n in tl.range(0, count, num_stages=STAGES):
        at = (pid * count + n).to(tl.int64)
        k = rotate(read_tile(packed, batch, n * T, seq, row, width + head * F, T, F), cos, sin, T, F).to(dtype)
        v = read_tile(packed, batch, n * T, seq, row, 2 * width + head * F, T, F)
        rate = read_rate(packed, lr_bias, batch, n * T, seq, row, 3 * width, head, T) * scale
        kt = tl.trans(k)
        wanted = g[:, None] * (shift[:, None] - tl.trans(v).to(tl.float32) + kt.to(tl.float32))
        w_low = w.to(dtype)
        tl.store(states + at * F * F + square, w_low)
        tl.store(biases + at * F + f, b)
        z = tl.dot(w_low, kt, input_precision=PRECISION) + b[:, None]
        grad, _, _, _, _ = slope(z, wanted, (g * g)[:, None], 0, F)
        if KEEP:
            whole = (n + 1) * T <= seq
            part = grad * rate[None, :]
            w_step = tl.dot(part.to(dtype), k, input_precision=PRECISION)
            b_step = tl.sum(part, 1)
            if whole:
                w -= last * w_step
                b -= last * b_step
            else:
                tl.store(pending + pid * (F + 1) * F + square, w_step)
                tl.store(pending + pid * (F + 1) * F + F * F + f, b_step)
        else:
            step = grad * (last * rate)[None, :]
            w = tl.dot(-step.to(dtype), k, acc=w, input_precision=PRECISION)
            b -= tl.sum(step, 1)
    if KEEP:
        tl.store(last_state + pid * (F + 1) * F + square, w)
        tl.store(last_state + pid * (F + 1) * F + F * F + f, b)


@triton.jit
def forward_out(
    packed, rotation, gamma, beta, token_idx, lr_bias, states, biases, out,
    seq, row, width, heads, count, scale,
    T: tl.constexpr, F: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """O = Q + gamma LNhat(Q W + b - tril(eta (Q K' + 1)) G) + beta, out (batch, seq, heads, F). Grid: batch x heads x mini-batches."""
    at = tl.program_id(0).to(tl.int64)
    n, pid = at % count, at // count
    batch, head = pid // heads, pid % heads
    dtype = packed.dtype.element_ty
    f = tl.arange(0, F)
    t = tl.arange(0, T)
    g = tl.load(gamma + head * F + f).to(tl.float32)[None, :]
    shift = tl.load(beta + head * F + f).to(tl.float32)[None, :]
    cos, sin = read_angles(rotation, T, F)
    first = n * T
    q = rotate(read_tile(packed, batch, first, seq, row, head * F, T, F), cos, sin, T, F).to(dtype)
    k = rotate(read_tile(packed, batch, first, seq, row, width + head * F, T, F), cos, sin, T, F).to(dtype)
    v = read_tile(packed, batch, first, seq, row, 2 * width + head * F, T, F).to(tl.float32)
    rate = read_rate(packed, lr_bias, batch, first, seq, row, 3 * width, head, T) * scale
    w = tl.trans(tl.load(states + at * F * F + f[:, None] * F + f[None, :]))
    b = tl.load(biases + at * F + f)[None, :]
    z = tl.dot(k, w, input_precision=PRECISION) + b
    grad, _, _, _, _ = slope(z, g * (shift - v + k.to(tl.float32)), g * g, 1, F)
    eta = tl.where(t[:, None] >= t[None, :], read_places(token_idx, T)[:, None] * rate[None, :], 0.0)
    seen = eta * (tl.dot(q, tl.trans(k), input_precision=PRECISION) + 1)
    zb = tl.dot(q, w, input_precision=PRECISION) + b - tl.dot(seen.to(dtype), grad.to(dtype), input_precision=PRECISION)
    normal = zb * tl.rsqrt(tl.sum(zb * zb, 1) / F + EPS)[:, None]
    write_tile(out, q.to(tl.float32) + g * normal + shift, batch, first, seq, width, head * F, T, F)
