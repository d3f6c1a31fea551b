"""How tiles of matmul_gluon.py leave: in pieces of their columns, by TMA or where that cannot store them, and the sums of rows."""
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, tma

from .matmul import activated

store = getattr(tma, "async_store", None) or tma.async_copy_shared_to_global         # the older name is that of Triton 3.6


@gluon.jit
def halves(x):
    return x.reshape((x.shape[0], 2, x.shape[1] // 2)).permute((0, 2, 1)).split()


@gluon.jit
def pieces_of(acc, PIECES: gl.constexpr):
    """A tile as 1, 2, 4 or 8 pieces of its columns; this moves nothing between threads."""
    if PIECES == 1:
        return (acc, )
    else:
        left, right = halves(acc)
        return pieces_of(left, PIECES // 2) + pieces_of(right, PIECES // 2)


@gluon.jit
def scatter(out, batch, m, n, shape, value, buf, WARPS: gl.constexpr):
    """Store a piece where TMA cannot, neighbours of a row by neighbouring threads. out: a pointer, strides of matrices and rows."""
    layout: gl.constexpr = gl.BlockedLayout([1, 1], [1, 32], [WARPS, 1], [1, 0])
    buf.store(value)
    rm = m + gl.arange(0, value.shape[0], gl.SliceLayout(1, layout))[:, None]
    rn = n + gl.arange(0, value.shape[1], gl.SliceLayout(0, layout))[None, :]
    places = batch.to(gl.int64) * out[1] + rm.to(gl.int64) * out[2] + rn
    gl.store(out[0] + places, buf.load(layout), mask=(rm < shape[1]) & (rn < shape[2]))


@gluon.jit
def send(out_desc, pre_desc, batch, m, n, out, pre, out_buf, pre_buf, LEFT: gl.constexpr):
    """Store a piece by TMA, and with pre_desc what it was before the activation, once no more than LEFT that were sent before are on
    their way out of their buffers."""
    tma.store_wait(pendings=LEFT)
    if pre_desc is not None:
        pre_buf.store(pre)
    out_buf.store(out)
    fence_async_shared()
    if pre_desc is not None:
        store(pre_desc, [batch, m, n], pre_buf.reshape(pre_desc.block_type.shape))
    store(out_desc, [batch, m, n], out_buf.reshape(out_desc.block_type.shape))


@gluon.jit
def depart(out_desc, pre_desc, batch, m, n, shape, value, bufs, first, i: gl.constexpr, ACTIVATION: gl.constexpr, BUFFERS: gl.constexpr,
           WARPS: gl.constexpr):
    """Let piece i of a tile leave from one of BUFFERS buffers, of which it has `first` and those behind, by the way there is."""
    STORES: gl.constexpr = 1 if pre_desc is None else 2
    pre_buf = bufs.index(first + STORES * i % BUFFERS)
    out_buf = bufs.index(first + (STORES * i + STORES - 1) % BUFFERS)
    if isinstance(out_desc, gl.tuple):
        if pre_desc is not None:
            scatter(pre_desc, batch, m, n, shape, value, pre_buf, WARPS)
        scatter(out_desc, batch, m, n, shape, activated(value, ACTIVATION), out_buf, WARPS)
    else:
        send(out_desc, pre_desc, batch, m, n, activated(value, ACTIVATION), value, out_buf, pre_buf, BUFFERS - STORES)


@gluon.jit
def store_sums(sums_ptr, sums, place, bound, n, ADD: gl.constexpr):
    """The sums of rows to a place, up to a bound, of the first tile of its row; ADD: to what is there."""
    rows = gl.arange(0, sums.shape[0], sums.type.layout)
    if n == 0:
        if ADD:
            sums += gl.load(sums_ptr + (place + rows), mask=rows < bound, other=0)
        gl.store(sums_ptr + (place + rows), sums, mask=rows < bound)
