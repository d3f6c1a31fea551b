"""median, nanmedian, mode, quantile and nanmean against PyTorch."""
import numpy as np
from oracle import agree, draw

import tritorch as torch

X = draw(4, 5, dtype="float64")
WITH_NAN = np.where(draw(4, 5, seed=9) > 0.8, np.nan, X)


def test_medians():
    for name in ("median", "nanmedian"):
        for x in (X, WITH_NAN, np.full((3, 4), np.nan)):
            agree(lambda lib, x, name=name: getattr(lib, name)(x), x, what=name)
            for d in (0, 1, -1):
                for keep in (False, True):
                    agree(lambda lib, x, name=name, d=d, keep=keep: getattr(x, name)(d, keep).values, x, what=f"{name} {d}")
        agree(lambda lib, x, name=name: getattr(x, name)(1), X, grad=True, what=name)
        agree(lambda lib, x, name=name: getattr(x, name)(), X, grad=True, what=name)
        agree(lambda lib, x, name=name: (getattr(x, name)(), getattr(x, name)(0).values), np.array([4, 1, 3, 1]), what=name)
        agree(lambda lib, x, name=name: (getattr(x, name)(), getattr(x, name)(0)), draw(), what=name)
        agree(lambda lib, x, name=name: getattr(x, name)(), draw(0), what=name)
        agree(lambda lib, x, name=name: getattr(x, name)(1), draw(3, 0), what=name)


def test_the_median_of_a_row_with_nan_is_its_first_nan():
    x = np.array([[2, np.nan, 1, np.nan, 3], [np.nan, 1, np.nan, np.inf, 2], [4, 5, -np.inf, np.inf, 6]])
    for keep in (False, True):
        agree(lambda lib, x, keep=keep: x.median(1, keep), x)
    assert torch.tensor(x).median(1).indices.tolist() == [1, 0, 1]


def test_mode():
    x = np.array([[1, 2, 2, 3, 3], [5, 5, 1, 1, 0], [4, 3, 2, 1, 0]])
    for d in (0, 1, -1):
        for keep in (False, True):
            agree(lambda lib, x, d=d, keep=keep: x.mode(d, keep).values, x, what=str(d))
    agree(lambda lib, x: x.mode(), x)
    agree(lambda lib, x: x.mode(), draw())
    agree(lambda lib, x: x.mode().values, x.astype(np.float64), grad=True)


def test_quantiles():
    for q in (0.0, 0.25, 0.5, 1.0, [0.1, 0.9], [0.5]):
        for interpolation in ("linear", "lower", "higher", "midpoint", "nearest"):
            for d in (None, 0, -1):
                for keep in (False, True):
                    def program(lib, x, q=q, d=d, keep=keep, interpolation=interpolation):
                        at = lib.tensor(q, dtype=x.dtype) if isinstance(q, list) else q
                        return lib.quantile(x, at, d, keep, interpolation=interpolation)

                    agree(program, X, what=f"{q} {interpolation} {d} {keep}", grad=True)
                    agree(program, WITH_NAN, what=f"{q} {interpolation} {d} {keep}")
    agree(lambda lib, x: x.quantile(1.5), X)
    agree(lambda lib, x: x.quantile(0.5, interpolation="cubic"), X)
    agree(lambda lib, x: x.quantile(0.5), np.arange(4))
    agree(lambda lib, x: x.quantile(0.5), draw(0))
    agree(lambda lib, x: x.quantile(0.5), draw())
    agree(lambda lib, x: (lib.nanquantile(x, 0.3), lib.nanquantile(x, lib.tensor([0.2, 0.7], dtype=x.dtype), 1),
                          lib.nanquantile(x, 0.5, 0, True)), WITH_NAN)


def test_means_without_nan():
    agree(lambda lib, x: (x.nanmean(), x.nanmean(0), lib.nanmean(x, 1, True)), WITH_NAN)
    agree(lambda lib, x: x.nanmean(1), X, grad=True)
    agree(lambda lib, x: x.nanmean(), np.array([1, 2]))


def test_on_a_cuda_device(cuda):
    agree(lambda lib, x: (x.median(), x.median(1).values, x.nanmedian(0).values, x.quantile(0.3, 1), x.nanmean(0)),
          WITH_NAN.astype(np.float32), device=cuda)
    agree(lambda lib, x: x.mode(1).values, np.array([[1, 2, 2], [3, 3, 1]]), device=cuda)
