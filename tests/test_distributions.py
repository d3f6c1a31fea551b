"""tritorch.distributions beside PyTorch's: densities, entropies, divergences, their gradients, samples and errors."""
import numpy as np
import pytest
from distribution_families import FAMILIES
from distribution_families import made as families_made
from oracle import torch as pytorch

import tritorch as torch

A, B, S = np.float32([[0.5, -1.0, 2.0], [1.5, 0.25, -0.5]]), np.float32([[0.1, 0.4, 1.0], [-1.0, 2.0, 0.3]]), np.float32([0.5, 1.0, 2.0])
P, Q = np.float32([[0.2, 0.3, 0.5], [0.9, 0.05, 0.05]]), np.float32([[0.5, 0.25, 0.25], [0.1, 0.1, 0.8]])
PAIRS = {
    "normal": (lambda d, t: d.Normal(t(A), t(S)), lambda d, t: d.Normal(t(B), 2.0), B),
    "laplace": (lambda d, t: d.Laplace(t(A), t(S)), lambda d, t: d.Laplace(t(B), 2.0), B),
    "uniform": (lambda d, t: d.Uniform(t(A), t(A) + t(S)), lambda d, t: d.Uniform(-2.0, t(A) + 3), A + S / 3),
    "exponential": (lambda d, t: d.Exponential(t(S)), lambda d, t: d.Exponential(t(P)), P),
    "bernoulli": (lambda d, t: d.Bernoulli(t(P)), lambda d, t: d.Bernoulli(logits=t(B)), np.float32([[1, 0, 1], [0, 0, 1]])),
    "bernoulli_logits": (lambda d, t: d.Bernoulli(logits=t(A)), lambda d, t: d.Bernoulli(t(Q)), np.float32([[1, 0, 1], [0, 0, 1]])),
    "categorical": (lambda d, t: d.Categorical(t(P * 3)), lambda d, t: d.Categorical(logits=t(B)), np.array([[2, 0], [1, 1], [0, 2]])),
    "categorical_logits": (lambda d, t: d.Categorical(logits=t(A)), lambda d, t: d.Categorical(t(Q)), np.array([2, 0])),
    "one_hot": (lambda d, t: d.OneHotCategorical(t(P)), lambda d, t: d.OneHotCategorical(logits=t(B)), np.float32([[0, 1, 0], [1, 0, 0]])),
    "independent": (lambda d, t: d.Independent(d.Normal(t(A), t(S)), 1), lambda d, t: d.Independent(d.Normal(t(B), 1.0), 1), B),
}


def made(lib, name):
    """(p, q, the value, what p was made of) in one of the two libraries."""
    leaves = []

    def t(x):
        leaves.append(lib.from_numpy(x.copy()).requires_grad_())
        return leaves[-1]

    p, q, value = PAIRS[name]
    return p(lib.distributions, t), q(lib.distributions, t), lib.from_numpy(value), leaves


def numbers(lib, name, what):
    p, q, value, leaves = made(lib, name)
    result = {"log_prob": lambda: p.log_prob(value), "entropy": p.entropy, "kl": lambda: lib.distributions.kl_divergence(p, q),
              "expanded": lambda: p.expand((1, *p.batch_shape)).log_prob(value), "mean": lambda: p.mean, "variance": lambda: p.variance,
              "cdf": lambda: p.cdf(value), "icdf": lambda: p.icdf(lib.from_numpy(P))}[what]()
    if result.requires_grad:
        (result * lib.arange(result.numel()).reshape(result.shape)).sum().backward()
    return result.detach().numpy(), [x.grad.numpy() for x in leaves if x.grad is not None], [tuple(p.batch_shape), tuple(p.event_shape)]


ASKED = [(n, w) for n in PAIRS for w in ("log_prob", "entropy", "kl", "expanded", "mean", "variance", "cdf", "icdf")
         if w not in ("cdf", "icdf") or n in ("normal", "laplace", "uniform", "exponential")]


@pytest.mark.parametrize("name, what", ASKED)
def test_as_pytorch(name, what):
    ours, theirs = numbers(torch, name, what), numbers(pytorch, name, what)
    np.testing.assert_allclose(ours[0], theirs[0], rtol=1e-5, atol=1e-6)
    for a, b in zip(ours[1], theirs[1], strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
    assert ours[2] == theirs[2]


@pytest.mark.parametrize("name", PAIRS)
def test_samples(name, cuda):
    p, _, _, _ = made(torch, name)
    assert repr(p) == repr(made(pytorch, name)[0])
    x = p.sample((4000,))
    assert x.shape == (4000, *p.batch_shape, *p.event_shape) and not x.requires_grad and p.sample().shape == x.shape[1:]
    counted = x if "categorical" not in name else torch.nn.functional.one_hot(x, 3).float()
    mean, variance = (p.mean, p.variance) if "categorical" not in name else (p.probs, p.probs * (1 - p.probs))
    assert ((counted.mean(0) - mean).abs() < 5 * (variance / 4000).sqrt()).all()
    if p.has_rsample:
        y = p.rsample((3,))
        assert y.requires_grad and y.shape == (3, *x.shape[1:])


@pytest.mark.parametrize("name", ["categorical_logits", "normal", "bernoulli"])
def test_on_a_device(cuda, name):
    p, _, value = PAIRS[name]
    here, there = [p(torch.distributions, lambda x, place=place: torch.from_numpy(x).to(place)) for place in ("cpu", cuda)]
    value = torch.from_numpy(value)
    for ours, theirs in ((there.log_prob(value.to(cuda)), here.log_prob(value)), (there.entropy(), here.entropy())):
        np.testing.assert_allclose(ours.cpu().numpy(), theirs.numpy(), rtol=1e-5, atol=1e-6)
    assert there.sample((2,)).device.type == "cuda"


UNLIKE = {                                                               # where PyTorch is wrong, or says more
    "Kumaraswamy": ("mode",), "Multinomial": ("entropy",), "VonMises": ("log_prob", "variance", "stddev"),
    "MixtureSameFamily": ("repr",), "GeneralizedPareto": ("log_prob", "cdf"),
    **dict.fromkeys(("Gamma", "Chi2", "InverseGamma"), ("cdf",))}
ASKED_OF_ALL = ("log_prob", "entropy", "mean", "mode", "variance", "stddev", "cdf", "icdf", "enumerate_support")


@pytest.mark.parametrize("name", FAMILIES)
def test_family_as_pytorch(name):
    unlike = UNLIKE.get(name, ())
    for what in ASKED_OF_ALL:
        if what not in unlike:
            ours, theirs = family_numbers(torch, name, what), family_numbers(pytorch, name, what)
            assert isinstance(ours, type(theirs)), f"{what}: {ours} for {theirs}"
            if not isinstance(theirs, Exception):
                for a, b in zip(ours, theirs, strict=True):
                    assert (a is None) == (b is None), what
                    if b is not None:
                        np.testing.assert_allclose(a, b, rtol=1e-8, atol=1e-10, err_msg=what)
    ours, theirs = families_made(torch, name)[0], families_made(pytorch, name)[0]
    for wide in (lambda d: d, lambda d: d.expand((2, *d.batch_shape))):
        a, b = wide(ours), wide(theirs)
        assert (tuple(a.batch_shape), tuple(a.event_shape)) == (tuple(b.batch_shape), tuple(b.event_shape))
        assert "repr" in unlike or repr(a) == repr(b)
        assert type(a.support).__name__ == type(b.support).__name__ and a.support.event_dim == b.support.event_dim
    assert (ours.has_rsample, ours.has_enumerate_support) == (theirs.has_rsample, theirs.has_enumerate_support)
    assert list(ours.arg_constraints) == list(theirs.arg_constraints)


def family_numbers(lib, name, what):
    """The answer and the gradients by all parameters, or the error."""
    p, parameters, value = families_made(lib, name)
    chances = lib.from_numpy(np.linspace(0.05, 0.95, value.numel()).reshape(value.shape))
    try:
        if what in ("log_prob", "cdf", "icdf"):
            result = getattr(p, what)(chances if what == "icdf" else value)
        else:
            result = getattr(p, what)
            result = result() if callable(result) else result
    except NotImplementedError as error:
        return error
    if not result.requires_grad:
        return [result.numpy()]
    weights = lib.from_numpy(np.cos(np.arange(result.numel())).reshape(result.shape))
    leaves = [x for x in (*parameters, value) if x.requires_grad]
    gradients = lib.autograd.grad((result * weights).sum(), leaves, allow_unused=True)
    return [result.detach().numpy(), *[g if g is None else g.numpy() for g in gradients]]


def test_all_of_pytorchs_names():
    d, theirs = torch.distributions, pytorch.distributions
    assert set(theirs.__all__) - set(d.__all__) == set()
    assert set(theirs.constraints.__all__) - set(dir(d.constraints)) == set()
    ours = {(p.__name__, q.__name__) for p, q in d.kl._formulas}
    assert ours == {(p.__name__, q.__name__) for p, q in theirs.kl._KL_REGISTRY}


def test_a_policy_step_is_captured(cuda):
    torch.manual_seed(0)
    policy = torch.nn.Linear(4, 3, device=cuda)
    optimizer = torch.optim.SGD(policy.parameters(), lr=0.1)

    @torch.compile(fullgraph=True)
    def step(x, action, advantage):
        optimizer.zero_grad()
        d = torch.distributions.Categorical(logits=policy(x))
        loss = -(d.log_prob(action) * advantage).mean() - 0.01 * d.entropy().mean()
        loss.backward()
        optimizer.step()
        return loss

    x, action, advantage = torch.randn(5, 4, device=cuda), torch.tensor([0, 2, 1, 1, 0], device=cuda), torch.ones(5, device=cuda)
    losses = [step(x, action, advantage).item() for _ in range(5)]
    assert losses == sorted(losses, reverse=True) and sum(len(k.recordings) for k in step.kinds.values()) == 1


WRONG = [lambda d: d.Normal(0.0, -1.0), lambda d: d.Categorical(), lambda d: d.Categorical(torch.ones(2), torch.ones(2)),
         lambda d: d.Categorical(torch.tensor([-1.0, 2.0])), lambda d: d.Categorical(torch.tensor(1.0)), lambda d: d.Bernoulli(1.5),
         lambda d: d.Uniform(1.0, 0.0), lambda d: d.Categorical(torch.ones(2)).log_prob(torch.tensor(2)), lambda d: d.Exponential(0.0),
         lambda d: d.Independent(d.Normal(0.0, 1.0), 1), lambda d: d.Bernoulli(0.5).log_prob(torch.tensor(2.0))]


@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_parameters(wrong):
    with pytest.raises(ValueError):
        wrong(torch.distributions)


def test_no_formula_and_no_checks():
    d = torch.distributions
    assert d.Normal(0.0, -1.0, validate_args=False).scale.item() == -1.0
    with pytest.raises(NotImplementedError, match="register_kl"):
        d.kl_divergence(d.Normal(0.0, 1.0), d.Cauchy(0.0, 1.0))
    with pytest.raises(NotImplementedError, match="rsample"):
        d.Categorical(torch.ones(2)).rsample()
    assert d.Categorical(torch.ones(4)).enumerate_support().tolist() == [0, 1, 2, 3] and d.Bernoulli(0.5).enumerate_support().shape == (2,)
