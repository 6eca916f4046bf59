"""TTT-MLP outside the chains, one program per mini-batch, sequence and head: outputs, their gradients, and the product that only needs
W1."""

# pyright: basic, reportGeneralTypeIssues=false, reportArgumentType=false, reportCallIssue=false, reportOperatorIssue=false, reportAttributeAccessIssue=false, reportAssignmentType=false
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy, mma_v2

from meshwise.workers.trainer.models.ttt.kernels.mlp_tiles import (
    fetch,
    flat,
    gelu,
    gelu_curve,
    left,
    normal,
    read,
    right,
    room,
    rows,
    seen,
    slope,
    tall,
    through,
    turned,
    write,
    zeros,
)


@gluon.jit(do_not_specialize=["heads", "batches"])
def output(
    queries, keys, values, rates, places, gammas, betas, states1, states2, starts1, starts2, out,
    heads, batches, D: gl.constexpr, M: gl.constexpr, T: gl.constexpr, W: gl.constexpr,
):  # fmt: skip
    """For one mini-batch: Z1b = Q W1 + b1 - A1 G1; Z2b = gelu(Z1b) W2 + b2 - A2 G2; out = Q + LN(Z2b). A1 = tril(eta (Q K' + 1)), A2 =
    tril(eta (gelu(Z1b) gelu(Z1)' + 1)), eta_ij = place_i rate_j."""
    high: gl.constexpr = tall(W)
    wide: gl.constexpr = flat(W)
    dtype: gl.constexpr = keys.dtype.element_ty
    mini = gl.program_id(0).to(gl.int64)
    pair = mini // batches
    head = pair % heads
    token = (pair // heads * batches + mini % batches) * T
    at, step = (token * heads + head) * D, heads * D
    w1_at, w2_at, x_at, k_at, q_at = room(dtype, M, D), room(dtype, M, D), room(dtype, M, T), room(dtype, T, D), room(dtype, T, D)
    xb_at, g_at = room(dtype, M, T), room(dtype, T, D)
    fetch(w1_at, states1 + mini * M * D, W)
    async_copy.commit_group()
    fetch(w2_at, states2 + mini * M * D, W)
    async_copy.commit_group()
    m, d = gl.arange(0, M, layout=gl.SliceLayout(1, high)), gl.arange(0, D, layout=gl.SliceLayout(0, wide))
    k, v = gl.load(rows(keys + at, step, T, D, wide)), gl.load(rows(values + at, step, T, D, wide))
    q = gl.load(rows(queries + at, step, T, D, wide))
    k_at.store(k)
    q_at.store(q)
    b1, b2 = gl.load(starts1 + mini * M + m)[:, None], gl.load(starts2 + mini * D + d)[None, :]
    gamma, beta = gl.load(gammas + head * D + d).to(gl.float32)[None, :], gl.load(betas + head * D + d).to(gl.float32)[None, :]
    rates += token * heads + head
    p = mma_v2(q_at.load(left(high)), k_at.permute((1, 0)).load(right(high)), zeros(T, T, high)) + 1
    eta, a1 = seen(p, places, rates, heads, T, W)
    async_copy.wait_group(1)
    w1 = w1_at.load(left(high))
    x2, bend = gelu(mma_v2(w1, k_at.permute((1, 0)).load(right(high)), zeros(M, T, high)) + b1)
    zb = mma_v2(w1, q_at.permute((1, 0)).load(right(high)), zeros(M, T, high)) + b1
    x_at.store(x2.to(dtype))
    async_copy.wait_group(0)
    xh, scale = normal(through(x_at, w2_at, zeros(T, D, wide), wide) + b2, D)
    g2, _, _ = slope(xh, scale, gamma * (gamma * xh + beta - v.to(gl.float32) + k.to(gl.float32)), D)
    g_at.store(g2.to(dtype))
    g1 = mma_v2(w2_at.load(left(high)), g_at.permute((1, 0)).load(right(high)), zeros(M, T, high)) * bend
    zb = mma_v2(gl.convert_layout(g1.to(dtype), left(high)), turned((-a1).to(dtype), W), zb)
    x2b, _ = gelu(zb)
    xb_at.store(x2b.to(dtype))
    p = through(xb_at, x_at, zeros(T, T, high), high) + 1
    a2 = gl.convert_layout((-eta * p).to(dtype), left(wide))
    z2b = through(xb_at, w2_at, zeros(T, D, wide), wide) + b2
    xh, _ = normal(mma_v2(a2, g_at.load(right(wide)), z2b), D)
    o = q.to(gl.float32) + gamma * xh + beta
    gl.store(rows(out + at, step, T, D, wide), o.to(out.dtype.element_ty))


@gluon.jit(do_not_specialize=["heads", "batches"])
def readers(
    queries, keys, values, rates, places, gammas, betas, states1, states2, starts1, starts2, d_out,
    tiles, small, thin, d_queries, d_keys, d_rates, each,
    heads, batches, D: gl.constexpr, M: gl.constexpr, T: gl.constexpr, W: gl.constexpr,
):  # fmt: skip
    """Compute, for one mini-batch, the backward pass through Z2b, A2, Z1b and A1 of `output`. dZ2b = LN'(dO gamma); dX2b = dZ2b W2' + dP2
    X2; dG2 = -A2' dZ2b; dP = -eta dZb G'; dX2 = dP2' X2b dZ1b = dX2b gelu'(Z1b); dG1 = -A1' dZ1b; dQ = dO + dZ1b W1' + dP1 K; dK = dP1'
    Q; d eta = -(dZb G') P, summed over both layers"""
    high: gl.constexpr = tall(W)
    wide: gl.constexpr = flat(W)
    dtype: gl.constexpr = keys.dtype.element_ty
    mini = gl.program_id(0).to(gl.int64)
    pair = mini // batches
    head = pair % heads
    token = (pair // heads * batches + mini % batches) * T
    at, step = (token * heads + head) * D, heads * D
    w1_at, w2_at, x_at, k_at, q_at = room(dtype, M, D), room(dtype, M, D), room(dtype, M, T), room(dtype, T, D), room(dtype, T, D)
    xb_at, g_at, dz_at, a_at = room(dtype, M, T), room(dtype, T, D), room(dtype, T, D), room(dtype, T, T)
    fetch(w1_at, states1 + mini * M * D, W)
    async_copy.commit_group()
    fetch(w2_at, states2 + mini * M * D, W)
    async_copy.commit_group()
    m, d = gl.arange(0, M, layout=gl.SliceLayout(1, high)), gl.arange(0, D, layout=gl.SliceLayout(0, wide))
    i, j = gl.arange(0, T, layout=gl.SliceLayout(1, high)), gl.arange(0, T, layout=gl.SliceLayout(0, high))
    t = gl.arange(0, T, layout=gl.SliceLayout(1, wide))
    k, v = gl.load(rows(keys + at, step, T, D, wide)), gl.load(rows(values + at, step, T, D, wide))
    k_at.store(k)
    q_at.store(gl.load(rows(queries + at, step, T, D, wide)))
    b1, b2 = gl.load(starts1 + mini * M + m)[:, None], gl.load(starts2 + mini * D + d)[None, :]
    gamma, beta = gl.load(gammas + head * D + d).to(gl.float32)[None, :], gl.load(betas + head * D + d).to(gl.float32)[None, :]
    rates += token * heads + head
    tiles += mini * 8 * M * T
    small += mini * 3 * D * T
    thin += mini * 5 * T
    p1 = mma_v2(q_at.load(left(high)), k_at.permute((1, 0)).load(right(high)), zeros(T, T, high)) + 1
    eta, a1 = seen(p1, places, rates, heads, T, W)
    a_at.store(a1.to(dtype))
    async_copy.wait_group(1)
    x2, bend, curve = gelu_curve(mma_v2(w1_at.load(left(high)), k_at.permute((1, 0)).load(right(high)), zeros(M, T, high)) + b1)
    x2 = x2.to(dtype)
    x_at.store(x2)
    write(tiles, x2, W)
    write(tiles + 2 * M * T, bend.to(dtype), W)
    async_copy.wait_group(0)
    xh, scale = normal(through(x_at, w2_at, zeros(T, D, wide), wide) + b2, D)
    g2, mean, along = slope(xh, scale, gamma * (gamma * xh + beta - v.to(gl.float32) + k.to(gl.float32)), D)
    g_at.store(g2.to(dtype))
    gl.store(rows(small, D, T, D, wide), xh.to(dtype))
    gl.store(thin + t, scale)
    gl.store(thin + T + t, mean)
    gl.store(thin + 2 * T + t, along)
    gl.store(thin + 3 * T + t, gl.sum(gamma * gamma * xh, 1) / D)
    gl.store(thin + 4 * T + t, gl.sum(gamma * gamma * xh * xh, 1) / D)
    back = mma_v2(w2_at.load(left(high)), g_at.permute((1, 0)).load(right(high)), zeros(M, T, high))
    g1 = (back * bend).to(dtype)
    write(tiles + M * T, g1, W)
    write(tiles + 4 * M * T, (back * curve).to(dtype), W)

    zb = mma_v2(w1_at.load(left(high)), q_at.permute((1, 0)).load(right(high)), zeros(M, T, high)) + b1
    x2b, bend = gelu(mma_v2(gl.convert_layout(g1, left(high)), turned((-a1).to(dtype), W), zb))
    x2b = x2b.to(dtype)
    xb_at.store(x2b)
    write(tiles + 5 * M * T, x2b, W)
    p2 = through(xb_at, x_at, zeros(T, T, high), high) + 1
    minus_a2 = (-eta * p2).to(dtype)
    z2b = through(xb_at, w2_at, zeros(T, D, wide), wide) + b2
    xh, scale = normal(mma_v2(gl.convert_layout(minus_a2, left(wide)), g_at.load(right(wide)), z2b), D)

    do = gl.load(rows(d_out + at, step, T, D, wide)).to(gl.float32)
    each += mini * (T + 2 * D)
    gl.store(each + T + d, gl.sum(do * xh, 0))
    gl.store(each + T + D + d, gl.sum(do, 0))
    dz2b, _, _ = slope(xh, scale, do * gamma, D)
    dz2b = dz2b.to(dtype)
    dz_at.store(dz2b)
    gl.store(rows(small + D * T, D, T, D, wide), dz2b)
    da = mma_v2(dz_at.load(left(high)), g_at.permute((1, 0)).load(right(high)), zeros(T, T, high))
    d_eta = -da * p2
    dp = (-da * eta).to(dtype)
    dx2b = mma_v2(w2_at.load(left(high)), dz_at.permute((1, 0)).load(right(high)), zeros(M, T, high))
    dx2b = mma_v2(gl.convert_layout(x2, left(high)), turned(dp, W), dx2b)
    dz1b = (dx2b * bend).to(dtype)
    write(tiles + 6 * M * T, dz1b, W)
    dg1 = mma_v2(gl.convert_layout(dz1b, left(high)), a_at.load(right(high)), zeros(M, T, high))
    write(tiles + 3 * M * T, (-dg1).to(dtype), W)
    a_at.store(minus_a2)
    dg2 = mma_v2(a_at.permute((1, 0)).load(left(wide)), dz_at.load(right(wide)), zeros(T, D, wide))
    gl.store(rows(small + 2 * D * T, D, T, D, wide), dg2.to(dtype))
    a_at.store(dp)
    dx2 = mma_v2(gl.convert_layout(x2b, left(high)), a_at.load(right(high)), zeros(M, T, high))
    write(tiles + 7 * M * T, dx2.to(dtype), W)

    x_at.store(g1)
    xb_at.store(dz1b)
    da = through(xb_at, x_at, zeros(T, T, high), high)
    d_eta -= da * p1
    dp = (-da * eta).to(dtype)
    a_at.store(dp)
    dq = through(xb_at, w1_at, do, wide)
    dq = mma_v2(gl.convert_layout(dp, left(wide)), k_at.load(right(wide)), dq)
    gl.store(rows(d_queries + at, step, T, D, wide), dq.to(d_queries.dtype.element_ty))
    dk = mma_v2(a_at.permute((1, 0)).load(left(wide)), q_at.load(right(wide)), zeros(T, D, wide))
    gl.store(rows(d_keys + at, step, T, D, wide), dk)
    d_eta = gl.where(j[None, :] <= i[:, None], d_eta, 0.0)
    gl.store(d_rates + token * heads + head + j * heads, gl.sum(d_eta * gl.load(places + i)[:, None], 0))
    gl.store(each + i, gl.sum(d_eta * gl.load(rates + j * heads)[None, :], 1))


@gluon.jit(do_not_specialize=["heads", "batches"])
def through_w1(
    states1, tiles, d_keys_read, d_keys, heads, batches, D: gl.constexpr, M: gl.constexpr, T: gl.constexpr, W: gl.constexpr,
):  # fmt: skip
    """Add dZ1 W1' to dK for one mini-batch. Not in the chain, which would have to read W1 for it."""
    wide: gl.constexpr = flat(W)
    dtype: gl.constexpr = states1.dtype.element_ty
    mini = gl.program_id(0).to(gl.int64)
    pair = mini // batches
    token = (pair // heads * batches + mini % batches) * T
    at, step = (token * heads + pair % heads) * D, heads * D
    w1_at, dz_at = room(dtype, M, D), room(dtype, M, T)
    fetch(w1_at, states1 + mini * M * D, W)
    async_copy.commit_group()
    dz_at.store(read(tiles + (mini * 8 + 7) * M * T, W))
    dk = gl.load(rows(d_keys_read + at, step, T, D, wide))
    async_copy.wait_group(0)
    dk = through(dz_at, w1_at, dk, wide)
    gl.store(rows(d_keys + at, step, T, D, wide), dk.to(d_keys.dtype.element_ty))
