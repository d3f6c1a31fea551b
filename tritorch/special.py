"""Special functions under the names of torch.special: functions of `tritorch`, a few of them under another name.

>>> import tritorch as torch
>>> torch.special.expit(torch.tensor([0.0, 2.0]))
tensor([0.5000, 0.8808])
"""
import math

from tritorch.ops.compare import where
from tritorch.ops.methods import surface

_SAME = """digamma erf erfc erfinv exp2 expm1 log1p log_softmax logit logsumexp round sinc softmax xlogy"""
_OTHER = {"expit": "sigmoid", "gammaln": "lgamma", "psi": "digamma"}
globals().update({name: surface[name] for name in _SAME.split()}, **{name: surface[ours] for name, ours in _OTHER.items()})

__all__ = [*_SAME.split(), *_OTHER, "entr", "ndtr"]


def entr(input):
    """-x · log(x), 0 at 0 and -inf below it.

    >>> import tritorch as torch; torch.special.entr(torch.tensor([0.0, 0.5, -1.0]))
    tensor([0.0000, 0.3466,   -inf])
    """
    return where(input < 0, -math.inf, 0 - surface["xlogy"](input, input))


def ndtr(input):
    """The area under the normal distribution to the left of x.

    >>> import tritorch as torch; torch.special.ndtr(torch.tensor([0.0, 1.0]))
    tensor([0.5000, 0.8413])
    """
    return surface["erfc"](input * -math.sqrt(0.5)) * 0.5
