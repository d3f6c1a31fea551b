"""The geometric distribution: how many trials fail before the first success."""
from tritorch.distributions import constraints
from tritorch.distributions.distribution import Distribution
from tritorch.distributions.parameters import Either, broadcast_all
from tritorch.dtype import finfo
from tritorch.errors import check
from tritorch.nn.functional import binary_cross_entropy_with_logits
from tritorch.ops.bounds import every
from tritorch.ops.create import empty, zeros_like


class Geometric(Either, Distribution):
    """(1 - p)^k p for k = 0, 1, …, with p = `probs` or sigmoid(`logits`). (`Tensor.geometric_` counts the success, too.)

    >>> import tritorch as torch; torch.distributions.Geometric(0.25).mean
    tensor(3.)
    """

    arg_constraints = {"probs": constraints.unit_interval, "logits": constraints.real}
    support, _parameters = constraints.nonnegative_integer, ("probs", "logits")

    def __init__(self, probs=None, logits=None, validate_args=None):
        self._take(probs, logits)
        super().__init__(self._param.shape, validate_args=validate_args)
        if self._validate_args and probs is not None and self.probs.device.type == "cpu":
            check(bool(every(self.probs > 0).all()), "Geometric", "positive probs", self.probs.detach(), error=ValueError)

    mean = property(lambda self: 1 / self.probs - 1, doc="1/p - 1.")
    mode = property(lambda self: zeros_like(self.probs), doc="0.")
    variance = property(lambda self: (1 / self.probs - 1) / self.probs, doc="(1/p - 1) / p.")

    def sample(self, sample_shape=()):
        p = self.probs.detach()
        u = empty(self._extended_shape(sample_shape), dtype=p.dtype, device=p.device).uniform_(finfo(p.dtype).tiny, 1)
        return (u.log() / (-p).log1p()).floor()

    def log_prob(self, value):
        if self._validate_args:
            self._validate_sample(value)
        value, probs = broadcast_all(value, self.probs)
        probs = probs.masked_fill((probs == 1) & (value == 0), 0)        # 0 · log 0
        return value * (-probs).log1p() + self.probs.log()

    def entropy(self):
        return binary_cross_entropy_with_logits(self.logits, self.probs, reduction="none") / self.probs
