"""How blocks of K are dealt out: every one once, in few rounds, a tile's helpers one after the other, tiles that share an operand alike."""
from types import SimpleNamespace

import numpy as np
import pytest
from arrays import draw
from gluon_threads import Pointer, code_of, language, tensor

import tritorch as T
from tritorch.cuda import tuner
from tritorch.ops import gemm, gemm_run
from tritorch.ops import gemm_choice as choice
from tritorch.tensor import from_array

names = language(0, 4)
exec(code_of("matmul_stream"), names)
KERNEL = SimpleNamespace(**names)
# M, N, batch, steps, multiprocessors; tiles are 128 x 256
SHAPES = [(3072, 768, 1, 512, 132), (768, 3072, 1, 512, 132), (2304, 768, 1, 512, 132), (768, 768, 1, 512, 132), (4736, 768, 1, 786, 132),
          (3840, 1280, 1, 100, 132), (5120, 1280, 1, 77, 132), (64, 4096, 1, 64, 132), (100, 200, 1, 500, 132), (100, 200, 1, 7, 132),
          (384, 256, 1, 5, 6), (500, 700, 3, 13, 7), (500, 700, 3, 13, 26), (300, 600, 2, 1, 132), (300, 600, 5, 9, 4),
          (128, 5120, 1, 3, 8)]


def schedule(M, N, batch, steps, multiprocessors):
    """(tile, program, round, block of K, where the part goes) of every round of every program, tiles, and what `dealt` says."""
    tiles = choice.tiles_of(M, N, batch, 128, 256)
    dealt = choice.dealt(M, N, tiles, steps, 128, 256, multiprocessors)
    programs, stream, found = dealt["PROGRAMS"], dealt["STREAM"], []
    for pid in range(programs):
        pid, count, of = tensor(pid), tensor(tiles), tensor(steps)
        for line in range(*KERNEL.share_of(pid, count, of, programs, stream)):
            tile, begin, end, part, turn = KERNEL.turn_of(tensor(line), pid, count, of, programs, stream)
            assert begin < end
            at = np.arange(begin, end)
            found.append(np.stack(np.broadcast_arrays(tile, pid, at, KERNEL.block_at(tensor(at), turn), part), 1))
    return np.concatenate(found).astype(int), tiles, dealt


@pytest.mark.parametrize("shape", SHAPES)
def test_every_block_of_k_is_dealt_out_once(shape):
    found, tiles, dealt = schedule(*shape)
    steps, programs = shape[3], dealt["PROGRAMS"]
    tile, pid, at, block, part = found.T
    assert (np.bincount(tile * steps + block, minlength=tiles * steps) == 1).all() and block.max() < steps
    assert len({*zip(pid, at)}) == len(found) and at.max() < -(-tiles * steps // programs)      # a program takes one in each round
    assert len({*zip(tile, pid)}) == len({*part}) and part.max() < programs + tiles
    helping = pid >= programs // tiles * tiles
    assert len({*zip(tile[helping], at[helping])}) == helping.sum()
    assert all(len({*pid[helping & (tile == t)]}) <= 2 for t in range(tiles))
    for t in range(tiles):                                                                       # in order of time
        of = tile == t
        assert (np.sort(block[of]) == block[of][np.lexsort((block[of], at[of]))]).all()
    lines = tile // dealt["STREAM"]
    assert len({*zip(lines, at, block)}) * dealt["STREAM"] == len(found)                       # the tiles of a line are at the same blocks


@pytest.mark.parametrize("shape", SHAPES)
def test_the_second_stage_finds_the_parts(shape):
    found, tiles, dealt = schedule(*shape)
    programs, parts = dealt["PROGRAMS"], np.zeros(dealt["PROGRAMS"] + tiles, int)
    np.add.at(parts, found[:, 4], 1)                                                             # a part is how many blocks are in it

    for t in range(tiles):
        total = KERNEL.tile_added_up(Pointer(parts), tensor(t), tensor(tiles), tensor(shape[3]), tensor(0), tensor(1), programs,
                                     dealt["STREAM"], 4)
        assert total == shape[3]


@pytest.mark.parametrize("shape", SHAPES[:6])
def test_tiles_are_at_nearly_the_same_place_of_k(shape):
    found, tiles, dealt = schedule(*shape)
    _, _, at, block, _ = found.T
    order = np.argsort(at, kind="stable")
    at, block = at[order], block[order]
    starts = np.flatnonzero(np.diff(at, prepend=-1))
    assert (np.maximum.reduceat(block, starts) - np.minimum.reduceat(block, starts)).max() < shape[3] / 5


def test_neighbours_share_the_larger_operand():
    """So that little of the other one must stay in the second cache, however far apart the lines are."""
    for M, N in ((3072, 768), (768, 3072)):
        dealt = choice.dealt(M, N, 72, 512, 128, 256, 132)
        line = 3 if M > N else 6
        assert dealt == dict(PROGRAMS=132, STREAM=line, GROUP_M=1 if M > N else choice.DOWN)
    assert choice.dealt(5120, 1280, 200, 77, 128, 256, 132) == dict(PROGRAMS=130, STREAM=5, GROUP_M=1)   # two stand back


# ------------------------------------------------------------------ the second stage
@pytest.fixture
def multiplied(monkeypatch):
    """What the kernel in Gluon leaves, which needs a GPU, from numpy; what is behind it runs on the simulated one."""
    monkeypatch.setattr(T.cuda.driver, "hardware_tiles", True)
    launch = gemm_run.launch

    def start(kernel, grid, *values, **options):
        if kernel is not gemm_run.GLUON.matmul_gluon_kernel:
            return launch(kernel, grid, *values, **options)
        parts, sums, (batch, M, N, K), dealt = values[0].tensor, values[2], values[11:15], options
        a, b = [number(T.as_strided(x.tensor, x.shape, x.strides)) for x in values[4:6]]
        a, b = [x.swapaxes(1, 2) if dealt[name] else x for x, name in ((a, "TRANS_A"), (b, "TRANS_B"))]
        count, steps = choice.tiles_of(M, N, batch, 128, 256), -(-K // 64)
        across, down = -(-N // 256), -(-M // 128)
        found, row_sums = np.zeros(parts.shape, np.float32), np.zeros(parts.shape[:2], np.float32)
        for pid in range(grid[0]):
            given = tensor(pid), tensor(count), tensor(steps), grid[0], dealt["STREAM"]
            for line in range(*KERNEL.share_of(*given)):
                tile, begin, end, part, turn = KERNEL.turn_of(tensor(line), *given)
                matrix, place = divmod(int(tile), across * down)
                row, column = divmod(place, across) if dealt["GROUP_M"] == 1 else divmod(place, down)[::-1]
                for i in range(begin, end):
                    k = slice(int(KERNEL.block_at(tensor(i), turn)) * 64, None)
                    left = a[matrix, row * 128:, k][:128, :64]
                    right = b[matrix, k, column * 256:][:64, :256]
                    found[part, :len(left), :right.shape[1]] += left @ right
                    row_sums[part, :len(left)] += left.sum(1) if column == 0 else 0
        parts.copy_(from_array(found))
        if sums is not None:
            sums.copy_(from_array(row_sums))

    monkeypatch.setattr(gemm_run, "launch", start)


def streamed(*args, **options):
    with tuner.forcing("matmul", dict(kernel="gluon", BLOCK_M=128, BLOCK_N=256, BLOCK_K=64, num_warps=8, STAGES=4, PIECES=4, CONSUMERS=1,
                                      PARTS=1, STREAM=True)):
        gemm.gemm(*args, **options)


def number(x):
    return x.cpu().float().array


def turned(x):
    return x.mT.contiguous().mT


@pytest.mark.parametrize("layout, batch, programs", [((False, False), 1, 3), ((True, False), 1, 7), ((False, True), 2, 5),
                                                     ((True, True), 2, 11), ((True, True), 1, 132)])
def test_what_comes_behind_the_sums(layout, batch, programs, multiplied, cuda, monkeypatch):
    """Every form of what is added, an activation and a slope."""
    monkeypatch.setattr(gemm_run, "sm_count", lambda: programs)
    m, n, k = 136, 264, 304
    a, b = [from_array(draw(batch, *s)).to(T.bfloat16) for s in ((m, k), (k, n))]
    want = number(a).astype(np.float64) @ number(b)
    a, b = [turned(x.to(cuda)) if is_turned else x.to(cuda) for x, is_turned in zip((a, b), layout)]
    out, pre, slope = [T.empty(batch, m, n, dtype=T.bfloat16, device=cuda) for _ in range(3)]
    for shape in ((n,), (m, 1), (batch, m, n)):
        c = from_array(draw(*shape)).to(T.bfloat16).to(cuda)
        streamed(out, a, b, c, beta=0.5)
        np.testing.assert_allclose(number(out), want + 0.5 * number(c), rtol=2 ** -7, atol=1e-2)
    total = T.ones(batch, m, n, device=cuda)
    streamed(out, a, b, activation="relu", pre=pre)
    streamed(slope, a, b, pre, slope="relu_backward")
    streamed(total, a, b, total)
    np.testing.assert_allclose(number(pre), want, rtol=2 ** -7, atol=1e-2)
    np.testing.assert_array_equal(number(out), np.maximum(number(pre), 0))
    np.testing.assert_array_equal(number(slope), np.where(number(pre) > 0, number(pre), 0))
    np.testing.assert_allclose(number(total), want + 1, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("m, n", [(100, 300), (300, 100)])
def test_sums_of_rows_and_results_that_tma_cannot_store(m, n, multiplied, cuda, monkeypatch):
    monkeypatch.setattr(gemm_run, "sm_count", lambda: 5)
    x, y = [from_array(draw(304, size, seed=size)).to(T.bfloat16) for size in (m, n)]
    memory, sums = T.full((m, n + 3), 7.0, dtype=T.bfloat16, device=cuda), T.empty(m, device=cuda)
    for added, times in ((None, 1), (memory[:, :n], 2)):
        streamed(memory[:, :n], x.to(cuda).mT, y.to(cuda), added, row_sums=sums)
        np.testing.assert_allclose(number(sums), times * number(x).sum(0), rtol=1e-5, atol=1e-4)
        np.testing.assert_allclose(number(memory)[:, :n], times * number(x).T @ number(y), rtol=2 ** -6, atol=2e-2)
        assert (number(memory)[:, n:] == 7).all()


@pytest.mark.parametrize("blocks", [16, 35])
def test_many_parts_of_one_tile(blocks, multiplied, cuda, monkeypatch):
    """Streamed to more programs than are added up at a time, and to no multiple of them."""
    monkeypatch.setattr(gemm_run, "sm_count", lambda: blocks - 1)
    a, b = [from_array(draw(*s)).to(T.float16).to(cuda) for s in ((70, 64 * blocks), (64 * blocks, 40))]
    out = T.empty(70, 40, dtype=T.float16, device=cuda)
    streamed(out, a, b)
    np.testing.assert_allclose(number(out), number(a).astype(np.float64) @ number(b), rtol=2 ** -9, atol=0.15)
