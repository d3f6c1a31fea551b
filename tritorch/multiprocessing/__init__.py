"""Python's `multiprocessing`, whose queues, pipes and arguments pass tensors on by their memory: processes see what the others write.

Everything of `multiprocessing` is here under the same name. Once this module is imported, a tensor on the CPU that goes to another process
through a `Queue`, a `Pipe`, a `Pool` or as an argument of a `Process` has its memory moved to where both see it (so `x.is_shared()` is true
afterwards); only a name for it is sent, and it stays until the last process that has it lets go of it. `x.share_memory_()` and
`module.share_memory()` do so beforehand. Writes of other processes are not seen by autograd's check of saved tensors, and numpy arrays that
were made of a tensor before keep the old memory. What requires a gradient arrives as a leaf that requires one, without its gradient.
`set_sharing_strategy` says how memory is shared, `spawn` runs a function in several processes.

Tensors on a GPU go by a handle of their memory (CUDA IPC), to processes that were started by "spawn" or "forkserver": CUDA does not
survive a fork. Who made such a tensor has to live as long as others use it; its memory comes back when they have let go of it and
`cuda.ipc_collect()`, the next tensor that is sent, or a lack of memory asks. One that was received is sent on as `x.clone()`.

>>> import tritorch as torch
>>> from tritorch import multiprocessing as mp
>>> def fill(x, i):
...     x[i] = i + 1
>>> counts = torch.zeros(3).share_memory_()
>>> context = mp.get_context("fork")
>>> workers = [context.Process(target=fill, args=(counts, i)) for i in range(3)]
>>> for worker in workers: worker.start()
>>> for worker in workers: worker.join()
>>> counts
tensor([1., 2., 3.])
"""
import multiprocessing
from multiprocessing import *  # noqa: F403

from tritorch.multiprocessing.reductions import init_reductions
from tritorch.multiprocessing.segments import get_all_sharing_strategies, get_sharing_strategy, set_sharing_strategy
from tritorch.multiprocessing.spawn import (
    ProcessContext,
    ProcessExitedException,
    ProcessRaisedException,
    SpawnContext,
    spawn,
    start_processes,
)

__all__ = [*multiprocessing.__all__, "ProcessContext", "ProcessExitedException", "ProcessRaisedException", "SpawnContext",
           "get_all_sharing_strategies", "get_sharing_strategy", "init_reductions", "set_sharing_strategy", "spawn", "start_processes"]

init_reductions()
