"""torch.special against PyTorch: which functions take which dtypes, numbers and keywords, gradients at special places, in place, out=."""
import numpy as np
import pytest
from oracle import EVERY, SPECIAL, agree, draw

CHEBYSHEV = [f"{form}chebyshev_polynomial_{letter}" for form in ("", "shifted_") for letter in "tuvw"]
POLYNOMIALS = [*CHEBYSHEV, *"hermite_polynomial_h hermite_polynomial_he laguerre_polynomial_l legendre_polynomial_p".split()]
DERIVED = "erfcx i0 i0e i1 i1e log_ndtr ndtr ndtri entr".split()
UNARY = [*DERIVED, *"""airy_ai bessel_j0 bessel_j1 bessel_y0 bessel_y1 modified_bessel_i0 modified_bessel_i1 modified_bessel_k0
    modified_bessel_k1 scaled_modified_bessel_k0 scaled_modified_bessel_k1 spherical_bessel_j0""".split()]
BINARY = [*POLYNOMIALS, "xlog1py", "zeta"]
LOOSE = {"bfloat16": 2e-2, "float16": 4e-3, "float64": 1e-4}                  # PyTorch's Airy function is right to 1e-4


@pytest.mark.parametrize("kind", EVERY)
def test_dtypes(kind):
    x, y = np.abs(draw(4, 5, dtype=kind, low=1, high=4)), np.abs(draw(5, dtype=kind, seed=1, low=1, high=4))
    for name in UNARY:
        agree(lambda lib, x, name=name: getattr(lib.special, name)(x), (x, kind), what=name, rtol=LOOSE.get(kind, 1e-4))
    for name in BINARY:
        agree(lambda lib, x, y, name=name: getattr(lib.special, name)(x, y), (x, kind), (y, kind), what=name, rtol=LOOSE.get(kind, 1e-4))
    for name in "igamma", "igammac":
        agree(lambda lib, x, y, name=name: getattr(lib, name)(x, y), (x, kind), (y, kind), what=name, rtol=LOOSE.get(kind, 1e-4))
    for program in (lambda lib, x: lib.polygamma(0, x), lambda lib, x: lib.polygamma(3, x), lambda lib, x: lib.mvlgamma(x, 2),
                    lambda lib, x: lib._standard_gamma(lib.tensor([2], dtype=x.dtype)).dtype if "float16" not in kind else None):
        agree(program, (x + x.dtype.type(1), kind), rtol=LOOSE.get(kind, 1e-4))


@pytest.mark.parametrize("name", BINARY)
def test_numbers_and_keywords(name):
    other = "n" if name in POLYNOMIALS else "other"
    x = draw(4, seed=1, low=1.1, high=2)
    agree(lambda lib, x: getattr(lib.special, name)(x, **{other: 3}), x, what=name, rtol=1e-5)
    agree(lambda lib, x: getattr(lib.special, name)(1.5, x), x, what=name, rtol=1e-5)
    agree(lambda lib, x: getattr(lib.special, name)(1.5, 2), x, what=name)
    agree(lambda lib, x: getattr(lib.special, name)(x, x.double(), out=lib.empty(0)), x, what=name, rtol=1e-5)
    agree(lambda lib, x: getattr(lib.special, name)(x, 2, out=lib.empty(4, dtype=lib.int64)), x, what=name)


@pytest.mark.parametrize("name", DERIVED)
def test_gradients_at_special_places(name):
    x = SPECIAL[np.isfinite(SPECIAL)]
    agree(lambda lib, x: getattr(lib.special, name)(x), x, grad=True, what=name, rtol=1e-9)

    def twice(lib, x):
        return lib.autograd.grad(getattr(lib.special, name)(x).sum(), x, create_graph=True)[0]

    agree(twice, draw(9, dtype="float64", low=0.1, high=0.9), grad=True, what=name, rtol=1e-9)


def test_gradients_of_two():
    grid = np.meshgrid(SPECIAL, SPECIAL)
    agree(lambda lib, x, y: lib.special.xlog1py(x, y), *grid, grad=True)
    s, q = draw(30, dtype="float64", low=1.5, high=5), draw(30, dtype="float64", seed=1, low=0.3, high=9)
    agree(lambda lib, s, q: lib.special.zeta(s, q), s, q, grad=[1], rtol=1e-10)
    for name in "igamma", "igammac":
        agree(lambda lib, a, x, name=name: getattr(lib, name)(a, x), s, q, grad=[1], rtol=1e-8)
    agree(lambda lib, x: lib.mvlgamma(x, 3), q + 1, grad=True, rtol=1e-10)
    for n in range(4):
        agree(lambda lib, x, n=n: lib.polygamma(n, x), q, grad=True, rtol=1e-7)
    agree(lambda lib, a, x: lib._standard_gamma_grad(a, x), s, q, rtol=3e-3)                 # PyTorch's is an approximation
    agree(lambda lib, x, a, t: lib._dirichlet_grad(x, a, t), q / 10, s, s + q, rtol=1e-2)


@pytest.mark.parametrize("program", [
    lambda lib, x: lib.polygamma(-1, x), lambda lib, x: lib.polygamma(1.5, x), lambda lib, x: lib.polygamma(True, x),
    lambda lib, x: lib.polygamma(x, 1), lambda lib, x: lib.polygamma(lib.tensor(2), x), lambda lib, x: lib.polygamma(2, 3.0),
    lambda lib, x: x.polygamma(), lambda lib, x: x.clone().polygamma_(1), lambda lib, x: lib.tensor([1, 2]).polygamma_(1),
    lambda lib, x: lib.mvlgamma(x, 0), lambda lib, x: lib.mvlgamma(x, 2.5), lambda lib, x: lib.mvlgamma(lib.tensor([0.5, 0.2]), 3),
    lambda lib, x: x.clone().mvlgamma_(2), lambda lib, x: lib.tensor([3, 4]).mvlgamma_(2), lambda lib, x: lib.i0_(x.clone()),
    lambda lib, x: lib.tensor([1]).i0_(), lambda lib, x: x.clone().igamma_(x), lambda lib, x: x.igammac(x),
    lambda lib, x: lib.igamma(x, 2.0), lambda lib, x: lib.igamma(2.0, x), lambda lib, x: lib.igamma(x, x, out=lib.empty(0)),
    lambda lib, x: lib.special.i0e([1.0]), lambda lib, x: lib.special.bessel_j0(1.0), lambda lib, x: lib.special.i0e(input=x).shape,
    lambda lib, x: lib.special.erfcx(x, out=lib.empty(3, dtype=lib.int64)), lambda lib, x: lib.special.multigammaln(x, p=3),
    lambda lib, x: lib._standard_gamma_grad(x, x.double()), lambda lib, x: lib._sample_dirichlet(x[:0]),
    lambda lib, x: lib._standard_gamma(x).shape, lambda lib, x: lib._standard_gamma([1.0])])
def test_calls_right_and_wrong(program):
    agree(program, np.array([1.5, 2.5, 4.0], np.float32), rtol=1e-5)
