"""ZeroRedundancyOptimizer: every process keeps the optimizer's state of a part of the parameters."""
from tritorch import distributed as dist
from tritorch.autograd.modes import no_grad
from tritorch.distributed.algorithms.join import Joinable, JoinHook
from tritorch.errors import check
from tritorch.nn.parallel.synchronize import pieces
from tritorch.ops.shaping import cat
from tritorch.optim.optimizer import Optimizer
from tritorch.tensor import Tensor
from tritorch.utils._pytree import tree_map_only

NAME = "ZeroRedundancyOptimizer"


class ZeroRedundancyOptimizer(Optimizer, Joinable):
    """An optimizer of class `optimizer_class` in each process, for its part of the parameters: `step` updates these, and sends them to the
    others. States take 1/n of the memory; results are those of one optimizer for all, if gradients are equal in all ranks.

    Each parameter, the largest first, is given to the rank that has least. `parameters_as_bucket_view` keeps the parameters of a rank in
    one piece of memory, which spares a copy of what is sent. `state_dict` wants `consolidate_state_dict` before it; both are as
    those of one optimizer, whatever the number of ranks. Raises what the optimizer does, and NotImplementedError for `overlap_with_ddp`.
    Rajbhandari et al., "ZeRO: memory optimizations toward training trillion parameter models", SC 2020 (its first stage).

    >>> import tritorch as torch
    >>> from tritorch import distributed as dist
    >>> from tritorch.distributed.optim import ZeroRedundancyOptimizer
    >>> dist.init_process_group("gloo", rank=0, world_size=1)
    >>> w = torch.ones(2, requires_grad=True)
    >>> optimizer = ZeroRedundancyOptimizer([w], torch.optim.SGD, lr=0.5)
    >>> w.sum().backward(); optimizer.step(); w.detach()
    tensor([0.5000, 0.5000])
    >>> dist.destroy_process_group()
    """

    def __init__(self, params, optimizer_class, process_group=None, parameters_as_bucket_view=False, overlap_with_ddp=False, **defaults):
        check(not overlap_with_ddp, NAME, "overlap_with_ddp=False", overlap_with_ddp, error=NotImplementedError)
        check(dist.is_initialized(), NAME, "the default process group", "none", error=ValueError,
              use="distributed.init_process_group() first")
        self.optim = None
        Optimizer.__init__(self, params, defaults)
        Joinable.__init__(self)
        self.process_group = dist.group.WORLD if process_group is None else process_group
        self.rank, self.world_size = dist.get_rank(self.process_group), self.process_group.size()
        self.parameters_as_bucket_view, self._consolidated = parameters_as_bucket_view, None
        self._sizes, self._parts = [0] * self.world_size, [[] for _ in range(self.world_size)]
        self.optim = optimizer_class([self._part_of(group) for group in self.param_groups], **defaults)
        self._options(self.optim, self)
        self._pack()

    # -------------------------------------------------------------- parts
    def _part_of(self, group):
        """The group with this rank's parameters alone; all are given to ranks."""
        mine = set()
        for p in sorted(group["params"], key=Tensor.numel, reverse=True):
            rank = self._sizes.index(min(self._sizes))
            self._sizes[rank] += p.numel()
            self._parts[rank].append(p)
            if rank == self.rank:
                mine.add(id(p))
        places = [k for k, p in enumerate(group["params"]) if id(p) in mine]
        lists = {name: [group[name][k] for k in places] for name in ("params", "param_names") if name in group}
        return {**group, **lists}

    def add_param_group(self, param_group):
        """Optimize more parameters: all ranks have to."""
        super().add_param_group(param_group)
        if self.optim is not None:
            self.optim.add_param_group(self._part_of(self.param_groups[-1]))
            self._options(self.optim, self)
            self._pack()

    @no_grad()
    def _pack(self):
        """What is sent, and from whom: [(rank, flat tensor or None, parameters)]. A flat tensor is the parameters' memory."""
        self._parcels = [(rank, None, some) for rank, part in enumerate(self._parts) for some in pieces(part)]
        if self.parameters_as_bucket_view:
            self._parcels = [(rank, flattened(some), some) for rank, _, some in self._parcels]
            for _, flat, some in self._parcels:
                for p, view in zip(some, views(flat, some)):
                    p.data = view

    @staticmethod
    def _options(source, target):
        """The options of all groups become those of the source: a schedule may have changed them."""
        for ours, theirs in zip(target.param_groups, source.param_groups):
            ours.update({name: value for name, value in theirs.items() if name not in ("params", "param_names")})

    # -------------------------------------------------------------- steps
    def step(self, closure=None, **kwargs):
        """Update this rank's parameters and take over those of the others. Returns what `closure` does, which all ranks call."""
        self._options(self, self.optim)
        loss = self.optim.step(**kwargs) if closure is None else self.optim.step(closure, **kwargs)
        self._send()
        self._options(self.optim, self)
        return loss

    @no_grad()
    def _send(self):
        sent = []
        for rank, memory, some in self._parcels if self.world_size > 1 else ():
            flat = flattened(some) if memory is None else memory
            work = dist.broadcast(flat, group=self.process_group, group_src=rank, async_op=True)
            sent.append((work, flat, some if memory is None and rank != self.rank else ()))
        for work, flat, some in sent:
            work.wait()
            for p, view in zip(some, views(flat, some)):
                p.detach().copy_(view)

    # -------------------------------------------------------------- saving
    def consolidate_state_dict(self, to=0):
        """Collect the states of all ranks on the CPU of rank `to`, where `state_dict` returns them. All ranks have to call it."""
        self._options(self, self.optim)
        local = self.optim.state_dict()
        numbers = {id(p): k for k, p in enumerate(self._parameters())}
        mine = {numbers[id(p)]: tree_map_only(Tensor, lambda t: t.detach().cpu(), local["state"][k])
                for k, p in enumerate(self.optim._parameters()) if k in local["state"]}
        everyones = [None] * self.world_size if self.rank == to else None
        dist.gather_object(mine, everyones, group=self.process_group, group_dst=to)
        self._consolidated = {k: state for states in everyones or () for k, state in sorted(states.items())} if everyones else None

    def state_dict(self):
        """The state of all parameters, as one optimizer for all would have it, on the rank that `consolidate_state_dict` named."""
        check(self._consolidated is not None, f"{NAME}.state_dict", "states that were collected in this rank", "none",
              use="consolidate_state_dict(to) in all ranks")
        out = super().state_dict()
        return {**out, "state": dict(sorted(self._consolidated.items()))}

    def load_state_dict(self, state_dict):
        """Take over this rank's part of what `state_dict` returned, in any number of ranks, or that of one optimizer for all."""
        state, order = state_dict["state"], [k for group in state_dict["param_groups"] for k in group["params"]]
        super().load_state_dict({**state_dict, "state": {}})
        saved = {id(p): state[k] for k, p in zip(order, self._parameters()) if k in state}
        local = self.optim.state_dict()
        self.optim.load_state_dict({**local, "state": {
            k: saved[id(p)] for k, p in enumerate(self.optim._parameters()) if id(p) in saved}})
        self._options(self, self.optim)

    # -------------------------------------------------------------- uneven inputs
    def join_hook(self, **kwargs):
        """The JoinHook of this optimizer: ranks without inputs make all steps, for the others need their parameters."""
        return _Steps(self)

    @property
    def join_device(self):
        """Where the first parameter is."""
        return self.param_groups[0]["params"][0].device

    @property
    def join_process_group(self):
        """The process group."""
        return self.process_group


class _Steps(JoinHook):
    def __init__(self, optimizer):
        self.optimizer = optimizer

    def main_hook(self):
        self.optimizer.step()


def flattened(tensors):
    """All elements, one tensor after the other."""
    return cat([t.detach().reshape(-1) for t in tensors])


def views(flat, tensors):
    """The parts of a flat tensor in the shapes of the tensors."""
    start = 0
    for t in tensors:
        yield flat[start:start + t.numel()].reshape(t.shape)
        start += t.numel()
