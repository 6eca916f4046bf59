"""What the TTT-Linear kernels share: how a mini-batch is read, rotated and taken a gradient of.

T tokens a mini-batch, F features a head. A row of `packed` holds, for one token, the queries, keys and values of all heads (`width` each,
head after head) and then one learning-rate score per head. W is kept centred over its outputs, which its updates (their rows sum to zero)
never change: LN(K W + b) subtracts that mean anyway, and without it the variance is a mean of squares and needs no second pass.
"""

# Triton's language is not Python's: a kernel's arguments and loops have types of their own
# pyright: basic, reportArgumentType=false, reportGeneralTypeIssues=false, reportOperatorIssue=false
import triton
import triton.language as tl

EPS = tl.constexpr(1e-6)


@triton.jit
def read_tile(packed, batch, first, seq, row, column, T: tl.constexpr, F: tl.constexpr):
    """(T, F): a head's columns of T tokens; zeros after the sequence's end."""
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
    """Cosines and sines, (T, F / 2) each, of the places in a mini-batch."""
    at = tl.arange(0, T)[:, None] * (F // 2) + tl.arange(0, F // 2)[None, :]
    return tl.load(rotation + at), tl.load(rotation + T * (F // 2) + at)


@triton.jit
def rotate(x, cos, sin, T: tl.constexpr, F: tl.constexpr):
    """Rotary positions on neighbouring pairs; with -sin, the other way."""
    even, odd = tl.split(tl.reshape(x.to(tl.float32), (T, F // 2, 2)))
    return tl.reshape(tl.join(even * cos - odd * sin, odd * cos + even * sin), (T, F))


@triton.jit
def read_rate(packed, lr_bias, batch, first, seq, row, column, head, T: tl.constexpr):
    """sigmoid(score + bias), (T,): zero after the sequence's end, so that no token there teaches anything."""
    tokens = first + tl.arange(0, T)
    score = tl.load(packed + (batch.to(tl.int64) * seq + tokens) * row + column + head, mask=tokens < seq, other=0.0)
    score = score.to(tl.float32) + tl.load(lr_bias + head).to(tl.float32)
    return tl.where(tokens < seq, tl.sigmoid(score), 0.0)


@triton.jit
def read_places(token_idx, T: tl.constexpr):
    """max(1 / i + learned_i, 0), (T,), of the places i = 1..T."""
    places = tl.arange(0, T)
    return tl.maximum(1.0 / (places + 1) + tl.load(token_idx + places).to(tl.float32), 0.0)


@triton.jit
def read_place(token_idx, i):
    """The same of one place, counted from 0."""
    return tl.maximum(1.0 / (i + 1.0) + tl.load(token_idx + i).to(tl.float32), 0.0)


@triton.jit
def add3(a0, a1, a2, b0, b1, b2):
    return a0 + b0, a1 + b1, a2 + b2


@triton.jit
def add5(a0, a1, a2, a3, a4, b0, b1, b2, b3, b4):
    return a0 + b0, a1 + b1, a2 + b2, a3 + b3, a4 + b4


@triton.jit
def slope(z, wanted, squared, axis: tl.constexpr, F: tl.constexpr):
    """G = rstd (gx - mean gx - xh mean(gx xh)), the gradient of |LN(z) - target|^2 / 2, in one round of sums over `axis`.

    z is centred; gx = squared xh + wanted, with squared = gamma^2 and wanted = gamma (beta - target). Returns G, xh, rstd, mean gx and
    mean(gx xh).
    """
    zz = z * z
    power, s1, s2, s3, s4 = tl.reduce((zz, squared * z, squared * zz, wanted * z, wanted), axis, add5)
    rstd = tl.rsqrt(power / F + EPS)
    mean = (rstd * s1 + s4) / F
    along = rstd * (rstd * s2 + s3) / F
    normal = z * tl.expand_dims(rstd, axis)
    grad = squared * normal + wanted - tl.expand_dims(mean, axis) - normal * tl.expand_dims(along, axis)
    return grad * tl.expand_dims(rstd, axis), normal, rstd, mean, along
