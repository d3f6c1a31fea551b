"""vmap over products and linear algebra: what a loop over the samples gives, from one call of each operator."""
import numpy as np
import pytest
from batched_calls import Log, check, choices, draw, layouts, looped, of_choice

import tritorch as torch
from tritorch.dispatch import registry
from tritorch.func import grad, vjp, vmap
from tritorch.nn import functional as F


# ------------------------------------------------------------------ products
@pytest.mark.parametrize("dims", choices(2))
@pytest.mark.parametrize("a, b", [((4, 5), (5, 3)), ((2, 4, 5), (5, 3)), ((4, 5), (2, 5, 3)), ((5,), (5, 3)), ((4, 5), (5,)), ((5,), (5,)),
                                  ((1, 5), (5, 1)), ((4, 1), (1, 3)), ((3, 1, 4, 5), (2, 5, 3))])
def test_matmul(dims, a, b):
    x, y = of_choice(dims, [draw(7, *a), draw(7, *b, seed=1)])
    check(torch.matmul, dims, x, y)
    check(lambda x, y: vjp(torch.matmul, x, y)[1](torch.ones(torch.matmul(x, y).shape, dtype=x.dtype)), dims, x, y)


def test_matmul_layouts():
    x, y = draw(7, 4, 5), draw(7, 5, 3)
    for (a, d), (b, e) in zip(layouts(x), reversed(list(layouts(y)))):
        check(torch.matmul, (d, e), a, b, once=["matmul"])
        check(torch.matmul, (d, None), a, y[0], once=["matmul"])
        check(torch.matmul, (None, e), x[0], b, once=["matmul"])


def test_matmul_wide():
    """Many vectors through one matrix are one product of matrices."""
    w, x = draw(3, 4), draw(6, 4)
    made = vmap(lambda v: w @ v)(x)
    np.testing.assert_allclose(made.numpy(), x.numpy() @ w.numpy().T)
    with Log() as log:
        check(lambda v: w @ v, (0,), x)
    assert log.calls["matmul"] == 6 + 1


@pytest.mark.parametrize("dims", choices(3))
@pytest.mark.parametrize("shape", [(5,), (4, 5), (4, 1), ()])
def test_addmm(dims, shape):
    tensors = of_choice(dims, [draw(3, *shape), draw(3, 4, 2), draw(3, 2, 5)])
    for beta, alpha in ((1, 1), (0.5, -2.0), (0, 1)):
        check(lambda c, a, b, beta=beta, alpha=alpha: torch.addmm(c, a, b, beta=beta, alpha=alpha), dims, *tensors, once=["addmm"])
    check(lambda c, a, b: torch.baddbmm(c, a.unsqueeze(0), b.unsqueeze(0)), dims, *tensors)


@pytest.mark.parametrize("dims", choices(3))
@pytest.mark.parametrize("lead", [(), (4,), (2, 4), (0,)])
def test_linear(dims, lead):
    x, w, b = of_choice(dims, [draw(6, *lead, 3), draw(6, 5, 3), draw(6, 5)])
    check(F.linear, dims, x, w, b)

    def gradients(x, w, b):
        made, pull = vjp(lambda *v: F.linear(*v).sin(), x, w, b)
        return pull(made)

    check(gradients, dims, x, w, b)
    check(lambda x, w, b: F.linear_dropout_add(x, w, b, torch.cos(F.linear(x, w)), training=False), dims, x, w, b)


def test_linear_layouts():
    x, w = draw(6, 4, 3), draw(6, 5, 3)
    for (a, d), (b, e) in zip(layouts(x), reversed(list(layouts(w)))):
        check(F.linear, (d, e), a, b)
        check(F.linear, (None, e), x[0], b, once=["matmul"])
        check(F.linear, (d, None), a, w[0], once=["linear"])


@pytest.mark.parametrize("dims", choices(5))
def test_feed_forward(dims):
    tensors = of_choice(dims, [draw(3, 2, 4), draw(3, 5, 4), draw(3, 5), draw(3, 2, 5), draw(3, 2)])

    def gradients(*values):
        made, pull = vjp(lambda *v: F.feed_forward(*v, "gelu_tanh"), *values)
        return made, pull(made)

    check(gradients, dims, *tensors, once=["feed_forward_layers"] if dims == (0, None, None, None, None) else [])


def test_half_types_and_wide_biases():
    """Products of half types are rounded once; a bias may be float32."""
    x, w, b = draw(6, 4, 3).bfloat16(), draw(6, 5, 3).bfloat16(), draw(6, 5).float()
    for dims in choices(3):
        check(F.linear, dims, *of_choice(dims, [x, w, b]), tolerance=2e-2)
    g, total = draw(6, 4, 5).bfloat16(), draw(5, 3).float()
    gradients = registry["linear_gradients"]
    check(lambda g, x: gradients(g, x, torch.float32), (0, 0), g, x, tolerance=1e-5)
    check(lambda g, x: gradients(g, x, torch.float32, total, total[:, 0]), (0, None), g, x[0], tolerance=1e-5)


def test_sizes_zero_and_one():
    w, b = draw(5, 3), draw(5)
    for size in (0, 1):
        x = draw(size, 4, 3)
        made = vmap(lambda v: F.linear(v, w, b))(x)
        assert made.shape == (size, 4, 5)
        images = vmap(lambda v, w: F.conv2d(v, w, padding=1), (0, 0))(draw(size, 2, 2, 5, 5), draw(size, 3, 2, 3, 3))
        assert images.shape == (size, 2, 3, 5, 5)
        assert vmap(lambda v: F.max_pool2d(v, 2))(draw(size, 2, 2, 5, 5)).shape == (size, 2, 2, 2, 2)
        assert vmap(torch.linalg.solve)(torch.eye(3, dtype=torch.float64).expand(size, 3, 3), draw(size, 3, 2)).shape == (size, 3, 2)
        q = draw(size, 2, 2, 4, 3)
        assert vmap(F.scaled_dot_product_attention)(q, q, q).shape == q.shape


def test_nested():
    x, w = draw(4, 5, 3), draw(2, 6, 3)
    made = vmap(lambda m: vmap(vmap(lambda v: F.linear(v, m)))(x))(w)
    np.testing.assert_allclose(made.numpy(), np.einsum("abk,snk->sabn", x.numpy(), w.numpy()))
    images, filters = draw(3, 2, 1, 2, 4, 4), draw(2, 3, 2, 3, 3)
    made = vmap(vmap(F.conv2d, (0, 0)), (0, None))(images, filters)
    want = torch.stack([torch.stack([F.conv2d(images[i, j], filters[j]) for j in range(2)]) for i in range(3)])
    np.testing.assert_allclose(made.numpy(), want.numpy())


def test_gradients_around():
    """The graph around sees the operators on all samples."""
    x, w = draw(4, 2, 3), draw(4, 5, 3)
    ways = (F.linear, (0, 0)), (F.linear, (0, None)), (F.linear, (None, 0)), (lambda x, w: torch.addmm(w[:, :2].T, x, w.T), (0, 0))
    for fn, dims in ways:
        leaves = [[v.clone().requires_grad_() for v in of_choice(dims, [x, w])] for _ in range(2)]
        vmap(fn, dims)(*leaves[0]).sin().sum().backward()
        looped(fn, dims, leaves[1], 4)[0].sin().sum().backward()
        for a, b in zip(*leaves):
            np.testing.assert_allclose(a.grad.numpy(), b.grad.numpy(), atol=1e-12)


def test_cross_entropy_of_a_layer():
    x, w, b = draw(3, 6, 4), draw(3, 5, 4), draw(3, 5)
    y = torch.tensor(np.random.default_rng(0).integers(0, 5, (3, 6)))
    y[:, 1] = -100
    for dims in choices(4):
        tensors = of_choice(dims, [x, w, b, y])
        for reduction in ("mean", "none"):
            def loss(x, w, b, y, reduction=reduction):
                return F.linear_cross_entropy(x, w, y, linear_bias=b, reduction=reduction, label_smoothing=0.1)

            def gradients(x, w, b, y, loss=loss):
                made, pull = vjp(lambda *v: loss(*v, y), x, w, b)
                return made, pull(made.cos())

            check(loss, dims, *tensors)
            check(gradients, dims, *tensors)


@pytest.mark.parametrize("dims", choices(3))
def test_groups_of_rows(dims):
    """Experts of a mixture: rows after the last group are 0."""
    x, mat = draw(3, 7, 4), draw(3, 2, 4, 5)
    ends = torch.tensor([[3, 6], [0, 7], [2, 2]], dtype=torch.int32)
    x, mat, ends = of_choice(dims, [x, mat, ends])

    def gradients(x, mat, ends):
        made, pull = vjp(lambda *v: F.grouped_mm(*v, offs=ends), x, mat)
        return made, pull(made.cos())

    got = check(gradients, dims, x, mat, ends)
    assert bool((got[0][-1][int(ends.reshape(-1)[-1]):] == 0).all())


def test_eight_bit_products():
    shapes = (3, 4, 5), (3, 5, 2)
    a, b = [torch.tensor(np.random.default_rng(k).integers(-9, 9, shape), dtype=torch.int8) for k, shape in enumerate(shapes)]
    for dims in choices(2):
        check(torch._int_mm, dims, *of_choice(dims, [a, b]))
    scaled, (x, y) = registry["scaled_product"], [v.float().to(torch.float8_e4m3fn) for v in (a, b)]
    rows, columns, one, bias = [draw(3, *shape, positive=True).float() for shape in ((4, 1), (1, 2), (1,), (2,))]
    for dims in choices(5):
        for scales in ((rows, columns), (one, one), (one, columns)):
            tensors = of_choice(dims, [x, y, *scales, bias])
            check(lambda *v: scaled(*v, torch.float32), dims, *tensors, tolerance=1e-5)


# ------------------------------------------------------------------ matrices
@pytest.mark.parametrize("dims", choices(2))
@pytest.mark.parametrize("a, b", [((3, 3), (3, 2)), ((2, 3, 3), (3, 1)), ((3, 3), (2, 3, 2)), ((2, 3, 3), (2, 3, 2))])
def test_solutions(dims, a, b):
    A, B = of_choice(dims, [draw(4, *a) + 4 * torch.eye(3, dtype=torch.float64), draw(4, *b)])
    check(torch.linalg.solve, dims, A, B, once=["solve_square"])
    check(lambda A, B: torch.linalg.solve_triangular(A, B, upper=True), dims, A, B, once=["substitute"])
    check(lambda A, B: vjp(torch.linalg.solve, A, B)[1](torch.linalg.solve(A, B)), dims, A, B)
    S = A + A.mT
    check(lambda S, B: torch.linalg.ldl_solve(*torch.linalg.ldl_factor(S), B), dims, S, B, once=["ldl_factors"])


def test_factors():
    A = draw(4, 3, 3)
    S, tall = A @ A.mT + torch.eye(3, dtype=torch.float64), draw(4, 5, 3)
    for fn, x in ((torch.linalg.cholesky, S), (torch.linalg.det, A), (torch.linalg.slogdet, A), (torch.linalg.eigvalsh, S),
                  (torch.linalg.eigh, S), (torch.linalg.qr, tall), (torch.linalg.svdvals, tall), (torch.linalg.svd, A),
                  (torch.linalg.inv, A), (torch.linalg.pinv, tall), (torch.linalg.lu_factor, A),
                  (torch.linalg.eig, A), (torch.linalg.eigvals, A), (torch.linalg.householder_product, None), (torch.geqrf, tall)):
        if x is None:
            check(lambda v: torch.linalg.householder_product(*torch.geqrf(v)), (0,), tall)
            continue
        check(lambda v, fn=fn: tuple(made) if isinstance(made := fn(v), tuple) else made, (0,), x)
        check(lambda v, fn=fn: tuple(made) if isinstance(made := fn(v), tuple) else made, (2,), x.movedim(0, 2))
    check(grad(lambda v: torch.linalg.slogdet(v)[1]), (0,), S)
    check(grad(lambda v: torch.linalg.cholesky(v).sum()), (0,), S)
    check(grad(lambda v: torch.linalg.eigvalsh(v)[-1]), (0,), S)


@pytest.mark.parametrize("dims", choices(2))
def test_tolerances_of_pseudo_inverses(dims):
    A, atol = of_choice(dims, [draw(4, 2, 5, 3), draw(4, positive=True) / 4])
    check(lambda A, atol: torch.linalg.pinv(A, atol=atol, rtol=0.0), dims, A, atol, once=["pseudo_inverse"])


@pytest.mark.parametrize("dims", choices(3))
def test_in_place(dims):
    """Sums that are added to, and tensors made for all samples that each fills with its own."""
    c, a, b = of_choice(dims, [draw(3, 4, 5), draw(3, 4, 2), draw(3, 2, 5)])

    def added(c, a, b):
        total = c.clone()
        total.addmm_(a, b, beta=0.5, alpha=2)
        total[1:3].addmm_(a[1:3], b)
        return total

    def filled(c, a, b):
        out = torch.empty(4, 5, dtype=c.dtype)
        torch.mm(a, b, out=out)
        return out + torch.linalg.solve(torch.eye(4, dtype=c.dtype) * 2, c, out=torch.empty(4, 5, dtype=c.dtype))

    check(added, dims, c, a, b)
    check(filled, dims, c, a, b)


def test_values_that_are_checked():
    """One matrix without a factor is told, and which; what decides how often matrices are squared is decided for all."""
    good, bad = torch.eye(2, dtype=torch.float64), -torch.eye(2, dtype=torch.float64)
    with pytest.raises(torch.linalg.LinAlgError, match=r"cholesky.*\(batch element 1\)"):
        vmap(torch.linalg.cholesky)(torch.stack([good, bad]))
    with pytest.raises(torch.linalg.LinAlgError, match=r"linalg.inv.*\(batch element 0\)"):
        vmap(vmap(torch.linalg.inv))(torch.zeros(2, 1, 3, 3))
    check(torch.linalg.matrix_exp, (0,), torch.stack([draw(3, 3), 9 * draw(3, 3, seed=1), torch.zeros(3, 3, dtype=torch.float64)]))
    check(torch.cholesky_inverse, (0,), draw(4, 3, 3).tril() + 4 * good.new_ones(3, 3).tril())
