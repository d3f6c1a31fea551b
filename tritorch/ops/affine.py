"""The places of the pixels of an image under an affine map: what F.affine_grid returns."""
import math

import numpy as np

from tritorch.cuda.launch import kernels, launch, tile
from tritorch.dispatch import op
from tritorch.dtype import types
from tritorch.errors import check
from tritorch.ops import create, view
from tritorch.ops.indexing import finish, in_order
from tritorch.shape import cdiv

K = kernels("sampling")


@op
def affine_places(theta, sizes, corners):
    """theta (N, M, k + 1) times (x, y, …, 1) of every pixel of an image of k sizes: (N, *sizes, M). Coordinates as in `grid_sample`.

    >>> import tritorch as torch; from tritorch.ops.affine import affine_places
    >>> affine_places(torch.tensor([[[2.0, 0.0, 1.0]]]), (1, 2), False).tolist()
    [[[[0.0], [2.0]]]]
    """
    check(theta.dtype.is_floating_point and len(sizes) in (2, 3), "affine_places", "floating maps of 2 or 3 sizes", theta.dtype, sizes)
    check(theta.ndim == 3 and theta.shape[2] == len(sizes) + 1, "affine_places", f"maps (N, M, {len(sizes) + 1})", theta.shape)
    return (theta.shape[0], *sizes, theta.shape[1]), theta.dtype, theta.device


@affine_places.impl("cpu")
def affine_places_cpu(out, theta, sizes, corners):
    kind = np.promote_types(theta.dtype, np.float32)
    axes = [(2 * np.arange(n, dtype=kind) + 1 - n) / (max(n - 1, 1) if corners else n) for n in sizes]
    pixels = np.stack([*np.meshgrid(*axes, indexing="ij")[::-1], np.ones(sizes, kind)], -1).reshape(math.prod(sizes), theta.shape[2])
    out[...] = (pixels @ np.swapaxes(theta.astype(kind), 1, 2)).reshape(out.shape)


@affine_places.impl("cuda")
def affine_places_cuda(out, theta, sizes, corners):
    count, block, deep = out.numel(), tile(512, 1 << 14), len(sizes) == 3
    check(count < 1 << 31, "affine_grid", "a grid of fewer places", out.shape)
    if count:
        made, acc = in_order(out), K.tl.float64 if theta.dtype is types.float64 else K.tl.float32
        launch(K.affine_kernel, (cdiv(count, block),), made, theta, theta.strides, theta.shape[0], *(1,) * (not deep), *sizes,
               M=theta.shape[1], DEEP=deep, CORNERS=bool(corners), ACC=acc, BLOCK=block)
        finish(out, made)


@affine_places.grad("theta")
def affine_places_grad(g, theta_shape, sizes, corners):
    n, m, k = theta_shape
    pixels = affine_places(create.eye(k, dtype=g.dtype.compute, device=g.device).unsqueeze(0), sizes, corners)
    g, pixels = view.reshape(g, n, math.prod(sizes), m, 1), view.reshape(pixels, math.prod(sizes), 1, k)
    return (g * pixels).sum(1)                                           # predicted: as a product of matrices 89 µs, not 18


@affine_places.samples
def affine_places_samples(make):
    yield make(2, 2, 3), (4, 5), False
    yield make(2, 3, 4), (2, 1, 3), True
    yield make(3, 3, 4), (2, 3, 3), False
    yield make(1, 2, 3), (1, 6), True
    yield make(0, 2, 3), (2, 2), False


@affine_places.errors
def affine_places_errors(make):
    yield (make(1, 2, 3), (2, 2, 2), False), {}, RuntimeError, "maps (N, M, 4)"
    yield (make(1, 2, 3), (2,), False), {}, RuntimeError, "2 or 3 sizes"


@affine_places.workloads
def affine_places_workloads(make):
    theta = make(16, 2, 3, grad=False)
    yield "16x128x128 fp32", lambda: (theta, (128, 128), False), 16 * 128 ** 2 * 8, 0
