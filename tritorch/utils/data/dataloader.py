"""DataLoader: batches of a dataset, fetched here or by worker processes, in the same order either way."""
import copy
import itertools
import math
import multiprocessing
import multiprocessing.util
import warnings
from typing import Generic

from tritorch.cuda.device import is_available
from tritorch.errors import check, real_numbers
from tritorch.profiler.recorder import record_function
from tritorch.utils.data.collate import default_collate, default_convert, pinned
from tritorch.utils.data.dataset import IterableDataset, T, TensorDataset
from tritorch.utils.data.sampler import BatchSampler, RandomSampler, SequentialSampler, drawn_seed
from tritorch.utils.data.worker import Exhausted, Failure, Workers


class DataLoader(Generic[T]):
    """Iterates over the batches of a dataset.

    `batch_size` samples make a batch (None: samples come one by one, uncollated); the last is shorter unless `drop_last`. The order is
    that of `sampler` (indices) or `batch_sampler` (lists of indices), else random if `shuffle`, from `generator`, else as it is:
    the same seed gives the same batches with any number of workers. `collate_fn` makes a batch of a list of samples.
    `num_workers` processes fetch ahead, `prefetch_factor` batches each (default 2); `persistent_workers` keeps them between epochs,
    `worker_init_fn(id)` runs first in each, `timeout` seconds are waited for a batch (0: for ever), `multiprocessing_context` says
    how they start: "fork", "forkserver" or "spawn" (None: as Python does by default, on Linux "forkserver" since 3.14; for all but "fork"
    what they are given must be picklable). `pin_memory` puts batches into page-locked memory where there is a GPU. An error in a worker
    is raised here with the worker's traceback. `in_order=False` yields batches as they come. Raises ValueError for options that exclude
    each other.

    >>> import tritorch as torch
    >>> dataset = torch.utils.data.TensorDataset(torch.arange(5))
    >>> [batch.tolist() for batch, in torch.utils.data.DataLoader(dataset, batch_size=2)]
    [[0, 1], [2, 3], [4]]
    """

    _iterator = None
    _ready = False

    def __init__(self, dataset, batch_size=1, shuffle=None, sampler=None, batch_sampler=None, num_workers=0, collate_fn=None,
                 pin_memory=False, drop_last=False, timeout=0, worker_init_fn=None, multiprocessing_context=None, generator=None, *,
                 prefetch_factor=None, persistent_workers=False, pin_memory_device="", in_order=True):
        _check_numbers(num_workers, timeout, prefetch_factor, persistent_workers, multiprocessing_context)
        self.dataset, self.num_workers, self.timeout, self.worker_init_fn = dataset, num_workers, timeout, worker_init_fn
        self.pin_memory, self.pin_memory_device, self.generator, self.in_order = pin_memory, pin_memory_device, generator, in_order
        self.prefetch_factor = 2 if num_workers and prefetch_factor is None else prefetch_factor
        self.persistent_workers, self.multiprocessing_context = persistent_workers, multiprocessing_context
        self._iterable = isinstance(dataset, IterableDataset)
        _check_order(self._iterable, batch_size, shuffle, sampler, batch_sampler, drop_last)
        if batch_sampler is not None:
            batch_size, drop_last = None, False
        if sampler is None and self._iterable:
            sampler = _Endless()
        elif sampler is None:
            sampler = RandomSampler(dataset, generator=generator) if shuffle else SequentialSampler(dataset)
        if batch_size is not None:
            batch_sampler = BatchSampler(sampler, batch_size, drop_last)
        self.batch_size, self.drop_last, self.sampler, self.batch_sampler = batch_size, drop_last, sampler, batch_sampler
        check(collate_fn is None or callable(collate_fn), "DataLoader", "a function as collate_fn", type(collate_fn).__name__,
              error=TypeError)
        self.collate_fn = (default_convert if batch_sampler is None else default_collate) if collate_fn is None else collate_fn
        self._ready = True

    def __setattr__(self, name, value):
        fixed = self._ready and name in ("batch_size", "batch_sampler", "sampler", "drop_last", "dataset", "persistent_workers")
        check(not fixed, "DataLoader", f"{name} to stay as it was set", "another value", use="a new DataLoader", error=ValueError)
        super().__setattr__(name, value)

    def __iter__(self):
        if not self.num_workers:
            check(not self.timeout, "DataLoader", "timeout 0 without workers", self.timeout, error=AssertionError)
            return _SingleProcessDataLoaderIter(self)
        if not self.persistent_workers:
            return _MultiProcessingDataLoaderIter(self)
        options = copy.copy(self)                                        # so that the workers end when the loader dies: no cycle
        vars(options).pop("_iterator", None)
        if self._iterator is None or not self._iterator.workers.processes:
            self._iterator = _MultiProcessingDataLoaderIter(options)
        else:
            self._iterator.start_over(options)
        return self._iterator

    @property
    def _dataset_kind(self):
        return _DatasetKind.Iterable if self._iterable else _DatasetKind.Map

    @property
    def _index_sampler(self):
        return self.sampler if self.batch_sampler is None else self.batch_sampler

    def __len__(self):
        if not self._iterable:
            return len(self._index_sampler)
        count = len(self.dataset)
        return count if self.batch_size is None else count // self.batch_size if self.drop_last else math.ceil(count / self.batch_size)

    @property
    def _auto_collation(self):
        return self.batch_sampler is not None


class _DatasetKind:
    """Names of the kinds of datasets, which packages compare `DataLoader._dataset_kind` with."""

    Map, Iterable = 0, 1


class _Endless:
    """Stands for the order of an IterableDataset, which only it knows."""

    def __iter__(self):
        return itertools.repeat(None)


def _check_numbers(num_workers, timeout, prefetch_factor, persistent_workers, context):
    name = "DataLoader"
    real_numbers(name, num_workers=num_workers, timeout=timeout)
    check(num_workers >= 0, name, "num_workers ≥ 0", num_workers, error=ValueError)
    check(timeout >= 0, name, "timeout ≥ 0", timeout, error=ValueError)
    check(num_workers or prefetch_factor is None, name, "num_workers > 0 with prefetch_factor", num_workers, error=ValueError)
    check(prefetch_factor is None or prefetch_factor > 0, name, "prefetch_factor > 0", prefetch_factor, error=ValueError)
    check(num_workers or not persistent_workers, name, "num_workers > 0 with persistent_workers", num_workers, error=ValueError)
    check(num_workers or context is None, name, "num_workers > 0 with multiprocessing_context", num_workers, error=ValueError)


def _check_order(iterable, batch_size, shuffle, sampler, batch_sampler, drop_last):
    name = "DataLoader"
    if iterable:
        check(not shuffle, name, "no shuffle with an IterableDataset", shuffle, error=ValueError)
        check(sampler is None, name, "no sampler with an IterableDataset", sampler, error=ValueError)
        check(batch_sampler is None, name, "no batch_sampler with an IterableDataset", batch_sampler, error=ValueError)
    check(sampler is None or not shuffle, name, "either a sampler or shuffle", "both", error=ValueError)
    if batch_sampler is not None:
        check(batch_size == 1 and not shuffle and sampler is None and not drop_last, name,
              "a batch_sampler alone", "batch_size, shuffle, sampler or drop_last with it", error=ValueError)
    check(batch_size is not None or not drop_last, name, "a batch_size with drop_last", None, error=ValueError)


# ------------------------------------------------------------------ fetching
class _MapFetch:
    """Batches by their indices."""

    def __init__(self, dataset, collate, batched, drop_last):
        self.dataset, self.collate, self.batched, self.drop_last = dataset, collate, batched, drop_last

    @classmethod
    def maker(cls, *options):
        return _Maker(cls, options)

    def __call__(self, indices):
        if not self.batched:
            return self.collate(self.dataset[indices])
        if self.collate is default_collate and type(self.dataset) is TensorDataset:
            return self.dataset.rows(indices)
        several = getattr(self.dataset, "__getitems__", None)
        return self.collate(several(indices) if callable(several) else [self.dataset[k] for k in indices])


class _IterableFetch(_MapFetch):
    """The next batches of an IterableDataset; the indices only say how many samples."""

    def __init__(self, dataset, *options):
        super().__init__(dataset, *options)
        self.samples = iter(dataset)

    def __call__(self, indices):
        if not self.batched:
            return self.collate(next(self.samples))
        found = list(itertools.islice(self.samples, len(indices)))
        if not found or (self.drop_last and len(found) < len(indices)):
            raise StopIteration
        return self.collate(found)


class _Maker:
    """Makes the fetch of a dataset, in whatever process."""

    def __init__(self, cls, options):
        self.cls, self.options = cls, options

    def __call__(self, dataset):
        return self.cls(dataset, *self.options)


# ------------------------------------------------------------------ iterating
# packages hand loaders of their own to these classes, with the attributes that PyTorch's have
def _is_iterable(loader):
    return loader._dataset_kind == _DatasetKind.Iterable


def _fetch_maker(loader):
    return (_IterableFetch if _is_iterable(loader) else _MapFetch).maker(loader.collate_fn, loader._auto_collation, loader.drop_last)


class _BaseDataLoaderIter:
    def __init__(self, loader):
        self.loader, self.seed = loader, drawn_seed(loader.generator)    # drawn with and without workers: the order must not depend on them
        self.pins = loader.pin_memory and is_available()
        self.indices, self.yielded = iter(loader._index_sampler), 0

    def __iter__(self):
        return self

    def __next__(self):
        with record_function(f"enumerate(DataLoader)#{type(self).__name__}.__next__"):               # as PyTorch calls it
            return self.batch()

    def __len__(self):
        return len(self.loader)

    def _told(self):
        """How many batches an IterableDataset says it has, if it does."""
        try:
            return len(self.loader) if hasattr(self.loader.dataset, "__len__") else None
        except (TypeError, NotImplementedError):                         # one that is made of others, which do not say
            return None

    def finished(self, batch):
        """The last touch of a batch before it is given away."""
        self.yielded += 1
        if _is_iterable(self.loader) and self.yielded - 1 == (told := self._told()):
            warnings.warn(f"DataLoader: expected {told} batches by the dataset's length, got more; with workers, each must "
                          "yield only its own part (see get_worker_info)", stacklevel=4)
        return pinned(batch) if self.pins else batch


class _SingleProcessDataLoaderIter(_BaseDataLoaderIter):
    """Fetches in this process."""

    def __init__(self, loader):
        super().__init__(loader)
        self.fetch = _fetch_maker(loader)(loader.dataset)

    def batch(self):
        return self.finished(self.fetch(next(self.indices)))


class _MultiProcessingDataLoaderIter(_BaseDataLoaderIter):
    """Hands out tasks to the workers in turn and puts the results back in order.

    A task is named (epoch, number), so that what is left of an epoch that was broken off is recognised and dropped.
    """

    def __init__(self, loader):
        super().__init__(loader)
        context = loader.multiprocessing_context
        if context is None or isinstance(context, str):
            context = multiprocessing.get_context(context)
        maker, count = _fetch_maker(loader), loader.num_workers
        self.workers = Workers(context, count, maker, loader.dataset, loader.worker_init_fn, self.seed)
        self.end = multiprocessing.util.Finalize(self, self.workers.close, exitpriority=10)      # at exit before the workers are killed
        self.epoch = 0
        self.begin()

    def _shutdown_workers(self):
        """End the processes. Packages call it, under this name."""
        self.end()

    def begin(self):
        self.results, self.owner, self.sent, self.wanted = {}, {}, 0, 0
        self.active = [True] * self.loader.num_workers
        self.turn = itertools.cycle(range(self.loader.num_workers))
        for _ in range(self.loader.prefetch_factor * self.loader.num_workers):
            self.send()

    def start_over(self, loader):
        """Begin the next epoch with the same processes."""
        super().__init__(loader)
        self.epoch += 1
        for k in range(self.loader.num_workers) if _is_iterable(self.loader) else ():
            self.workers.submit(k, ("epoch", self.seed + k))
        self.begin()

    def send(self):
        """Give the next task to the next worker that still has data."""
        worker = next((k for k in itertools.islice(self.turn, len(self.active)) if self.active[k]), None)
        indices = next(self.indices, self) if worker is not None else self
        if indices is not self:
            self.owner[self.sent] = worker
            self.workers.submit(worker, ((self.epoch, self.sent), indices))
            self.sent += 1

    def batch(self):
        try:
            name = self.due()
        except BaseException:                                            # a dead worker, a timeout, Ctrl-C: no process is left behind
            self.end()
            raise
        if name is None:
            if not self.loader.persistent_workers:
                self.end()
            raise StopIteration
        result = self.results.pop(name)
        del self.owner[name]
        self.send()
        if isinstance(result, Failure):
            result.throw()
        return self.finished(result)

    def due(self):
        """The name of the task whose result is next, waited for; None at the end."""
        while self.owner:
            if self.loader.in_order:
                name = min(self.owner)
                name = name if name in self.results else None
            else:
                name = next(iter(self.results), None)
            if name is None:
                self.collect()
            elif isinstance(self.results[name], Exhausted):
                del self.results[name], self.owner[name]
            else:
                return name
        return None

    def collect(self):
        """Wait for results of any worker."""
        timeout = self.loader.timeout
        arrived = self.workers.receive(timeout or None)
        check(arrived, "DataLoader", f"a batch within {timeout} seconds", "none")
        for worker, (epoch, number), result in arrived:
            if epoch != self.epoch:
                continue
            self.results[number] = result
            if isinstance(result, Exhausted) and self.active[worker]:
                self.active[worker] = False
                self.send()
