"""sort, topk, kthvalue, unique, searchsorted and histc against PyTorch: NaN, ties, empty rows, dims, dtypes, gradients."""
import numpy as np
from oracle import EVERY, FLOATS, SPECIAL, agree, draw

TIES = np.array([[3.0, 1.0, 3.0, 2.0, 1.0], [0.0, -0.0, np.nan, np.inf, -np.inf]])


def test_sort():
    for x in (draw(4, 6), draw(2, 3, 5), TIES):
        for d in (0, 1, -1):
            for descending in (False, True):
                agree(lambda lib, x, d=d, desc=descending: lib.sort(x, dim=d, descending=desc, stable=True), x, signs=False,
                      what=f"{d} {descending}")
                agree(lambda lib, x, d=d, desc=descending: x.argsort(d, desc, stable=True) if lib.__name__ == "tritorch"
                      else lib.argsort(x, dim=d, descending=desc, stable=True), x)
    for kind in EVERY:
        x = SPECIAL if kind in FLOATS else draw(30, dtype=kind)
        for descending in (False, True):
            agree(lambda lib, x, desc=descending: lib.sort(x, descending=desc, stable=True), (x, kind), what=f"{kind} {descending}",
                  signs=False)
    agree(lambda lib, x: (x.sort(), x.sort(0, True), x.msort()), draw(3, 4, dtype="float64"), grad=True)
    for shape in ((), (0,), (3, 0), (0, 3), (1,)):
        agree(lambda lib, x: x.sort(), draw(*shape), what=str(shape), grad=True)
        agree(lambda lib, x: x.sort(0), draw(*shape), what=str(shape))
        agree(lambda lib, x: x.argsort(), draw(*shape), what=str(shape))
    agree(lambda lib, x: x.sort(2), draw(3, 4))
    agree(lambda lib, x: lib.sort(x, out=(lib.empty(0), lib.empty(0, dtype=lib.int64))), draw(3, 4))
    agree(lambda lib, x: (x.sort().values, x.sort().indices, x.sort()[0]), draw(3, 4))


def test_first_k():
    x = draw(4, 6, dtype="float64")
    for k in (0, 1, 3, 6):
        for largest in (True, False):
            for d in (0, -1):
                if k <= x.shape[d]:
                    agree(lambda lib, x, k=k, big=largest, d=d: x.topk(k, d, big), x, grad=True, what=f"{k} {largest} {d}")
    for kind in EVERY:
        if kind != "bool":
            agree(lambda lib, x: x.topk(3).values, (SPECIAL if kind in FLOATS else draw(20, dtype=kind), kind), what=kind)
    agree(lambda lib, x: x.topk(2), np.array([1.0, np.nan, 3.0]))
    agree(lambda lib, x: x.topk(2, largest=False), np.array([1.0, np.nan, 3.0]))
    for k in (7, -1):
        agree(lambda lib, x, k=k: x.topk(k), x)
        agree(lambda lib, x, k=k: x.kthvalue(k), x)
    for d in (0, 1):
        for keep in (False, True):
            agree(lambda lib, x, d=d, keep=keep: x.kthvalue(2, d, keep), x, grad=True)
    agree(lambda lib, x: (x.kthvalue(1), x.topk(1)), draw())
    agree(lambda lib, x: x.kthvalue(0), draw(3))


def test_unique():
    for kind in ("int64", "float32", "bool", "uint8"):
        x = (np.array([[3, 1, 3], [2, 1, 1], [3, 1, 3]]), kind)
        for keywords in ({}, {"return_inverse": True}, {"return_counts": True}, {"return_inverse": True, "return_counts": True}):
            for d in (None, 0, 1, -1):
                agree(lambda lib, x, kw=keywords, d=d: lib.unique(x, dim=d, **kw), x, what=f"{kind} {keywords} {d}")
                agree(lambda lib, x, kw=keywords, d=d: lib.unique_consecutive(x, dim=d, **kw), x, what=f"{kind} {keywords} {d} consecutive")
    agree(lambda lib, x: x.unique(return_inverse=True, return_counts=True), np.array([], np.int64))
    agree(lambda lib, x: x.unique(return_inverse=True, return_counts=True), np.array(3))
    agree(lambda lib, x: x.unique(return_counts=True), np.array([np.nan, 1.0, np.nan]))
    agree(lambda lib, x: x.unique_consecutive(return_inverse=True), np.array([1, 1, 2, 1]))
    agree(lambda lib, x: x.unique_consecutive(), np.array([], np.int64))


def test_places_in_sorted_sequences():
    edges = np.array([1.0, 2.0, 2.0, 4.0])
    values = np.array([[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]])
    for right in (False, True):
        agree(lambda lib, e, v, r=right: (lib.searchsorted(e, v, right=r), lib.bucketize(v, e, right=r),
                                          lib.bucketize(v, e, right=r, out_int32=True)), edges, values)
        agree(lambda lib, e, v, r=right: lib.searchsorted(e, v, right=r), np.stack([edges, edges + 1]), values)
        agree(lambda lib, e, v, r=right: lib.searchsorted(e, v, right=r), np.arange(4), np.array([[2, 5]]))
    agree(lambda lib, e: (lib.searchsorted(e, 2.0), lib.bucketize(2.0, e) if lib.__name__ != "tritorch"
                          else lib.bucketize(lib.tensor(2.0), e)), edges)
    agree(lambda lib, e, v: lib.searchsorted(e, v, side="right"), edges, values)
    agree(lambda lib, e, v: lib.searchsorted(e, v, side="middle"), edges, values)
    agree(lambda lib, e, v: lib.searchsorted(e, v, side="left", right=True), edges, values)
    agree(lambda lib, e, v: lib.searchsorted(e, v), np.stack([edges] * 3), values)
    agree(lambda lib, e, v: lib.bucketize(v, e), np.stack([edges] * 2), values)
    agree(lambda lib, e, v: lib.searchsorted(e.flip(0), v, sorter=lib.arange(4).flip(0)), edges, values)
    agree(lambda lib, e, v: lib.searchsorted(e, v), edges[:0], values)


def test_histograms():
    x = draw(50, dtype="float64")
    agree(lambda lib, x: (lib.histc(x), lib.histc(x, 7), lib.histc(x, 5, -1, 1), lib.histc(x.float(), 5, min=0, max=2)), x)
    agree(lambda lib, x: lib.histc(x, 5), np.ones(4))
    agree(lambda lib, x: lib.histc(x, 0), x)
    agree(lambda lib, x: lib.histc(x, 5, 2, 1), x)
    agree(lambda lib, x: lib.histc(x, 3), x[:0])


def test_on_a_cuda_device(cuda):
    for kind in EVERY:
        x = SPECIAL if kind in FLOATS else draw(30, dtype=kind)
        for descending in (False, True):
            agree(lambda lib, x, desc=descending: lib.sort(x, descending=desc, stable=True), (x, kind), what=f"{kind} {descending}",
                  device=cuda, signs=False)
    limits = np.array([2 ** 62, -2 ** 63, 2 ** 63 - 1, 0, -1, 2 ** 32, -2 ** 32, 2 ** 31])
    agree(lambda lib, x: (x.sort(), x.sort(descending=True), x.topk(3)), limits, device=cuda)
    agree(lambda lib, x: (x.sort(0), x.topk(2, 0), x.kthvalue(2)), draw(5, 6), device=cuda, grad=True)
    agree(lambda lib, x: lib.unique(x, return_inverse=True, return_counts=True), np.array([[3, 1], [1, 2]]), device=cuda)
    agree(lambda lib, x: lib.unique(x, dim=0, return_inverse=True), np.array([[3, 1], [1, 2], [3, 1]]), device=cuda)
    agree(lambda lib, e, v: (lib.searchsorted(e, v), lib.bucketize(v, e, right=True)), np.array([1.0, 2.0, 4.0]),
          np.array([[0.0, 2.0], [4.0, 5.0]]), device=cuda)
    agree(lambda lib, x: lib.histc(x, 5, -1, 1), draw(40), device=cuda)


def test_histogram():
    x, w = np.random.default_rng().standard_normal(50), np.random.default_rng().random(50)
    agree(lambda lib, x: (*lib.histogram(x, 7), *x.histogram(bins=3, range=(-1.0, 0.5)), *lib.histogram(x, 4, density=True)), x, rtol=1e-9)
    agree(lambda lib, x, w: (*lib.histogram(x, 5, weight=w), *lib.histogram(x, lib.tensor([-1.0, 0.0, 0.25, 2.0]).to(x), weight=w)), x, w,
          rtol=1e-9)
    agree(lambda lib, x: (*lib.histogram(x, 5), *lib.histogram(x, 3, range=(0.0, 3.0))), np.arange(4.0), rtol=1e-9)
    agree(lambda lib, x: lib.histogram(x, 0), x)
    agree(lambda lib, x: lib.histogram(x.long(), 3), x)
