"""TTT-Linear forward: prepare all mini-batches in parallel, run the serial chain of states, then compute all outputs in parallel."""

# Triton's language is not Python: a kernel's arguments and loops have their own types
# pyright: basic, reportArgumentType=false, reportGeneralTypeIssues=false, reportOperatorIssue=false
import triton
import triton.language as tl

from meshwise.workers.trainer.models.ttt.kernels.linear_tiles import (
    EPS,
    across,
    add4,
    for_all,
    outputs,
    read_angles,
    read_no_angle,
    read_place,
    read_places,
    read_rate,
    read_tile,
    rotate,
    slope,
    write_tile,
)

READY = tl.constexpr(3)  # tiles (T, F) prepared per mini-batch: rotated keys, rotated queries, beta - target
LINES = tl.constexpr(2)  # numbers prepared per token: its learning rate, and the sum of gamma (beta - target)


@triton.jit
def prepare(
    packed, rotation, gamma, beta, lr_bias, ready, lines,
    seq, row, width, heads, count, scale,
    T: tl.constexpr, F: tl.constexpr,
):  # fmt: skip
    """Compute everything before the first product, so that the chain only reads. Grid: batch x heads x mini-batches."""
    at = tl.program_id(0).to(tl.int64)
    n, pid = at % count, at // count
    batch, head = pid // heads, pid % heads
    f, t = tl.arange(0, F), tl.arange(0, T)
    cos, sin = read_angles(rotation, T, F)
    q = rotate(read_tile(packed, batch, n * T, seq, row, head * F, T, F), cos, sin, T, F)
    k = rotate(read_tile(packed, batch, n * T, seq, row, width + head * F, T, F), cos, sin, T, F).to(ready.dtype.element_ty)
    v = read_tile(packed, batch, n * T, seq, row, 2 * width + head * F, T, F).to(tl.float32)
    off = tl.load(beta + head * F + f).to(tl.float32)[None, :] - v + k.to(tl.float32)
    tile = ready + at * READY * T * F + t[:, None] * F + f[None, :]
    tl.store(tile, k)
    tl.store(tile + T * F, q.to(ready.dtype.element_ty))
    tl.store(tile + 2 * T * F, off.to(ready.dtype.element_ty))
    g = tl.load(gamma + head * F + f).to(tl.float32)[None, :]
    tl.store(lines + at * LINES * T + t, read_rate(packed, lr_bias, batch, n * T, seq, row, 3 * width, head, T) * scale)
    tl.store(lines + at * LINES * T + T + t, tl.sum(g * off.to(ready.dtype.element_ty).to(tl.float32), 1))


@triton.jit
def forward_chain(
    ready, lines, rotation, w1, b1, gamma, token_idx, states, biases, last_state, pending,
    seq, heads, count,
    T: tl.constexpr, F: tl.constexpr, PRECISION: tl.constexpr, KEEP: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Compute the states W', b at the start of each of `count` mini-batches. Grid: batch x heads, one serial chain each. Z = K W + b; G =
    slope(Z); W <- W - K'(e G), b <- b - sum e G, with e = place_T rate. All transposed, outputs x tokens. states (batch, heads, count, F
    out, F in) in the operands' dtype; biases (batch, heads, count, F) in float32. KEEP also writes, for a decoder, W' and b after the
    last full mini-batch, and the sums of rate K'G of the tokens after it."""
    pid = tl.program_id(0)
    head = pid % heads
    dtype = ready.dtype.element_ty
    t, into, out = tl.arange(0, T), tl.arange(0, F), outputs(F)
    square = out[:, :, None] * F + into[None, None, :]
    tile_at = t[:, None] * F + into[None, :]
    g = tl.load(gamma + head * F + out).to(tl.float32)[:, :, None]
    g2 = g * g
    w = tl.load(w1 + head * F * F + into[None, None, :] * F + out[:, :, None]).to(tl.float32)
    w -= (tl.sum(tl.sum(w, 1), 0) / F)[None, None, :]
    b = tl.load(b1 + head * F + out).to(tl.float32)
    b -= tl.sum(tl.sum(b, 1), 0) / F
    last = read_place(token_idx, T - 1)
    cos, sin = read_no_angle(rotation, T, F)
    for n in tl.range(0, count, num_stages=STAGES):
        at = (pid * count + n).to(tl.int64)
        k = tl.load(ready + at * READY * T * F + tile_at)
        wanted = g * across(tl.load(ready + (at * READY + 2) * T * F + tile_at), cos, sin, T, F)
        rate = tl.load(lines + at * LINES * T + t)
        wanted_sum = tl.load(lines + at * LINES * T + T + t)
        w_low = w.to(dtype)
        tl.store(states + at * F * F + square, w_low)
        tl.store(biases + at * F + out, b)
        z = tl.dot(w_low, for_all(tl.trans(k), F), input_precision=PRECISION) + b[:, :, None]
        zz = z * z
        power, s1, s2, s3 = tl.reduce(tl.reduce((zz, g2 * z, g2 * zz, wanted * z), 1, add4), 0, add4)
        rstd = tl.rsqrt(power / F + EPS)
        mean = (rstd * s1 + wanted_sum) / F
        along = rstd * (rstd * s2 + s3) / F
        normal = z * rstd[None, None, :]
        grad = g2 * normal + wanted - mean[None, None, :] - normal * along[None, None, :]
        part = grad * (rstd * rate)[None, None, :]
        if KEEP:
            w_step = tl.dot(part.to(dtype), for_all(k, F), input_precision=PRECISION)
            b_step = tl.sum(part, 2)
            if (n + 1) * T <= seq:
                w -= last * w_step
                b -= last * b_step
            else:
                tl.store(pending + pid * (F + 1) * F + square, w_step)
                tl.store(pending + pid * (F + 1) * F + F * F + out, b_step)
        else:
            part = -last * part
            w = tl.dot(part.to(dtype), for_all(k, F), acc=w, input_precision=PRECISION)
            b += tl.sum(part, 2)
    if KEEP:
        tl.store(last_state + pid * (F + 1) * F + square, w)
        tl.store(last_state + pid * (F + 1) * F + F * F + out, b)


@triton.jit
def forward_out(
    ready, lines, gamma, beta, token_idx, states, biases, out,
    seq, width, heads, count,
    T: tl.constexpr, F: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute O = Q + gamma LNhat(Q W + b - tril(eta (Q K' + 1)) G) + beta (batch, seq, heads, F). Grid: batch x heads x mini-batches."""
    at = tl.program_id(0).to(tl.int64)
    n, pid = at % count, at // count
    batch, head = pid // heads, pid % heads
    dtype = ready.dtype.element_ty
    f, t = tl.arange(0, F), tl.arange(0, T)
    g = tl.load(gamma + head * F + f).to(tl.float32)[None, :]
    tile = ready + at * READY * T * F + t[:, None] * F + f[None, :]
    k, q, off = tl.load(tile), tl.load(tile + T * F), tl.load(tile + 2 * T * F)
    rate = tl.load(lines + at * LINES * T + t)
    w = tl.trans(tl.load(states + at * F * F + f[:, None] * F + f[None, :]))
    b = tl.load(biases + at * F + f)[None, :]
    z = tl.dot(k, w, input_precision=PRECISION) + b
    grad, _, _, _, _ = slope(z, g * off.to(tl.float32), g * g, F)
    eta = tl.where(t[:, None] >= t[None, :], read_places(token_idx, T)[:, None] * rate[None, :], 0.0)
    seen = eta * (tl.dot(q, tl.trans(k), input_precision=PRECISION) + 1)
    zb = tl.dot(q, w, input_precision=PRECISION) + b - tl.dot(seen.to(dtype), grad.to(dtype), input_precision=PRECISION)
    normal = zb * tl.rsqrt(tl.sum(zb * zb, 1) / F + EPS)[:, None]
    shift = tl.load(beta + head * F + f).to(tl.float32)[None, :]
    write_tile(out, q.to(tl.float32) + g * normal + shift, batch, n * T, seq, width, head * F, T, F)
