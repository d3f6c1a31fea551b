"""MaskedTensor against numpy's masked arrays, and against PyTorch where that is installed."""
import warnings

import numpy as np
import pytest

import tritorch

DATA = [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0], [0.5, 0.25, -1.0]]
MASK = [[True, False, True], [False, False, True], [False, False, False]]
UNARY = "abs exp neg sin sigmoid square tanh isnan ceil".split()
BINARY = "add sub mul div eq lt maximum".split()
REDUCTIONS = "sum mean amin amax prod var std".split()


def made(library=tritorch, requires_grad=False, device="cpu"):
    data, mask = library.tensor(DATA, device=device), library.tensor(MASK, device=device)
    return library.masked.masked_tensor(data, mask, requires_grad=requires_grad)


def gradient(library, function):
    x = made(library, requires_grad=True)
    function(x).sum().backward()
    return x.grad


def leaving_out_nan(library):
    """The gradient that `where` spoils by 0 · ∞ among plain tensors."""
    x = library.tensor([-10.0, -5.0, 0.0, 100.0])
    below = x < 0
    first = library.masked.masked_tensor(x, below, requires_grad=True)
    second = library.masked.masked_tensor(library.ones_like(x), ~below, requires_grad=True)
    library.where(below, library.exp(first), second).sum().backward()
    return first.grad, second.grad


PROGRAMS = {
    **{name: lambda L, name=name: getattr(L, name)(made(L)) for name in UNARY},
    **{name: lambda L, name=name: getattr(L, name)(made(L), made(L)) for name in BINARY},
    **{f"{name} beside a tensor": lambda L, name=name: getattr(L, name)(made(L), L.tensor(DATA)) for name in BINARY},
    **{f"{name} of all": lambda L, name=name: getattr(made(L), name)() for name in REDUCTIONS},
    **{f"{name} of rows": lambda L, name=name: getattr(L, name)(made(L), 1, keepdim=True) for name in REDUCTIONS},
    **{f"gradient of {name}": lambda L, name=name: gradient(L, lambda x: getattr(x, name)(1)) for name in REDUCTIONS},
    "argmax": lambda L: made(L).argmax(1), "argmin": lambda L: made(L).argmin(), "all": lambda L: (made(L) > 0).all(1),
    "operators": lambda L: (made(L) * 2 - 1) / made(L) ** 2, "reflected": lambda L: 1 / (1 + made(L)), "not": lambda L: ~(made(L) > 1),
    "in place": lambda L: made(L).add_(1).exp_(), "clamp": lambda L: made(L).clamp(0, 2),
    "row": lambda L: made(L)[0], "part": lambda L: made(L)[:, 1:], "rows": lambda L: made(L)[L.tensor([0, 2])],
    "transposed": lambda L: made(L).transpose(0, 1), "flat": lambda L: made(L).view(-1), "cat": lambda L: L.cat([made(L), made(L)]),
    "stack": lambda L: L.stack([made(L), made(L)]), "split": lambda L: made(L).split(2), "unsqueeze": lambda L: made(L).unsqueeze(0),
    "expand": lambda L: made(L).expand(2, 3, 3), "where": lambda L: L.where(L.tensor(DATA) > 1, made(L), L.tensor(DATA)),
    "softmax": lambda L: made(L).softmax(1), "gradient of softmax": lambda L: gradient(L, lambda x: x.softmax(1) * x.softmax(1)),
    "detach": lambda L: made(L).detach(), "to": lambda L: made(L).to(L.float64), "ones_like": lambda L: L.ones_like(made(L)),
    "to_tensor": lambda L: made(L).to_tensor(7), "a number": lambda L: made(L)[0, 1],
    "of whole numbers": lambda L: L.masked.masked_tensor(L.tensor([1, 200]), L.tensor([True, False])),
    "item": lambda L: made(L)[0, 2].item(), "masked.sum": lambda L: L.masked.sum(made(L), 1),
    "no NaN": leaving_out_nan, "is": lambda L: [L.masked.is_masked_tensor(x) for x in (made(L), made(L) + 1, made(L).get_data())],
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_pytorch_has_the_same(name):
    torch = pytest.importorskip("torch")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = repr(PROGRAMS[name](torch))
    assert repr(PROGRAMS[name](tritorch)).replace("tritorch.", "torch.") == expected


def agrees(got, want):
    """A MaskedTensor with a masked array of numpy's."""
    assert tritorch.masked.is_masked_tensor(got) and got.shape == want.shape
    np.testing.assert_array_equal(got.get_mask().cpu().numpy(), ~np.ma.getmaskarray(want))
    np.testing.assert_allclose(got.detach().to_tensor(0).cpu().numpy(), want.filled(0), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_numpy_has_the_same(device, cuda):
    x, array = made(device=cuda if device == "cuda" else "cpu"), np.ma.array(DATA, np.float32, mask=~np.array(MASK))
    for name, of in (("exp", np.exp), ("abs", np.abs), ("square", np.square)):
        agrees(getattr(x, name)(), np.ma.array(of(array.data), mask=array.mask))
    agrees(x * x + 1, array * array + 1)
    agrees(x - x.get_data(), array - array.data)
    for d in (0, 1):
        agrees(x.sum(d), array.sum(d))
        agrees(x.mean(d), array.mean(d))
        agrees(x.amax(d, keepdim=True), array.max(d, keepdims=True))
    agrees(x.T[1:], array.T[1:])
    assert x.sum().item() == array.sum() and x.mean().item() == pytest.approx(array.mean())


def test_what_is_shown():
    assert repr(made()[:2]) == "MaskedTensor(\n  [\n    [  0.0000,       --,   2.0000],\n    [      --,       --,   5.0000]\n  ]\n)"
    assert repr(made()[0, 0]) == "MaskedTensor(  0.0000, True)" and repr(made()[0, 1]) == "MaskedTensor(--, False)"
    assert str(made()[2] > 1) == "MaskedTensor(\n  [      --,       --,       --]\n)"


def test_gradients():
    x = made(requires_grad=True)
    (x * x).sum().backward()
    np.testing.assert_array_equal(x.grad.to_tensor(0), np.where(MASK, 2 * np.array(DATA), 0))
    np.testing.assert_array_equal(x.grad.get_mask(), MASK)
    x.grad = None
    assert x.grad is None and x.is_leaf and x.requires_grad
    plain = tritorch.tensor(DATA, requires_grad=True)
    tritorch.masked.as_masked_tensor(plain * plain, tritorch.tensor(MASK)).exp().sum().backward()
    expected = np.where(MASK, 2 * np.array(DATA) * np.exp(np.array(DATA) ** 2), 0)
    np.testing.assert_allclose(plain.grad, expected, rtol=1e-5)
    first, second = leaving_out_nan(tritorch)
    assert first.to_tensor(0).tolist() == pytest.approx([np.exp(-10), np.exp(-5), 0, 0]) and second.to_tensor(0).tolist() == [0, 0, 1, 1]


def test_data_is_a_copy_and_errors_say_what_is_wrong():
    data, mask = tritorch.tensor(DATA), tritorch.tensor(MASK)
    x = tritorch.masked.masked_tensor(data, mask)
    data[0], mask[0] = 9, False
    assert x.get_data()[0].tolist() == DATA[0] and x.get_mask()[0].tolist() == MASK[0]
    with pytest.raises(ValueError, match="the same mask"):
        x + tritorch.masked.masked_tensor(data, ~mask)
    with pytest.raises(TypeError, match="relu"):
        tritorch.relu(x)
    with pytest.raises(TypeError, match="a mask of bools"):
        tritorch.masked.masked_tensor(data, mask.float())
    with pytest.raises(ValueError, match="a mask of shape"):
        tritorch.masked.masked_tensor(data, mask[0])
    with pytest.raises(TypeError, match="data to be a Tensor"):
        tritorch.masked.masked_tensor([1.0], mask)
    with pytest.raises(TypeError, match="data of bools, whole numbers or floats"):
        tritorch.masked.masked_tensor(data.bfloat16(), mask)
    with pytest.raises(ValueError, match="an element that counts"):
        x[0, 1].item()
    with pytest.warns(UserWarning, match="as_masked_tensor"):
        tritorch.masked.masked_tensor(tritorch.ones(2, requires_grad=True), tritorch.tensor([True, False]))
