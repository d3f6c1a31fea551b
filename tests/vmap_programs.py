"""What tests of vmap share: the loop to hold it against, and small random programs of tensor functions, by seed, each of which is run by
both, gradients included."""
import random

import numpy as np

import tritorch as torch

SIZE = 3


def values(torch, *shape, seed=0):
    """A float64 tensor of the library's."""
    n = 1
    for s in shape:
        n *= s
    return ((torch.arange(n, dtype=torch.float64) * 0.7 + seed).sin()).reshape(shape)


def by_loop(torch, fn, dims, *xs):
    """The results of calls for each sample, stacked."""
    (count,) = {x.shape[d] for x, d in zip(xs, dims) if d is not None}
    rows = [fn(*[x if d is None else x.select(d, k) for x, d in zip(xs, dims)]) for k in range(count)]
    return torch.stack(rows) if isinstance(rows[0], torch.Tensor) else tuple([torch.stack(list(c)) for c in zip(*rows)])


def near(got, want):
    """Raise unless nested tensors are the same up to rounding."""
    if isinstance(want, (tuple, list)):
        assert len(got) == len(want)
        for g, w in zip(got, want):
            near(g, w)
    else:
        assert got.shape == want.shape and got.dtype is want.dtype
        torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-10, check_stride=False)


class Program:
    """A list of steps that is the same for each sample: `step(values, rng)` adds a tensor, or changes one in place."""

    def __init__(self, seed, steps=8):
        rng = random.Random(seed)
        self.inputs = [_shape(rng) for _ in range(rng.randint(1, 3))]
        self.mapped = [rng.random() < 0.7 for _ in self.inputs]
        if not any(self.mapped):
            self.mapped[0] = True
        self.dims = [rng.randrange(-len(s) - 1, len(s) + 1) if m else None for s, m in zip(self.inputs, self.mapped)]
        self.seed, self.steps = seed, steps

    def arguments(self):
        """Tensors of all samples, laid out by chance."""
        made = np.random.default_rng(self.seed)
        out = []
        for shape, dim in zip(self.inputs, self.dims):
            full = list(shape)
            if dim is not None:
                full.insert(dim % (len(shape) + 1), SIZE)
            out.append(torch.tensor(made.uniform(-1, 1, full)))
        return out

    def __call__(self, *inputs):
        """The program: results of some steps. What it does depends on shapes alone, so that each sample has the same done."""
        rng, values = random.Random(self.seed + 1), list(inputs)
        self.log = []
        for _ in range(self.steps):
            step = rng.choice(STEPS)
            x = rng.choice(values[-4:])
            made = step(x, values, rng)
            self.log.append((step.__name__, tuple(x.shape)))
            if made is not None and made.numel() < 200:
                values.append(made)
        kept = [v for v in values[len(inputs):] if v.dtype.is_floating_point][-2:] or [inputs[0] * 1]
        return tuple(kept)


def _shape(rng):
    return tuple([rng.choice((1, 2, 3, 4)) for _ in range(rng.choice((0, 1, 1, 2, 2, 3)))])


def _floating(x):
    return x if x.dtype.is_floating_point else x.double()


def elementwise(x, values, rng):
    return rng.choice((torch.sin, torch.tanh, torch.abs, torch.neg, torch.sigmoid, lambda v: v * 2 - 1, lambda v: v * v,
                       lambda v: 1 / (v * v + 1)))(_floating(x))


def two(x, values, rng):
    y = rng.choice(values)
    f = rng.choice((torch.add, torch.sub, torch.mul, torch.maximum, torch.atan2, lambda a, b: torch.where(a > b, a, b * 2)))
    try:
        torch.broadcast_shapes(x.shape, y.shape)
    except RuntimeError:
        y = y.sum()
    return f(_floating(x), _floating(y))


def comparison(x, values, rng):
    return rng.choice((lambda v: v > 0, lambda v: v.double().round().long(), lambda v: (v > 0) | (v < -0.5)))(x)


def reduction(x, values, rng):
    x = _floating(x)
    if not x.ndim or rng.random() < 0.2:
        return rng.choice((torch.sum, torch.mean, torch.amax))(x)
    dim, keep = rng.randrange(-x.ndim, x.ndim), rng.random() < 0.5
    return rng.choice((lambda v: v.sum(dim, keepdim=keep), lambda v: v.mean(dim, keepdim=keep), lambda v: v.amax(dim, keepdim=keep),
                       lambda v: v.softmax(dim), lambda v: v.cumsum(dim), lambda v: v.logsumexp(dim, keepdim=keep),
                       lambda v: v.max(dim).values, lambda v: v.sort(dim).values, lambda v: v.prod(dim)))(x)


def view(x, values, rng):
    choices = [lambda v: v.unsqueeze(rng.randrange(-v.ndim - 1, v.ndim + 1)), lambda v: v.reshape(-1), lambda v: v.expand(2, *v.shape)]
    if x.ndim:
        d = rng.randrange(-x.ndim, x.ndim)
        n = x.shape[d]
        choices += [lambda v: v.select(d, rng.randrange(n)), lambda v: v.narrow(d, 0, max(n - 1, 1)), lambda v: v.movedim(d, 0),
                    lambda v: v.mT if v.ndim > 1 else v[None], lambda v: v.flatten(), lambda v: v[..., ::2], lambda v: v.squeeze(),
                    lambda v: v.diagonal() if v.ndim > 1 else v, lambda v: v.split(1, d)[-1], lambda v: v.unfold(d, 1, 1),
                    lambda v: v.flip(d)]
    return rng.choice(choices)(x)


def product(x, values, rng):
    x = _floating(x)
    if not x.ndim:
        return x * x
    return rng.choice((lambda v: v @ (v.mT if v.ndim > 1 else v), lambda v: torch.einsum("...i,...j->...ij", v, v),
                       lambda v: v @ torch.ones(v.shape[-1], 2, dtype=v.dtype), lambda v: _steps(v) @ v.mT if v.ndim > 1 else v.dot(v)))(x)


def _steps(x):
    return torch.linspace(0, 1, x.shape[-1], dtype=x.dtype)


def write(x, values, rng):
    """In place, into a tensor of the program's own, or into a view of one."""
    x = _floating(x).clone(memory_format=torch.contiguous_format)      # else it depends on strides what reshape makes
    target = x
    if x.ndim and rng.random() < 0.6:
        target = rng.choice((lambda v: v[0], lambda v: v[..., -1], lambda v: v.unsqueeze(0), lambda v: v.mT if v.ndim > 1 else v,
                             lambda v: v.reshape(-1)[:1]))(x)
    y = _floating(rng.choice(values))
    y = y.sum() if y.shape != target.shape else y
    rng.choice((lambda: target.mul_(2), lambda: target.add_(y), lambda: target.copy_(y), lambda: target.zero_(), lambda: target.fill_(0.5),
                lambda: target.mul_(y), lambda: target.sin_()))()
    return x


def fresh(x, values, rng):
    """Into a tensor that is the same for all samples until then."""
    x = _floating(x)
    made = rng.choice((torch.zeros, torch.ones))(x.shape, dtype=x.dtype)
    target = made if not x.ndim or rng.random() < 0.5 else made[..., :1]
    target.add_(x if target is made else x[..., :1])
    return made


def index(x, values, rng):
    if not x.ndim:
        return x.reshape(1)[torch.tensor([0, 0])]
    n = x.shape[0]
    at = (x.reshape(n, -1).double().sum(1) * 7).round().long() % n                     # another for each sample
    spread = at.reshape(n, *[1] * (x.ndim - 1)).expand(x.shape)
    return rng.choice((lambda: x[at], lambda: x.gather(0, spread), lambda: x.index_select(0, at),
                       lambda: x[torch.arange(n) % 2], lambda: torch.where(x > 0, x, 0), lambda: x.masked_fill(x > 0, 0.25),
                       lambda: _floating(x).index_add(0, at, _floating(x)), lambda: _put(x, at)))()


def _put(x, at):
    out = _floating(x) * 1
    out[at[:1]] = 0.5
    return out


def join(x, values, rng):
    x = _floating(x)
    flat = x.reshape(-1)
    return rng.choice((lambda: torch.stack([x, x * 2], rng.randrange(-x.ndim - 1, x.ndim + 1)), lambda: torch.cat([flat, flat]),
                       lambda: torch.nn.functional.pad(x, (1, 1)) if x.ndim else x, lambda: x.roll(1, 0) if x.ndim else x,
                       lambda: x.repeat(*[2] * max(x.ndim, 1)), lambda: x.tril() if x.ndim > 1 else x))()


def layer(x, values, rng):
    x, functional = _floating(x), torch.nn.functional
    if not x.ndim:
        return functional.gelu(x)
    n = x.shape[-1]
    weights = _steps(torch.ones(3 * n, dtype=x.dtype)).reshape(3, n).cos()
    images = x.reshape(1, -1, n) if rng.random() < 0.5 else x.unsqueeze(0).expand(2, *x.shape).reshape(2, -1, n)
    return rng.choice((lambda: functional.linear(x, weights), lambda: functional.layer_norm(x, (n,), weights[0], weights[1]),
                       lambda: functional.rms_norm(x, (n,)), lambda: functional.log_softmax(x, -1), lambda: functional.normalize(x, dim=0),
                       lambda: functional.conv1d(images, weights.reshape(3, 1, n)[:, :, :1].expand(3, images.shape[1], 1)),
                       lambda: functional.cross_entropy(x.reshape(-1, n), (x.reshape(-1, n)[:, 0] * 5).long().abs() % n),
                       lambda: functional.mse_loss(x, x.flip(0)), lambda: functional.avg_pool1d(images, 1), lambda: functional.glu(images, 0)
                       if len(images) == 2 else functional.silu(images), lambda: functional.scaled_dot_product_attention(images, images, images),
                       lambda: functional.embedding((x * 3).long().abs() % 3, weights), lambda: functional.interpolate(images, scale_factor=2),
                       lambda: torch.linalg.vector_norm(x, dim=-1), lambda: functional.pairwise_distance(x, x.roll(1, 0) + 1),
                       lambda: functional.huber_loss(x, x * 0), lambda: torch.cdist(images, images + 1)))()


STEPS = (elementwise, elementwise, two, two, comparison, reduction, view, view, product, write, fresh, index, join, layer)


def run(seed):
    """Raise unless vmap and the loop agree on values, gradients from inside and from outside."""
    program = Program(seed)
    arguments = program.arguments()
    calls = []

    def counted(*xs):
        calls.append(1)
        return program(*xs)

    def inside(*xs):
        """Gradients of all inputs."""
        return torch.func.grad(lambda *ys: sum(v.sin().sum() for v in program(*ys)), argnums=tuple(range(len(xs))))(*xs)

    want = _loop(program, program.dims, arguments)
    _same(torch.vmap(counted, tuple(program.dims))(*arguments), want, seed, "values")
    assert len(calls) == 1, f"seed {seed}: {len(calls)} calls"
    _same(torch.vmap(inside, tuple(program.dims))(*arguments), _loop(inside, program.dims, arguments), seed, "gradients inside")
    twice = [x if d is None else torch.stack([x, x * 0.5]) for x, d in zip(arguments, program.dims)]
    above = tuple([None if d is None else 0 for d in program.dims])
    below = [[x if d is None else x[k] for x, d in zip(twice, program.dims)] for k in range(2)]
    made = torch.vmap(torch.vmap(program, tuple(program.dims)), above)(*twice)
    _same(made, [torch.stack(pair) for pair in zip(*[_loop(program, program.dims, xs) for xs in below])], seed, "nested")
    outer = []
    for way in (lambda: torch.vmap(program, tuple(program.dims))(*leaves), lambda: _loop(program, program.dims, leaves)):
        leaves = [x.clone().requires_grad_() for x in arguments]
        made = way()
        total = sum((v.cos() * _weights(v)).sum() for v in made)
        outer.append(torch.autograd.grad(total, leaves, allow_unused=True) if total.requires_grad else [None] * len(leaves))
    _same(*[[torch.zeros_like(x) if g is None else g for x, g in zip(arguments, gs)] for gs in outer], seed, "gradients outside")


def _weights(x):
    return torch.arange(x.numel(), dtype=x.dtype).reshape(x.shape).sin()


def _loop(fn, dims, arguments):
    rows = [fn(*[x if d is None else x.select(d, k) for x, d in zip(arguments, dims)]) for k in range(SIZE)]
    return [torch.stack(list(column)) for column in zip(*rows)]


def _same(got, want, seed, what):
    assert len(got) == len(want), f"seed {seed}: {what}"
    for k, (g, w) in enumerate(zip(got, want)):
        assert g.shape == w.shape and g.dtype is w.dtype, f"seed {seed}: {what} {k}: {g.shape} {g.dtype}, not {w.shape} {w.dtype}"
        np.testing.assert_allclose(g.detach().numpy(), w.detach().numpy(), rtol=1e-9, atol=1e-10, err_msg=f"seed {seed}: {what} {k}")
