"""A bitonic sorting network whose comparisons all happen between registers.

A tile of 2^M keys is 2^RB blocks ("parts") of 2^(M - RB) keys, one key of each part a thread. While a window of RB bits of a key's
place is spread over the parts, comparing along these bits is a minimum and a maximum of two parts; `moved` shifts the window, one
pass through shared memory. On sm_90 a key of 32 bits in a tile of 4096 takes 111 instructions this way, by `tl.sort` 373.
"""
import triton
import triton.language as tl


@triton.jit
def cube(parts):
    """Parts of N joined along the bits of their numbers: (2, …, 2, N), the highest bit first. A joined dim is the last one until it is
    permuted to the front, so that threads stay along N and nothing moves between them."""
    if len(parts) == 1:
        return parts[0]
    else:
        half: tl.constexpr = len(parts) // 2
        low = ()
        high = ()
        for k in tl.static_range(half):
            low = low + (parts[k],)
            high = high + (parts[half + k],)
        x = tl.join(cube(low), cube(high))
        if half == 1:
            return tl.permute(x, (1, 0))
        elif half == 2:
            return tl.permute(x, (2, 0, 1))
        elif half == 4:
            return tl.permute(x, (3, 0, 1, 2))
        else:
            return tl.permute(x, (4, 0, 1, 2, 3))


@triton.jit
def joined(parts, N: tl.constexpr):
    """Parts of N as one (parts, N) block."""
    return tl.reshape(cube(parts), [len(parts), N])


@triton.jit
def halves(x, R: tl.constexpr):
    """The opposite of `cube`."""
    if R == 1:
        return (x,)
    else:
        if R == 2:
            x = tl.permute(x, (1, 0))
        elif R == 4:
            x = tl.permute(x, (1, 2, 0))
        elif R == 8:
            x = tl.permute(x, (1, 2, 3, 0))
        else:
            x = tl.permute(x, (1, 2, 3, 4, 0))
        low, high = tl.split(x)
        return halves(low, R // 2) + halves(high, R // 2)


@triton.jit
def parted(x, R: tl.constexpr, N: tl.constexpr):
    """The opposite of `joined`."""
    if R == 1:
        return (tl.reshape(x, [N]),)
    elif R == 2:
        return halves(x, 2)
    elif R == 4:
        return halves(tl.reshape(x, [2, 2, N]), 4)
    elif R == 8:
        return halves(tl.reshape(x, [2, 2, 2, N]), 8)
    else:
        return halves(tl.reshape(x, [2, 2, 2, 2, N]), 16)


@triton.jit
def moved(parts, N: tl.constexpr, FROM: tl.constexpr, TO: tl.constexpr):
    """The window of bits that are spread over the parts, from the one that starts at bit FROM to that at TO."""
    R: tl.constexpr = len(parts)
    if FROM == TO:
        return parts
    else:
        x = tl.permute(tl.reshape(joined(parts, N), [R, N >> FROM, 1 << FROM]), (1, 0, 2))
        x = tl.permute(tl.reshape(x, [N >> TO, R, 1 << TO]), (1, 0, 2))
        return parted(tl.reshape(x, [R, N]), R, N)


@triton.jit
def exchanged(parts, BIT: tl.constexpr, TURN: tl.constexpr):
    """Pairs along a bit of the part's number in order, in falling order where its bit TURN is set."""
    out = ()
    for k in tl.static_range(len(parts)):
        if (k >> BIT) & 1 == (k >> TURN) & 1:
            out = out + (tl.minimum(parts[k], parts[k ^ (1 << BIT)]),)
        else:
            out = out + (tl.maximum(parts[k], parts[k ^ (1 << BIT)]),)
    return out


@triton.jit
def complemented(parts, where):
    """All bits of the keys turned around for threads where the lowest bit of `where` is set: their order falls from then on."""
    out = ()
    for k in tl.static_range(len(parts)):
        out = out + (parts[k] ^ (0 - (where & 1)).to(parts[k].dtype, bitcast=True),)
    return out


@triton.jit
def turned(parts, N: tl.constexpr, L: tl.constexpr, RB: tl.constexpr, STAGE: tl.constexpr):
    """From the directions of the stage before to those of this one, where they hang on the thread."""
    t = tl.arange(0, N)
    if STAGE < RB or L == RB:
        return parts
    elif STAGE == RB:
        return complemented(parts, t)
    elif STAGE == L:
        return complemented(parts, t >> (L - 1 - RB))
    else:
        return complemented(parts, (t >> (STAGE - RB)) ^ (t >> (STAGE - 1 - RB)))


@triton.jit
def merged(parts, N: tl.constexpr, L: tl.constexpr, RB: tl.constexpr, STAGE: tl.constexpr, WINDOW: tl.constexpr):
    """The comparisons of a stage along the bits of one window."""
    AT: tl.constexpr = min(WINDOW * RB, L - RB)
    TOP: tl.constexpr = min(WINDOW * RB + RB, STAGE)
    parts = moved(parts, N, min((WINDOW + 1) * RB, L - RB) if TOP < STAGE else 0, AT)
    for b in tl.static_range(TOP - WINDOW * RB):
        parts = exchanged(parts, TOP - 1 - b - AT, STAGE if STAGE < RB else RB)
    return parts


@triton.jit
def sort_block(x, M: tl.constexpr, L: tl.constexpr, RB: tl.constexpr):
    """Each 2^L consecutive ones of 2^M different unsigned keys in order. RB of at most L."""
    R: tl.constexpr = 1 << RB
    N: tl.constexpr = 1 << (M - RB)
    parts = parted(tl.permute(tl.reshape(x, [N, R]), (1, 0)), R, N)
    for stage in tl.static_range(1, L + 1):
        parts = turned(parts, N, L, RB, stage)
        for window in tl.static_range((stage - 1) // RB, -1, -1):
            parts = merged(parts, N, L, RB, stage, window)
    return tl.reshape(tl.permute(joined(parts, N), (1, 0)), [1 << M])
