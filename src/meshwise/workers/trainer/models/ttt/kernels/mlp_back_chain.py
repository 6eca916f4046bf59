"""TTT-MLP's backward chain in Gluon: one program per sequence and head, serial from the last mini-batch to the first.

`mlp_readers.readers` leaves for each mini-batch: `tiles` (M x T, in the order of `write`): X2 = gelu(Z1), G1, gelu'(Z1), dG1,
W2 G2' gelu''(Z1), X2b, dZ1b, dX2; `small` (T x D): xh, dZ2b, dG2; `thin`, rows of T: the norm's scale, and the means of gx, gx xh,
gamma^2 xh, gamma^2 xh^2.
"""

# pyright: basic, reportGeneralTypeIssues=false, reportArgumentType=false, reportCallIssue=false, reportOperatorIssue=false, reportAttributeAccessIssue=false, reportAssignmentType=false
import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy, mma_v2

from meshwise.workers.trainer.models.ttt.kernels.mlp_tiles import (
    add5,
    fetch,
    flat,
    left,
    read,
    right,
    room,
    rows,
    tall,
    through,
    write,
    zeros,
)


@gluon.jit
def second_order(dg, xh, gx, gamma, thin, T: gl.constexpr, D: gl.constexpr, W: gl.constexpr):
    """Return the backward pass of slope(Z), given dG: dZ, and dgx, the gradient at gx. u = scale dG; dgx = u - mean u - xh mean(u xh);
    dxh = gamma^2 dgx - u mean(gx xh) - gx mean(u xh) dZ = scale (dxh - mean dxh - xh (mean(dxh xh) + mean(dG G))) All means are linear in
    u, so that five sums are enough, taken at once."""
    t = gl.arange(0, T, layout=gl.SliceLayout(1, flat(W)))
    scale, mean_gx, along = gl.load(thin + t), gl.load(thin + T + t), gl.load(thin + 2 * T + t)
    square_xh, square_xh_xh = gl.load(thin + 3 * T + t), gl.load(thin + 4 * T + t)
    square = gamma * gamma
    u = scale[:, None] * dg
    s0, s1, s2, s3, s4 = gl.reduce((u, u * xh, square * u, square * u * xh, u * gx), 1, add5)
    mean, along_u, mean_square, along_square, along_gx = s0 / D, s1 / D, s2 / D, s3 / D, s4 / D
    dgx = u - mean[:, None] - xh * along_u[:, None]
    dxh = square * dgx - u * along[:, None] - gx * along_u[:, None]
    weight = gl.sum(square, 1) / D
    mean_dxh = mean_square - mean * weight - along_u * square_xh - along * mean - mean_gx * along_u
    along_dxh = along_square - mean * square_xh - along_u * square_xh_xh - 2 * along * along_u
    along_dxh += along_gx - mean_gx * mean - along * along_u
    return scale[:, None] * (dxh - mean_dxh[:, None] - xh * along_dxh[:, None]), dgx


@gluon.jit(do_not_specialize=["heads", "batches"])
def back_chain(
    queries, keys, values, rates, places, gammas, betas, states2, tiles, small, thin,
    d_keys_read, d_rates_read, d_values, d_rates, sums,
    heads, batches, D: gl.constexpr, M: gl.constexpr, T: gl.constexpr, W: gl.constexpr, SUMS: gl.constexpr,
):  # fmt: skip
    """For each mini-batch of one (batch, head), last first, from dW1', db1', dW2', db2' of the weights after it: dG1 -= e (K dW1' +
    db1'); dG2 -= e (X2 dW2' + db2'); dX2 -= e G2 dW2''; dK -= e G1 dW1''; de = -G1.(K dW1' + db1') - G2.(X2 dW2' + db2') dD = dG1
    gelu'(Z1); dZ1 = dG1 D gelu''(Z1); dG2 += dD W2; dZ2, d(target) = second_order(dG2); dX2 += dZ2 W2' dZ1 += dX2 gelu'(Z1), stored in
    the tile of dX2; dW1 = dW1' + K' dZ1 + Q' dZ1b; dW2 = dW2' + dD' G2 + X2' dZ2 + X2b' dZ2b"""
    high: gl.constexpr = tall(W)
    wide: gl.constexpr = flat(W)
    dtype: gl.constexpr = keys.dtype.element_ty
    pair = gl.program_id(0).to(gl.int64)
    head = pair % heads
    m, t_high = gl.arange(0, M, layout=gl.SliceLayout(1, high)), gl.arange(0, T, layout=gl.SliceLayout(0, high))
    d, t = gl.arange(0, D, layout=gl.SliceLayout(0, wide)), gl.arange(0, T, layout=gl.SliceLayout(1, wide))
    gamma, beta = gl.load(gammas + head * D + d).to(gl.float32)[None, :], gl.load(betas + head * D + d).to(gl.float32)[None, :]
    gamma, beta = gamma + zeros(T, D, wide), beta + zeros(T, D, wide)
    last = gl.load(places + (T - 1))
    step = heads * D
    dw1, dw2 = zeros(M, D, high), zeros(M, D, high)
    db1, db2 = gl.zeros([M], gl.float32, gl.SliceLayout(1, high)), gl.zeros([D], gl.float32, gl.SliceLayout(0, wide))
    d_gamma, d_beta, d_place = zeros(T, D, wide), zeros(T, D, wide), gl.zeros([T], gl.float32, gl.SliceLayout(1, wide))
    k_at, q_at, g2_at = room(dtype, T, D), room(dtype, T, D), room(dtype, T, D)
    dz2_at, dz2b_at = room(dtype, T, D), room(dtype, T, D)
    x_at, g1_at, dd_at = room(dtype, M, T), room(dtype, M, T), room(dtype, M, T)
    dw1_at, dw2_at, w2_at = room(dtype, M, D), room(dtype, M, D), room(dtype, M, D)
    for back in tl.range(0, batches, disable_licm=True):
        n = batches - 1 - back
        mini = pair * batches + n
        token = (pair // heads * batches + n) * T
        at = (token * heads + head) * D
        fetch(w2_at, states2 + mini * M * D, W)
        async_copy.commit_group()
        tile, row = tiles + mini * 8 * M * T, small + mini * 3 * D * T
        k, v = gl.load(rows(keys + at, step, T, D, wide)), gl.load(rows(values + at, step, T, D, wide))
        x_at.store(read(tile, W))
        g1, bend = read(tile + M * T, W), read(tile + 2 * M * T, W)
        dg1 = read(tile + 3 * M * T, W).to(gl.float32)
        xh = gl.load(rows(row, D, T, D, wide)).to(gl.float32)
        rate, e_high = (
            gl.load(rates + token * heads + head + t * heads),
            last * gl.load(rates + token * heads + head + t_high * heads),
        )
        k_at.store(k)
        q_at.store(gl.load(rows(queries + at, step, T, D, wide)))
        dz2b = gl.load(rows(row + D * T, D, T, D, wide))
        dz2b_at.store(dz2b)
        g1_at.store(g1)
        dw1_now = dw1.to(dtype)
        dw1_at.store(dw1_now)
        dw2_at.store(dw2.to(dtype))
        go = gamma * xh + beta - v.to(gl.float32) + k.to(gl.float32)
        gx = gamma * go
        mean_gx, along = gl.load(thin + mini * 5 * T + T + t), gl.load(thin + mini * 5 * T + 2 * T + t)
        g2 = gl.load(thin + mini * 5 * T + t)[:, None] * (gx - mean_gx[:, None] - xh * along[:, None])
        g2_at.store(g2.to(dtype))

        a1 = (
            mma_v2(gl.convert_layout(dw1_now, left(high)), k_at.permute((1, 0)).load(right(high)), zeros(M, T, high))
            + db1[:, None]
        )
        dg1 -= e_high[None, :] * a1
        dd_at.store((dg1 * bend.to(gl.float32)).to(dtype))
        de = gl.convert_layout(gl.sum(g1.to(gl.float32) * a1, 0), gl.SliceLayout(1, wide))
        e = (last * rate)[:, None]
        a2 = through(x_at, dw2_at, zeros(T, D, wide), wide) + db2[None, :]
        dg2 = gl.load(rows(row + 2 * D * T, D, T, D, wide)).to(gl.float32) - e * a2
        async_copy.wait_group(0)
        dg2 = through(dd_at, w2_at, dg2, wide)
        dw2 = mma_v2(dd_at.load(left(high)), g2_at.load(right(high)), dw2)
        dz2, dgx = second_order(dg2, xh, gx, gamma, thin + mini * 5 * T, T, D, W)
        dz2_at.store(dz2.to(dtype))
        dgo = gamma * dgx
        d_gamma += dgo * xh + dgx * go
        d_beta += dgo
        gl.store(rows(d_values + at, step, T, D, wide), (-dgo).to(d_values.dtype.element_ty))
        dk = through(g1_at, dw1_at, zeros(T, D, wide), wide)
        d_keys = rows(d_keys_read + at, step, T, D, wide)
        gl.store(d_keys, gl.load(d_keys) - e * dk + dgo)
        de += gl.sum(g2 * a2, 1)
        spot = token * heads + head + t * heads
        gl.store(d_rates + spot, gl.load(d_rates_read + spot) - last * de)
        d_place -= rate * de

        dx2 = mma_v2(dw2_at.load(left(high)), g2_at.permute((1, 0)).load(right(high)), zeros(M, T, high))
        dx2 = read(tile + 7 * M * T, W).to(gl.float32) - e_high[None, :] * dx2
        dx2 = mma_v2(w2_at.load(left(high)), dz2_at.permute((1, 0)).load(right(high)), dx2)
        dz1 = dg1 * read(tile + 4 * M * T, W).to(gl.float32) + dx2 * bend.to(gl.float32)
        dz1_now = dz1.to(dtype)
        write(tile + 7 * M * T, dz1_now, W)
        dz1b = read(tile + 6 * M * T, W)
        dw1 = mma_v2(gl.convert_layout(dz1b, left(high)), q_at.load(right(high)), dw1)
        dw1 = mma_v2(gl.convert_layout(dz1_now, left(high)), k_at.load(right(high)), dw1)
        dw2 = mma_v2(x_at.load(left(high)), dz2_at.load(right(high)), dw2)
        dw2 = mma_v2(gl.convert_layout(read(tile + 5 * M * T, W), left(high)), dz2b_at.load(right(high)), dw2)
        db1 += gl.sum(dz1 + dz1b.to(gl.float32), 1)
        db2 += gl.sum(dz2 + dz2b.to(gl.float32), 0)
    sums += pair * SUMS
    columns = gl.arange(0, D, layout=gl.SliceLayout(0, high))
    gl.store(sums + columns[None, :] * M + m[:, None], dw1)
    gl.store(rows(sums + M * D, D, M, D, high), dw2)
    sums += 2 * M * D
    gl.store(sums + m, db1)
    gl.store(sums + M + d, db2)
    gl.store(sums + M + D + d, gl.sum(d_gamma, 0))
    gl.store(sums + M + 2 * D + d, gl.sum(d_beta, 0))
    gl.store(sums + M + 3 * D, gl.sum(d_place, 0))
