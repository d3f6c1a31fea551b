"""Casts to and from 8-bit floats: bit for bit PyTorch's on the CPU, on a GPU with instructions for them, and on an older one."""
import ml_dtypes
import numpy as np
import pytest

import tritorch as T
from tritorch.interop import from_numpy
from tritorch.testing import ptx

torch = pytest.importorskip("torch")
KINDS = "float8_e4m3fn", "float8_e5m2"
OTHERS = [d.name for d in (T.float64, T.float32, T.float16, T.bfloat16, T.int64, T.int32, T.int16, T.int8, T.uint8, T.bool)]


def hostile():
    """float32: both sides of, and at, all that is between two neighbors of either kind, subnormal numbers, infinities, NaN."""
    codes = [np.arange(256, dtype="u1").view(kind).astype("f8") for kind in (ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2)]
    values = np.concatenate([np.unique(c[np.isfinite(c)]) for c in codes])
    middle = ((values[1:] + values[:-1]) / 2).astype("f4")
    draws = np.random.default_rng(0).integers(0, 1 << 32, 5000, dtype=np.uint32).view("f4")
    edges = np.array([448, 464, 465, 480, 512, 57344, 61439, 61440, 65536, 3e38, np.inf, np.nan, 0, 1e-45, 2**-10, 2**-17, 2**-18], "f4")
    some = np.concatenate([values.astype("f4"), middle, np.nextafter(middle, np.float32(np.inf)), np.nextafter(middle, -np.float32(np.inf)),
                           edges, -edges])
    return np.concatenate([some, draws])


PATTERNS = np.arange(1 << 16, dtype=np.uint16)
SOURCES = {"float32": hostile, "bfloat16": lambda: PATTERNS.view(ml_dtypes.bfloat16), "float16": lambda: PATTERNS.view(np.float16)}


@pytest.fixture(params=["cpu", "simulated", "sm_80", "sm_90"], scope="module")
def device(request):
    if request.param == "cpu":
        yield T.device("cpu")
    else:
        with T.cuda.simulate() if request.param == "simulated" else ptx.simulate(int(request.param[3:])):
            yield T.device("cuda:0")


def number(x):
    """float64 of any tensor, by numpy: PyTorch and ours say the same of 256 codes, so that this is no circle."""
    return x.cpu().array.astype("f8")


def bits(x):
    """Codes; every NaN is one."""
    x = x.cpu()
    return np.where(np.isnan(number(x)), 0x7F, x.view(T.uint8).array)


def as_torch(x):
    """A tensor of ours as PyTorch's, bit for bit."""
    views = {1: T.uint8, 2: T.int16, 4: T.int32, 8: T.int64}
    plain = x.view(views[x.dtype.itemsize]) if x.dtype is not T.bool else x
    return torch.from_numpy(plain.array.copy()).view(getattr(torch, x.dtype.name))


def ours(x):
    return from_numpy(x.view(torch.uint8).numpy().copy()).view(getattr(T, str(x.dtype)[6:]))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("source", SOURCES)
def test_rounds_as_pytorch(source, kind, device):
    x = from_numpy(SOURCES[source]())
    np.testing.assert_array_equal(bits(x.to(device).to(getattr(T, kind))), bits(ours(as_torch(x).to(getattr(torch, kind)))))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("other", [*OTHERS, *KINDS])
def test_every_pair_of_types(kind, other, device):
    """From float8 and back to it, whatever its neighbor is; integers take what they can hold."""
    codes = T.arange(256, dtype=T.uint8).view(getattr(T, kind))
    if not getattr(T, other).is_floating_point and other != "bool":
        values = number(codes)
        codes = codes[T.tensor(np.isfinite(values) & (np.abs(values) <= 100) & (values >= (0 if other == "uint8" else -100)))]
    there = codes.to(device).to(getattr(T, other))
    expected = as_torch(codes).to(getattr(torch, other))
    np.testing.assert_array_equal(number(there), expected.double().numpy())
    np.testing.assert_array_equal(bits(there.to(getattr(T, kind))), bits(ours(expected.to(getattr(torch, kind)))))


@pytest.mark.parametrize("kind", KINDS)
def test_operators_round_once(kind, device):
    """Any kernel: contiguous and strided operands, sums, a table's rows, a product into float8."""
    dtype = getattr(T, kind)
    x, y = [from_numpy(np.random.default_rng(k).normal(0, 40, (6, 10)).astype("f4")).to(dtype) for k in (0, 1)]
    a, b = x.to(device), y.to(device)
    for got, want in ((a * b, number(x) * number(y)), (a[:, ::2].mT + 1, number(x)[:, ::2].T + 1), (a.sum(1), number(x).sum(1)),
                      (a[T.tensor([3, 0, 3], device=device)], number(x)[[3, 0, 3]]), (T.full((3,), 1e9, dtype=dtype, device=device),
                                                                                      np.full(3, 1e9))):
        assert got.dtype is dtype
        np.testing.assert_array_equal(bits(got), bits(from_numpy(want.astype("f4")).to(dtype)))
    one = T.tensor(1.0, device=device)
    got, want = T._scaled_mm(a, b.mT, one, one, out_dtype=dtype), number(x) @ number(y).T
    np.testing.assert_array_equal(bits(got), bits(from_numpy(want.astype("f4")).to(dtype)))


@pytest.mark.parametrize("kind", KINDS)
def test_tensors_made_of_numbers(kind):
    values, dtype, twin = [500.0, -1e9, 1e-9, float("inf"), 3.3], getattr(T, kind), getattr(torch, kind)
    for made in (T.tensor(values, dtype=dtype), T.tensor(np.array(values), dtype=dtype), T.zeros(5).add(T.tensor(values)).to(dtype)):
        np.testing.assert_array_equal(bits(made), bits(ours(torch.tensor(values, dtype=twin))))
