"""cat, stack, flips, rolls, repetition, grids, triangles and differences against PyTorch."""
import numpy as np
from oracle import EVERY, agree, draw

X, Y = draw(2, 3, 4, dtype="float64"), draw(2, 3, 4, dtype="float64", seed=1)


def test_joining():
    for d in (0, 1, -1):
        agree(lambda lib, x, y, d=d: (lib.cat([x, y], d), lib.cat((x, y, x), dim=d), lib.stack([x, y], d), lib.concat([x]),
                                      lib.concatenate([x, y], d)), X, Y, grad=True)
    agree(lambda lib, x, y: lib.cat([x, y[:, :, :2]], -1), X, Y, grad=True)
    for a in EVERY:
        for b in EVERY:
            agree(lambda lib, x, y: (lib.cat([x, y]), lib.stack([x, y])), (draw(3, dtype=a), a), (draw(3, dtype=b), b), what=f"{a} {b}")
    for f in (lambda lib, x: lib.cat([x, x[0]]), lambda lib, x: lib.cat([]), lambda lib, x: lib.cat([x, 1]), lambda lib,
              x: lib.cat([x, x], 3), lambda lib, x: lib.cat(x),
              lambda lib, x: lib.cat([x, x[:, :2]]), lambda lib, x: lib.stack([]), lambda lib, x: lib.stack([x, x[0]]), lambda lib,
              x: lib.stack([x], 4), lambda lib, x: lib.stack(x),
              lambda lib, x: lib.cat([lib.tensor(1.0), lib.tensor(2.0)]), lambda lib, x: lib.cat([lib.zeros(0), x.float()]), lambda lib,
              x: lib.cat([lib.zeros(0), lib.zeros(0)]),
              lambda lib, x: lib.cat([lib.zeros(0, 3, 4, dtype=x.dtype), x]), lambda lib,
              x: lib.cat([x, x], out=lib.empty(0, dtype=x.dtype)),
              lambda lib, x: lib.hstack([x, x]), lambda lib, x: lib.vstack([x[0], x[1]]),
              lambda lib, x: lib.dstack([x[0], x[1]]), lambda lib, x: lib.hstack([x[0, 0], x[0, 1]]), lambda lib,
              x: lib.vstack([x[0, 0], x[0, 1]]),
              lambda lib, x: lib.dstack([x[0, 0], x[0, 1]]), lambda lib, x: lib.column_stack([x[0, 0], x[0].t()]), lambda lib,
              x: lib.row_stack([x[0, 0], x[0]]),
              lambda lib, x: lib.block_diag(x[0], x[1, :1], x[0, 0], lib.tensor(2.0)), lambda lib, x: lib.atleast_1d(x.sum(), x),
              lambda lib, x: lib.atleast_2d(x.sum()),
              lambda lib, x: lib.atleast_3d(x[0, 0], x[0]), lambda lib, x: lib.broadcast_tensors(x, x[0], x[0, 0]), lambda lib,
              x: lib.atleast_2d([x[0, 0], x[0]]),
              lambda lib, x: lib.broadcast_tensors(x, x[:, :2]), lambda lib, x: lib.hstack([]), lambda lib, x: lib.cat([x, x.float()])):
        agree(f, X, what=str(f.__code__.co_consts) + str(f.__code__.co_names))


def test_order():
    for f in (lambda lib, x: x.flip(0), lambda lib, x: x.flip(0, -1), lambda lib, x: x.flip((1, 2)), lambda lib, x: x.flip([0]),
              lambda lib, x: x.fliplr(), lambda lib, x: x.flipud(),
              lambda lib, x: x.rot90(), lambda lib, x: x.rot90(2), lambda lib, x: x.rot90(-1, (1, 2)), lambda lib, x: x.rot90(3, [0, 2]),
              lambda lib, x: x.roll(1),
              lambda lib, x: x.roll(-5), lambda lib, x: x.roll(1, 0), lambda lib, x: x.roll((1, -2), (0, 2)), lambda lib,
              x: x.roll(100, -1), lambda lib, x: x.flip(3),
              lambda lib, x: x.flip(0, 0), lambda lib, x: x.roll((1, 2), 0), lambda lib, x: x.roll((1, 2)), lambda lib,
              x: x.rot90(1, (0, 0)), lambda lib, x: x.rot90(1, (0,)),
              lambda lib, x: x.roll(1, 5), lambda lib, x: x.flip(()), lambda lib, x: x.roll((1, 1), (0, 0)), lambda lib,
              x: x[0, 0].fliplr(), lambda lib, x: x[0, 0].flipud()):
        agree(f, X, grad=True, what=str(f.__code__.co_consts) + str(f.__code__.co_names))
    for shape in ((), (0,), (2, 0)):
        agree(lambda lib, x: (x.roll(1), x.flip(0) if x.ndim else x), draw(*shape), what=str(shape))


def test_triangles():
    for k in (-5, -1, 0, 2, 7):
        agree(lambda lib, x, k=k: (x.tril(k), lib.triu(x, k), (x * 1).tril_(k)), X, grad=True, what=str(k))
        agree(lambda lib, x, k=k: (lib.diag(x[0], k) if -3 < k < 4 else 0, lib.diag(x[0, 0], k), lib.diagflat(x[0, :2, :2], k),
                                   x.diag_embed(k), x.diag_embed(k, 0, 2)), X, what=str(k))
        agree(lambda lib, k=k: (lib.tril_indices(3, 4, k), lib.triu_indices(4, 3, k), lib.triu_indices(2, 2, k, dtype=lib.int32)),
              what=str(k))
    agree(lambda lib, x: (x[0].trace(), x[0, :, :3].trace()), X, grad=True)
    for kind in EVERY:
        agree(lambda lib, x: (x.tril(), x.diag(), lib.triu(x, 1)), (draw(3, 4, dtype=kind), kind), what=kind)
    for f in (lambda lib, x: x[0, 0].tril(), lambda lib, x: x.diag(), lambda lib, x: x.trace(), lambda lib, x: x.sum().diag_embed(),
              lambda lib, x: x.diag_embed(0, 1, 1),
              lambda lib, x: lib.diagonal_scatter(x[0], x[1, 0, :3]), lambda lib, x: lib.select_scatter(x, x[0], 0, 1), lambda lib,
              x: lib.slice_scatter(x, x[:, :, :2], 2, 1, 3)):
        agree(f, X, grad=True, what=str(f.__code__.co_names))


def test_repetition():
    for f in (lambda lib, x: x.repeat(2, 1, 1), lambda lib, x: x.repeat((1, 2, 1, 3)), lambda lib, x: x.repeat(2), lambda lib,
              x: x.tile(2), lambda lib, x: x.tile((2, 1, 1, 1)),
              lambda lib, x: lib.tile(x, (2, 2)), lambda lib, x: x.repeat_interleave(2), lambda lib, x: x.repeat_interleave(2, 1),
              lambda lib, x: x.repeat(0, 1, 1),
              lambda lib, x: x.repeat_interleave(lib.tensor([1, 0, 2]), 1), lambda lib, x: x.repeat_interleave(lib.tensor([2]), 0),
              lambda lib, x: x.repeat(1, -1, 1),
              lambda lib, x: x.repeat_interleave(-1), lambda lib, x: x.repeat_interleave(lib.tensor([1, 2]), 1), lambda lib,
              x: x.repeat_interleave(0),
              lambda lib, x: x[0, 0, 0].repeat(2), lambda lib, x: x[0, 0, 0].repeat_interleave(3), lambda lib, x: x[0, 0, 0].tile(2)):
        agree(f, X, grad=True, what=str(f.__code__.co_consts) + str(f.__code__.co_names))
    agree(lambda lib, x: lib.repeat_interleave(x), np.array([2, 0, 3]))


def test_grids():
    a, b, c = draw(3), draw(2), draw(4)
    for indexing in ("ij", "xy", "yx"):
        agree(lambda lib, a, b, c, i=indexing: (lib.meshgrid(a, b, c, indexing=i), lib.meshgrid(a, b, indexing=i),
                                                lib.meshgrid([a], indexing=i)), a, b, c)
    agree(lambda lib, a, b: lib.cartesian_prod(a, b), a, b, grad=True)
    agree(lambda lib, a: (lib.cartesian_prod(a), lib.combinations(a), lib.combinations(a, 3), lib.combinations(a, with_replacement=True),
                          lib.combinations(a, 1)), a)
    agree(lambda lib, a: (lib.vander(a), lib.vander(a, 2), lib.vander(a, 4, increasing=True)), a)


def test_differences():
    for f in (lambda lib, x: x.diff(), lambda lib, x: x.diff(2), lambda lib, x: x.diff(dim=0), lambda lib,
              x: lib.diff(x, prepend=x[..., :1]), lambda lib, x: lib.diff(x, append=x[..., :2]),
              lambda lib, x: x.diff(9), lambda lib, x: x.diff(0), lambda lib, x: x.diff(-1), lambda lib, x: (x > 0).diff(), lambda lib,
              x: x.sum().diff()):
        agree(f, X, grad=True, what=str(f.__code__.co_consts) + str(f.__code__.co_names))


def test_products_and_covariances():
    a, b = draw(4, 3, dtype="float64"), draw(4, 3, dtype="float64", seed=1)
    agree(lambda lib, a, b: (lib.cross(a, b, dim=1), a.cross(b[:1], dim=-1), lib.linalg.cross(a, b)), a, b, grad=True)
    agree(lambda lib, a, b: lib.cross(a, b, dim=0), a, b)
    agree(lambda lib, a: (lib.cov(a), lib.cov(a, correction=0), lib.corrcoef(a), lib.cov(a[0])), a, grad=True)
    agree(lambda lib, a: lib.cov(a, fweights=lib.tensor([1, 2, 1])), a)
    agree(lambda lib, a: lib.cov(a, aweights=lib.tensor([0.5, 2.0, 1.0], dtype=a.dtype)), a)


def test_on_a_cuda_device(cuda):
    x = X.astype(np.float32)
    for f in (lambda lib, x: lib.cat([x, x * 2], 1), lambda lib, x: lib.stack([x, x], -1), lambda lib, x: x.flip(0, 2), lambda lib,
              x: x.roll((1, -2), (0, 2)), lambda lib, x: x.rot90(),
              lambda lib, x: x.tril(-1), lambda lib, x: x.repeat(2, 1, 3), lambda lib,
              x: x.repeat_interleave(lib.tensor([1, 0, 2]), 1) if lib.__name__ != "tritorch" else
              x.repeat_interleave(lib.tensor([1, 0, 2], device=x.device), 1), lambda lib, x: x.diff(), lambda lib,
              x: lib.block_diag(x[0], x[1])):
        agree(f, x, grad=True, device=cuda)
