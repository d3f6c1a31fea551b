"""Rules of products: of matrices, of layers, and of what is fused with them."""
from tritorch.func.batching.calls import rule


@rule("matmul")
def matmul(call):
    """Where one matrix multiplies all samples it is one product of more rows; else products of batches of matrices."""
    rank = max([len(x.shape) for x in call.given])                       # of a sample
    if call.where == [True, False] and len(call.args[1].shape) == 2:
        return call.run(*call.args)
    return call.run(*[x.reshape(call.size, *[1] * (rank - x.ndim + 1), *x.shape[1:]) if differs and x.ndim <= rank else x
                      for x, differs in zip(call.args, call.where)])
