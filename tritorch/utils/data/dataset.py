"""Datasets: samples by index, or one after the other."""
import bisect
import itertools
import math
import warnings
from typing import Generic, TypeVar

from tritorch.errors import NoTensor, check, real_numbers
from tritorch.ops.create import tensor
from tritorch.ops.random import randperm
from tritorch.tensor import Tensor

T = TypeVar("T", covariant=True)


class Dataset(Generic[T]):
    """Samples by index: subclasses give `__getitem__(index)` and, for most samplers, `__len__`.

    `__getitems__(indices)`, if there is one, fetches a batch at once.

    >>> import tritorch as torch
    >>> class Squares(torch.utils.data.Dataset):
    ...     def __len__(self):
    ...         return 4
    ...     def __getitem__(self, index):
    ...         return index ** 2
    >>> [batch.tolist() for batch in torch.utils.data.DataLoader(Squares(), batch_size=2)]
    [[0, 1], [4, 9]]
    """

    def __getitem__(self, index):
        raise NotImplementedError(f"{type(self).__name__}: expected a method __getitem__ in the subclass")

    def __add__(self, other):
        return ConcatDataset([self, other])


class IterableDataset(Dataset[T]):
    """Samples one after the other: subclasses give `__iter__`. Each worker has a copy; `get_worker_info` tells which part is its own.

    >>> import tritorch as torch
    >>> class Lines(torch.utils.data.IterableDataset):
    ...     def __iter__(self):
    ...         return iter(["a", "b", "c"])
    >>> list(torch.utils.data.DataLoader(Lines(), batch_size=2))
    [['a', 'b'], ['c']]
    """

    def __iter__(self):
        raise NotImplementedError(f"{type(self).__name__}: expected a method __iter__ in the subclass")

    def __add__(self, other):
        return ChainDataset([self, other])


class TensorDataset(Dataset):
    """Sample k is the tuple of the k-th rows of the tensors.

    >>> import tritorch as torch
    >>> dataset = torch.utils.data.TensorDataset(torch.arange(6).reshape(3, 2), torch.arange(3))
    >>> len(dataset), dataset[2]
    (3, (tensor([4, 5]), tensor(2)))
    """

    def __init__(self, *tensors):
        for t in tensors:
            check(isinstance(t, Tensor), "TensorDataset", "tensors", type(t).__name__, error=NoTensor)
        check(len({len(t) for t in tensors}) <= 1, "TensorDataset", "tensors of one length", [tuple(t.shape) for t in tensors],
              error=AssertionError)
        self.tensors = tensors

    def __getitem__(self, index):
        return tuple([t[index] for t in self.tensors])

    def rows(self, indices):
        """What `default_collate` makes of these samples, without making each of them."""
        check(isinstance(indices, (list, tuple)), "TensorDataset", "batches as lists of indices", type(indices).__name__, error=TypeError)
        places = tensor(indices)
        return [t[places if t.device.type == "cpu" else places.to(t.device)] for t in self.tensors]

    def __len__(self):
        return len(self.tensors[0])


class StackDataset(Dataset):
    """Sample k is the tuple (with keywords: the dict) of the k-th samples of the datasets.

    >>> import tritorch as torch
    >>> torch.utils.data.StackDataset(image="abc", label=[0, 1, 2])[1]
    {'image': 'b', 'label': 1}
    """

    def __init__(self, *args, **kwargs):
        check(not (args and kwargs), "StackDataset", "positional or keyword datasets", "both", error=ValueError)
        check(args or kwargs, "StackDataset", "at least one dataset", "none", error=ValueError)
        self.datasets = args or kwargs
        parts = args or list(kwargs.values())
        check(len({len(d) for d in parts}) == 1, "StackDataset", "datasets of one length", [len(d) for d in parts], error=ValueError)
        self._length = len(parts[0])

    def __getitem__(self, index):
        if isinstance(self.datasets, dict):
            return {name: dataset[index] for name, dataset in self.datasets.items()}
        return tuple([dataset[index] for dataset in self.datasets])

    def __len__(self):
        return self._length


class ConcatDataset(Dataset[T]):
    """Datasets one after the other.

    >>> import tritorch as torch
    >>> both = torch.utils.data.ConcatDataset(["ab", "cde"]); len(both), both[3], both[-1]
    (5, 'd', 'e')
    """

    def __init__(self, datasets):
        self.datasets = list(datasets)
        check(self.datasets, "ConcatDataset", "at least one dataset", "none", error=AssertionError)
        for d in self.datasets:
            check(not isinstance(d, IterableDataset), "ConcatDataset", "datasets with an index", "an IterableDataset", use="ChainDataset",
                  error=AssertionError)
        self.cumulative_sizes = list(itertools.accumulate(map(len, self.datasets)))

    def __len__(self):
        return self.cumulative_sizes[-1]

    def __getitem__(self, index):
        check(-len(self) <= index, "ConcatDataset", f"an index of {len(self)} samples", index, error=ValueError)
        index += len(self) if index < 0 else 0
        k = bisect.bisect_right(self.cumulative_sizes, index)
        check(k < len(self.datasets), "ConcatDataset", f"an index of {len(self)} samples", index, error=IndexError)
        return self.datasets[k][index - (self.cumulative_sizes[k - 1] if k else 0)]


class ChainDataset(IterableDataset):
    """IterableDatasets one after the other.

    >>> import tritorch as torch
    >>> class Lines(torch.utils.data.IterableDataset):
    ...     def __iter__(self):
    ...         return iter(["a", "b"])
    >>> list(torch.utils.data.ChainDataset([Lines(), Lines()]))
    ['a', 'b', 'a', 'b']
    """

    def __init__(self, datasets):
        self.datasets = datasets

    def _checked(self):
        for d in self.datasets:
            check(isinstance(d, IterableDataset), "ChainDataset", "IterableDatasets", type(d).__name__, error=AssertionError)
            yield d

    def __iter__(self):
        for d in self._checked():
            yield from d

    def __len__(self):
        return sum(len(d) for d in self._checked())


class Subset(Dataset[T]):
    """The samples of a dataset at `indices`.

    >>> import tritorch as torch
    >>> list(torch.utils.data.Subset(["a", "b", "c"], [2, 0]))
    ['c', 'a']
    """

    def __init__(self, dataset, indices):
        self.dataset, self.indices = dataset, indices

    def __getitem__(self, index):
        return self.dataset[[self.indices[k] for k in index] if isinstance(index, list) else self.indices[index]]

    def __getitems__(self, indices):
        if callable(getattr(self.dataset, "__getitems__", None)):
            return self.dataset.__getitems__([self.indices[k] for k in indices])
        return [self.dataset[self.indices[k]] for k in indices]

    def __len__(self):
        return len(self.indices)


def random_split(dataset, lengths, generator=None):
    """Subsets without overlap, drawn at random; `lengths` are numbers of samples, or fractions that sum to 1.

    >>> import tritorch as torch
    >>> [len(part) for part in torch.utils.data.random_split(range(10), [0.75, 0.25])]
    [8, 2]
    """
    check(hasattr(lengths, "__iter__"), "random_split", "a list of lengths", type(lengths).__name__, error=TypeError)
    real_numbers("random_split", **{f"lengths[{k}]": n for k, n in enumerate(lengths)})
    if math.isclose(sum(lengths), 1) and sum(lengths) <= 1:
        for k, fraction in enumerate(lengths):
            check(0 <= fraction <= 1, "random_split", "fractions between 0 and 1", f"{fraction} at {k}", error=ValueError)
        lengths = [math.floor(len(dataset) * fraction) for fraction in lengths]
        for k in range(len(dataset) - sum(lengths)):                     # what is left goes round, one sample each
            lengths[k % len(lengths)] += 1
        for k, length in enumerate(lengths):
            if length == 0:
                warnings.warn(f"random_split: part {k} is empty", stacklevel=2)
    check(sum(lengths) == len(dataset), "random_split", f"lengths that sum to {len(dataset)}", sum(lengths), error=ValueError)
    indices = randperm(sum(lengths), generator=generator, device="cpu").tolist()
    return [Subset(dataset, indices[end - n:end]) for n, end in zip(lengths, itertools.accumulate(lengths))]
