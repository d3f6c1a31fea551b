"""The first few and the k-th of short rows on a GPU: at the bounds of each way, with ties, NaN and extreme keys, on hostile layouts."""
import numpy as np
import pytest

pytest.importorskip("triton")

from test_product_code import launched  # noqa: E402

import tritorch as T  # noqa: E402

HOSTILE = {"whole": lambda x: x, "transposed": lambda x: x.t().contiguous().t(), "gapped": lambda x: T.cat([x, x], 1)[:, :x.shape[1]],
           "shifted": lambda x: T.cat([x[:1], x])[1:], "expanded": lambda x: x[:1].expand(3, x.shape[1])}


def keys(dtype, rows, n):
    """Few different values, so that many are equal, and the extreme ones; NaN and infinities of floats."""
    rng = np.random.default_rng()
    if dtype.is_floating_point:
        x = rng.integers(-3, 4, (rows, n)).astype(np.float32)
        x[rng.random((rows, n)) < .1] = np.nan
        x[rng.random((rows, n)) < .1] = np.inf
        x[rng.random((rows, n)) < .1] = -np.inf
        return T.tensor(x).to(dtype)
    limits = T.iinfo(dtype)
    x = rng.integers(max(limits.min, -3), 4, (rows, n))
    x[rng.random((rows, n)) < .1] = limits.max
    x[rng.random((rows, n)) < .1] = limits.min
    return T.tensor(x).to(dtype)


def in_order(x, largest):
    """Places of each row's elements in order, equal ones from the left, NaN as the greatest."""
    greatest = np.isnan(x)
    x = np.where(greatest, 0, x)
    sign = -1 if largest else 1
    return np.stack([np.lexsort((np.arange(len(row)), sign * row, sign * nan)) for row, nan in zip(x, greatest.astype(int))])


@pytest.mark.parametrize("dtype", [T.float32, T.bfloat16, T.int16, T.uint8, T.int32, T.int64], ids=str)
@pytest.mark.parametrize("n, k", [(1, 1), (2, 1), (10, 5), (16, 3), (17, 0), (17, 8), (127, 16), (130, 9), (257, 6), (257, 7)])
def test_first_few_of_short_rows(n, k, dtype, cuda):
    for name, lay in HOSTILE.items():
        x = lay(keys(dtype, 5, n).to(cuda))
        host = x.cpu().to(T.float64).numpy()
        for largest in (True, False):
            values, places = x.topk(k, 1, largest)
            want = in_order(host, largest)[:, :k]
            np.testing.assert_array_equal(places.cpu().numpy(), want, err_msg=f"{name} {largest}")
            want = np.take_along_axis(host, want, 1)
            np.testing.assert_array_equal(values.cpu().to(T.float64).numpy(), want, err_msg=f"{name} {largest}")


@pytest.mark.parametrize("n", [1, 10, 33, 255, 256])
def test_kth_and_median_of_short_rows(n, cuda):
    for name, lay in HOSTILE.items():
        x = lay(keys(T.float32, 5, n).to(cuda))
        host = x.cpu().numpy()
        order = np.take_along_axis(host, in_order(host, False), 1)
        for k in sorted({1, min(2, n), (n + 1) // 2, n}):
            np.testing.assert_array_equal(x.kthvalue(k, 1).values.cpu().numpy(), order[:, k - 1], err_msg=f"{name} {k}")
        middle = np.where(np.isnan(host).any(1), np.nan, order[:, (n - 1) // 2])
        np.testing.assert_array_equal(x.median(1).values.cpu().numpy(), middle, err_msg=name)


@pytest.mark.parametrize("n, k, kernel", [(10, 5, "few_kernel"), (10, 6, "sort_rows_kernel"), (256, 16, "few_kernel"),
                                          (257, 7, "sort_rows_kernel"), (1024, 6, "few_kernel"), (1025, 6, "select_kernel")])
def test_the_kernel_of_a_length(n, k, kernel):
    assert launched(lambda e: e(64, n).topk(k))[0].kernel.__name__ == kernel
