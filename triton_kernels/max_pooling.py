"""The largest of windows of (N, C, H, W), its place, and its gradient as a gather; windows are those of avg_pooling.py.

A program works on a tile of planes × places as there, where a place may be a few windows (or, backward, cells) below and beside each other,
which share rows and columns. Neighbours along a row come and go as one word where rows allow it. A byte is the tap of one window, or,
where PAIR is 2, those of two windows below each other: of the upper one its low half, of the lower one its high half.
"""
import triton
import triton.language as tl

from .avg_pooling import (
    elements_of_row,
    inside_of,
    place_offsets,
    plane_pointers,
    pointers,
    step_of,
    store_span,
    tile_of,
    widened,
    window,
    windows,
    within,
)
from .rows import again


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
def larger_alone(best, x):
    return tl.maximum(best, x, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def largest_of_row(x, first, w0, FIRST: tl.constexpr, SPAN: tl.constexpr, STRIDE: tl.constexpr, DILATION: tl.constexpr,
                   PADDING: tl.constexpr, WIDTH: tl.constexpr, TAPPED: tl.constexpr):
    """The largest of WIDTH elements, and if TAPPED its tap, of SPAN windows of a row x; the taps of the row begin at FIRST, and `first` is
    that of the first in a row that is not padding."""
    rows, places = (), ()
    for g in tl.static_range(SPAN):
        best = x[g * STRIDE]
        best = again(best, tl.float32) if best.dtype == tl.bfloat16 else widened(best)       # comparisons of bfloat16 are slower
        found = first
        if g * STRIDE < PADDING:
            found += first_tap(w0 + g * STRIDE, DILATION)
        found = tl.broadcast_to(found[:, None], best.shape)
        for s in tl.static_range(1, WIDTH):
            next = x[g * STRIDE + s * DILATION]
            next = again(next, tl.float32) if next.dtype == tl.bfloat16 else widened(next)
            if TAPPED:
                best, found = larger(best, found, next, FIRST + s)
            else:
                best = larger_alone(best, next)
        rows, places = rows + (best,), places + (found,)
    return rows, places


@triton.jit
def max_pool_kernel(values_ptr, taps_ptr, x_ptr, stride_v, stride_t, stride_x, planes, C, H, W, P, Q, STRIDE: tl.constexpr,
                    PADDING: tl.constexpr, DILATION: tl.constexpr, ADAPTIVE: tl.constexpr, TAPS: tl.constexpr, LOWEST: tl.constexpr,
                    ROWS: tl.constexpr, SPAN: tl.constexpr, LOG: tl.constexpr, INSIDE: tl.constexpr, PAIR: tl.constexpr,
                    WIDE: tl.constexpr, EVEN: tl.constexpr, FLAT: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr):
    """The largest of each window and, unless taps_ptr is None, its place r · TAPS[1] + s in it: the first of equals, the last NaN.

    A place is ROWS windows below each other and SPAN beside each other, which share the input; ROWS = 0: one of so many elements that
    they are a loop. 2^LOG elements from the first that is no padding on are read as one word. Of the rows and columns that a place reads
    the first INSIDE are not behind the end of any input. Long because windows of a few elements and of many have little in common.
    """
    HEIGHT: tl.constexpr = TAPS[0]
    WIDTH: tl.constexpr = TAPS[1]
    HIGH: tl.constexpr = max(ROWS, 1)
    TAPPED: tl.constexpr = taps_ptr is not None
    SPAN_LOG: tl.constexpr = (SPAN > 1) + (SPAN > 2) + (SPAN > 4)
    some, _, n, c, p, q = tile_of(planes, C, tl.cdiv(P, HIGH), Q // SPAN, WIDE, EVEN, FLAT, BLOCK_P, BLOCK_C)
    p, q = p * HIGH, q * SPAN
    h0, h_end = window(p, H, P, STRIDE[0], PADDING[0], ADAPTIVE)
    w0, w_end = window(q, W, Q, STRIDE[1], PADDING[1], ADAPTIVE)
    first_r = first_tap(h0, DILATION[0])
    values, taps = (), ()
    if ROWS:
        rows, places, x_planes = (), (), plane_pointers(x_ptr, n, c, stride_x, 1 << LOG)
        w = w0 + PADDING[1]
        for r in tl.static_range((ROWS - 1) * STRIDE[0] + HEIGHT):
            h = h0 + r * DILATION[0]
            row = inside_of(h, h_end, r * DILATION[0] < PADDING[0], r * DILATION[0] >= INSIDE[0])[:, None]
            x = elements_of_row(x_planes + place_offsets(h, w, stride_x, WIDE, 1 << LOG), row, w, w_end, stride_x[3], LOWEST,
                                (SPAN - 1) * STRIDE[1] + (WIDTH - 1) * DILATION[1] + 1, DILATION[1], PADDING[1], LOG, INSIDE[1], WIDE)
            first = tl.maximum(first_r, r) if r * DILATION[0] < PADDING[0] else first_r * 0 + r
            best, found = largest_of_row(x, first * WIDTH, w0, r * WIDTH, SPAN, STRIDE[1], DILATION[1], PADDING[1], WIDTH, TAPPED)
            rows, places = rows + best, places + found
        for k in tl.static_range(ROWS * SPAN):
            best, found = rows[k // SPAN * STRIDE[0] * SPAN + k % SPAN], places[k // SPAN * STRIDE[0] * SPAN + k % SPAN]
            for r in tl.static_range(1, HEIGHT):
                x, place = rows[(k // SPAN * STRIDE[0] + r) * SPAN + k % SPAN], places[(k // SPAN * STRIDE[0] + r) * SPAN + k % SPAN]
                if TAPPED:
                    best, found = larger(best, found, x, place)
                else:
                    best = larger_alone(best, x)
            values = values + (best,)
            taps = taps + (found - k // SPAN * STRIDE[0] * WIDTH,)
    else:
        best = widened(tl.full((BLOCK_P, BLOCK_C), LOWEST, x_ptr.dtype.element_ty))
        found = tl.broadcast_to((first_r * WIDTH + first_tap(w0, DILATION[1]))[:, None], (BLOCK_P, BLOCK_C))
        x_ptrs = pointers(x_ptr, n, c, h0, w0, stride_x, WIDE)
        for tap in range(HEIGHT * WIDTH):
            r, s = tap // WIDTH, tap % WIDTH
            inside = (within(h0 + r * DILATION[0], h_end) & within(w0 + s * DILATION[1], w_end))[:, None]
            at = x_ptrs + (step_of(r * DILATION[0], stride_x[2], WIDE) + step_of(s * DILATION[1], stride_x[3], WIDE))
            best, found = larger(best, found, widened(tl.load(at, mask=inside, other=LOWEST)), tap)
        values, taps = (best,), (found,)
    for k in tl.static_range(HIGH):                                      # a store between the loads would hold them up
        here = some & (p + k < P)[:, None]
        store_span(values_ptr, values, k, n, c, p + k, q, stride_v, here, SPAN, SPAN_LOG, WIDE)
        if TAPPED and k % PAIR == 0:
            if PAIR == 2:
                taps = paired(taps, k, (p + k + 1 < P)[:, None], SPAN)
            store_span(taps_ptr, taps, k, n, c, (p + k) // PAIR, q, stride_t, here, SPAN, SPAN_LOG, WIDE)


@triton.jit
def paired(taps, ROW: tl.constexpr, lower, SPAN: tl.constexpr):
    """The taps of so many rows of windows, in row ROW with those of the next in the high halves, where there is such a `lower` one."""
    out = ()
    for k in tl.static_range(len(taps)):
        if k // SPAN == ROW:
            out = out + (taps[k] | tl.where(lower, taps[k + SPAN] << 4, 0),)
        else:
            out = out + (taps[k],)
    return out


@triton.jit
def half_of(pair, which, PAIR: tl.constexpr):
    """The tap of the upper (0) or lower (1) window of a byte."""
    return pair >> which * 4 & 15 if PAIR == 2 else pair


@triton.jit
def places_kernel(out_ptr, taps_ptr, stride_o, stride_t, planes, C, H, W, P, Q, STRIDE: tl.constexpr, PADDING: tl.constexpr,
                  DILATION: tl.constexpr, ADAPTIVE: tl.constexpr, TAPS: tl.constexpr, PAIR: tl.constexpr, WIDE: tl.constexpr,
                  EVEN: tl.constexpr, FLAT: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr):
    """The places h · W + w in the image of places in windows."""
    some, there, n, c, p, q = tile_of(planes, C, P, Q, WIDE, EVEN, FLAT, BLOCK_P, BLOCK_C)
    tap = tl.load(pointers(taps_ptr, n, c, p // PAIR, q, stride_t, WIDE), mask=some, other=0).to(tl.int64)
    tap = half_of(tap, (p % PAIR)[:, None], PAIR)
    h0, _ = window(p, H, P, STRIDE[0], PADDING[0], ADAPTIVE)
    w0, _ = window(q, W, Q, STRIDE[1], PADDING[1], ADAPTIVE)
    place = (h0[:, None] + tap // TAPS[1] * DILATION[0]) * W + w0[:, None] + tap % TAPS[1] * DILATION[1]
    tl.store(pointers(out_ptr, n, c, p, q, stride_o, WIDE), place, mask=some)


@triton.jit
def add_chosen(acc, tap, g, R: tl.constexpr, S: tl.constexpr, TAPS: tl.constexpr, DILATION: tl.constexpr, PHASES: tl.constexpr):
    """A sum, () where there is nothing yet, and g where the window chose its element R and S from its beginning; taps, with PHASES, are as
    many rows further down less one, and some of them of the rows that follow."""
    if R + PHASES > 0 and S >= 0 and R % DILATION[0] == 0 and S % DILATION[1] == 0:
        if R // DILATION[0] < TAPS[0] and S // DILATION[1] < TAPS[1]:
            hit = tap == (R // DILATION[0] + PHASES - 1) * TAPS[1] + S // DILATION[1]
            if len(acc) > 0:
                acc = (tl.where(hit, acc[0] + g, acc[0]),)
            else:
                acc = (tl.where(hit, g, 0),)
    return acc


@triton.jit
def chosen(taps, gradients, FIRST_ROW: tl.constexpr, FIRST_COLUMN: tl.constexpr, DOWN: tl.constexpr, RIGHT: tl.constexpr,
           TAPS: tl.constexpr, DILATION: tl.constexpr, STRIDE: tl.constexpr, COUNT: tl.constexpr, COLUMNS: tl.constexpr,
           PHASES: tl.constexpr):
    """The sum of the gradients of those COUNT windows, of all in rows of COLUMNS, that chose the element DOWN and RIGHT of where the first
    of them begins."""
    acc = ()
    for k in tl.static_range(COUNT[0] * COUNT[1]):
        acc = add_chosen(acc, taps[(FIRST_ROW + k // COUNT[1]) * COLUMNS + FIRST_COLUMN + k % COUNT[1]],
                         gradients[(FIRST_ROW + k // COUNT[1]) * COLUMNS + FIRST_COLUMN + k % COUNT[1]],
                         DOWN - k // COUNT[1] * STRIDE[0], RIGHT - k % COUNT[1] * STRIDE[1], TAPS, DILATION, PHASES)
    if len(acc) > 0:
        return acc[0]
    else:
        return tl.zeros(gradients[0].shape, gradients[0].dtype)


@triton.jit
def taps_of_row(row_ptrs, row, q, end, stride_q, shift, COUNT: tl.constexpr, BEFORE: tl.constexpr, LOG: tl.constexpr,
                INSIDE: tl.constexpr, PAIR: tl.constexpr, WIDE: tl.constexpr):
    """The taps in COUNT bytes of a row, as elements_of_row has them, those of each of PAIR rows of windows, plus `shift`. What four
    bytes of a word have in common is done to all at once."""
    FOUR: tl.constexpr = LOG == 2 and row_ptrs.dtype.element_ty == tl.uint8
    if FOUR:
        inside = row & inside_of(q, end, False, BEFORE + 4 > INSIDE)[:, None]
        word = tl.load(row_ptrs.to(tl.pointer_type(tl.int32)), mask=inside, other=0)
        singles = ()
        for k in tl.static_range(COUNT):
            if k >= BEFORE and k < BEFORE + 4:
                singles = singles + (word,)
            else:
                inside = row & inside_of(q + (k - BEFORE), end, k < BEFORE, k >= INSIDE)[:, None]
                singles = singles + (tl.load(row_ptrs + step_of(k - BEFORE, stride_q, WIDE), mask=inside, other=0).to(tl.int32),)
    else:
        singles = elements_of_row(row_ptrs, row, q, end, stride_q, 0, COUNT, 1, BEFORE, LOG, INSIDE, WIDE)
    taps = ()
    for which in tl.static_range(PAIR):
        for k in tl.static_range(COUNT):
            if FOUR and k >= BEFORE and k < BEFORE + 4:
                four = (word >> 4 * which & 0x0F0F0F0F if PAIR == 2 else word) + shift * 0x01010101
                taps = taps + (four >> 8 * (k - BEFORE) & 255,)
            else:
                taps = taps + (half_of(singles[k].to(tl.int32), which, PAIR) + shift,)
    return taps


@triton.jit
def max_pool_cells_kernel(out_ptr, g_ptr, taps_ptr, stride_o, stride_g, stride_t, planes, C, H, W, P, Q, cells_h, cells_w,
                          STRIDE: tl.constexpr, PADDING: tl.constexpr, DILATION: tl.constexpr, TAPS: tl.constexpr, FIRST: tl.constexpr,
                          COUNT: tl.constexpr, SPAN: tl.constexpr, LOG: tl.constexpr, WORDS: tl.constexpr, INSIDE: tl.constexpr,
                          WHOLE: tl.constexpr, PAIR: tl.constexpr, WIDE: tl.constexpr, EVEN: tl.constexpr, ROWS: tl.constexpr,
                          PHASES: tl.constexpr, FLAT: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr):
    """Each element of the input collects the gradients of the windows whose largest it was.

    A cell is STRIDE elements: the same COUNT windows, from FIRST on, lie around each, so which tap of which window an element of the cell
    is, is known when this is compiled. A place is ROWS × SPAN cells, which share windows: those of 2^LOG = SPAN are read as one word.
    2^WORDS elements, those of a row of a place, are stored as one word; 0: each by itself. Of the rows and columns of windows around a
    place the first INSIDE are not behind the last of any; WHOLE: nor is the last row of its elements. PHASES = STRIDE[0], else 1: the
    rows of cells are places of their own, so that neighbouring places lie in line in memory; their taps are moved by so many rows that
    all of them look for the same.
    """
    CELL_H: tl.constexpr = STRIDE[0]
    CELL_W: tl.constexpr = STRIDE[1]
    COLUMNS: tl.constexpr = COUNT[1] + SPAN - 1
    some, _, n, c, i, j = tile_of(planes, C, tl.cdiv(cells_h, ROWS) * PHASES, tl.cdiv(cells_w, SPAN), WIDE, EVEN, FLAT, BLOCK_P, BLOCK_C)
    phase, i, j = i % PHASES, i // PHASES * ROWS, j * SPAN
    taps, gradients, shift = (), (), ((PHASES - 1 - phase) * TAPS[1])[:, None] if PHASES > 1 else 0
    t_planes, g_planes = plane_pointers(taps_ptr, n, c, stride_t, 1 << LOG), plane_pointers(g_ptr, n, c, stride_g, 1 << LOG)
    for k in tl.static_range(COUNT[0] + ROWS - 1):
        p = i + (FIRST[0] + k)
        row = inside_of(p, P, k < -FIRST[0], k >= INSIDE[0])[:, None]
        gradients = gradients + elements_of_row(g_planes + place_offsets(p, j, stride_g, WIDE, 1 << LOG), row, j, Q, stride_g[3], 0,
                                                COLUMNS, 1, -FIRST[1], LOG, INSIDE[1], WIDE)
    for k in tl.static_range(FIRST[0] // PAIR, (FIRST[0] + COUNT[0] + ROWS - 2) // PAIR + 1):
        p = i // PAIR + k
        row = inside_of(p, tl.cdiv(P, PAIR), k < 0, k * PAIR - FIRST[0] >= INSIDE[0])[:, None]
        taps = taps + taps_of_row(t_planes + place_offsets(p, j, stride_t, WIDE, 1 << LOG), row, j, Q, stride_t[3], shift, COLUMNS,
                                  -FIRST[1], LOG, INSIDE[1], PAIR, WIDE)
    wide_taps, wide_gradients = (), ()
    for k in tl.static_range(len(gradients)):
        wide_taps = wide_taps + (taps[FIRST[0] % PAIR * COLUMNS + k],)
        wide_gradients = wide_gradients + (widened(gradients[k]),)
    for a in tl.static_range(0, ROWS * CELL_H, PHASES):
        h = i * CELL_H + a + phase
        x = ()
        for b in tl.static_range(SPAN * CELL_W):
            x = x + (chosen(wide_taps, wide_gradients, a // CELL_H, b // CELL_W, PADDING[0] - FIRST[0] * STRIDE[0] + a % CELL_H,
                            PADDING[1] - FIRST[1] * STRIDE[1] + b % CELL_W, TAPS, DILATION, STRIDE, COUNT, COLUMNS, PHASES),)
        row = some if WHOLE else some & (h < H)[:, None]
        if WORDS:
            store_span(out_ptr, x, 0, n, c, h, j * CELL_W, stride_o, row, SPAN * CELL_W, WORDS, WIDE)
        else:
            for b in tl.static_range(SPAN * CELL_W):
                w = j * CELL_W + b
                tl.store(pointers(out_ptr, n, c, h, w, stride_o, WIDE), x[b].to(out_ptr.dtype.element_ty), mask=row & (w < W)[:, None])


@triton.jit
def max_pool_input_kernel(out_ptr, g_ptr, taps_ptr, stride_o, stride_g, stride_t, planes, C, H, W, P, Q, STRIDE: tl.constexpr,
                          PADDING: tl.constexpr, DILATION: tl.constexpr, ADAPTIVE: tl.constexpr, TAPS: tl.constexpr, reach,
                          WINDOWS_H: tl.constexpr, WINDOWS_W: tl.constexpr, WIDE: tl.constexpr, EVEN: tl.constexpr,
                          FLAT: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr):
    """The same for windows of any size and place, which each element finds for itself."""
    some, there, n, c, h, w = tile_of(planes, C, H, W, WIDE, EVEN, FLAT, BLOCK_P, BLOCK_C)
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
