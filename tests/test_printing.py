"""How tensors print: PyTorch's text, character for character (its package's name aside)."""
import math
import re

import numpy as np
import pytest

import tritorch as T
from tritorch import cuda
from tritorch.printing import get_printoptions, printoptions, set_printoptions

torch = pytest.importorskip("torch")


def both(array, **kw):
    return T.tensor(array, **{k: getattr(T, v) if k == "dtype" else v for k, v in kw.items()}), \
        torch.tensor(array, **{k: getattr(torch, v) if k == "dtype" else v for k, v in kw.items()})


def same(x, y):
    """Equal, where a dtype is named but for the line break before it: our name is three letters longer."""
    mine, theirs = repr(x), repr(y)
    if "tritorch." in mine:
        mine, theirs = (re.sub(r",\s+(dtype|grad_fn|requires_grad)=", r", \1=", text) for text in (mine, theirs))
    assert mine.replace("tritorch.", "torch.") == theirs


def values(rng, shape):
    """Numbers of many kinds: whole, small, huge, mixed, not finite."""
    kind = rng.integers(9)
    x = rng.standard_normal(shape)
    if kind == 0:
        x = np.round(x * 10)
    elif kind == 1:
        x = x * 10.0 ** rng.integers(-12, 12)
    elif kind == 2:
        x = x * 10.0 ** rng.integers(-6, 6, shape)
    elif kind == 3:
        x = np.where(rng.random(shape) < 0.3, rng.choice([math.nan, math.inf, -math.inf], shape), x)
    elif kind == 4:
        x = np.where(rng.random(shape) < 0.3, rng.choice([math.nan, math.inf, -math.inf], shape), np.round(x * 5))
    elif kind == 5:
        x = x * 0 if rng.random() < 0.5 else x * 0 - 0.0
    elif kind == 6:
        x = np.round(x * 10.0 ** rng.integers(3, 12))
    elif kind == 7:
        x = np.full(shape, rng.choice([math.nan, math.inf, 0.0, 1e-5, 1e9]))
    return x


def shapes(rng):
    return tuple(int(n) for n in rng.integers(0 if rng.random() < 0.1 else 1, 8, rng.integers(0, 5)))


@pytest.mark.parametrize("seed", range(30))
def test_random_floats(seed):
    rng = np.random.default_rng(seed)
    for _ in range(12):
        x = values(rng, shapes(rng))
        kind = str(rng.choice(["float32", "float64", "float16", "bfloat16"]))
        same(*both(x.tolist() if x.size else np.asarray(x, np.float32), dtype=kind))


@pytest.mark.parametrize("dtype", ["int64", "int32", "int16", "int8", "uint8", "bool"])
def test_integers(dtype):
    rng = np.random.default_rng(0)
    for scale in (2, 120):
        for _ in range(10):
            same(*both(rng.integers(0 if dtype in ("uint8", "bool") else -scale, scale, shapes(rng)), dtype=dtype))
    same(*both(np.array([0, 2**62, -5]) if dtype == "int64" else np.array([1, 0]), dtype=dtype))


@pytest.mark.parametrize("shape", [(1001,), (2000,), (11, 100), (7, 200), (1, 1, 1200), (20, 7, 9), (50, 50), (3, 400, 2), (8, 8, 8, 8),
                                   (2, 501), (6, 6, 6, 6)])
def test_long_tensors_show_their_edges(shape):
    rng = np.random.default_rng(1)
    for array in (rng.standard_normal(shape), rng.integers(-50, 1000, shape), np.arange(math.prod(shape)).reshape(shape)):
        same(*both(array, dtype="float32"))
        same(*both(array, dtype="int64"))
        same(*both(array, dtype="float64"))


@pytest.mark.parametrize("options", [
    {"precision": 2}, {"precision": 8}, {"precision": 0}, {"threshold": 5}, {"threshold": 5, "edgeitems": 1}, {"linewidth": 20},
    {"linewidth": 200}, {"sci_mode": True}, {"sci_mode": False}, {"profile": "short"}, {"profile": "full"}, {"profile": "default"},
    {"edgeitems": 0, "threshold": 5}, {"edgeitems": 10},
])
def test_options(options):
    torch_before = torch._tensor_str.PRINT_OPTS.__dict__.copy()
    rng = np.random.default_rng(3)
    with printoptions(**options):
        torch.set_printoptions(**options)
        try:
            for shape in ((), (4,), (30,), (5, 40), (3, 4, 5), (1200,), (40, 40)):
                for _ in range(3):
                    same(*both(values(rng, shape), dtype="float32"))
                same(*both(rng.integers(-9, 99, shape), dtype="int64"))
        finally:
            torch._tensor_str.PRINT_OPTS.__dict__.update(torch_before)


def test_options_are_restored_and_checked():
    before = get_printoptions()
    with pytest.raises(ZeroDivisionError), printoptions(precision=1):
        raise ZeroDivisionError
    assert get_printoptions() == before
    with pytest.raises(ValueError, match="default, short, full"):
        set_printoptions(profile="long")


@pytest.mark.parametrize("shape", [(0,), (0, 3), (2, 0), (1, 0, 2)])
@pytest.mark.parametrize("dtype", ["float32", "int64", "bool", "float16"])
def test_empty(shape, dtype):
    same(*both(np.empty(shape), dtype=dtype))


def test_gradients_and_default_dtypes():
    for n in (3, 40):
        x, y = both(np.linspace(-1, 1, n), dtype="float32", requires_grad=True)
        same(x, y)
        same(x + 1, y + 1)
        same((x + 1).detach(), (y + 1).detach())
    x, y = both(np.arange(12.0).reshape(3, 4), dtype="float64", requires_grad=True)
    same(x, y)
    same(*both(2.5, dtype="float32", requires_grad=True))
    T.set_default_dtype(T.float64)
    torch.set_default_dtype(torch.float64)
    try:
        same(*both([1.0, 2.0], dtype="float64"))
        same(*both([1.0, 2.0], dtype="float32"))
    finally:
        T.set_default_dtype(T.float32)
        torch.set_default_dtype(torch.float32)


def test_parameters_and_subclasses():
    mine, theirs = T.nn.Parameter(T.ones(2)), torch.nn.Parameter(torch.ones(2))
    assert repr(mine) == repr(theirs)

    class Point(T.Tensor):
        pass

    from tritorch.tensor import alias
    assert repr(alias(T.tensor([1.0, 2.0]), Point)) == "Point([1., 2.])"


def test_float8():
    assert repr(T.tensor([1.0, 0.5]).to(T.float8_e5m2)) == "tensor([1.0000, 0.5000], dtype=tritorch.float8_e5m2)"


def test_cuda_tensors_name_their_device_and_copy_only_edges():
    with cuda.simulate():
        x = T.tensor([1.0, 2.0], device="cuda")
        assert repr(x) == "tensor([1., 2.], device='cuda:0')"
        big = T.arange(10_000, device="cuda").reshape(100, 100)
        assert repr(big) == repr(torch.arange(10_000).reshape(100, 100))[:-1] + ", device='cuda:0')"


def test_format():
    assert f"{T.tensor(1.25):.1f}" == f"{torch.tensor(1.25):.1f}" and f"{T.tensor(3)}" == "3" == f"{torch.tensor(3)}"
    assert f"{T.ones(2)}" == "tensor([1., 1.])"
    assert f"{T.tensor(3):>4}" == f"{torch.tensor(3):>4}"
    with pytest.raises(TypeError):
        f"{T.ones(2):.1f}"


def test_strided_views():
    x, y = both(np.arange(24.0).reshape(2, 3, 4), dtype="float32")
    same(x.permute(2, 0, 1), y.permute(2, 0, 1))
    same(x[:, 1:, ::2], y[:, 1:, ::2])
    same(x[0, 0].expand(5, 4), y[0, 0].expand(5, 4))
