"""Whose turn it is to add to the gradient of a block of rows, for attention_together_gluon.py: places of tiles, and the warps that wait."""
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier

from .attention_places_gluon import WARP, after

GROUP_OF_WARPS = gl.constexpr(gl.BlockedLayout([1], [32], [4], [0]))


# ------------------------------------------------------------------ places
@gluon.jit
def place_of(ticket, sizes, BLOCK_N: gl.constexpr, BESIDE: gl.constexpr):
    """(batch, key head, block of keys) of a tile. One head after the other, the last keys first: see attention_backward.py. Or as many as
    the sizes say side by side and the first keys first, which under a causal mask meet most rows: so the longest tiles are not the last
    that begin, and who adds to the same rows does not begin at one time, to wait one for the other. (By count, the one order keeps
    multiprocessors idle for 15 % of the time under a causal mask of 4096 rows, the other for 7 %.)"""
    blocks = gl.cdiv(sizes[3], BLOCK_N)
    if BESIDE:
        first = ticket // (sizes[7] * blocks) * sizes[7]
        beside = gl.minimum(sizes[6] - first, sizes[7])
        matrix, block = first + (ticket - first * blocks) % beside, (ticket - first * blocks) // beside
    else:
        matrix, block = ticket // blocks, blocks - 1 - ticket % blocks
    return matrix // sizes[0], matrix % sizes[0], block


@gluon.jit
def tile_of(ticket, seen, sizes, LEFT: gl.constexpr, RIGHT: gl.constexpr, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr,
            BESIDE: gl.constexpr):
    """(batch, key head, first key, first row that meets it, blocks of rows, how many of them at the beginning need a look at single scores,
    how many come before those at the end that do, and `seen`: behind so many keys a mask hides all, and nobody goes over rows for them)."""
    L, S, left, right = sizes[2], sizes[3], sizes[4], sizes[5]
    batch, head, block = place_of(ticket, sizes, BLOCK_N, BESIDE)
    n = block * BLOCK_N
    begin, edges = 0, 0
    if RIGHT:
        begin = gl.maximum(n - right, 0) // BLOCK_M * BLOCK_M
        edges = gl.cdiv(gl.maximum(n + BLOCK_N - 1 - right, 0), BLOCK_M) - begin // BLOCK_M
    end, rest = L, L
    if LEFT:
        end, rest = gl.minimum(L, n + BLOCK_N + left), n + left + 1
    steps = gl.where(n < seen, gl.cdiv(gl.maximum(end - begin, 0), BLOCK_M), 0)
    return batch, head, n, begin, steps, gl.where(n + BLOCK_N > S, steps, edges), rest // BLOCK_M - begin // BLOCK_M, seen


@gluon.jit
def turn_of(tile, t, sizes, LEFT: gl.constexpr, RIGHT: gl.constexpr, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, BESIDE: gl.constexpr):
    """(head, first row, block of rows among all, its number in the tile, how many blocks of keys meet it before this one, whether this one
    is the last to) of step t of a tile. Where the first keys are the first, the last rows are."""
    L, left, right = sizes[2], sizes[4], sizes[5]
    batch, head, n, begin, steps = tile[:5]
    i = t % steps
    if BESIDE:
        i = steps - 1 - i
    head, m = head * sizes[1] + t // steps, begin + i * BLOCK_M
    first, mine, last = gl.to_tensor(0), n // BLOCK_N, gl.cdiv(tile[7], BLOCK_N) - 1
    if LEFT:
        first = gl.maximum(m - left, 0) // BLOCK_N
    if RIGHT:
        last = gl.minimum(last, (m + BLOCK_M - 1 + right) // BLOCK_N)
    block = (batch * (sizes[0] * sizes[1]) + head) * gl.cdiv(L, BLOCK_M) + m // BLOCK_M
    if BESIDE:
        return head, m, block, i, mine - first, mine == last
    else:
        return head, m, block, i, last - mine, mine == first


@gluon.jit
def leave(numbers, place, x):
    """Write a number for other warps. Called by one warp, which tells them by a barrier."""
    numbers.index(place).store(gl.full((1, ), x, gl.int32, WARP))


@gluon.jit
def left(numbers, place):
    """The number that another warp has left."""
    return gl.max(numbers.index(place).load(GROUP_OF_WARPS if gl.num_warps() == 4 else WARP), 0)


@gluon.jit
def taken(tickets, bars, place, phase):
    """The ticket in a slot, when it is there."""
    mbarrier.wait(bars[1].index(place), phase)
    return left(tickets, place)


@gluon.jit
def seen_keys(tickets, place, sizes, SKIP: gl.constexpr, KEPT: gl.constexpr):
    """How many keys come before those that the mask of a tile hides; all of them where nobody looked."""
    seen = sizes[3]
    if SKIP:
        seen = left(tickets, KEPT + place)
    return seen


# ------------------------------------------------------------------ the warps that wait
@gluon.jit
def await_turns(turns_ptr, tickets, notes, bars, ways, sizes, items, LEFT: gl.constexpr, RIGHT: gl.constexpr, BLOCK_M: gl.constexpr,
                BLOCK_N: gl.constexpr, KEPT: gl.constexpr, SKIP: gl.constexpr, BESIDE: gl.constexpr):
    """The warp that says when the groups may add, and where: at most two steps before the other warp has ended a turn."""
    may, over = ways[0], ways[2]
    place, turn, count = 0, 0, 0
    ticket = taken(tickets, bars, place, turn)
    while ticket < items:
        tile = tile_of(ticket, seen_keys(tickets, place, sizes, SKIP, KEPT), sizes, LEFT, RIGHT, BLOCK_M, BLOCK_N, BESIDE)
        mbarrier.arrive(bars[0].index(place), count=1)
        for t in range(sizes[1] * tile[4]):
            head, m, block, i, before, last = turn_of(tile, t, sizes, LEFT, RIGHT, BLOCK_M, BLOCK_N, BESIDE)
            mbarrier.wait(over.index(count & 1), (count >> 1 & 1) ^ 1)
            if before > 0:
                while gl.atomic_add(turns_ptr + 1 + block, 0, sem="acquire") < before:
                    pass
            leave(notes, 4 * (count & 1), head)
            leave(notes, 4 * (count & 1) + 1, m)
            leave(notes, 4 * (count & 1) + 2, block)
            leave(notes, 4 * (count & 1) + 3, gl.where(last, -1 - before, before))
            mbarrier.arrive(may.index(count & 1), count=1)
            count += 1
        place, turn = after(place, turn, KEPT)
        ticket = taken(tickets, bars, place, turn)


@gluon.jit
def end_turns(turns_ptr, tickets, bars, ways, sizes, items, LEFT: gl.constexpr, RIGHT: gl.constexpr, BLOCK_M: gl.constexpr,
              BLOCK_N: gl.constexpr, KEPT: gl.constexpr, SKIP: gl.constexpr, BESIDE: gl.constexpr):
    """The warp that tells the other programs when both groups have added."""
    added, over = ways[1], ways[2]
    place, turn, count = 0, 0, 0
    ticket = taken(tickets, bars, place, turn)
    while ticket < items:
        tile = tile_of(ticket, seen_keys(tickets, place, sizes, SKIP, KEPT), sizes, LEFT, RIGHT, BLOCK_M, BLOCK_N, BESIDE)
        mbarrier.arrive(bars[0].index(place), count=1)
        for t in range(sizes[1] * tile[4]):
            head, m, block, i, before, last = turn_of(tile, t, sizes, LEFT, RIGHT, BLOCK_M, BLOCK_N, BESIDE)
            mbarrier.wait(added.index(count & 1), count >> 1 & 1)
            gl.atomic_add(turns_ptr + 1 + block, 1, sem="release")
            mbarrier.arrive(over.index(count & 1), count=1)
            count += 1
        place, turn = after(place, turn, KEPT)
        ticket = taken(tickets, bars, place, turn)
