"""Parameters of distributions: numbers and tensors of one shape, probabilities and logits, and properties that are computed once."""
import functools
from numbers import Number

from tritorch.autograd import enable_grad
from tritorch.dtype import finfo, get_default_dtype
from tritorch.errors import check
from tritorch.ops.create import full
from tritorch.ops.shaping import broadcast_tensors
from tritorch.ops.triangles import tril_indices
from tritorch.tensor import Tensor

EULER = 0.5772156649015329                                               # lim Σ 1/k - log n


def broadcast_all(*values):
    """Numbers and tensors as tensors of one shape; numbers follow the dtype and device of the first tensor."""
    for v in values:
        check(isinstance(v, (Tensor, Number)), "broadcast_all", "tensors and numbers", type(v).__name__, error=ValueError)
    like = next((v for v in values if isinstance(v, Tensor)), None)
    options = {"dtype": get_default_dtype()} if like is None else {"dtype": like.dtype, "device": like.device}
    made = [v if isinstance(v, Tensor) else full((), v, **options) for v in values]
    return made if len({v.shape for v in made}) == 1 else broadcast_tensors(*made)


def clamp_probs(probs):
    """Probabilities kept away from 0 and 1 by as much as 1 + eps can tell.

    >>> import tritorch as torch; torch.distributions.utils.clamp_probs(torch.tensor([0.0, 0.5, 1.0]))
    tensor([1.1921e-07, 5.0000e-01, 1.0000e+00])
    """
    eps = finfo(probs.dtype).eps
    return probs.clamp(eps, 1 - eps)


def logits_to_probs(logits, is_binary=False):
    """The probabilities of the classes of the last dim, or of a 1."""
    return logits.sigmoid() if is_binary else logits.softmax(-1)


def probs_to_logits(probs, is_binary=False):
    """The logarithms of probabilities, or, if binary, of p / (1 - p)."""
    p = clamp_probs(probs)
    return p.log() - (-p).log1p() if is_binary else p.log()


class lazy_property(functools.cached_property):                          # PyTorch's name
    """A property that is computed once, with history, when it is first asked for."""

    def __get__(self, instance, owner=None):
        if instance is None:
            return self
        with enable_grad():
            value = self.func(instance)
        instance.__dict__[self.attrname] = value
        return value


class Either:
    """Mixin of the distributions that are given `probs` or `logits`: whichever was not given is computed when asked for."""

    _binary = True

    def _take(self, probs, logits, *others):
        """Keep the one that was given, at one shape with the others, and return those."""
        check((probs is None) != (logits is None), type(self).__name__, "probs or logits", "both or none", error=ValueError)
        given, *others = broadcast_all(logits if probs is None else probs, *others)
        self.__dict__["logits" if probs is None else "probs"] = given
        return others

    @lazy_property
    def logits(self):
        """log(p / (1 - p)) of the probabilities; of classes, log p."""
        return probs_to_logits(self.probs, self._binary)

    @lazy_property
    def probs(self):
        """The probabilities."""
        return logits_to_probs(self.logits, self._binary)

    @property
    def _param(self):
        return self.__dict__["probs" if "probs" in self.__dict__ else "logits"]

    param_shape = property(lambda self: self._param.shape, doc="The shape of the parameters.")


def sum_rightmost(x, dims):
    """The sum over the last dims."""
    return x.sum(tuple(range(-min(dims, len(x.shape)), 0))) if dims else x


def tril_matrix_to_vec(mat, diag=0):
    """What is on and below the diagonal of square matrices, row by row."""
    n = mat.shape[-1]
    check(-n <= diag < n, "tril_matrix_to_vec", f"a diagonal from {-n} to {n - 1}", diag, error=ValueError)
    rows, columns = tril_indices(n, n, diag, device=mat.device)
    return mat[..., rows, columns]


def vec_to_tril_matrix(vec, diag=0):
    """Square matrices with these numbers on and below the diagonal, row by row, and zeros elsewhere.

    >>> import tritorch as torch; torch.distributions.utils.vec_to_tril_matrix(torch.tensor([1.0, 2.0, 3.0]))
    tensor([[1., 0.],
            [2., 3.]])
    """
    count, n = vec.shape[-1], max(0, -diag)
    while (size := _on_and_below(n, diag)) < count:
        n += 1
    check(size == count, "vec_to_tril_matrix", "as many numbers as a triangle has", count, error=ValueError)
    rows, columns = tril_indices(n, n, diag, device=vec.device)
    made = vec.new_zeros((*vec.shape[:-1], n, n))
    made[..., rows, columns] = vec
    return made


def _on_and_below(n, diag):
    side = max(n + diag, 0) if diag <= 0 else max(n - 1 - diag, 0)       # of the triangle of ones, or of that of zeros above it
    return side * (side + 1) // 2 if diag <= 0 else n * n - side * (side + 1) // 2
