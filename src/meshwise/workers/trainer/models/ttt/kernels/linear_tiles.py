"""Helpers that the TTT-Linear kernels share: reading, rotating and differentiating a mini-batch.

T tokens per mini-batch, F features per head. A row of `packed` holds, for one token, the queries, keys and values of all heads (`width`
each, head after head) and then one learning-rate score per head. W is kept centred over its outputs, which its updates (their rows sum to
zero) never change: LN(K W + b) subtracts that mean anyway, and without it the variance is a mean of squares and needs no second pass.
"""

# Triton's language is not Python: a kernel's arguments and loops have their own types
# pyright: basic, reportArgumentType=false, reportGeneralTypeIssues=false, reportOperatorIssue=false
import triton
import triton.language as tl

EPS = tl.constexpr(1e-6)


@triton.jit
def read_tile(packed, batch, first, seq, row, column, T: tl.constexpr, F: tl.constexpr):
    """Return (T, F): a head's columns of T tokens; zeros past the end of the sequence."""
    tokens = first + tl.arange(0, T)
    at = packed + (batch.to(tl.int64) * seq + tokens)[:, None] * row + column + tl.arange(0, F)[None, :]
    return tl.load(at, mask=(tokens < seq)[:, None], other=0.0)


@triton.jit
def write_tile(packed, tile, batch, first, seq, row, column, T: tl.constexpr, F: tl.constexpr):
    tokens = first + tl.arange(0, T)
    at = packed + (batch.to(tl.int64) * seq + tokens)[:, None] * row + column + tl.arange(0, F)[None, :]
    tl.store(at, tile.to(packed.dtype.element_ty), mask=(tokens < seq)[:, None])


@triton.jit
def read_angles(rotation, T: tl.constexpr, F: tl.constexpr):
    """Return cosines and sines, (T, F / 2) each, of the positions in a mini-batch."""
    at = tl.arange(0, T)[:, None] * (F // 2) + tl.arange(0, F // 2)[None, :]
    return tl.load(rotation + at), tl.load(rotation + T * (F // 2) + at)


@triton.jit
def read_no_angle(rotation, T: tl.constexpr, F: tl.constexpr):
    """Return cosine 1 and sine 0, (1, F / 2) each: the angle of the first position."""
    at = rotation + tl.arange(0, F // 2)[None, :]
    return tl.load(at), tl.load(at + T * (F // 2))


@triton.jit
def rotate(x, cos, sin, T: tl.constexpr, F: tl.constexpr):
    """Apply rotary positions to neighbouring pairs; with -sin, undo them."""
    even, odd = tl.split(tl.reshape(x.to(tl.float32), (T, F // 2, 2)))
    return tl.reshape(tl.join(even * cos - odd * sin, odd * cos + even * sin), (T, F))


@triton.jit
def read_rate(packed, lr_bias, batch, first, seq, row, column, head, T: tl.constexpr):
    """Return sigmoid(score + bias), (T,): zero past the end of the sequence, so that padding has no gradient."""
    tokens = first + tl.arange(0, T)
    score = tl.load(packed + (batch.to(tl.int64) * seq + tokens) * row + column + head, mask=tokens < seq, other=0.0)
    score = score.to(tl.float32) + tl.load(lr_bias + head).to(tl.float32)
    return tl.where(tokens < seq, tl.sigmoid(score), 0.0)


@triton.jit
def read_places(token_idx, T: tl.constexpr):
    """Return max(1 / i + learned_i, 0), (T,), for the positions i = 1..T."""
    places = tl.arange(0, T)
    return tl.maximum(1.0 / (places + 1) + tl.load(token_idx + places).to(tl.float32), 0.0)


@triton.jit
def read_place(token_idx, i):
    """Return max(1 / (i + 1) + learned_i, 0) for one position, counted from 0."""
    return tl.maximum(1.0 / (i + 1.0) + tl.load(token_idx + i).to(tl.float32), 0.0)


@triton.jit
def add2(a0, a1, b0, b1):
    return a0 + b0, a1 + b1


@triton.jit
def add4(a0, a1, a2, a3, b0, b1, b2, b3):
    return a0 + b0, a1 + b1, a2 + b2, a3 + b3


@triton.jit
def add5(a0, a1, a2, a3, a4, b0, b1, b2, b3, b4):
    return a0 + b0, a1 + b1, a2 + b2, a3 + b3, a4 + b4


@triton.jit
def outputs(F: tl.constexpr):
    """Return (F / 16, 16): the outputs of a state, split into tensor-core rows. Chains hold a state as (F / 16, 16 outputs, F inputs), a
    batch of products, for two reasons. Triton assigns one product of a batch to each warp, so that a state or a gradient goes from one
    product into the next without leaving its warp's registers. And a batch is multiplied by mma rather than wgmma, whose fence between
    threads and tensor cores waits for all reads in flight: half of a step."""
    return tl.arange(0, F // 16)[:, None] * 16 + tl.arange(0, 16)[None, :]


@triton.jit
def across(tile, cos, sin, T: tl.constexpr, F: tl.constexpr):
    """Reshape (T, F) to (F / 16, 16, T) in float32, to combine a mini-batch with a chain's state. The angle is zero, see read_no_angle.
    Rotating by zero only changes the layout that Triton picks: a tile straight from memory forces the sums over features into the layout
    it was read in, which costs two trips through shared memory per step (32 barriers instead of 15 in forward_chain)."""
    return tl.reshape(tl.trans(rotate(tile, cos, sin, T, F)), (F // 16, 16, T))


@triton.jit
def for_all(tile, F: tl.constexpr):
    """Broadcast a tile to each of a state's F / 16 parts."""
    return tl.broadcast_to(tile[None, :, :], (F // 16, tile.shape[0], tile.shape[1]))


@triton.jit
def slope(z, wanted, squared, F: tl.constexpr):
    """Compute G = rstd (gx - mean gx - xh mean(gx xh)), the gradient of |LN(z) - target|^2 / 2 for z (T, F), with a single reduction. z
    is centred; gx = squared xh + wanted, with squared = gamma^2 and wanted = gamma (beta - target). Returns G, xh, rstd, mean gx and
    mean(gx xh)."""
    zz = z * z
    power, s1, s2, s3, s4 = tl.reduce((zz, squared * z, squared * zz, wanted * z, wanted), 1, add5)
    rstd = tl.rsqrt(power / F + EPS)
    mean = (rstd * s1 + s4) / F
    along = rstd * (rstd * s2 + s3) / F
    normal = z * rstd[:, None]
    grad = squared * normal + wanted - mean[:, None] - normal * along[:, None]
    return grad * rstd[:, None], normal, rstd, mean, along
