"""Pairs of programs of matmul_gluon.py that share what they read of b: a cluster of two, neighbours in rows of the same columns.

Each loads half of the columns of a block of b and TMA delivers it to both, at the same place of their shared memory, and counts its bytes
at the same barrier of both. So a slot is empty when the consumers of both programs have multiplied it, and each of them says so to both.
Where b and a are as wide, a pair reads a quarter less from the second cache than two programs alone.

Triton 3.6 has no words for this. What is between `marked` and `unmarked` tritorch/cuda/compiler_cluster.py makes reach the whole cluster:
a load goes to all programs, an arrival is counted by all. No program may be signalled before its barriers are there, so all meet at the
start: every warp of each of them, which is why there are warps that do nothing else (`idle`), where Triton would fill the last warp group
with some that no code reaches. None may end while it can be signalled: all loads come to somebody who waits for them, and the loading warp
waits at the end until all slots are empty (`drain`).
"""
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma

load = getattr(tma, "async_load", None) or tma.async_copy_global_to_shared           # the older name is that of Triton 3.6


@gluon.jit
def marked(CLUSTER: gl.constexpr):
    """What follows reaches all programs of a cluster."""
    if CLUSTER > 1:
        gl.inline_asm_elementwise("mov.b32 $0, 0; // cluster: begin", "=r", [], dtype=gl.int32, is_pure=False, pack=1)


@gluon.jit
def unmarked(CLUSTER: gl.constexpr):
    if CLUSTER > 1:
        gl.inline_asm_elementwise("mov.b32 $0, 0; // cluster: end", "=r", [], dtype=gl.int32, is_pure=False, pack=1)


@gluon.jit
def meet(CLUSTER: gl.constexpr):
    """Wait for all threads of a cluster. What they made before `tell_barriers` is there; ".release" would wait for writes to memory."""
    if CLUSTER > 1:
        gl.inline_asm_elementwise("barrier.cluster.arrive.relaxed.aligned; barrier.cluster.wait.acquire.aligned; mov.b32 $0, 0;", "=r", [],
                                  dtype=gl.int32, is_pure=False, pack=1)


@gluon.jit
def idle(CLUSTER: gl.constexpr):
    """All that warps do which have nothing to do."""
    meet(CLUSTER)


@gluon.jit
def tell_barriers(CLUSTER: gl.constexpr):
    """Barriers that were made are there for the whole cluster."""
    if CLUSTER > 1:
        gl.inline_asm_elementwise("fence.mbarrier_init.release.cluster; mov.b32 $0, 0;", "=r", [], dtype=gl.int32, is_pure=False, pack=1)


@gluon.jit
def arrive_at_all(barrier, pred, CLUSTER: gl.constexpr):
    """Arrive at the barrier of the same place of each program."""
    marked(CLUSTER)
    mbarrier.arrive(barrier, count=1, pred=pred)
    unmarked(CLUSTER)


@gluon.jit
def load_b(desc, batch, n, k, full, b_bufs, slot, TRANS_B: gl.constexpr, CLUSTER: gl.constexpr):
    """Load a block of b to its slot: of a cluster each program a part of its columns, which comes to all of them."""
    PART: gl.constexpr = desc.block_type.shape[1 if TRANS_B else 2]
    if CLUSTER == 1:
        b = b_bufs.index(slot)
    else:
        rank = gl.program_id(0) % CLUSTER
        n += rank * PART
        SHAPE: gl.constexpr = [desc.block_type.shape[1], desc.block_type.shape[2]]
        parts = b_bufs._reinterpret(desc.dtype, [CLUSTER * b_bufs.shape[0], SHAPE[0], SHAPE[1]],
                                    gl.NVMMASharedLayout.get_default_for(SHAPE, desc.dtype))
        b = parts.index(slot * CLUSTER + rank)
    marked(CLUSTER)
    load(desc, [batch, n, k] if TRANS_B else [batch, k, n], full, b.reshape(desc.block_type.shape))
    unmarked(CLUSTER)


@gluon.jit
def drain(empty, slot, phase, STAGES: gl.constexpr, CLUSTER: gl.constexpr):
    """Wait until all slots from this one on are empty."""
    if CLUSTER > 1:
        for _ in gl.static_range(STAGES):
            mbarrier.wait(empty.index(slot), phase)
            phase ^= gl.where(slot == STAGES - 1, 1, 0)
            slot = (slot + 1) % STAGES


@gluon.jit
def in_pairs(shape, BLOCK_M: gl.constexpr, CLUSTER: gl.constexpr):
    """The sizes of a product with as many rows as whole clusters have: of tiles below the last one zeros come, and nothing leaves."""
    if CLUSTER == 1:
        return shape
    else:
        return shape[0], gl.cdiv(shape[1], CLUSTER * BLOCK_M) * (CLUSTER * BLOCK_M), shape[2], shape[3]
