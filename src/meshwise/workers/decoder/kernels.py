"""Kernels of a decode step: they read each weight once and are few, unlike the kernels of plain PyTorch in a CUDA graph.

Shapes: b sequences, h query heads, g key heads, d features of a head, n rows and k columns of a weight. Sums are in 32 bits.
"""

# pyright: basic, reportCallIssue=false, reportArgumentType=false
# Triton's own language has no types, and a launch takes more arguments than its kernel.
import torch
import triton
import triton.language as tl

HEADS = 16  # query heads that share a key head are padded to this, the smallest tile of a matrix unit
KEYS = 64


@triton.jit
def _norm_kernel(x, weight, out, width, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    kept = at < width
    values = tl.load(x + row * width + at, mask=kept, other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(values * values, 0) / width + eps)
    gain = tl.load(weight + at, mask=kept, other=0.0).to(tl.float32)
    tl.store(out + row * width + at, (values * scale * gain).to(out.dtype.element_ty), mask=kept)


def norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Return the root-mean-square norm of every row."""
    out = torch.empty_like(x)
    width = x.shape[-1]
    block = triton.next_power_of_2(width)
    _norm_kernel[(x.numel() // width,)](x, weight, out, width, eps, BLOCK=block, num_warps=8 if block > 2048 else 4)
    return out


@triton.jit
def _gate_kernel(both, out, width, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    kept = at < width
    gate = tl.load(both + row * 2 * width + at, mask=kept, other=0.0).to(tl.float32)
    up = tl.load(both + row * 2 * width + width + at, mask=kept, other=0.0).to(tl.float32)
    tl.store(out + row * width + at, (gate * tl.sigmoid(gate) * up).to(out.dtype.element_ty), mask=kept)


def swiglu(both: torch.Tensor) -> torch.Tensor:
    """Return silu(gate) * up, for rows that hold the gate followed by up."""
    rows, width = both.shape[0], both.shape[1] // 2
    out = both.new_empty(rows, width)
    _gate_kernel[(rows, triton.cdiv(width, 1024))](both, out, width, BLOCK=1024)
    return out


@triton.jit
def _rotate_pair(first, second, angle_row, lane, HALF: tl.constexpr):
    cosine = tl.load(angle_row + lane)
    sine = tl.load(angle_row + HALF + lane)
    return first * cosine - second * sine, second * cosine + first * sine


@triton.jit
def _rotate_kernel(
    qkv, angles, positions, keys, values, queries, q_gain, k_gain, eps, length, per, h, g, HALF: tl.constexpr,
    NORMED: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    lane = tl.arange(0, HALF)
    position = tl.load(positions + row).to(tl.int64)
    source = qkv + row * (h + 2 * g) * 2 * HALF + head * 2 * HALF
    first = tl.load(source + lane).to(tl.float32)
    second = tl.load(source + HALF + lane).to(tl.float32)
    sequence = row // per
    if head < h + g:
        if NORMED:
            gain = q_gain if head < h else k_gain
            scale = tl.rsqrt((tl.sum(first * first, 0) + tl.sum(second * second, 0)) / (2 * HALF) + eps)
            first = first * scale * tl.load(gain + lane).to(tl.float32)
            second = second * scale * tl.load(gain + HALF + lane).to(tl.float32)
        first, second = _rotate_pair(first, second, angles + position * 2 * HALF, lane, HALF)
    if head < h:
        target = queries + (row * h + head) * 2 * HALF
    elif head < h + g:
        target = keys + ((sequence * g + head - h) * length + position) * 2 * HALF
    else:
        target = values + ((sequence * g + head - h - g) * length + position) * 2 * HALF
    tl.store(target + lane, first.to(queries.dtype.element_ty))
    tl.store(target + HALF + lane, second.to(queries.dtype.element_ty))


def rotate(
    qkv: torch.Tensor, angles: torch.Tensor, positions: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, heads: int,
    gains: tuple[torch.Tensor, torch.Tensor] | None, eps: float,
) -> torch.Tensor:  # fmt: skip
    """Return rotated queries, and write keys and values to their positions in the KV cache of b x g x length x d. A row is a token; tokens
    of one sequence are consecutive. `angles` holds cosines and sines of half a head by position."""
    b, g, length, d = keys.shape
    rows = qkv.shape[0]
    out = qkv.new_empty(rows, heads, d)
    q_gain, k_gain = gains or (qkv, qkv)
    _rotate_kernel[(rows, heads + 2 * g)](
        qkv, angles, positions, keys, values, out, q_gain, k_gain, eps, length, rows // b, heads, g, HALF=d // 2,
        NORMED=gains is not None, num_warps=1,
    )  # fmt: skip
    return out


@triton.jit
def _attend_kernel(
    queries, keys, values, positions, part, part_sum, length, g, scale, SHARED: tl.constexpr, D: tl.constexpr,
    SPLITS: tl.constexpr, HEADS: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    sequence = tl.program_id(0).to(tl.int64)
    key_head = tl.program_id(1)
    split = tl.program_id(2)
    lane = tl.arange(0, D)
    head = tl.arange(0, HEADS)
    known = tl.load(positions + sequence) + 1
    share = tl.cdiv(tl.cdiv(known, SPLITS), KEYS) * KEYS
    begin = split * share
    end = tl.minimum(begin + share, known)
    h = g * SHARED
    query_head = key_head * SHARED + head
    query = tl.load(queries + (sequence * h + query_head[:, None]) * D + lane[None, :], mask=(head < SHARED)[:, None], other=0.0)
    base = (sequence * g + key_head) * length * D
    highest = tl.full((HEADS,), float("-inf"), tl.float32)
    total = tl.zeros((HEADS,), tl.float32)
    mixed = tl.zeros((HEADS, D), tl.float32)
    for start in range(begin, end, KEYS):
        at = start + tl.arange(0, KEYS)
        kept = at < end
        place = base + at[:, None] * D + lane[None, :]
        key = tl.load(keys + place, mask=kept[:, None], other=0.0)
        score = tl.dot(query, tl.trans(key)) * scale
        score = tl.where(kept[None, :], score, float("-inf"))
        higher = tl.maximum(highest, tl.max(score, 1))
        shrink = tl.exp2(highest - higher)
        weight = tl.exp2(score - higher[:, None])
        total = total * shrink + tl.sum(weight, 1)
        value = tl.load(values + place, mask=kept[:, None], other=0.0)
        mixed = mixed * shrink[:, None] + tl.dot(weight.to(value.dtype), value)
        highest = higher
    nonempty = total > 0
    mixed = mixed / tl.where(nonempty, total, 1.0)[:, None]
    row = (sequence * h + query_head) * SPLITS + split
    tl.store(part + row[:, None] * D + lane[None, :], mixed.to(part.dtype.element_ty), mask=(head < SHARED)[:, None])
    tl.store(
        part_sum + row, tl.where(nonempty, highest + tl.log2(tl.where(nonempty, total, 1.0)), float("-inf")), mask=head < SHARED
    )


@triton.jit
def _join_kernel(part, part_sum, out, D: tl.constexpr, SPLITS: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    lane = tl.arange(0, D)
    split = tl.arange(0, SPLITS)
    sums = tl.load(part_sum + row * SPLITS + split)
    weight = tl.exp2(sums - tl.max(sums, 0))
    weight = weight / tl.sum(weight, 0)
    values = tl.load(part + (row * SPLITS + split[:, None]) * D + lane[None, :])
    tl.store(out + row * D + lane, tl.sum(values * weight[:, None], 0).to(out.dtype.element_ty))


def choose_splits(sequences: int, key_heads: int, processors: int) -> int:
    """Return the number of parts into which a sequence's keys are split, for about eight programs per multiprocessor."""
    ideal = max(1, 8 * processors // (sequences * key_heads))
    return min(64, 1 << (ideal.bit_length() - 1))


def attend(queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, positions: torch.Tensor, splits: int) -> torch.Tensor:
    """Return the attention of one token per sequence over all keys up to its position (Dao 2023, flash decoding)."""
    b, g, length, d = keys.shape
    heads = queries.shape[1]
    out = torch.empty_like(queries)
    part = out if splits == 1 else queries.new_empty(b * heads * splits, d, dtype=torch.float32)
    sums = torch.empty(b * heads * splits, dtype=torch.float32, device=queries.device)
    scale = d**-0.5 * 1.4426950408889634  # powers of two are one instruction
    _attend_kernel[(b, g, splits)](
        queries, keys, values, positions, part, sums, length, g, scale, SHARED=heads // g, D=d, SPLITS=splits,
        HEADS=max(HEADS, triton.next_power_of_2(heads // g)), KEYS=KEYS, num_warps=4, num_stages=3,
    )  # fmt: skip
    if splits > 1:
        _join_kernel[(b * heads,)](part, sums, out, D=d, SPLITS=splits, num_warps=4)
    return out


@triton.jit
def _vector_kernel(
    weight, x, gain, bias, out, n, k, eps, NORMED: tl.constexpr, BIASED: tl.constexpr, ADDED: tl.constexpr, GATED: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, COLUMNS)
    kept = row < n
    sums = tl.zeros((ROWS, COLUMNS), tl.float32)
    ups = tl.zeros((ROWS, COLUMNS), tl.float32)
    square = tl.zeros((COLUMNS,), tl.float32)
    place = row.to(tl.int64)[:, None] * k + column[None, :]
    for start in range(0, k, COLUMNS):
        inside = start + column < k
        piece = tl.load(x + start + column, mask=inside, other=0.0).to(tl.float32)
        whole = kept[:, None] & inside[None, :]
        if NORMED:
            square += piece * piece
            piece = piece * tl.load(gain + start + column, mask=inside, other=0.0).to(tl.float32)
        sums += tl.load(weight + place + start, mask=whole, other=0.0).to(tl.float32) * piece[None, :]
        if GATED:
            ups += tl.load(weight + n.to(tl.int64) * k + place + start, mask=whole, other=0.0).to(tl.float32) * piece[None, :]
    scale = tl.rsqrt(tl.sum(square, 0) / k + eps) if NORMED else 1.0
    result = tl.sum(sums, 1) * scale
    if GATED:
        result = result * tl.sigmoid(result) * (tl.sum(ups, 1) * scale)
    if BIASED:
        result += tl.load(bias + row, mask=kept, other=0.0).to(tl.float32)
    if ADDED:
        result += tl.load(out + row, mask=kept, other=0.0).to(tl.float32)
    tl.store(out + row, result.to(out.dtype.element_ty), mask=kept)


TILES = ((2, 2048, 4), (4, 1024, 4), (8, 512, 4), (4, 2048, 8), (8, 1024, 8), (1, 4096, 4), (2, 1024, 2))
"""Rows, columns and warps of a program; fused.fastest_tiles chooses among them."""


def matvec(
    weight: torch.Tensor, x: torch.Tensor, *, out: torch.Tensor | None = None, gain: torch.Tensor | None = None,
    bias: torch.Tensor | None = None, eps: float = 0.0, gated: bool = False, tile: tuple[int, int, int] = TILES[1],
) -> torch.Tensor:  # fmt: skip
    """Return weight @ x for one token. `gain`: normalize x first. `gated`: silu of the first half of the rows times the second half.
    `out`: add the product to this tensor in place."""
    n = weight.shape[0] // (2 if gated else 1)
    added = out is not None
    target = out if out is not None else x.new_empty(1, n)
    rows, columns, warps = tile
    _vector_kernel[(triton.cdiv(n, rows),)](
        weight, x, gain if gain is not None else x, bias if bias is not None else x, target, n, weight.shape[1], eps,
        NORMED=gain is not None, BIASED=bias is not None, ADDED=added, GATED=gated, ROWS=rows, COLUMNS=columns, num_warps=warps,
    )  # fmt: skip
    return target
