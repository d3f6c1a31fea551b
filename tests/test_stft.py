"""Transforms of frames and signals put together of them: against sums, back again, gradients, padding, errors."""
import warnings

import numpy as np
import pytest
from arrays import draw

import tritorch as torch

PLACES = pytest.mark.parametrize("place", ["cpu", "cuda"])
WINDOW = np.hanning(9)[:8] + 0.1


@pytest.fixture(autouse=True)
def quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def by_sums(x, n, hop, window):
    """(…, n, frames)."""
    count = (x.shape[-1] - n) // hop + 1
    cut = np.stack([x[..., k * hop:k * hop + n] * window for k in range(count)], -1)
    return np.einsum("kj,...jt->...kt", np.exp(-2j * np.pi * np.outer(np.arange(n), np.arange(n)) / n), cut)


@PLACES
def test_sums(place, cuda):
    device = cuda if place == "cuda" else "cpu"
    x, short = draw(2, 30, dtype=np.float64), np.array([1.0, 2.0, 0.5])
    for n, hop, window, pad in ((8, 3, WINDOW, "reflect"), (7, 2, None, "constant"), (8, 8, short, "circular")):
        given = None if window is None else torch.tensor(window, device=device)
        full = np.ones(n) if window is None else np.pad(window, ((n - len(window)) // 2, n - len(window) - (n - len(window)) // 2))
        mode = {"reflect": "reflect", "constant": "constant", "circular": "wrap"}[pad]
        for center in (True, False):
            wide = np.pad(x, ((0, 0), (n // 2, n // 2)), mode) if center else x
            want = by_sums(wide, n, hop, full)
            options = dict(hop_length=hop, win_length=None if window is None else len(window), window=given, center=center, pad_mode=pad)
            one = torch.stft(torch.tensor(x, device=device), n, return_complex=True, **options)
            np.testing.assert_allclose(one.cpu().numpy(), want[:, :n // 2 + 1], atol=1e-12)
            two = torch.tensor(x, device=device)[0].stft(n, return_complex=False, onesided=False, normalized=True, **options)
            np.testing.assert_allclose(torch.view_as_complex(two.cpu()).numpy(), want[0] / np.sqrt(n), atol=1e-12)
            z = torch.stft(torch.tensor(x + 1j * x[::-1], device=device), n, **options)
            np.testing.assert_allclose(z.cpu().numpy(), want + 1j * want[::-1], atol=1e-12)


@PLACES
@pytest.mark.parametrize("kind", [np.float32, np.complex128], ids=lambda k: k.__name__)
def test_there_and_back(place, kind, cuda):
    x = torch.tensor(draw(2, 50, dtype=kind) if kind == np.float32 else draw(2, 50, dtype=np.float64) * (1 + 2j),
                     device=cuda if place == "cuda" else "cpu")
    window = torch.tensor(WINDOW, dtype=x.real.dtype, device=x.device)
    for normalized in (False, True):
        for hop, length in ((2, 50), (3, 40), (2, None), (4, 60)):
            y = torch.stft(x, 8, hop, window=window, normalized=normalized, return_complex=True)
            back = torch.istft(y, 8, hop, window=window, normalized=normalized, length=length, return_complex=x.is_complex())
            assert back.dtype is x.dtype and back.shape == (2, length or 48 + 2 * (hop == 2))
            known = 48 if hop == 3 else 50
            np.testing.assert_allclose(back.cpu().numpy()[:, :min(known, length or 99)], x.cpu().numpy()[:, :min(known, length or 99)],
                                       atol=1e-5)
            if length == 60:
                assert back[:, 56:].abs().max() == 0


def test_gradients(cuda):
    def there_and_back(x, window):
        y = torch.stft(x, 4, 2, 3, window, return_complex=True)
        return torch.view_as_real(y), torch.istft(y * y, 4, 2, 3, window)

    leaves = [torch.tensor(v, dtype=torch.float64, requires_grad=True) for v in (draw(7, dtype=np.float64), [0.5, 1.0, 0.7])]
    assert torch.autograd.gradcheck(there_and_back, leaves)
    grads = [torch.autograd.grad(sum((o * o).sum() for o in there_and_back(*on)), on)
             for on in (leaves, [v.detach().to(cuda).requires_grad_() for v in leaves])]
    for x, y in zip(*grads):
        np.testing.assert_allclose(y.cpu().numpy(), x.numpy(), rtol=1e-10)


def test_aligned():
    x, window = torch.arange(1, 13.0), torch.tensor([1.0, 1.0])
    frames = [torch.stft(x, 4, 3, 2, window, center=False, align_to_window=aligned, return_complex=True)[0].real.tolist()
              for aligned in (True, False)]
    assert frames == [[3, 9, 15, 21], [5, 11, 17]]


X, Y = torch.ones(20), torch.ones(5, 6, dtype=torch.complex64)


@pytest.mark.parametrize("call, error", [
    (lambda t: t.stft(X, 8), RuntimeError), (lambda t: t.stft(X, 0, return_complex=True), RuntimeError),
    (lambda t: t.stft(X, 8.0, return_complex=True), TypeError), (lambda t: t.stft(X, 24, center=False, return_complex=True), RuntimeError),
    (lambda t: t.stft(X, 8, 0, return_complex=True), RuntimeError), (lambda t: t.stft(X, 8, 2, 9, return_complex=True), RuntimeError),
    (lambda t: t.stft(X, 8, window=X, return_complex=True), RuntimeError),
    (lambda t: t.stft(X, 8, window=8, return_complex=True), TypeError),
    (lambda t: t.stft(X, 8, align_to_window=True, return_complex=True), RuntimeError),
    (lambda t: t.stft(X, 8, pad_mode="no", return_complex=True), NotImplementedError),
    (lambda t: t.stft(X[None, None], 8, return_complex=True), RuntimeError),
    (lambda t: t.stft(X.long(), 8, return_complex=True), RuntimeError), (lambda t: t.stft(X + 0j, 8, onesided=True), RuntimeError),
    (lambda t: t.istft(Y.real, 8), RuntimeError), (lambda t: t.istft(Y, 7), RuntimeError), (lambda t: t.istft(Y[:0], 8), RuntimeError),
    (lambda t: t.istft(Y, 8, 9), RuntimeError), (lambda t: t.istft(Y, 8, win_length=9), RuntimeError),
    (lambda t: t.istft(Y, 8, window=t.zeros(8)), RuntimeError), (lambda t: t.istft(Y, 8, length=0), RuntimeError),
    (lambda t: t.istft(Y, 8, return_complex=True), RuntimeError), (lambda t: t.istft(Y, 8, window=t.ones(8) + 0j), RuntimeError),
    (lambda t: t.istft(Y[0], 8), IndexError), (lambda t: t.istft(Y[None, None], 8), RuntimeError),
    (lambda t: t.istft(Y, 8, window=t.hann_window(8), center=False), RuntimeError)])
def test_errors(call, error):
    with pytest.raises(error):
        call(torch)


def test_warnings():
    with pytest.warns(UserWarning, match="without a window"):
        torch.stft(X, 8, return_complex=True)
    with pytest.warns(UserWarning, match="return_complex=False is deprecated"):
        torch.stft(X, 8, window=torch.ones(8), return_complex=False)
