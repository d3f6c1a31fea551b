"""Means of windows of (N, C, H, W), and their gradients as gathers, so that every sum has one order. max_pooling.py has the largest.

A window begins at p · stride - padding and has a fixed kernel, or, adaptive, it is part p of the n elements divided into `count`:
from floor(p · n / count) to ceil((p + 1) · n / count). Pairs are (height, width); what lies outside the input takes no part.
A program works on a tile of planes (n · C + c) × places (h · W + w, or p · Q + q). `TAPS` is the size of the largest window.
A place may be a few windows (or, backward, cells) below and beside each other, which share rows and columns.
"""
import triton
import triton.language as tl

from .scalar import div


@triton.jit
def divided(i, n):
    """i // n and i % n of what is not negative: a sign costs five instructions more."""
    if i.dtype == tl.int64:
        return i // n, i % n
    else:
        quotient = (i.to(tl.uint32) // tl.cast(n, tl.uint32)).to(tl.int32)
        return quotient, i - quotient * n


@triton.jit
def tile_of(planes, C, H, W, WIDE: tl.constexpr, EVEN: tl.constexpr, FLAT: tl.constexpr, BLOCK_P: tl.constexpr,
            BLOCK_C: tl.constexpr):
    """Which elements of this program's tile there are, and which places; image and channel of the planes, row and column of the places.

    Places are the tile's first dim: where neither is contiguous for Triton to see, it lays neighbouring threads along that one. Places and
    planes past the last (if EVEN there are none) stand for the last, so that loads need no mask for them. C is None where images are as far
    apart as C planes. FLAT: the places of all planes are in one line, so that tiles are full; BLOCK_C is 1.
    """
    if FLAT:
        start = (tl.program_id(0).to(tl.int64) if WIDE else tl.program_id(0)) * BLOCK_P
        before, first = divided(start, H * W)
        more, place = divided(first.to(tl.int32) + tl.arange(0, BLOCK_P), H * W)
        plane = before.to(tl.int32) + more
        there = tl.full((BLOCK_P, 1), 1, tl.int1) if EVEN else (plane < planes)[:, None]
        some = there
        plane = tl.minimum(plane, planes - 1)[:, None]
    else:
        tiles = tl.cdiv(H * W, BLOCK_P)
        plane = tl.program_id(0) // tiles * BLOCK_C + tl.arange(0, BLOCK_C)
        place = tl.program_id(0) % tiles * BLOCK_P + tl.arange(0, BLOCK_P)
        there = (place < H * W)[:, None]
        place = tl.minimum(place, H * W - 1)
        if EVEN:
            some = tl.broadcast_to(there, (BLOCK_P, BLOCK_C))
        else:
            some = there & (plane < planes)[None, :]
            plane = tl.minimum(plane, planes - 1)
        plane = plane[None, :]
    row, column = divided(place, W)
    if C is None:
        return some, there, plane * 0, plane, row, column
    else:
        image, channel = divided(plane, C)
        return some, there, image, channel, row, column


@triton.jit
def plane_pointers(ptr, n, c, strides, MULTIPLE: tl.constexpr = 1):
    """Where planes begin; MULTIPLE divides all of their offsets."""
    n, c = n.to(tl.int64) * strides[0], c.to(tl.int64) * strides[1]
    if MULTIPLE > 1:                                                     # each by itself: what adds zero disappears, and with it the word
        n, c = tl.multiple_of(n, (MULTIPLE, MULTIPLE)), tl.multiple_of(c, (MULTIPLE, MULTIPLE))
    return ptr + n + c


@triton.jit
def place_offsets(h, w, strides, WIDE: tl.constexpr, MULTIPLE: tl.constexpr = 1):
    """Where places lie in a plane; MULTIPLE divides all of it."""
    if WIDE:
        h, w = h.to(tl.int64), w.to(tl.int64)
    places = h * strides[2] + w * strides[3]
    if MULTIPLE > 1:
        places = tl.multiple_of(places, MULTIPLE)
    return places[:, None]


@triton.jit
def pointers(ptr, n, c, h, w, strides, WIDE: tl.constexpr, MULTIPLE: tl.constexpr = 1):
    """Where (n, c, h, w) lie: a row of planes and a column of places."""
    return plane_pointers(ptr, n, c, strides, MULTIPLE) + place_offsets(h, w, strides, WIDE, MULTIPLE)


@triton.jit
def step_of(r, stride, WIDE: tl.constexpr):
    if WIDE:
        return tl.full((), r, tl.int64) * stride
    else:
        return r * stride


@triton.jit
def within(h, n):
    return (h >= 0) & (h < n)


@triton.jit
def window(p, n, count, stride, padding, ADAPTIVE: tl.constexpr):
    """Where window p begins, and the end of what it may read. ADAPTIVE is 2 where count · n passes 2³¹."""
    if ADAPTIVE:
        i = p.to(tl.int64) if ADAPTIVE == 2 else p
        return (i * n // count).to(p.dtype), (((i + 1) * n + count - 1) // count).to(p.dtype)
    else:
        return p * stride - padding, p * 0 + n


@triton.jit
def windows(h, n, count, reach, stride, padding, ADAPTIVE: tl.constexpr):
    """The first and last window that can hold element h; `reach` is from the first to the last element of a window."""
    if ADAPTIVE:
        i = h.to(tl.int64) if ADAPTIVE == 2 else h
        return (i * count // n).to(h.dtype), (((i + 1) * count + n - 1) // n - 1).to(h.dtype)
    else:
        return (tl.maximum(h + padding - reach, 0) + stride - 1) // stride, tl.minimum((h + padding) // stride, count - 1)


@triton.jit
def size_of(p, n, count, kernel, stride, padding, ADAPTIVE: tl.constexpr, INCLUDE: tl.constexpr):
    """How many elements window p counts, with INCLUDE those in the padding too."""
    start, end = window(p, n, count, stride, padding, ADAPTIVE)
    if not ADAPTIVE:
        end = tl.minimum(start + kernel, n + padding)
        if not INCLUDE:
            start, end = tl.maximum(start, 0), tl.minimum(end, n)
    return end - start


@triton.jit
def widened(x):
    """Half types as float32."""
    return x.to(tl.float32) if x.dtype.is_floating() and x.dtype.primitive_bitwidth < 32 else x


# ------------------------------------------------------------------ neighbours along a row, as one word where rows allow it
@triton.jit
def pieces(x, LOG: tl.constexpr):
    """The 2^LOG elements of the last of three dims of a block, one by one."""
    parts = (x,)
    for _ in tl.static_range(LOG):
        low, high = (), ()
        for k in tl.static_range(len(parts)):
            a, b = tl.split(tl.reshape(parts[k], (x.shape[0], x.shape[1], parts[k].shape[2] // 2, 2)))
            low, high = low + (a,), high + (b,)
        parts = low + high
    out = ()
    for k in tl.static_range(len(parts)):
        out = out + (tl.reshape(parts[k], (x.shape[0], x.shape[1])),)
    return out


@triton.jit
def joined(x, LOG: tl.constexpr):
    """2^LOG blocks (places, planes) as one, with a third dim."""
    parts = ()
    for k in tl.static_range(len(x)):
        parts = parts + (x[k][:, :, None],)
    for _ in tl.static_range(LOG):
        pairs = ()
        for k in tl.static_range(len(parts) // 2):
            both = tl.join(parts[k], parts[k + len(parts) // 2])
            pairs = pairs + (tl.reshape(both, (both.shape[0], both.shape[1], 2 * both.shape[2])),)
        parts = pairs
    return parts[0]


@triton.jit
def inside_of(h, end, BEFORE: tl.constexpr, BEHIND: tl.constexpr):
    """Whether 0 <= h < end; only what can fail is looked at."""
    inside = tl.full(h.shape, 1, tl.int1)
    if BEFORE:
        inside &= h >= 0
    if BEHIND:
        inside &= h < end
    return inside


@triton.jit
def elements_of_row(row_ptrs, row, w, end, stride_w, OTHER: tl.constexpr, COUNT: tl.constexpr, STEP: tl.constexpr, BEFORE: tl.constexpr,
                    LOG: tl.constexpr, INSIDE: tl.constexpr, WIDE: tl.constexpr):
    """Every STEP-th of COUNT elements of a row, the first of them BEFORE columns in front of column w, where `row_ptrs` point; between
    them, some other one. The 2^LOG from column w on are one word. What is not in the row is OTHER; the first INSIDE cannot be behind it."""
    if LOG:
        inside = row & inside_of(w, end, False, BEFORE + (1 << LOG) > INSIDE)[:, None]
        at = row_ptrs[:, :, None] + tl.arange(0, 1 << LOG)[None, None, :]
        word = pieces(tl.load(at, mask=inside[:, :, None], other=OTHER), LOG)
    elements = ()
    for k in tl.static_range(COUNT):
        if k % STEP:
            elements = elements + (elements[0],)
        elif LOG > 0 and k >= BEFORE and k < BEFORE + (1 << LOG):
            elements = elements + (word[k - BEFORE],)
        else:
            inside = row & inside_of(w + (k - BEFORE), end, k < BEFORE, k >= INSIDE)[:, None]
            elements = elements + (tl.load(row_ptrs + step_of(k - BEFORE, stride_w, WIDE), mask=inside, other=OTHER),)
    return elements


@triton.jit
def store_span(ptr, x, row, n, c, p, q, strides, here, SPAN: tl.constexpr, LOG: tl.constexpr, WIDE: tl.constexpr):
    """Store SPAN neighbours, which are those of a `row` of the blocks x, from (p, q) on; more than one as one word."""
    if LOG:
        some = ()
        for g in tl.static_range(SPAN):
            some = some + (x[row * SPAN + g],)
        at = pointers(ptr, n, c, p, q, strides, WIDE, SPAN)[:, :, None] + tl.arange(0, SPAN)[None, None, :]
        tl.store(at, joined(some, LOG).to(ptr.dtype.element_ty), mask=here[:, :, None])      # rounded here, two at a time
    else:
        tl.store(pointers(ptr, n, c, p, q, strides, WIDE), x[row].to(ptr.dtype.element_ty), mask=here)


# ------------------------------------------------------------------ means
@triton.jit
def share_of(p, n, count, kernel, stride, padding, ADAPTIVE: tl.constexpr, INCLUDE: tl.constexpr, ACC: tl.constexpr):
    """One over how many elements window p counts along a dim, rounded as IEEE has it: two of these are multiplied."""
    elements = tl.maximum(size_of(p, n, count, kernel, stride, padding, ADAPTIVE, INCLUDE), 1).to(ACC)
    return div(tl.full(elements.shape, 1, ACC), elements)


@triton.jit
def sum_of(x, FIRST: tl.constexpr, STEP: tl.constexpr, COUNT: tl.constexpr):
    """The sum of COUNT of x, from FIRST on, STEP apart."""
    total = widened(x[FIRST])
    for k in tl.static_range(1, COUNT):
        total += widened(x[FIRST + k * STEP])
    return total


@triton.jit
def avg_pool_kernel(out_ptr, x_ptr, stride_o, stride_x, planes, C, H, W, P, Q, share, STRIDE: tl.constexpr, PADDING: tl.constexpr,
                    ADAPTIVE: tl.constexpr, INCLUDE: tl.constexpr, TAPS: tl.constexpr, ROWS: tl.constexpr, SPAN: tl.constexpr,
                    LOG: tl.constexpr, INSIDE: tl.constexpr, WIDE: tl.constexpr, EVEN: tl.constexpr, FLAT: tl.constexpr,
                    BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr):
    """The mean of each window: its sum times `share`, or, where that is None, over how many elements it counts. A place is ROWS windows
    below each other and SPAN beside each other, as in max_pool_kernel; ROWS = 0: one of so many elements that they are a loop."""
    HEIGHT: tl.constexpr = TAPS[0]
    WIDTH: tl.constexpr = TAPS[1]
    HIGH: tl.constexpr = max(ROWS, 1)
    SPAN_LOG: tl.constexpr = (SPAN > 1) + (SPAN > 2) + (SPAN > 4)
    some, there, n, c, p, q = tile_of(planes, C, tl.cdiv(P, HIGH), Q // SPAN, WIDE, EVEN, FLAT, BLOCK_P, BLOCK_C)
    p, q = p * HIGH, q * SPAN
    h0, h_end = window(p, H, P, STRIDE[0], PADDING[0], ADAPTIVE)
    w0, w_end = window(q, W, Q, STRIDE[1], PADDING[1], ADAPTIVE)
    means = ()
    if ROWS:
        rows, x_planes, w = (), plane_pointers(x_ptr, n, c, stride_x, 1 << LOG), w0 + PADDING[1]
        for r in tl.static_range((ROWS - 1) * STRIDE[0] + HEIGHT):
            row = inside_of(h0 + r, h_end, r < PADDING[0], r >= INSIDE[0])[:, None]
            x = elements_of_row(x_planes + place_offsets(h0 + r, w, stride_x, WIDE, 1 << LOG), row, w, w_end, stride_x[3], 0,
                                (SPAN - 1) * STRIDE[1] + WIDTH, 1, PADDING[1], LOG, INSIDE[1], WIDE)
            for g in tl.static_range(SPAN):
                rows = rows + (sum_of(x, g * STRIDE[1], 1, WIDTH),)
        for k in tl.static_range(ROWS * SPAN):
            means = means + (sum_of(rows, k // SPAN * STRIDE[0] * SPAN + k % SPAN, SPAN, HEIGHT),)
    else:
        acc = widened(tl.zeros((BLOCK_P, BLOCK_C), x_ptr.dtype.element_ty))
        x_ptrs = pointers(x_ptr, n, c, h0, w0, stride_x, WIDE)
        for tap in tl.range(HEIGHT * WIDTH, loop_unroll_factor=8):         # so many loads at a time: parts of 8 × 8 in 6 µs, not 27
            r, s = tap // WIDTH, tap % WIDTH
            inside = there & (within(h0 + r, h_end) & within(w0 + s, w_end))[:, None]
            acc += widened(tl.load(x_ptrs + (step_of(r, stride_x[2], WIDE) + step_of(s, stride_x[3], WIDE)), mask=inside, other=0))
        means = (acc,)
    for k in tl.static_range(HIGH):                                      # a store between the loads would hold them up
        shares = ()
        for g in tl.static_range(SPAN):
            if share is None:
                down = share_of(p + k, H, P, HEIGHT, STRIDE[0], PADDING[0], ADAPTIVE, INCLUDE, means[0].dtype)
                right = share_of(q + g, W, Q, WIDTH, STRIDE[1], PADDING[1], ADAPTIVE, INCLUDE, means[0].dtype)
                shares = shares + (means[k * SPAN + g] * (down * right)[:, None],)
            else:
                shares = shares + (means[k * SPAN + g] * share.to(means[0].dtype),)
        store_span(out_ptr, shares, 0, n, c, p + k, q, stride_o, some & (p + k < P)[:, None], SPAN, SPAN_LOG, WIDE)


@triton.jit
def holding(x, FIRST: tl.constexpr, STEP: tl.constexpr, DOWN: tl.constexpr, STRIDE: tl.constexpr, TAPS: tl.constexpr,
            COUNT: tl.constexpr):
    """The sum of those of COUNT windows along a dim, in x from FIRST on, STEP apart, that hold the element DOWN from where the first of
    them begins."""
    found = ()
    for k in tl.static_range(COUNT):
        if DOWN - k * STRIDE >= 0 and DOWN - k * STRIDE < TAPS:
            found = found + (x[FIRST + k * STEP],)
    if len(found) > 0:
        return sum_of(found, 0, 1, len(found))
    else:
        return widened(tl.zeros(x[FIRST].shape, x[FIRST].dtype))


@triton.jit
def avg_pool_cells_kernel(out_ptr, g_ptr, stride_o, stride_g, planes, C, H, W, P, Q, cells_h, cells_w, share, STRIDE: tl.constexpr,
                          PADDING: tl.constexpr, INCLUDE: tl.constexpr, TAPS: tl.constexpr, FIRST: tl.constexpr, COUNT: tl.constexpr,
                          SPAN: tl.constexpr, LOG: tl.constexpr, WORDS: tl.constexpr, INSIDE: tl.constexpr, WHOLE: tl.constexpr,
                          ROWS: tl.constexpr, WIDE: tl.constexpr, EVEN: tl.constexpr, FLAT: tl.constexpr, BLOCK_P: tl.constexpr,
                          BLOCK_C: tl.constexpr):
    """Each element of the input collects its share of the gradients of the windows that hold it. Cells and places are those of
    max_pool_cells_kernel; what an element gets is a sum along the row of windows, then down the column."""
    CELL_H: tl.constexpr = STRIDE[0]
    CELL_W: tl.constexpr = STRIDE[1]
    COLUMNS: tl.constexpr = COUNT[1] + SPAN - 1
    LENGTH: tl.constexpr = SPAN * CELL_W
    ACC: tl.constexpr = tl.float64 if g_ptr.dtype.element_ty == tl.float64 else tl.float32
    some, _, n, c, i, j = tile_of(planes, C, tl.cdiv(cells_h, ROWS), tl.cdiv(cells_w, SPAN), WIDE, EVEN, FLAT, BLOCK_P, BLOCK_C)
    i, j = i * ROWS, j * SPAN
    g_planes, rows, shares = plane_pointers(g_ptr, n, c, stride_g, 1 << LOG), (), ()
    if share is None:
        for k in tl.static_range(COLUMNS):
            q = j + (FIRST[1] + k)
            shares = shares + (share_of(q, W, Q, TAPS[1], STRIDE[1], PADDING[1], False, INCLUDE, ACC)[:, None],)
    for k in tl.static_range(COUNT[0] + ROWS - 1):
        p = i + (FIRST[0] + k)
        row = inside_of(p, P, k < -FIRST[0], k >= INSIDE[0])[:, None]
        g = elements_of_row(g_planes + place_offsets(p, j, stride_g, WIDE, 1 << LOG), row, j, Q, stride_g[3], 0, COLUMNS, 1, -FIRST[1],
                            LOG, INSIDE[1], WIDE)
        if share is None:
            down = share_of(p, H, P, TAPS[0], STRIDE[0], PADDING[0], False, INCLUDE, ACC)[:, None]
            parts = ()
            for b in tl.static_range(COLUMNS):
                parts = parts + (widened(g[b]) * (down * shares[b]),)
            g = parts
        for b in tl.static_range(LENGTH):
            rows = rows + (holding(g, b // CELL_W, 1, PADDING[1] - FIRST[1] * STRIDE[1] + b % CELL_W, STRIDE[1], TAPS[1], COUNT[1]),)
    for a in tl.static_range(ROWS * CELL_H):
        h, x = i * CELL_H + a, ()
        for b in tl.static_range(LENGTH):
            total = holding(rows, a // CELL_H * LENGTH + b, LENGTH, PADDING[0] - FIRST[0] * STRIDE[0] + a % CELL_H, STRIDE[0], TAPS[0],
                            COUNT[0])
            x = x + (total if share is None else total * share.to(total.dtype),)
        here = some if WHOLE else some & (h < H)[:, None]
        if WORDS:
            store_span(out_ptr, x, 0, n, c, h, j * CELL_W, stride_o, here, LENGTH, WORDS, WIDE)
        else:
            for b in tl.static_range(LENGTH):
                w = j * CELL_W + b
                tl.store(pointers(out_ptr, n, c, h, w, stride_o, WIDE), x[b].to(out_ptr.dtype.element_ty), mask=here & (w < W)[:, None])


@triton.jit
def avg_pool_input_kernel(out_ptr, g_ptr, stride_o, stride_g, planes, C, H, W, P, Q, reach, share, STRIDE: tl.constexpr,
                          PADDING: tl.constexpr, ADAPTIVE: tl.constexpr, INCLUDE: tl.constexpr, WINDOWS_H: tl.constexpr,
                          WINDOWS_W: tl.constexpr, WIDE: tl.constexpr, EVEN: tl.constexpr, FLAT: tl.constexpr, BLOCK_P: tl.constexpr,
                          BLOCK_C: tl.constexpr):
    """The same for windows of any size and place, which each element finds for itself."""
    some, there, n, c, h, w = tile_of(planes, C, H, W, WIDE, EVEN, FLAT, BLOCK_P, BLOCK_C)
    p0, p1 = windows(h, H, P, reach[0], STRIDE[0], PADDING[0], ADAPTIVE)
    q0, q1 = windows(w, W, Q, reach[1], STRIDE[1], PADDING[1], ADAPTIVE)
    g_ptrs = plane_pointers(g_ptr, n, c, stride_g)
    acc = widened(tl.zeros((BLOCK_P, BLOCK_C), g_ptr.dtype.element_ty))
    for step in tl.range(WINDOWS_H * WINDOWS_W, loop_unroll_factor=WINDOWS_H * WINDOWS_W if WINDOWS_H * WINDOWS_W <= 9 else 1):
        p, q = p0 + step // WINDOWS_W, q0 + step % WINDOWS_W
        hit = (p <= p1) & (q <= q1)
        g = widened(tl.load(g_ptrs + place_offsets(p, q, stride_g, WIDE), mask=hit[:, None], other=0))
        if share is None:
            part = (share_of(p, H, P, reach[0] + 1, STRIDE[0], PADDING[0], ADAPTIVE, INCLUDE, acc.dtype)
                    * share_of(q, W, Q, reach[1] + 1, STRIDE[1], PADDING[1], ADAPTIVE, INCLUDE, acc.dtype))
            g = g * tl.where(hit, part, 0)[:, None]
        acc += g
    if share is not None:
        acc *= share.to(acc.dtype)
    tl.store(pointers(out_ptr, n, c, h, w, stride_o, WIDE), acc.to(out_ptr.dtype.element_ty), mask=some)
