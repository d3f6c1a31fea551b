"""Products of float8 and int8: PyTorch as an oracle, float64 as the truth, every kernel that can do them."""
import itertools

import numpy as np
import pytest
from arrays import draw

import tritorch as T
from tritorch.cuda import driver, tuner
from tritorch.ops import gemm, gemm_run
from tritorch.ops import gemm_choice as choice
from tritorch.tensor import from_array

H200, A100 = (132, 232448, 9), (108, 166912, 8)
E4, E5 = "float8_e4m3fn", "float8_e5m2"
KINDS = [(E4, E4), (E4, E5), (E5, E4), (E5, E5)]
LAYOUTS = list(itertools.product([False, True], repeat=2))
F = T.nn.functional


def number(x):
    return x.detach().cpu().to(T.float32).array.astype(np.float64)


def turned(x):
    """The same matrix, its columns together in memory."""
    return x.mT.contiguous().mT


@pytest.fixture
def machine(monkeypatch, request):
    """A device of hardware tiles that says it is the given machine, which an older one cannot be: it lacks TMA and float8."""
    request.getfixturevalue("cuda")
    if driver.current().device_properties(0).major < request.param[2]:
        pytest.skip("the machine is newer than the device")
    monkeypatch.setattr(T.cuda.driver, "hardware_tiles", True)
    monkeypatch.setattr(gemm, "hardware", lambda: request.param)
    monkeypatch.setattr(gemm_run, "sm_count", lambda: 2)


def scales_of(m, n, rows):
    return [from_array(np.exp(draw(*s, seed=5))) for s in (((m, 1), (1, n)) if rows else ((), (1, 1)))]


def exact(a, b, scale_a, scale_b, bias):
    return number(a) @ number(b) * number(scale_a).reshape(-1, 1) * number(scale_b).reshape(1, -1) + (0 if bias is None else number(bias))


# ------------------------------------------------------------------ float8
@pytest.mark.parametrize("kinds", KINDS)
@pytest.mark.parametrize("rows", [False, True])
@pytest.mark.parametrize("out_dtype", ["float32", "bfloat16", "float16", E4, None])
def test_as_pytorch(kinds, rows, out_dtype, cuda):
    torch = pytest.importorskip("torch")
    m, n, k = 19, 37, 133
    a, b, bias = [from_array(draw(*s, seed=i)) for i, s in enumerate(((m, k), (k, n), (n,)))]
    a, b, bias = a.to(getattr(T, kinds[0])), turned(b.to(getattr(T, kinds[1]))), bias.bfloat16()
    scales = scales_of(m, n, rows)
    kind = None if out_dtype is None else getattr(T, out_dtype)
    if kinds == (E5, E5) and out_dtype in (E4, None):
        return                                                           # PyTorch refuses some of these
    left, right, added, *factors = [torch.from_numpy(number(x)).to(torch.float32) for x in (a, b, bias, *scales)]
    left, right, theirs = left.to(getattr(torch, kinds[0])), right.to(getattr(torch, kinds[1])), getattr(torch, out_dtype or kinds[0])
    if rows:                                                             # which PyTorch 2.11 has on GPUs alone
        one = torch.ones(())
        product, most = torch._scaled_mm(left, right, one, one, out_dtype=torch.float32), torch.finfo(theirs).max
        theirs = (product * factors[0] * factors[1] + added).clamp(-most, most).to(theirs)
    else:
        theirs = torch._scaled_mm(left, right, *factors, bias=added.to(torch.bfloat16), out_dtype=out_dtype and theirs)
    theirs = theirs.float().numpy()
    want = exact(a, b, *scales, bias)
    for device in ("cpu", cuda):
        got = T._scaled_mm(*[x.to(device) for x in (a, b, *scales, bias)], None, kind)
        assert got.dtype is (kind or a.dtype)
        if out_dtype == E4 or out_dtype is None:
            want = np.clip(want, -448, 448) if got.dtype is T.float8_e4m3fn else want
        error, other = [np.abs(v - want).max() for v in (number(got), theirs)]
        assert error <= 1.1 * other + 1e-6 * np.abs(want).max()


def every_candidate():
    """(machine, fast, candidate, out_dtype) of all that a table may choose: where float32 does not fit into shared memory, halves do."""
    for there, fast in ((H200, False), (H200, True), (A100, False)):
        kind, seen = "fp8 fast" if fast else "fp8", {}
        found = [(c, T.float32) for _, c in choice.plain(kind, 83, 133, 331, 1, 1, there)]
        for size, out_dtype in ((4, T.float32), (2, T.bfloat16)) if there is H200 else ():
            found += [(c, out_dtype) for _, c in choice.persistent(83, 133, 331, 1, there, 1, size, not fast)]
        for c, out_dtype in found:
            seen.setdefault((c["kernel"], *[c[f"BLOCK_{d}"] for d in "MNK"], c.get("splits", 1) > 1), (c, out_dtype))
        yield from ((there, fast, *case) for case in seen.values())


@pytest.mark.parametrize("machine, fast, candidate, out_dtype", list(every_candidate()), indirect=["machine"], ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_candidate(machine, fast, candidate, out_dtype, layout, cuda):
    """With tails in all dims, in every layout, row-wise scales, a bias; products of float8 are exact, so that only sums round. The matrix
    units of Hopper, where they read float8, keep 13 bits of these; with all of K in one sum, more of that adds up."""
    m, n, k = 83, 144, 331
    a, b, bias = [from_array(draw(*s, seed=i)) for i, s in enumerate(((m, k), (k, n), (n,)))]
    a, b = [turned(x) if turn else x for x, turn in zip((a.to(T.float8_e4m3fn), b.to(T.float8_e5m2)), layout)]
    scales = scales_of(m, n, True)
    with tuner.forcing("matmul", candidate):
        got = T._scaled_mm(*[x.to(cuda) for x in (a, b, *scales, bias)], None, out_dtype, fast)
    want = exact(a, b, *scales, bias)
    size = np.abs(number(a)) @ np.abs(number(b)) * number(scales[0]) * number(scales[1]) + np.abs(number(bias))
    bits = 22 if candidate["kernel"] == "plain" else 11 if fast else 12
    stored = 0 if out_dtype is T.float32 else 2.0 ** -8 * np.abs(want)
    assert (np.abs(number(got) - want) <= 2.0 ** -bits * size + stored).all()


@pytest.mark.parametrize("machine", [H200, A100], indirect=True)
@pytest.mark.parametrize("kind", [E4, E5])
def test_every_number(machine, kind, cuda):
    """All 256 codes, NaN and infinities too, as a device reads or decodes them."""
    codes = T.arange(256, dtype=T.uint8).view(getattr(T, kind)).reshape(256, 1)
    one = T.ones(1, 16).to(getattr(T, kind))
    got = T._scaled_mm(codes.to(cuda), one.to(cuda), T.tensor(1.0, device=cuda), T.tensor(1.0, device=cuda), out_dtype=T.float32)
    np.testing.assert_array_equal(number(got), np.repeat(number(codes), 16, 1))


def test_too_large_numbers_become_the_largest(cuda):
    a, one = T.full((2, 3), 300.0), T.tensor(1.0)
    for device in ("cpu", cuda):
        x, y, s = a.to(T.float8_e4m3fn).to(device), (-a).to(T.float8_e4m3fn).to(device), one.to(device)
        assert (number(T._scaled_mm(x, x.mT, s, s)) == 448).all() and (number(T._scaled_mm(x, y.mT, s, s)) == -448).all()


def test_recipes():
    S, a, one = F.ScalingType, T.ones(4, 3).to(T.float8_e4m3fn), T.tensor(1.0)
    out = F.scaled_mm(a, a.mT, one, S.TensorWise, 2 * one, S.TensorWise)
    assert out.dtype is T.bfloat16 and (number(out) == 6).all()
    out = F.scaled_mm(a, a.mT, [T.ones(4, 1)], [S.RowWise], [T.ones(1, 4)], [S.RowWise], output_dtype=T.float32, use_fast_accum=True)
    assert out.dtype is T.float32 and (number(out) == 3).all()
    for scales, recipe, sentence in (((one, one), (S.RowWise, S.RowWise), "scales that are RowWise"),
                                     ((one, one), (S.RowWise, S.TensorWise), "one ScalingType for both"),
                                     ((T.ones(4, 1), T.ones(1, 4)), (S.TensorWise, S.TensorWise), "scales that are TensorWise")):
        with pytest.raises(ValueError, match=sentence):
            F.scaled_mm(a, a.mT, scales[0], recipe[0], scales[1], recipe[1])


@pytest.mark.parametrize("arguments", [
    (T.ones(4, 3), T.ones(3, 4), T.tensor(1.0), T.tensor(1.0)),
    (T.ones(4, 3).to(T.float8_e4m3fn), T.ones(3, 4).to(T.float8_e4m3fn), T.ones(4, 1), T.tensor(1.0)),
    (T.ones(4, 3).to(T.float8_e4m3fn), T.ones(3, 4).to(T.float8_e4m3fn), T.tensor(1.0).double(), T.tensor(1.0)),
])
def test_what_pytorch_refuses(arguments):
    with pytest.raises(ValueError, match="scaled_mm: expected"):
        T._scaled_mm(*arguments, out_dtype=T.bfloat16)


# ------------------------------------------------------------------ int8
@pytest.mark.parametrize("machine", [H200], indirect=True)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("candidate", [c for _, c in choice.persistent(4096, 4096, 4096, 1, H200, 1, 4)],
                         ids=lambda c: f"{c['BLOCK_M']}-{c['BLOCK_N']}")
@pytest.mark.parametrize("out", ["int32", "int8"])
def test_int8_by_tma(machine, layout, candidate, out, cuda):
    """Sums in 32 bits, or rounded off to 8; operands that do not lie along K, or whose rows TMA cannot step over, are copied."""
    m, n, k = 150, 272, 171
    x, y = [np.random.default_rng(i).integers(-128, 128, s).astype(np.int8) for i, s in enumerate(((m, k), (k, n)))]
    a, b = [turned(from_array(v).to(cuda)) if turn else from_array(v).to(cuda) for v, turn in zip((x, y), layout)]
    with tuner.forcing("matmul", candidate):
        got = T._int_mm(a, b) if out == "int32" else a @ b
    assert got.dtype is getattr(T, out)
    np.testing.assert_array_equal(got.cpu().array, (x.astype(np.int64) @ y).astype(out))


def test_int8_sums_wrap_around(cuda):
    a, b = T.full((2, 1 << 17), -128, dtype=T.int8), T.full((1 << 17, 2), -128, dtype=T.int8)
    for device in ("cpu", cuda):
        assert (T._int_mm(a.to(device), b.to(device)).cpu().array == -2 ** 31).all()


def test_split_sums_of_int8_are_wide(cuda, monkeypatch):
    monkeypatch.setattr(T.cuda.driver, "hardware_tiles", True)
    a, b = T.full((20, 300), 100, dtype=T.int8, device=cuda), T.full((300, 20), 100, dtype=T.int8, device=cuda)
    with tuner.forcing("matmul", dict(kernel="plain", BLOCK_M=64, BLOCK_N=64, BLOCK_K=64, num_warps=4, num_stages=3, splits=3)):
        assert (T._int_mm(a, b).cpu().array == 3_000_000).all()
        assert ((a @ b).cpu().array == np.int64(3_000_000).astype(np.int8)).all()


def test_the_kernels_that_are_proposed():
    """TMA where operands or their copies lie along K; the schedule of its own where its sums have the bits that are asked for."""
    for dtype, precision, expected in ((T.float8_e4m3fn, "fp8", {"plain", "persistent"}),
                                       (T.float8_e4m3fn, "fp8 fast", {"plain", "persistent", "gluon"}),
                                       (T.int8, "ieee", {"plain", "persistent", "gluon"})):
        n = 8192
        for turn in (False, True):
            lie = (1, n) if turn else (n, 1)
            made = gemm.problem((n, n), (n, 1), (n, n), (n, 1), (n, n), lie, None, dtype, precision, H200, True, False, None, True, 4)
            assert {c["kernel"] for c in made.candidates} == expected and made.boxes["copied"] == ([] if turn else ["b"])
            assert len(made.candidates) <= 13
    row = gemm.problem((1, 64), (64, 1), (1, 64), (64, 1), (64, 64), (1, 64), None, T.float8_e5m2, "fp8", H200, True, False, None, True, 4)
    assert "vector" not in {c["kernel"] for c in row.candidates}         # which does not know how to read float8
