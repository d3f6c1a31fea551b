"""index_select, gather, take, embedding, nonzero, masks and counts against PyTorch."""
import numpy as np
import pytest
from oracle import EVERY, agree, draw

import tritorch

I = np.array([2, 0, 2, 1])


def test_along_a_dim():
    x = draw(3, 4, 5, dtype="float64")
    for d in (0, 1, -1):
        agree(lambda lib, x, i, d=d: x.index_select(d, i), x, I, grad=True)
        agree(lambda lib, x, i, d=d: x.take_along_dim(i.reshape([-1 if k == d % 3 else 1 for k in range(3)]), d), x, I % 3, grad=True)
        for alpha in (1, 0.5):
            def add(lib, x, i, s, d=d, alpha=alpha):
                shape = list(x.shape)
                shape[d] = 4
                return x.index_add(d, i, s[:shape[0], :shape[1], :shape[2]], alpha=alpha)

            agree(add, x, I, draw(4, 4, 5, dtype="float64", seed=2), grad=True)
    for kind in EVERY:
        agree(lambda lib, x, i: (x.index_select(0, i), x.index_add(0, i, x[i])), (draw(3, 2, dtype=kind), kind), I, what=kind)
    for i in (np.array([3]), np.array([-1]), np.array([0.5]), np.array([[0]]), np.array([], np.int64), np.array(1), np.array([True])):
        agree(lambda lib, x, i: x.index_select(0, i) if i.numel() == 0 or i.max() > 2 or i.min() >= 0 else 0, draw(3, 2), i, what=str(i))
    agree(lambda lib, x, i: x.index_select(0, i), draw(), np.array([0]))
    agree(lambda lib, x, i: x.index_select(2, i), draw(3, 2), I)
    agree(lambda lib, x, i: x.clone().index_add_(0, i, x[:2]), draw(3), I)
    agree(lambda lib, x, i: x.index_add(0, i, x.double()[:1]), draw(3), np.array([0]))


def test_gather():
    x = draw(3, 4, 5, dtype="float64")
    for d in (0, 1, -1):
        n = x.shape[d]
        agree(lambda lib, x, i, d=d: x.gather(d, i), x, draw(2, 3, 4, dtype="int64", low=0, high=n), grad=True)
    for kind in EVERY:
        agree(lambda lib, x, i: x.gather(0, i), (draw(3, dtype=kind), kind), I, what=kind)
    agree(lambda lib, x, i: x.gather(0, i), draw(3), np.array([3]))
    agree(lambda lib, x, i: x.gather(0, i), draw(3), np.array([[0]]))
    agree(lambda lib, x, i: x.gather(1, i), draw(3, 2), np.zeros((4, 1), np.int64))
    agree(lambda lib, x, i: x.gather(0, i), draw(3), np.array([0.5]))
    agree(lambda lib, x, i: x.gather(0, i), draw(), np.array(0), grad=True)
    agree(lambda lib, x, i: x.gather(0, i), draw(), np.array([0, 0]))
    agree(lambda lib, x, i: (x.take(i), lib.take_along_dim(x, i), lib.take_along_dim(x, x.argsort(1), 1)), draw(3, 4),
          np.array([[0, 11], [5, 3]]))
    agree(lambda lib, x, i: x.take(i), draw(3, 4, dtype="float64"), np.array([0, 0, 5]), grad=True)
    agree(lambda lib, x, i: x.take(i), draw(3), np.array([3]))


def test_places():
    for kind in EVERY:
        x = (draw(4, 5, dtype=kind) * (draw(4, 5, seed=3) > 0)).astype(bool if kind == "bool" else None)
        agree(lambda lib, x: (x.nonzero(), x.nonzero(as_tuple=True), lib.argwhere(x), x.count_nonzero()), (x, kind), what=kind)
    for shape in ((), (0,), (3, 0), (2, 3, 2)):
        agree(lambda lib, x: (x.nonzero(), x.nonzero(as_tuple=True)), draw(*shape), what=str(shape))
    agree(lambda lib, x: x.nonzero(as_tuple=True), np.array(0))
    agree(lambda lib, x: (x.masked_select(x > 0), lib.masked_select(x, x[0] > 0)), draw(3, 4, dtype="float64"), grad=True)
    agree(lambda lib, x: x.masked_select(x), draw(3))
    agree(lambda lib, x: x.masked_select(x > 0), draw())


def test_counts():
    for kind in ("int64", "int32", "uint8", "int8"):
        agree(lambda lib, x: (x.bincount(), x.bincount(minlength=9), lib.bincount(x, x.float()), lib.bincount(x, x.double()),
                              lib.bincount(x, x)), (np.array([1, 3, 1, 0]), kind))
    agree(lambda lib, x: x.bincount(), np.array([], np.int64))
    agree(lambda lib, x: x.bincount(), np.array([-1]))
    agree(lambda lib, x: x.bincount(), np.array([[1]]))
    agree(lambda lib, x: x.bincount(), np.array([1.0]))
    agree(lambda lib, x: x.bincount(minlength=-1), np.array([1]))
    for n in (-1, 4, 2, 0):
        agree(lambda lib, x, n=n: lib.nn.functional.one_hot(x, n), np.array([[1, 0], [3, 2]]), what=str(n))
    agree(lambda lib, x: lib.nn.functional.one_hot(x), np.array([-1, 2]))
    agree(lambda lib, x: lib.nn.functional.one_hot(x), np.array([1.0]))
    agree(lambda lib, x: lib.unravel_index(x, (3, 4)), np.array([[0, 5], [11, 7]]))
    agree(lambda lib, x: lib.unravel_index(x, (3, 4)), np.array(7))


def test_embedding():
    w = draw(5, 3, dtype="float64")
    agree(lambda lib, w, i: lib.nn.functional.embedding(i, w), w, np.array([[0, 4], [0, 1]]), grad=True)
    agree(lambda lib, w, i: lib.nn.functional.embedding(i, w, padding_idx=-1), w, np.array([0, 4, 4, 2]), grad=True)
    agree(lambda lib, w, i: (lib.nn.functional.embedding(i, w, max_norm=0.5), w), w, np.array([0, 4, 4, 2]))
    agree(lambda lib, w, i: lib.nn.functional.embedding(i, w), w, np.array([5]))
    agree(lambda lib, w, i: lib.nn.functional.embedding(i, w), w, np.array([0.5]))
    agree(lambda lib, w, i: lib.nn.functional.embedding(i, w), w, np.zeros((2, 0), np.int64), grad=True)


FROM_THE_END = {
    "x[i]": lambda lib, x, i: x[i], "x[:, i]": lambda lib, x, i: x[:, i], "x[i, i]": lambda lib, x, i: x[i, i],
    "take": lambda lib, x, i: x.take(i),
    "index_fill": lambda lib, x, i: x.index_fill(0, i, 2.0), "index_put": lambda lib, x, i: x.index_put((i,), x[:2]),
    "accumulate": lambda lib, x, i: x.index_put((i, i), x[0, :2], True), "put_": lambda lib, x, i: x.clone().put_(i, x[0, :2])}
FROM_ZERO = {
    "index_select": lambda lib, x, i: x.index_select(0, i), "index_copy": lambda lib, x, i: x.index_copy(0, i, x[:2]),
    "index_add": lambda lib, x, i: x[:, 0].index_add(0, i, x[:2, 0]), "index_reduce": lambda lib, x, i: x.index_reduce(0, i, x[:2], "prod"),
    "gather": lambda lib, x, i: x.gather(0, i.reshape(2, 1)), "flat": lambda lib, x, i: lib.take_along_dim(x, i),
    "scatter": lambda lib, x, i: x.scatter(0, i.reshape(2, 1), x[:2, :1]), "value": lambda lib, x, i: x.scatter(0, i.reshape(2, 1), 2.0),
    "scatter_add": lambda lib, x, i: x.scatter_add(0, i.reshape(2, 1), x[:2, :1]),
    "scatter_reduce": lambda lib, x, i: x.scatter_reduce(0, i.reshape(2, 1), x[:2, :1], "amax"),
    "embedding": lambda lib, x, i: lib.nn.functional.embedding(i, x),
    "max_norm": lambda lib, x, i: lib.nn.functional.embedding(i, x.detach(), max_norm=1.0)}


def test_negative_indices_count_from_the_end_where_they_do_in_pytorch():
    x = draw(4, 4, dtype="float64")
    for name, f in (FROM_THE_END | FROM_ZERO).items():
        for index in ([0, 3], [0, -1], [-4, 1], [-5, 0], [4, 0]):
            agree(f, x, np.array(index), grad=name != "max_norm", what=f"{name} {index}")


WRITES = {
    "x[:, i]": lambda x, i: (slice(None), i), "x[..., i]": lambda x, i: (Ellipsis, i), "x[i, :, i]": lambda x, i: (i, slice(None), i),
    "x[:, i, i]": lambda x, i: (slice(None), i, i), "x[:, i[:, None]]": lambda x, i: (slice(None), i[:, None]),
    "x[1:, i, ::2]": lambda x, i: (slice(1, None), i, slice(None, None, 2)), "x[:, :, i > 1]": lambda x, i: (Ellipsis, MASK)}
MASK = np.arange(24) % 3 == 1


@pytest.mark.parametrize("name", WRITES)
@pytest.mark.parametrize("transposed", [False, True])
def test_writes_behind_a_slice_are_in_place(cuda, name, transposed):
    """Only what is written is touched: nothing of the size of the tensor is made."""
    array, index = draw(24, 24, 24), np.array([4, 1, 4, -6])
    want, x = array.copy(), tritorch.tensor(array).to(cuda)
    if transposed:
        want, x = want.transpose(2, 0, 1), x.permute(2, 0, 1)
    key = WRITES[name](want, index)
    values = draw(*want[key].shape)
    want[key] = values
    placed = tuple([tritorch.tensor(k).to(cuda) if isinstance(k, np.ndarray) else k for k in key])
    x[placed] = tritorch.tensor(values).to(cuda)
    np.testing.assert_array_equal(x.cpu().numpy(), want)
    before = tritorch.cuda.memory_allocated()
    tritorch.cuda.reset_peak_memory_stats()
    x[placed] = 2.0
    assert tritorch.cuda.max_memory_allocated() - before < x.numel()
    want[key] = 2.0
    np.testing.assert_array_equal(x.cpu().numpy(), want)


@pytest.mark.parametrize("name", FROM_THE_END)
def test_negative_indices_on_a_device(cuda, name):
    agree(FROM_THE_END[name], draw(4, 4), np.array([1, -1]), grad=True, device=cuda)


def test_take_along_dim_wraps_around(cuda):
    for device in ("cpu", cuda):
        agree(lambda lib, x, i: x.take_along_dim(i, 0), draw(4, 3), np.array([[-9, -1, 0], [3, 4, 9]]), grad=True, device=device)


@pytest.mark.parametrize("name", FROM_THE_END | FROM_ZERO)
def test_what_is_out_of_range_is_reported_by_a_device(cuda, name):
    bad = -17 if name in ("take", "put_") else -5 if name in FROM_THE_END else -1
    x, index = [tritorch.tensor(v).to(cuda) for v in (draw(4, 4), np.array([0, bad]))]
    (FROM_THE_END | FROM_ZERO)[name](tritorch, x, index * 0).cpu()
    made = (FROM_THE_END | FROM_ZERO)[name](tritorch, x, index)
    with pytest.raises(IndexError, match=str(bad)):
        made.cpu()
    made.cpu()                                                           # said once


def test_on_a_cuda_device(cuda):
    x, i = draw(3, 4), np.array([2, 0, 2, 1])
    for f in (lambda lib, x, i: x.index_select(0, i), lambda lib, x, i: x.index_add(0, i, x[i]),
              lambda lib, x, i: x.gather(0, i.reshape(1, 4) * 0 + 1),
              lambda lib, x, i: x.take(i), lambda lib, x, i: lib.nn.functional.embedding(i, x), lambda lib, x, i: x.masked_select(x > 0)):
        agree(f, x, i, grad=True, device=cuda)
    agree(lambda lib, x: (x.nonzero(), x.nonzero(as_tuple=True), (x > 0).nonzero()), draw(5, 7).round(), device=cuda)
    agree(lambda lib, x: (x.bincount(), lib.nn.functional.one_hot(x), lib.unravel_index(x, (2, 2))), i, device=cuda)
