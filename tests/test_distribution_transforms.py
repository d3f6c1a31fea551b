"""Transforms: inverses, log determinants beside numeric Jacobians, shapes, caches; constraints, and the transforms that lead into them."""
import copy
import gc
import pickle
import weakref

import numpy as np
import pytest

import tritorch as torch

d = torch.distributions
c = d.constraints


def real(*shape, seed=0):
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape))


SCALES = torch.tensor([1.0, -2.0, 0.3], dtype=torch.float64)
TRANSFORMS = {                                                           # how to make it, an input, the shape of its log |det|
    "exp": (lambda **k: d.ExpTransform(**k), real(4, 3), (4, 3)),
    "power": (lambda **k: d.PowerTransform(SCALES, **k), real(4, 3).abs(), (4, 3)),
    "sigmoid": (lambda **k: d.SigmoidTransform(**k), real(4, 3), (4, 3)),
    "tanh": (lambda **k: d.TanhTransform(**k), real(4, 3), (4, 3)),
    "softplus": (lambda **k: d.SoftplusTransform(**k), real(4, 3), (4, 3)),
    "affine": (lambda **k: d.AffineTransform(1.0, -2.0, **k), real(4, 3), (4, 3)),
    "affine events": (lambda **k: d.AffineTransform(real(3), SCALES, event_dim=1, **k), real(4, 3), (4,)),
    "affine by one number": (lambda **k: d.AffineTransform(0, SCALES[1], event_dim=1, **k), real(4, 3), (4,)),
    "stick breaking": (lambda **k: d.StickBreakingTransform(**k), real(4, 3), (4,)),
    "correlations": (lambda **k: d.CorrCholeskyTransform(**k), real(4, 6), (4,)),
    "cdf": (lambda **k: d.CumulativeDistributionTransform(d.Gumbel(SCALES, 2.0), **k), real(4, 3), (4, 3)),
    "reshape": (lambda **k: d.ReshapeTransform((3, 4), (2, 6), **k), real(5, 3, 4), (5,)),
    "compose": (lambda **k: d.ComposeTransform([d.AffineTransform(1.0, 2.0), d.ExpTransform(), d.PowerTransform(0.5)], **k),
                real(4, 3), (4, 3)),
    "compose events": (lambda **k: d.ComposeTransform([d.TanhTransform(), d.AffineTransform(0.5, 2.0), d.StickBreakingTransform()], **k),
                       real(4, 3), (4,)),
    "compose nothing": (lambda **k: d.ComposeTransform([], **k), real(4, 3), (4, 3)),
    "independent": (lambda **k: d.IndependentTransform(d.TanhTransform(), 1, **k), real(4, 3), (4,)),
    "cat": (lambda **k: d.CatTransform([d.ExpTransform(), d.AffineTransform(1.0, 2.0)], -1, [1, 2], **k), real(4, 3), (4, 3)),
    "cat of events": (lambda **k: d.CatTransform([d.IndependentTransform(d.ExpTransform(), 1), d.AffineTransform(1.0, 2.0)], -1, [1, 2],
                                                 **k), real(4, 3), (4,)),
    "stack": (lambda **k: d.StackTransform([d.ExpTransform(), d.AffineTransform(1.0, 2.0), d.TanhTransform()], 1, **k), real(4, 3), (4, 3)),
}


def log_det(t, x, dims):
    """log |det dy/dx| of one event, whose y has one number of more where it lies on a simplex, or a triangle of numbers."""
    rows = torch.autograd.functional.jacobian(lambda x: t(x).reshape(-1), x).reshape(-1, x.numel()).numpy()
    if "CorrCholesky" in repr(t):
        rows = rows[np.tril(np.ones((4, 4)), -1).reshape(-1) > 0]
    return np.linalg.slogdet(rows[:x.numel()])[1] if dims else np.log(np.abs(rows)).item()


@pytest.mark.parametrize("name", TRANSFORMS)
def test_transform(name):
    make, x, shape = TRANSFORMS[name]
    t = make()
    y = t(x)
    np.testing.assert_allclose(t.inv(y).numpy(), x.numpy(), rtol=1e-8, atol=1e-10)
    assert t.bijective and t.inv.inv is t and t.inv == t.inv and t == t and t != d.AbsTransform()
    assert t.forward_shape(x.shape) == y.shape and t.inverse_shape(y.shape) == x.shape
    if name != "cat of events":                                          # the parts of its constraint have answers of different shapes
        assert bool(t.domain.check(x).all()) and bool(t.codomain.check(y).all())
    found = t.log_abs_det_jacobian(x, y)
    assert found.shape == shape
    np.testing.assert_allclose(t.inv.log_abs_det_jacobian(y, x).numpy(), -found.numpy(), rtol=1e-12)
    dims = t.domain.event_dim
    if "cat" not in name and name not in ("stack", "power", "cdf"):      # in those an element's place decides what becomes of it
        events, dets = x.reshape(-1, *x.shape[x.ndim - dims:]), found.reshape(-1)
        for k in (0, len(events) - 1):
            np.testing.assert_allclose(dets[k].item(), log_det(t, events[k], dims), rtol=1e-8, atol=1e-12)
    else:
        whole = torch.autograd.functional.jacobian(lambda x: t(x), x).reshape(x.numel(), -1).numpy()
        np.testing.assert_allclose(found.sum().item(), np.linalg.slogdet(whole)[1], rtol=1e-8)


@pytest.mark.parametrize("name", TRANSFORMS)
def test_cache_and_copies(name):
    make, x, _ = TRANSFORMS[name]
    t = make(cache_size=1)
    y = t(x)
    assert t(x) is y and t.inv(y) is x and t.inv._cache_size == (0 if "compose" in name else 1)
    assert t.with_cache(1) is t and make().with_cache(1)._cache_size == 1 and make().inv.with_cache(0)._cache_size == 0
    for other in (pickle.loads(pickle.dumps(make())), copy.deepcopy(make())):
        np.testing.assert_array_equal(other(x).numpy(), y.numpy())
        np.testing.assert_allclose(pickle.loads(pickle.dumps(other.inv))(y).numpy(), x.numpy(), rtol=1e-8, atol=1e-10)


def test_no_cycles():
    gc.disable()
    try:
        for make, x, _ in TRANSFORMS.values():
            t = make()
            t.inv(t(x))
            inverse, gone = t.inv, weakref.ref(t)
            del t
            assert inverse.inv is gone()
            del inverse
            assert gone() is None
    finally:
        gc.enable()


def test_functions_without_an_inverse():
    x = real(4, 3)
    np.testing.assert_allclose(d.SoftmaxTransform()(x).numpy(), x.softmax(-1).numpy())
    assert not d.SoftmaxTransform().bijective and (d.AbsTransform()(x) == x.abs()).all()
    matrix = real(2, 3, 3)
    lower = d.LowerCholeskyTransform()
    assert bool(c.lower_cholesky.check(lower(matrix)).all())
    np.testing.assert_allclose(lower.inv(lower(matrix)).numpy(), matrix.tril().numpy(), rtol=1e-12)


@pytest.mark.parametrize("wrong, error", [
    (lambda: d.ExpTransform(cache_size=2), ValueError), (lambda: d.ReshapeTransform((2, 3), (5,)), ValueError),
    (lambda: d.StickBreakingTransform().forward_shape(()), ValueError), (lambda: d.CorrCholeskyTransform().forward_shape((5,)), ValueError),
    (lambda: d.CorrCholeskyTransform().inverse_shape((3, 2)), ValueError), (lambda: d.CorrCholeskyTransform()(real(4)), ValueError),
    (lambda: d.ReshapeTransform((2,), (2, 1)).forward_shape((3, 4)), ValueError), (lambda: d.CorrCholeskyTransform().event_dim, ValueError),
    (lambda: d.IndependentTransform(d.ExpTransform(), 2)(real(3)), ValueError), (lambda: d.CatTransform([1]), AssertionError),
    (lambda: d.CatTransform([d.ExpTransform()], 0, [1, 2]), AssertionError),
    (lambda: d.StackTransform([d.ExpTransform()])(real(2)), AssertionError),
    (lambda: d.AbsTransform().log_abs_det_jacobian(real(2), real(2)), NotImplementedError),
    (lambda: d.Transform().sign, NotImplementedError),
    (lambda: d.TransformedDistribution(d.Normal(0.0, 1.0), d.StickBreakingTransform()), ValueError),
    (lambda: d.TransformedDistribution(d.Normal(0.0, 1.0), [1]), ValueError), (lambda: d.biject_to(c.boolean), NotImplementedError),
    (lambda: d.constraint_registry.ConstraintRegistry().register(3, None)(abs), TypeError), (lambda: c.dependent.check(1), ValueError),
    (lambda: c.dependent.event_dim, NotImplementedError), (lambda: c.cat([c.real], 0, [1, 1]), AssertionError),
    (lambda: c.independent(c.real, 1).check(torch.tensor(0.0)), ValueError), (lambda: c.stack([3]), AssertionError)])
def test_wrong_use(wrong, error):
    with pytest.raises(error):
        wrong()


def test_own_transform():
    class Doubled(d.Transform):
        domain = codomain = c.real
        bijective = True
        calls = 0

        def _call(self, x):
            self.calls += 1
            return 2 * x

        def _inverse(self, y):
            return y / 2

        def log_abs_det_jacobian(self, x, y):
            return torch.full_like(x, 2.0).log()

    t = Doubled().with_cache()
    p = d.TransformedDistribution(d.Normal(torch.zeros(3), 1.0), [t])
    x = p.rsample()
    p.log_prob(x)
    assert t.calls == 1 and torch.allclose(p.log_prob(x), d.Normal(torch.zeros(3), 2.0).log_prob(x))


CASES = [                                                                # constraint, what is inside, what is not, an input of transform_to
    (c.positive, [0.5, 1e-9], [0.0, -1.0, float("nan")], real(3)), (c.nonnegative, [0.0, 2.0], [-1.0], real(3)),
    (c.greater_than(2.0), [2.5], [2.0], real(3)), (c.less_than(1.0), [0.0], [1.0], real(3)), (c.unit_interval, [0.0, 1.0], [1.1], real(3)),
    (c.interval(-1.0, 3.0), [-1.0, 3.0], [3.1], real(3)), (c.half_open_interval(0.0, 1.0), [0.0], [1.0], real(3)),
    (c.real, [1.0], [float("nan")], real(3)), (c.simplex, [[0.5, 0.5]], [[0.5, 0.6], [1.5, -0.5]], real(2, 3)),
    (c.lower_cholesky, [[[1.0, 0.0], [2.0, 3.0]]], [[[1.0, 1.0], [0.0, 1.0]], [[1.0, 0.0], [0.0, -1.0]]], real(2, 3, 3)),
    (c.corr_cholesky, [[[1.0, 0.0], [0.6, 0.8]]], [[[1.0, 0.0], [0.6, 0.7]]], real(2, 3)), (c.boolean, [0.0, 1.0], [0.5], None),
    (c.nonnegative_integer, [0.0, 3.0], [0.5, -1.0], None), (c.integer_interval(1, 3), [1.0, 3.0], [0.0, 1.5], None),
    (c.one_hot, [[0.0, 1.0]], [[1.0, 1.0], [0.5, 0.5]], None), (c.multinomial(3), [[1.0, 2.0]], [[2.0, 2.0], [-1.0, 0.0]], None),
    (c.lower_triangular, [[[1.0, 0.0], [2.0, -3.0]]], [[[1.0, 1.0], [0.0, 1.0]]], None), (c.symmetric, [[[1.0, 2.0], [2.0, 1.0]]], [
        [[1.0, 2.0], [0.0, 1.0]]], None),
    (c.positive_definite, [[[2.0, 1.0], [1.0, 2.0]]], [[[1.0, 2.0], [2.0, 1.0]], [[2.0, 1.0], [0.0, 2.0]]], real(2, 3, 3)),
    (c.positive_semidefinite, [[[2.0, 0.0], [0.0, 0.0]]], [[[1.0, 2.0], [2.0, 1.0]], [[2.0, 1.0], [0.0, 2.0]]], real(2, 3, 3)),
    (c.square, [[[2.0, 0.0], [0.0, 0.0]]], [[[2.0, 0.0]]], None), (c.independent(c.positive, 1), [[1.0, 2.0]], [[1.0, -1.0]], real(2, 3)),
    (c.cat([c.positive, c.real], -1, [1, 1]), [1.0, -1.0], None, real(4, 2)),
    (c.stack([c.positive, c.unit_interval], -1), [1.0, 0.5], None, real(4, 2))]


@pytest.mark.parametrize("constraint, inside, outside, free", CASES, ids=lambda x: repr(x) if isinstance(x, c.Constraint) else "")
def test_constraint(constraint, inside, outside, free):
    assert bool(constraint.check(torch.tensor(inside)).all())
    assert outside is None or not bool(constraint.check(torch.tensor(outside)).any())
    if free is None:
        return
    for registry in (d.transform_to, d.biject_to):
        if constraint.event_dim < 2 or constraint is c.corr_cholesky or registry is d.transform_to:
            t = registry(constraint)
            y = t(free)
            assert bool(constraint.check(y).all()) and (t.bijective or registry is d.transform_to)
            np.testing.assert_allclose(t(t.inv(y)).numpy(), y.numpy(), rtol=1e-9, atol=1e-12)


def test_own_constraint():
    class Even(c.Constraint):
        def check(self, value):
            return value % 2 == 0

    d.transform_to.register(Even)(lambda constraint: d.AffineTransform(0, 2))
    try:
        assert repr(d.transform_to(Even())) == "AffineTransform()" and c.is_dependent(d.Uniform.support)
    finally:
        del d.transform_to._registry[Even]
