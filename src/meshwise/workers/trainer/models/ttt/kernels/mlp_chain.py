"""TTT-MLP's forward chain in Gluon: one program per sequence and head, serial over mini-batches."""

# pyright: basic, reportGeneralTypeIssues=false, reportArgumentType=false, reportCallIssue=false, reportOperatorIssue=false, reportAttributeAccessIssue=false, reportAssignmentType=false
import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import mma_v2

from meshwise.workers.trainer.models.ttt.kernels.mlp_tiles import (
    EPS,
    add5,
    flat,
    gelu,
    left,
    lines,
    right,
    room,
    rows,
    tall,
    through,
    zeros,
)


@gluon.jit(do_not_specialize=["heads", "batches"])
def chain(
    keys, values, rates, places, w1_at, b1_at, w2_at, b2_at, gammas, betas, states1, states2, starts1, starts2,
    heads, batches, D: gl.constexpr, M: gl.constexpr, T: gl.constexpr, W: gl.constexpr,
):  # fmt: skip
    """For each mini-batch of one (batch, head), from W1, b1, W2, b2 at its start: Z1 = K W1 + b1; Z2 = gelu(Z1) W2 + b2; G2 = slope(Z2);
    G1 = (G2 W2') gelu'(Z1) W1 -= (e K)' G1; b1 -= e' G1; W2 -= (e gelu(Z1))' G2; b2 -= e' G2, with e = rate x place of the last
    position"""
    high: gl.constexpr = tall(W)
    wide: gl.constexpr = flat(W)
    dtype: gl.constexpr = keys.dtype.element_ty
    pair = gl.program_id(0).to(gl.int64)
    head = pair % heads
    m, t = gl.arange(0, M, layout=gl.SliceLayout(1, high)), gl.arange(0, T, layout=gl.SliceLayout(0, high))
    d, token = gl.arange(0, D, layout=gl.SliceLayout(0, wide)), gl.arange(0, T, layout=gl.SliceLayout(1, wide))
    columns = gl.arange(0, D, layout=gl.SliceLayout(0, high))
    w1 = gl.load(w1_at + head * D * M + columns[None, :] * M + m[:, None]).to(gl.float32)
    w2 = gl.load(rows(w2_at + head * M * D, D, M, D, high)).to(gl.float32)
    b1, b2 = gl.load(b1_at + head * M + m).to(gl.float32), gl.load(b2_at + head * D + d).to(gl.float32)
    # a layer norm subtracts the mean over a head's features, which no update changes: without it the variance is a mean of squares
    w2 -= (gl.sum(w2, 1) / D)[:, None]
    b2 -= gl.sum(b2, 0) / D
    gamma, beta = gl.load(gammas + head * D + d).to(gl.float32), gl.load(betas + head * D + d).to(gl.float32)
    square = (gamma * gamma)[None, :]
    last = -gl.load(places + (T - 1))
    step = heads * D
    first = pair // heads * batches * T
    keys += first * step + head * D
    values += first * step + head * D
    rates += first * heads + head
    k_at, g_at, x_at = room(dtype, T, D), room(dtype, T, D), room(dtype, M, T)
    w1_at, w2_at = room(dtype, M, D), room(dtype, M, D)
    k, v = gl.load(rows(keys, step, T, D, wide)), gl.load(rows(values, step, T, D, wide))
    e, e_high = gl.load(rates + token * heads), gl.load(rates + t * heads)
    for n in tl.range(0, batches, disable_licm=True):
        mini = pair * batches + n
        k_at.store(k)
        w1_now, w2_now = w1.to(dtype), w2.to(dtype)
        w1_at.store(w1_now)
        w2_at.store(w2_now)
        wanted = gamma[None, :] * (beta[None, :] - v.to(gl.float32) + k.to(gl.float32))
        e, e_high = last * e, last * e_high
        z1 = mma_v2(gl.convert_layout(w1_now, left(high)), k_at.permute((1, 0)).load(right(high)), zeros(M, T, high))
        gl.store(starts1 + mini * M + m, b1)
        gl.store(starts2 + mini * D + d, b2)
        x2, bend = gelu(z1 + b1[:, None])
        x_at.store(x2.to(dtype))
        gl.store(rows(states1 + mini * M * D, D, M, D, lines(W)), w1_at.load(lines(W)))
        gl.store(rows(states2 + mini * M * D, D, M, D, lines(W)), w2_at.load(lines(W)))
        z2 = through(x_at, w2_at, zeros(T, D, wide), wide) + b2[None, :]
        # read the next mini-batch while this one is worked on (the last one is read twice)
        more = (n + 1 < batches).to(gl.int32)
        keys += more * (T * step)
        values += more * (T * step)
        rates += more * (T * heads)
        k, v = gl.load(rows(keys, step, T, D, wide)), gl.load(rows(values, step, T, D, wide))
        e_next, e_high_next = gl.load(rates + token * heads), gl.load(rates + t * heads)
        zz = z2 * z2
        power, s1, s2, s3, s4 = gl.reduce((zz, square * z2, square * zz, wanted * z2, wanted), 1, add5)
        scale = gl.rsqrt(power / D + EPS)
        mean = (scale * s1 + s4) / D
        along = scale * (scale * s2 + s3) / D
        xh = z2 * scale[:, None]
        g2 = (square * xh + wanted - mean[:, None] - xh * along[:, None]) * scale[:, None]
        g_at.store(g2.to(dtype))
        b2 += gl.sum(g2 * e[:, None], 0)
        xe = gl.convert_layout((x2 * e_high[None, :]).to(dtype), left(high))
        g1 = mma_v2(w2_at.load(left(high)), g_at.permute((1, 0)).load(right(high)), zeros(M, T, high)) * bend * e_high[None, :]
        w2 = mma_v2(xe, g_at.load(right(high)), w2)
        w1 = mma_v2(gl.convert_layout(g1.to(dtype), left(high)), k_at.load(right(high)), w1)
        b1 += gl.sum(g1, 1)
        e, e_high = e_next, e_high_next
