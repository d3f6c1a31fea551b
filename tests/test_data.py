"""Datasets, samplers, collation and DataLoader, with and without worker processes."""
import collections
import functools
import gc
import os
import signal
import time
import typing

import numpy as np
import pytest

import tritorch
from tritorch.utils import data
from tritorch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset, default_collate, default_convert, get_worker_info

Point = collections.namedtuple("Point", "x y")


class Squares(Dataset):
    def __init__(self, n=23):
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, k):
        return {"x": tritorch.full((300,), float(k)), "k": k, "name": str(k), "array": np.ones(3, np.int32) * k ** 2}


class Odd(Squares):
    """Fails at 9 in the way asked for."""

    def __init__(self, how):
        super().__init__()
        self.how = how

    def __getitem__(self, k):
        if k == 9:
            self.how()
        return k


class Who(Squares):
    def __getitem__(self, k):
        info = get_worker_info()
        return (-1, 0) if info is None else (info.id + greeting, info.num_workers)


class Draw(Squares):
    def __getitem__(self, k):
        return tritorch.rand(1).item(), np.random.rand()


class Stream(IterableDataset):
    def __init__(self, n=11):
        self.n = n

    def __iter__(self):
        info = get_worker_info()
        return iter(range(self.n) if info is None else range(info.id, self.n, info.num_workers))


def greet(k):
    global greeting
    greeting = k


def refuse(k):
    raise ValueError("not today")


def raise_key_error():
    raise KeyError("nine")


class OddError(Exception):
    def __init__(self, a, b):
        super().__init__(a, b)


def raise_odd_error():
    raise OddError(1, 2)


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def sleep():
    time.sleep(30)


def unsendable(batch):
    return lambda: batch


def to_float(batch):
    return tritorch.tensor([float(k) for k in batch])


# ------------------------------------------------------------------ datasets
class ManyAtOnce(Dataset):
    def __getitems__(self, indices):
        return [("asked for at once", k) for k in indices]


def test_datasets():
    a, b = tritorch.arange(6).reshape(3, 2), tritorch.arange(3)
    pairs = TensorDataset(a, b)
    assert len(pairs) == 3 and pairs[1][0].tolist() == [2, 3] and pairs[1][1].item() == 1
    both = pairs + pairs
    assert isinstance(both, data.ConcatDataset) and len(both) == 6 and both[4][1].item() == 1 and both[-6][1].item() == 0
    assert [list(data.Subset("abcde", [4, 0]))[k] for k in (0, 1)] == ["e", "a"]
    assert list(Stream(3) + Stream(2)) == [0, 1, 2, 0, 1]
    stacked = data.StackDataset(pairs, "xyz")
    assert len(stacked) == 3 and stacked[2][1] == "z" and data.StackDataset(a="pq", b="rs")[1] == {"a": "q", "b": "s"}
    assert data.Subset("abcde", [4, 0]).__getitems__([1, 0]) == ["a", "e"]
    assert data.Subset(ManyAtOnce(), [4, 2]).__getitems__([0, 1]) == [("asked for at once", 4), ("asked for at once", 2)]
    for make, error in [(lambda: TensorDataset(a, tritorch.arange(2)), AssertionError), (lambda: data.ConcatDataset([]), AssertionError),
                        (lambda: data.ConcatDataset([Stream()]), AssertionError), (lambda: both[6], IndexError),
                        (lambda: both[-7], ValueError), (lambda: data.StackDataset(), ValueError),
                        (lambda: data.StackDataset("ab", "c"), ValueError), (lambda: Dataset()[0], NotImplementedError),
                        (lambda: data.random_split("abc", [1, 1]), ValueError)]:
        with pytest.raises(error):
            make()


def test_random_split():
    parts = data.random_split(range(10), [0.5, 0.25, 0.25], generator=tritorch.Generator().manual_seed(1))
    assert [len(p) for p in parts] == [6, 2, 2] and sorted(v for p in parts for v in p) == list(range(10))
    again = data.random_split(range(10), [6, 2, 2], generator=tritorch.Generator().manual_seed(1))
    assert [list(p) for p in again] == [list(p) for p in parts]
    with pytest.warns(UserWarning, match="part 1 is empty"):
        data.random_split(range(3), [1.0, 0.0])


# ------------------------------------------------------------------ samplers
def test_samplers():
    seeded = lambda: tritorch.Generator().manual_seed(5)  # noqa: E731
    assert list(data.SequentialSampler("abc")) == [0, 1, 2]
    order = list(data.RandomSampler(range(9), generator=seeded()))
    assert sorted(order) == list(range(9)) and order == list(data.RandomSampler(range(9), generator=seeded()))
    more = list(data.RandomSampler(range(4), num_samples=10))
    assert len(more) == 10 and sorted(more[:4]) == [0, 1, 2, 3]
    drawn = list(data.RandomSampler(range(4), replacement=True, num_samples=100))
    assert len(drawn) == 100 and set(drawn) == {0, 1, 2, 3}
    endless = iter(data.RandomSampler(range(4), replacement=True, num_samples=10**13))      # more than memory holds
    assert {next(endless) for _ in range(100)} == {0, 1, 2, 3}
    assert sorted(data.SubsetRandomSampler([7, 3])) == [3, 7]
    weighted = list(data.WeightedRandomSampler([0.1, 0.0, 0.9], 200, generator=seeded()))
    assert weighted.count(1) == 0 and weighted.count(2) > weighted.count(0)
    assert sorted(data.WeightedRandomSampler([1.0, 2.0, 3.0], 3, replacement=False)) == [0, 1, 2]
    assert list(data.BatchSampler(range(5), 2, True)) == [[0, 1], [2, 3]] and len(data.BatchSampler(range(5), 2, False)) == 3
    for make in (lambda: data.RandomSampler([]), lambda: data.BatchSampler("ab", 0, False), lambda: data.WeightedRandomSampler([1.0], 0),
                 lambda: data.BatchSampler("ab", 1, 1)):
        with pytest.raises(ValueError):
            make()
    tritorch.manual_seed(3)
    first = list(data.RandomSampler(range(50)))
    assert first != list(data.RandomSampler(range(50)))
    tritorch.manual_seed(3)
    assert first == list(data.RandomSampler(range(50)))


@pytest.mark.parametrize("n", [10, 11, 2])
@pytest.mark.parametrize("drop_last", [False, True])
def test_distributed_sampler_is_that_of_torch(n, drop_last):
    torch = pytest.importorskip("torch")
    for rank in range(3):
        ours, theirs = [m.utils.data.DistributedSampler(range(n), 3, rank, shuffle=False, drop_last=drop_last) for m in (tritorch, torch)]
        assert list(ours) == list(theirs) and len(ours) == len(theirs)
    parts = [data.DistributedSampler(range(9), 3, rank, seed=4) for rank in range(3)]
    orders = []
    for epoch in (0, 1):
        for p in parts:
            p.set_epoch(epoch)
        orders.append([list(p) for p in parts])
        assert sorted(sum(orders[-1], [])) == list(range(9))
    assert orders[0] != orders[1]


# ------------------------------------------------------------------ collation
def plain(x):
    """A batch as Python values with the dtypes of its tensors."""
    if hasattr(x, "tolist"):
        return str(x.dtype).split(".")[-1], x.tolist()
    if isinstance(x, dict):
        return {k: plain(v) for k, v in x.items()}
    if isinstance(x, (list, tuple)):
        return type(x).__name__, [plain(v) for v in x]
    return x


def test_collate_is_that_of_torch():
    torch = pytest.importorskip("torch")
    for make in (lambda t: [1, 2], lambda t: [1.5, 2.0], lambda t: [True, False], lambda t: ["a", "b"], lambda t: [b"a", b"b"],
                 lambda t: [np.float32(1), np.float32(2)], lambda t: [np.int16(1), np.int16(3)], lambda t: [np.zeros(2), np.ones(2)],
                 lambda t: [np.array(1), np.array(2)], lambda t: [(1, "x"), (2, "y")], lambda t: [[1, 2.0], [3, 4.0]],
                 lambda t: [{"a": 1, "b": (2,)}, {"a": 3, "b": (4,)}], lambda t: [Point(1, 2.0), Point(3, 4.0)],
                 lambda t: [collections.OrderedDict(z=1), collections.OrderedDict(z=2)], lambda t: [t.ones(2), t.zeros(2)]):
        assert plain(default_collate(make(tritorch))) == plain(torch.utils.data.default_collate(make(torch)))
    for make in (lambda t: [np.zeros(2), {"a": (np.ones(1), "b", 3)}], lambda t: (np.float64(2), t.ones(1)), lambda t: Point(np.ones(2), 1),
                 lambda t: np.array(["a"]), lambda t: "text"):
        assert plain(default_convert(make(tritorch))) == plain(torch.utils.data.default_convert(make(torch)))
    for bad, error in (([object()], TypeError), ([np.array(["a"])], TypeError), ([[1], [1, 2]], RuntimeError),
                       ([tritorch.ones(1), tritorch.ones(2)], RuntimeError)):
        with pytest.raises(error):
            default_collate(bad)


# ------------------------------------------------------------------ DataLoader
def order(workers, **options):
    generator = tritorch.Generator().manual_seed(3)
    loader = DataLoader(Squares(), batch_size=4, shuffle=True, generator=generator, num_workers=workers, **options)
    epochs = [[(b["k"].tolist(), b["x"][:, -1].tolist(), b["name"], b["array"].tolist()) for b in loader] for _ in range(2)]
    return epochs, generator.get_state().tolist()


def test_order_does_not_depend_on_workers():
    want = order(0)
    assert want[0][0] != want[0][1] and len(want[0][0]) == 6
    for options in ({}, {"prefetch_factor": 5}, {"persistent_workers": True}):
        assert order(2, **options) == want
    assert order(1) == order(3) == want


@pytest.mark.parametrize("context", ["spawn", "forkserver"])
def test_other_ways_to_start_workers(context):
    assert order(1, multiprocessing_context=context, persistent_workers=True) == order(0)


def test_batches_lie_in_shared_memory_and_stay():
    before = set(os.listdir("/dev/shm")) if os.path.isdir("/dev/shm") else set()
    kept = [b["x"] for b in DataLoader(Squares(), batch_size=8, num_workers=2)]
    kept[0] += 1
    assert kept[0][:, 5].tolist() == [k + 1.0 for k in range(8)] and kept[2].shape == (7, 300)
    assert not kept[1].storage.owner.flags.owndata
    if before:
        assert set(os.listdir("/dev/shm")) <= before
    iterator = iter(DataLoader(Squares(), batch_size=2, num_workers=2))
    next(iterator)
    del iterator                                                         # broken off: what was on its way goes too
    if before:
        assert set(os.listdir("/dev/shm")) <= before


def test_a_row_of_a_large_tensor_travels_alone():
    rows = tritorch.arange(1 << 18).reshape(1 << 10, 1 << 8)
    (first, *_) = DataLoader(rows, batch_size=None, num_workers=1)
    assert first.storage.nbytes == 8 << 8


@pytest.mark.parametrize("workers", [0, 1, 2, 3])
def test_iterable_dataset(workers):
    torch = pytest.importorskip("torch")

    class Theirs(torch.utils.data.IterableDataset):
        def __iter__(self):
            info = torch.utils.data.get_worker_info()
            return iter(range(11) if info is None else range(info.id, 11, info.num_workers))

    loader = functools.partial(torch.utils.data.DataLoader, Theirs(), num_workers=workers,
                               **{"multiprocessing_context": "fork"} if workers else {})        # Theirs, in a function, cannot be pickled
    for options in ({"batch_size": 3}, {"batch_size": 3, "drop_last": True}, {"batch_size": None}):
        ours = [b if isinstance(b, int) else b.tolist() for b in DataLoader(Stream(), num_workers=workers, **options)]
        theirs = [b if isinstance(b, int) else b.tolist() for b in loader(**options)]
        assert ours == theirs


def test_persistent_workers_go_on():
    loader = DataLoader(Stream(), batch_size=3, num_workers=2, persistent_workers=True)
    first = [b.tolist() for b in loader]
    pids = [p.pid for p in loader._iterator.workers.processes]
    assert [b.tolist() for b in loader] == first
    next(iter(loader))                                                   # broken off
    assert [b.tolist() for b in loader] == first and [p.pid for p in loader._iterator.workers.processes] == pids


def test_persistent_workers_end_with_their_loader():
    loader = DataLoader(Squares(4), num_workers=1, persistent_workers=True)
    assert len(list(loader)) == len(list(loader)) == 4
    (process,) = loader._iterator.workers.processes
    gc.disable()
    try:
        del loader
        assert process.exitcode == 0
    finally:
        gc.enable()


@pytest.mark.parametrize("workers", [0, 1])
def test_workers_know_who_they_are(workers):
    (batch,) = DataLoader(Who(1), num_workers=workers, worker_init_fn=greet)
    assert [x.item() for x in batch] == ([0, 1] if workers else [-1, 0]) and get_worker_info() is None


def test_workers_draw_different_numbers():
    def draw(seed):
        loader = DataLoader(Draw(4), num_workers=2, generator=tritorch.Generator().manual_seed(seed))
        return [[x.item() for x in batch] for batch in loader]

    first = draw(0)
    assert len({x for row in first for x in row}) == 8 and draw(0) == first != draw(1)


@pytest.mark.parametrize("how", [raise_key_error, raise_odd_error])
def test_errors_of_workers(how):
    loader = DataLoader(Odd(how), batch_size=4, num_workers=2, persistent_workers=True)
    iterator = iter(loader)
    assert next(iterator).tolist() == [0, 1, 2, 3] and next(iterator).tolist() == [4, 5, 6, 7]
    error = KeyError if how is raise_key_error else RuntimeError
    with pytest.raises(error, match="(?s)in DataLoader worker process 0.*in __getitem__"):
        next(iterator)
    assert next(iterator).tolist() == [12, 13, 14, 15]                   # the loader lives on


def test_results_that_cannot_be_sent():
    with pytest.raises(Exception, match="sent a batch"):
        list(DataLoader(Squares(), num_workers=1, collate_fn=unsendable))


def test_a_worker_that_fails_at_the_start():
    with pytest.raises(ValueError, match="not today"):
        list(DataLoader(Squares(), num_workers=1, worker_init_fn=refuse))


def test_dead_and_slow_workers():
    loader = DataLoader(Odd(die), batch_size=4, num_workers=2)
    with pytest.raises(RuntimeError, match="SIGKILL"):
        list(loader)
    loader, start = DataLoader(Odd(sleep), batch_size=4, num_workers=1, timeout=0.5), time.time()
    with pytest.raises(RuntimeError, match="within 0.5 seconds"):
        list(loader)
    assert time.time() - start < 10


def test_collate_fn_samplers_and_lengths():
    loader = DataLoader(range(10), batch_size=4, collate_fn=to_float, drop_last=True)
    assert [b.tolist() for b in loader] == [[0, 1, 2, 3], [4, 5, 6, 7]] and len(loader) == 2
    loader = DataLoader(range(10), batch_sampler=[[1, 2], [9]])
    assert [b.tolist() for b in loader] == [[1, 2], [9]] and len(loader) == 2
    assert [b.tolist() for b in DataLoader(range(10), sampler=[3, 1], batch_size=2, num_workers=1)] == [[3, 1]]
    assert list(DataLoader(range(3), batch_size=None)) == [0, 1, 2]

    class Sized(Stream):
        def __len__(self):
            return 5

    loader = DataLoader(Sized(), batch_size=2)
    assert len(loader) == 3
    with pytest.warns(UserWarning, match="got more"):
        list(loader)


def test_pinned_batches(cuda):
    batch = next(iter(DataLoader(Squares(), batch_size=2, pin_memory=True)))
    assert batch["x"].is_pinned() and batch["k"].is_pinned() and batch["name"] == ["0", "1"]
    for batch in DataLoader(TensorDataset(tritorch.arange(8.0)), batch_size=4, pin_memory=True, num_workers=1):
        assert batch[0].is_pinned() and (batch[0].to(cuda, non_blocking=True) + 1).sum().item() in (10, 26)


def test_options_that_exclude_each_other():
    for options in ({"num_workers": -1}, {"timeout": -1}, {"prefetch_factor": 2}, {"persistent_workers": True},
                    {"shuffle": True, "sampler": [1]}, {"batch_sampler": [[1]], "batch_size": 2}, {"batch_size": None, "drop_last": True},
                    {"multiprocessing_context": "fork"},
                    {"num_workers": 1, "prefetch_factor": 0}, {"batch_size": 0}):
        with pytest.raises(ValueError):
            DataLoader(range(3), **options)
    for options in ({"shuffle": True}, {"sampler": [1]}, {"batch_sampler": [[1]]}):
        with pytest.raises(ValueError):
            DataLoader(Stream(), **options)
    loader = DataLoader(range(3))
    with pytest.raises(ValueError):
        loader.batch_size = 2
    loader.collate_fn = to_float


def test_loaders_can_be_annotated():
    assert typing.get_origin(data.DataLoader[int]) is data.DataLoader


def test_rows_of_a_tensor_dataset_are_what_its_samples_collate_to():
    tensors = tritorch.arange(12).reshape(6, 2), tritorch.arange(6.0, requires_grad=True)

    class Doubled(TensorDataset):
        def __getitem__(self, index):
            return [2 * x for x in super().__getitem__(index)]

    x, y = next(iter(DataLoader(TensorDataset(*tensors), sampler=[4, 0, -1], batch_size=3)))
    assert x.tolist() == [[8, 9], [0, 1], [10, 11]] and y.tolist() == [4.0, 0.0, 5.0]
    y.sum().backward()
    assert tensors[1].grad.tolist() == [1.0, 0.0, 0.0, 0.0, 1.0, 1.0]
    assert next(iter(DataLoader(Doubled(*tensors), batch_size=2)))[0].tolist() == [[0, 2], [4, 6]]
    with pytest.raises(IndexError):
        next(iter(DataLoader(TensorDataset(*tensors), sampler=[6], batch_size=1)))
