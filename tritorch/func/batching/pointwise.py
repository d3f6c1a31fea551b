"""Rules of elementwise operators, copies and casts."""
from tritorch.dtype import bool as bool_
from tritorch.dtype import result_type
from tritorch.func.batching.calls import each, rule, rules
from tritorch.func.batching.folding import padded
from tritorch.tensor import Tensor

# written over their input like elementwise operators, without being any
OTHERS = set("""cross_entropy_backward index_add rotary_embedding scatter_add scatter_join running_statistics sample_dirichlet""".split())


def pointwise(call):
    """Dims of samples broadcast from the last on: between them and the samples come dims of length 1."""
    tensors = [x for x in call.given if isinstance(x, Tensor)]
    rank = max([len(x.shape) for x in tensors])
    mixed = len({x.dtype for x in tensors if x.dtype is not bool_}) > 1 and not all(x.shape for x in tensors)
    common = result_type(*tensors) if mixed else None
    args = []
    for a, own, differs in zip(call.args, call.given, call.where):
        if common is not None and isinstance(own, Tensor) and not own.shape and own.dtype not in (bool_, common):
            a = a.to(common)                                             # of all samples it would decide about dtypes, which it does not
        if differs is True and len(own.shape) < rank:
            a = padded(a, rank)
        args.append(a)
    if call.op.__name__ == "assign" and not call.where[0]:
        args[0] = call.all(0)                                            # it says what the result is like
    return call.run(*args)


def rule_of(op):
    """The rule of an operator that is called the first time. Rules by name are those of our own operators alone."""
    if op.__module__.partition(".")[0] != "tritorch":
        op.batch(each)
    else:
        op.batch(rules.setdefault(op.__name__, pointwise if op.aliasable is True and op.__name__ not in OTHERS else each))
    return op.batch_rule


@rule("copy_to")
def copy_to(call):
    """Strides are those of a sample."""
    x, dtype, device, strides, non_blocking = call.args
    if strides is not None:
        shape = call.given[0].shape
        strides = (max(sum((n - 1) * s for n, s in zip(shape, strides)) + 1, 1) if 0 not in shape else 1, *strides)
    return call.op(x, dtype, device, strides, non_blocking)
