"""x[key] and x[key] = v against PyTorch on random keys: the same values, gradients and exception types."""
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from oracle import agree, draw

SHAPES = [(4,), (3, 4), (2, 3, 4), (2, 1, 3, 2), (), (0, 3), (3, 0, 2)]


def key_of(lib, items, device=None):
    """A key made for one library: arrays become its tensors."""
    def one(k):
        if not isinstance(k, np.ndarray):
            return k
        made = lib.tensor(k)
        return made.to(device) if device is not None and lib.__name__ == "tritorch" else made
    made = tuple([one(k) for k in items])
    return made[0] if len(made) == 1 else made


numbers = st.integers(-5, 5)
maybe = st.one_of(st.none(), numbers)
slices = st.builds(slice, maybe, maybe, st.one_of(st.none(), st.integers(1, 3)))
whole = st.one_of(st.sampled_from([(), (1,), (2,), (3,), (2, 1), (0,)])).flatmap(
    lambda shape: st.lists(st.integers(-2, 1), min_size=int(np.prod(shape)),
                           max_size=int(np.prod(shape))).map(lambda v: np.array(v, np.int64).reshape(shape)))
masks = st.one_of(st.sampled_from([(2,), (3,), (4,), (3, 4), (2, 3), ()])).flatmap(
    lambda shape: st.lists(st.booleans(), min_size=int(np.prod(shape)),
                           max_size=int(np.prod(shape))).map(lambda v: np.array(v, bool).reshape(shape)))
items = st.one_of(numbers, slices, st.none(), st.just(Ellipsis), st.booleans(), whole, masks,
                  st.lists(st.integers(-2, 1), min_size=1, max_size=3))
keys = st.lists(items, min_size=1, max_size=4).filter(lambda key: sum(k is Ellipsis for k in key) < 2)     # PyTorch passes over the second
relaxed = settings(deadline=None, max_examples=300, derandomize=True, suppress_health_check=list(HealthCheck))


@relaxed
@given(st.sampled_from(SHAPES), keys)
def test_reading(shape, key):
    agree(lambda lib, x: x[key_of(lib, key)], draw(*shape, dtype="float64"), grad=True, what=f"{shape}[{key}]")


@relaxed
@given(st.sampled_from(SHAPES), keys, st.sampled_from(["number", "same", "scalar", "one", "wrong"]))
def test_writing(shape, key, kind):
    """Gradients of the values are left out: with repeated places PyTorch gives them to values that were overwritten."""
    def program(lib, x, v):
        y = x * 1
        picked = y[key_of(lib, key)].shape
        value = {"number": 2.5, "scalar": v.sum(), "one": v[:1],
                 "same": v.sum() + lib.zeros(picked, dtype=lib.float64) + y[key_of(lib, key)].detach(),
                 "wrong": lib.ones(*picked, 5, dtype=lib.float64)}[kind]
        y[key_of(lib, key)] = value
        return y

    agree(program, draw(*shape, dtype="float64"), draw(3, dtype="float64", seed=1), grad=(0,), what=f"{shape}[{key}] = {kind}")


def test_particular_keys():
    for key in ((1,), (-1,), (slice(None), 1), (Ellipsis, 0), (0, Ellipsis), (None,), (Ellipsis,), (slice(None, None, 2),), (slice(5, 1),),
                (slice(0, 2), None, 1),
                (np.array([0, 2]), np.array([1, 1])), (np.array([[0], [2]]), np.array([1, 3])),
                (np.array([0, 2]), slice(None), np.array([1, 1])),
                (slice(None), np.array([0, 1]), np.array([1, 1])), (None, np.array([0, 1])), (np.array([0, 1]), None, np.array([0, 1])),
                (True,), (False,),
                (True, 0), ([0, 1],), ([0, 1], [1, 2]), (np.array([True, False, True]),), (np.array([True, False, True]), np.array([0, 1])),
                (3,), (-4,), (0, 0, 0, 0), (slice(None, None, -1),), (slice(None, None, 0),), (1.5,), (np.array([5]),), (np.array([-4]),),
                (np.array([True, False]),), (np.array([0.5]),), (np.int64(1),), (np.array(1),), (np.array(1), 0), ([],),
                (np.zeros((0, 2), np.int64),),
                (np.array([0, 1], np.uint8),), (np.array([0, 1], np.int32),), (range(2),), (slice(np.int64(1), None),),
                (0, slice(None), np.array([0, 1])),
                (np.array([0, 1]), 0), (0, np.array([0, 1]))):
        for shape in ((3, 4, 2), (3, 4)):
            agree(lambda lib, x, key=key: x[key_of(lib, key)], draw(*shape), grad=True, what=f"{shape}[{key}]")

            def write(lib, x, key=key):
                x = x.clone()
                x[key_of(lib, key)] = 7
                return x

            agree(write, draw(*shape), what=f"{shape}[{key}] = 7")


def test_views_or_copies():
    def program(lib, x, f):
        f(lib, x).fill_(9)
        return x

    for f in (lambda lib, x: x[1], lambda lib, x: x[..., 0], lambda lib, x: x[:, None], lambda lib, x: x[lib.tensor([0])],
              lambda lib, x: x[x > 100],
              lambda lib, x: x[:], lambda lib, x: x[...], lambda lib, x: x[True], lambda lib, x: x[lib.tensor(1)], lambda lib, x: x[()]):
        agree(lambda lib, x, f=f: program(lib, x, f), draw(3, 4), what=str(f.__code__.co_consts))


def test_values_that_are_cast():
    for kind in ("int64", "bool", "float32", "bfloat16"):
        def program(lib, x, v):
            x = x.clone()
            x[0] = v[:1]
            x[lib.tensor([1, 2])] = v[1].to(x.dtype)
            x[x == 3] = 0
            x[-1] = 2.7
            x[lib.tensor([3])] = True
            return x

        agree(program, (np.arange(6), kind), np.array([1.0, 2.0, 3.0]), what=kind)
    for value in ([1, 2, 3, 4], np.array([1.5, 2, 3, 4]), [[1], [2]], "a", None):
        def write(lib, x, value=value):
            x = x.clone()
            x[1] = value
            return x

        if not isinstance(value, (list, np.ndarray)):                    # PyTorch takes no lists and arrays here
            agree(write, draw(2, 4), what=repr(value))


def test_lists_that_stand_for_tuples():
    """As in PyTorch to this day: a list with a list, a tensor, a slice, None or ... in it."""
    for key in ([[0, 1], [1, 2]], [[0, 1]], [slice(None), [1, 0]], [None, 1], [Ellipsis, 0], [(0, 1), 1],
                [np.array([0, 1]), np.array([1, 1])]):
        def program(lib, x, key=key):
            made = [lib.tensor(k) if isinstance(k, np.ndarray) else k for k in key]
            with pytest.warns(UserWarning):
                y, seen = x.clone(), x[made]
                y[made] = 3
            return seen, y

        agree(program, draw(2, 3, 4), what=str(key))
    agree(lambda lib, x: x[[0, 1, 1]], draw(2, 3))


def test_masks_of_uint8_warn():
    def program(lib, x):
        with pytest.warns(UserWarning, match="uint8 is (now )?deprecated"):
            return x[lib.tensor([1, 0, 1], dtype=lib.uint8)]

    agree(program, draw(3, 2))


def test_repeated_places():
    agree(lambda lib, x: x[lib.tensor([0, 0, 1])], draw(3, 2), grad=True)
    agree(lambda lib, x: x[[0, 0], [1, 1]], draw(3, 2), grad=True)

    def program(lib, x, v):
        y = x * 1
        y[lib.tensor([0, 0, 1])] += v
        return y

    agree(program, draw(3), draw(3, seed=1))


def test_gradients_through_writes():
    def program(lib, x, v):
        y = x * 2
        y[1:, ::2] = v
        y[lib.tensor([0]), 1] = v[0, 0] * 3
        y[y > 1] = 0
        y[0] += v[0, 0]
        return y * y

    agree(program, draw(3, 4, dtype="float64"), draw(2, 2, dtype="float64", seed=3), grad=True)


def test_iteration_and_membership():
    agree(lambda lib, x: (list(x), len(x), 1.0 in x, [float(v) for v in x[0]]), np.array([[1.0, 2.0], [3.0, 4.0]]))
    for f in (lambda x: "a" in x, lambda x: len(x), lambda x: list(x), lambda x: x[0], lambda x: int(x), lambda x: [10, 20, 30][x]):
        agree(lambda lib, x, f=f: f(x), np.array(1), what=str(f.__code__.co_names))


@pytest.mark.parametrize("shape", [(3, 4), (2, 3, 4)])
def test_on_a_cuda_device(cuda, shape):
    a, b = np.array([1, 0]), np.array([[1], [0]])
    for key in ((1, slice(None, None, 2)), (a,), (slice(None), a), (a, np.array([1, 2])), (b, a), (None, a), (np.arange(shape[0]) == 1,),
                (Ellipsis, b)):
        agree(lambda lib, x, key=key: x[key_of(lib, key, cuda)], draw(*shape), grad=True, device=cuda, what=str(key))

        def write(lib, x, key=key):
            y = x * 1
            y[key_of(lib, key, cuda)] = y[key_of(lib, key, cuda)].sum()
            return y

        agree(write, draw(*shape), grad=True, device=cuda, what=str(key), rtol=1e-5)


def test_indices_of_the_host_pick_on_the_device(cuda):                   # x[torch.randperm(n)], a mask that was kept beside the data
    import tritorch as torch

    start = np.arange(12.0, dtype=np.float32).reshape(3, 4)
    x, rows, mask = torch.from_numpy(start.copy()).to(cuda).requires_grad_(), torch.tensor([2, 0]), torch.tensor([True, False, True])
    for key, same in ((rows, [2, 0]), (mask, [0, 2]), ((rows, torch.tensor([1, 3]).to(cuda)), ([2, 0], [1, 3])),
                      ((slice(1, 3), torch.tensor([0, 3])), (slice(1, 3), [0, 3])), (x.detach().cpu() > 4, start > 4)):
        x.grad = None
        y = x[key]
        (y * y).sum().backward()
        assert y.device == x.device and y.tolist() == start[same].tolist()
        want = np.zeros_like(start)
        want[same] = 2 * start[same]
        assert x.grad.tolist() == want.tolist()
    y, want = x.detach().clone(), start.copy()
    y[rows], want[[2, 0]] = torch.ones(2, 4, device=cuda), 1
    y[mask], want[[0, 2]] = 7, 7
    y.index_put_((rows, torch.tensor([1, 1])), torch.tensor(3.0, device=cuda))
    want[[2, 0], 1] = 3
    assert y.tolist() == want.tolist()
    for refused in (lambda: x.detach().cpu()[rows.to(cuda)], lambda: y.__setitem__(rows, torch.ones(2, 4))):
        with pytest.raises(RuntimeError, match="one device"):
            refused()


def test_a_fill_under_a_mask_needs_no_count(cuda):
    """So it can be captured; masks of fewer dims, of the host's, numbers and values of one element fill."""
    import tritorch as torch

    start = np.arange(12.0, dtype=np.float32).reshape(3, 4)
    x, mask, row = torch.from_numpy(start).to(cuda), torch.from_numpy(start > 4).to(cuda), torch.tensor([True, False, True])
    x[mask] = 0
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        x[mask] = 2.5
    graph.replay()
    want = np.where(start > 4, np.float32(2.5), start)
    assert x.tolist() == want.tolist()
    x[row] = torch.tensor([7.0], dtype=torch.float64, device=cuda)
    want[[0, 2]] = 7
    x[mask] = np.float32(1.5)
    want[start > 4] = 1.5
    assert x.tolist() == want.tolist()
    whole = torch.arange(3, device=cuda)
    whole[row] = 2.7
    assert whole.tolist() == [2, 1, 2]
    for wrong in (torch.tensor([True, False]), mask[:, :3], mask[None]):
        with pytest.raises(IndexError):
            x[wrong.to(cuda)] = 0
