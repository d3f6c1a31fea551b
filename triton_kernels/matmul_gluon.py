"""Matrix products of 8 and 16 bits and in TF32 on Hopper with the schedule written out: a warp loads by TMA, groups of warps multiply.

The loading warp fills a ring of STAGES slots, tile after tile, without waiting for the tiles to be finished. One consumer of 8 warps takes
every tile (both warp groups share its columns), or two consumers of 4 warps take turns: while one stores its tile the other multiplies.
Or PARTS consumers share a tile of PARTS * BLOCK_M rows: three of 64 x 256 have room in the registers, and 192 x 256 numbers need a quarter
less from the cache for each product than 128 x 256. A barrier says whose turn it is: a phase has one bit, so nobody may wait for a slot
while the other still has to meet what comes before in it.

What the epilogue adds to a tile, or takes a slope at, comes by TMA too where it lies as the result does: piece by piece, each into the
buffer in which the result of that piece leaves, BUFFERS - 1 pieces ahead and so while the tile is being multiplied.

ACROSS is for operands of 32 bits, which matrix units take from shared memory along K alone, and one consumer: b lies along N, so the tile
is computed as its transpose, bᵀ aᵀ, with bᵀ from registers. As b lies, two of its words at a time would come from the same bank, so rows
of bᵀ change places, until the tile is stored (`dealt`, `gathered`).

The results are those of matmul_persistent.py, whose descriptors and epilogue these are; there is no interpreter for Gluon, so that file is
also the reference; matmul_stream.py says what STREAM is.
"""
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma, warpgroup_mma, warpgroup_mma_wait

from .matmul import epilogue, load_c, tile_of
from .matmul_cluster import arrive_at_all, drain, idle, in_pairs, load_b, meet, tell_barriers
from .matmul_last_gluon import meet_at_tile
from .matmul_leaving import depart, pieces_of, store_sums
from .matmul_stream import block_at, rounds_until, share_of, turn_of
from .quick import after_the_one_before, let_the_next_begin

load = getattr(tma, "async_load", None) or tma.async_copy_global_to_shared           # the older name is that of Triton 3.6


@gluon.jit
def place(tile, shape, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, GROUP_M: gl.constexpr, PROGRAMS: gl.constexpr = 1):
    """Matrix, row and column of a tile of BLOCK_M rows. PROGRAMS 0: of the one at a program's place in the grid (rows of tiles, columns of
    tiles, matrices): to divide takes hundreds of cycles before the first load."""
    if PROGRAMS == 0:
        return gl.program_id(2) % shape[0], gl.program_id(0) * BLOCK_M, gl.program_id(1) * BLOCK_N
    tiles = gl.cdiv(shape[1], BLOCK_M) * gl.cdiv(shape[2], BLOCK_N)
    pid_m, pid_n = tile_of(tile % tiles, shape[1], shape[2], BLOCK_M, BLOCK_N, GROUP_M)
    return tile // tiles, pid_m * BLOCK_M, pid_n * BLOCK_N


@gluon.jit
def tiles_of(shape, first, PROGRAMS: gl.constexpr, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr,
             STREAM: gl.constexpr):
    """The tiles of a program from its `first` on, to `last`, or its lines of tiles (STREAM); how many tiles and blocks of K there are.
    PROGRAMS 0: it has one."""
    total, steps = gl.cdiv(shape[1], BLOCK_M) * gl.cdiv(shape[2], BLOCK_N) * shape[0], gl.cdiv(shape[3], BLOCK_K)
    if STREAM:
        first, last = share_of(gl.program_id(0), total, steps, PROGRAMS, STREAM)
        return first, last, total, steps
    elif PROGRAMS == 0:
        return 0, 1, 1, steps
    else:
        return first, total, total, steps


@gluon.jit
def blocks_of(tile, total, steps, PROGRAMS: gl.constexpr, STREAM: gl.constexpr):
    """A tile, or this program's of a line of tiles, and as `turn_of` tells which blocks of its K."""
    if STREAM:
        return turn_of(tile, gl.program_id(0), total, steps, PROGRAMS, STREAM)
    else:
        return tile, 0, steps, 0, 0


@gluon.jit
def after(slot, phase, steps, STAGES: gl.constexpr):
    """Slot and phase of the ring some steps later."""
    slot += steps
    return slot % STAGES, phase ^ (slot // STAGES & 1)


@gluon.jit
def previous(slot, STAGES: gl.constexpr):
    """The slot of the ring before this one. A variable that follows `slot` through a loop would begin as the same value, and Triton, which
    compares values before and after a trial run of the loop's body to see what changes, would take it for constant."""
    return (slot + STAGES - 1) % STAGES


@gluon.jit
def produce(a_desc, b_desc, ring, shape, TRANS_A: gl.constexpr, TRANS_B: gl.constexpr, SHARED_A: gl.constexpr, SHARED_B: gl.constexpr,
            PROGRAMS: gl.constexpr, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr, GROUP_M: gl.constexpr,
            STAGES: gl.constexpr, PARTS: gl.constexpr, STREAM: gl.constexpr, CLUSTER: gl.constexpr):
    """The loading warp: wait until a slot is empty, fill it."""
    meet(CLUSTER)
    a_bufs, b_bufs, empty, ready, _, _ = ring
    shape = in_pairs(shape, PARTS * BLOCK_M, CLUSTER)
    first, last, total, steps = tiles_of(shape, gl.program_id(0), PROGRAMS, PARTS * BLOCK_M, BLOCK_N, BLOCK_K, STREAM)
    slot, phase = 0, 1                                   # all slots are empty at first
    for at in range(first, last, 1 if STREAM else max(PROGRAMS, 1)):
        tile, begin, end, to, turn = blocks_of(at, total, steps, PROGRAMS, STREAM)
        batch, m, n = place(tile, shape, PARTS * BLOCK_M, BLOCK_N, GROUP_M, PROGRAMS)
        at_a = batch * 0 if SHARED_A else batch
        at_b = batch * 0 if SHARED_B else batch
        for i in range(begin, end):
            k = (block_at(i, turn) if STREAM else i) * BLOCK_K
            mbarrier.wait(empty.index(slot), phase)
            full = ready.index(slot)
            mbarrier.expect(full, PARTS * a_desc.block_type.nbytes + CLUSTER * b_desc.block_type.nbytes)
            for part in gl.static_range(PARTS):
                a = a_bufs.index(slot * PARTS + part).reshape(a_desc.block_type.shape)
                load(a_desc, [at_a, k, m + part * BLOCK_M] if TRANS_A else [at_a, m + part * BLOCK_M, k], full, a)
            load_b(b_desc, at_b, n, k, full, b_bufs, slot, TRANS_B, CLUSTER)
            slot, phase = after(slot, phase, 1, STAGES)
    drain(empty, slot, phase, STAGES, CLUSTER)


@gluon.jit
def operands(ring, slot, phase, TRANS_A: gl.constexpr, TRANS_B: gl.constexpr, PARTS: gl.constexpr, TURN: gl.constexpr):
    """What a consumer multiplies of a slot, once it is there."""
    mbarrier.wait(ring[3].index(slot), phase)
    a, b = ring[0].index(slot * PARTS + TURN % PARTS), ring[1].index(slot)
    return a.permute((1, 0)) if TRANS_A else a, b.permute((1, 0)) if TRANS_B else b


@gluon.jit
def multiply_steps(ring, slot, phase, acc, sums, begin, end, TRANS_A: gl.constexpr, TRANS_B: gl.constexpr, STAGES: gl.constexpr,
                   PARTS: gl.constexpr, TURN: gl.constexpr, SUMS: gl.constexpr, CLUSTER: gl.constexpr):
    """acc and the products of some steps of a tile, of which the last one is under way; with SUMS also sums and the columns of a's blocks,
    which are read while their product is under way."""
    for k in range(begin, end):
        a, b = operands(ring, slot, phase, TRANS_A, TRANS_B, PARTS, TURN)
        acc = warpgroup_mma(a, b, acc, is_async=True)
        if SUMS:
            AT_ONCE: gl.constexpr = sums.shape[1]
            for part in gl.static_range(a.shape[1] // AT_ONCE):
                sums += a.slice(part * AT_ONCE, AT_ONCE, 1).load(sums.type.layout).to(gl.float32)
        acc = warpgroup_mma_wait(num_outstanding=1, deps=(acc, ))
        arrive_at_all(ring[2].index(previous(slot, STAGES)), k > 0, CLUSTER)
        slot, phase = after(slot, phase, 1, STAGES)
    return acc, sums, slot, phase


@gluon.jit
def multiply_tile(ring, slot, phase, steps, summed, count, TRANS_A: gl.constexpr, TRANS_B: gl.constexpr, BLOCK_M: gl.constexpr,
                  BLOCK_N: gl.constexpr, STAGES: gl.constexpr, CONSUMERS: gl.constexpr, PARTS: gl.constexpr, TURN: gl.constexpr,
                  WARPS: gl.constexpr, SUMS: gl.constexpr, CLUSTER: gl.constexpr):
    """The sum over K of one tile, this consumer's `count`th, and with SUMS the sums of a's rows over its steps from summed[0] to
    summed[1]. One product is always under way: a slot is given back while the next one is being multiplied, which takes two STAGES at
    least. A thread adds up eight rows as they lie side by side, so that the eight that read at the same time find them in all banks."""
    a_bufs, _, empty, _, turns, _ = ring
    DEPTH: gl.constexpr = 256 // a_bufs.dtype.primitive_bitwidth
    WHOLE: gl.constexpr = a_bufs.dtype == gl.int8
    # Triton 3.6 lacks wgmma of more columns for int8; of 16 warps, ptxas takes none that names more registers than each would have alone
    AT_ONCE: gl.constexpr = 128 if (WHOLE or PARTS == 3) and BLOCK_N > 128 else BLOCK_N
    ACROSS: gl.constexpr = max(BLOCK_M // (8 * WARPS), 1)
    BESIDE: gl.constexpr = min(32 // ACROSS, a_bufs.shape[1] if TRANS_A else a_bufs.shape[2])
    layout: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[WARPS, 1], instr_shape=[16, AT_ONCE, DEPTH])
    eights: gl.constexpr = gl.BlockedLayout([8, 1], [ACROSS, 32 // ACROSS], [WARPS, 1], [1, 0])
    acc = gl.zeros((BLOCK_M, BLOCK_N), gl.int32 if WHOLE else gl.float32, layout)
    sums = gl.zeros((BLOCK_M, BESIDE), gl.float32, eights)
    if CONSUMERS == 2:
        mbarrier.wait(turns.index(TURN), (count & 1) ^ (1 - TURN))
    if SUMS:
        acc, sums, slot, phase = multiply_steps(ring, slot, phase, acc, sums, 0, summed[0], TRANS_A, TRANS_B, STAGES, PARTS, TURN, False,
                                                CLUSTER)
        acc, sums, slot, phase = multiply_steps(ring, slot, phase, acc, sums, summed[0], summed[1], TRANS_A, TRANS_B, STAGES, PARTS, TURN,
                                                True, CLUSTER)
    acc, _, slot, phase = multiply_steps(ring, slot, phase, acc, sums, summed[1], steps, TRANS_A, TRANS_B, STAGES, PARTS, TURN, False,
                                         CLUSTER)
    if CONSUMERS == 2:
        mbarrier.arrive(turns.index(1 - TURN), count=1)  # the last product is still under way
    acc = warpgroup_mma_wait(num_outstanding=0, deps=(acc, ))
    arrive_at_all(empty.index(previous(slot, STAGES)), True, CLUSTER)
    return acc, gl.sum(sums, 1), slot, phase


@gluon.jit
def dealt(b, HALF: gl.constexpr):
    """A half along K of a block (BLOCK_K, BLOCK_N) of b, transposed. Of 32 rows one after the other 16 have changed places so that a warp's
    threads find theirs in all banks, two neighbours in each."""
    K: gl.constexpr = b.shape[0]
    N: gl.constexpr = b.shape[1]
    rows = b.permute((1, 0)).reshape((N // 32, 2, 2, 2, 2, 2, K)).permute((0, 2, 5, 3, 1, 4, 6)).reshape((N, K))
    return rows.slice(HALF * (K // 2), K // 2, 1)


@gluon.jit
def gathered(x):
    """Sums whose rows were dealt, back in order and transposed; this moves nothing between threads."""
    N: gl.constexpr = x.shape[0]
    M: gl.constexpr = x.shape[1]
    return x.reshape((N // 32, 2, 2, 2, 2, 2, M)).permute((6, 0, 4, 1, 3, 5, 2)).reshape((M, N))


@gluon.jit
def multiply_across(ring, slot, phase, steps, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, STAGES: gl.constexpr, WARPS: gl.constexpr):
    """`multiply_tile` for ACROSS and the only consumer: the sum as (BLOCK_N, BLOCK_M). A half of a slot is read while the half before it is
    being multiplied."""
    a_bufs, b_bufs, empty, ready, _, _ = ring
    HALF: gl.constexpr = b_bufs.shape[1] // 2
    layout: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[WARPS, 1], instr_shape=[16, BLOCK_M, 8])
    acc = gl.zeros((BLOCK_N, BLOCK_M), gl.float32, layout)
    for k in range(steps):
        mbarrier.wait(ready.index(slot), phase)
        for half in gl.static_range(2):
            b = dealt(b_bufs.index(slot), half).load(gl.DotOperandLayout(operand_index=0, parent=layout, k_width=1))
            a = a_bufs.index(slot).slice(half * HALF, HALF, 1)
            acc = warpgroup_mma(b, a.permute((1, 0)), acc, is_async=True)
            acc = warpgroup_mma_wait(num_outstanding=1, deps=(acc, ))
            if half == 0:
                mbarrier.arrive(empty.index(previous(slot, STAGES)), count=1, pred=k > 0)
        slot, phase = after(slot, phase, 1, STAGES)
    acc = warpgroup_mma_wait(num_outstanding=0, deps=(acc, ))
    mbarrier.arrive(empty.index(previous(slot, STAGES)), count=1)
    return acc, slot, phase


@gluon.jit
def fetch(c_desc, tile, last, i, shape, out_bufs, came, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, GROUP_M: gl.constexpr,
          PROGRAMS: gl.constexpr, BUFFERS: gl.constexpr, PARTS: gl.constexpr, TURN: gl.constexpr):
    """Load piece i of what the epilogue adds to a tile, if there is such a tile, into its buffer."""
    batch, m, n = place(tile, shape, PARTS * BLOCK_M, BLOCK_N, GROUP_M, PROGRAMS)
    m, n = m + TURN % PARTS * BLOCK_M, n + i * c_desc.block_type.shape[2]
    buf, full = out_bufs.index(TURN * BUFFERS + i % BUFFERS), came.index(TURN * BUFFERS + i % BUFFERS)
    mbarrier.expect(full, c_desc.block_type.nbytes, pred=tile < last)
    load(c_desc, [batch, m, n], full, buf.reshape(c_desc.block_type.shape), pred=tile < last)


@gluon.jit
def summing(n, begin, end, turn, shape, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr, STREAM: gl.constexpr):
    """The steps from and to which a tile at column n sums a's rows too: STREAM: those in its share of K, else all, of the first column."""
    if STREAM:
        columns, steps, n = gl.cdiv(shape[2], BLOCK_N), gl.cdiv(shape[3], BLOCK_K).to(gl.int64), n // BLOCK_N
        first = rounds_until((steps * n // columns).to(gl.int32), begin, end, turn)
        return first - begin, rounds_until((steps * (n + 1) // columns).to(gl.int32), first, end, turn) - begin
    else:
        return 0, gl.where(n == 0, end - begin, 0)


@gluon.jit
def consume(TURN: gl.constexpr, out_desc, pre_desc, sums_ptr, c_desc, c_ptr, stride_cb, stride_cm, stride_cn, join, ring, out_bufs, shape,
            alpha, beta, TRANS_A: gl.constexpr, TRANS_B: gl.constexpr, FORM: gl.constexpr, SLOPE: gl.constexpr, ACTIVATION: gl.constexpr,
            PROGRAMS: gl.constexpr, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr, GROUP_M: gl.constexpr,
            STAGES: gl.constexpr, PIECES: gl.constexpr, BUFFERS: gl.constexpr, CONSUMERS: gl.constexpr, PARTS: gl.constexpr,
            WARPS: gl.constexpr, STREAM: gl.constexpr, MOST: gl.constexpr, ACROSS: gl.constexpr, CLUSTER: gl.constexpr):
    """Multiply and store every CONSUMERS-th tile of this program, from its TURN on, or with PARTS this one of every tile. STREAM is for
    one consumer. The first tile of a row of tiles has the sums. c_desc: the residual, if there is one, else c. Long, as all that a warp
    group does."""
    meet(CLUSTER)
    tiled = in_pairs(shape, PARTS * BLOCK_M, CLUSTER)
    SUMS: gl.constexpr = sums_ptr is not None
    ROWS: gl.constexpr = BLOCK_M // PIECES if ACROSS else BLOCK_M
    WIDTH: gl.constexpr = BLOCK_N if ACROSS else BLOCK_N // PIECES
    DEPTH: gl.constexpr = 256 // ring[0].dtype.primitive_bitwidth
    piece: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[WARPS, 1], instr_shape=[16, WIDTH, DEPTH])
    START: gl.constexpr = TURN % CONSUMERS
    STEP: gl.constexpr = 1 if STREAM else CONSUMERS * max(PROGRAMS, 1)
    RESIDUAL: gl.constexpr = isinstance(beta, gl.tuple) and len(beta) % 2 == 1
    WAITS: gl.constexpr = CONSUMERS == 2 and BLOCK_N <= 128 and FORM == "row" and c_desc is None      # registers hold the row that is added
    first, last, total, steps = tiles_of(tiled, gl.program_id(0) + START * PROGRAMS, PROGRAMS, PARTS * BLOCK_M, BLOCK_N, BLOCK_K, STREAM)
    slot, phase = after(0, 0, START * steps, STAGES)     # the ring holds the other consumer's slots too
    count, came = 0, ring[5]
    if c_desc is not None:
        for i in gl.static_range(BUFFERS - 1):
            fetch(c_desc, first, last, i, tiled, out_bufs, came, BLOCK_M, BLOCK_N, GROUP_M, PROGRAMS, BUFFERS, PARTS, TURN)
    for turn in range(first, last, STEP):
        tile, begin, end, part, blocks = blocks_of(turn, total, steps, PROGRAMS, STREAM)
        batch, m, n = place(tile, tiled, PARTS * BLOCK_M, BLOCK_N, GROUP_M, PROGRAMS)
        m += TURN % PARTS * BLOCK_M
        summed = summing(n, begin, end, blocks, shape, BLOCK_N, BLOCK_K, STREAM) if SUMS else (0, 0)
        waiting = ()
        if WAITS:
            for i in gl.static_range(PIECES):
                rn = n + i * WIDTH + gl.arange(0, WIDTH, gl.SliceLayout(0, piece))
                waiting = waiting + (load_c(c_ptr, batch.to(gl.int64) * stride_cb, rn, rn, stride_cm, stride_cn, shape[1], shape[2], FORM),)
        if ACROSS:
            acc, slot, phase = multiply_across(ring, slot, phase, end - begin, BLOCK_M, BLOCK_N, STAGES, WARPS)
        else:
            acc, sums, slot, phase = multiply_tile(ring, slot, phase, end - begin, summed, count, TRANS_A, TRANS_B, BLOCK_M, BLOCK_N,
                                                   STAGES, CONSUMERS, PARTS, TURN, WARPS, SUMS, CLUSTER)
        let_the_next_begin(PROGRAMS == 0)
        if MOST:
            meet_at_tile(out_desc, pre_desc, sums_ptr, c_ptr, join, acc, sums, (batch, m, n), part, tile, total, steps,
                         (stride_cb, stride_cm, stride_cn), shape, alpha, beta, out_bufs, FORM, SLOPE, ACTIVATION, PROGRAMS, GROUP_M,
                         STREAM, MOST, PIECES, BUFFERS, WARPS, piece)
        if SUMS and not MOST:
            store_sums(sums_ptr, sums, part * BLOCK_M if STREAM else m, BLOCK_M if STREAM else shape[1] - m, n * 0 if STREAM else n,
                       c_ptr is not None and not STREAM)
        if STREAM and not MOST:
            batch, m, n = part, m * 0, n * 0
        slot, phase = after(slot, phase, (CONSUMERS - 1) * steps, STAGES)
        pieces = pieces_of(acc, PIECES)
        for i in gl.static_range(0 if MOST else PIECES):
            sums = gathered(pieces[i]) if ACROSS else gl.convert_layout(pieces[i], piece, assert_trivial=True)
            row, column = (m + i * ROWS, n) if ACROSS else (m, n + i * WIDTH)
            rm = row + gl.arange(0, ROWS, gl.SliceLayout(1, sums.type.layout))
            rn = column + gl.arange(0, WIDTH, gl.SliceLayout(0, sums.type.layout))
            added, behind_it = waiting[i] if WAITS else c_ptr, beta
            if c_desc is not None:
                at = TURN * BUFFERS + i % BUFFERS
                mbarrier.wait(came.index(at), count * (PIECES // BUFFERS) + i // BUFFERS & 1)
                came_in = out_bufs.index(at).load(piece)
                if RESIDUAL:
                    behind_it = (came_in, ) + beta[1:]
                else:
                    added = came_in
            value = epilogue(sums, added, batch.to(gl.int64) * stride_cb, rm, rn, stride_cm, stride_cn, shape[1], shape[2], alpha,
                             behind_it, out_bufs.dtype, FORM, SLOPE)
            depart(out_desc, pre_desc, batch, row, column, shape, value, out_bufs, TURN * BUFFERS, i, ACTIVATION, BUFFERS, WARPS)
            if c_desc is not None:
                tma.store_wait(pendings=1)               # of the piece before this one: its buffer is free
                fetch(c_desc, turn + (i + BUFFERS - 1) // PIECES * STEP, last, (i + BUFFERS - 1) % PIECES, tiled, out_bufs, came, BLOCK_M,
                      BLOCK_N, GROUP_M, PROGRAMS, BUFFERS, PARTS, TURN)
        count += 1
    tma.store_wait(pendings=0)


@gluon.jit
def consumer(TURN: gl.constexpr, tiles):
    consume(TURN, *tiles)


@gluon.jit
def start_cluster(COUNT: gl.constexpr, CLUSTER: gl.constexpr, tiles, loads):
    """`start` with somebody for every warp."""
    if COUNT == 1:
        gl.warp_specialize([(consumer, (0, tiles)), (produce, loads), (idle, (CLUSTER, )), (idle, (CLUSTER, ))], [1, 1, 2], [24, 24, 24])
    elif COUNT == 2:
        gl.warp_specialize([(consumer, (0, tiles)), (consumer, (1, tiles)), (produce, loads), (idle, (CLUSTER, )), (idle, (CLUSTER, ))],
                           [4, 1, 1, 2], [232, 24, 24, 24])
    else:
        gl.warp_specialize([(consumer, (0, tiles)), (consumer, (1, tiles)), (consumer, (2, tiles)), (produce, loads),
                            (idle, (CLUSTER, )), (idle, (CLUSTER, ))], [4, 4, 1, 1, 2], [160, 160, 24, 24, 24])


@gluon.jit
def start(COUNT: gl.constexpr, REGISTERS: gl.constexpr, CLUSTER: gl.constexpr, tiles, loads):
    """COUNT consumers and the loading warp; the numbers are of warps and of registers of each thread, but for the first consumer's. A
    function because of its arguments: tuples of tensors and what is compiled in, of which one with a name would make tensors."""
    if CLUSTER > 1:
        start_cluster(COUNT, CLUSTER, tiles, loads)
    elif COUNT == 1:
        gl.warp_specialize([(consumer, (0, tiles)), (produce, loads)], [1], [REGISTERS])
    elif COUNT == 2:
        gl.warp_specialize([(consumer, (0, tiles)), (consumer, (1, tiles)), (produce, loads)], [4, 1], [232, 24])
    else:
        gl.warp_specialize([(consumer, (0, tiles)), (consumer, (1, tiles)), (consumer, (2, tiles)), (produce, loads)],
                           [4, 4, 1], [160, 160, 24])


@gluon.jit
def matmul_gluon_kernel(out_desc, pre_desc, sums_ptr, c_desc, a_desc, b_desc, c_ptr, stride_cb, stride_cm, stride_cn, join, BATCH, M, N, K,
                        alpha, beta, TRANS_A: gl.constexpr, TRANS_B: gl.constexpr, SHARED_A: gl.constexpr, SHARED_B: gl.constexpr,
                        FORM: gl.constexpr, SLOPE: gl.constexpr, ACTIVATION: gl.constexpr, PROGRAMS: gl.constexpr, BLOCK_M: gl.constexpr,
                        BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr, GROUP_M: gl.constexpr, STAGES: gl.constexpr, PIECES: gl.constexpr,
                        CONSUMERS: gl.constexpr, PARTS: gl.constexpr, STREAM: gl.constexpr, MOST: gl.constexpr = 0,
                        ACROSS: gl.constexpr = False, WHOLE: gl.constexpr = False, CLUSTER: gl.constexpr = 1,
                        launch_pdl: gl.constexpr = False):
    """Grid: PROGRAMS, or with PROGRAMS 0 what `place` says. num_warps is that of one consumer. Instead of a descriptor of a result there
    may be what `scatter` takes, where TMA cannot store it. sums_ptr takes the sums of a's rows, which the consumer adds up while products
    are under way; of one matrix, of 16-bit numbers; with c_ptr it adds them. With STREAM they lie in parts as the tiles do, unless
    MOST and `join` say how programs of a tile put these together (matmul_last_gluon.py). WHOLE: all
    pieces of a tile have a buffer, so none waits for one before it to leave. CLUSTER: of programs that share b (matmul_cluster.py), whose
    descriptor has a part of BLOCK_N. Long, as it makes all that the warp groups share."""
    if CLUSTER > 1:
        gl.static_assert(PROGRAMS % CLUSTER == 0 and GROUP_M % CLUSTER == 0 and not (STREAM or ACROSS), "no tiles for whole clusters")
    WARPS: gl.constexpr = gl.num_warps()
    TWO: gl.constexpr = 1 if PIECES == 1 and pre_desc is None else 2
    BUFFERS: gl.constexpr = PIECES if WHOLE else min(PIECES, 4) if c_desc is not None else TWO
    TA: gl.constexpr = a_desc.dtype
    TB: gl.constexpr = b_desc.dtype
    A: gl.constexpr = [BLOCK_K, BLOCK_M] if TRANS_A else [BLOCK_M, BLOCK_K]
    B: gl.constexpr = [BLOCK_N, BLOCK_K] if TRANS_B else [BLOCK_K, BLOCK_N]
    OUT: gl.constexpr = [BLOCK_M // PIECES, BLOCK_N] if ACROSS else [BLOCK_M, BLOCK_N // PIECES]
    a_bufs = gl.allocate_shared_memory(TA, [STAGES * PARTS, A[0], A[1]], gl.NVMMASharedLayout.get_default_for(A, TA))
    b_bufs = gl.allocate_shared_memory(TB, [STAGES, B[0], B[1]], gl.NVMMASharedLayout.get_default_for(B, TB))
    TO: gl.constexpr = out_desc[0].dtype.element_ty if isinstance(out_desc, gl.tuple) else out_desc.dtype
    out_bufs = gl.allocate_shared_memory(TO, [CONSUMERS * PARTS * BUFFERS, OUT[0], OUT[1]], gl.NVMMASharedLayout.get_default_for(OUT, TO))
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    ready = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    turns = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(2):
        mbarrier.init(turns.index(i), count=1)
    for i in gl.static_range(STAGES):
        mbarrier.init(empty.index(i), count=CLUSTER * PARTS)
        mbarrier.init(ready.index(i), count=1)
    came = turns
    if c_desc is not None:
        came = gl.allocate_shared_memory(gl.int64, [CONSUMERS * PARTS * BUFFERS, 1], mbarrier.MBarrierLayout())
        for i in gl.static_range(CONSUMERS * PARTS * BUFFERS):
            mbarrier.init(came.index(i), count=1)
    fence_async_shared()
    tell_barriers(CLUSTER)
    after_the_one_before(launch_pdl)
    ring, shape = (a_bufs, b_bufs, empty, ready, turns, came), (BATCH, M, N, K)
    start(CONSUMERS * PARTS, 40 if STREAM else 24, CLUSTER,
          (out_desc, pre_desc, sums_ptr, c_desc, c_ptr, stride_cb, stride_cm, stride_cn, join, ring, out_bufs, shape, alpha, beta, TRANS_A,
           TRANS_B, FORM, SLOPE, ACTIVATION, PROGRAMS, BLOCK_M, BLOCK_N, BLOCK_K, GROUP_M, STAGES, PIECES, BUFFERS, CONSUMERS, PARTS,
           WARPS, STREAM, MOST, ACROSS, CLUSTER),
          (a_desc, b_desc, ring, shape, TRANS_A, TRANS_B, SHARED_A, SHARED_B, PROGRAMS, BLOCK_M, BLOCK_N, BLOCK_K, GROUP_M, STAGES, PARTS,
           STREAM, CLUSTER))
