"""The schedules of matrix products in Gluon: rings, phases, turns of consumers, pieces and edges, run on threads."""
import itertools

import numpy as np
import pytest
from gluon_threads import Descriptor, Pointer, run, tensor

from tritorch.ops import gemm_choice as choice

H200 = (132, 232448, 9)
FILES = ["quick", "matmul", "matmul_stream", "matmul_joined", "matmul_leaving", "matmul_last_gluon", "matmul_cluster", "matmul_gluon"]
LAYOUTS = list(itertools.product([False, True], repeat=2))
# BLOCK_M, BLOCK_N, BLOCK_K, STAGES, PIECES, CONSUMERS, PARTS
SMALL = [(16, 16, 8, 2, 1, 1, 1), (16, 32, 8, 2, 2, 1, 1), (8, 32, 8, 3, 4, 1, 1), (16, 16, 8, 4, 1, 2, 1), (16, 32, 8, 2, 2, 2, 1),
         (8, 16, 8, 5, 4, 2, 1), (8, 32, 8, 3, 4, 1, 3), (16, 16, 8, 2, 1, 1, 3), (8, 16, 8, 3, 8, 1, 3)]
# batch, M, N, K, PROGRAMS: odd sizes; K within one slot, within the ring and beyond; fewer tiles than programs, one tile, many for each
SHAPES = [(1, 37, 53, 29, 3), (3, 21, 35, 41, 2), (1, 16, 32, 5, 4), (2, 33, 17, 64, 1), (1, 5, 7, 100, 1), (1, 70, 90, 8, 5)]
EPILOGUES = [(None, False, None), ("row", True, 0.5), ("column", False, None), ("tile", True, 2.0)]      # form of c, activation, alpha


def relu(x):
    return np.maximum(x, 0)


def gapped(rng, batch, rows, columns):
    """Numbers in memory whose rows are further apart than they are long, NaN in between."""
    memory = np.full((batch, rows, columns + 3), np.nan)
    memory[..., :columns] = rng.standard_normal((batch, rows, columns))
    return memory[..., :columns]


def operand(rng, batch, rows, columns, turned, block_r, block_c):
    """(matrices, their descriptor)."""
    if turned:
        x = gapped(rng, batch, columns, rows)
        return x.swapaxes(1, 2), Descriptor(x, 1, block_c, block_r)
    x = gapped(rng, batch, rows, columns)
    return x, Descriptor(x, 1, block_r, block_c)


def added(rng, form, batch, M, N):
    """(c, its strides) of an epilogue."""
    shape, strides = {None: ((1,), (0, 0, 0)), "row": ((N,), (0, 0, 1)), "column": ((M, 1), (0, 1, 0)),
                      "tile": ((batch, M, N), (M * N, N, 1))}[form]
    return None if form is None else Pointer(rng.standard_normal(shape)), strides


def factors(alpha):
    """alpha and beta as a kernel takes them."""
    return (None, None) if alpha is None else (tensor(alpha), tensor(-alpha))


def options(layout, shared, form, active):
    return dict(TRANS_A=layout[0], TRANS_B=layout[1], SHARED_A=shared[0], SHARED_B=shared[1], FORM=form, SLOPE=None,
                ACTIVATION=relu if active else None, GROUP_M=2)


def product(shape, blocks, layout=(False, False), shared=(False, False), epilogue=EPILOGUES[0], warps=4, scaled=False,
            adds=False, across=False, by_tma=False, scattered=False, whole=False):
    """Run the kernel and compare. `scaled`: rows and columns have factors; `adds`: a residual comes behind; `across`: tiles are computed as
    their transposes; `by_tma`: the residual, or else c, comes into the buffers from which the results leave; `scattered`: these do
    not leave by TMA."""
    (batch, M, N, K, programs), (block_m, block_n, block_k, stages, pieces, consumers, of) = shape, blocks
    rng, (form, active, alpha) = np.random.default_rng(1), epilogue
    a, a_desc = operand(rng, 1 if shared[0] else batch, M, K, layout[0], block_m, block_k)
    b, b_desc = operand(rng, 1 if shared[1] else batch, K, N, layout[1], block_k, block_n)
    c, strides = added(rng, form, batch, M, N)
    out, pre = [np.full((batch, M, N), np.nan) for _ in range(2)]
    pieces *= 2 if by_tma else 1
    piece = (block_m // pieces, block_n) if across else (block_m, block_n // pieces)
    out_desc, pre_desc = [(Pointer(x), M * N, N) if scattered else Descriptor(x, 1, *piece) for x in (out, pre)]
    sums, scalars = rng.standard_normal(M + 1), factors(alpha)
    before, summed = sums.copy(), batch == 1 and not across
    rows, columns, residual = rng.standard_normal((M, 1)), rng.standard_normal(N), rng.standard_normal((M, N))
    scalars = (Pointer(rows), 1, Pointer(columns), 1) if scaled else scalars[0], (Pointer(residual), ) if adds else scalars[1]
    c_desc = Descriptor(np.broadcast_to(residual if adds else c.array, (batch, M, N)), 1, *piece) if by_tma else None
    run("matmul_gluon_kernel", FILES, out_desc, pre_desc if active else None, Pointer(sums) if summed else None, c_desc, a_desc,
        b_desc, c, *strides, None, batch, M, N, K, *scalars,
        **options(layout, shared, form, active), PROGRAMS=programs, BLOCK_M=block_m, BLOCK_N=block_n, BLOCK_K=block_k,
        STAGES=stages, PIECES=pieces, CONSUMERS=consumers, PARTS=of, STREAM=False, ACROSS=across, WHOLE=whole,
        num_warps=warps)
    compare(a * rows if scaled else a, b * columns if scaled else b, c, alpha, active, out - residual if adds else out, pre)
    if summed:                                           # they are added where c is
        before[:M] = a[0].sum(1) + (before[:M] if form is not None else 0)
    np.testing.assert_allclose(sums, before, atol=1e-9)


def compare(a, b, c, alpha, active, out, pre):
    want = (alpha or 1) * (a @ b) + (0 if c is None else c.array * -(alpha or -1))
    want = np.broadcast_to(want, out.shape)
    np.testing.assert_allclose(out, relu(want) if active else want, atol=1e-9)
    if active:
        np.testing.assert_allclose(pre, want, atol=1e-9)


@pytest.mark.parametrize("blocks", SMALL)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("active", [False, True])
def test_rings_turns_and_pieces(shape, blocks, active):
    product(shape, blocks, epilogue=EPILOGUES[active])


@pytest.mark.parametrize("blocks", [blocks for blocks in SMALL if blocks[4] > 1])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("active", [False, True])
def test_room_for_whole_tiles(shape, blocks, active):
    product(shape, blocks, epilogue=EPILOGUES[active], whole=True)
    product(shape, blocks, epilogue=("tile", False, 2.0), whole=True, by_tma=True)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shared", LAYOUTS)
@pytest.mark.parametrize("blocks", [SMALL[1], SMALL[4], SMALL[6]])
def test_layouts_and_shared_matrices(layout, shared, blocks):
    product((3, 21, 35, 41, 2), blocks, layout, shared)


@pytest.mark.parametrize("epilogue", EPILOGUES)
@pytest.mark.parametrize("blocks", [*SMALL[2:5], SMALL[6]])
def test_epilogues(epilogue, blocks):
    product((2, 37, 53, 29, 3), blocks, epilogue=epilogue)


@pytest.mark.parametrize("blocks", [(16, 32, 8, 2, 1, 1, 1), (32, 64, 8, 3, 4, 1, 1), (8, 32, 4, 5, 8, 1, 1)])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("epilogue", EPILOGUES)
def test_tiles_computed_as_their_transposes(shape, blocks, epilogue):
    product(shape, blocks, epilogue=epilogue, across=True)
    product(shape, blocks, shared=(True, False), across=True)


@pytest.mark.parametrize("blocks", SMALL[:3])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", [(1, 37, 53, 100, 5), (1, 8, 8, 100, 9), (2, 33, 17, 64, 3), (1, 40, 40, 41, 20),
                                   (1, 40, 20, 100, 11), (1, 20, 40, 99, 10)])
def test_blocks_of_k_dealt_out_evenly(shape, layout, blocks):
    """Of every tile, whose parts together are its product; test_matmul_stream.py says whose they are."""
    (batch, M, N, K, programs), (block_m, block_n, block_k, stages, pieces, *_), rng = shape, blocks, np.random.default_rng(1)
    a, a_desc = operand(rng, batch, M, K, layout[0], block_m, block_k)
    b, b_desc = operand(rng, batch, K, N, layout[1], block_k, block_n)
    across, down, steps = -(-N // block_n), -(-M // block_m), -(-K // block_k)
    tiles = batch * across * down
    dealt = choice.dealt(M, N, tiles, steps, block_m, block_n, programs)
    programs, lines = dealt["PROGRAMS"], dealt["STREAM"]
    parts = np.full((programs + tiles, block_m, block_n), np.nan)
    settled = {**options(layout, (False, False), None, False), **dealt}
    part_sums = np.full((programs + tiles, block_m), np.nan)
    run("matmul_gluon_kernel", FILES, Descriptor(parts, 1, block_m, block_n // pieces), None,
        Pointer(part_sums) if batch == 1 else None, None, a_desc, b_desc, None, 0, 0, 0, None, batch, M, N, K, None, None, **settled,
        BLOCK_M=block_m, BLOCK_N=block_n, BLOCK_K=block_k, STAGES=stages, PIECES=pieces, CONSUMERS=1, PARTS=1, num_warps=4)
    summed = np.zeros((down, block_m))
    for t in range(tiles):
        having = parts_of(t, tiles, steps, programs, lines)
        place = t % (across * down)
        row, column = (place // across, place % across) if dealt["GROUP_M"] == 1 else (place % down, place // down)
        summed[row] += part_sums[having].sum(0) if batch == 1 else 0
        matrix, row, column = t // (across * down), row * block_m, column * block_n
        want = (a[matrix] @ b[matrix])[row:row + block_m, column:column + block_n]
        np.testing.assert_allclose(parts[having].sum(0)[:want.shape[0], :want.shape[1]], want, atol=1e-9)
    if batch == 1:                                       # each tile of a row has a share of K
        np.testing.assert_allclose(summed.ravel()[:M], a[0].sum(1), atol=1e-9)


def parts_of(tile, tiles, steps, programs, together):
    """Where the parts of a tile lie."""
    each, rounds = programs // tiles, -(-tiles * steps // programs)
    left, line = max(steps - each * rounds, 0), tile // together
    helpers = range(line * left // rounds, -(-(line + 1) * left // rounds))
    return [tile + i * tiles for i in range(each)] + [each * tiles + (h + line) * together + tile % together for h in helpers]


@pytest.mark.parametrize("blocks", [(16, 16, 8, 2, 1, 1, 1), (8, 32, 8, 3, 4, 1, 1)])
@pytest.mark.parametrize("epilogue", [EPILOGUES[0], EPILOGUES[3]])
@pytest.mark.parametrize("shape", [(1, 37, 53, 100, 5), (1, 8, 8, 100, 9), (2, 33, 17, 64, 3), (1, 40, 40, 41, 20), (1, 40, 20, 100, 11)])
def test_the_last_of_a_tile_adds_up(shape, epilogue, blocks):
    """The same bits, whichever programs are the last, and counters that are zero again for the next launch."""
    (batch, M, N, K, programs), (block_m, block_n, block_k, stages, pieces, *_), rng = shape, blocks, np.random.default_rng(1)
    form, active, alpha = epilogue
    a, a_desc = operand(rng, batch, M, K, True, block_m, block_k)
    b, b_desc = operand(rng, batch, K, N, False, block_k, block_n)
    c, strides = added(rng, form, batch, M, N)
    down, across, steps = -(-M // block_m), -(-N // block_n), -(-K // block_k)
    tiles = batch * down * across
    dealt = choice.dealt(M, N, tiles, steps, block_m, block_n, programs)
    programs, counts, seen = dealt["PROGRAMS"], np.zeros(tiles + down + 1, int), []
    for at_once in (False, True, True):
        part, part_sums = np.full((programs + tiles) * block_m * block_n, np.nan), np.full((programs + 2 * tiles) * block_m, np.nan)
        out, pre, sums = [np.full(s, np.nan) for s in ((batch, M, N), (batch, M, N), M + 1)]
        sums[:M] = 7
        out_desc, pre_desc = [Descriptor(x, 1, block_m, block_n // pieces) for x in (out, pre)]
        run("matmul_gluon_kernel", FILES, out_desc, pre_desc if active else None, Pointer(sums) if batch == 1 else None, None, a_desc,
            b_desc, c, *strides,
            (Pointer(part), Pointer(part_sums) if batch == 1 else None, Pointer(counts)), batch, M, N, K, *factors(alpha),
            **{**options((True, False), (False, False), form, active), **dealt}, MOST=programs // tiles + 2, BLOCK_M=block_m,
            BLOCK_N=block_n, BLOCK_K=block_k, STAGES=stages, PIECES=pieces, CONSUMERS=1, PARTS=1, num_warps=4, at_once=at_once)
        compare(a, b, c, alpha, active, out, pre)
        assert not counts.any() and np.isnan(sums[M])
        if batch == 1:                                   # they are added where c is
            np.testing.assert_allclose(sums[:M], a[0].sum(1) + (7 if form else 0), atol=1e-9)
        seen.append((out, sums))
    for out, sums in seen[1:]:
        np.testing.assert_array_equal(out, seen[0][0])
        np.testing.assert_array_equal(sums, seen[0][1])


# ------------------------------------------------------------------ float32 in parts
def parts(rng, batch, rows, columns, turned, block_r, block_c):
    """(high, middle and low parts of matrices, their descriptor): any numbers, so that no product stands in for another one."""
    x, desc = operand(rng, 3 * batch, rows, columns, turned, block_r, block_c)
    return x.reshape(3, batch, rows, columns), desc


def exact(shape, blocks, layout=(False, False), shared=(False, False), epilogue=EPILOGUES[0], bits=127 << 23):
    """Run the kernel on numbers with magnitudes up to the one of the given bits, and compare."""
    (batch, M, N, K, programs), (block_m, block_n, block_k, stages) = shape, blocks
    rng, (form, active, alpha), splits = np.random.default_rng(2), epilogue, 16
    a, a_desc = parts(rng, 1 if shared[0] else batch, M, K, layout[0], 64, block_k)
    b, b_desc = parts(rng, 1 if shared[1] else batch, K, N, layout[1], block_k, block_n)
    c, strides = added(rng, form, batch, M, N)
    out, pre = [np.full((batch, M, N), np.nan) for _ in range(2)]
    ranges, verdict = np.stack([np.full(splits, n) for n in (bits, (255 << 23) - bits)]), np.array([7])
    run("matmul_exact_gluon_kernel", [*FILES[:2], "matmul_exact", *FILES[4:], "matmul_exact_gluon"], Pointer(out),
        Pointer(pre) if active else None, Pointer(verdict), a_desc, b_desc, c, Pointer(ranges), M * N, N, 1, *strides, batch, M, N, K,
        (K - 1).bit_length(), *factors(alpha), **options(layout, shared, form, active), PROGRAMS_A=5, PROGRAMS_SPLIT=splits,
        PROGRAMS=programs, BLOCK_M=block_m, BLOCK_N=block_n, BLOCK_K=block_k, STAGES=stages)
    return (a, b, c, alpha, active, out, pre), verdict


def compare_exact(given):
    (high_a, middle_a, low_a), (high_b, middle_b, low_b), *rest = given
    left, right = np.concatenate([low_a, high_a, middle_a], -1), np.concatenate([high_b, low_b + middle_b + high_b, middle_b + high_b], -2)
    compare(left, right, *rest)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("candidate", choice.EXACT_GLUON, ids=str)
@pytest.mark.parametrize("shape", [(2, 150, 200, 200, 1), (3, 130, 100, 70, 2), (1, 30, 40, 20, 2), (1, 300, 129, 321, 7)])
def test_every_candidate_for_parts(candidate, shape, layout):
    block_m, block_n, block_k, _, stages, _ = candidate
    given, verdict = exact(shape, (block_m, block_n, block_k, stages), layout, epilogue=EPILOGUES[1])
    compare_exact(given)
    assert verdict == 0


@pytest.mark.parametrize("shared", LAYOUTS)
@pytest.mark.parametrize("epilogue", EPILOGUES)
def test_shared_matrices_and_epilogues_of_parts(shared, epilogue):
    compare_exact(exact((3, 70, 40, 50, 2), (128, 16, 16, 2), shared=shared, epilogue=epilogue)[0])


def test_parts_out_of_range_are_left_alone():
    (*_, out, _), verdict = exact((1, 70, 40, 50, 2), (128, 16, 16, 2), bits=200 << 23)
    assert verdict == 1 and np.isnan(out).all()
