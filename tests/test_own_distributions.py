"""Distributions of users: what they define, what they get, and what is checked of them."""
import pickle
import warnings

import pytest

import tritorch as torch

d = torch.distributions
c = d.constraints


class Triangular(d.Distribution):
    """2x in [0, scale], as a program would write it for PyTorch."""

    arg_constraints = {"scale": c.positive}
    has_rsample = True

    def __init__(self, scale, validate_args=None):
        self.scale, = d.utils.broadcast_all(scale)
        super().__init__(self.scale.size(), validate_args=validate_args)

    def expand(self, batch_shape, _instance=None):
        new = self._get_checked_instance(Triangular, _instance)
        new.scale = self.scale.expand(batch_shape)
        super(Triangular, new).__init__(torch.Size(batch_shape), validate_args=False)
        new._validate_args = self._validate_args
        return new

    @c.dependent_property(is_discrete=False, event_dim=0)
    def support(self):
        return c.interval(0.0, self.scale)

    @d.utils.lazy_property
    def rate(self):
        return 1 / self.scale

    def rsample(self, sample_shape=()):
        return self.scale * torch.rand(self._extended_shape(sample_shape)).sqrt()

    def log_prob(self, value):
        if self._validate_args:
            self._validate_sample(value)
        return (2 * value * self.rate**2).log()


def test_own_distribution():
    scale = torch.tensor([1.0, 2.0], requires_grad=True)
    p = Triangular(scale)
    assert repr(p) == "Triangular(scale: torch.Size([2]))" and p.batch_shape == (2,) and p.event_shape == ()
    assert p.rsample((3,)).requires_grad and not p.sample().requires_grad and p.expand((4, 2)).sample().shape == (4, 2)
    with torch.no_grad():
        assert p.rate.requires_grad and p.rate is p.rate                 # computed once, with history
    whole = d.Independent(p, 1)
    assert whole.log_prob(torch.tensor([0.5, 0.5])).shape == () and whole.support.event_dim == 1
    with pytest.raises(ValueError, match="Triangular: expected a value within the support Interval"):
        whole.log_prob(torch.tensor([1.5, 0.5]))
    with pytest.raises(ValueError, match="expected scale within GreaterThan"):
        Triangular(torch.tensor([1.0, -1.0]))
    with pytest.raises(NotImplementedError, match="Triangular has no entropy"):
        p.entropy()
    moved = d.TransformedDistribution(p, d.AffineTransform(1.0, -2.0))
    assert moved.rsample().shape == (2,) and torch.isfinite(moved.log_prob(torch.tensor([0.0, 0.0]))).all()


def test_classes_derived_from_ours():
    class Unit(d.Normal):
        def __init__(self, loc, validate_args=None):
            super().__init__(loc, 1.0, validate_args)

    class WithExpand(Unit):
        def __init__(self, loc):
            super().__init__(loc)
            self.kept = 3

        def expand(self, batch_shape, _instance=None):
            new = self._get_checked_instance(WithExpand, _instance)
            new.kept = self.kept
            return super().expand(batch_shape, _instance=new)

    with pytest.raises(NotImplementedError, match="expand of its own"):
        Unit(torch.zeros(2)).expand((3, 2))
    wide = WithExpand(torch.zeros(2)).expand((3, 2))
    assert isinstance(wide, WithExpand) and wide.kept == 3 and wide.loc.shape == (3, 2)


def test_what_is_not_defined_is_said():
    class Bare(d.Distribution):
        def log_prob(self, value):
            self._validate_sample(value)
            return value

    with pytest.warns(UserWarning, match="no arg_constraints"):
        p = Bare()
    with pytest.warns(UserWarning, match="no support"):
        p.log_prob(torch.tensor(1.0))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Bare(validate_args=False)
    for name in ("mean", "mode", "variance", "stddev", "support"):
        with pytest.raises(NotImplementedError, match="Bare has no"):
            getattr(p, name)
    for call in (p.rsample, p.sample, p.entropy, p.enumerate_support, lambda: p.cdf(1), lambda: p.icdf(1), lambda: p.expand((2,))):
        with pytest.raises(NotImplementedError, match="Bare has no"):
            call()


def test_switches_and_old_names():
    d.Distribution.set_default_validate_args(False)
    try:
        assert d.Normal(0.0, -1.0).scale.item() == -1
    finally:
        d.Distribution.set_default_validate_args(True)
    with pytest.raises(ValueError):
        d.Distribution.set_default_validate_args("no")
    with pytest.warns(FutureWarning, match="sample_n"):
        assert d.Normal(0.0, 1.0).sample_n(3).shape == (3,)
    assert not d.Uniform(0.0, 1.0, validate_args=False).expand((2,))._validate_args


@pytest.mark.parametrize("make", [
    lambda: d.Normal(torch.zeros(2), 1.0), lambda: d.Gumbel(0.0, torch.ones(2)), lambda: d.Categorical(logits=torch.zeros(3)),
    lambda: d.Independent(d.Beta(torch.ones(2), 2.0), 1), lambda: d.LogisticNormal(torch.zeros(2), 1.0)])
def test_pickled(make):
    p = make()
    q = pickle.loads(pickle.dumps(p))
    assert repr(p) == repr(q)
    value = p.sample()
    assert torch.equal(p.log_prob(value), q.log_prob(value))


WRONG = [
    lambda: d.MultivariateNormal(torch.tensor(0.0), torch.eye(1)), lambda: d.MultivariateNormal(torch.zeros(2)),
    lambda: d.MultivariateNormal(torch.zeros(2), torch.eye(2), scale_tril=torch.eye(2)),
    lambda: d.MultivariateNormal(torch.zeros(2), torch.ones(2)),
    lambda: d.MultivariateNormal(torch.zeros(2), torch.tensor([[1.0, 2.0], [2.0, 1.0]])),
    lambda: d.MultivariateNormal(torch.zeros(2), torch.tensor([[1.0, 0.5], [0.2, 1.0]])),
    lambda: d.MultivariateNormal(torch.zeros(2), scale_tril=torch.tensor([[1.0, 0.5], [0.2, 1.0]])),
    lambda: d.LowRankMultivariateNormal(torch.zeros(2), torch.ones(3, 1), torch.ones(2)),
    lambda: d.LowRankMultivariateNormal(torch.zeros(2), torch.ones(2, 1), torch.ones(3)),
    lambda: d.LowRankMultivariateNormal(torch.zeros(2), torch.ones(4, 2, 1), torch.ones(3, 2)),
    lambda: d.LowRankMultivariateNormal(torch.zeros(2), torch.ones(2, 1), torch.tensor([1.0, -1.0])),
    lambda: d.Dirichlet(torch.tensor(1.0)), lambda: d.Dirichlet(torch.tensor([1.0, 0.0])), lambda: d.Beta(0.0, 1.0),
    lambda: d.Gamma(-1.0, 1.0), lambda: d.Geometric(0.0), lambda: d.Poisson(-1.0), lambda: d.StudentT(0.0),
    lambda: d.Chi2(torch.tensor(-1.0)),
    lambda: d.NegativeBinomial(1.0, 1.0), lambda: d.NegativeBinomial(-1.0, 0.5), lambda: d.Binomial(2.5, torch.tensor(0.5)),
    lambda: d.Binomial(2, 0.5, 0.5),
    lambda: d.ContinuousBernoulli(1.5, validate_args=True), lambda: d.RelaxedBernoulli(torch.tensor(1.0), 1.5),
    lambda: d.RelaxedOneHotCategorical(torch.tensor(1.0), torch.tensor([-1.0, 2.0])), lambda: d.Pareto(1.0, 0.0),
    lambda: d.GeneralizedPareto(0.0, 1.0, -1.0).log_prob(torch.tensor(1.5)), lambda: d.LKJCholesky(1),
    lambda: d.Multinomial(2, torch.tensor([0.5, 0.5])).log_prob(torch.tensor([2.0, 1.0])),
    lambda: d.Dirichlet(torch.ones(3)).log_prob(torch.ones(3)), lambda: d.Dirichlet(torch.ones(3)).log_prob(torch.ones(2)),
    lambda: d.Normal(torch.zeros(2), 1.0).log_prob(torch.zeros(3)), lambda: d.HalfNormal(-1.0),
    lambda: d.HalfNormal(1.0).log_prob(torch.tensor(-1.0)),
    lambda: d.MixtureSameFamily(d.Normal(0.0, 1.0), d.Normal(torch.zeros(2), 1.0)),
    lambda: d.MixtureSameFamily(d.Categorical(torch.ones(3)), d.Normal(torch.zeros(2), 1.0)),
    lambda: d.MixtureSameFamily(d.Categorical(torch.ones(2)), torch.zeros(2)), lambda: d.Wishart(torch.tensor(0.5), torch.eye(2)),
    lambda: d.kl_divergence(d.MultivariateNormal(torch.zeros(2), torch.eye(2)), d.MultivariateNormal(torch.zeros(3), torch.eye(3)))]


@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_parameters(wrong):
    with pytest.raises(ValueError):
        wrong()


def test_what_cannot_be():
    with pytest.raises(NotImplementedError, match="one total_count"):
        d.Binomial(torch.tensor([1.0, 2.0]), torch.tensor(0.5)).entropy()
    with pytest.raises(NotImplementedError, match="one int"):
        d.Multinomial(torch.tensor([1, 2]), torch.ones(2))
    with pytest.raises(AssertionError, match="one of covariance_matrix"):
        d.Wishart(3.0)
    with pytest.raises(NotImplementedError, match="to enumerate"):
        d.Independent(d.Bernoulli(torch.ones(2) / 2), 1).enumerate_support()
    with pytest.raises(NotImplementedError, match="_mean_carrier_measure"):
        d.Poisson(1.0).entropy()
