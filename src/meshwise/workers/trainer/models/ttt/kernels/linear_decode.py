"""TTT-Linear, one token: the primal form, with a state of constant size."""

# Triton's language is not Python: a kernel's arguments and loops have their own types
# pyright: basic, reportArgumentType=false, reportGeneralTypeIssues=false, reportOperatorIssue=false
import triton
import triton.language as tl

from meshwise.workers.trainer.models.ttt.kernels.linear_tiles import EPS, read_place


@triton.jit
def read_rotated(packed, rotation, place, T: tl.constexpr, F: tl.constexpr):
    """Return (F,): one head's query or key, rotated by its position."""
    f = tl.arange(0, F)
    at = rotation + place * (F // 2) + f // 2
    sin = tl.load(at + T * (F // 2))
    value, partner = tl.load(packed + f).to(tl.float32), tl.load(packed + (f ^ 1)).to(tl.float32)
    return value * tl.load(at) + partner * tl.where(f % 2 == 0, -sin, sin)


@triton.jit
def normalize(z, F: tl.constexpr):
    """Return z minus its mean over its standard deviation, and one over that deviation."""
    z -= tl.sum(z, 0) / F
    rstd = tl.rsqrt(tl.sum(z * z, 0) / F + EPS)
    return z * rstd, rstd


@triton.jit
def decode(
    packed, rotation, gamma, beta, token_idx, lr_bias, state, sums, position, out,
    row, width, heads, scale,
    T: tl.constexpr, F: tl.constexpr,
):  # fmt: skip
    """Read one token per sequence. Grid: batch x heads. With i the token's position: G = slope(k W + b); S += rate k'G, s += rate G; out
    = q + gamma LNhat(q (W - place_i S) + b - place_i s) + beta; after the last position W -= place_T S, b -= place_T s, S = s = 0. packed
    (batch, row) as in linear_tiles; state and sums (batch, heads, F + 1, F) float32: W' (outputs x inputs), then b."""
    pid = tl.program_id(0)
    batch, head = pid // heads, pid % heads
    f = tl.arange(0, F)
    # load the state first, all at once: everything else is small
    square, line = pid * (F + 1) * F + f[:, None] * F + f[None, :], pid * (F + 1) * F + F * F + f
    w, s = tl.load(state + square), tl.load(sums + square)
    b, s_b = tl.load(state + line), tl.load(sums + line)
    place = tl.load(position) % T
    packed += batch * row
    q = read_rotated(packed + head * F, rotation, place, T, F)
    k = read_rotated(packed + width + head * F, rotation, place, T, F)
    v = tl.load(packed + 2 * width + head * F + f).to(tl.float32)
    score = tl.load(packed + 3 * width + head).to(tl.float32) + tl.load(lr_bias + head).to(tl.float32)
    rate = tl.sigmoid(score) * scale
    g = tl.load(gamma + head * F + f).to(tl.float32)
    shift = tl.load(beta + head * F + f).to(tl.float32)
    xh, rstd = normalize(tl.sum(w * k[None, :], 1) + b, F)
    gx = (g * xh + shift - v + k) * g
    grad = rstd * (gx - tl.sum(gx, 0) / F - xh * (tl.sum(gx * xh, 0) / F))
    s += (rate * grad)[:, None] * k[None, :]
    s_b += rate * grad
    factor = read_place(token_idx, place)
    read, _ = normalize(tl.sum((w - factor * s) * q[None, :], 1) + b - factor * s_b, F)
    tl.store(out + batch * width + head * F + f, (q + g * read + shift).to(out.dtype.element_ty))
    if place == T - 1:
        tl.store(state + square, w - factor * s)
        tl.store(state + line, b - factor * s_b)
        s = tl.zeros_like(s)
        s_b = tl.zeros_like(s_b)
    tl.store(sums + square, s)
    tl.store(sums + line, s_b)
