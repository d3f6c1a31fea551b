"""A bitonic sorting network whose comparisons all happen between registers.

A tile of 2^M keys is a block of 2^RB rows of 2^(M - RB) keys, one key of each row a thread. While a window of RB bits of a key's place
is spread over the rows, comparing along these bits is a minimum and a maximum of rows; `moved` shifts the window, one pass through
shared memory. On sm_90 a key of 32 bits in a tile of 4096 takes 111 instructions this way, by `tl.sort` 373.

The rows are one block that is halved and joined for each bit, not a tuple of blocks: for each access to memory Triton's Coalesce pass
walks from every operation to all that it is connected with. A radix sort's kernel compiles in 2.3 s so, in 14 s with a tuple.
"""
import triton
import triton.language as tl


@triton.jit
def moved(x, FROM: tl.constexpr, TO: tl.constexpr):
    """The window of bits that are spread over the rows, from the one that starts at bit FROM to that at TO."""
    R: tl.constexpr = x.shape[0]
    N: tl.constexpr = x.shape[1]
    if FROM == TO:
        return x
    else:
        x = tl.permute(tl.reshape(x, [R, N >> FROM, 1 << FROM]), (1, 0, 2))
        x = tl.permute(tl.reshape(x, [N >> TO, R, 1 << TO]), (1, 0, 2))
        return tl.reshape(x, [R, N])


@triton.jit
def rotated(x, COMPARED: tl.constexpr, TURN: tl.constexpr):
    """The highest bit of the row's number becomes the lowest; COMPARED: with pairs along it in order, in falling order where bit TURN of
    the others is set. What the joined halves hold stays where it is, in the registers of its thread."""
    HALF: tl.constexpr = x.shape[0] // 2
    low, high = tl.split(tl.permute(tl.reshape(x, [2, HALF, x.shape[1]]), (1, 2, 0)))
    if COMPARED:
        less = tl.minimum(low, high)
        more = low + high - less if x.dtype.is_floating() else tl.maximum(low, high)
        if HALF >> TURN > 0:
            falls = (((tl.arange(0, HALF) >> TURN) & 1) != 0)[:, None]
            low = tl.where(falls, more, less)
            high = tl.where(falls, less, more)
        else:
            low = less
            high = more
    return tl.reshape(tl.permute(tl.join(low, high), (0, 2, 1)), [2 * HALF, x.shape[1]])


@triton.jit
def complemented(x, where):
    """The order of the keys turned around for threads where the lowest bit of `where` is set: it falls from then on."""
    if x.dtype.is_floating():
        return x * (1 - 2 * (where & 1)).to(x.dtype)[None, :]
    else:
        return x ^ (0 - (where & 1)).to(x.dtype, bitcast=True)[None, :]


@triton.jit
def turned(x, L: tl.constexpr, RB: tl.constexpr, STAGE: tl.constexpr):
    """From the directions of the stage before to those of this one, where they hang on the thread."""
    t = tl.arange(0, x.shape[1])
    if STAGE < RB or L == RB:
        return x
    elif STAGE == RB:
        return complemented(x, t)
    elif STAGE == L:
        return complemented(x, t >> (L - 1 - RB))
    else:
        return complemented(x, (t >> (STAGE - RB)) ^ (t >> (STAGE - 1 - RB)))


@triton.jit
def merged(x, L: tl.constexpr, RB: tl.constexpr, STAGE: tl.constexpr, WINDOW: tl.constexpr):
    """The comparisons of a stage along the bits of one window. Bits without a comparison turn with the others, so that all windows
    leave a key in the same register and the addresses of all moves are the same."""
    AT: tl.constexpr = min(WINDOW * RB, L - RB)
    TOP: tl.constexpr = min(WINDOW * RB + RB, STAGE)
    x = moved(x, min((WINDOW + 1) * RB, L - RB) if TOP < STAGE else 0, AT)
    for b in tl.static_range(RB - 1, -1, -1):
        x = rotated(x, WINDOW * RB <= AT + b and AT + b < TOP, STAGE - 1 - b if STAGE < RB else RB)
    return x


@triton.jit
def sort_block(x, M: tl.constexpr, L: tl.constexpr, RB: tl.constexpr):
    """Each 2^L consecutive ones of 2^M different keys in order, unsigned ones or whole numbers below 2^23 as float32: of these the greater
    one is the sum less the smaller one, and additions, unlike a maximum, leave the units free that find the minima. RB of at most L."""
    x = tl.permute(tl.reshape(x, [1 << (M - RB), 1 << RB]), (1, 0))
    for stage in tl.static_range(1, L + 1):
        x = turned(x, L, RB, stage)
        for window in tl.static_range((stage - 1) // RB, -1, -1):
            x = merged(x, L, RB, stage, window)
    return tl.reshape(tl.permute(x, (1, 0)), [1 << M])
