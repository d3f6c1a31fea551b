"""How blocks of K are dealt out: every one once, in few rounds, a tile's helpers one after the other, tiles that share an operand alike."""
from types import SimpleNamespace

import numpy as np
import pytest
from gluon_threads import Pointer, code_of, language, tensor

from tritorch.ops import gemm_choice as choice

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
