"""Which blocks of scores a mask of rows and keys shows, for the kernels of attention in Gluon that go over those alone.

Each block of BLOCK_M rows has a list of blocks of BLOCK_N keys: those of which the mask hides or changes some score, from the front, and
those that it leaves as they are, from the back. Blocks that it hides are on none. Of those at the front there are the bits of all
scores, as the threads hold a product: a word has the keys 8 c + 2 t + d of one row, and one t of four, at the bits 2 c + d.
Where a floating mask holds other numbers than 0 and such that hide, bits do not tell; nor where a row sees nothing but the lowest numbers,
which is a mean of all values. Such lists say so.

The other way round, rows are keys and keys are rows: then each block of keys has its list of blocks of rows.
"""
import triton
import triton.language as tl

from .attention import head_ptr, rows_from

HEAD = tl.constexpr(4)                                                   # numbers before a list: those at the front, all, whether bits tell
LOWEST = tl.constexpr(-2.0 ** 99)                                        # less hides a key from rows that see others
MEAN = tl.constexpr(-2.0 ** 15)                                          # lse of rows that see nothing but such numbers


@triton.jit
def load_block(mask_ptr, stride, rows, n, L, S, MASK: tl.constexpr, WIDE: tl.constexpr, BLOCK_N: tl.constexpr):
    """Mask of rows and of the keys from n on; what is not there is hidden."""
    keys = rows_from(n, BLOCK_N, WIDE)
    mask_ptrs = mask_ptr + (rows[:, None] * stride[2] + keys[None, :] * stride[3])
    return tl.load(mask_ptrs, mask=(rows < L)[:, None] & (keys < S)[None, :], other=0 if MASK == 1 else float("-inf"))


@triton.jit
def bits_of(shown, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """(rows, 4) words."""
    c, d = tl.arange(0, BLOCK_N // 8), tl.arange(0, 2)
    bits = shown.to(tl.int32).reshape(BLOCK_M, BLOCK_N // 8, 4, 2) << (2 * c[None, :, None, None] + d[None, None, None, :])
    return tl.sum(tl.sum(bits, 3), 1)


@triton.jit
def attention_blocks_kernel(lists_ptr, words_ptr, mask_ptr, lse_ptr, stride_mask, stride_lse, HEADS, L, S, MASK: tl.constexpr,
                            WIDE: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """Lists (matrices, row blocks, HEAD + key blocks) and words (matrices, row blocks, key blocks, BLOCK_M, 4). With lse_ptr rows
    are keys: which of the rows see nothing but the lowest numbers, their lse tells. Grid: row blocks · matrices. (Long, because a list has
    two ends.)"""
    blocks, across = tl.cdiv(L, BLOCK_M), tl.cdiv(S, BLOCK_N)
    matrix = tl.program_id(0) // blocks
    batch, head = matrix // HEADS, matrix % HEADS
    rows = rows_from(tl.program_id(0) % blocks * BLOCK_M, BLOCK_M, WIDE)
    mask_ptr = head_ptr(mask_ptr, stride_mask, batch, head)
    list_ptr = lists_ptr + tl.program_id(0).to(tl.int64) * (HEAD + across)
    words_ptrs = words_ptr + tl.program_id(0).to(tl.int64) * across * (BLOCK_M * 4)
    words_ptrs += tl.arange(0, BLOCK_M)[:, None] * 4 + tl.arange(0, 4)[None, :]
    highest = tl.full((BLOCK_M, BLOCK_N), float("-inf"), tl.float32)
    part, whole, changed = 0, 0, 0
    scores = (tl.minimum(L - tl.program_id(0) % blocks * BLOCK_M, BLOCK_M) * BLOCK_N).to(tl.int32)
    following = load_block(mask_ptr, stride_mask, rows, 0, L, S, MASK, WIDE, BLOCK_N)
    for block in range(across):
        mask = following                                                 # the next one comes meanwhile
        following = load_block(mask_ptr, stride_mask, rows, (block + 1) * BLOCK_N, L, S, MASK, WIDE, BLOCK_N)
        if MASK == 1:
            shown = mask != 0
            seen = tl.sum(shown.to(tl.int32))
            left = seen
        else:
            mask = mask.to(tl.float32)
            shown = (mask <= LOWEST) == 0                                # NaN is no low number
            counts = tl.sum(shown.to(tl.int32) + tl.where(mask == 0, 1 << 16, 0))
            seen, left = counts & 0xFFFF, counts >> 16
            changed = tl.maximum(changed, (seen > left).to(tl.int32))
            if lse_ptr is None:
                highest = tl.maximum(highest, mask)
            else:
                keys = rows_from(block * BLOCK_N, BLOCK_N, WIDE)
                lse = tl.load(head_ptr(lse_ptr, stride_lse, batch, head) + keys * stride_lse[2], mask=keys < S, other=0)
                means = (lse < MEAN) & (lse > float("-inf"))
                if tl.max(means.to(tl.int32), 0) > 0:
                    changed, seen = 1, tl.maximum(seen, 1)
        if seen > 0:
            all_of_it = left == scores
            place = tl.where(all_of_it, across - 1 - whole, part)
            tl.store(list_ptr + HEAD + place, block)
            if left < scores:
                tl.store(words_ptrs + part * (BLOCK_M * 4), bits_of(shown, BLOCK_M, BLOCK_N))
            part += 1 - all_of_it.to(tl.int32)
            whole += all_of_it.to(tl.int32)
    if MASK == 2:
        if lse_ptr is None:
            top = tl.max(highest, 1)
            means = (rows < L) & (top <= LOWEST) & (top > float("-inf"))
            if tl.max(means.to(tl.int32), 0) > 0:                        # they meet all keys
                part, whole, changed = across, 0, 1
                for block in range(across):
                    tl.store(list_ptr + HEAD + block, block)
    if part == 0:                                                        # at least one is looked at, and the first as if it were in part
        tl.store(words_ptrs, tl.full((BLOCK_M, 4), 0, tl.int32) - tl.minimum(whole, 1))
        if whole == 0:
            tl.store(list_ptr + HEAD, 0)
            part = 1
    tl.store(list_ptr, part)
    tl.store(list_ptr + 1, part + whole)
    tl.store(list_ptr + 2, changed)
