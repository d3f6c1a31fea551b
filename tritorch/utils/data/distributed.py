"""The part of a dataset that belongs to one of several processes."""
import itertools
import math

from tritorch.errors import check
from tritorch.generator import Generator
from tritorch.ops.random import randperm
from tritorch.utils.data.sampler import Sampler


class DistributedSampler(Sampler[int]):
    """The part of the indices that process `rank` of `num_replicas` works on: every num_replicas-th, all parts of one length.

    Indices are repeated, or with `drop_last` left out, until they divide evenly. Call `set_epoch` before each epoch for another order.
    What is not given of `num_replicas` and `rank` is that of the process group of all (ValueError where there is none).

    >>> import tritorch as torch
    >>> list(torch.utils.data.DistributedSampler(range(5), num_replicas=2, rank=1, shuffle=False))
    [1, 3, 0]
    """

    def __init__(self, dataset, num_replicas=None, rank=None, shuffle=True, seed=0, drop_last=False):
        if num_replicas is None or rank is None:
            from tritorch import distributed  # here, for most programs have one process

            num_replicas = distributed.get_world_size() if num_replicas is None else num_replicas
            rank = distributed.get_rank() if rank is None else rank
        check(0 <= rank < num_replicas, "DistributedSampler", f"0 ≤ rank < {num_replicas}", rank, error=ValueError)
        self.dataset, self.num_replicas, self.rank, self.epoch = dataset, num_replicas, rank, 0
        self.shuffle, self.seed, self.drop_last, count = shuffle, seed, drop_last, len(dataset) / num_replicas
        self.num_samples = math.floor(count) if drop_last else math.ceil(count)
        self.total_size = self.num_samples * num_replicas

    def __iter__(self):
        n = len(self.dataset)
        generator = Generator().manual_seed(self.seed + self.epoch)
        indices = randperm(n, generator=generator, device="cpu").tolist() if self.shuffle else range(n)
        indices = list(itertools.islice(itertools.cycle(indices), self.total_size))
        return iter(indices[self.rank::self.num_replicas])

    def __len__(self):
        return self.num_samples

    def set_epoch(self, epoch):
        """Shuffle otherwise in this epoch, in the same way in all processes."""
        self.epoch = epoch
