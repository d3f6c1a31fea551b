"""torch.special against scipy: on CUDA over the whole domain within a few roundings times the condition; ends, errors, gradients."""
import math

import numpy as np
import pytest
import scipy.special as sp

import tritorch as torch
from tritorch import special

POINTS = np.concatenate([np.linspace(-30, 30, 401), 10 ** np.linspace(-300, 4, 120), -10 ** np.linspace(-300, 4, 120),
                         np.linspace(-3, 3, 101), [0.0, -0.0, np.inf, -np.inf, np.nan, 2, 8, -7, 1e-310, -1e-310]])
UNARY = dict(bessel_j0=sp.j0, bessel_j1=sp.j1, bessel_y0=sp.y0, bessel_y1=sp.y1, modified_bessel_i0=sp.i0, modified_bessel_i1=sp.i1,
             i0=sp.i0, i0e=sp.i0e, i1=sp.i1, i1e=sp.i1e, modified_bessel_k0=sp.k0, modified_bessel_k1=sp.k1,
             scaled_modified_bessel_k0=sp.k0e, scaled_modified_bessel_k1=sp.k1e, spherical_bessel_j0=lambda x: sp.spherical_jn(0, x),
             erfcx=sp.erfcx, ndtr=sp.ndtr, ndtri=sp.ndtri, log_ndtr=sp.log_ndtr, entr=sp.entr, digamma=sp.digamma)
POLYNOMIALS = dict(chebyshev_polynomial_t="chebyt", chebyshev_polynomial_u="chebyu", hermite_polynomial_h="hermite",
                   hermite_polynomial_he="hermitenorm", laguerre_polynomial_l="laguerre", legendre_polynomial_p="legendre",
                   shifted_chebyshev_polynomial_t="sh_chebyt", shifted_chebyshev_polynomial_u="sh_chebyu")


def near_truth(have, function, *args, roundings, dtype=np.float64):
    """`have` is function(*args) but for roundings of the result and of the arguments."""
    with np.errstate(all="ignore"):
        want, condition = function(*args), 1.0
        size = np.abs(want) + np.finfo(dtype).tiny / np.finfo(dtype).eps
        for k in range(len(args)):
            high, low = ([a * (1 + s) if i == k else a for i, a in enumerate(args)] for s in (1e-7, -1e-7))
            condition = condition + np.nan_to_num(np.abs(function(*high) - function(*low)) / size / 2e-7, nan=0, posinf=0)
        want = want.astype(dtype).astype(np.float64)
        error = np.abs(have - want) / size / condition / np.finfo(dtype).eps
    same = (have == want) | np.isnan(have) & np.isnan(want)
    worst = np.argmax(np.where(same, 0, np.nan_to_num(error, nan=np.inf)))
    assert same.flat[worst] or error.flat[worst] <= roundings, (error.flat[worst], have.flat[worst], want.flat[worst], [
        np.broadcast_to(a, want.shape).flat[worst] for a in args])


@pytest.mark.parametrize("name", UNARY)
def test_functions_of_one_number_on_cuda(name, cuda):
    for dtype in np.float64, np.float32:
        x = POINTS.astype(dtype)
        have = getattr(special, name)(torch.tensor(x, device=cuda)).cpu().numpy().astype(np.float64)
        near_truth(have, UNARY[name], x.astype(np.float64), roundings=8, dtype=dtype)


def test_airy_on_both(cuda):
    x = np.concatenate([np.linspace(-40, 10, 301), [0.0, 100, 1e6, 1e300]])
    near = (x < 40) & ~((x > 2) & (x < 2.4))                             # scipy loses two digits there
    for where in "cpu", cuda:
        have = special.airy_ai(torch.tensor(x, device=where)).cpu().numpy()
        near_truth(have[near], lambda x: sp.airy(x)[0], x[near], roundings=20)
        assert (have[-2:] == 0).all()
        ends = special.airy_ai(torch.tensor([math.inf, -math.inf, math.nan], device=where))
        assert torch.isnan(ends).all()
        far = special.airy_ai(torch.tensor([-1e6, -2000.0], dtype=torch.float64, device=where)).cpu().numpy()
        np.testing.assert_allclose(far, [-0.0021912611, 0.0814113825], atol=3e-9)


def pairs():
    rng = np.random.default_rng(0)
    a = 10 ** rng.uniform(-5, 4, 600)
    x = a * 10 ** rng.uniform(-1, 1, 600)
    x[::4] = np.abs(a + np.sqrt(a) * rng.normal(size=600) * 3)[::4]
    ends = np.array([(0, 0), (0, 1), (1, 0), (1, -1), (-1, 1), (2, np.inf), (np.inf, 1), (np.inf, np.inf), (0.5, 0), (np.nan, 1),
                     (1, np.nan), (0, np.inf), (1e300, 1e300), (1e300, 1.1e300), (1e300, 9e299), (0.3, 1e-310), (15, 1e-20)]).T
    return np.concatenate([a, ends[0]]), np.concatenate([x, ends[1]])


@pytest.mark.parametrize(("name", "function"), [("igamma", sp.gammainc), ("igammac", sp.gammaincc)])
def test_incomplete_gamma_on_cuda(name, function, cuda):
    for dtype, roundings in ((np.float64, 40), (np.float32, 2)):             # scipy's own error is most of it
        with np.errstate(over="ignore"):
            a, x = (v.astype(dtype) for v in pairs())
        have = getattr(torch, name)(torch.tensor(a, device=cuda), torch.tensor(x, device=cuda)).cpu().numpy().astype(np.float64)
        near_truth(have, function, a.astype(np.float64), x.astype(np.float64), roundings=roundings, dtype=dtype)


def test_incomplete_gamma_in_closed_form(cuda):
    x = torch.tensor(10 ** np.linspace(-12, 2, 57), device=cuda)
    one, half = torch.ones_like(x), torch.full_like(x, 0.5)
    for have, want in ((torch.igamma(one, x), -torch.expm1(-x)), (torch.igammac(one, x), torch.exp(-x)),
                       (torch.igamma(half, x), torch.erf(x.sqrt())), (torch.igammac(half, x), torch.erfc(x.sqrt()))):
        np.testing.assert_allclose(have.cpu().numpy(), want.cpu().numpy(), rtol=3e-14)


def test_zeta_and_polygamma_on_cuda(cuda):
    rng = np.random.default_rng(0)
    s, q = 1 + 10 ** rng.uniform(-6, 2.3, 400), 10 ** rng.uniform(-6, 10, 400)
    s = np.concatenate([s, [1, 2, 2, 2, 2.5, 2.5, 0.5, 2, 2, 1.5, np.inf, np.inf, 2, np.nan, 1]])
    q = np.concatenate([q, [2, 0, -1, -1.5, -1.5, -2, 1, np.inf, -np.inf, 1e-320, 2, 1, np.nan, 1, np.nan]])
    near_truth(special.zeta(torch.tensor(s, device=cuda), torch.tensor(q, device=cuda)).cpu().numpy(), sp.zeta, s, q, roundings=8)
    x = np.concatenate([-rng.uniform(0, 20, 200), 10 ** rng.uniform(-5, 5, 200), [0.0, -1, -20.25]])
    for n in (0, 1, 2, 3, 20):
        near_truth(torch.polygamma(n, torch.tensor(x, device=cuda)).cpu().numpy(), lambda x, n=n: sp.polygamma(n, x), x, roundings=8)
    halves = -0.5 - np.arange(5)                                         # where what lies to both sides of 0 cancels
    have = torch.polygamma(20, torch.tensor(halves, device=cuda)).cpu().numpy()
    np.testing.assert_allclose(have, sp.polygamma(20, 1 - halves), rtol=1e-14)


@pytest.mark.parametrize("name", POLYNOMIALS)
def test_polynomials(name, cuda):
    x, n = np.linspace(-1.5, 1.5, 41)[:, None], np.arange(9)
    want = np.concatenate([getattr(sp, POLYNOMIALS[name])(int(k))(x) for k in n], 1)
    for where in "cpu", cuda:
        have = getattr(special, name)(torch.tensor(x, device=where), torch.tensor(n, device=where)).cpu().numpy()
        np.testing.assert_allclose(have, want, rtol=1e-8, atol=1e-9)
        degrees = torch.tensor([-3.0, -0.5, 2.9, math.nan, math.inf], device=where)
        odd = getattr(special, name)(torch.full((5,), 0.75, device=where), degrees).cpu()
        same = getattr(special, name)(0.75, torch.tensor([0, 2]))
        np.testing.assert_allclose(odd.numpy(), [0, same[0].item(), same[1].item(), np.nan, np.nan], rtol=1e-6)


@pytest.mark.parametrize("degree", [5, 64, 65, 100, 1001])
def test_chebyshev_polynomials_are_what_angles_say(degree, cuda):
    t = np.linspace(0.05, 3.1, 50)
    want = dict(t=np.cos(degree * t), u=np.sin((degree + 1) * t) / np.sin(t), v=np.cos((degree + 0.5) * t) / np.cos(t / 2),
                w=np.sin((degree + 0.5) * t) / np.sin(t / 2))
    ends = dict(t=(1, 1), u=(degree + 1, degree + 1), v=(1, 2 * degree + 1), w=(2 * degree + 1, 1))
    grown = math.cosh(degree * math.acosh(1.1))
    for where in "cpu", cuda:
        x = torch.tensor(np.concatenate([np.cos(t), [1.0, -1, 1.1, -1.1]]), device=where)
        for letter, values in want.items():
            for have in (getattr(special, f"chebyshev_polynomial_{letter}")(x, degree),
                         getattr(special, f"shifted_chebyshev_polynomial_{letter}")((x + 1) / 2, degree)):
                have = have.cpu().numpy()
                np.testing.assert_allclose(have[:-4], values, atol=2e-12 * degree * degree)
                np.testing.assert_allclose(have[-4:-2], [ends[letter][0], (-1) ** degree * ends[letter][1]], rtol=1e-12)
                if letter == "t":
                    np.testing.assert_allclose(have[-2:], [grown, (-1) ** degree * grown], rtol=1e-11 * degree)


def test_gamma_functions_of_matrices():
    x = torch.tensor([2.5, 4.0, 9.25], dtype=torch.float64, requires_grad=True)
    for p in 1, 2, 5:
        have = torch.mvlgamma(x, p)
        np.testing.assert_allclose(have.detach().numpy(), sp.multigammaln(x.detach().numpy(), p), rtol=1e-14)
        (g,) = torch.autograd.grad(have.sum(), x)
        np.testing.assert_allclose(g.numpy(), sum(sp.digamma(x.detach().numpy() - j / 2) for j in range(p)), rtol=1e-13)
    assert torch.equal(x.detach().clone().mvlgamma_(2), special.multigammaln(x.detach(), 2))
    assert torch.mvlgamma(torch.tensor([5, 6]), 2).dtype is torch.float32 and torch.mvlgamma(x.half(), 2).dtype is torch.float16


def test_surface():
    x = torch.tensor([0.5, 1.5])
    for name, args in (("i0", ()), ("igamma", (x,)), ("igammac", (x,)), ("polygamma", (1,)), ("mvlgamma", (1,))):
        y = x.clone()
        want = getattr(x, name)(*args)
        assert getattr(y, name + "_")(*args) is y and torch.equal(y, want), name
    assert torch.equal(torch.i0_(x.clone()), torch.i0(x)) and torch.equal(torch.polygamma(n=1, input=x), x.polygamma(1))
    assert torch.equal(special.gammainc(x, x), torch.igamma(x, x)) and torch.equal(special.gammaincc(x, x), torch.igammac(x, x))
    out = torch.empty(0)
    assert special.bessel_j0(x, out=out) is out and torch.equal(out, special.bessel_j0(x))
    assert special.zeta(3, x).shape == special.xlog1py(2.0, x).shape == special.laguerre_polynomial_l(x, n=2).shape == (2,)
    assert special.airy_ai(torch.tensor([1, 2])).dtype is torch.float32 and not special.airy_ai(x.requires_grad_()).requires_grad
    assert all(hasattr(special, name) for name in special.__all__)


@pytest.mark.parametrize(("call", "error", "words"), [
    (lambda x: special.bessel_y1(x.half()), NotImplementedError, "bessel_y1: expected float32, float64 or integers"),
    (lambda x: special.zeta(x.bfloat16(), 2), NotImplementedError, "zeta: expected float32"),
    (lambda x: special.erfcx(1.0), TypeError, "erfcx: expected a tensor as input"),
    (lambda x: special.legendre_polynomial_p(1.0, 2), TypeError, "tensor"),
    (lambda x: torch.igamma(x, 2.0), TypeError, "igamma: expected a tensor as other"),
    (lambda x: torch.igamma(x.long(), x.long()), RuntimeError, "igamma: expected a floating dtype"),
    (lambda x: torch.polygamma(-1, x), RuntimeError, "n ≥ 0"),
    (lambda x: torch.polygamma(1.5, x), TypeError, "a whole number as n"),
    (lambda x: torch.polygamma(x, 1), TypeError, "a whole number as n, got a tensor"),
    (lambda x: torch.mvlgamma(x, 0), RuntimeError, "p ≥ 1"),
    (lambda x: torch.mvlgamma(x, 1.5), TypeError, "a whole number as p"),
    (lambda x: torch.mvlgamma(x > 0, 2), RuntimeError, "numbers"),
    (lambda x: torch.igamma(x.requires_grad_(), x).sum().backward(), NotImplementedError, "igamma: expected no gradient .* of input"),
    (lambda x: special.zeta(x.requires_grad_(), 2).sum().backward(), NotImplementedError, "zeta: expected no gradient"),
])
def test_errors(call, error, words):
    with pytest.raises(error, match=words.replace("(", r"\(")):
        call(torch.tensor([1.5, 2.5]))


def test_gradients_where_formulas_divide():
    x = torch.tensor([0.0, 1e-320, -1e-12], dtype=torch.float64, requires_grad=True)
    for name in "i1", "i1e":
        (g,) = torch.autograd.grad(getattr(special, name)(x).sum(), x, create_graph=True)
        np.testing.assert_allclose(g.detach().numpy(), 0.5, rtol=1e-11)
    (g,) = torch.autograd.grad(special.xlog1py(x, torch.tensor([-1.0, -2.0, 1.0], dtype=torch.float64)).sum(), x)
    assert g[0] == 0 and math.isnan(g[1]) and abs(g[2] - math.log(2)) < 1e-15


def test_the_third_derivative_of_digamma():
    x = torch.tensor([1.5, 4.0], dtype=torch.float64, requires_grad=True)
    y = torch.lgamma(x)
    for n in range(4):
        (y,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        np.testing.assert_allclose(y.detach().numpy(), sp.polygamma(n, x.detach().numpy()), rtol=1e-12)
