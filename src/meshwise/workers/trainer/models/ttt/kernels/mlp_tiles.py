"""Helpers that the TTT-MLP kernels share. The kernels are in Gluon, Triton's lower level, which leaves the place of every tile to them: the
same products in Triton took 55 barriers and 5 fences per step of the forward chain, here 6 and none (docs/reports/ttt-mlp-kernels.md).

Letters: D the head's width (64), M the inner width (256), T the tokens of a mini-batch (16), W the warps of a program. All products are
`mma`, whose results are operands of the next product without leaving their registers; `wgmma` needs a fence before each. Two layouts:
`tall`, features x tokens: each warp holds a slice of the inner width, of a state (M x D) or a mini-batch (M x T), and all of T x T.
`flat`, tokens x features of the head (T x D): each warp holds a slice of the features. It takes the products over the inner width.
"""

# pyright: basic, reportGeneralTypeIssues=false, reportArgumentType=false, reportCallIssue=false, reportOperatorIssue=false, reportAttributeAccessIssue=false, reportAssignmentType=false
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy, mma_v2

EPS = gl.constexpr(1e-6)
start_copy = async_copy.async_load if hasattr(async_copy, "async_load") else async_copy.async_copy_global_to_shared
"""From device to shared memory; Triton 3.9 renamed it."""


@gluon.constexpr_function
def tall(W):
    return gl.NVMMADistributedLayout(version=[2, 0], warps_per_cta=[W, 1], instr_shape=[16, 8])


@gluon.constexpr_function
def flat(W):
    return gl.NVMMADistributedLayout(version=[2, 0], warps_per_cta=[1, W], instr_shape=[16, 8])


@gluon.constexpr_function
def left(layout):
    return gl.DotOperandLayout(0, layout, 2)


@gluon.constexpr_function
def right(layout):
    return gl.DotOperandLayout(1, layout, 2)


@gluon.constexpr_function
def swizzled(columns):
    """The layout of a matrix in shared memory whose rows and columns are both read without conflicts."""
    return gl.SwizzledSharedLayout(8, 1, 8, [1, 0]) if columns >= 64 else gl.SwizzledSharedLayout(8, 4, 2, [1, 0])


@gluon.constexpr_function
def lines(W):
    """Whole rows of 64 numbers, 16 bytes per thread."""
    return gl.BlockedLayout([1, 8], [4, 8], [W, 1], [1, 0])


@gluon.jit
def room(dtype: gl.constexpr, ROWS: gl.constexpr, COLUMNS: gl.constexpr):
    """Reserve shared memory for a matrix."""
    return gl.allocate_shared_memory(dtype, [ROWS, COLUMNS], swizzled(COLUMNS))


@gluon.jit
def rows(at, step, ROWS: gl.constexpr, COLUMNS: gl.constexpr, layout: gl.constexpr):
    """Return pointers to rows that are `step` apart."""
    r, c = gl.arange(0, ROWS, layout=gl.SliceLayout(1, layout)), gl.arange(0, COLUMNS, layout=gl.SliceLayout(0, layout))
    return at + r[:, None] * step + c[None, :]


@gluon.jit
def fetch(into, at, W: gl.constexpr):
    """Start to copy a state (M x D, row-major) to shared memory."""
    start_copy(into, rows(at, into.shape[1], into.shape[0], into.shape[1], lines(W)))


@gluon.constexpr_function
def packed(W):
    """The 8 numbers that each thread of 8 warps holds of 128 features x 16 tokens, block after block."""
    return gl.BlockedLayout([1, 8], [32, 1], [W, 1], [1, 0])


@gluon.jit
def read(at, W: gl.constexpr):
    """Return a tall tile (256 x 16) that `write` stored: straight into the registers that need it."""
    tile = gl.load(rows(at, 8, 512, 8, packed(W))).reshape([2, 8, 8, 4, 2, 2, 2])
    return gl.convert_layout(tile.permute((0, 1, 4, 2, 5, 3, 6)).reshape([256, 16]), tall(W))


@gluon.jit
def write(at, tile, W: gl.constexpr):
    """Store a tall tile (256 x 16) in the order of the registers that hold it."""
    tile = tile.reshape([2, 8, 2, 8, 2, 4, 2]).permute((0, 1, 3, 5, 2, 4, 6)).reshape([512, 8])
    gl.store(rows(at, 8, 512, 8, packed(W)), gl.convert_layout(tile, packed(W)))


@gluon.jit
def reciprocal(x):
    return gl.inline_asm_elementwise("rcp.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=gl.float32, is_pure=True, pack=1)


@gluon.jit
def gelu_curve(x):
    """Return gelu(x) = x s, s = sigmoid(y), y = a (x + c x^3) (arXiv:1606.08415), its first and its second derivative: s + x s (1 - s)
    y', and s (1 - s) (2 y' + x y'' + x (1 - 2 s) y'^2)"""
    a: gl.constexpr = 1.5957691216057308  # 2 sqrt(2 / pi)
    c: gl.constexpr = 0.044715
    log2e: gl.constexpr = 1.4426950408889634
    xx = x * x
    s = reciprocal(1.0 + gl.exp2(x * (xx * (-a * c * log2e) - a * log2e)))
    full, slope = x * s, xx * (3 * a * c) + a
    bend = s - s * s
    return full, s + x * bend * slope, bend * (2 * slope + xx * (6 * a * c) + (x - 2 * full) * slope * slope)


@gluon.jit
def gelu(x):
    full, slope, _ = gelu_curve(x)
    return full, slope


@gluon.jit
def zeros(ROWS: gl.constexpr, COLUMNS: gl.constexpr, layout: gl.constexpr):
    return gl.zeros([ROWS, COLUMNS], gl.float32, layout)


@gluon.jit
def quarter(a_at, b_at, i: gl.constexpr, total, layout: gl.constexpr):
    part: gl.constexpr = a_at.shape[0] // 4
    a = a_at.slice(i * part, part, 0).permute((1, 0)).load(left(layout))
    return mma_v2(a, b_at.slice(i * part, part, 0).load(right(layout)), total)


@gluon.jit
def through(a_at, b_at, total, layout: gl.constexpr):
    """Add A' B to a total, for A and B in shared memory (M x .): a product over the inner width. Its four quarters are added up at the
    end: each product waits for the one whose result it adds to."""
    none = gl.zeros(total.shape, gl.float32, layout)
    first = quarter(a_at, b_at, 0, total, layout) + quarter(a_at, b_at, 1, none, layout)
    return first + (quarter(a_at, b_at, 2, none, layout) + quarter(a_at, b_at, 3, none, layout))


@gluon.jit
def add2(a0, a1, b0, b1):
    return a0 + b0, a1 + b1


@gluon.jit
def add5(a0, a1, a2, a3, a4, b0, b1, b2, b3, b4):
    return a0 + b0, a1 + b1, a2 + b2, a3 + b3, a4 + b4


@gluon.jit
def normal(z, D: gl.constexpr):
    """Return the rows of z (T x D) normalized to mean 0 and variance 1, and one over their standard deviations."""
    total, power = gl.reduce((z, z * z), 1, add2)
    mean = total / D
    scale = gl.rsqrt(power / D - mean * mean + EPS)
    return (z - mean[:, None]) * scale[:, None], scale


@gluon.jit
def slope(xh, scale, gx, D: gl.constexpr):
    """Return the gradient of |LN(z) - target|^2 / 2 at z, and the means of gx and gx xh that it contains."""
    mean, along = gl.reduce((gx, gx * xh), 1, add2)
    mean, along = mean / D, along / D
    return scale[:, None] * (gx - mean[:, None] - xh * along[:, None]), mean, along


@gluon.jit
def turned(tile, W: gl.constexpr):
    """Return the transpose of a T x T tile as the right operand of a product in every warp: it stays in its registers."""
    return gl.convert_layout(tile.permute((1, 0)), right(tall(W)))


@gluon.jit
def seen(p, places, rates, heads, T: gl.constexpr, W: gl.constexpr):
    """Return rates eta (reading token i x source token j), and eta p; zero where j comes after i."""
    i, j = gl.arange(0, T, layout=gl.SliceLayout(1, tall(W))), gl.arange(0, T, layout=gl.SliceLayout(0, tall(W)))
    eta = gl.where(j[None, :] <= i[:, None], gl.load(places + i)[:, None] * gl.load(rates + j * heads)[None, :], 0.0)
    return eta, eta * p
