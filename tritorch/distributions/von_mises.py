"""The von Mises distribution of angles: a normal distribution around a circle."""
import math

from tritorch.autograd import no_grad
from tritorch.distributions import constraints
from tritorch.distributions.distribution import Distribution
from tritorch.distributions.parameters import broadcast_all, lazy_property
from tritorch.dtype import types
from tritorch.ops.bounds import every
from tritorch.ops.compare import where
from tritorch.ops.create import zeros
from tritorch.ops.random import rand
from tritorch.special import i0e, i1e


class VonMises(Distribution):
    """exp(κ cos(x - loc)) / (2π I₀(κ)) for angles x of any turn, with κ = `concentration`; samples are in [-π, π).

    >>> import tritorch as torch
    >>> torch.distributions.VonMises(torch.tensor(0.0), torch.tensor([1.0, 100.0])).log_prob(torch.tensor(0.1))
    tensor([-1.0788,  0.8828])
    """

    arg_constraints = {"loc": constraints.real, "concentration": constraints.positive}
    support, _parameters = constraints.real, ("loc", "concentration")

    def __init__(self, loc, concentration, validate_args=None):
        self.loc, self.concentration = broadcast_all(loc, concentration)
        super().__init__(self.loc.shape, validate_args=validate_args)

    mean = mode = property(lambda self: self.loc, doc="loc.")

    @lazy_property
    def variance(self):
        """That of an angle on the circle: 1 - I₁(κ) / I₀(κ)."""
        return 1 - i1e(self.concentration) / i0e(self.concentration)

    def log_prob(self, value):
        if self._validate_args:
            self._validate_sample(value)
        scaled = self.concentration * ((value - self.loc).cos() - 1)     # i0e is I₀ times exp(-κ), which would overflow
        return scaled - math.log(2 * math.pi) - i0e(self.concentration).log()

    def sample(self, sample_shape=()):
        """Outcomes, by rejection from a wrapped Cauchy distribution, in float64 (D. J. Best and N. I. Fisher, Efficient simulation of the
        von Mises distribution, 1979). Waits, round by round, for whether all have been accepted."""
        shape = self._extended_shape(sample_shape)
        with no_grad():
            loc, kappa = self.loc.detach().double(), self.concentration.detach().double()
            r = _proposal(kappa)
            x = zeros(shape, dtype=types.float64, device=loc.device)
            done = zeros(shape, dtype=types.bool, device=loc.device)
            while not bool(every(done).all()):
                u, v, side = rand((3, *shape), dtype=types.float64, device=loc.device).unbind()
                z = (math.pi * u).cos()
                f = (1 + r * z) / (r + z)
                c = kappa * (r - f)
                accepted = (c * (2 - c) > v) | ((c / v).log() + 1 - c >= 0)
                x = where(accepted & ~done, (side - 0.5).sign() * f.acos(), x)
                done = done | accepted
            return (((x + math.pi + loc) % (2 * math.pi)) - math.pi).to(self.loc.dtype)


def _proposal(kappa):
    """The wrapped Cauchy distribution's (1 + ρ²) / 2ρ; 1/κ + κ for small κ, where the formula is 0/0."""
    tau = 1 + (1 + 4 * kappa**2).sqrt()
    rho = (tau - (2 * tau).sqrt()) / (2 * kappa)
    return where(kappa < 1e-5, 1 / kappa + kappa, (1 + rho**2) / (2 * rho))
