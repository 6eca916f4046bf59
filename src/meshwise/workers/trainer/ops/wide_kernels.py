"""The Triton kernels of wide_attention.py. Tensors are (batch, heads, sequence, features); their tiles are fetched by descriptors."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false, reportUntypedFunctionDecorator=false, reportUnknownParameterType=false
# pyright: reportMissingParameterType=false, reportGeneralTypeIssues=false, reportArgumentType=false
# ruff: noqa: N803
import triton
import triton.language as tl


@triton.jit
def _below(raw, bend):
    """Return r = (1 - tanh) / 2 of raw scores: 1 / (1 + 2^(bend x raw)), the reciprocal as the square of a fast root. The capped score is
    cap x (1 - 2r), and its derivative 4 r (1 - r)."""
    root = tl.rsqrt(1 + tl.exp2(raw * bend))
    return root * root


@triton.jit
def _add_keys(
    summed, total, queries, k, v, batch, shared, first, start, end, bend, cap,
    BELOW: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    """Add keys `start` to `end` to the sums of a tile of queries; unless BELOW, some are behind some of the queries."""
    for at in range(start, end, KEYS):
        keys = k.load([batch, shared, at, 0]).reshape(KEYS, SIZE)
        power = tl.exp2(cap - 2 * cap * _below(tl.dot(queries, keys.T), bend))
        if not BELOW:
            seen = (first + tl.arange(0, ROWS))[:, None] >= (at + tl.arange(0, KEYS))[None, :]
            power = tl.where(seen, power, 0.0)
        total += tl.sum(power, 1)
        values = v.load([batch, shared, at, 0]).reshape(KEYS, SIZE)
        summed = tl.dot(power.to(values.dtype), values, summed)
    return summed, total


@triton.jit
def wide_forward(
    q, k, v, out, sums, seq, heads, bend, cap,
    GROUP: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    """Compute attention of one tile of queries of one head; the last tile, which has most keys, starts first."""
    first, place = (tl.num_programs(0) - 1 - tl.program_id(0)) * ROWS, tl.program_id(1)
    batch, head = place // heads, place % heads
    queries = q.load([batch, head, first, 0]).reshape(ROWS, SIZE)
    summed, total = tl.zeros((ROWS, SIZE), tl.float32), tl.zeros((ROWS,), tl.float32)
    summed, total = _add_keys(
        summed, total, queries, k, v, batch, head // GROUP, first, 0, first, bend, cap, True, ROWS, KEYS, SIZE
    )  # fmt: skip
    summed, total = _add_keys(
        summed, total, queries, k, v, batch, head // GROUP, first, first, first + ROWS, bend, cap, False, ROWS, KEYS, SIZE
    )  # fmt: skip
    out.store([batch, head, first, 0], (summed * (1 / total)[:, None]).to(out.dtype).reshape(1, 1, ROWS, SIZE))
    row = first + tl.arange(0, ROWS)
    tl.store(sums + place.to(tl.int64) * seq + row, tl.log2(total), row < seq)


@triton.jit
def wide_delta(
    by_out, out, deltas, by_batch, by_head, by_row, out_batch, out_head, out_row, seq, size,
    HEADS: tl.constexpr, PADDED: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    """Write the product of a token's output and its gradient, summed over features, for each head."""
    row, batch = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    head, at = tl.arange(0, PADDED)[:, None], tl.arange(0, SIZE)[None, :]
    real = (head < HEADS) & (at < size)
    outer = tl.load(by_out + batch * by_batch + row * by_row + head * by_head + at, real, other=0.0).to(tl.float32)
    inner = tl.load(out + batch * out_batch + row * out_row + head * out_head + at, real, other=0.0).to(tl.float32)
    each = tl.arange(0, PADDED)
    tl.store(deltas + (batch * HEADS + each) * seq + row, tl.sum(outer * inner, 1), each < HEADS)


@triton.jit
def wide_scores(
    q, by_out, k, v, sums, deltas, softmax, by_scores, start, seq, heads, bend, cap, slope,
    GROUP: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr, SIZE: tl.constexpr, STEP: tl.constexpr,
    EDGE: tl.constexpr,
):  # fmt: skip
    """Write one tile of the softmax and of the gradient of raw scores, if it has keys that a product of tiles with EDGE rows reads."""
    key, first, mine = tl.program_id(0) * KEYS, tl.program_id(1) * ROWS, tl.program_id(2)
    if key < tl.maximum(first + ROWS, (first // EDGE + 1) * EDGE):
        place = start + mine
        batch, head = place // heads, place % heads
        shared = head // GROUP
        raw, outer = tl.zeros((ROWS, KEYS), tl.float32), tl.zeros((ROWS, KEYS), tl.float32)
        for at in range(0, SIZE, STEP):
            queries = q.load([batch, head, first, at]).reshape(ROWS, STEP)
            raw = tl.dot(queries, k.load([batch, shared, key, at]).reshape(KEYS, STEP).T, raw)
        for at in range(0, SIZE, STEP):
            grads = by_out.load([batch, head, first, at]).reshape(ROWS, STEP)
            outer = tl.dot(grads, v.load([batch, shared, key, at]).reshape(KEYS, STEP).T, outer)
        row = first + tl.arange(0, ROWS)
        line = place.to(tl.int64) * seq + row
        total = tl.load(sums + line, row < seq, other=float("inf"))
        delta = tl.load(deltas + line, row < seq, other=0.0)
        below = _below(raw, bend)
        power = tl.exp2(cap - total[:, None] - 2 * cap * below)
        power = tl.where(row[:, None] >= (key + tl.arange(0, KEYS))[None, :], power, 0.0)
        grad = power * (outer - delta[:, None]) * (below - below * below) * slope
        softmax.store([mine, first, key], power.to(softmax.dtype).reshape(1, ROWS, KEYS))
        by_scores.store([mine, first, key], grad.to(by_scores.dtype).reshape(1, ROWS, KEYS))


@triton.jit
def wide_by_keys(
    scores, rows, grads, start, seq, shared, GROUP: tl.constexpr, ROWS: tl.constexpr, STEP: tl.constexpr, SIZE: tl.constexpr
):
    """Write a tile of the gradients of values or keys: scores, transposed, by rows of queries, summed over the heads that share these
    keys. The first tile, which has most queries, starts first."""
    mine, first = tl.program_id(0), tl.program_id(1) * ROWS
    batch, head = (start + mine) // shared, (start + mine) % shared
    summed = tl.zeros((ROWS, SIZE), tl.float32)
    steps = tl.cdiv(seq - first, STEP)
    for i in range(steps * GROUP):
        own, at = i // steps, first + i % steps * STEP
        left = scores.load([mine * GROUP + own, at, first]).reshape(STEP, ROWS)
        summed = tl.dot(left.T, rows.load([batch, head * GROUP + own, at, 0]).reshape(STEP, SIZE), summed)
    grads.store([batch, head, first, 0], summed.to(grads.dtype).reshape(1, 1, ROWS, SIZE))


@triton.jit
def wide_by_queries(
    scores, keys, grads, start, seq, heads, GROUP: tl.constexpr, ROWS: tl.constexpr, STEP: tl.constexpr, SIZE: tl.constexpr
):
    """Write a tile of the gradients of queries: scores by keys. The last tile, which has most keys, starts first."""
    mine, first = tl.program_id(0), (tl.num_programs(1) - 1 - tl.program_id(1)) * ROWS
    batch, head = (start + mine) // heads, (start + mine) % heads
    summed = tl.zeros((ROWS, SIZE), tl.float32)
    for at in range(0, tl.minimum(first + ROWS, seq), STEP):
        left = scores.load([mine, first, at]).reshape(ROWS, STEP)
        summed = tl.dot(left, keys.load([batch, head // GROUP, at, 0]).reshape(STEP, SIZE), summed)
    grads.store([batch, head, first, 0], summed.to(grads.dtype).reshape(1, 1, ROWS, SIZE))
