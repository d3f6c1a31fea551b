"""Windows against their formulas and scipy's known values, the two families of names, dtypes and errors."""
import numpy as np
import pytest

import tritorch as torch
from tritorch.signal import windows

K, M = np.arange(8), 8
SHAPES = {
    "bartlett": ({}, lambda k, n: 1 - np.abs(2 * k / (n - 1) - 1)),
    "blackman": ({}, lambda k, n: 0.42 - 0.5 * np.cos(2 * np.pi * k / (n - 1)) + 0.08 * np.cos(4 * np.pi * k / (n - 1))),
    "cosine": ({}, lambda k, n: np.sin(np.pi * (k + 0.5) / n)),
    "exponential": ({"tau": 2.0}, lambda k, n: np.exp(-np.abs(k - (n - 1) / 2) / 2)),
    "gaussian": ({"std": 1.5}, lambda k, n: np.exp(-0.5 * ((k - (n - 1) / 2) / 1.5) ** 2)),
    "general_cosine": ({"a": [0.5, 0.3, 0.2]},
                       lambda k, n: 0.5 - 0.3 * np.cos(2 * np.pi * k / (n - 1)) + 0.2 * np.cos(4 * np.pi * k / (n - 1))),
    "general_hamming": ({"alpha": 0.7}, lambda k, n: 0.7 - 0.3 * np.cos(2 * np.pi * k / (n - 1))),
    "hamming": ({}, lambda k, n: 0.54 - 0.46 * np.cos(2 * np.pi * k / (n - 1))),
    "hann": ({}, lambda k, n: np.sin(np.pi * k / (n - 1)) ** 2),
    "kaiser": ({"beta": 5.0}, lambda k, n: np.i0(5 * np.sqrt(np.maximum(1 - (2 * k / (n - 1) - 1) ** 2, 0))) / np.i0(5)),
    "nuttall": ({}, lambda k, n: sum(c * np.cos(2 * np.pi * i * k / (n - 1)) for i, c in enumerate(
        (0.3635819, -0.4891775, 0.1365995, -0.0106411)))),
}


@pytest.mark.parametrize("name", windows.__all__)
def test_shapes(cuda, name):
    options, shape = SHAPES[name]
    make = getattr(windows, name)
    for sym in (True, False):
        got = make(M, sym=sym, dtype=torch.float64, **options)
        np.testing.assert_allclose(got.numpy(), shape(K, M if sym else M + 1), rtol=1e-12, atol=1e-15)
        assert make(M, sym=sym, device=cuda, **options).cpu().tolist() == got.float().tolist()
    assert make(0, **options).shape == (0,) and make(1, **options).tolist() == [1] and make(2, **options).dtype is torch.float32
    assert make(3, requires_grad=True, **options).requires_grad
    for bad, kind in ((dict(M=-1), ValueError), (dict(M=2.5), TypeError), (dict(M=3, dtype=torch.float16), ValueError),
                      (dict(M=3, dtype=torch.int64), ValueError), (dict(M=3, layout="sparse"), ValueError)):
        with pytest.raises(kind):
            make(**bad, **options)


def test_known_values():
    """As scipy.signal.windows prints them."""
    assert windows.kaiser(5, beta=14).tolist() == pytest.approx([7.72686684e-06, 1.64932188e-01, 1.0, 1.64932188e-01, 7.72686684e-06])
    assert windows.exponential(5, center=1, sym=False, tau=1).tolist() == pytest.approx([0.36787944, 1, 0.36787944, 0.13533528, 0.04978707])


@pytest.mark.parametrize("name", ["bartlett", "blackman", "hamming", "hann", "kaiser"])
def test_older_names(name):
    old, new = getattr(torch, name + "_window"), getattr(windows, name)
    assert torch.equal(old(7), new(7, sym=False)) and torch.equal(old(7, False), new(7)) and old(1).tolist() == [1]
    assert old(4, dtype=torch.bfloat16).dtype is torch.bfloat16 and old(0).shape == (0,)
    for bad, kind in (((-1,), RuntimeError), ((2.5,), TypeError)):
        with pytest.raises(kind):
            old(*bad)
    with pytest.raises(RuntimeError):
        old(3, dtype=torch.int64)


def test_parameters():
    assert torch.hamming_window(4, True, 0.6, 0.3).tolist() == pytest.approx([0.3, 0.6, 0.9, 0.6])
    assert torch.equal(torch.kaiser_window(6, True, 3.0), windows.kaiser(6, beta=3.0, sym=False))
    for bad, kind in ((lambda: windows.exponential(3, center=1.0), ValueError), (lambda: windows.exponential(3, tau=0), ValueError),
                      (lambda: windows.gaussian(3, std=-1), ValueError), (lambda: windows.kaiser(3, beta=-1), ValueError),
                      (lambda: windows.general_cosine(3, a=[]), ValueError), (lambda: windows.general_cosine(3, a=1.0), TypeError)):
        with pytest.raises(kind):
            bad()
