"""Join: training goes on although some ranks have no more inputs. A rank that has none takes part in the collectives of those that have.

Before each of its iterations a rank that still works adds 1 to a sum over all ranks, and one that has joined adds 0: by the sum it knows
whether somebody works, and then does once more what the iteration of a worker does in collectives (`JoinHook.main_hook`).
"""
import warnings
from abc import ABC, abstractmethod
from typing import NamedTuple

from tritorch import distributed as dist
from tritorch.errors import check
from tritorch.ops.create import ones, zeros

__all__ = ["Join", "JoinHook", "Joinable"]
MANY = 1000                                                              # iterations without inputs of its own that are worth a warning


class JoinHook:
    """What a rank without inputs does."""

    def main_hook(self):
        """Take part in the collectives of one iteration of the others."""

    def post_hook(self, is_last_joiner):
        """All ranks have joined; `is_last_joiner` tells whether this one worked to the end."""


class JoinConfig(NamedTuple):
    """What a `Joinable` knows of the context it is in."""

    enable: bool = False
    throw_on_early_termination: bool = False
    is_first_joinable: bool = False


class Joinable(ABC):
    """Something with collectives in each iteration, which calls `Join.notify_join_context(self)` before the first of them."""

    @abstractmethod
    def __init__(self):
        super().__init__()
        self._join_config = JoinConfig()

    @abstractmethod
    def join_hook(self, **kwargs):
        """The JoinHook of this object. `kwargs` are those of the Join, the same for all its objects."""

    @property
    @abstractmethod
    def join_device(self):
        """Where the tensors are that the ranks count themselves with."""

    @property
    @abstractmethod
    def join_process_group(self):
        """The process group of the collectives."""


class Join:
    """A context in which ranks may have different numbers of inputs for the `joinables`.

    With `throw_on_early_termination` all ranks raise RuntimeError when the first one has no more. Raises ValueError for no joinables, or
    for joinables of several process groups.

    >>> import tritorch as torch
    >>> from tritorch import distributed as dist
    >>> from tritorch.distributed.algorithms import Join
    >>> dist.init_process_group("gloo", rank=0, world_size=1)
    >>> model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1))
    >>> with Join([model]):
    ...     for _ in range(3):
    ...         model(torch.ones(1, 2)).backward()
    >>> model.module.bias.grad
    tensor([3.])
    >>> dist.destroy_process_group()
    """

    def __init__(self, joinables, enable=True, throw_on_early_termination=False, **kwargs):
        check(len(joinables) > 0, "Join", "at least one joinable", "none", error=ValueError)
        self._joinables, self._enable, self._throws = joinables, enable, throw_on_early_termination
        self._join_hooks = [joinable.join_hook(**kwargs) for joinable in joinables]
        for k, joinable in enumerate(joinables):
            joinable._join_config = JoinConfig(enable, throw_on_early_termination, k == 0)
        self._process_group, self._device = joinables[0].join_process_group, joinables[0].join_device
        check(all(j.join_process_group == self._process_group for j in joinables), "Join", "joinables of one process group", "several",
              error=ValueError)
        self._rank = dist.get_rank(self._process_group)

    def __enter__(self):
        return None

    def __exit__(self, kind, value, traceback):
        try:
            if self._enable and not kind:
                self._take_part()
        finally:
            for joinable in self._joinables:
                joinable._join_config = JoinConfig()

    def _take_part(self):
        """In the iterations of other ranks, until all have joined."""
        last, iterations = True, 0
        while self._working():
            if self._throws:
                dist.all_reduce(ones(1, device=self._device), group=self._process_group)
                raise RuntimeError(f"Join: expected as many inputs in all ranks, but rank {self._rank} exhausted all inputs before others")
            iterations += 1
            if iterations == MANY:
                warnings.warn(f"Join: rank {self._rank} has {MANY} inputs less than others, and waits for them", stacklevel=2)
            for hook in self._join_hooks:
                hook.main_hook()
            last = False
        for hook in self._join_hooks:
            hook.post_hook(last)

    def _working(self):
        """How many ranks still have inputs: one by one, as each of them says so."""
        total = zeros(1, device=self._device)
        dist.all_reduce(total, group=self._process_group)
        return int(total.item())

    @staticmethod
    def notify_join_context(joinable):
        """Tell the ranks without inputs that an iteration begins here. The first joinable of a Join gets the Work of that sum (its
        `result()` is [the number of ranks that work]), others None."""
        check(hasattr(joinable, "_join_config"), "notify_join_context", "a Joinable whose constructor calls that of Joinable", "another",
              error=AssertionError)
        config = joinable._join_config
        if not (config.is_first_joinable and config.enable):
            return None
        device, group = joinable.join_device, joinable.join_process_group
        total = ones(1, device=device)
        work = dist.all_reduce(total, group=group, async_op=True)
        if config.throw_on_early_termination:
            ended = zeros(1, device=device)
            dist.all_reduce(ended, group=group)
            if ended.item():
                raise RuntimeError("Join: expected as many inputs in all ranks, but a rank exhausted its inputs; all ranks raise this")
        return work
