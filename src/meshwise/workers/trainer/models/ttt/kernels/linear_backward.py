"""TTT-Linear backward in three kernels: all mini-batches in parallel, the serial chain of the state's gradient from the last mini-batch to
the first, and all mini-batches in parallel again, to derive the gradients of keys, values and rates."""

# Triton's language is not Python: a kernel's arguments and loops have their own types
# pyright: basic, reportArgumentType=false, reportGeneralTypeIssues=false, reportOperatorIssue=false
import triton
import triton.language as tl

from meshwise.workers.trainer.models.ttt.kernels.linear_forward import LINES, READY
from meshwise.workers.trainer.models.ttt.kernels.linear_tiles import (
    EPS,
    across,
    add2,
    add5,
    for_all,
    outputs,
    read_angles,
    read_no_angle,
    read_place,
    read_places,
    read_tile,
    rotate,
    slope,
    write_tile,
)

KEPT = tl.constexpr(8)
"""Numbers kept per token: rstd, mean gx, mean(gx xh), mean(gamma^2 xh), mean(gamma^2 xh^2), sum u G / rstd, e = place_T rate, d rate."""
TILES = tl.constexpr(4)  # tiles (T, F) kept per mini-batch: go = gamma xh + beta - target, xh, u, dZb
PADDING = tl.constexpr(16)
"""Columns of `packed` are a multiple of this: the columns after the last head's score are padding, with zero gradient."""


@triton.jit
def backward_each(
    d_out, ready, lines, rotation, gamma, token_idx, states, biases, d_packed, kept, tiles, small,
    seq, row, width, heads, count,
    T: tl.constexpr, F: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute everything that needs no gradient of a later state. Grid: batch x heads x mini-batches. dZb = LN'(gamma dO); dM = -dZb G'
    (tril); dS = eta dM; dQ = dO + dZb W' + dS K; dK so far is dS'Q; d rate_j = sum_i place_i dM S. For the next two kernels: `tiles`,
    with u = -rstd M'dZb, and `kept`. `small`: this mini-batch's part of d gamma, d beta, d place."""
    at = tl.program_id(0).to(tl.int64)
    n, pid = at % count, at // count
    batch, head = pid // heads, pid % heads
    dtype = ready.dtype.element_ty
    f, t = tl.arange(0, F), tl.arange(0, T)
    g = tl.load(gamma + head * F + f).to(tl.float32)[None, :]
    first = n * T
    tile = ready + at * READY * T * F + t[:, None] * F + f[None, :]
    k, q, off = tl.load(tile), tl.load(tile + T * F), tl.load(tile + 2 * T * F).to(tl.float32)
    rate = tl.load(lines + at * LINES * T + t)
    do = read_tile(d_out, batch, first, seq, width, head * F, T, F).to(tl.float32)
    wt = tl.load(states + at * F * F + f[:, None] * F + f[None, :])
    w = tl.trans(wt)
    b = tl.load(biases + at * F + f)[None, :]
    # recompute the forward pass
    z = tl.dot(k, w, input_precision=PRECISION) + b
    grad, xh, rstd, mean, along = slope(z, g * off, g * g, F)
    low = grad.to(dtype)
    places = read_places(token_idx, T)
    eta = tl.where(t[:, None] >= t[None, :], places[:, None] * rate[None, :], 0.0)
    score = tl.dot(q, tl.trans(k), input_precision=PRECISION) + 1
    seen = (eta * score).to(dtype)
    zb = tl.dot(q, w, input_precision=PRECISION) + b - tl.dot(seen, low, input_precision=PRECISION)
    rstd_b = tl.rsqrt(tl.sum(zb * zb, 1) / F + EPS)[:, None]
    xhb = zb * rstd_b
    # back through the output
    dx = do * g
    s0, s1 = tl.reduce((dx, dx * xhb), 1, add2)
    dzb = (rstd_b * (dx - (s0 / F)[:, None] - xhb * (s1 / F)[:, None])).to(dtype)
    dm = tl.where(t[:, None] >= t[None, :], -tl.dot(dzb, tl.trans(low), input_precision=PRECISION), 0.0)
    ds = (dm * eta).to(dtype)
    dms = dm * score
    dq = do + tl.dot(dzb, wt, input_precision=PRECISION) + tl.dot(ds, k, input_precision=PRECISION)
    dk = tl.dot(tl.trans(ds), q, input_precision=PRECISION)
    u = -rstd[:, None] * tl.dot(tl.trans(seen), dzb, input_precision=PRECISION)
    cos, sin = read_angles(rotation, T, F)
    write_tile(d_packed, rotate(dq, cos, -sin, T, F), batch, first, seq, row, head * F, T, F)
    write_tile(d_packed, dk, batch, first, seq, row, width + head * F, T, F)
    if head == 0:
        rest = 3 * width + heads + tl.arange(0, PADDING)[None, :]
        rows = (batch * seq + first + t)[:, None]
        tl.store(d_packed + rows * row + rest, tl.zeros((T, PADDING), dtype), mask=(first + t < seq)[:, None] & (rest < row))
    tile = tiles + at * TILES * T * F + t[:, None] * F + f[None, :]
    tl.store(tile, (g * xh + off).to(dtype))
    tl.store(tile + T * F, xh.to(dtype))
    tl.store(tile + 2 * T * F, u.to(dtype))
    tl.store(tile + 3 * T * F, dzb)
    line = kept + at * KEPT * T + t
    g2x = g * g * xh
    tl.store(line, rstd)
    tl.store(line + T, mean)
    tl.store(line + 2 * T, along)
    tl.store(line + 3 * T, tl.sum(g2x, 1) / F)
    tl.store(line + 4 * T, tl.sum(g2x * xh, 1) / F)
    tl.store(line + 5 * T, tl.sum(u * grad, 1) / rstd)
    tl.store(line + 6 * T, read_place(token_idx, T - 1) * rate)
    tl.store(line + 7 * T, tl.sum(dms * places[:, None], 0))
    line = small + at * (2 * F + T)
    tl.store(line + f, tl.sum(do * xhb, 0))
    tl.store(line + F + f, tl.sum(do, 0))
    tl.store(line + 2 * F + t, tl.sum(dms * rate[None, :], 1))


@triton.jit
def means(s_u, s_x, s_p, s_g, s_gx, line, rate, mean, along, g2_mean, T: tl.constexpr, F: tl.constexpr):
    """Return, from five sums over features, (T,) each: mean u, mean(u xh), mean dxh, and mean(dxh xh) + mean(dG G). dxh = gamma^2 dgx - u
    mean(gx xh) - gx mean(u xh), with dgx = u - mean u - xh mean(u xh): linear in u, so its means follow from u's. `rate` is rstd e."""
    g2x, g2xx = tl.load(line + 3 * T), tl.load(line + 4 * T)
    a1, a2 = s_u / F, s_x / F
    c1 = s_g / F - a1 * (g2_mean + along) - a2 * (g2x + mean)
    c2 = s_gx / F - a1 * g2x - a2 * (g2xx + 2 * along) + (tl.load(line + 5 * T) - rate * s_p) / F
    return a1, a2, c1, c2


@triton.jit
def backward_chain(
    ready, rotation, gamma, kept, tiles, d_states, d_biases, d_first,
    heads, count,
    T: tl.constexpr, F: tl.constexpr, PRECISION: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Compute the state's gradient, last mini-batch first. Grid: batch x heads. From dW, db of the state after a mini-batch: P = K dW +
    db; u = rstd dG = u_kept - rstd e P; gx = gamma go; dgx = u - mean u - xh mean(u xh); dZ = rstd (gamma^2 dgx - u mean(gx xh) - gx
    mean(u xh) - its mean - xh (its mean with xh + mean(dG G))); dW <- dW + K'dZ + Q'dZb; db <- db + sum (dZ + dZb). All transposed,
    outputs x tokens, with a single reduction. d_states (batch, heads, count, F out, F in), d_biases: dW', db after each mini-batch;
    d_first: before the first, dW' and then db."""
    pid = tl.program_id(0)
    head = pid % heads
    dtype = tiles.dtype.element_ty
    t, into, out = tl.arange(0, T), tl.arange(0, F), outputs(F)
    square = out[:, :, None] * F + into[None, None, :]
    tile_at = t[:, None] * F + into[None, :]
    g = tl.load(gamma + head * F + out).to(tl.float32)[:, :, None]
    g2 = g * g
    g_line = tl.load(gamma + head * F + into).to(tl.float32)
    g2_mean = tl.sum(g_line * g_line, 0) / F
    cos, sin = read_no_angle(rotation, T, F)
    dw = tl.zeros((F // 16, 16, F), tl.float32)
    db = tl.zeros((F // 16, 16), tl.float32)
    for i in tl.range(0, count, num_stages=STAGES):
        at = (pid * count + count - 1 - i).to(tl.int64)
        tile = ready + at * READY * T * F + tile_at
        k, q = tl.load(tile), tl.load(tile + T * F)
        tile = tiles + at * TILES * T * F + tile_at
        gx = g * across(tl.load(tile), cos, sin, T, F)
        xh = across(tl.load(tile + T * F), cos, sin, T, F)
        u0 = across(tl.load(tile + 2 * T * F), cos, sin, T, F)
        dzb = across(tl.load(tile + 3 * T * F), cos, sin, T, F)
        line = kept + at * KEPT * T + t
        rstd, mean, along, e = tl.load(line), tl.load(line + T), tl.load(line + 2 * T), tl.load(line + 6 * T)
        bare = gx - mean[None, None, :] - xh * along[None, None, :]
        dw_low = dw.to(dtype)
        tl.store(d_states + at * F * F + square, dw_low)
        tl.store(d_biases + at * F + out, db)
        p = tl.dot(dw_low, for_all(tl.trans(k), F), input_precision=PRECISION) + db[:, :, None]
        u = u0 - (rstd * e)[None, None, :] * p
        ux = u * xh
        s_u, s_x, s_p, s_g, s_gx = tl.reduce(tl.reduce((u, ux, p * bare, g2 * u, g2 * ux), 1, add5), 0, add5)
        a1, a2, c1, c2 = means(s_u, s_x, s_p, s_g, s_gx, line, rstd * e, mean, along, g2_mean, T, F)
        dz = g2 * (u - a1[None, None, :] - xh * a2[None, None, :]) - u * along[None, None, :] - gx * a2[None, None, :]
        dz = (dz - c1[None, None, :] - xh * c2[None, None, :]) * rstd[None, None, :]
        dw = tl.dot(dz.to(dtype), for_all(k, F), acc=dw, input_precision=PRECISION)
        dw = tl.dot(dzb.to(dtype), for_all(q, F), acc=dw, input_precision=PRECISION)
        db += tl.sum(dz + dzb, 2)
    tl.store(d_first + pid * (F + 1) * F + square, dw)
    tl.store(d_first + pid * (F + 1) * F + F * F + out, db)


@triton.jit
def backward_finish(
    ready, lines, rotation, gamma, token_idx, states, d_states, d_biases, kept, tiles, d_packed, small,
    seq, row, width, heads, count, scale,
    T: tl.constexpr, F: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Recompute the chain's step, now for the gradients of keys, values and rates. Grid: batch x heads x mini-batches. dV = -gamma dgx;
    dK += gamma dgx + dZ W' - (e G) dW'; d e = -sum G P, and from it and `kept` the gradient of the score. `small`: this mini-batch's part
    of d gamma, d beta, d place_T and d lr_bias."""
    at = tl.program_id(0).to(tl.int64)
    n, pid = at % count, at // count
    batch, head = pid // heads, pid % heads
    dtype = ready.dtype.element_ty
    f, t = tl.arange(0, F), tl.arange(0, T)
    first = n * T
    square = at * F * F + f[:, None] * F + f[None, :]
    tile = tiles + at * TILES * T * F + t[:, None] * F + f[None, :]
    g = tl.load(gamma + head * F + f).to(tl.float32)
    g2_mean = tl.sum(g * g, 0) / F
    g = g[None, :]
    dwt = tl.load(d_states + square)
    k = tl.load(ready + at * READY * T * F + t[:, None] * F + f[None, :])
    p = tl.dot(k, tl.trans(dwt), input_precision=PRECISION) + tl.load(d_biases + at * F + f)[None, :]
    go = tl.load(tile).to(tl.float32)
    xh = tl.load(tile + T * F).to(tl.float32)
    gx = go * g
    line = kept + at * KEPT * T + t
    rstd, mean, along, e = tl.load(line), tl.load(line + T), tl.load(line + 2 * T), tl.load(line + 6 * T)
    bare = gx - mean[:, None] - xh * along[:, None]
    u = tl.load(tile + 2 * T * F).to(tl.float32) - (rstd * e)[:, None] * p
    ux = u * xh
    s_u, s_x, s_p, s_g, s_gx = tl.reduce((u, ux, p * bare, g * g * u, g * g * ux), 1, add5)
    a1, a2, c1, c2 = means(s_u, s_x, s_p, s_g, s_gx, line, rstd * e, mean, along, g2_mean, T, F)
    dgx = u - a1[:, None] - xh * a2[:, None]
    dz = g * g * dgx - u * along[:, None] - gx * a2[:, None] - c1[:, None] - xh * c2[:, None]
    dz = (dz * rstd[:, None]).to(dtype)
    step = (bare * (rstd * e)[:, None]).to(dtype)
    dgo = g * dgx
    dk = read_tile(d_packed, batch, first, seq, row, width + head * F, T, F).to(tl.float32) + dgo
    dk += tl.dot(dz, tl.load(states + square), input_precision=PRECISION) - tl.dot(step, dwt, input_precision=PRECISION)
    cos, sin = read_angles(rotation, T, F)
    write_tile(d_packed, rotate(dk, cos, -sin, T, F), batch, first, seq, row, width + head * F, T, F)
    write_tile(d_packed, -dgo, batch, first, seq, row, 2 * width + head * F, T, F)
    rate = tl.load(lines + at * LINES * T + t)
    de = -rstd * s_p
    d_score = (tl.load(line + 7 * T) + read_place(token_idx, T - 1) * de) * rate * (1 - rate / scale)
    tl.store(d_packed + (batch * seq + first + t) * row + 3 * width + head, d_score.to(dtype), mask=first + t < seq)
    line = small + at * (2 * F + 2)
    tl.store(line + f, tl.sum(dgx * go + dgo * xh, 0))
    tl.store(line + F + f, tl.sum(dgo, 0))
    tl.store(line + 2 * F, tl.sum(rate * de, 0))
    tl.store(line + 2 * F + 1, tl.sum(d_score, 0))
