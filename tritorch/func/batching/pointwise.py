"""Rules of elementwise operators, copies and casts."""
from tritorch.dtype import result_type
from tritorch.func.batching.calls import each, rule, rules
from tritorch.tensor import Tensor

# written over their input like elementwise operators, without being any
OTHERS = set("""cross_entropy_backward index_add rotary_embedding scatter_add scatter_join running_statistics sample_dirichlet""".split())


def pointwise(call):
    """Dims of samples broadcast from the last on: between them and the samples come dims of length 1."""
    tensors = [x for x in call.given if isinstance(x, Tensor)]
    rank = max([len(x.shape) for x in tensors])
    scalars = [x for x in tensors if not x.shape]
    common = result_type(*tensors) if scalars and len(tensors) > 1 and len({x.dtype for x in tensors}) > 1 and rank else None
    args = []
    for a, own, differs in zip(call.args, call.given, call.where):
        if differs is True:
            if common is not None and not own.shape and a.dtype is not common:   # a 0-dim sample does not decide about dtypes
                a = a.to(common)
            if len(own.shape) < rank:
                a = a.reshape(call.size, *[1] * (rank - len(own.shape)), *own.shape)
        args.append(a)
    if call.op.__name__ == "assign" and not call.where[0]:
        args[0] = call.all(0)                                            # it says what the result is like
    return call.run(*args)


def rule_of(op):
    """The rule of an operator that is in no table."""
    ours = op.aliasable is True and op.__name__ not in OTHERS and op.__module__.partition(".")[0] == "tritorch"
    rules[op.__name__] = pointwise if ours else each
    return rules[op.__name__]


@rule("copy_to")
def copy_to(call):
    """Strides are those of a sample."""
    x, dtype, device, strides, non_blocking = call.args
    if strides is not None:
        shape = call.given[0].shape
        strides = (max(sum((n - 1) * s for n, s in zip(shape, strides)) + 1, 1) if 0 not in shape else 1, *strides)
    return call.op(x, dtype, device, strides, non_blocking)
