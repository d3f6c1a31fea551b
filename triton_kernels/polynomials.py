"""Orthogonal polynomials of any degree by their recurrences, in float64. The degrees may differ from element to element."""
import triton
import triton.language as tl
from triton.language.extra import libdevice

MOST = tl.constexpr(64)                                                  # Chebyshev's beyond this degree are sines or hyperbolic sines


@triton.jit
def following(x, k, p, before, KIND: tl.constexpr):
    """The polynomial of degree k + 1 from those of degrees k and k - 1."""
    if KIND == "hermite":
        return 2.0 * (x * p - k * before)
    elif KIND == "probabilist":
        return x * p - k * before
    elif KIND == "laguerre":
        return ((2.0 * k + 1.0 - x) * p - k * before) / (k + 1.0)
    elif KIND == "legendre":
        return ((2.0 * k + 1.0) * x * p - k * before) / (k + 1.0)
    else:
        return 2.0 * x * p - before


@triton.jit
def climbed(x, degree, first, KIND: tl.constexpr):
    """From the polynomial of degree 1 up to each element's degree; below 0 it is 0."""
    p, before = tl.where(degree < 1, 1.0, first), x * 0.0 + 1.0
    top = tl.max(degree)
    k = top * 0.0 + 1.0
    while k < top:
        after = following(x, k, p, before, KIND)
        more = degree > k
        p, before = tl.where(more, after, p), tl.where(more, p, before)
        k += 1.0
    return tl.where(degree < 0, 0.0, p)


@triton.jit
def whole(n):
    """Degrees rounded towards 0."""
    return libdevice.trunc(n.to(tl.float64))


@triton.jit
def of_degree(x, n, first, LIMIT: tl.constexpr, KIND: tl.constexpr):
    degree = whole(n)
    fits = degree <= LIMIT
    value = climbed(x, tl.where(fits, degree, 0.0), first, KIND)
    return tl.where(fits & (x == x), value, float("nan"))


@triton.jit
def hermite_polynomial_h(x, n):
    v = x.to(tl.float64)
    return of_degree(v, n, 2.0 * v, 512, "hermite").to(x.dtype)


@triton.jit
def hermite_polynomial_he(x, n):
    v = x.to(tl.float64)
    return of_degree(v, n, v, 512, "probabilist").to(x.dtype)


@triton.jit
def laguerre_polynomial_l(x, n):
    v = x.to(tl.float64)
    return of_degree(v, n, 1.0 - v, 1048576, "laguerre").to(x.dtype)


@triton.jit
def legendre_polynomial_p(x, n):
    v = x.to(tl.float64)
    return of_degree(v, n, v, 1048576, "legendre").to(x.dtype)


# ------------------------------------------------------------------ Chebyshev
@triton.jit
def cosh_over(a, b, t):
    """cosh(a t) / cosh(b t) for a ≥ b ≥ 0."""
    return libdevice.exp((a - b) * t) * (1.0 + libdevice.exp(-2.0 * a * t)) / (1.0 + libdevice.exp(-2.0 * b * t))


@triton.jit
def sinh_over(a, b, t):
    return libdevice.exp((a - b) * t) * libdevice.expm1(-2.0 * a * t) / libdevice.expm1(-2.0 * b * t)


@triton.jit
def far(y, degree, KIND: tl.constexpr):
    """T, U, V or W of a large degree for y = |x|, whose angle is exact near 1."""
    inside, outside = libdevice.acos(tl.minimum(y, 1.0)), libdevice.acosh(tl.maximum(y, 1.0))
    zero = degree * 0.0
    if KIND == "t":
        near, beyond, one = libdevice.cos(degree * inside), cosh_over(degree, zero, outside), zero + 1.0
    elif KIND == "u":
        near, one = libdevice.sin((degree + 1.0) * inside) / libdevice.sin(inside), degree + 1.0
        beyond = sinh_over(degree + 1.0, zero + 1.0, outside)
    elif KIND == "v":
        near, one = libdevice.cos((degree + 0.5) * inside) / libdevice.cos(0.5 * inside), zero + 1.0
        beyond = cosh_over(degree + 0.5, zero + 0.5, outside)
    else:
        near, one = libdevice.sin((degree + 0.5) * inside) / libdevice.sin(0.5 * inside), 2.0 * degree + 1.0
        beyond = sinh_over(degree + 0.5, zero + 0.5, outside)
    return tl.where(y == 1, one, tl.where(y < 1, near, beyond))


@triton.jit
def chebyshev_of(v, n, first, KIND: tl.constexpr):
    degree = whole(n)
    large = degree > MOST
    value = climbed(v, tl.where(large | (degree != degree), 0.0, degree), first, "chebyshev")
    if tl.max(large.to(tl.int32)) > 0:
        d, y = tl.where(large, degree, 1.0), tl.abs(v)
        if KIND == "v":
            beyond = tl.where(v < 0, far(y, d, "w"), far(y, d, "v"))
        elif KIND == "w":
            beyond = tl.where(v < 0, far(y, d, "v"), far(y, d, "w"))
        else:
            beyond = far(y, d, KIND)
        odd = libdevice.fmod(d, d * 0.0 + 2.0) != 0
        value = tl.where(large, tl.where(odd & (v < 0), -beyond, beyond), value)
    return tl.where((degree == degree) & (v == v), value, float("nan"))


@triton.jit
def chebyshev_polynomial_t(x, n):
    v = x.to(tl.float64)
    return chebyshev_of(v, n, v, "t").to(x.dtype)


@triton.jit
def chebyshev_polynomial_u(x, n):
    v = x.to(tl.float64)
    return chebyshev_of(v, n, 2.0 * v, "u").to(x.dtype)


@triton.jit
def chebyshev_polynomial_v(x, n):
    v = x.to(tl.float64)
    return chebyshev_of(v, n, 2.0 * v - 1.0, "v").to(x.dtype)


@triton.jit
def chebyshev_polynomial_w(x, n):
    v = x.to(tl.float64)
    return chebyshev_of(v, n, 2.0 * v + 1.0, "w").to(x.dtype)


@triton.jit
def shifted_chebyshev_polynomial_t(x, n):
    v = 2.0 * x.to(tl.float64) - 1.0
    return chebyshev_of(v, n, v, "t").to(x.dtype)


@triton.jit
def shifted_chebyshev_polynomial_u(x, n):
    v = 2.0 * x.to(tl.float64) - 1.0
    return chebyshev_of(v, n, 2.0 * v, "u").to(x.dtype)


@triton.jit
def shifted_chebyshev_polynomial_v(x, n):
    v = 2.0 * x.to(tl.float64) - 1.0
    return chebyshev_of(v, n, 2.0 * v - 1.0, "v").to(x.dtype)


@triton.jit
def shifted_chebyshev_polynomial_w(x, n):
    v = 2.0 * x.to(tl.float64) - 1.0
    return chebyshev_of(v, n, 2.0 * v + 1.0, "w").to(x.dtype)
