"""Philox4x32-10 in numpy: the random bits of every random operator, the same on CPU and GPU.

Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011 (Random123). A counter-based generator: counter c under
key `seed` gives four 32-bit words, in any order and in parallel. An operator that starts at `offset` gives its element i, counted
in logical (row-major) order, word i % 4 of counter offset + i // 4, and moves the generator's offset on by the counters it used.
Where an element needs 64 bits (float64, integers) that word is the high half, and the low half is the same word of lane 1: the
third counter word is 1 instead of 0. So float64 draws are those of float32 with more digits. Fills of 16 bits with normal numbers
need no more than half a word for an element: it is of word i % 8 // 2 of counter offset + i // 8, and the generator moves on as far
as for others. Operators that draw until they accept take a lane for each attempt. `triton_kernels/random.py` computes the same words.
What is made of them is the same within a few roundings; fills of float32 by `triton_kernels/random_same.py` are so to the last bit.
Attention's dropout, which draws more than it multiplies, and those fills of 16 bits, which draw more than they write, take 7 rounds: the
fewest with which the paper's statistical tests are passed.
"""
from __future__ import annotations

import os

import numpy as np

MASK, SHIFT = np.uint64(0xFFFFFFFF), np.uint64(32)
ROUND_A, ROUND_B = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
KEY_A, KEY_B = 0x9E3779B9, 0xBB67AE85
PIECE = 1 << 17                                # elements that a thread draws at a time
FEW = 8                                        # counters: so many are quicker one by one
CHUNK = 16384                                  # counters at a time: the temporaries stay in cache (6.8 ns a word; 9.2 at 4096)


def philox(seed: int, c0, c1, c2=0, c3=0, rounds=10):
    """Four words (uint64 arrays below 2³²) of Philox4x32 for the counter words c0 … c3 and a 64-bit key."""
    c0, c1, c2, c3 = (np.asarray(c, np.uint64) for c in (c0, c1, c2, c3))
    low, high = seed & 0xFFFFFFFF, seed >> 32 & 0xFFFFFFFF
    for _ in range(rounds):
        a, b = ROUND_A * c0, ROUND_B * c2
        c0, c2 = (b >> SHIFT) ^ c1 ^ np.uint64(low), (a >> SHIFT) ^ c3 ^ np.uint64(high)
        c1, c3 = b & MASK, a & MASK
        low, high = low + KEY_A & 0xFFFFFFFF, high + KEY_B & 0xFFFFFFFF
    return c0, c1, c2, c3


def block(seed: int, counter: int, lane: int, rounds: int = 10) -> tuple[int, int, int, int]:
    """`philox` of one counter; arrays of a few elements take ten times as long."""
    c0, c1, c2, c3, low, high = counter & 0xFFFFFFFF, counter >> 32 & 0xFFFFFFFF, lane, 0, seed & 0xFFFFFFFF, seed >> 32 & 0xFFFFFFFF
    for _ in range(rounds):
        a, b = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1, c2, c3 = b >> 32 ^ c1 ^ low, b & 0xFFFFFFFF, a >> 32 ^ c3 ^ high, a & 0xFFFFFFFF
        low, high = low + KEY_A & 0xFFFFFFFF, high + KEY_B & 0xFFFFFFFF
    return c0, c1, c2, c3


def words(seed: int, offset: int, n: int, lane: int = 0, rounds: int = 10) -> np.ndarray:
    """n random uint32, from counter `offset` on.

    >>> words(0, 0, 4)
    array([1713891541, 3781805453, 3159862348, 2600524760], dtype=uint32)
    """
    count = -(-n // 4)
    if count <= FEW:
        return np.array([block(seed, offset + k, lane, rounds) for k in range(count)], np.uint32).reshape(-1)[:n]
    out = np.empty((count, 4), np.uint32)
    for start in range(0, count, CHUNK):
        stop = min(start + CHUNK, count)
        c = np.uint64(offset & 0xFFFFFFFFFFFFFFFF) + np.arange(start, stop, dtype=np.uint64)
        for j, word in enumerate(philox(seed, c & MASK, c >> SHIFT, lane, rounds=rounds)):
            out[start:stop, j] = word
    return out.reshape(-1)[:n]


def in_pieces(size, work):
    """work(start, stop) for every piece of `size` elements, those of a large array on all cores: numpy lets other threads go on."""
    def one(start):
        with np.errstate(all="ignore"):                                  # a thread of its own does not have the caller's
            work(start, min(start + PIECE, size))

    starts = range(0, size, PIECE)
    if len(starts) < 2:
        for start in starts:
            one(start)
    else:
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(min(len(starts), os.cpu_count() or 1)) as pool:
            for _ in pool.map(one, starts):
                pass


def long_words(seed: int, offset: int, n: int) -> np.ndarray:
    """n random uint64: words of lane 0 as high halves, of lane 1 as low ones."""
    return words(seed, offset, n).astype(np.uint64) << SHIFT | words(seed, offset, n, 1)


def bits_of(dtype, count, seed, offset):
    """The random bits of `count` elements, in pairs: one more if the number is odd."""
    count += count % 2
    return long_words(seed, offset, count) if dtype == np.float64 else words(seed, offset, count)


def multiply_high(x: np.ndarray, span: int) -> np.ndarray:
    """floor(x · span / 2⁶⁴) for uint64 x: an integer in [0, span), each as likely as the others within span / 2⁶⁴."""
    if span <= 1 << 32:
        return ((x >> SHIFT) * np.uint64(span) + ((x & MASK) * np.uint64(span) >> SHIFT)) >> SHIFT
    high, low = np.uint64(span >> 32), np.uint64(span & 0xFFFFFFFF)
    x_high, x_low = x >> SHIFT, x & MASK
    middle = x_high * low + (x_low * low >> SHIFT)
    return x_high * high + (middle >> SHIFT) + ((x_low * high + (middle & MASK)) >> SHIFT)
