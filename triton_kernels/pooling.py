"""Pooling of (N, C, H, W): largest and mean of windows, and their gradients as gathers, so that every sum has one order.

A window begins at p · stride - padding and has a fixed kernel, or, adaptive, it is part p of the n elements divided into `count`:
from floor(p · n / count) to ceil((p + 1) · n / count). Pairs are (height, width); what lies outside the input takes no part.
A program works on a tile of planes (n · C + c) × places (h · W + w, or p · Q + q). `TAPS` is the size of the largest window.
"""
import triton
import triton.language as tl

from triton_kernels.rows import again


@triton.jit
def tile_of(planes, C, H, W, EVEN: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr):
    """Which elements of this program's tile there are, and which places; image and channel of the planes, row and column of the places.

    Places are the tile's first dim: where neither is contiguous for Triton to see, it lays neighbouring threads along that one. Places and
    planes past the last (if EVEN there are no such planes) stand for the last, so that loads need no mask for them. C is None where images
    are as far apart as C planes.
    """
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
    if C is None:
        return some, there, plane * 0, plane, place // W, place % W
    else:
        return some, there, plane // C, plane % C, place // W, place % W


@triton.jit
def plane_pointers(ptr, n, c, strides):
    return (ptr + n.to(tl.int64) * strides[0] + c.to(tl.int64) * strides[1])[None, :]


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
    return plane_pointers(ptr, n, c, strides) + place_offsets(h, w, strides, WIDE, MULTIPLE)


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
    """Where window p begins, and the end of what it may read."""
    if ADAPTIVE:
        return p * n // count, ((p + 1) * n + count - 1) // count
    else:
        return p * stride - padding, p * 0 + n


@triton.jit
def windows(h, n, count, reach, stride, padding, ADAPTIVE: tl.constexpr):
    """The first and last window that can hold element h; `reach` is from the first to the last element of a window."""
    if ADAPTIVE:
        return h * count // n, ((h + 1) * count + n - 1) // n - 1
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


@triton.jit
def first_tap(start, dilation):
    """The first place of a window that begins at `start` which is not before the input."""
    return (tl.maximum(-start, 0) + dilation - 1) // dilation


@triton.jit
def larger(best, found, x, tap):
    """The larger of the best so far and x, and its place: the first of equals, the last NaN."""
    better = (x > best) | (x != x)
    return tl.where(better, x, best), tl.where(better, tap, found)


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
def largest_of_row(row_ptrs, row, w0, w_end, stride_w, first, FIRST: tl.constexpr, PADDING: tl.constexpr, DILATION: tl.constexpr,
                   WIDTH: tl.constexpr, PAIR: tl.constexpr, BEHIND: tl.constexpr, LOWEST: tl.constexpr, WIDE: tl.constexpr):
    """The largest of WIDTH elements of a row, and its tap, which begin at FIRST; `first` is that of the first that is not padding.
    From element PAIR on, where `row_ptrs` points, two at a time are read as one word; -1: none, it points to the first element."""
    for s in tl.static_range(WIDTH):
        inside = row & inside_of(w0 + s * DILATION, w_end, s * DILATION < PADDING, BEHIND)[:, None]
        at = row_ptrs + step_of(s * DILATION - max(PAIR, 0), stride_w, WIDE)
        if PAIR >= 0 and s >= PAIR and (s - PAIR) % 2 == 0 and s + 1 < WIDTH:
            both = at[:, :, None] + tl.arange(0, 2)[None, None, :]
            x, after = tl.split(tl.load(both, mask=inside[:, :, None], other=LOWEST))
        elif PAIR >= 0 and s > PAIR and (s - PAIR) % 2 == 1:
            x = after
        else:
            x = tl.load(at, mask=inside, other=LOWEST)
        x = again(x, tl.float32) if x.dtype == tl.bfloat16 else widened(x)       # comparisons of bfloat16 are slower than of float32
        if s == 0:
            best, found = x, tl.broadcast_to(first[:, None], x.shape)
        else:
            best, found = larger(best, found, x, FIRST + s)
    return best, found


@triton.jit
def max_pool_kernel(values_ptr, taps_ptr, x_ptr, stride_v, stride_t, stride_x, planes, C, H, W, P, Q, STRIDE: tl.constexpr,
                    PADDING: tl.constexpr, DILATION: tl.constexpr, ADAPTIVE: tl.constexpr, TAPS: tl.constexpr, LOWEST: tl.constexpr,
                    ROWS: tl.constexpr, PAIR: tl.constexpr, BEHIND: tl.constexpr, WIDE: tl.constexpr, EVEN: tl.constexpr,
                    BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr):
    """The largest of each window, and its place r · TAPS[1] + s in it: the first of equals, the last NaN.

    A place is ROWS windows below each other, which share rows of the input; 0: one with so many elements that they are a loop. BEHIND:
    whether windows reach behind the end of the input.
    """
    HEIGHT: tl.constexpr = TAPS[0]
    WIDTH: tl.constexpr = TAPS[1]
    HIGH: tl.constexpr = max(ROWS, 1)
    some, there, n, c, p, q = tile_of(planes, C, tl.cdiv(P, HIGH), Q, EVEN, BLOCK_P, BLOCK_C)
    p = p * HIGH
    h0, h_end = window(p, H, P, STRIDE[0], PADDING[0], ADAPTIVE)
    w0, w_end = window(q, W, Q, STRIDE[1], PADDING[1], ADAPTIVE)
    first_r, first_s = first_tap(h0, DILATION[0]), first_tap(w0, DILATION[1])
    values, taps = (), ()
    if ROWS:
        rows, places, x_planes = (), (), plane_pointers(x_ptr, n, c, stride_x)
        for r in tl.static_range((ROWS - 1) * STRIDE[0] + HEIGHT):
            row = inside_of(h0 + r * DILATION[0], h_end, r * DILATION[0] < PADDING[0], BEHIND[0])[:, None]
            row_ptrs = x_planes + place_offsets(h0 + r * DILATION[0], w0 + max(PAIR, 0), stride_x, WIDE, 1 if PAIR < 0 else 2)
            best, found = largest_of_row(row_ptrs, row, w0, w_end, stride_x[3], tl.maximum(first_r, r) * WIDTH + first_s, r * WIDTH,
                                         PADDING[1], DILATION[1], WIDTH, PAIR, BEHIND[1], LOWEST, WIDE)
            rows, places = rows + (best,), places + (found,)
        for k in tl.static_range(ROWS):
            best, found = rows[k * STRIDE[0]], places[k * STRIDE[0]]
            for r in tl.static_range(1, HEIGHT):
                best, found = larger(best, found, rows[k * STRIDE[0] + r], places[k * STRIDE[0] + r])
            values = values + (best.to(values_ptr.dtype.element_ty),)
            taps = taps + ((found - k * STRIDE[0] * WIDTH).to(taps_ptr.dtype.element_ty),)
    else:
        best = widened(tl.full((BLOCK_P, BLOCK_C), LOWEST, x_ptr.dtype.element_ty))
        found = tl.broadcast_to((first_r * WIDTH + first_s)[:, None], (BLOCK_P, BLOCK_C))
        x_ptrs = pointers(x_ptr, n, c, h0, w0, stride_x, WIDE)
        for tap in range(HEIGHT * WIDTH):
            r, s = tap // WIDTH, tap % WIDTH
            inside = there & (within(h0 + r * DILATION[0], h_end) & within(w0 + s * DILATION[1], w_end))[:, None]
            at = x_ptrs + (step_of(r * DILATION[0], stride_x[2], WIDE) + step_of(s * DILATION[1], stride_x[3], WIDE))
            best, found = larger(best, found, widened(tl.load(at, mask=inside, other=LOWEST)), tap)
        values, taps = (best.to(values_ptr.dtype.element_ty),), (found.to(taps_ptr.dtype.element_ty),)
    for k in tl.static_range(HIGH):                                      # a store between the loads would hold them up
        here = some & (p + k < P)[:, None]
        tl.store(pointers(values_ptr, n, c, p + k, q, stride_v, WIDE), values[k], mask=here)
        tl.store(pointers(taps_ptr, n, c, p + k, q, stride_t, WIDE), taps[k], mask=here)


@triton.jit
def places_kernel(out_ptr, taps_ptr, stride_o, stride_t, planes, C, H, W, P, Q, STRIDE: tl.constexpr, PADDING: tl.constexpr,
                  DILATION: tl.constexpr, ADAPTIVE: tl.constexpr, TAPS: tl.constexpr, WIDE: tl.constexpr, EVEN: tl.constexpr,
                  BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr):
    """The places h · W + w in the image of places in windows."""
    some, there, n, c, p, q = tile_of(planes, C, P, Q, EVEN, BLOCK_P, BLOCK_C)
    tap = tl.load(pointers(taps_ptr, n, c, p, q, stride_t, WIDE), mask=some, other=0).to(tl.int64)
    h0, _ = window(p, H, P, STRIDE[0], PADDING[0], ADAPTIVE)
    w0, _ = window(q, W, Q, STRIDE[1], PADDING[1], ADAPTIVE)
    place = (h0[:, None] + tap // TAPS[1] * DILATION[0]) * W + w0[:, None] + tap % TAPS[1] * DILATION[1]
    tl.store(pointers(out_ptr, n, c, p, q, stride_o, WIDE), place, mask=some)


@triton.jit
def add_chosen(acc, tap, g, R: tl.constexpr, S: tl.constexpr, TAPS: tl.constexpr, DILATION: tl.constexpr):
    """acc + g where the window chose its element R and S from its beginning."""
    if R >= 0 and S >= 0 and R % DILATION[0] == 0 and S % DILATION[1] == 0:
        if R // DILATION[0] < TAPS[0] and S // DILATION[1] < TAPS[1]:
            acc = tl.where(tap == R // DILATION[0] * TAPS[1] + S // DILATION[1], acc + g, acc)
    return acc


@triton.jit
def chosen(taps, gradients, DOWN: tl.constexpr, RIGHT: tl.constexpr, TAPS: tl.constexpr, DILATION: tl.constexpr,
           STRIDE: tl.constexpr, COLUMNS: tl.constexpr):
    """The sum of the gradients of those windows around a cell that chose the element DOWN and RIGHT of where the first one begins."""
    acc = tl.zeros_like(gradients[0])
    for k in tl.static_range(len(gradients)):
        acc = add_chosen(acc, taps[k], gradients[k], DOWN - k // COLUMNS * STRIDE[0], RIGHT - k % COLUMNS * STRIDE[1], TAPS, DILATION)
    return acc


@triton.jit
def max_pool_cells_kernel(out_ptr, g_ptr, taps_ptr, stride_o, stride_g, stride_t, planes, C, H, W, P, Q, cells_h, cells_w,
                          STRIDE: tl.constexpr, PADDING: tl.constexpr, DILATION: tl.constexpr, TAPS: tl.constexpr, FIRST: tl.constexpr,
                          COUNT: tl.constexpr, PAIRS: tl.constexpr, WIDE: tl.constexpr, EVEN: tl.constexpr, BLOCK_P: tl.constexpr,
                          BLOCK_C: tl.constexpr):
    """Each element of the input collects the gradients of the windows whose largest it was.

    A program's places are cells of STRIDE elements: the same COUNT windows, from FIRST on, lie around each, so which tap of which window
    an element of the cell is, is known when this is compiled. PAIRS: rows are even and
    begin at even offsets, so that neighbours are stored as one word.
    """
    some, there, n, c, i, j = tile_of(planes, C, cells_h, cells_w, EVEN, BLOCK_P, BLOCK_C)
    COLUMNS: tl.constexpr = COUNT[1]
    WINDOWS: tl.constexpr = COUNT[0] * COUNT[1]
    CELL_H: tl.constexpr = STRIDE[0]
    CELL_W: tl.constexpr = STRIDE[1]
    DOWN: tl.constexpr = PADDING[0] - FIRST[0] * STRIDE[0]
    RIGHT: tl.constexpr = PADDING[1] - FIRST[1] * STRIDE[1]
    taps, gradients = (), ()
    for k in tl.static_range(WINDOWS):
        p, q = i + (FIRST[0] + k // COLUMNS), j + (FIRST[1] + k % COLUMNS)
        inside = there & (within(p, P) & within(q, Q))[:, None]
        taps = taps + (tl.load(pointers(taps_ptr, n, c, p, q, stride_t, WIDE), mask=inside, other=0).to(tl.int32),)
        gradients = gradients + (widened(tl.load(pointers(g_ptr, n, c, p, q, stride_g, WIDE), mask=inside, other=0)),)
    for a in tl.static_range(CELL_H):
        h = i * CELL_H + a
        row = some & (h < H)[:, None]
        if CELL_W == 2:
            even = chosen(taps, gradients, DOWN + a, RIGHT, TAPS, DILATION, STRIDE, COLUMNS)
            odd = chosen(taps, gradients, DOWN + a, RIGHT + 1, TAPS, DILATION, STRIDE, COLUMNS)
            two = tl.arange(0, 2)[None, None, :]
            at = pointers(out_ptr, n, c, h, j * 2, stride_o, WIDE, 2 if PAIRS else 1)[:, :, None] + two * stride_o[3]
            inside = (j * 2)[:, None, None] < W if PAIRS else (j * 2)[:, None, None] + two < W
            tl.store(at, tl.join(even, odd).to(out_ptr.dtype.element_ty), mask=row[:, :, None] & inside)
        else:
            for b in tl.static_range(CELL_W):
                w = j * CELL_W + b
                acc = chosen(taps, gradients, DOWN + a, RIGHT + b, TAPS, DILATION, STRIDE, COLUMNS)
                tl.store(pointers(out_ptr, n, c, h, w, stride_o, WIDE), acc.to(out_ptr.dtype.element_ty), mask=row & (w < W)[:, None])


@triton.jit
def max_pool_input_kernel(out_ptr, g_ptr, taps_ptr, stride_o, stride_g, stride_t, planes, C, H, W, P, Q, STRIDE: tl.constexpr,
                          PADDING: tl.constexpr, DILATION: tl.constexpr, ADAPTIVE: tl.constexpr, TAPS: tl.constexpr, reach,
                          WINDOWS_H: tl.constexpr, WINDOWS_W: tl.constexpr, WIDE: tl.constexpr, EVEN: tl.constexpr,
                          BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr):
    """The same for windows of any size and place, which each element finds for itself."""
    some, there, n, c, h, w = tile_of(planes, C, H, W, EVEN, BLOCK_P, BLOCK_C)
    p0, p1 = windows(h, H, P, reach[0], STRIDE[0], PADDING[0], ADAPTIVE)
    q0, q1 = windows(w, W, Q, reach[1], STRIDE[1], PADDING[1], ADAPTIVE)
    acc = widened(tl.zeros((BLOCK_P, BLOCK_C), g_ptr.dtype.element_ty))
    for j in range(WINDOWS_H):
        p = p0 + j
        start_h, _ = window(p, H, P, STRIDE[0], PADDING[0], ADAPTIVE)
        for k in range(WINDOWS_W):
            q = q0 + k
            start_w, _ = window(q, W, Q, STRIDE[1], PADDING[1], ADAPTIVE)
            r, s = h - start_h, w - start_w
            hit = (p <= p1) & (q <= q1) & (r % DILATION[0] == 0) & (s % DILATION[1] == 0)
            inside = there & hit[:, None]
            tap = tl.load(pointers(taps_ptr, n, c, p, q, stride_t, WIDE), mask=inside, other=0).to(tl.int32)
            inside = inside & (tap == (r // DILATION[0] * TAPS[1] + s // DILATION[1])[:, None])
            acc += widened(tl.load(pointers(g_ptr, n, c, p, q, stride_g, WIDE), mask=inside, other=0))
    tl.store(pointers(out_ptr, n, c, h, w, stride_o, WIDE), acc.to(out_ptr.dtype.element_ty), mask=some)


@triton.jit
def avg_pool_kernel(out_ptr, x_ptr, stride_o, stride_x, planes, C, H, W, P, Q, divisor, STRIDE: tl.constexpr, PADDING: tl.constexpr,
                    ADAPTIVE: tl.constexpr, INCLUDE: tl.constexpr, TAPS: tl.constexpr, UNROLL: tl.constexpr, WIDE: tl.constexpr,
                    EVEN: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr):
    """The mean of each window, or its sum over `divisor`."""
    some, there, n, c, p, q = tile_of(planes, C, P, Q, EVEN, BLOCK_P, BLOCK_C)
    h0, h_end = window(p, H, P, STRIDE[0], PADDING[0], ADAPTIVE)
    w0, w_end = window(q, W, Q, STRIDE[1], PADDING[1], ADAPTIVE)
    x_ptrs = pointers(x_ptr, n, c, h0, w0, stride_x, WIDE)
    acc = widened(tl.zeros((BLOCK_P, BLOCK_C), x_ptr.dtype.element_ty))
    HEIGHT: tl.constexpr = TAPS[0]
    WIDTH: tl.constexpr = TAPS[1]
    if UNROLL:
        for r in tl.static_range(HEIGHT):
            row = there & within(h0 + r, h_end)[:, None]
            row_ptrs = x_ptrs + step_of(r, stride_x[2], WIDE)
            for s in tl.static_range(WIDTH):
                inside = row & within(w0 + s, w_end)[:, None]
                acc += widened(tl.load(row_ptrs + step_of(s, stride_x[3], WIDE), mask=inside, other=0))
    else:
        for tap in range(HEIGHT * WIDTH):
            r, s = tap // WIDTH, tap % WIDTH
            inside = there & (within(h0 + r, h_end) & within(w0 + s, w_end))[:, None]
            acc += widened(tl.load(x_ptrs + (step_of(r, stride_x[2], WIDE) + step_of(s, stride_x[3], WIDE)), mask=inside, other=0))
    if divisor is None:
        share = (size_of(p, H, P, TAPS[0], STRIDE[0], PADDING[0], ADAPTIVE, INCLUDE)
                 * size_of(q, W, Q, TAPS[1], STRIDE[1], PADDING[1], ADAPTIVE, INCLUDE))
        acc = acc / share.to(acc.dtype)[:, None]
    else:
        acc = acc / divisor.to(acc.dtype)
    tl.store(pointers(out_ptr, n, c, p, q, stride_o, WIDE), acc.to(out_ptr.dtype.element_ty), mask=some)


@triton.jit
def avg_pool_input_kernel(out_ptr, g_ptr, stride_o, stride_g, planes, C, H, W, P, Q, reach, divisor, STRIDE: tl.constexpr,
                          PADDING: tl.constexpr, ADAPTIVE: tl.constexpr, INCLUDE: tl.constexpr, WINDOWS_H: tl.constexpr,
                          WINDOWS_W: tl.constexpr, WIDE: tl.constexpr, EVEN: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr):
    """Each element of the input collects its share of the gradients of the windows that hold it."""
    some, there, n, c, h, w = tile_of(planes, C, H, W, EVEN, BLOCK_P, BLOCK_C)
    p0, p1 = windows(h, H, P, reach[0], STRIDE[0], PADDING[0], ADAPTIVE)
    q0, q1 = windows(w, W, Q, reach[1], STRIDE[1], PADDING[1], ADAPTIVE)
    acc = widened(tl.zeros((BLOCK_P, BLOCK_C), g_ptr.dtype.element_ty))
    for j in range(WINDOWS_H):
        p = p0 + j
        rows = size_of(p, H, P, reach[0] + 1, STRIDE[0], PADDING[0], ADAPTIVE, INCLUDE)
        for k in range(WINDOWS_W):
            q = q0 + k
            hit = (p <= p1) & (q <= q1)
            g = widened(tl.load(pointers(g_ptr, n, c, p, q, stride_g, WIDE), mask=there & hit[:, None], other=0))
            if divisor is None:
                share = rows * size_of(q, W, Q, reach[1] + 1, STRIDE[1], PADDING[1], ADAPTIVE, INCLUDE)
                g = g / tl.where(hit, share, 1).to(acc.dtype)[:, None]
            acc += g
    if divisor is not None:
        acc = acc / divisor.to(acc.dtype)
    tl.store(pointers(out_ptr, n, c, h, w, stride_o, WIDE), acc.to(out_ptr.dtype.element_ty), mask=some)
