"""Rules of operators that work along some dims of their tensors: reductions, statistics, scans, softmax, sorting."""
from tritorch.func.batching.calls import rule
from tritorch.ops.reduce import dims_of


@rule(*"sum nansum mean prod all any count_nonzero amax amin amin_amax variance deviation var_mean std_mean logsumexp".split())
def reductions(call):
    """Over some dims of one tensor, all of them for None: the first dim stays."""
    x, dims = call.args[0], dims_of(call["dim"], len(call.given[0].shape), call.op.__name__)
    if not call.given[0].shape:                                          # of a number: there is a dim all the same
        return call.op(x.unsqueeze(1), *call.put(dim=(1,), keepdim=False)[1:])
    return call.run(*call.put(dim=tuple([d + 1 for d in dims])))
