"""The Kullback-Leibler divergence ∫ p log(p / q), where there is a formula."""
import warnings

from tritorch.errors import check

_formulas, _chosen = {}, {}


def register_kl(type_p, type_q):
    """A decorator: the function of (p, q) is the divergence of these two classes, and of those derived from them. Any
    classes do: libraries have distributions of their own."""
    for kind in (type_p, type_q):
        check(isinstance(kind, type), "register_kl", "classes of distributions", kind, error=TypeError)

    def register(f):
        _formulas[type_p, type_q] = f
        _chosen.clear()
        return f

    return register


def kl_divergence(p, q):
    """KL(p ‖ q), by batch. Raises NotImplementedError for a pair without a formula.

    >>> import tritorch as torch
    >>> torch.distributions.kl_divergence(torch.distributions.Normal(0.0, 1.0), torch.distributions.Normal(1.0, 1.0))
    tensor(0.5000)
    """
    pair = type(p), type(q)
    if pair not in _chosen:
        _chosen[pair] = _formula(*pair)
    if _chosen[pair] is None:
        raise NotImplementedError(f"kl_divergence: no formula for {type(p).__name__} and {type(q).__name__}; use register_kl")
    return _chosen[pair](p, q)


def _formula(type_p, type_q):
    """That of the nearest classes. p's come first; where q's would choose another one, a warning says so."""
    known = [(a, b) for a, b in _formulas if issubclass(type_p, a) and issubclass(type_q, b)]
    if not known:
        return None
    near = {(a, b): (type_p.__mro__.index(a), type_q.__mro__.index(b)) for a, b in known}
    by_p, by_q = min(known, key=near.get), min(known, key=lambda pair: near[pair][::-1])
    if _formulas[by_p] is not _formulas[by_q]:
        warnings.warn(f"kl_divergence({type_p.__name__}, {type_q.__name__}) is ambiguous; use register_kl("
                      f"{by_p[0].__name__}, {by_q[1].__name__})", RuntimeWarning, stacklevel=3)
    return _formulas[by_p]
