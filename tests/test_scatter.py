"""scatter and its kin, index_put, index_copy, index_fill and masked writes against PyTorch."""
import numpy as np
import pytest
from oracle import EVERY, WHOLES, agree, draw

import tritorch
from tritorch.cuda import compiler, driver
from tritorch.cuda.dry import DryDriver

X, S = draw(4, 5, dtype="float64"), draw(4, 5, dtype="float64", seed=1)
DISTINCT = np.array([[0, 1, 2, 3, 0], [1, 2, 3, 0, 1], [2, 3, 0, 1, 2]])
REPEATED = np.array([[0, 1, 2, 3, 0], [0, 2, 3, 0, 1], [2, 3, 0, 0, 1]])


def launched(call):
    """The kernels that a call needs."""
    with driver.using(DryDriver(90)), compiler.recording() as record:
        x, index = tritorch.zeros(64, 48, device="cuda"), tritorch.zeros(64, 32, device="cuda", dtype=tritorch.int64)
        before = set(record)
        call(x, index)
    return {record[key].kernel.__name__ for key in set(record) - before}


def test_elements_are_picked_and_a_number_is_written_in_one_pass():
    assert launched(lambda x, i: x.gather(1, i)) == {"gather_kernel"}
    assert launched(lambda x, i: x.t().gather(0, i.t())) == {"gather_kernel"}
    assert launched(lambda x, i: x.scatter_(1, i, 1.0)) == {"put_number_kernel"}


@pytest.mark.parametrize("dtype", [tritorch.float32, tritorch.bfloat16, tritorch.int64, tritorch.bool])
def test_hostile_layouts(cuda, dtype):
    rng = np.random.default_rng(0)
    x = tritorch.tensor(rng.integers(0, 2, (5, 9, 14))).to(dtype)
    views = (lambda t: t, lambda t: t.permute(2, 0, 1), lambda t: t[1:, ::2, 3:], lambda t: t[:, :1].expand(5, 9, 14), lambda t: t.flip(1))
    for view in views:
        here, there = view(x), view(x.cuda())
        for dim, size in enumerate(here.shape):
            index = tritorch.tensor(rng.integers(0, size, [n - (n > 1) if d != dim else 7 for d, n in enumerate(here.shape)]))
            for places in (index, index.transpose(0, 2).contiguous().transpose(0, 2), index[:1].expand(index.shape)):
                picked = there.gather(dim, places.cuda())
                np.testing.assert_array_equal(picked.cpu().float().numpy(), here.gather(dim, places).float().numpy())
                put = there.scatter(dim, places.cuda(), 2)
                np.testing.assert_array_equal(put.cpu().float().numpy(), here.scatter(dim, places, 2).float().numpy())


@pytest.mark.parametrize("kind", ["sum", "amax", "prod"])
@pytest.mark.parametrize("dtype", [tritorch.float32, tritorch.bfloat16, tritorch.int64])
def test_an_index_expanded_from_a_column_names_rows(cuda, kind, dtype):
    rng = np.random.default_rng(1)
    x, src = (tritorch.tensor(rng.integers(-3, 4, shape)).to(dtype) for shape in ((6, 5, 3), (41, 7, 3)))
    column = tritorch.tensor(rng.integers(0, 6, (40, 1, 1)))
    want = x.scatter_reduce(0, column.expand(40, 5, 3), src, kind)
    for turned in (x.cuda(), x.cuda().transpose(0, 2).contiguous().transpose(0, 2)):
        got = turned.scatter_reduce(0, column.cuda().expand(40, 5, 3), src.cuda(), kind)
        np.testing.assert_allclose(got.cpu().float().numpy(), want.float().numpy(), rtol=2e-2 if dtype is tritorch.bfloat16 else 1e-5)
        turned.scatter_reduce_(0, column.cuda().expand(40, 5, 3), src.cuda(), kind)
        np.testing.assert_array_equal(turned.cpu().float().numpy(), got.cpu().float().numpy())


def test_rows_are_sorted_not_their_elements():
    with driver.using(DryDriver(90)):
        x, src = tritorch.zeros(64, 32, device="cuda"), tritorch.zeros(500, 32, device="cuda")
        index = tritorch.zeros(500, 1, device="cuda", dtype=tritorch.int64)
        tritorch.cuda.reset_peak_memory_stats()
        before = tritorch.cuda.memory_allocated()
        x.scatter_add(0, index.expand(500, 32), src)
        assert tritorch.cuda.max_memory_allocated() - before < 500 * 32 * 8, "places of rows, not of their elements"


def test_scatter():
    agree(lambda lib, x, i, s: x.scatter(0, i, s), X, DISTINCT, S[:3], grad=True)
    agree(lambda lib, x, i, s: x.scatter(0, i, s), X, DISTINCT, S)
    agree(lambda lib, x, i, s: x.scatter(1, i, s), X, np.array([[4, 0], [1, 2], [0, 3]]), S[:3, :2], grad=True)
    agree(lambda lib, x, i: x.scatter(0, i, 2.5), X, DISTINCT, grad=True)
    agree(lambda lib, x, i: x.scatter(-1, i, value=-1), X, DISTINCT)
    agree(lambda lib, x, i: x.clone().scatter_(0, i, 3), X, DISTINCT)
    for reduce in ("add", "multiply", "max"):
        agree(lambda lib, x, i, s, r=reduce: x.scatter(0, i, s, reduce=r), X, REPEATED, S, what=reduce)
        agree(lambda lib, x, i, r=reduce: x.scatter(0, i, 2.0, reduce=r), X, REPEATED, what=reduce)
    for kind in EVERY:
        agree(lambda lib, x, i: x.scatter(0, i, x[:3]), (draw(4, 5, dtype=kind), kind), DISTINCT, what=kind)
        agree(lambda lib, x, i: x.scatter_add(0, i, x[:3]), (draw(4, 5, dtype=kind), kind), REPEATED, what=kind)
    agree(lambda lib, x, i, s: x.scatter_add(0, i, s), X, REPEATED, S[:3], grad=True)
    agree(lambda lib, x, i, s: (x * 1).scatter_add_(1, i, s), X, REPEATED, S[:3], grad=True)
    agree(lambda lib, x, i: x.scatter(0, i, 1.0), draw(), np.array(0))
    agree(lambda lib, x, i: x.scatter(0, i, 1.0), draw(3), np.zeros(0, np.int64))
    for i in (np.array([[4]]), np.array([0]), np.array([[0.5]]), np.zeros((5, 6), np.int64)):
        agree(lambda lib, x, i, s: x.scatter(0, i, s), X, i, S, what=str(i))
    agree(lambda lib, x, i, s: x.scatter(0, i, s.float()), X, DISTINCT, S)
    agree(lambda lib, x, i, s: x.scatter_add(0, i, s.float()), X, DISTINCT, S)
    agree(lambda lib, x, i, s: x.scatter(0, i, s[:2]), X, DISTINCT, S)


def test_reductions():
    for reduce in ("sum", "prod", "mean", "amax", "amin", "median"):
        for own in (True, False):
            agree(lambda lib, x, i, s, r=reduce, o=own: x.scatter_reduce(0, i, s, r, include_self=o), X, REPEATED, S[:3], grad=own,
                  what=f"{reduce} {own}")
            for kind in ("int64", "float32", "bfloat16", "uint8"):
                agree(lambda lib, x, i, s, r=reduce, o=own: x.scatter_reduce(0, i, s, r, include_self=o), (draw(4, 5, dtype=kind), kind),
                      REPEATED,
                      (draw(4, 5, dtype=kind, seed=1), kind), what=f"{reduce} {own} {kind}")
    ties = np.array([1.0, 1.0, 2.0, 2.0])
    for reduce in ("amax", "amin"):
        agree(lambda lib, x, i, s, r=reduce: x.scatter_reduce(0, i, s, r), ties[:2], np.array([0, 0, 1, 1]), ties, grad=True, what=reduce)
    agree(lambda lib, x, i, s: x.scatter_reduce(0, i, s, "amax"), np.array([0.0, 1.0]), np.array([0, 1, 1]), np.array([np.nan, 1.0, 2.0]))


def test_index_put():
    a, b = np.array([0, 2, 1]), np.array([1, 1, 3])
    for accumulate in (False, True):
        agree(lambda lib, x, a, b, v, acc=accumulate: x.index_put((a, b), v, acc), X, a, b, S[0, :3], grad=True)
        agree(lambda lib, x, a, v, acc=accumulate: x.index_put((a,), v, acc), X, a, S[:3], grad=True)
        agree(lambda lib, x, a, v, acc=accumulate: (x * 1).index_put_((a,), v, acc), X, a, S[0, 0], grad=True)
        agree(lambda lib, x, m, v, acc=accumulate: x.index_put((m,), v, acc), X, X > 0, S[0, 0], grad=True)
    agree(lambda lib, x, a, v: x.index_put((a, a), v, True), X, np.array([0, 0, 1]), S[0, :3], grad=True)
    agree(lambda lib, x, a, v: x.index_put((a,), v), X, np.array([4]), S[:1])
    agree(lambda lib, x, a, v: x.index_put((a,), v), X, a, S[:2])
    agree(lambda lib, x, a, v: x.index_put((a,), v.float()), X, a, S[:3])
    agree(lambda lib, x, a, v: x.index_put(a, v), X, a, S[:3])


def test_along_a_dim():
    i = np.array([2, 0])
    for d in (0, 1, -1):
        agree(lambda lib, x, i, s, d=d: x.index_copy(d, i, s.narrow(d, 0, 2)), X, i, S, grad=True)
        agree(lambda lib, x, i, d=d: x.index_fill(d, i, 2.5), X, i, grad=True)
        agree(lambda lib, x, i, v, d=d: (x * 1).index_fill_(d, i, v), X, i, np.array(1.5), grad=True)
    agree(lambda lib, x, i, s: x.index_copy(0, i, s), X, i, S)
    agree(lambda lib, x, i, s: x.index_copy(0, i, s[:2].float()), X, i, S)
    agree(lambda lib, x, i: x.index_copy(0, i, x[:1]), X, np.array([7]))
    agree(lambda lib, x, i: x.index_fill(0, i, 1), X, np.array([7]))
    agree(lambda lib, x, i: x.index_fill(0, i, 2.5), np.arange(4), i)


def test_gather_of_nothing_takes_any_index(cuda):
    for shape, kind in ((0,), "uint8"), ((2, 0), "float32"), ((0, 5), "int64"):
        for device in ("cpu", cuda):
            agree(lambda lib, x, i: lib.gather(x, 0, i), X.astype("float32"), (np.zeros(shape), kind), grad=[0], device=device)


def test_masks():
    mask = S > 0
    for value in (0, 2.5, float("-inf"), True):
        agree(lambda lib, x, m, v=value: x.masked_fill(m, v), X, mask, grad=True, what=str(value))
        for kind in ("int64", "bool", "bfloat16", "uint8"):
            agree(lambda lib, x, m, v=value: x.masked_fill(m, v), (draw(4, 5, dtype=kind), kind), mask, what=f"{kind} {value}")
    agree(lambda lib, x, m: x.masked_fill(m[0], 1), X, mask, grad=True)
    agree(lambda lib, x, m: x[0].masked_fill(m, 1), X, mask, grad=True)
    agree(lambda lib, x, m: x[0].clone().masked_fill_(m, 1), X, mask)
    agree(lambda lib, x, m, v: x.masked_fill(m, v), X, mask, np.array(2.5), grad=True)
    agree(lambda lib, x, m: x.masked_fill(m, x), X, mask)
    agree(lambda lib, x, m: x.masked_fill(x, 1), X, mask)
    agree(lambda lib, x, m, s: x.masked_scatter(m, s), X, mask, S, grad=True)
    agree(lambda lib, x, m, s: x.masked_scatter(m, s[0]), X, mask, S)
    agree(lambda lib, x, m, s: (x * 1).masked_scatter_(m[0], s), X, mask, S, grad=True)


def test_on_a_cuda_device(cuda):
    x, s = X.astype(np.float32), S[:3].astype(np.float32)
    for f in (lambda lib, x, i, s: x.scatter(0, i, s), lambda lib, x, i, s: x.scatter(0, i, 2.0)):
        agree(f, x, DISTINCT, s, grad=True, device=cuda)
    for f in (lambda lib, x, i, s: x.scatter_add(0, i, s), lambda lib, x, i, s: x.scatter_reduce(0, i, s, "amax"),
              lambda lib, x, i, s: x.scatter_reduce(0, i, s, "mean"),
              lambda lib, x, i, s: x.index_put((i, i), s[:3], True), lambda lib, x, i, s: x[:3].masked_fill(s > 0, -1),
              lambda lib, x, i, s: x[:3].masked_scatter(s > 0, s),
              lambda lib, x, i, s: x.index_copy(0, i[0, :3], s[:3]), lambda lib, x, i, s: x.index_fill(1, i[0, :3], 2.0)):
        agree(f, x, REPEATED, s, grad=True, device=cuda, rtol=1e-5)
    for kind in (*WHOLES, "bool", "bfloat16"):
        agree(lambda lib, x, i: x.scatter_add(0, i, x[:3]), (draw(4, 5, dtype=kind), kind), REPEATED, device=cuda, what=kind)


def test_index_reduce():
    index = np.array([3, 0, 3])
    for reduce in ("prod", "mean", "amax", "amin"):
        for own in (True, False):
            agree(lambda lib, x, i, s, r=reduce, o=own: x.index_reduce(0, i, s, r, include_self=o), X, index, S[:3], grad=own, what=reduce)
            agree(lambda lib, x, i, s, r=reduce, o=own: x.clone().index_reduce_(1, i, s, r, include_self=o), X, index, S[:, :3],
                  what=reduce)
            agree(lambda lib, x, i, s, r=reduce, o=own: lib.index_reduce(x, -1, i, s, r, include_self=o),
                  (np.arange(8).reshape(2, 4), "int64"), index, (np.arange(6).reshape(2, 3) + 3, "int64"), what=reduce)
    agree(lambda lib, x, i, s: x.index_reduce(0, i, s, "sum"), X, index, S[:3])
    agree(lambda lib, x, i, s: x.index_reduce(0, i, s, "prod"), X, index, S)
    agree(lambda lib, x, i, s: x.index_reduce(2, i, s, "prod"), X, index, S[:3])


def test_writes_in_place_from_the_same_memory(cuda):
    """Of input and destination no copy is made where they are one; values and indices in that memory are read before it is written.
    PyTorch gets copies of those, which it asks for."""
    i = np.array([3, 0, 2])
    for f in (lambda lib, x, s, i: x.index_put_((i,), s[:3]), lambda lib, x, s, i: x.index_put_((i,), s[1:], True),
              lambda lib, x, s, i: x.t().index_put_((i,), s.t()[:3]), lambda lib, x, s, i: x[:, 1:].index_put_((i,), s[0, 0]),
              lambda lib, x, s, i: x.index_copy_(1, i, s[:, 1:4]), lambda lib, x, s, i: x.index_put_((i, i), s[0, :3], True),
              lambda lib, x, s, i: x.scatter_(0, i.reshape(3, 1).repeat(1, 5), s[:3]),
              lambda lib, x, s, i: x.t().scatter_(1, i.reshape(1, 3), -1.0), lambda lib, x, s, i: x.scatter_(0, i.reshape(1, 3), s[1:])):
        for device in ("cpu", cuda):
            agree(lambda lib, x, i, f=f: (f(lib, x, x if lib is tritorch else x.clone(), i), x), X.astype("float32"), i, device=device)
    for device in ("cpu", cuda):
        agree(lambda lib, x: x.index_put_((x if lib is tritorch else x.clone(),), x.flip(0)), np.array([2, 0, 1]), device=device)
