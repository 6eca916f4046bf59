"""Helpers that the TTT-MLP kernels share. Everything is transposed, features by tokens: a head's inner width (M = 4 D rows) fills the
tensor cores' long side, products stay in the registers of the warps that made them, and a mini-batch of T = 16 tokens is the short side.

Letters: D the head's width, M the inner width, T the tokens of a mini-batch; w1 is W1' (M x D), w2 is W2 (M x D).
"""

# pyright: basic, reportGeneralTypeIssues=false, reportArgumentType=false, reportCallIssue=false, reportOperatorIssue=false
import triton
import triton.language as tl

EPS = tl.constexpr(1e-6)


@triton.jit
def gelu(x):
    """Return gelu(x) and its first derivative; arXiv:1606.08415, tanh form."""
    root, cube = 0.7978845608028654, 0.044715  # sqrt(2 / pi)
    tanh = 1 - 2 / (tl.exp(2 * root * (x + cube * x * x * x)) + 1)
    half = 0.5 * (1 + tanh)
    return x * half, half + 0.5 * x * (1 - tanh * tanh) * root * (1 + 3 * cube * x * x)


@triton.jit
def gelu_curve(x):
    """Return gelu(x), its first and its second derivative: (1 - t^2) (u' + x u'' / 2 - x t u'^2), t = tanh u."""
    root, cube = 0.7978845608028654, 0.044715
    tanh = 1 - 2 / (tl.exp(2 * root * (x + cube * x * x * x)) + 1)
    half, one_minus_square, slope_u = 0.5 * (1 + tanh), 1 - tanh * tanh, root * (1 + 3 * cube * x * x)
    return (
        x * half,
        half + 0.5 * x * one_minus_square * slope_u,
        one_minus_square * (slope_u + 3 * root * cube * x * x - x * tanh * slope_u * slope_u),
    )


@triton.jit
def dot(a, b):
    return tl.dot(a, b, input_precision="ieee")


@triton.jit
def add_dot(total, a, b):
    return tl.dot(a, b, acc=total, input_precision="ieee")


@triton.jit
def normal(z, D: tl.constexpr):
    """Return the columns of z (D x T) normalized to mean 0 and variance 1, and one over their standard deviations."""
    z = z - tl.sum(z, 0)[None, :] / D
    scale = tl.rsqrt(tl.sum(z * z, 0) / D + EPS)
    return z * scale[None, :], scale


@triton.jit
def loss_gradient(xh, target, gamma, beta):
    """Return gx = gamma (gamma xh + beta - target), the loss gradient at the normalized columns xh, and its factor go = gx / gamma."""
    go = gamma[:, None] * xh + beta[:, None] - target
    return go * gamma[:, None], go


@triton.jit
def slope(xh, scale, gx, D: tl.constexpr):
    """Return the gradient of |LN(z) - target|^2 / 2 at z, and the means of gx and gx xh that it contains."""
    mean = tl.sum(gx, 0) / D
    along = tl.sum(gx * xh, 0) / D
    return scale[None, :] * (gx - mean[None, :] - xh * along[None, :]), mean, along


@triton.jit
def inner_step(kt, target, w1, b1, w2, b2, gamma, beta, D: tl.constexpr):
    """Return, for one mini-batch: W2 G2' (M x T), gelu(Z1) and its two derivatives, G2 (D x T), and the norm's intermediates."""
    x2, bend, curve = gelu_curve(dot(w1, kt) + b1[:, None])
    x2 = x2.to(kt.dtype)
    xh, scale = normal(dot(tl.trans(w2), x2) + b2[:, None], D)
    gx, _ = loss_gradient(xh, target, gamma, beta)
    g2, mean, along = slope(xh, scale, gx, D)
    return dot(w2, g2.to(kt.dtype)), x2, bend, curve, g2, xh, scale, mean, along


@triton.jit
def tile(at, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Return pointers to a whole row-major matrix."""
    return at + tl.arange(0, ROWS)[:, None] * COLUMNS + tl.arange(0, COLUMNS)[None, :]


@triton.jit
def across(at, step, D: tl.constexpr, T: tl.constexpr):
    """Return pointers to tokens that are `step` apart, as columns (D x T)."""
    return at + tl.arange(0, D)[:, None] + tl.arange(0, T)[None, :] * step
