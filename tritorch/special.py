"""Special functions under the names of torch.special: functions of `tritorch`, a few of them under another name, and those that are only
here.

>>> import tritorch as torch
>>> torch.special.expit(torch.tensor([0.0, 2.0]))
tensor([0.5000, 0.8808])
"""
from tritorch.ops import bessel, gamma_functions, normal, polynomials
from tritorch.ops.methods import public, surface
from tritorch.pickling import findable

_SAME = """digamma erf erfc erfinv exp2 expm1 i0 log1p log_softmax logit logsumexp polygamma round sinc softmax xlogy"""
_OTHER = {"expit": "sigmoid", "gammaln": "lgamma", "psi": "digamma", "gammainc": "igamma", "gammaincc": "igammac",
          "multigammaln": "mvlgamma"}
_HERE = {
    bessel: """airy_ai bessel_j0 bessel_j1 bessel_y0 bessel_y1 i0e i1 i1e modified_bessel_i0 modified_bessel_i1 modified_bessel_k0
            modified_bessel_k1 scaled_modified_bessel_k0 scaled_modified_bessel_k1 spherical_bessel_j0""",
    normal: "entr erfcx log_ndtr ndtr ndtri xlog1py",
    gamma_functions: "zeta",
    polynomials: """chebyshev_polynomial_t chebyshev_polynomial_u chebyshev_polynomial_v chebyshev_polynomial_w hermite_polynomial_h
            hermite_polynomial_he laguerre_polynomial_l legendre_polynomial_p shifted_chebyshev_polynomial_t shifted_chebyshev_polynomial_u
            shifted_chebyshev_polynomial_v shifted_chebyshev_polynomial_w""",
}
globals().update({name: surface[name] for name in _SAME.split()}, **{name: surface[ours] for name, ours in _OTHER.items()})
globals().update({name: public(getattr(module, name)) for module, names in _HERE.items() for name in names.split()})
findable(__name__, {name: f for name, f in globals().items() if not name.startswith("_")})

__all__ = [*_SAME.split(), *_OTHER, *" ".join(_HERE.values()).split()]
