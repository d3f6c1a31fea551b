"""Exponential families: densities exp(⟨t(x), θ⟩ - F(θ) + k(x)) with natural parameters θ."""
from tritorch.autograd import grad
from tritorch.distributions.distribution import Distribution
from tritorch.distributions.parameters import sum_rightmost


class ExponentialFamily(Distribution):
    """The base class of those that tell θ by `_natural_params`, F by `_log_normalizer` and the mean of k by `_mean_carrier_measure`.

    The entropy is F(θ) - ⟨θ, ∇F(θ)⟩ - E k, by automatic differentiation (F. Nielsen and R. Nock, Entropies and cross-entropies of
    exponential families, 2010). It is one of numbers: gradients do not reach the parameters.

    >>> import tritorch as torch; torch.distributions.ExponentialFamily.entropy(torch.distributions.Exponential(2.0)).detach()
    tensor(0.3069)
    """

    _natural_params = property(lambda self: self._lacks("_natural_params"))
    _mean_carrier_measure = property(lambda self: self._lacks("_mean_carrier_measure"))

    def _log_normalizer(self, *natural_params):
        self._lacks("_log_normalizer")

    def _bregman(self):
        """(natural parameters as leaves, F of them, its gradients)."""
        leaves = [p.detach().requires_grad_() for p in self._natural_params]
        normalizer = self._log_normalizer(*leaves)
        return leaves, normalizer, grad(normalizer.sum(), leaves, create_graph=True)

    def entropy(self):
        carried = self._mean_carrier_measure
        leaves, result, gradients = self._bregman()
        for p, g in zip(leaves, gradients):
            result = result - sum_rightmost(p * g, len(p.shape) - len(self._batch_shape))
        return result - carried
