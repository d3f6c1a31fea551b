"""DistributedDataParallel with uneven inputs: what a rank without inputs does in the iterations of the others."""
from tritorch import distributed as dist
from tritorch.autograd.modes import no_grad
from tritorch.distributed.algorithms.join import JoinHook
from tritorch.errors import check
from tritorch.ops.create import full, tensor


def rank_that_works(model, working):
    """The last of the ranks that work."""
    mine = dist.get_rank(model.process_group) if working else -1
    last = tensor([mine], device=model.device)
    dist.all_reduce(last, op=dist.ReduceOp.MAX, group=model.process_group)
    check(last.item() >= 0, "join", "a rank that works", "none")
    return last.item()


def tell_whether_reduced(model, reduces):
    """Whether some rank that works reduces its gradients in this iteration (only no_sync does not)."""
    total = full((1,), float(reduces), device=model.device)
    dist.all_reduce(total, group=model.process_group)
    return total.item() > 0


class JoinedRank(JoinHook):
    """Does what `forward` and backward of the model do in collectives."""

    def __init__(self, model, divide_by_initial_world_size):
        self.model = model
        model._divide_by_initial_world_size = divide_by_initial_world_size

    def main_hook(self):
        model = self.model
        if model.will_sync_module_buffers():
            model._sync_buffers(working=False)
        reduces = tell_whether_reduced(model, False)
        model.require_forward_param_sync = reduces
        if reduces:
            model.reducer.take_part()

    @no_grad()
    def post_hook(self, is_last_joiner):
        model = self.model
        model._take_over(rank_that_works(model, is_last_joiner), model.forward_sync_buffers)
