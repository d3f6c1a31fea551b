"""Reductions, scans, moves, random numbers, atomics and tensor descriptors of kernels on the simulated device."""

import importlib.util

import numpy as np
import pytest

triton = pytest.importorskip("triton")
import triton.language as tl  # noqa: E402
from interpreted import SQUARE, Descriptor, Probes, X, bf16, launch, normal, rng  # noqa: E402
from triton.language.extra import libdevice  # noqa: E402

pytestmark = pytest.mark.smoke

probe = Probes()


@pytest.mark.parametrize("case", probe)
def test_probe(case):
    case.check()


# reductions, scans and moves

@triton.jit
def product(a, b):
    return a * b


@triton.jit
def welford(mean1, m1, n1, mean2, m2, n2):
    n = n1 + n2
    d = mean2 - mean1
    return mean1 + d * n2 / n, m1 + m2 + d * d * n1 * n2 / n, n


@triton.jit
def affine(a0, b0, a1, b1):
    return a0 * a1, b0 * a1 + b1


@probe(lambda x: np.array([np.prod(x[:4]), x.mean(), x.var() * 64], "f4"), X, tol=1e-5)
@triton.jit
def reduce(o_ptr, x_ptr):
    x = tl.load(x_ptr + tl.arange(0, 64))
    tl.store(o_ptr, tl.reduce(tl.load(x_ptr + tl.arange(0, 4)), 0, product))
    mean, m2, n = tl.reduce((x, tl.zeros((64,), tl.float32), tl.full((64,), 1.0, tl.float32)), 0, welford)
    tl.store(o_ptr + 1, mean)
    tl.store(o_ptr + 2, m2)


@probe(lambda x: np.concatenate([x.sum(1), x.max(0), x.min(1), [x.sum(), x.max()]]).astype("f4"), SQUARE, tol=1e-5)
@triton.jit
def reductions(o_ptr, x_ptr):
    i = tl.arange(0, 16)
    x = tl.load(x_ptr + i[:, None] * 16 + i[None, :])
    tl.store(o_ptr + i, tl.sum(x, 1))
    tl.store(o_ptr + 16 + i, tl.max(x, axis=0))
    tl.store(o_ptr + 32 + i[:, None], tl.min(x, 1, keep_dims=True))
    tl.store(o_ptr + 48, tl.sum(x))
    tl.store(o_ptr + 49, x.max())


@probe(lambda a: np.array([a.sum(), np.bitwise_xor.reduce(a.view("i4")), a.max()], "i4"), rng.integers(-128, 128, 64).astype("i1"))
@triton.jit
def integer_reductions(o_ptr, a_ptr):
    i = tl.arange(0, 64)
    a = tl.load(a_ptr + i)
    tl.store(o_ptr, tl.sum(a))
    tl.store(o_ptr + 1, tl.xor_sum(tl.load(a_ptr.to(tl.pointer_type(tl.int32)) + tl.arange(0, 16)), 0))
    tl.store(o_ptr + 2, tl.max(a, 0))


TIES = np.array([[1, 3, 3, 0], [2, 2, 2, 2], [0, -1, -1, 5], [7, 7, 1, 0]], "f4")


@probe(np.stack([TIES.argmax(1), TIES.argmin(1), TIES.max(1), TIES.argmax(0)]).astype("i4"), TIES)
@triton.jit
def arg_reductions(o_ptr, x_ptr):
    i = tl.arange(0, 4)
    x = tl.load(x_ptr + i[:, None] * 4 + i[None, :])
    tl.store(o_ptr + i, tl.argmax(x, 1))
    tl.store(o_ptr + 4 + i, tl.argmin(x, 1))
    value, index = tl.max(x, 0, return_indices=True)
    tl.store(o_ptr + 8 + i, tl.max(x, 1, return_indices=True)[0].to(tl.int32))
    tl.store(o_ptr + 12 + i, index)


def affine_scan(x):
    out, b = [], np.float64(0)
    for v in x.astype("f8"):
        b = b * v + v
        out.append(b)
    return np.array(out, "f4")


@probe(lambda x: np.stack([np.cumsum(x), np.cumsum(x[::-1])[::-1], np.cumprod(x), np.maximum.accumulate(x), affine_scan(x)]), X, tol=1e-4)
@triton.jit
def scans(o_ptr, x_ptr):
    i = tl.arange(0, 64)
    x = tl.load(x_ptr + i)
    tl.store(o_ptr + i, tl.cumsum(x, 0))
    tl.store(o_ptr + 64 + i, tl.cumsum(x, 0, reverse=True))
    tl.store(o_ptr + 128 + i, tl.cumprod(x, 0))
    tl.store(o_ptr + 192 + i, tl.associative_scan(x, 0, larger))
    a, b = tl.associative_scan((x, x), 0, affine)
    tl.store(o_ptr + 256 + i, b)


@triton.jit
def larger(a, b):
    return tl.maximum(a, b)


@probe(lambda x: np.concatenate([np.sort(x), np.sort(x)[::-1], np.sort(x)[::-1][:8], x[::-1]]), X)
@triton.jit
def sorting(o_ptr, x_ptr):
    i = tl.arange(0, 64)
    x = tl.load(x_ptr + i)
    tl.store(o_ptr + i, tl.sort(x))
    tl.store(o_ptr + 64 + i, tl.sort(x, descending=True))
    tl.store(o_ptr + 128 + tl.arange(0, 8), tl.topk(x, 8))
    tl.store(o_ptr + 136 + i, tl.flip(x, 0))


@probe(lambda x: np.concatenate([np.stack([x[:32], x[32:]], -1).ravel(), x, x[0::2] - x[1::2], x.reshape(4, 16).T.ravel()]), X)
@triton.jit
def moves(o_ptr, x_ptr):
    i = tl.arange(0, 32)
    low, high = tl.load(x_ptr + i), tl.load(x_ptr + 32 + i)
    tl.store(o_ptr + tl.arange(0, 64), tl.interleave(low, high))
    tl.store(o_ptr + 64 + tl.arange(0, 64), tl.cat(low, high, can_reorder=True))
    x = tl.load(x_ptr + tl.arange(0, 64))
    even, odd = tl.split(tl.reshape(x, (32, 2)))
    tl.store(o_ptr + 128 + i, even - odd)
    again = tl.join(even, odd).reshape([4, 16])
    tl.store(o_ptr + 160 + tl.arange(0, 64), tl.ravel(tl.permute(again, (1, 0))))


@probe(lambda x: np.stack([x[:, ::-1], x + x[:1]]), SQUARE)
@triton.jit
def gather_and_broadcast(o_ptr, x_ptr):
    i = tl.arange(0, 16)
    place = i[:, None] * 16 + i[None, :]
    x = tl.load(x_ptr + place)
    tl.store(o_ptr + place, tl.gather(x, tl.broadcast_to((15 - i)[None, :], (16, 16)), 1))
    row = tl.expand_dims(tl.load(x_ptr + i), 0)
    a, b = tl.broadcast(x, row)
    tl.store(o_ptr + 256 + place, a + b)


@probe(lambda a: np.bincount(a, minlength=4).astype("i4"), np.array([0, 1, 2, 2, 3, 3, 3, 0], "i4"))
@triton.jit
def histogram(o_ptr, a_ptr):
    tl.store(o_ptr + tl.arange(0, 4), tl.histogram(tl.load(a_ptr + tl.arange(0, 8)), 4))


# random numbers

def philox4x32(key, counter):
    c0, c1, c2, c3 = (int(c) for c in counter)
    k0, k1 = key & 0xFFFFFFFF, key >> 32
    for _ in range(10):
        a, b = c0 * 0xD2511F53, c2 * 0xCD9E8D57
        c0, c1, c2, c3 = (b >> 32) ^ c1 ^ k0, b & 0xFFFFFFFF, (a >> 32) ^ c3 ^ k1, a & 0xFFFFFFFF
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return c0, c1, c2, c3


@probe(np.array([philox4x32(2**40 + 7, (i, 0, 0, 0)) for i in range(32)], "u4").T, np.array([2**40 + 7]))
@triton.jit
def philox(o_ptr, seed_ptr):
    i = tl.arange(0, 32)
    zero = tl.zeros((32,), tl.uint32)
    a, b, c, d = tl.philox(tl.load(seed_ptr), i.to(tl.uint32), zero, zero, zero)
    tl.store(o_ptr + i, a)
    tl.store(o_ptr + 32 + i, b)
    tl.store(o_ptr + 64 + i, c)
    tl.store(o_ptr + 96 + i, d)


@probe(lambda a: np.stack([a >> 32, a]).astype("i4"), np.array([0, -1, 1 << 32, (1 << 63) - 1, 0x7FF0_0000_0000_0001, 3, -7, -(1 << 63)]))
@triton.jit
def halves(o_ptr, a_ptr):
    i = tl.arange(0, 8)
    a = tl.load(a_ptr + i).to(tl.float64, bitcast=True)
    tl.store(o_ptr + i, libdevice.double2hiint(a))
    tl.store(o_ptr + 8 + i, libdevice.double2loint(a))


@triton.jit
def call(o_ptr, x_ptr, F: tl.constexpr):
    i = tl.arange(0, 64)
    tl.store(o_ptr + i, F(tl.load(x_ptr + i)))


def test_functions_of_a_second_copy_of_libdevice():
    """Packages that look for the module by all names it has had load it themselves."""
    spec = importlib.util.find_spec(libdevice.__name__)
    copy = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(copy)
    out = np.empty_like(X)
    launch(call, (1,), out, X, F=copy.tanh)
    np.testing.assert_allclose(out, np.tanh(X), rtol=1e-6)


def uniform(bits):
    signed = np.asarray(bits, "u4").view("i4").astype("i8")
    return (np.where(signed < 0, -signed - 1, signed) * 4.6566127342e-10).astype("f4")


@probe(uniform([philox4x32(1234, (i, 0, 0, 0))[0] for i in range(64)]), 1234)
@triton.jit
def rand(o_ptr, seed):
    i = tl.arange(0, 64)
    tl.store(o_ptr + i, tl.rand(seed, i))


@probe(np.array([philox4x32(5, (i & 0xFFFFFFFF, i >> 32, 0, 0))[0] for i in range(2**33, 2**33 + 64)], "u4").view("i4"), 5, 2**33)
@triton.jit
def randint_of_wide_offsets(o_ptr, seed, start):
    i = tl.arange(0, 64)
    tl.store(o_ptr + i, tl.randint(seed, start + i).to(tl.int32, bitcast=True))


def test_randn():
    @triton.jit
    def randn(o_ptr):
        i = tl.arange(0, 4096)
        tl.store(o_ptr + i, tl.randn(1, i))

    out = np.empty(4096, "f4")
    launch(randn, (1,), out)
    assert abs(out.mean()) < 0.05 and abs(out.std() - 1) < 0.05


# atomics

@triton.jit
def atomic_add(o_ptr, x_ptr):
    i = tl.program_id(0) * 16 + tl.arange(0, 16)
    tl.atomic_add(o_ptr + tl.zeros((16,), tl.int32), tl.load(x_ptr + i))


@pytest.mark.parametrize("dtype", ["f4", "f8", "f2", bf16, "i4", "i8"])
def test_atomic_add(dtype):
    x, out = (X * 8).astype(dtype), np.zeros(1, dtype)
    launch(atomic_add, (4,), out, x)
    tol = 1.0 if dtype is bf16 else 0.2
    np.testing.assert_allclose(out.astype("f8"), x.astype("f8").sum(), rtol=0.1 * tol, atol=tol)


@probe(np.array([4, 3, -5, 0, 6], "i4"), grid=(4,), out="i4")
@triton.jit
def atomics_on_scalars(o_ptr):
    p = tl.program_id(0)
    old = tl.load(o_ptr)
    while tl.atomic_cas(o_ptr, old, old + 1) != old:
        old = tl.load(o_ptr)
    tl.atomic_max(o_ptr + 1, p)
    tl.atomic_min(o_ptr + 2, p - 5)
    tl.atomic_and(o_ptr + 3, p)
    tl.atomic_add(o_ptr + 4, p)


@probe(np.array([0, 1, 2, 3, 4, 5, 6, 7], "i4"), np.zeros(1, "i4"))
@triton.jit
def atomics_return_what_they_found(o_ptr, count_ptr):
    i = tl.arange(0, 8)
    tl.store(o_ptr + i, tl.atomic_add(count_ptr + i * 0, 1))


@probe(lambda x: np.array([x.max(), x.min()]), X)
@triton.jit
def atomic_max_of_floats(o_ptr, x_ptr):
    x = tl.load(x_ptr + tl.arange(0, 64))
    tl.atomic_max(o_ptr + tl.zeros((64,), tl.int32), x)
    tl.atomic_min(o_ptr + 1 + tl.zeros((64,), tl.int32), x, mask=x < 10)


# tensor descriptors

@probe(lambda x: np.where((np.arange(64) < 40)[:, None], x * 2, 0), normal(64, 64))
@triton.jit
def device_descriptors(o_ptr, x_ptr):
    source = tl.make_tensor_descriptor(x_ptr, shape=[40, 64], strides=[64, 1], block_shape=[32, 32])
    target = tl.make_tensor_descriptor(o_ptr, shape=[64, 64], strides=[64, 1], block_shape=[32, 32])
    for a in range(0, 64, 32):
        for b in range(0, 64, 32):
            target.store([a, b], source.load([a, b]) * 2)


@triton.jit
def host_descriptors(o_desc, x_desc, ADD: tl.constexpr):
    for a in range(-32, 64, 32):
        x = x_desc.load([a + 16, 8])
        if ADD:
            o_desc.atomic_add([a + 16, 8], x)
        else:
            o_desc.store([a + 16, 8], x)


def test_host_descriptors_round_to_tf32():
    x = np.full((48, 40), 1.5, "f4")
    up = 1 + 3 * 2 ** -11
    x[0, 8:16] = 1 + 2 ** -11, up, 1 + 2 ** -11 + 2 ** -23, np.nextafter(np.float32(2), 0), -up, np.inf, np.nan, 0
    out, source = np.ones((48, 40), "f4"), Descriptor(x, (32, 32))
    source.round_f32_to_tf32 = True
    launch(host_descriptors, (1,), Descriptor(out, (32, 32)), source, ADD=False)
    np.testing.assert_array_equal(out[0, 8:16], [1, 1 + 2 ** -9, 1 + 2 ** -10, 2, -1 - 2 ** -9, np.inf, np.nan, 0])
    assert (out[1:, 8:] == 1.5).all()


@pytest.mark.parametrize("dtype", ["f4", "f2", bf16])
@pytest.mark.parametrize("add", [True, False])
def test_host_descriptors(dtype, add):
    x, out = normal(48, 40).astype(dtype), np.ones((48, 40), dtype)
    launch(host_descriptors, (1,), Descriptor(out, (32, 32)), Descriptor(x, (32, 32)), ADD=add)
    expected = np.ones((48, 40), dtype)
    expected[:, 8:40] = expected[:, 8:40] * add + x[:, 8:40]
    np.testing.assert_array_equal(out, expected)


# block pointers

@triton.jit
def block_pointers(o_ptr, x_ptr, M, N, MOVES: tl.constexpr, PADDING: tl.constexpr):
    """The transpose of x, of M rows and N columns, in blocks of 16 x 32, and beyond its bounds the padding."""
    source = tl.make_block_ptr(x_ptr, (M, N), (N, 1), (0, 0), (16, 32), (1, 0))
    for a in range(0, M, 16):
        target = tl.make_block_ptr(base=o_ptr, shape=(64, 48), strides=(1, 64), offsets=(0, a), block_shape=(32, 16), order=(0, 1))
        row = source
        for b in range(0, N, 32):
            if not MOVES:
                row = tl.make_block_ptr(x_ptr, (M, N), (N, 1), (a, b), (16, 32), (1, 0))
            x = tl.load(row, boundary_check=(0, 1), padding_option=PADDING).to(o_ptr.dtype.element_ty)
            tl.store(target, tl.trans(x), boundary_check=[1, 0])
            row = tl.advance(row, (0, 32))
            target = tl.advance(target, [32, 0])
        source = tl.advance(source, (16, 0))


@pytest.mark.parametrize("moves", [True, False])
@pytest.mark.parametrize("padding", ["zero", "nan", ""])
@pytest.mark.parametrize("dtype", ["f4", bf16])
def test_block_pointers(dtype, padding, moves):
    x, out = normal(41, 59).astype(dtype), np.full((48, 64), 7, dtype)
    launch(block_pointers, (1,), out, x, 41, 59, MOVES=moves, PADDING=padding)
    expected = np.full((48, 64), 0 if padding == "zero" else np.nan, dtype)          # without padding: poison
    expected[:41, :59] = x
    np.testing.assert_array_equal(out.astype("f4"), expected.astype("f4"))


@triton.jit
def unchecked_block(o_ptr, x_ptr, ROW: tl.constexpr):
    source = tl.make_block_ptr(x_ptr, (3, 4), (4, 1), (ROW, 0), (2, 4), (1, 0))
    tl.store(tl.make_block_ptr(o_ptr, (2, 4), (4, 1), (0, 0), (2, 4), (1, 0)), tl.load(source, boundary_check=(1,)))


def test_a_dim_that_is_not_checked_goes_on_beyond_the_bounds():
    x, out = normal(4, 4), np.zeros((2, 4), "f4")
    launch(unchecked_block, (1,), out, x, ROW=2)
    np.testing.assert_array_equal(out, x[2:])
    with pytest.raises(Exception, match="load through x_ptr is out of bounds"):
        launch(unchecked_block, (1,), out, x, ROW=3)
