"""Split-K whose programs add up their parts themselves: right, the same each time, and counters that are zero again."""
import numpy as np
import pytest
from arrays import draw

import tritorch as T
from tritorch.cuda import counters, driver, tuner
from tritorch.ops import gemm
from tritorch.ops import gemm_choice as choice
from tritorch.tensor import from_array


@pytest.fixture(autouse=True)
def hardware_tiles(monkeypatch):
    monkeypatch.setattr(T.cuda.driver, "hardware_tiles", True)


def tiled(splits, block_m=16, block_n=32, kernel="plain"):
    return dict(kernel=kernel, BLOCK_M=block_m, BLOCK_N=block_n, BLOCK_K=32, num_warps=4, num_stages=2, splits=splits)


HOPPER = [dict(kernel="small", BLOCK_M=64, BLOCK_N=32, BLOCK_K=64, num_warps=4, STAGES=3),
          dict(kernel="small", BLOCK_M=128, BLOCK_N=64, BLOCK_K=64, num_warps=8, STAGES=2),
          dict(kernel="parts_gluon", BLOCK_M=64, BLOCK_N=32, BLOCK_K=16, num_warps=4, STAGES=4),
          dict(kernel="groups", BLOCK_M=64, BLOCK_N=32, BLOCK_K=16, num_warps=4, STAGES=8, GROUPS=4),
          dict(kernel="groups", BLOCK_M=64, BLOCK_N=8, BLOCK_K=16, num_warps=4, STAGES=8, GROUPS=2, SWAPPED=True)]


def number(x):
    return x.cpu().float().array if x.dtype.name != "float64" else x.cpu().array


def cleared(index=0):
    """Whether all counters of the device's default stream are zero."""
    T.cuda.synchronize()
    left = np.full(counters.MOST, 7, np.int32)
    T.cuda.memory.copy(left.__array_interface__["data"][0], counters.here(index).ptr, left.nbytes, "d2h", index)
    return not left.any()


def holds(candidate, dtype, shape, cuda, turned=(False, False)):
    """With everything that can come behind the sums, into memory beside which nothing changes; twice the same."""
    (batch, m, n, k), half = shape, dtype.itemsize == 2
    x, y, c = [from_array(v).to(dtype) for v in (draw(batch, m, k), draw(batch, k, n, seed=1), draw(batch, m, n, seed=2))]
    want = 0.5 * (number(x).astype(np.float64) @ number(y)) + 3 * number(c)
    a, b = [v.to(cuda).mT.contiguous().mT if turn else v.to(cuda) for v, turn in zip((x, y), turned)]
    wide, pre = [T.full((batch, m, n + 2), float("nan"), dtype=dtype, device=cuda) for _ in range(2)]
    seen = []
    for _ in range(2):
        with tuner.forcing("matmul", candidate):
            gemm.gemm(wide[..., :n], a, b, c.to(cuda), 0.5, 3, activation="relu", pre=pre[..., :n])
        seen.append(number(pre)[..., :n].copy())
        pre.fill_(float("nan"))
    np.testing.assert_array_equal(*seen)
    np.testing.assert_allclose(seen[0], want, rtol=2 ** -7 if half else 1e-6, atol=2e-2 if half else 2e-5)
    np.testing.assert_array_equal(number(wide)[..., :n], np.maximum(seen[0], 0))
    assert np.isnan(number(wide)[..., n:]).all()


@pytest.mark.parametrize("splits", [2, 3, 4])
@pytest.mark.parametrize("dtype", [T.float32, T.bfloat16, T.float64])
def test_parts_are_joined(splits, dtype, cuda):
    holds(tiled(splits), dtype, (2, 37, 45, 131), cuda, (splits == 3, splits == 2))
    assert cleared()


def test_more_parts_than_one_program_adds_up_go_to_a_second_kernel(cuda):
    assert not choice.joins(choice.MOST_JOINED + 1, 1, 512) and not choice.joins(2, choice.COUNTERS + 1, 512)
    assert not choice.joins(4, 1, 128 * 128) and choice.joins(4, choice.COUNTERS, 64 * 64) and choice.COUNTERS == counters.MOST
    holds(tiled(5), T.float32, (1, 37, 45, 200), cuda)


@pytest.mark.parametrize("dtype", [T.int8, T.int32, T.int64])
def test_whole_numbers_wrap_around(dtype, cuda):
    x, y = [np.random.default_rng(i).integers(-99, 99, s).astype(dtype.numpy) for i, s in enumerate(((19, 150), (150, 21)))]
    with tuner.forcing("matmul", tiled(3, 16, 16)):
        out = from_array(x).to(cuda) @ from_array(y).to(cuda)
    np.testing.assert_array_equal(out.cpu().array, (x.astype(np.int64) @ y.astype(np.int64)).astype(dtype.numpy))


@pytest.mark.gpu
@pytest.mark.parametrize("turned", [(False, False), (True, True)])
@pytest.mark.parametrize("candidate", HOPPER, ids=lambda c: " ".join(map(str, c.values())))
def test_kernels_of_hopper(candidate, turned, cuda):
    if driver.current().device_properties(0).major != 9:
        pytest.skip("these multiply as Hopper does alone")
    dtype = T.bfloat16 if candidate["kernel"] == "small" else T.float32
    for splits in (2, 4):
        holds({**candidate, "splits": splits}, dtype, (1, 72, 40, 264), cuda, turned)
    assert cleared()


def test_every_stream_and_every_graph_counts_by_itself(cuda):
    """Two streams at a time, in any order, and two graphs that are replayed on other streams than they were recorded from."""
    x, y = draw(40, 200), draw(200, 50, seed=1)
    a, b = from_array(x).to(cuda), from_array(y).to(cuda)
    want, streams, outs = x.astype(np.float64) @ y, [T.cuda.Stream() for _ in range(2)], []
    with tuner.forcing("matmul", tiled(4)):
        a @ b
        T.cuda.synchronize()
        graphs = [T.cuda.CUDAGraph() for _ in range(2)]
        for graph in graphs:
            with T.cuda.graph(graph):
                outs.append(a @ b)
                outs.append(a @ b)
        for out in outs:
            out.fill_(float("nan"))
        T.cuda.synchronize()
        for _ in range(2):
            for graph, stream in zip(graphs, streams):
                with T.cuda.stream(stream):
                    outs.append(a @ b)
                    graph.replay()
    T.cuda.synchronize()
    for out in outs:
        np.testing.assert_allclose(number(out), want, rtol=1e-5, atol=1e-4)
    own = {counters.here(0).ptr, *[owner.ptr for graph in graphs for owner in graph.kept if isinstance(owner, counters.Recorded)]}
    for stream in streams:
        with T.cuda.stream(stream):
            own.add(counters.here(0).ptr)
    assert len(own) == 5 and cleared()


def test_calls_that_repeat_find_the_counters_of_their_stream(cuda):
    x, y = draw(40, 200), draw(200, 50, seed=1)
    a, b, stream = from_array(x).to(cuda), from_array(y).to(cuda), T.cuda.Stream()
    with tuner.forcing("matmul", tiled(4)):
        outs = [a @ b for _ in range(5)]                                 # the later ones as recorded
        T.cuda.synchronize()
        with T.cuda.stream(stream):
            outs += [a @ b for _ in range(2)]
    T.cuda.synchronize()
    for out in outs:
        np.testing.assert_allclose(number(out), x.astype(np.float64) @ y, rtol=1e-5, atol=1e-4)
    with T.cuda.stream(stream):
        assert (0, stream.handle) in counters._kept
