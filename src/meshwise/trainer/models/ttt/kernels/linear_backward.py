"""TTT-Linear backward: what each mini-batch can do by itself, then the chain of the state's gradient, last mini-batch first."""

# Triton's language is not Python's: a kernel's arguments and loops have types of their own
# pyright: basic, reportArgumentType=false, reportGeneralTypeIssues=false, reportOperatorIssue=false
import triton
import triton.language as tl

from meshwise.trainer.models.ttt.kernels.linear_tiles import (
    EPS,
    add3,
    add5,
    read_angles,
    read_place,
    read_places,
    read_rate,
    read_tile,
    rotate,
    slope,
    write_tile,
)

KEPT = tl.constexpr(7)
"""Numbers kept per token: rstd, mean gx, mean(gx xh), mean(gamma^2 xh), mean(gamma^2 xh^2), d rate, sum u G / rstd."""
TILES = tl.constexpr(6)
"""Tiles (T, F) kept per mini-batch: rotated keys and queries, go = gamma xh + beta - target, xh, u, dZb."""
PADDING = tl.constexpr(16)
"""Columns of `packed` come in multiples of this: those after the last head's score hold nothing, and their gradient is zero."""


@triton.jit
def backward_each(
    d_out, packed, rotation, gamma, beta, token_idx, lr_bias, states, biases, d_packed, kept, tiles, small,
    seq, row, width, heads, count, scale,
    T: tl.constexpr, F: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """All that needs no gradient of a later state. Grid: batch x heads x mini-batches.

    dZb = LN'(gamma dO); dM = -dZb G' (tril); dS = eta dM; dQ = dO + dZb W' + dS K; of dK so far dS'Q; d rate_j = sum_i place_i dM S.
    For the chain, so that it has nothing to do but its own: `tiles`, with u = -rstd M'dZb, and the sums of `kept` (KEPT, T).
    `small`: this mini-batch's part of d gamma, d beta, d place.
    """
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
    do = read_tile(d_out, batch, first, seq, width, head * F, T, F).to(tl.float32)
    wt = tl.load(states + at * F * F + f[:, None] * F + f[None, :])
    w = tl.trans(wt)
    b = tl.load(biases + at * F + f)[None, :]
    # forward again
    z = tl.dot(k, w, input_precision=PRECISION) + b
    off = shift - v + k.to(tl.float32)
    grad, xh, rstd, mean, along = slope(z, g * off, g * g, 1, F)
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
    s0, s1, _ = tl.reduce((dx, dx * xhb, dx), 1, add3)
    dzb = (rstd_b * (dx - (s0 / F)[:, None] - xhb * (s1 / F)[:, None])).to(dtype)
    dm = tl.where(t[:, None] >= t[None, :], -tl.dot(dzb, tl.trans(low), input_precision=PRECISION), 0.0)
    ds = (dm * eta).to(dtype)
    dms = dm * score
    dq = do + tl.dot(dzb, wt, input_precision=PRECISION) + tl.dot(ds, k, input_precision=PRECISION)
    dk = tl.dot(tl.trans(ds), q, input_precision=PRECISION)
    u = -rstd[:, None] * tl.dot(tl.trans(seen), dzb, input_precision=PRECISION)
    write_tile(d_packed, rotate(dq, cos, -sin, T, F), batch, first, seq, row, head * F, T, F)
    write_tile(d_packed, dk, batch, first, seq, row, width + head * F, T, F)
    if head == 0:
        rest = 3 * width + heads + tl.arange(0, PADDING)[None, :]
        rows = (batch * seq + first + t)[:, None]
        tl.store(d_packed + rows * row + rest, tl.zeros((T, PADDING), dtype), mask=(first + t < seq)[:, None] & (rest < row))
    tile = tiles + at * TILES * T * F + t[:, None] * F + f[None, :]
    tl.store(tile, k)
    tl.store(tile + T * F, q)
    tl.store(tile + 2 * T * F, (g * xh + off).to(dtype))
    tl.store(tile + 3 * T * F, xh.to(dtype))
    tl.store(tile + 4 * T * F, u.to(dtype))
    tl.store(tile + 5 * T * F, dzb)
    line = kept + at * KEPT * T + t
    g2x = g * g * xh
    tl.store(line, rstd)
    tl.store(line + T, mean)
    tl.store(line + 2 * T, along)
    tl.store(line + 3 * T, tl.sum(g2x, 1) / F)
    tl.store(line + 4 * T, tl.sum(g2x * xh, 1) / F)
    tl.store(line + 5 * T, tl.sum(dms * places[:, None], 0))
    tl.store(line + 6 * T, tl.sum(u * grad, 1) / rstd)
    line = small + at * (2 * F + T)
    tl.store(line + f, tl.sum(do * xhb, 0))
    tl.store(line + F + f, tl.sum(do, 0))
    tl.store(line + 2 * F + t, tl.sum(dms * rate[None, :], 1))


@triton.jit
def backward_chain(
    packed, rotation, gamma, token_idx, lr_bias, states, d_packed, kept, tiles, small, d_state,
    seq, row, width, heads, count, scale,
    T: tl.constexpr, F: tl.constexpr, PRECISION: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """The state's gradient, last mini-batch first. Grid: batch x heads. From dW, db of the state after a mini-batch:

    P = K dW + db; u = rstd dG = u_kept - rstd e P; gx = gamma go; dgx = u - mean u - xh mean(u xh); dV = -gamma dgx;
    dZ = rstd (gamma^2 dgx - u mean(gx xh) - gx mean(u xh) - its mean - xh (its mean with xh + mean(dG G)));
    dK += gamma dgx + dZ W' - (e G) dW'; d e = -sum G P; dW <- dW + K'dZ + Q'dZb; db <- db + sum (dZ + dZb).
    The state and what meets it are transposed (outputs x tokens), as in forward_chain, and all sums are taken in one round.
    small: rows of d gamma, d beta, d place (the last alone), d lr_bias; d_state (F out, F in) and then db.
    """
    pid = tl.program_id(0)
    batch, head = pid // heads, pid % heads
    dtype = packed.dtype.element_ty
    f = tl.arange(0, F)
    t = tl.arange(0, T)
    g = tl.load(gamma + head * F + f).to(tl.float32)
    g2 = (g * g)[:, None]
    g2_mean = tl.sum(g * g, 0) / F
    cos, sin = read_angles(rotation, T, F)
    last = read_place(token_idx, T - 1)
    dw = tl.zeros((F, F), tl.float32)
    db = tl.zeros((F,), tl.float32)
    d_gamma = tl.zeros((F,), tl.float32)
    d_beta = tl.zeros((F,), tl.float32)
    d_place = tl.zeros((T,), tl.float32)
    d_score = tl.zeros((T,), tl.float32)
    for i in tl.range(0, count, num_stages=STAGES):
        n = count - 1 - i
        at = (pid * count + n).to(tl.int64)
        first = n * T
        sigmoid = read_rate(packed, lr_bias, batch, first, seq, row, 3 * width, head, T)
        tile = tiles + at * TILES * T * F + t[:, None] * F + f[None, :]
        k = tl.load(tile)
        q = tl.load(tile + T * F)
        go = tl.trans(tl.load(tile + 2 * T * F)).to(tl.float32)
        xh = tl.trans(tl.load(tile + 3 * T * F)).to(tl.float32)
        u0 = tl.trans(tl.load(tile + 4 * T * F)).to(tl.float32)
        dzb = tl.trans(tl.load(tile + 5 * T * F))
        line = kept + at * KEPT * T + t
        rstd = tl.load(line)
        mean = tl.load(line + T)
        along = tl.load(line + 2 * T)
        g2x = tl.load(line + 3 * T)
        g2xx = tl.load(line + 4 * T)
        d_rate = tl.load(line + 5 * T)
        s_u0 = tl.load(line + 6 * T)
        wt = tl.load(states + at * F * F + f[:, None] * F + f[None, :])
        dk = read_tile(d_packed, batch, first, seq, row, width + head * F, T, F).to(tl.float32)
        rate = sigmoid * scale
        e = last * rate
        gx = go * g[:, None]
        bare = gx - mean[None, :] - xh * along[None, :]
        # the chain
        dw_low = dw.to(dtype)
        p = tl.dot(dw_low, tl.trans(k), input_precision=PRECISION) + db[:, None]
        u = u0 - (rstd * e)[None, :] * p
        ux = u * xh
        s_u, s_x, s_p, s_g, s_gx = tl.reduce((u, ux, p * bare, g2 * u, g2 * ux), 0, add5)
        a1, a2 = s_u / F, s_x / F
        de = -rstd * s_p
        dgx = u - a1[None, :] - xh * a2[None, :]
        c1 = s_g / F - a1 * g2_mean - a2 * g2x - a1 * along - a2 * mean
        c2 = s_gx / F - a1 * g2x - a2 * g2xx - 2 * a2 * along + (s_u0 + e * de) / F
        dz = g2 * dgx - u * along[None, :] - gx * a2[None, :] - c1[None, :] - xh * c2[None, :]
        dz = (dz * rstd[None, :]).to(dtype)
        # off the chain: what leaves here, with dW still that of the state after
        grad = bare * rstd[None, :]
        dgo = g[:, None] * dgx
        step = (grad * e[None, :]).to(dtype)
        dk += tl.dot(tl.trans(dz), wt, input_precision=PRECISION) - tl.dot(tl.trans(step), dw_low, input_precision=PRECISION)
        dk += tl.trans(dgo)
        dw = tl.dot(dz, k, acc=dw, input_precision=PRECISION)
        dw = tl.dot(dzb, q, acc=dw, input_precision=PRECISION)
        db += tl.sum(dz.to(tl.float32) + dzb.to(tl.float32), 1)
        write_tile(d_packed, rotate(dk, cos, -sin, T, F), batch, first, seq, row, width + head * F, T, F)
        write_tile(d_packed, tl.trans(-dgo), batch, first, seq, row, 2 * width + head * F, T, F)
        d_rate = (d_rate + last * de) * rate * (1 - sigmoid)
        at_score = d_packed + (batch.to(tl.int64) * seq + first + t) * row + 3 * width + head
        tl.store(at_score, d_rate.to(dtype), mask=first + t < seq)
        d_score += d_rate
        d_place += rate * de
        d_gamma += tl.sum(dgx * go + dgo * xh, 1)
        d_beta += tl.sum(dgo, 1)
    line = small + pid * (2 * F + 2)
    tl.store(line + f, d_gamma)
    tl.store(line + F + f, d_beta)
    tl.store(line + 2 * F, tl.sum(d_place, 0))
    tl.store(line + 2 * F + 1, tl.sum(d_score, 0))
    tl.store(d_state + pid * (F + 1) * F + f[:, None] * F + f[None, :], dw)
    tl.store(d_state + pid * (F + 1) * F + F * F + f, db)
