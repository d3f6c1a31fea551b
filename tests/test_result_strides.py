"""Strides of results, where programs that view them notice: what PyTorch 2.13 has on the CPU, and so all devices here."""
import numpy as np
import pytest

import tritorch as T
from tritorch.nn import functional as F


def numbers(library, *shape):
    """Numbers that are all different, and no two of a row in order."""
    count = int(np.prod(shape))
    return (library.linspace(1, 40, count) ** 2).sin().reshape(shape)


def permuted(library, *order):
    """(4, 2, 3) whose dims lie in this order in memory, outermost first."""
    sizes = [(4, 2, 3)[d] for d in order]
    return numbers(library, *sizes).permute([order.index(d) for d in range(3)])


def image(library, *shape):
    return numbers(library, *shape).contiguous(memory_format=library.channels_last)


def matrices(library, *shape):
    """Symmetric positive definite ones."""
    x = numbers(library, *shape)
    return x @ x.mT + library.eye(shape[-1])


def places(library, *shape):
    return (library.arange(int(np.prod(shape))) % 2).reshape(shape)


# name: (program, the strides of its results)
PICKED = {
    "rows of permuted": (lambda L, F: permuted(L, 2, 0, 1)[places(L, 3)], [(6, 1, 2)]),
    "in the middle": (lambda L, F: permuted(L, 2, 0, 1)[:, places(L, 5)], [(1, 4, 20)]),
    "a matrix of places": (lambda L, F: permuted(L, 2, 1, 0)[:, places(L, 2, 2)], [(1, 8, 4, 16)]),
    "two dims": (lambda L, F: permuted(L, 0, 2, 1)[:, places(L, 2), places(L, 2)], [(2, 1)]),
    "two dims apart": (lambda L, F: permuted(L, 1, 2, 0)[places(L, 2), :, places(L, 2)], [(2, 1)]),
    "two dims of contiguous": (lambda L, F: numbers(L, 4, 2, 3)[:, places(L, 2), places(L, 2)], [(2, 1)]),
    "turned places": (lambda L, F: permuted(L, 2, 1, 0)[places(L, 2, 3).t()], [(6, 18, 1, 2)]),
    "of an image": (lambda L, F: image(L, 2, 3, 4, 5)[places(L, 3)], [(60, 1, 15, 3)]),
    "channels of an image": (lambda L, F: image(L, 2, 3, 4, 5)[:, places(L, 4)], [(80, 20, 5, 1)]),
    "a mask": (lambda L, F: permuted(L, 2, 0, 1)[L.tensor([True, False, True, True])], [(6, 1, 2)]),
    "index_put": (lambda L, F: permuted(L, 2, 0, 1).index_put((places(L, 3),), L.tensor(1.0)), [(2, 1, 8)]),
    "index_fill": (lambda L, F: permuted(L, 2, 0, 1).index_fill(0, places(L, 3), 1.0), [(2, 1, 8)]),
    "put": (lambda L, F: permuted(L, 2, 0, 1).put(places(L, 2), L.ones(2)), [(2, 1, 8)]),
    "index_copy": (lambda L, F: permuted(L, 2, 0, 1).index_copy(0, L.arange(4), permuted(L, 2, 0, 1)), [(6, 3, 1)]),
}
ORDERED = {
    "sort": (lambda L, F: permuted(L, 2, 0, 1).sort(1), [(2, 1, 8)] * 2),
    "sort of the outermost": (lambda L, F: permuted(L, 2, 0, 1).sort(2, descending=True), [(2, 1, 8)] * 2),
    "argsort of an image": (lambda L, F: image(L, 2, 3, 4, 5).argsort(1), [(60, 1, 15, 3)]),
    "sort of a part": (lambda L, F: numbers(L, 4, 6)[:, ::2].t().sort(0), [(1, 3)] * 2),
    "topk": (lambda L, F: permuted(L, 2, 0, 1).topk(3, 2), [(6, 3, 1)] * 2),
}
COMPOSED = {
    "stack of images": (lambda L, F: L.stack([image(L, 2, 3, 4, 5)] * 2), [(120, 60, 1, 15, 3)]),
    "stack beside batches": (lambda L, F: L.stack([image(L, 2, 3, 4, 5)] * 2, 1), [(120, 3, 1, 30, 6)]),
    "stack at the end": (lambda L, F: L.stack([image(L, 2, 3, 4, 5)] * 2, -1), [(120, 40, 10, 2, 1)]),
    "cat": (lambda L, F: L.cat([image(L, 2, 3, 4, 5)] * 2, 2), [(120, 1, 15, 3)]),
    "channel_shuffle": (lambda L, F: F.channel_shuffle(image(L, 2, 6, 4, 5), 2), [(120, 1, 30, 6)]),
    "rot90 by nothing": (lambda L, F: permuted(L, 2, 0, 1).rot90(4), [(6, 3, 1)]),
    "repeat_interleave": (lambda L, F: permuted(L, 2, 0, 1).repeat_interleave(2, 1), [(12, 3, 1)]),
    "renorm": (lambda L, F: L.renorm(permuted(L, 2, 0, 1), 2, 0, 0.5), [(6, 3, 1)]),
    "addr": (lambda L, F: L.addr(numbers(L, 3, 4).t(), numbers(L, 4), numbers(L, 3)), [(1, 4)]),
    "select_scatter keeps gaps": (lambda L, F: numbers(L, 3, 8)[:, ::2].select_scatter(numbers(L, 4), 0, 1), [(8, 2)]),
    "slice_scatter": (lambda L, F: permuted(L, 2, 0, 1).slice_scatter(numbers(L, 1, 2, 3), 0, 1, 2), [(2, 1, 8)]),
    "diagonal_scatter": (lambda L, F: numbers(L, 3, 8)[:, ::2].diagonal_scatter(numbers(L, 3)), [(8, 2)]),
    "as_strided_scatter": (lambda L, F: numbers(L, 3, 4).t().as_strided_scatter(numbers(L, 2), (2,), (5,)), [(1, 4)]),
    "vander": (lambda L, F: L.linalg.vander(numbers(L, 3, 2).t()), [(9, 3, 1)]),
    "conv1d": (lambda L, F: F.conv1d(numbers(L, 2, 5, 3).mT, L.ones(4, 3, 2)), [(16, 4, 1)]),
    "conv_transpose1d": (lambda L, F: F.conv_transpose1d(numbers(L, 2, 5, 3).mT, L.ones(3, 4, 2)), [(24, 6, 1)]),
    "pad of rows": (lambda L, F: F.pad(numbers(L, 2, 5, 3).mT, (1, 1), "reflect"), [(21, 7, 1)]),
    "circular pad": (lambda L, F: F.pad(image(L, 2, 3, 4, 5), (1, 1, 0, 0), "circular"), [(84, 28, 7, 1)]),
    "interpolate rows": (lambda L, F: F.interpolate(numbers(L, 2, 5, 3).mT, 10, mode="linear"), [(30, 10, 1)]),
    "attention of three dims": (lambda L, F: F.scaled_dot_product_attention(*[permuted(L, 1, 0, 2)] * 3), [(6, 3, 1)]),
    "attention of heads": (lambda L, F: F.scaled_dot_product_attention(*[numbers(L, 2, 5, 3, 4).transpose(1, 2)] * 3), [(60, 4, 12, 1)]),
}
FACTORS = {
    "cholesky": (lambda L, F: L.linalg.cholesky(matrices(L, 2, 3, 3)), [(9, 1, 3)]),
    "cholesky, upper": (lambda L, F: L.linalg.cholesky_ex(matrices(L, 2, 3, 3), upper=True), [(9, 1, 3), (1,)]),
    "cholesky_inverse": (lambda L, F: L.cholesky_inverse(L.eye(3) * 2), [(1, 3)]),
    "cholesky_solve": (lambda L, F: L.cholesky_solve(numbers(L, 3, 2), L.eye(3)), [(1, 3)]),
    "inv": (lambda L, F: L.linalg.inv(matrices(L, 2, 3, 3)), [(9, 1, 3)]),
    "solve": (lambda L, F: L.linalg.solve(matrices(L, 3, 3), numbers(L, 2, 3, 2)), [(6, 1, 3)]),
    "solve from the right": (lambda L, F: L.linalg.solve(matrices(L, 3, 3), numbers(L, 2, 3), left=False), [(3, 1)]),
    "solve_triangular": (lambda L, F: L.linalg.solve_triangular(L.eye(3), numbers(L, 3, 2), upper=True), [(1, 3)]),
    "and from the right": (lambda L, F: L.linalg.solve_triangular(L.eye(3), numbers(L, 2, 3), upper=True, left=False), [(1, 2)]),
    "lu_solve": (lambda L, F: L.linalg.lu_solve(*L.linalg.lu_factor(matrices(L, 3, 3)), numbers(L, 3, 2)), [(1, 3)]),
    "lu_solve, adjoint": (lambda L, F: L.linalg.lu_solve(*L.linalg.lu_factor(matrices(L, 3, 3)), numbers(L, 3, 2), adjoint=True), [(1, 3)]),
    "qr": (lambda L, F: L.linalg.qr(numbers(L, 2, 4, 3)), [(12, 1, 4), (9, 1, 3)]),
    "R alone": (lambda L, F: L.linalg.qr(numbers(L, 4, 3), "r")[1], [(1, 3)]),
    "householder_product": (lambda L, F: L.linalg.householder_product(numbers(L, 4, 3), numbers(L, 3)), [(1, 4)]),
    "ormqr": (lambda L, F: L.ormqr(numbers(L, 4, 3), numbers(L, 3), numbers(L, 4, 2)), [(1, 4)]),
    "eigh": (lambda L, F: L.linalg.eigh(matrices(L, 2, 3, 3)), [(3, 1), (9, 1, 3)]),
    "eig": (lambda L, F: L.linalg.eig(matrices(L, 2, 3, 3)), [(3, 1), (9, 1, 3)]),
    "lstsq": (lambda L, F: L.linalg.lstsq(matrices(L, 3, 3), numbers(L, 3, 2), driver="gels").solution, [(1, 3)]),
    "matrix_power": (lambda L, F: L.linalg.matrix_power(numbers(L, 3, 3).t(), 1), [(3, 1)]),
}
ANYWHERE = {**PICKED, **ORDERED, **COMPOSED, **FACTORS}
ON_THE_CPU = {                                                           # on a GPU one kernel makes contiguous results, or V in place of Vᴴ
    "svd": (lambda L, F: L.linalg.svd(numbers(L, 4, 3), full_matrices=False), [(1, 4), (1,), (1, 3)]),
    "full svd": (lambda L, F: L.linalg.svd(numbers(L, 4, 3)), [(1, 4), (1,), (1, 3)]),
    "rms_norm": (lambda L, F: F.rms_norm(image(L, 2, 3, 4, 5), (5,)), [(60, 1, 15, 3)]),
    "rms_norm of permuted": (lambda L, F: F.rms_norm(permuted(L, 2, 0, 1), (3,)), [(6, 3, 1)]),
    "pixel_shuffle": (lambda L, F: F.pixel_shuffle(image(L, 2, 8, 2, 3), 2), [(48, 1, 12, 2)]),
    "pixel_unshuffle": (lambda L, F: F.pixel_unshuffle(image(L, 2, 3, 4, 6), 2), [(72, 1, 36, 12)]),
    "attention with dropout": (lambda L, F: F.scaled_dot_product_attention(*[numbers(L, 2, 5, 3, 4).transpose(1, 2)] * 3, dropout_p=0.5),
                               [(60, 20, 4, 1)]),
}
MADE_OF_VALUES = "a mask", "eig", "full svd"                             # which there are none of on meta


def tensors_of(result):
    return list(result) if isinstance(result, (tuple, list)) else [result]


@pytest.mark.parametrize("name", [*ANYWHERE, *ON_THE_CPU])
def test_strides(name):
    program, expected = {**ANYWHERE, **ON_THE_CPU}[name]
    assert [t.stride() for t in tensors_of(program(T, F))] == expected


@pytest.mark.parametrize("name", [*ANYWHERE, *ON_THE_CPU])
def test_pytorch_has_the_same(name):
    torch = pytest.importorskip("torch")
    program, expected = {**ANYWHERE, **ON_THE_CPU}[name]
    assert [t.stride() for t in tensors_of(program(torch, torch.nn.functional))] == expected


@pytest.mark.parametrize("name", ANYWHERE)
def test_devices_agree(name, cuda):
    """Strides and values; columns and vectors of factors are unique here."""
    program, expected = ANYWHERE[name]
    with T.device(cuda):
        made = tensors_of(program(T, F))
    assert [t.stride() for t in made] == expected
    for got, want in zip(made, tensors_of(program(T, F))):
        np.testing.assert_allclose(got.cpu().numpy(), want.numpy(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", [n for n in (*PICKED, *ORDERED, *FACTORS) if n not in MADE_OF_VALUES])
def test_there_is_nothing_to_know_on_meta(name):
    program, expected = ANYWHERE[name]
    with T.device("meta"):
        assert [t.stride() for t in tensors_of(program(T, F))] == expected
