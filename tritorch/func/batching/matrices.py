"""Rules of linear algebra: factors, solutions, eigenvalues, of matrices in the last two dims."""
from tritorch.func.batching.calls import rule
from tritorch.func.batching.folding import aligned, fold, padded, repeated, unfold


@rule(*"cholesky_factor determinant log_determinant lu_factors row_order qr_factors geqrf_factors singular_values svd_factors "
       "symmetric_eigen symmetric_eigenvalues general_eigen doubled_eigen ldl_factors".split())
def factors(call):
    """Of one tensor of matrices, whatever dims are in front."""
    return call.run(*call.args)


@rule("general_eigenvalues")
def general_eigenvalues(call):
    L, V, info = call.op(*call.args)
    return L, V if call["vectors"] else repeated(V, call.size), info


@rule("pseudo_inverse")
def pseudo_inverse(call):
    """Tolerances are numbers, or one for each matrix."""
    rank = len(call.given[0].shape) - 2
    bounds = [padded(x, rank) if differs else x for x, differs in zip(call.args[1:3], call.where[1:3])]
    return call.run(call.all(0), *bounds, call.args[3])


@rule("reflected")
def reflected(call):
    return call.run(*call.everything())


# ------------------------------------------------------------------ solutions
@rule("solve_square", "solve_complex", "substitute")
def solved(call):
    """Of one matrix for all samples, the right sides are columns of one: it is factored once."""
    if not call.differs("A"):
        return _columns(call)
    return _reshaped(call, call.op(*aligned(call, "A", "B"), *call.args[2:]))


def _columns(call):
    shape = call.promises[0][0]
    made = call.op(*call.put(B=fold(call["B"], len(call.sample("B").shape) - 1)))
    X, *rest = made if type(made) is tuple else (made,)
    return unfold(X, call.size, shape, len(shape) - 1), *[repeated(x, call.size) for x in rest]


def _reshaped(call, made):
    """Without the dims that were put in front."""
    made = made if type(made) is tuple else (made,)
    return tuple([x.reshape(call.size, *promise[0]) for x, promise in zip(made, call.promises)])


@rule("ldl_solution")
def ldl_solution(call):
    if not call.where[0] and not call.where[1]:
        return _columns(call)
    rank = max(len(call.sample("LD").shape), len(call.sample("B").shape))
    LD, pivots = padded(call.all(0), rank), padded(call.all(1), rank - 1)
    return call.op(LD, pivots, padded(call["B"], rank) if call.differs("B") else call["B"], call["hermitian"])
