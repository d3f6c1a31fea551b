"""Complex numbers in the elementwise functions: branch cuts, special values, overflow, digits, promotion, gradients off the beaten track.
What each operator's samples show is in test_ops.py; what surrounds the elements in test_complex_around.py."""
import cmath

import machine_code
import numpy as np
import pytest

import tritorch as torch
from tritorch.cuda import compiler
from tritorch.dispatch import registry

FUNCTIONS = """exp exp2 expm1 log log2 log10 log1p sqrt rsqrt square reciprocal sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh
    sinc sigmoid silu abs angle_of sgn""".split()
ENDS = np.array([0.0, -0.0, 1.0, -1.0, 2.5, -2.5, np.inf, -np.inf, np.nan, 1e-30, -1e30, 88.9, -90.0, 20.5])
PLANE = np.array([complex(x, y) for x in ENDS for y in ENDS])
OPEN = {"sin": 3, "sinh": 3, "acos": 2, "square": 12, "silu": 30}        # places where C99 leaves a sign or a NaN open, at most
CUT = "sqrt rsqrt log log2 log10 log1p asin acos atan asinh acosh atanh".split()         # the sign of a zero says on which side of the cut
HOLOMORPHIC = [name for name in FUNCTIONS if name not in ("abs", "angle_of", "sgn")]


def on(device, array):
    return torch.from_numpy(np.array(array)).to(device)


def parts(x):
    x = x.cpu().numpy()
    return (x.real, x.imag) if x.dtype.kind == "c" else (x,)


def agree(x, y, tol, signs):
    """Where two arrays have the same value; zeros with the same sign where `signs` says so."""
    with np.errstate(all="ignore"):
        near = np.abs(x - y) <= tol * np.abs(y) + np.finfo(x.dtype).tiny
    same = (x == y) | near | (np.isnan(x) & np.isnan(y))
    return same & ~(signs & (x == 0) & (y == 0) & (np.signbit(x) != np.signbit(y)))


# ------------------------------------------------------------------ values
@pytest.mark.parametrize("kind", (np.complex64, np.complex128), ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_kernels_have_the_special_values_and_cuts_of_the_cpu(name, kind, cuda):
    f, tol = registry[name], 1e-5 if kind is np.complex64 else 1e-12
    with np.errstate(all="ignore"):
        x = PLANE.astype(kind)
    pairs = zip(parts(f(on("cuda", x))), parts(f(on("cpu", x))))
    good = np.logical_and.reduce([agree(got, want, tol, np.isfinite(x) & (name in CUT)) for got, want in pairs])
    assert (~good).sum() <= OPEN.get(name, 0), [(x[k], f(on("cuda", x)).tolist()[k], f(on("cpu", x)).tolist()[k])
                                               for k in np.flatnonzero(~good)[:5]]


@pytest.mark.parametrize("device", ("cpu", "simulated"))
def test_nothing_overflows_on_the_way(device, cuda):
    device = "cuda" if device == "simulated" else device
    for name, x, *want in (("exp", 89 + 1.5j), ("exp2", 128.5 + 2j), ("cosh", 89.2 + 1.5j), ("sinh", -89.2 + 1.55j), ("sin", 1.5 + 89.2j),
                           ("tanh", 1e4 + 1j, 1.0), ("tan", 1 - 1e4j, -1j), ("sqrt", 3e38 + 3e38j), ("sqrt", 1e-42 - 1e-42j),
                           ("log", 3e38 + 3e38j), ("log", 1e-42 + 0j), ("asin", 3e38 + 3e38j), ("acosh", -3e38 + 1j),
                           ("atanh", 1 + 1e-30j), ("sigmoid", -200 + 1j, 0j), ("sigmoid", 200 + 1j, 1.0), ("abs", 2e38 + 2e38j)):
        f, single = registry[name], np.complex64(x)
        want = want[0] if want else f(torch.tensor(complex(single), dtype=torch.complex128)).item()
        got = f(torch.tensor(complex(single), dtype=torch.complex64, device=device)).item()
        if not abs(want) > 3.4e38:
            assert abs(got - want) <= 3e-6 * abs(want) + 1e-44, (name, x, got, want)
    big = torch.tensor([1e30 + 1e30j, 3e-30 + 4e-30j], dtype=torch.complex64, device=device)
    assert (big / big - 1).abs().max().item() < 1e-6
    assert torch.pow(big, 0.5).abs().isfinite().all().item()


def test_digits_survive_near_circles_and_zeros(cuda):
    angles = np.random.default_rng(0).uniform(-3, 3, 64)
    near = (np.exp(1j * angles) * (1 + 1e-5)).astype(np.complex64)
    small = (1e-6 * np.exp(1j * angles)).astype(np.complex64)
    for name, x in (("log", near), ("log1p", (near - 1).astype(np.complex64)), ("log1p", small), ("expm1", small), ("atanh", small),
                    ("asin", small), ("asinh", small), ("tanh", small)):
        want = registry[name](on("cpu", x.astype(np.complex128))).numpy()
        for device in ("cpu", "cuda"):
            got = registry[name](on(device, x)).cpu().numpy()
            for a, b in ((got.real, want.real), (got.imag, want.imag)):
                assert np.abs(a - b).max() <= 3e-6 * np.abs(b).min() + 2e-7 * np.abs(b).max(), (name, device)
                assert np.abs(a / b - 1).max() < 2e-3, (name, device)


def test_powers():
    x = torch.tensor([1 + 2j, -0.5j, 3])
    assert (x ** 2).tolist() == (x * x).tolist() and (x ** 0).tolist() == [1, 1, 1] and (x ** 1).tolist() == x.tolist()
    zero = torch.zeros(1, dtype=torch.complex64)
    assert (zero ** 0).item() == 1 and (zero ** 2).item() == 0 and (zero ** (1 + 1j)).item() == 0 and np.isinf((zero ** -1).item().real)
    assert torch.allclose(torch.pow(torch.tensor([-2.0]), 0.5 + 0j), torch.tensor([1.4142135j]), atol=1e-6)      # a negative real base
    assert torch.float_power(torch.tensor([2]), 1j).dtype is torch.complex128
    assert torch.allclose(2 ** x, torch.exp(x * 0.6931471805599453)) and torch.allclose((1 - 1j) ** x, torch.exp(x * cmath.log(1 - 1j)))


def test_infinite_parts_stay_apart():
    inf, nan = float("inf"), float("nan")
    x = torch.complex(torch.tensor([1.0, -0.0, nan]), torch.tensor([inf, 0.0, 1.0]))
    assert x[:2].tolist() == [complex(1, inf), complex(-0.0, 0.0)] and x.isinf().tolist() == [True, False, False]
    assert x.isnan().tolist() == [False, False, True] and x.isfinite().tolist() == [False, True, False]
    assert torch.view_as_real(torch.nan_to_num(x, nan=7, posinf=8)).tolist() == [[1, 8], [0, 0], [7, 1]]
    assert torch.isclose(x, x, equal_nan=True).tolist() == [True, True, True]


# ------------------------------------------------------------------ dtypes and refusals
def test_promotion():
    c64, c128, f16, f64 = torch.complex64, torch.complex128, torch.float16, torch.float64
    one = {kind: torch.ones(2, dtype=kind) for kind in (torch.bool, torch.int64, f16, torch.bfloat16, torch.float32, f64, c64, c128)}
    assert [(x * 1j).dtype for x in one.values()] == [c64, c64, c64, c64, c64, c128, c64, c128]
    assert (one[c64] * one[f64]).dtype is c128 and (one[c64] + torch.tensor(1.0, dtype=f64)).dtype is c64
    assert (one[f64] + torch.tensor(1j, dtype=c64)).dtype is c128 and (one[f16] + torch.tensor(1j, dtype=c128)).dtype is c64
    assert torch.result_type(1, 1j) is c64 and torch.promote_types(torch.int64, c64) is c64 and torch.can_cast(torch.float32, c64)
    assert not torch.can_cast(c64, f64) and (one[torch.int64] / 2j).dtype is c64 and (1j - one[torch.bool].float()).dtype is c64
    assert torch.ones(2).mul(np.complex128(2j)).tolist() == [2j, 2j] and torch.finfo(c64).eps == torch.finfo(torch.float32).eps
    assert torch.zeros(1, dtype=complex).dtype is c128
    torch.set_default_dtype(f64)
    try:
        assert torch.tensor(1j).dtype is c128 and (one[torch.int64] * 1j).dtype is c128
    finally:
        torch.set_default_dtype(torch.float32)


REFUSED = {
    NotImplementedError: """
        x < x
        torch.maximum(x, x)
        x // 2
        x % 2
        x.sign()
        x.round()
        x.clamp(0, 1)
        torch.atan2(x, x)
        torch.hypot(x, x)
        torch.deg2rad(x)
        torch.arange(3, dtype=torch.complex64)
        x.bernoulli_()
        x.random_()
    """,
    TypeError: """
        ~x
        torch.tensor([1j], dtype=torch.float32)
        [1][torch.tensor(0j)]
    """,
    RuntimeError: """
        r.add_(1j)
        r.mul_(x)
        r.clamp(max=1j)
        torch.add(r, r, alpha=1j)
        r.fill_(1j)
        torch.lerp(r, r, 0.5j)
        torch.addcmul(r, r, r, value=1j)
        r.masked_fill(r > 0, 1j)
        torch.add(x, x, out=r)
        x.abs_()
        torch.isin(x, x)
        torch.linspace(0, 1j, 3, dtype=torch.float32)
        float(x[0])
        int(x[0])
    """,
}


@pytest.mark.parametrize("error, call", [(error, line.strip()) for error, lines in REFUSED.items() for line in lines.strip().splitlines()])
def test_refusals_have_pytorchs_exceptions(error, call):
    x, r = torch.tensor([1 + 1j, 2]), torch.ones(2)
    with pytest.raises(error):
        eval(call, {"torch": torch, "x": x, "r": r})


def test_logic_sees_zeros():
    x = torch.tensor([0j, 1j, -0.0, 2])
    assert x.logical_not().tolist() == [True, False, True, False] and x.bool().tolist() == [False, True, False, True]
    assert torch.logical_xor(x, torch.tensor([1, 0, 0, 1])).tolist() == [True, True, False, False]
    assert torch.isreal(x).tolist() == [True, False, True, True] and 1j in x and 3 not in x and bool(x[1]) and complex(x[1]) == 1j


# ------------------------------------------------------------------ gradients
def around_the_plane():
    points = [complex(x, y) for x in (-1.7, -0.4, 0.3, 2.2) for y in (-1.3, 0.6)]
    return torch.tensor(points, dtype=torch.complex128, requires_grad=True)


@pytest.mark.parametrize("name", HOLOMORPHIC)
def test_gradients_in_every_quadrant(name):
    f = getattr(torch.nn.functional, name) if name == "silu" else getattr(torch, name)
    assert torch.autograd.gradcheck(f, (around_the_plane(),), fast_mode=True, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(f, (around_the_plane(),), fast_mode=True)


def test_gradients_of_mixed_operands():
    z = around_the_plane()
    r = torch.linspace(-2, 2, z.numel(), dtype=torch.float64).requires_grad_()
    for f in (torch.mul, torch.div, torch.pow, torch.logaddexp, torch.ldexp, lambda a, b: torch.where(a.real > 0, a, b),
              lambda a, b: torch.lerp(a, a * b, 0.3j), lambda a, b: torch.addcmul(a, a, b, value=2j),
              lambda a, b: torch.addcdiv(a, a, b + 3)):
        assert torch.autograd.gradcheck(f, (z, r), fast_mode=True)
        assert torch.autograd.gradcheck(lambda a, b, f=f: f(b.cdouble() if f is torch.pow else b * (1 + 0j), a), (z, r), fast_mode=True)
    x = torch.tensor([1.0, -2.0], requires_grad=True)
    (x * 1j).sum().abs().backward()
    assert x.grad.dtype is torch.float32 and x.grad.tolist() == [-1, -1]


def test_in_place():
    z = torch.tensor([1 + 2j, -3j], requires_grad=True)
    y = (z * 2).conj_physical_().mul_(1j).add_(1).sub_(2j).div_(2 - 1j).exp_()
    w = (((z * 2).conj() * 1j + 1 - 2j) / (2 - 1j)).exp()
    assert torch.allclose(y, w)
    for first, second in zip(*[torch.autograd.grad(f.abs().sum(), z) for f in (y, w)]):
        assert torch.allclose(first, second)
    y = z * 1
    y.real.mul_(2)
    y.imag = y.real
    g, = torch.autograd.grad((y * y).imag.sum(), z)
    assert torch.allclose(g, 16 * z.real + 0j)


def test_gradients_at_zero():
    z = torch.tensor([0j, 3 + 4j], requires_grad=True)
    for f, want in ((torch.abs, [0, 0.6 + 0.8j]), (torch.angle, [0, -0.16 + 0.12j])):
        g, = torch.autograd.grad(f(z).sum(), z)
        assert np.allclose(g.tolist(), want)
    g, = torch.autograd.grad((z ** 0).real.sum() + torch.sgn(z).real.sum(), z)
    assert g[0].item() == 0


# ------------------------------------------------------------------ machine code
def test_long_kernels_spill_nothing():
    """Those without sine and cosine, whose reduction of large arguments lies in local memory."""
    with pytest.MonkeyPatch.context() as patch, torch.cuda.simulate(seed=0), compiler.recording() as record:
        patch.setattr("tritorch.cuda.simulated.interpreter.Kernel.run", lambda *launch: None)
        for name in ("acos", "log"):
            registry[name](torch.zeros(64, dtype=torch.complex128, device="cuda"))
        torch.cuda.synchronize()
    specs = [spec for spec in record.values() if spec.kernel.__name__ == "unary_flat"]
    uses = [use for arch in (80, 100) for use in machine_code.used(specs, arch)]
    assert len(uses) >= 4 and not any(use["spills"] for use in uses)
