"""TTT-MLP forward: a serial chain that writes the weights at the start of each mini-batch, then all outputs in parallel.

q, k, v, out are (batch, tokens, heads, D); rate is (batch, tokens, heads); states are (batch, heads, mini-batches, M, D).
"""

# pyright: basic, reportGeneralTypeIssues=false, reportArgumentType=false, reportCallIssue=false, reportOperatorIssue=false
import triton
import triton.language as tl

from meshwise.workers.trainer.models.ttt.kernels.mlp_parts import across, add_dot, dot, gelu, inner_step, normal, tile


@triton.jit
def chain(
    keys, values, rates, places, w1_at, b1_at, w2_at, b2_at, gammas, betas, states1, states2, starts1, starts2,
    heads, batches, D: tl.constexpr, M: tl.constexpr, T: tl.constexpr,
):  # fmt: skip
    """For each mini-batch of one (batch, head), from W1, b1, W2, b2 at its start:

    Z1 = K W1 + b1; Z2 = gelu(Z1) W2 + b2; G2 = slope(Z2); G1 = (G2 W2') gelu'(Z1)
    W1 -= (e K)' G1; b1 -= e' G1; W2 -= (e gelu(Z1))' G2; b2 -= e' G2, with e = rate x place of the last position
    """
    pair = tl.program_id(0).to(tl.int64)
    head = pair % heads
    d, m, t = tl.arange(0, D), tl.arange(0, M), tl.arange(0, T)
    w1 = tl.load(w1_at + head * D * M + d[None, :] * M + m[:, None]).to(tl.float32)
    w2 = tl.load(tile(w2_at + head * M * D, M, D)).to(tl.float32)
    b1, b2 = tl.load(b1_at + head * M + m).to(tl.float32), tl.load(b2_at + head * D + d).to(tl.float32)
    gamma, beta = tl.load(gammas + head * D + d).to(tl.float32), tl.load(betas + head * D + d).to(tl.float32)
    last = tl.load(places + T - 1)
    step = heads * D
    # carried through the loop, 16-bit copies go to shared memory; made inside it, their transpose would fill the registers
    w1_now, w2_now = w1.to(keys.dtype.element_ty), w2.to(keys.dtype.element_ty)
    for n in tl.range(0, batches, disable_licm=True):
        token = (pair // heads * batches + n) * T
        at = (token * heads + head) * D
        k = tl.load(keys + at + t[:, None] * step + d[None, :])
        kt = tl.trans(k)
        target = tl.load(across(values + at, step, D, T)).to(tl.float32) - kt.to(tl.float32)
        e = last * tl.load(rates + token * heads + head + t * heads)
        mini = pair * batches + n
        tl.store(tile(states1 + mini * M * D, M, D), w1_now)
        tl.store(tile(states2 + mini * M * D, M, D), w2_now)
        tl.store(starts1 + mini * M + m, b1)
        tl.store(starts2 + mini * D + d, b2)
        back, x2, bend, _, g2, _, _, _, _ = inner_step(kt, target, w1_now, b1, w2_now, b2, gamma, beta, D)
        g1 = back * bend
        g2 = -g2 * e[None, :]
        # accumulate in place: a difference would need the registers of another state
        w1 = add_dot(w1, g1.to(k.dtype), (k * -e[:, None]).to(k.dtype))
        w2 = add_dot(w2, x2, tl.trans(g2.to(k.dtype)))
        b1 -= tl.sum(g1 * e[None, :], 1)
        b2 += tl.sum(g2, 1)
        w1_now, w2_now = w1.to(k.dtype), w2.to(k.dtype)


@triton.jit
def seen(p, place, rate, T: tl.constexpr):
    """Return rates eta (source token j x reading token i), and eta p; zero where j comes after i."""
    j, i = tl.arange(0, T)[:, None], tl.arange(0, T)[None, :]
    eta = tl.where(j <= i, place[None, :] * rate[:, None], 0.0)
    return eta, eta * p


@triton.jit
def output(
    queries, keys, values, rates, places, gammas, betas, states1, states2, starts1, starts2, out,
    heads, batches, D: tl.constexpr, M: tl.constexpr, T: tl.constexpr,
):  # fmt: skip
    """For one mini-batch: Z1b = Q W1 + b1 - A1 G1; Z2b = gelu(Z1b) W2 + b2 - A2 G2; out = Q + LN(Z2b).

    A1 = tril(eta (Q K' + 1)), A2 = tril(eta (gelu(Z1b) gelu(Z1)' + 1)), eta_ij = place_i rate_j.
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
    kt = tl.trans(k)
    target = tl.load(across(values + at, step, D, T)).to(tl.float32) - kt.to(tl.float32)
    qt = tl.load(across(queries + at, step, D, T))
    back, x2, bend, _, g2, _, _, _, _ = inner_step(kt, target, w1, b1, w2, b2, gamma, beta, D)
    g1 = (back * bend).to(k.dtype)
    _, a1 = seen(dot(k, qt) + 1, place, rate, T)
    x2b, _ = gelu(dot(w1, qt) + b1[:, None] - dot(g1, a1.to(k.dtype)))
    x2b = x2b.to(k.dtype)
    _, a2 = seen(dot(tl.trans(x2), x2b) + 1, place, rate, T)
    z2b = dot(tl.trans(w2), x2b) + b2[:, None] - dot(g2.to(k.dtype), a2.to(k.dtype))
    xh, _ = normal(z2b, D)
    o = qt.to(tl.float32) + gamma[:, None] * xh + beta[:, None]
    tl.store(across(out + at, step, D, T), o.to(out.dtype.element_ty))
