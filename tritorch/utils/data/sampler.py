"""Samplers: in which order, and in which batches, the indices of a dataset come."""
import itertools
from typing import Generic, TypeVar

from tritorch.dtype import float64, int64
from tritorch.errors import check
from tritorch.generator import Generator
from tritorch.interop import as_tensor
from tritorch.ops.create import empty
from tritorch.ops.random import multinomial, randint, random_, randperm

T = TypeVar("T", covariant=True)


def drawn_seed(generator=None):
    """A seed from a generator (the default one of the CPU without)."""
    return random_(empty((), dtype=int64, device="cpu"), generator=generator).item()


class Sampler(Generic[T]):
    """Yields indices: subclasses give `__iter__` and, where it is known, `__len__`."""

    def __iter__(self):
        raise NotImplementedError(f"{type(self).__name__}: expected a method __iter__ in the subclass")


class SequentialSampler(Sampler[int]):
    """0, 1, … in order.

    >>> import tritorch as torch
    >>> list(torch.utils.data.SequentialSampler(["a", "b", "c"]))
    [0, 1, 2]
    """

    def __init__(self, data_source):
        self.data_source = data_source

    def __iter__(self):
        return iter(range(len(self.data_source)))

    def __len__(self):
        return len(self.data_source)


class RandomSampler(Sampler[int]):
    """Indices in random order; with `replacement` each drawn anew. `num_samples`: how many, by default as many as there are.

    >>> import tritorch as torch
    >>> sorted(torch.utils.data.RandomSampler(["a", "b", "c"]))
    [0, 1, 2]
    """

    def __init__(self, data_source, replacement=False, num_samples=None, generator=None):
        self.data_source, self.replacement, self._num_samples, self.generator = data_source, replacement, num_samples, generator
        check(isinstance(replacement, bool), "RandomSampler", "a bool as replacement", replacement, error=TypeError)
        check(isinstance(self.num_samples, int) and self.num_samples > 0, "RandomSampler", "a positive number of samples", self.num_samples,
              error=ValueError)

    @property
    def num_samples(self):
        """How many samples one pass draws."""
        return len(self.data_source) if self._num_samples is None else self._num_samples

    def __iter__(self):
        n, count = len(self.data_source), self.num_samples
        generator = Generator().manual_seed(drawn_seed()) if self.generator is None else self.generator
        if self.replacement:
            for start in range(0, count, 32):                            # a few at a time: there may be more than memory holds
                yield from randint(n, (min(32, count - start),), generator=generator, device="cpu").tolist()
            return
        for start in range(0, count, n):
            yield from randperm(n, generator=generator, device="cpu").tolist()[:count - start]

    def __len__(self):
        return self.num_samples


class SubsetRandomSampler(Sampler[int]):
    """The given indices in random order.

    >>> import tritorch as torch
    >>> sorted(torch.utils.data.SubsetRandomSampler([7, 2]))
    [2, 7]
    """

    def __init__(self, indices, generator=None):
        self.indices, self.generator = indices, generator

    def __iter__(self):
        for k in randperm(len(self.indices), generator=self.generator, device="cpu").tolist():
            yield self.indices[k]

    def __len__(self):
        return len(self.indices)


class WeightedRandomSampler(Sampler[int]):
    """Indices with chances in proportion to `weights`.

    >>> import tritorch as torch
    >>> list(torch.utils.data.WeightedRandomSampler([0.0, 1.0], 3))
    [1, 1, 1]
    """

    def __init__(self, weights, num_samples, replacement=True, generator=None):
        check(isinstance(num_samples, int) and not isinstance(num_samples, bool) and num_samples > 0, "WeightedRandomSampler",
              "a positive number of samples", num_samples, error=ValueError)
        check(isinstance(replacement, bool), "WeightedRandomSampler", "a bool as replacement", replacement, error=ValueError)
        self.weights = as_tensor(weights, dtype=float64)
        check(self.weights.ndim == 1, "WeightedRandomSampler", "weights of 1 dim", self.weights.shape, error=ValueError)
        self.num_samples, self.replacement, self.generator = num_samples, replacement, generator

    def __iter__(self):
        return iter(multinomial(self.weights, self.num_samples, self.replacement, generator=self.generator).tolist())

    def __len__(self):
        return self.num_samples


class BatchSampler(Sampler[list]):
    """Lists of `batch_size` indices of another sampler; with `drop_last` none that is shorter.

    >>> import tritorch as torch
    >>> list(torch.utils.data.BatchSampler(range(5), 2, drop_last=False))
    [[0, 1], [2, 3], [4]]
    """

    def __init__(self, sampler, batch_size, drop_last):
        check(isinstance(batch_size, int) and not isinstance(batch_size, bool) and batch_size > 0, "BatchSampler", "a positive batch_size",
              batch_size, error=ValueError)
        check(isinstance(drop_last, bool), "BatchSampler", "a bool as drop_last", drop_last, error=ValueError)
        self.sampler, self.batch_size, self.drop_last = sampler, batch_size, drop_last

    def __iter__(self):
        indices = iter(self.sampler)
        while batch := list(itertools.islice(indices, self.batch_size)):
            if len(batch) == self.batch_size or not self.drop_last:
                yield batch

    def __len__(self):
        return len(self.sampler) // self.batch_size if self.drop_last else -(-len(self.sampler) // self.batch_size)
