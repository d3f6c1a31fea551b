"""Selective checkpoints: which operators of a checkpointed part keep their results, as `context_fn` of `checkpoint`."""
import enum
import importlib
from collections import Counter

from tritorch.autograd.graph import record
from tritorch.autograd.modes import state
from tritorch.dispatch import Interpreter, registry
from tritorch.errors import check, sentence
from tritorch.ops.namespaces import OpOverload, namespace
from tritorch.tensor import Tensor

__all__ = ["CheckpointPolicy", "SelectiveCheckpointContext", "create_selective_checkpoint_contexts"]
NO_MATCH = "use a function that does the same each time"


class CheckpointPolicy(enum.Enum):
    """What becomes of an operator's result: it is kept, computed again, or kept on the host. MUST_ and PREFER_ are the same here, where
    nothing overrules them."""

    MUST_SAVE = 0
    PREFER_SAVE = 1
    MUST_RECOMPUTE = 2
    PREFER_RECOMPUTE = 3
    MUST_CPU_OFFLOAD = 4
    PREFER_CPU_OFFLOAD = 5


_SAVES = CheckpointPolicy.MUST_SAVE, CheckpointPolicy.PREFER_SAVE
_OFFLOADS = CheckpointPolicy.MUST_CPU_OFFLOAD, CheckpointPolicy.PREFER_CPU_OFFLOAD


class SelectiveCheckpointContext:
    """What a policy is told of a call besides operator and arguments: `op_output`, its result. `is_recompute` is always False: policies are
    asked in the first run alone."""

    def __init__(self, *, is_recompute, op_output=None):
        self.is_recompute, self.op_output = is_recompute, op_output


def create_selective_checkpoint_contexts(policy_fn_or_list, allow_cache_entry_mutation=False):
    """The contexts of both runs of a checkpoint in which some operators are not run again: give
    `functools.partial(create_selective_checkpoint_contexts, policy)` as its `context_fn`.

    A policy is `fn(context, op, *args, **kwargs) -> CheckpointPolicy`, or True for MUST_SAVE and False for PREFER_RECOMPUTE; a list of
    operators stands for one that keeps their results alone. `op` is `tritorch.ops.aten.….default` (`.Tensor` for arithmetic of two
    operands) under the name that PyTorch has for it, and `args` are those of tritorch's operator, so that one call may stand for what is
    several in PyTorch: a linear layer is aten.addmm, or aten.mm without bias. Views and what
    is written in place always run again. Raises RuntimeError where a kept result was written since, unless
    `allow_cache_entry_mutation`, and for a second backward pass; TypeError and ValueError for what are no operators.

    >>> import functools, tritorch as torch
    >>> from tritorch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts
    >>> products = functools.partial(create_selective_checkpoint_contexts, [torch.ops.aten.mm.default])
    >>> x = torch.eye(2, requires_grad=True)
    >>> checkpoint(lambda v: (v @ v).sin().sum(), x, use_reentrant=False, context_fn=products).backward(); x.grad
    tensor([[1.0806, 2.0000],
            [2.0000, 1.0806]])
    """
    policy = policy_fn_or_list
    if isinstance(policy, list):
        for op in policy:
            if not isinstance(op, OpOverload) and op not in registry.values():
                raise ValueError(sentence("create_selective_checkpoint_contexts", "operators such as tritorch.ops.aten.mm.default", op))
        listed = {name_of(op) for op in policy}
        policy = lambda context, op, *args, **kwargs: name_of(op) in listed                         # noqa: E731 (used as it is)
    check(callable(policy), "create_selective_checkpoint_contexts", "a function or a list of operators", type(policy).__name__,
          error=TypeError)
    kept = {}
    return _FirstRun(policy, kept), _SecondRun(kept, allow_cache_entry_mutation)


def name_of(op):
    """namespace::name of an overload, without the overload; an operator of ours is its own name."""
    return op.name().partition(".")[0] if isinstance(op, OpOverload) else op


ARITHMETIC = frozenset("add sub mul div_true maximum minimum atan2 eq ne lt le gt ge bitwise_and bitwise_or bitwise_xor".split())


def aten_of(op, args):
    """What PyTorch calls the operator of a call: an overload of tritorch.ops.aten, or the operator itself where there is no such name."""
    names = importlib.import_module("tritorch.profiler.operators").NAMES
    name = names.get(op.__name__, op.__name__)
    if name == "matmul":
        name = "mm" if len(args[1].shape) == 2 else "bmm"
    elif name == "linear":
        name = "mm" if args[2] is None else "addmm"
    elif op.__name__ == "attention":
        name = "_scaled_dot_product_flash_attention" + ("_for_cpu" if args[0].device.type == "cpu" else "")
    packet = getattr(namespace("aten"), name, None)
    return op if packet is None else getattr(packet, "Tensor" if op.__name__ in ARITHMETIC else "default")


class _Run(Interpreter):
    """Counts the calls of every operator: (operator, number) is a call's place in both runs."""

    def __enter__(self):
        self.counts = Counter()
        return super().__enter__()

    def __call__(self, op, args, out):
        if out is not None or not op.impls:                              # written in place, or a view
            return self.proceed(op, args, out)
        place = op, self.counts[op]
        self.counts[op] += 1
        return self.counted(place, op, args)


class _FirstRun(_Run):
    def __init__(self, policy, kept):
        self.policy, self.kept = policy, kept

    def counted(self, place, op, args):
        made = self.proceed(op, args, None)
        policy = self.policy(SelectiveCheckpointContext(is_recompute=False, op_output=made), aten_of(op, args), *args)
        outs = made if isinstance(made, tuple) else (made,)
        saves, offloads = policy is True or policy in _SAVES, policy in _OFFLOADS
        self.kept[place] = [_Kept(x, offloads) for x in outs] if saves or offloads else None
        return made


class _SecondRun(_Run):
    def __init__(self, kept, mutable):
        self.kept, self.mutable = kept, mutable

    def counted(self, place, op, args):
        check(place in self.kept, "checkpoint", f"call {place[1]} of {op.__name__} in the first run, too", "none", use=NO_MATCH)
        found = self.kept[place]
        if found is None:
            return self.proceed(op, args, None)
        check(found, "checkpoint", "one backward pass through a selective checkpoint", "another")
        self.kept[place] = ()                                            # so that memory goes as the pass does
        outs = tuple([x.value(self.mutable) for x in found])
        if state.grad:
            record(op, args, outs)                                       # the graph of this run is that of the first
        return outs[0] if len(op.returns) == 1 else outs


class _Kept:
    """One result, and the version that it had."""

    def __init__(self, x, offload):
        self.home = x.device if offload and isinstance(x, Tensor) else None
        self.x = x if not isinstance(x, Tensor) else x.detach() if self.home is None else x.detach().cpu()
        self.version = self.x.storage.version if isinstance(x, Tensor) else None

    def value(self, mutable):
        if self.version is None:
            return self.x
        check(mutable or self.x.storage.version == self.version, "checkpoint", "a kept result that nobody writes", "one that was mutated",
              use="allow_cache_entry_mutation=True")
        return self.x.detach() if self.home is None else self.x.to(self.home)
