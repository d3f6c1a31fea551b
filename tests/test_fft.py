"""Fourier transforms against numpy's: lengths, dims, sizes, factors, the plans for long lines, accuracy, errors."""
import numpy as np
import pytest
from arrays import draw

import tritorch as torch
from tritorch.ops import fft_plans

LINES = "fft ifft rfft irfft hfft ihfft".split()
MANY = "fft2 ifft2 rfft2 irfft2 fftn ifftn rfftn irfftn".split()
KINDS = pytest.mark.parametrize("kind", [np.float32, np.float64], ids=lambda k: k.__name__)
PLACES = pytest.mark.parametrize("place", ["cpu", "cuda"])
TOLERANCE = {np.float32: 2e-6, np.float64: 3e-15}                        # of the root mean square, a digit more for a length of 100


def numbers(name, shape, kind):
    """Input for a transform: real where it wants that."""
    x = draw(*shape, dtype=kind)
    return x if name.startswith(("rfft", "ihfft")) else x + 1j * draw(*shape, dtype=kind)[::-1]


def near(got, want, kind):
    got, size = got.detach().cpu().numpy(), max(np.sqrt(np.mean(np.abs(want) ** 2)), 1e-30) if want.size else 1
    assert got.shape == want.shape and got.dtype == (np.result_type(kind, np.complex64) if want.dtype.kind == "c" else kind)
    np.testing.assert_allclose(got, want, rtol=0, atol=TOLERANCE[kind] * size * max(np.log2(want.size + 1), 1))


def agree(name, x, kind, device, **options):
    numpys = {"axis" if key == "dim" else key: v for key, v in options.items()}
    if name in MANY:
        numpys["axes"] = numpys.pop("axis", (-2, -1) if name.endswith("2") else None)
    wide = x.astype(np.result_type(x.dtype, np.float64))
    want = getattr(np.fft, name)(wide, **numpys)
    near(getattr(torch.fft, name)(torch.tensor(x, device=device), **options), want, kind)


@KINDS
@PLACES
@pytest.mark.parametrize("name", LINES)
def test_lengths(name, place, kind, cuda):
    """Powers of 2, mixed factors, chirps; along either dim, whose lines lie one after the other or side by side."""
    for n in (1, 2, 3, 4, 8, 9, 13, 16, 24, 100) if place == "cpu" else (2, 11, 16, 22, 105):
        for dim in (0, 1):
            x = numbers(name, (n, 3) if dim == 0 else (3, n), kind)
            agree(name, x, kind, cuda if place == "cuda" else "cpu", n=n, dim=dim)


@PLACES
@pytest.mark.parametrize("name", LINES)
def test_sizes_and_factors(name, place, cuda):
    device = cuda if place == "cuda" else "cpu"
    x = numbers(name, (2, 6, 3), np.float64)
    for n, norm in ((4, "ortho"), (9, "forward"), (12, "backward")):
        agree(name, x, np.float64, device, n=n, dim=1, norm=norm)
    strided = torch.tensor(x, device=device)[:, ::2].transpose(0, 2)     # 3, 3, 2
    near(getattr(torch.fft, name)(strided, 5, 1), getattr(np.fft, name)(x[:, ::2].swapaxes(0, 2), 5, 1), np.float64)
    spread = torch.tensor(x, device=device)[0, 0].expand(4, 3)
    near(getattr(torch.fft, name)(spread, 4), np.tile(getattr(np.fft, name)(x[0, 0], 4), (4, 1)), np.float64)
    assert getattr(torch.fft, name)(strided[:, :0], 4, 1).abs().max() == 0 and getattr(torch.fft, name)(strided[:0], 4, 1).numel() == 0


@PLACES
@pytest.mark.parametrize("name", MANY)
def test_several_dims(name, place, cuda):
    device = cuda if place == "cuda" else "cpu"
    x = numbers(name, (3, 4, 5), np.float64)
    agree(name, x, np.float64, device)
    agree(name, x, np.float64, device, s=(6, 3), dim=(0, 1), norm="ortho")


def test_hermitian_dims():
    x = numbers("fft", (3, 4, 5), np.float64)
    want = np.fft.hfft(np.fft.fft(x, axis=1), axis=2)
    near(torch.fft.hfft2(torch.tensor(x)), want, np.float64)
    near(torch.fft.hfftn(torch.tensor(x)), np.fft.hfft(np.fft.fft2(x, axes=(0, 1)), axis=2), np.float64)
    for f in (torch.fft.ihfft2, torch.fft.ihfftn):
        near(f(torch.tensor(want), dim=(1, 2)), np.fft.ifft(np.fft.ihfft(want, axis=2), axis=1), np.float64)


@pytest.fixture
def short_lines(monkeypatch):
    """As if registers held no more than 64 numbers: what else only thousands show."""
    monkeypatch.setattr(fft_plans, "LIMIT", {"c64": 64, "c128": 64})
    monkeypatch.setattr(fft_plans, "LEAST", 2)


@pytest.mark.parametrize("n, launches", [(128, 2), (2048, 3), (120, 2), (66, 3), (37, 6)])
def test_long_lines(n, launches, cuda, short_lines, monkeypatch):
    """Two factors, three, mixed ones, one that takes a chirp, and a prime."""
    count, launch = [], fft_plans.launch
    monkeypatch.setattr(fft_plans, "launch", lambda *args, **options: (count.append(args[0]), launch(*args, **options)))
    x = torch.tensor(numbers("fft", (2, n), np.float64), device=cuda)
    near(torch.fft.fft(x), np.fft.fft(x.cpu().numpy()), np.float64)
    assert len(count) == launches
    if n in (66, 37):
        near(torch.fft.ifft(x.T, dim=0), np.fft.ifft(x.cpu().numpy()).T, np.float64)
        near(torch.fft.rfft(x.real), np.fft.rfft(x.cpu().numpy().real), np.float64)
        near(torch.fft.irfft(x, n), np.fft.irfft(x.cpu().numpy(), n), np.float64)
        near(torch.fft.irfft(x, n + 1), np.fft.irfft(x.cpu().numpy(), n + 1), np.float64)
        near(torch.fft.rfft(x.real, n + 1), np.fft.rfft(x.cpu().numpy().real, n + 1), np.float64)
        y = x.clone().requires_grad_()
        torch.fft.fft(y, n + 3).real.sum().backward()
        near(y.grad, np.fft.ifft(np.ones((2, n + 3)))[:, :n] * (n + 3) + 0j, np.float64)


@pytest.mark.parametrize("n", [4096, 1000, 1009])
def test_accuracy(n, cuda):
    """Near what float64 gives: within half a unit in the last place for each doubling of the length, on the average; a chirp takes more."""
    x = numbers("fft", (2, n), np.float32)
    want = np.fft.fft(x.astype(np.complex128))
    error = torch.fft.fft(torch.tensor(x, device=cuda)).cpu().numpy() - want
    size = np.sqrt(np.mean(np.abs(want) ** 2))
    assert np.sqrt(np.mean(np.abs(error) ** 2)) / size < 0.5 * np.log2(n) * 2.0 ** -24


def test_numbers_that_are_not_finite(cuda):
    x = torch.ones(3, 8, device=cuda)
    x[1, 2] = float("nan")
    y = torch.fft.fft(x).cpu().numpy()
    assert np.isnan(y[1]).all() and np.isfinite(y[[0, 2]]).all()


def test_whole_numbers_and_destinations():
    assert torch.fft.fft(torch.arange(4)).dtype is torch.complex64 and torch.fft.rfft(torch.tensor([True])).dtype is torch.complex64
    out = torch.zeros(3, dtype=torch.complex128)
    assert torch.fft.rfft(torch.tensor([1.0, 2.0, 3.0, 5.0]), out=out) is out and out.tolist() == [11, -2 + 3j, -3]
    assert torch.fft.fftn(torch.tensor(2.0)).tolist() == 2 and torch.fft.fftn(torch.ones(2), dim=()).dtype is torch.complex64
    x = torch.randn(5, requires_grad=True)
    assert torch.fft.fft(x).abs().sum().backward() is None and x.grad.dtype is torch.float32


def test_frequencies_and_order():
    for n in range(1, 6):
        for name in ("fftfreq", "rfftfreq"):
            got = getattr(torch.fft, name)(n, 0.5, dtype=torch.float64)
            np.testing.assert_allclose(got.numpy(), getattr(np.fft, name)(n, 0.5), rtol=1e-15)
    x = draw(3, 4, 5, dtype=np.float64)
    for name in ("fftshift", "ifftshift"):
        for dim in (None, 0, (1, 2)):
            for value in (x, x + 1j):
                assert (getattr(torch.fft, name)(torch.tensor(value), dim).numpy() == getattr(np.fft, name)(value, dim)).all()


X, Z = torch.ones(3, 4), torch.ones(3, 4, dtype=torch.complex64)


@pytest.mark.parametrize("call, error", [
    (lambda f: f.fft(X, 0), RuntimeError), (lambda f: f.fft(X, norm="no"), RuntimeError), (lambda f: f.fft(X, norm=1), TypeError),
    (lambda f: f.fft(X, 2.0), TypeError), (lambda f: f.fft(X, dim=2), IndexError), (lambda f: f.fft(torch.tensor(1.0)), IndexError),
    (lambda f: f.fft([1.0]), TypeError), (lambda f: f.fft(X.half()), RuntimeError), (lambda f: f.fft(X, out=X), RuntimeError),
    (lambda f: f.rfft(Z), RuntimeError), (lambda f: f.ihfft(Z), RuntimeError), (lambda f: f.irfft(X[:, :1]), RuntimeError),
    (lambda f: f.irfft(X, out=Z), RuntimeError), (lambda f: f.rfftn(Z), RuntimeError), (lambda f: f.rfftn(X, dim=()), RuntimeError),
    (lambda f: f.fftn(X, dim=(0, -2)), RuntimeError), (lambda f: f.fftn(X, s=(2,), dim=(0, 1)), RuntimeError),
    (lambda f: f.fftn(X, s=(1, 2, 3)), RuntimeError), (lambda f: f.fftn(X, s=(0, 2)), RuntimeError),
    (lambda f: f.fft2(X[0]), IndexError), (lambda f: f.fftfreq(2.5), TypeError), (lambda f: f.fftfreq(2, dtype=torch.int64), RuntimeError),
    (lambda f: f.fftfreq(-1), RuntimeError), (lambda f: f.fftshift(X, 3), IndexError), (lambda f: f.fftshift(X, ()), RuntimeError)])
def test_errors(call, error):
    with pytest.raises(error, match=": expected "):
        call(torch.fft)
