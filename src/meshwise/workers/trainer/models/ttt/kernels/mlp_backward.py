"""TTT-MLP backward: the gradients of all outputs in parallel, then a serial chain from the last mini-batch to the first.

mlp_forward.chain runs first, to write states and starts. `readers` passes tiles to `back_chain`, consecutive for each mini-batch:
`wide` holds M x T tiles (X2 = gelu(Z1), G1, gelu'(Z1), W2 G2' gelu''(Z1), X2b, dZ1b, dG1, dX2), `narrow` D x T tiles (xh, dZ2b, dG2),
`thin` rows of T (the norm's scale, mean gx, mean gx xh).
"""

# pyright: basic, reportGeneralTypeIssues=false, reportArgumentType=false, reportCallIssue=false, reportOperatorIssue=false
import triton
import triton.language as tl

from meshwise.workers.trainer.models.ttt.kernels.mlp_forward import seen
from meshwise.workers.trainer.models.ttt.kernels.mlp_parts import (
    across,
    add_dot,
    dot,
    gelu,
    inner_step,
    loss_gradient,
    normal,
    slope,
    tile,
)


@triton.jit
def readers(
    queries, keys, values, rates, places, gammas, betas, states1, states2, starts1, starts2, d_out,
    wide, narrow, thin, d_queries, d_keys, d_rates, d_places, d_gammas, d_betas,
    heads, batches, D: tl.constexpr, M: tl.constexpr, T: tl.constexpr,
):  # fmt: skip
    """Compute, for one mini-batch, the backward pass through Z2b, A2, Z1b and A1 of mlp_forward.output.

    dZ2b = LN'(dO gamma); dX2b = dZ2b W2' + dP2 X2; dG2 = -A2' dZ2b; dP = -eta dZb G'; dX2 = dP2' X2b
    dZ1b = dX2b gelu'(Z1b); dG1 = -A1' dZ1b; dQ = dO + dZ1b W1' + dP1 K; dK = dP1' Q; d eta = -(dZb G') P, summed over both layers
    """
    mini = tl.program_id(0).to(tl.int64)
    pair = mini // batches
    head = pair % heads
    token = (pair // heads * batches + mini % batches) * T
    at, step = (token * heads + head) * D, heads * D
    d, m, t = tl.arange(0, D), tl.arange(0, M), tl.arange(0, T)
    w1, w2 = tl.load(tile(states1 + mini * M * D, M, D)), tl.load(tile(states2 + mini * M * D, M, D))
    b1, b2 = tl.load(starts1 + mini * M + m), tl.load(starts2 + mini * D + d)
    gamma, beta = tl.load(gammas + head * D + d).to(tl.float32), tl.load(betas + head * D + d).to(tl.float32)
    rate, place = tl.load(rates + token * heads + head + t * heads), tl.load(places + t)
    k = tl.load(keys + at + t[:, None] * step + d[None, :])
    dtype = k.dtype
    kt = tl.trans(k)
    target = tl.load(across(values + at, step, D, T)).to(tl.float32) - kt.to(tl.float32)
    qt = tl.load(across(queries + at, step, D, T))

    back, x2, bend, curve, g2, xh, scale, mean, along = inner_step(kt, target, w1, b1, w2, b2, gamma, beta, D)
    tiles, small = wide + mini * 8 * M * T, narrow + mini * 3 * D * T
    g1 = (back * bend).to(dtype)
    tl.store(tile(tiles, M, T), x2)
    tl.store(tile(tiles + M * T, M, T), g1)
    tl.store(tile(tiles + 2 * M * T, M, T), bend.to(dtype))
    tl.store(tile(tiles + 3 * M * T, M, T), (back * curve).to(dtype))
    tl.store(tile(small, D, T), xh.to(dtype))
    tl.store(thin + mini * 3 * T + t, scale)
    tl.store(thin + mini * 3 * T + T + t, mean)
    tl.store(thin + mini * 3 * T + 2 * T + t, along)
    g2 = g2.to(dtype)

    p1 = dot(k, qt) + 1
    eta, a1 = seen(p1, place, rate, T)
    a1 = a1.to(dtype)
    x2b, bend = gelu(dot(w1, qt) + b1[:, None] - dot(g1, a1))
    x2b = x2b.to(dtype)
    tl.store(tile(tiles + 4 * M * T, M, T), x2b)
    p2 = dot(tl.trans(x2), x2b) + 1
    _, a2 = seen(p2, place, rate, T)
    a2 = a2.to(dtype)
    xhb, scale = normal(dot(tl.trans(w2), x2b) + b2[:, None] - dot(g2, a2), D)

    do = tl.load(across(d_out + at, step, D, T)).to(tl.float32)
    tl.store(d_gammas + mini * D + d, tl.sum(do * xhb, 1))
    tl.store(d_betas + mini * D + d, tl.sum(do, 1))
    dz2b, _, _ = slope(xhb, scale, do * gamma[:, None], D)
    dz2b = dz2b.to(dtype)
    tl.store(tile(small + D * T, D, T), dz2b)
    tl.store(tile(small + 2 * D * T, D, T), -dot(dz2b, tl.trans(a2)).to(dtype))
    da = -dot(tl.trans(g2), dz2b)
    d_eta = da * p2
    dp = (da * eta).to(dtype)
    dz1b = ((dot(w2, dz2b) + dot(x2, dp)) * bend).to(dtype)
    tl.store(tile(tiles + 5 * M * T, M, T), dz1b)
    tl.store(tile(tiles + 7 * M * T, M, T), dot(x2b, tl.trans(dp)).to(dtype))

    tl.store(tile(tiles + 6 * M * T, M, T), -dot(dz1b, tl.trans(a1)).to(dtype))
    da = -dot(tl.trans(g1), dz1b)
    d_eta += da * p1
    dp = (da * eta).to(dtype)
    dq = do + dot(tl.trans(w1), dz1b) + dot(kt, dp)
    tl.store(across(d_queries + at, step, D, T), dq.to(d_queries.dtype.element_ty))
    tl.store(across(d_keys + at, step, D, T), dot(qt, tl.trans(dp)))
    d_eta = tl.where(t[:, None] <= t[None, :], d_eta, 0.0)
    tl.store(d_rates + token * heads + head + t * heads, tl.sum(d_eta * place[None, :], 1))
    tl.store(d_places + mini * T + t, tl.sum(d_eta * rate[:, None], 0))


@triton.jit
def second_order(dg, g, xh, scale, along, gx, go, gamma, D: tl.constexpr):
    """Return the backward pass of slope(Z): dZ, d(target), d gamma and d beta from dG.

    u = scale dG; dgx = u - mean u - xh mean(u xh); dgo = gamma dgx; d(target) = -dgo
    dxh = gamma dgo - u mean(gx xh) - gx mean(u xh); dZ = scale (dxh - mean dxh - xh (mean(dxh xh) + mean(dG G)))
    """
    u = scale[None, :] * dg
    along_u = tl.sum(u * xh, 0)[None, :] / D
    dgx = u - tl.sum(u, 0)[None, :] / D - xh * along_u
    dgo = gamma[:, None] * dgx
    dxh = gamma[:, None] * dgo - u * along[None, :] - gx * along_u
    along_dxh = (tl.sum(dxh * xh, 0) + tl.sum(dg * g, 0))[None, :] / D
    dz = scale[None, :] * (dxh - tl.sum(dxh, 0)[None, :] / D - xh * along_dxh)
    return dz, -dgo, tl.sum(dgo * xh + dgx * go, 1), tl.sum(dgo, 1)


@triton.jit
def back_chain(
    queries, keys, values, rates, places, gammas, betas, states2, wide, narrow, thin,
    d_keys_read, d_rates_read, d_values, d_rates, d_last, d_w1, d_b1, d_w2, d_b2, d_gammas, d_betas,
    heads, batches, D: tl.constexpr, M: tl.constexpr, T: tl.constexpr,
):  # fmt: skip
    """For each mini-batch of one (batch, head), last first, from dW1', db1', dW2', db2' of the weights after it:

    dG1 -= e (K dW1' + db1'); dG2 -= e (X2 dW2' + db2'); dX2 -= e G2 dW2''; dK -= e G1 dW1''; de = -G1.(K dW1' + db1') - G2.(X2 dW2' + db2')
    dD = dG1 gelu'(Z1); dZ1 = dG1 D gelu''(Z1); dG2 += dD W2; dZ2, d(target) = second_order(dG2); dX2 += dZ2 W2'
    dZ1 += dX2 gelu'(Z1), stored in the tile of dX2; dW1 = dW1' + K' dZ1 + Q' dZ1b; dW2 = dW2' + dD' G2 + X2' dZ2 + X2b' dZ2b
    """
    pair = tl.program_id(0).to(tl.int64)
    head = pair % heads
    d, m, t = tl.arange(0, D), tl.arange(0, M), tl.arange(0, T)
    gamma, beta = tl.load(gammas + head * D + d).to(tl.float32), tl.load(betas + head * D + d).to(tl.float32)
    last = tl.load(places + T - 1)
    step = heads * D
    dw1, dw2 = tl.zeros((M, D), tl.float32), tl.zeros((M, D), tl.float32)
    db1, db2 = tl.zeros((M,), tl.float32), tl.zeros((D,), tl.float32)
    d_gamma, d_beta, d_place = tl.zeros((D,), tl.float32), tl.zeros((D,), tl.float32), tl.zeros((T,), tl.float32)
    dw1_now, dw2_now = dw1.to(keys.dtype.element_ty), dw2.to(keys.dtype.element_ty)
    # if hoisted, the descriptors of a hundred products would fill the registers: 1.92 ms instead of 1.28 on an H200
    for back in tl.range(0, batches, disable_licm=True):
        n = batches - 1 - back
        mini = pair * batches + n
        token = (pair // heads * batches + n) * T
        at = (token * heads + head) * D
        tiles, small = wide + mini * 8 * M * T, narrow + mini * 3 * D * T
        k = tl.load(keys + at + t[:, None] * step + d[None, :])
        dtype = k.dtype
        kt = tl.trans(k)
        rate = tl.load(rates + token * heads + head + t * heads)
        e = (last * rate)[None, :]
        target = tl.load(across(values + at, step, D, T)).to(tl.float32) - kt.to(tl.float32)
        xh = tl.load(tile(small, D, T)).to(tl.float32)
        scale, mean = tl.load(thin + mini * 3 * T + t), tl.load(thin + mini * 3 * T + T + t)
        along = tl.load(thin + mini * 3 * T + 2 * T + t)
        gx, go = loss_gradient(xh, target, gamma, beta)
        g2 = scale[None, :] * (gx - mean[None, :] - xh * along[None, :])
        g2_now = g2.to(dtype)

        a1 = dot(dw1_now, kt) + db1[:, None]
        g1 = tl.load(tile(tiles + M * T, M, T))
        dk = tl.load(across(d_keys_read + at, step, D, T)) - e * dot(tl.trans(dw1_now), g1)
        de = -tl.sum(g1.to(tl.float32) * a1, 0)
        dg1 = tl.load(tile(tiles + 6 * M * T, M, T)).to(tl.float32) - e * a1
        bend = tl.load(tile(tiles + 2 * M * T, M, T))
        dd = (dg1 * bend.to(tl.float32)).to(dtype)
        x2 = tl.load(tile(tiles, M, T))
        a2 = dot(tl.trans(dw2_now), x2) + db2[:, None]
        de -= tl.sum(g2 * a2, 0)
        w2 = tl.load(tile(states2 + mini * M * D, M, D))
        dg2 = tl.load(tile(small + 2 * D * T, D, T)).to(tl.float32) - e * a2 + dot(tl.trans(w2), dd)
        dw2 = add_dot(dw2, dd, tl.trans(g2_now))
        dz2, d_target, more_gamma, more_beta = second_order(dg2, g2, xh, scale, along, gx, go, gamma, D)
        d_gamma += more_gamma
        d_beta += more_beta
        tl.store(across(d_values + at, step, D, T), d_target.to(d_values.dtype.element_ty))
        tl.store(across(d_keys_read + at, step, D, T), dk - d_target)
        before = tl.load(d_rates_read + token * heads + head + t * heads)
        tl.store(d_rates + token * heads + head + t * heads, before + last * de)
        d_place += rate * de

        dz2_now = dz2.to(dtype)
        dx2 = tl.load(tile(tiles + 7 * M * T, M, T)).to(tl.float32) - e * dot(dw2_now, g2_now) + dot(w2, dz2_now)
        dz1 = dg1 * tl.load(tile(tiles + 3 * M * T, M, T)).to(tl.float32) + dx2 * bend.to(tl.float32)
        dz1_now = dz1.to(dtype)
        tl.store(tile(tiles + 7 * M * T, M, T), dz1_now)
        dw1 = add_dot(dw1, dz1_now, k)
        dw2 = add_dot(dw2, x2, tl.trans(dz2_now))
        dz1b, dz2b = tl.load(tile(tiles + 5 * M * T, M, T)), tl.load(tile(small + D * T, D, T))
        db1 += tl.sum(dz1 + dz1b.to(tl.float32), 1)
        db2 += tl.sum(dz2 + dz2b.to(tl.float32), 1)
        dw1 = add_dot(dw1, dz1b, tl.load(queries + at + t[:, None] * step + d[None, :]))
        dw2 = add_dot(dw2, tl.load(tile(tiles + 4 * M * T, M, T)), tl.trans(dz2b))
        dw1_now, dw2_now = dw1.to(dtype), dw2.to(dtype)
    tl.store(tile(d_w1 + pair * M * D, M, D), dw1)
    tl.store(tile(d_w2 + pair * M * D, M, D), dw2)
    tl.store(d_b1 + pair * M + m, db1)
    tl.store(d_b2 + pair * D + d, db2)
    tl.store(d_gammas + pair * D + d, d_gamma)
    tl.store(d_betas + pair * D + d, d_beta)
    tl.store(d_last + pair, tl.sum(d_place, 0))


@triton.jit
def through_w1(
    states1, wide, d_keys_read, d_keys, heads, batches, D: tl.constexpr, M: tl.constexpr, T: tl.constexpr,
):  # fmt: skip
    """Add dZ1 W1' to dK for one mini-batch. Not in the chain, which has no room for W1."""
    mini = tl.program_id(0).to(tl.int64)
    pair = mini // batches
    token = (pair // heads * batches + mini % batches) * T
    at, step = (token * heads + pair % heads) * D, heads * D
    w1 = tl.load(tile(states1 + mini * M * D, M, D))
    dz1 = tl.load(tile(wide + (mini * 8 + 7) * M * T, M, T))
    dk = tl.load(across(d_keys_read + at, step, D, T)) + dot(tl.trans(w1), dz1)
    tl.store(across(d_keys + at, step, D, T), dk.to(d_keys.dtype.element_ty))
