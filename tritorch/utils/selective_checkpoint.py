"""Checkpoints that keep what some operators made and compute the rest again: `tritorch.utils.checkpoint` has the names."""
import enum

from tritorch import ops
from tritorch.autograd.graph import record
from tritorch.autograd.modes import state
from tritorch.dispatch import Interpreter
from tritorch.errors import check, sentence
from tritorch.profiler.operators import NAMES


class CheckpointPolicy(enum.Enum):
    """What becomes of an operator's result: kept (`*_SAVE`), kept in the memory of the host (`*_CPU_OFFLOAD`) or computed again
    (`*_RECOMPUTE`). MUST and PREFER differ for a compiler that may know better; here they do not."""

    MUST_SAVE = 0
    PREFER_SAVE = 1
    MUST_RECOMPUTE = 2
    PREFER_RECOMPUTE = 3
    MUST_CPU_OFFLOAD = 4
    PREFER_CPU_OFFLOAD = 5


OFFLOAD = (CheckpointPolicy.MUST_CPU_OFFLOAD, CheckpointPolicy.PREFER_CPU_OFFLOAD)
SAVE = (CheckpointPolicy.MUST_SAVE, CheckpointPolicy.PREFER_SAVE, *OFFLOAD)


class SelectiveCheckpointContext:
    """What a policy is told first: that this is not the run for the backward pass, in which it is not asked, and what was computed."""

    def __init__(self, *, is_recompute, op_output=None):
        self.is_recompute, self.op_output = is_recompute, op_output


def overload_of(op, args):
    """PyTorch's name for an operator, as `tritorch.ops.aten` has it, or the operator where there is none there.

    >>> import tritorch as torch
    >>> x = torch.ones(2, 2)
    >>> overload_of(torch.dispatch.registry["matmul"], (x, x)) is torch.ops.aten.mm.default
    True
    """
    name = NAMES.get(op.__name__, op.__name__)
    if name == "matmul":
        name = "mm" if args[0].ndim == 2 else "bmm"
    elif name == "linear":
        name = "mm" if args[2] is None else "addmm"
    elif op.__name__ == "attention":
        name = "_scaled_dot_product_flash_attention" + ("_for_cpu" if args[0].device.type == "cpu" else "")
    packet = getattr(ops.aten, name, None)
    return op if packet is None else packet.default


class _Counting(Interpreter):
    """Knows a call by its operator and how many of that came before it in this run."""

    views = False

    def __init__(self, kept):
        self.kept, self.counts = kept, {}

    def __enter__(self):
        self.counts = {}
        return super().__enter__()

    def key(self, op):
        number = self.counts[op] = self.counts.get(op, -1) + 1
        return op, number


class _Keeping(_Counting):
    """The first run: what the policy says is kept."""

    def __init__(self, kept, policy):
        super().__init__(kept)
        self.policy = policy

    def __call__(self, op, args, out):
        made, key = self.proceed(op, args, out), self.key(op)
        if out is not None or not op.impls:                              # written elsewhere, or a view: made again
            return made
        answer = self.policy(SelectiveCheckpointContext(is_recompute=False, op_output=made), overload_of(op, args), *args)
        if answer is True or answer in SAVE:
            results = made if isinstance(made, tuple) else (made,)
            self.kept[key] = [(x.detach().cpu() if answer in OFFLOAD else x.detach(), x.device) for x in results]
            self.kept[key] = [(x, x._version, device) for x, device in self.kept[key]]
        return made


class _HandingOut(_Counting):
    """The other runs: what was kept is the result, with history as ever; the rest is computed."""

    def __init__(self, kept, writable):
        super().__init__(kept)
        self.writable = writable

    def __call__(self, op, args, out):
        found = self.kept.get(self.key(op))
        if found is None:
            return self.proceed(op, args, out)
        if not self.writable and any(x._version != version for x, version, _ in found):
            raise RuntimeError(sentence("checkpoint", f"what {op.__name__} made as it was kept", "a tensor written in place since",
                                        use="a policy that computes it again, or allow_cache_entry_mutation=True"))
        outs = tuple([x.detach().to(device) for x, _, device in found])
        if state.grad:
            record(op, args, outs)
        return outs[0] if len(op.returns) == 1 else outs


def create_selective_checkpoint_contexts(policy_fn_or_list, allow_cache_entry_mutation=False):
    """The contexts for `checkpoint(…, context_fn=…)` that keep the results of some operators: those in a list of overloads, such as
    `tritorch.ops.aten.mm.default`, or those for which `policy(context, operator, *args)` answers so.

    Raises RuntimeError in the backward pass where a result that was kept has been written in place, unless `allow_cache_entry_mutation`.

    >>> import tritorch as torch
    >>> from functools import partial
    >>> from tritorch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts
    >>> x, keep = torch.ones(2, 2, requires_grad=True), [torch.ops.aten.mm.default]
    >>> y = checkpoint(lambda x: (x @ x).sin(), x, use_reentrant=False, context_fn=partial(create_selective_checkpoint_contexts, keep))
    >>> y.sum().backward(); x.grad[0]
    tensor([-1.6646, -1.6646])
    """
    policy = policy_fn_or_list
    if isinstance(policy, list):
        listed = set(policy)
        policy = lambda context, op, *args: op in listed
    check(callable(policy), "create_selective_checkpoint_contexts", "a list of operators or a function", type(policy).__name__,
          error=TypeError)
    kept = {}
    return _Keeping(kept, policy), _HandingOut(kept, allow_cache_entry_mutation)
