"""Which scores dropout takes away, for the kernels of attention in Gluon: the choice of `kept` in attention.py, to the bit.

Of a product of 64 rows and some columns a thread holds the places [16 warp + 8 h + r, 16 c + 8 e + 2 t + d], where r is lane / 4 and t is
lane % 4, for all c, and e, h and d of 0 and 1. A counter has the bits for both h and both e, and for two keys: those that differ in d,
or where the rows of the product are keys, in r % 2, which two threads hold.
"""
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier

ROUNDS = gl.constexpr(7)                                                 # of Philox, as in attention.py


# ------------------------------------------------------------------ places
@gluon.constexpr_function
def placed(shape, lanes, registers=(), blocks=None):
    """A layout by the dim and the step that each bit of the lane's number and of the registers' stands for. Dim 0 counts the warps; that of
    the blocks of columns is in registers too."""
    def step(dim, n):
        return [n * (at == dim) for at in range(len(shape))]

    bits = [(blocks, 1 << bit) for bit in range(shape[blocks].bit_length() - 1)]
    return gl.DistributedLinearLayout([step(*at) for at in (*registers, *bits)], [step(*at) for at in lanes], [step(0, 1), step(0, 2)], [],
                                      shape)


@gluon.constexpr_function
def in_line(layout):
    """The layout of the same elements one after the other."""
    steps = [1]
    for n in layout.shape[:0:-1]:
        steps.insert(0, n * steps[0])
    bases = [[[sum(a * b for a, b in zip(at, steps))] for at in x] for x in (layout.reg_bases, layout.lane_bases, layout.warp_bases)]
    return gl.DistributedLinearLayout(*bases, [], [layout.shape[0] * steps[0]])


@gluon.jit
def numbers(LAYOUT: gl.constexpr):
    """The numbers of elements in row-major order, as they are placed."""
    LINE: gl.constexpr = in_line(LAYOUT)
    return gl.convert_layout(gl.arange(0, LINE.shape[0], LINE).reshape(LAYOUT.shape), LAYOUT, assert_trivial=True)


# ------------------------------------------------------------------ bits
@gluon.jit
def draws_of(base_ptr, seed, offset, threshold, keep_scale):
    """What the kernels pass on. Under a captured graph seed and first counter live on the device, and offset counts from there."""
    if base_ptr is not None:
        seed = gl.load(base_ptr)
        offset += gl.load(base_ptr + 1)
    return seed, offset, threshold, keep_scale


@gluon.jit
def first_counter(draws, matrix, L, S):
    """(the counter with which a head begins, how many there are for a pair of rows)."""
    across = gl.to_tensor(gl.cdiv(S, 16)).to(gl.int64) * 4
    return draws[1] + matrix.to(gl.int64) * (gl.cdiv(L, 16) * 8) * across, across


@gluon.jit
def halves_of_product(a, b):
    """(upper, lower) 32 bits."""
    return gl.inline_asm_elementwise("{.reg .b64 both; mul.wide.u32 both, $2, $3; mov.b64 {$1, $0}, both;}", "=r,=r,r,r", [a, b],
                                     dtype=(gl.uint32, gl.uint32), is_pure=True, pack=1)


@gluon.jit
def philox(seed, counter):
    """The four words of Philox4x32 for a 64-bit counter."""
    k0, k1 = seed.to(gl.uint32), (seed >> 32).to(gl.uint32)
    c0, c1 = counter.to(gl.uint32), (counter >> 32).to(gl.uint32)
    c2, c3 = c0 * 0, c0 * 0
    for _ in gl.static_range(ROUNDS):
        a1, a0 = halves_of_product(c0, c0 * 0 + 0xD2511F53)
        b1, b0 = halves_of_product(c2, c0 * 0 + 0xCD9E8D57)
        c0, c1, c2, c3 = b1 ^ c1 ^ k0, b0, a1 ^ c3 ^ k1, a0
        k0, k1 = (k0 + 0x9E3779B9).to(gl.uint32), (k1 + 0xBB67AE85).to(gl.uint32)
    return c0, c1, c2, c3


@gluon.jit
def below(word, threshold):
    """A word whose bits 31 and 15 say whether 15 bits of the upper and of the lower half of another one are below the threshold."""
    return threshold.to(gl.uint32) * 0x10001 + 0x7FFF7FFF - (word & 0x7FFF7FFF)


# ------------------------------------------------------------------ rows by keys
@gluon.constexpr_function
def by_rows(C):
    """(warp, r, c, t)"""
    return placed([4, 8, C, 4], [(3, 1), (3, 2), (1, 1), (1, 2), (1, 4)], blocks=2)


@gluon.jit
def pair_below(word, threshold):
    """Words whose signs say whether the lower and the upper half of a word are below the threshold: (…, d)."""
    signs = below(word, threshold)
    return gl.join(signs << 16, signs)


@gluon.jit
def dropped_keys(p, draws, place, m, n, BLOCK_N: gl.constexpr):
    """Weights of 64 rows from m on and the keys from n on, negative where dropout takes one away; place is what `first_counter` says."""
    LAYOUT: gl.constexpr = by_rows(BLOCK_N // 16)
    number = numbers(LAYOUT)
    warp, r, c, t = number // (2 * BLOCK_N), number // (BLOCK_N // 4) % 8, number // 4 % (BLOCK_N // 16), number % 4
    first, across = place
    of_row = first + (m // 2 + 8 * warp + r).to(gl.int64) * across + t.to(gl.int64)
    words = philox(draws[0], of_row + n // 4 + 4 * c.to(gl.int64))
    near = gl.join(pair_below(words[0], draws[2]), pair_below(words[1], draws[2]))
    far = gl.join(pair_below(words[2], draws[2]), pair_below(words[3], draws[2]))
    signs = gl.join(near, far).permute((0, 6, 1, 2, 5, 3, 4)).reshape((64, BLOCK_N))             # from (warp, r, c, t, d, e, h)
    return with_sign(p, gl.convert_layout(signs, p.type.layout, assert_trivial=True))


# ------------------------------------------------------------------ keys by rows
@gluon.constexpr_function
def drawn_by_keys(BLOCKS):
    """(warp, r / 2, c / 4, t, d): of two threads that share counters one draws for d = 1. What it finds for four c is a word."""
    return placed([4, 4, BLOCKS, 4, 2], [(3, 1), (3, 2), (4, 1), (1, 1), (1, 2)], blocks=2)


@gluon.constexpr_function
def shared_by_keys(BLOCKS):
    """(warp, r / 2, r % 2, c / 4, t, d): both threads have both words."""
    return placed([4, 4, 2, BLOCKS, 4, 2], [(4, 1), (4, 2), (2, 1), (1, 1), (1, 2)], [(5, 1)], blocks=3)


@gluon.constexpr_function
def by_keys(BLOCKS):
    """(warp, h, r, c / 4, 2 (c % 4) + e, t, d)"""
    return placed([4, 2, 8, BLOCKS, 8, 4, 2], [(5, 1), (5, 2), (2, 1), (2, 2), (2, 4)], [(6, 1), (1, 1), (4, 1), (4, 2), (4, 4)], blocks=3)


@gluon.constexpr_function
def word_by_keys(BLOCKS):
    """(warp, r, c / 4, t): where the words are that the functions below hand on."""
    return gl.SliceLayout(1, gl.SliceLayout(4, gl.SliceLayout(6, by_keys(BLOCKS))))


@gluon.jit
def no_drop_bits(BLOCK_M: gl.constexpr):
    """Words that keep all scores."""
    return gl.zeros((4, 8, BLOCK_M // 64, 4), gl.uint32, word_by_keys(BLOCK_M // 64))


@gluon.jit
def drop_bits(draws, first, S, BLOCK_M: gl.constexpr):
    """Words for 64 keys and the rows that meet them, the counter of the first of both being `first`: (warp, r, c / 4, t), with bit
    16 d + 4 (c % 4) + 2 e + h for each score, 1 where dropout takes it away."""
    BLOCKS: gl.constexpr = BLOCK_M // 64
    SHARED: gl.constexpr = shared_by_keys(BLOCKS)
    number, across = numbers(drawn_by_keys(BLOCKS)), gl.to_tensor(gl.cdiv(S, 16)).to(gl.int64) * 4
    pair = number // 8 % BLOCKS * 32 + number % 8
    counter = first + pair.to(gl.int64) * across + (number // (8 * BLOCKS)).to(gl.int64)
    bits = counter.to(gl.uint32) * 0
    for c in gl.static_range(4):
        words = philox(draws[0], counter + c * 8 * across)
        for x in gl.static_range(4):                                     # 16 bits of either key, the first of which end up lowest
            bits = (bits >> 1) | (below(words[x], draws[2]) & 0x80008000)
    bits = gl.convert_layout(bits, gl.SliceLayout(2, SHARED))[:, :, None, :, :, :]
    number = numbers(SHARED)
    mine = (bits >> (number // (8 * BLOCKS) % 2 * 16).to(gl.uint32)) & 0xFFFF
    bits = gl.sum(mine << (number % 2 * 16).to(gl.uint32), 5).reshape((4, 8, BLOCKS, 4))
    return gl.convert_layout(bits, word_by_keys(BLOCKS), assert_trivial=True)


@gluon.jit
def drawn_ahead(more, draws, counters, ready, slot, phase, keys, S, BLOCK_M: gl.constexpr):
    """The words of a step, if there is one more: its first counter lies in the slot, and `keys` counters further that of the group."""
    bits = no_drop_bits(BLOCK_M)
    if more:
        mbarrier.wait(ready.index(slot), phase)
        first = gl.max(counters.index(slot).load(gl.BlockedLayout([1], [32], [4], [0])), 0)
        bits = drop_bits(draws, first + keys, S, BLOCK_M)
    return bits


@gluon.jit
def with_sign(p, x):
    """p ≥ 0 with the sign of x."""
    return gl.inline_asm_elementwise("lop3.b32 $0, $1, $2, 0x80000000, 0xF8;", "=f,f,r", [p, x], dtype=gl.float32, is_pure=True, pack=1)


@gluon.jit
def without_dropped(p, T: gl.constexpr):
    """p rounded to T, 0 where it is negative, which costs nothing."""
    if T == gl.bfloat16:
        return gl.inline_asm_elementwise("cvt.rn.relu.bf16x2.f32 $0, $2, $1;", "=r,f,f", [p], dtype=gl.bfloat16, is_pure=True, pack=2)
    else:
        return gl.inline_asm_elementwise("cvt.rn.relu.f16x2.f32 $0, $2, $1;", "=r,f,f", [p], dtype=gl.float16, is_pure=True, pack=2)


@gluon.jit
def of_kept(p, draws, T: gl.constexpr):
    """Weights as they are multiplied: those that dropout takes away have a minus."""
    if len(draws) > 0:
        return without_dropped(p, T)
    else:
        return p.to(T)


@gluon.jit
def carried(p, draws, T: gl.constexpr, LEAN: gl.constexpr):
    """Weights as a loop carries them. LEAN: as they are multiplied, two neighbours a word, which takes half of the registers; numbers of 16
    bits each would be unpacked and packed again."""
    if LEAN:
        even, odd = p.reshape((p.shape[0], p.shape[1] // 2, 2)).split()
        relu: gl.constexpr = ".relu" if len(draws) > 0 else ""
        code: gl.constexpr = "cvt.rn" + relu + (".bf16x2" if T == gl.bfloat16 else ".f16x2") + ".f32 $0, $2, $1;"
        p = gl.inline_asm_elementwise(code, "=r,f,f", [even, odd], dtype=gl.int32, is_pure=True, pack=1)
    return p


@gluon.jit
def multiplied(p, draws, T: gl.constexpr, LAYOUT: gl.constexpr, LEAN: gl.constexpr):
    """What was carried, as it is multiplied, in the layout of the scores."""
    if LEAN:
        even, odd = gl.inline_asm_elementwise("mov.b32 {$0, $1}, $2;", "=h,=h,r", [p], dtype=(gl.int16, gl.int16), is_pure=True, pack=1)
        p = gl.join(even, odd).reshape((p.shape[0], 2 * p.shape[1])).to(T, bitcast=True)
        return gl.convert_layout(p, LAYOUT, assert_trivial=True)
    else:
        return of_kept(p, draws, T)


@gluon.jit
def dropped_negative(p, bits, BLOCK_M: gl.constexpr):
    """Weights, (keys, rows), with a minus where dropout takes one away: so no register needs to remember it."""
    LAYOUT: gl.constexpr = by_keys(BLOCK_M // 64)
    number = numbers(LAYOUT)
    at = number % 2 * 16 + number // 8 % 8 * 2 + number // (8 * BLOCK_M) % 2
    signs = (bits[:, None, :, :, None, :, None] << (31 - at).to(gl.uint32)).reshape((64, BLOCK_M))
    return with_sign(p, gl.convert_layout(signs, p.type.layout, assert_trivial=True))
