"""Orthogonal weights: they stay so while they train, begin at what was assigned, and come out as PyTorch's."""
import itertools

import numpy as np
import pytest

import tritorch

MAPS = "matrix_exp", "cayley", "householder"
SHAPES = [(4, 4), (5, 3), (3, 5), (2, 4, 3), (1, 3), (3, 1), (2, 3, 3)]


def module(torch, shape, is_complex=False, seed=0):
    draw = np.random.default_rng(seed).standard_normal((2, *shape))
    net = torch.nn.Module()
    net.weight = torch.nn.Parameter(torch.from_numpy(draw[0] + 1j * draw[1] if is_complex else draw[0]))
    return net


def distance(Q):
    """How far a matrix is from an orthogonal one."""
    Q = Q.detach().numpy()
    Q = Q if Q.shape[-2] >= Q.shape[-1] else Q.swapaxes(-1, -2)
    return np.abs(Q.conj().swapaxes(-1, -2) @ Q - np.eye(Q.shape[-1])).max(initial=0)


def trained(torch, net, seed=1, steps=3):
    """The weights and gradients of a few steps."""
    factors = torch.from_numpy(np.random.default_rng(seed).standard_normal(net.weight.shape))
    optimizer, seen = torch.optim.SGD(net.parameters(), lr=0.1), [net.weight.detach().numpy()]
    for _ in range(steps):
        optimizer.zero_grad()
        ((net.weight * factors).abs() ** 3).sum().backward()
        optimizer.step()
        seen += [net.parametrizations.weight.original.grad.numpy(), net.weight.detach().numpy()]
    return seen


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name, trivial", [*itertools.product(MAPS, (True, False)), (None, True)])
def test_weights_stay_orthogonal(shape, name, trivial):
    net = tritorch.nn.utils.parametrizations.orthogonal(module(tritorch, shape), "weight", name, use_trivialization=trivial)
    for Q in trained(tritorch, net)[::2]:
        assert Q.shape == shape and distance(tritorch.from_numpy(Q)) < 1e-12
    assert ("parametrizations.weight.0.base" in net.state_dict()) == trivial


@pytest.mark.parametrize("shape", [(0, 0), (3, 0), (0, 2, 2)], ids=str)
def test_weights_of_nothing(shape):
    for name in MAPS:
        assert tritorch.nn.utils.parametrizations.orthogonal(module(tritorch, shape), "weight", name).weight.shape == shape


@pytest.mark.parametrize("shape", [(4, 4), (5, 3), (3, 5), (2, 4, 3)], ids=str)
def test_what_is_assigned_comes_back(shape):
    """A matrix that is orthogonal as it is, another one made so; no reflection where LAPACK makes none."""
    rng = np.random.default_rng(3)
    for name, trivial in [*itertools.product(MAPS, (True,)), ("householder", False)]:
        net = tritorch.nn.utils.parametrizations.orthogonal(module(tritorch, shape), "weight", name, use_trivialization=trivial)
        tall = rng.standard_normal(shape) if shape[-2] >= shape[-1] else rng.standard_normal(shape).T
        Q = np.linalg.qr(tall)[0]
        Q = Q if Q.shape == shape else Q.T.copy()
        for signs in 1.0, -1.0:
            net.weight = tritorch.from_numpy(signs * Q)
            np.testing.assert_allclose(net.weight.detach().numpy(), signs * Q, atol=1e-12)
        net.weight = tritorch.from_numpy(rng.standard_normal(shape))
        assert distance(net.weight) < 1e-12


@pytest.mark.parametrize("shape, name, is_complex", [*itertools.product([(4, 4), (5, 3), (3, 5), (2, 4, 3)], MAPS, (False,)),
                                                     ((3, 3), None, True), ((4, 2), "cayley", True)])
def test_training_as_in_pytorch(shape, name, is_complex):
    """Of matrices that are not square the base holds random columns, which only the start does not see."""
    pytorch = pytest.importorskip("torch")
    for trivial in (True, False):
        ours, theirs = (trained(torch, torch.nn.utils.parametrizations.orthogonal(module(torch, shape, is_complex), "weight", name,
                                                                                use_trivialization=trivial))
                        for torch in (tritorch, pytorch))
        for mine, other in zip(ours, theirs) if shape[-1] == shape[-2] or not trivial else [(ours[0], theirs[0])]:
            np.testing.assert_allclose(mine, other, atol=1e-9)


def test_on_the_gpu(cuda):
    for name in MAPS:
        net = module(tritorch, (5, 3)).float().to(cuda)
        tritorch.nn.utils.parametrizations.orthogonal(net, "weight", name)
        net.weight.sum().backward()
        assert distance(net.weight.cpu()) < 1e-5 and net.parametrizations.weight.original.grad.abs().sum() > 0


def test_refusals():
    orthogonal = tritorch.nn.utils.parametrizations.orthogonal
    for call, text in [(lambda: orthogonal(module(tritorch, (3,))), "a weight of 1 dims"),
                       (lambda: orthogonal(module(tritorch, (3, 3)), "bias"), "got 'bias'"),
                       (lambda: orthogonal(module(tritorch, (3, 3)), "weight", "exp"), "'matrix_exp', 'cayley', 'householder', got 'exp'"),
                       (lambda: orthogonal(module(tritorch, (3, 3), True), orthogonal_map="householder"), "a real weight")]:
        with pytest.raises(ValueError, match=text):
            call()
    net = orthogonal(module(tritorch, (3, 3)), orthogonal_map="cayley", use_trivialization=False)
    before = net.weight.detach().numpy()
    with pytest.raises(NotImplementedError, match="use_trivialization=True"):
        net.weight = tritorch.eye(3, dtype=tritorch.float64)
    with pytest.raises(ValueError, match=r"of shape \(3, 3\), got \(2, 2\)"):
        orthogonal(module(tritorch, (3, 3))).weight = tritorch.eye(2, dtype=tritorch.float64)
    np.testing.assert_array_equal(net.weight.detach().numpy(), before)
