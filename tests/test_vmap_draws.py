"""Random numbers inside of vmap: errors, the same for all samples, or others for each, in one call."""
import numpy as np
import pytest
from both import both

import tritorch as torch

F, D, vmap, SIZE = torch.nn.functional, torch.distributions, torch.func.vmap, 4
X = torch.tensor(np.random.default_rng(3).random((SIZE, 3, 50)))
CHANCES, COLUMN = X[0] * 1, torch.arange(SIZE).double()
PROGRAMS = {
    "rand": lambda x: torch.rand(9) + x.sum() * 0, "rand alone": lambda x: torch.randn(3, 2), "rand_like": torch.rand_like,
    "rand_like across": lambda x: torch.randn_like(x.t()), "complex": lambda x: torch.randn(9, dtype=torch.complex64),
    "randint": lambda x: torch.randint(0, 999, (9,)), "randint_like": lambda x: torch.randint_like(x, 999),
    "randperm": lambda x: torch.randperm(30), "dropout": F.dropout, "dropout across": lambda x: F.dropout(x.t(), 0.3),
    "dropout in place": lambda x: F.dropout(x * 1, inplace=True), "dropout of one": lambda x: F.dropout(CHANCES),
    "dropout of halves": lambda x: F.dropout(x.half(), 0.3), "number": lambda x: F.dropout(x[0, 0], 0.5),
    "dropout1d": lambda x: F.dropout1d(x.t(), 0.5), "alpha_dropout": lambda x: F.alpha_dropout(x, 0.4, True),
    "feature_alpha_dropout": lambda x: F.feature_alpha_dropout(x.t(), 0.4, True), "rrelu": lambda x: F.rrelu(x - 1, training=True),
    "gumbel_softmax": F.gumbel_softmax, "bernoulli": torch.bernoulli, "bernoulli p": lambda x: torch.bernoulli(x, 0.3),
    "bernoulli of one": lambda x: torch.bernoulli(CHANCES), "bernoulli_": lambda x: (x * 1).bernoulli_(0.3),
    "bernoulli_ tensor": lambda x: torch.zeros(3, 50).bernoulli_(x), "float chances": lambda x: torch.bernoulli(x.float()),
    "uniform_": lambda x: (x * 1).uniform_(2, 3), "uniform_ of one": lambda x: torch.zeros(9).uniform_(),
    "normal_": lambda x: (x * 1).normal_(), "exponential_": lambda x: (x * 1).exponential_(),
    "geometric_": lambda x: (x * 1).geometric_(0.2), "random_": lambda x: (x * 1).random_(999), "normal": lambda x: torch.normal(x, x),
    "normal of halves": lambda x: torch.normal(x.half(), 1.0), "normal of one": lambda x: torch.normal(0.0, CHANCES),
    "normal mixed": lambda x: torch.normal(CHANCES, x), "multinomial": lambda x: torch.multinomial(x, 9),
    "poisson": lambda x: torch.poisson(x * 9), "multinomial again": lambda x: torch.multinomial(x, 9, True),
    "multinomial of one": lambda x: torch.multinomial(CHANCES, 9), "multinomial one": lambda x: torch.multinomial(x.repeat(5, 1), 1),
    "binomial": lambda x: torch.binomial(x * 30, x), "poisson of one": lambda x: torch.poisson(CHANCES * 9),
    "normal distribution": lambda x: D.Normal(x, x + 1).rsample(), "categorical": lambda x: D.Categorical(x).sample((3,)),
    "exponential": lambda x: D.Exponential(x).rsample(), "geometric": lambda x: D.Geometric(x).sample(),
    "von Mises": lambda x: D.VonMises(x, x + 1).sample(), "gamma distribution": lambda x: D.Gamma(x, x + 1).rsample(),
    "gamma": lambda x: torch._standard_gamma(x), "dirichlet": lambda x: torch._sample_dirichlet(x),
    "places": lambda x: x[:, torch.randperm(50)], "gradient": torch.func.grad(lambda x: (F.dropout(x) * x).sum()),
    "hessian": lambda x: torch.func.jacfwd(torch.func.jacrev(lambda v: (F.dropout(v) ** 3).sum()), randomness="same")(x[0, :5]),
}
REJECTION = {"poisson", "binomial", "gamma", "dirichlet", "gamma distribution"}


def run(program, randomness, x=X, dims=0):
    """(numbers of all samples, how often it was called)"""
    calls = []

    def counted(*args):
        calls.append(args)
        return program(*args)

    torch.manual_seed(5)
    return vmap(counted, dims, randomness=randomness)(x), len(calls)


@pytest.mark.parametrize("name", PROGRAMS)
def test_numbers_of_samples(name):
    program = PROGRAMS[name]
    with pytest.raises(RuntimeError, match="random"):
        run(program, "error")
    made, calls = run(program, "same")
    want = []
    for x in X:                                                          # each finds the generator where the first did
        torch.manual_seed(5)
        want.append(program(x))
    assert calls == 1
    torch.testing.assert_close(made, torch.stack(want), rtol=1e-3 if made.dtype is torch.float16 else None, atol=1e-3 if made.dtype
                               is torch.float16 else None)
    made, calls = run(program, "different", X[:1].expand(SIZE, 3, 50))
    assert calls == 1 and made.dtype is want[0].dtype and made.shape == (SIZE, *want[0].shape)
    if made[0].numel() > 5:
        assert len({tuple(row.reshape(-1).tolist()) for row in made}) == SIZE, "samples with the same numbers"
    torch.testing.assert_close(made, run(program, "different", X[:1].expand(SIZE, 3, 50))[0])


class Counter(torch.dispatch.Interpreter):
    calls = 0

    def __call__(self, op, args, out):
        self.calls += 1
        return self.proceed(op, args, out)


@pytest.mark.parametrize("name", [name for name in PROGRAMS if name != "von Mises"])       # which takes as many rounds as its numbers want
def test_no_loop(name):
    """More samples are no more calls of operators, but for numbers by rejection that all start at the same place."""
    for randomness in ("different", *(("same",) if name not in REJECTION else ())):
        found = []
        for size in (2, 4):
            with Counter() as counter:
                run(PROGRAMS[name], randomness, X[:size])
            found.append(counter.calls)
        assert found[0] == found[1], (randomness, found)


@pytest.mark.parametrize("name", ["dropout", "dropout across", "rand", "bernoulli", "normal mixed", "gradient", "multinomial one"])
def test_samples_of_samples(name):
    """Each level says whether its samples share numbers."""
    program, many = PROGRAMS[name], X[:1].unsqueeze(1).expand(2, 3, 3, 50)
    for outer in ("same", "different"):
        for inner in ("same", "different"):
            torch.manual_seed(5)
            made = vmap(vmap(program, randomness=inner), randomness=outer)(many).flatten(2)
            apart = {tuple(row.tolist()) for rows in made for row in rows}
            assert len(apart) == (2 if outer == "different" else 1) * (3 if inner == "different" else 1), (outer, inner)


def test_masks_of_dropout_are_those_of_its_gradient():
    for randomness in ("same", "different"):
        x = X.clone().requires_grad_()
        torch.manual_seed(7)
        y = vmap(F.dropout, randomness=randomness)(x)
        y.sum().backward()
        torch.testing.assert_close(x.grad, (y != 0).double() * 2)        # the graph around
        (pulled,) = vmap(lambda v: torch.func.vjp(F.dropout, v)[1](torch.ones(3, 50).double()), randomness=randomness)(X)
        assert set(pulled.unique().tolist()) == {0.0, 2.0}
        inside = vmap(torch.func.grad(lambda v: (F.dropout(v.t(), 0.25) ** 2).sum()), randomness=randomness)(X)
        assert set((inside / X).unique().float().tolist()) <= {0.0, float(np.float32(2 / 0.75 ** 2))}
        assert (inside == 0).double().mean() > 0.1
        shared = vmap(torch.func.grad(lambda w, v: (F.dropout(w) * v).sum()), (None, 0), randomness=randomness)(CHANCES, X)
        same = all(torch.equal(row == 0, shared[0] == 0) for row in shared)
        assert same == (randomness == "same")
        assert bool(((shared == 0) | (shared == 2 * X)).all())


@pytest.mark.parametrize("randomness", ["error", "same", "different"])
def test_numbers_drawn_outside_are_the_same_for_all(randomness):
    """The gradient of one dropout for several gradients of its result: its mask was drawn before."""
    torch.manual_seed(1)
    y, pull = torch.func.vjp(F.dropout, CHANCES)
    g = torch.randn(SIZE, 3, 50, dtype=torch.float64)
    made, = vmap(pull, randomness=randomness)(g)
    torch.testing.assert_close(made, g * (y != 0) * 2)
    torch.manual_seed(1)
    jacobian = torch.func.jacrev(F.dropout)(X[0, 0])
    torch.manual_seed(1)
    torch.testing.assert_close(jacobian, torch.diag((F.dropout(X[0, 0]) != 0).double() * 2))


def test_chances_are_checked():
    for randomness in ("same", "different"):
        with pytest.raises(RuntimeError, match="probabilities from 0 to 1"):
            vmap(torch.bernoulli, randomness=randomness)(X + 1)
        with pytest.raises(RuntimeError, match="std"):
            vmap(lambda x: torch.normal(x, -x), randomness=randomness)(X)
        with pytest.raises(RuntimeError, match="probabilities"):
            vmap(lambda x: torch.multinomial(x, 2), randomness=randomness)(-X)


def test_gradients_of_parameters_are_zero():
    for program in (torch.bernoulli, lambda x: torch.normal(x, x), torch.poisson):
        for randomness in ("same", "different"):
            x = X.clone().requires_grad_()
            vmap(program, randomness=randomness)(x).sum().backward()
            assert not x.grad.any()


def test_few_samples():
    for randomness in ("same", "different"):
        for program in (F.dropout, torch.bernoulli, torch.rand_like, lambda x: torch.randn(3), lambda x: torch.normal(CHANCES, x)):
            assert vmap(program, randomness=randomness)(X[:0]).shape[0] == 0
            torch.manual_seed(3)
            made = vmap(program, randomness=randomness)(X[:1])
            torch.manual_seed(3)
            torch.testing.assert_close(made[0], program(X[0]))


@pytest.mark.parametrize("program", [F.dropout, lambda x: F.dropout(x) if x.sum() > 0 else x])
def test_chunks(program):
    """All have the same numbers, others than those of what is drawn later, or all different ones; also sample after sample."""
    for randomness in ("same", "different"):
        torch.manual_seed(3)
        made = vmap(program, randomness=randomness, chunk_size=2)(X[:3])
        later = F.dropout(X[0])
        masks = {tuple((row == 0).reshape(-1).tolist()) for row in (*made, later)}
        assert len(masks) == (2 if randomness == "same" else 4)


@both
def test_as_pytorch(torch):
    """Which calls raise, and what samples have in common."""
    F, vmap = torch.nn.functional, torch.func.vmap
    x = torch.arange(1.0, 61.0).reshape(2, 30).expand(2, 30) / 100
    one = x[0]
    programs = [
        lambda v: torch.rand(30) + v * 0, lambda v: F.dropout(v), lambda v: F.dropout(one) + v * 0, lambda v: F.dropout(v, 0.5, False),
        lambda v: F.alpha_dropout(v, 0.5, True), lambda v: F.gumbel_softmax(v), lambda v: torch.bernoulli(one) + v * 0,
        lambda v: v.clone().uniform_(), lambda v: torch.rand_like(v), lambda v: torch.randperm(30) + v * 0,
        lambda v: torch.normal(one, one) + v * 0, lambda v: torch.multinomial(one, 20) + v[:20] * 0,
        torch.func.grad(lambda v: (F.dropout(v) * v).sum())]
    found = []
    for program in programs:
        for randomness in ("error", "same", "different"):
            try:
                a, b = vmap(program, randomness=randomness)(x)
            except RuntimeError:
                found.append("raises")
                continue
            found.append([tuple(a.shape), bool(torch.equal(a, b))])
    return found
