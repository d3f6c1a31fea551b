"""Rules of elementwise operators, copies and casts."""
from tritorch.distributed.tensor.placement_types import Partial, Shard
from tritorch.distributed.tensor.plans import Plan, R, S, by_mesh_dim, rule, rules, whole
from tritorch.distributed.tensor.spec import in_order_of
from tritorch.shape import layout
from tritorch.tensor import Tensor

# written over their input like elementwise operators, without being any
OTHERS = set("""assign fill copy_to cross_entropy_backward index_add rotary_embedding scatter_add scatter_join running_statistics
    sample_dirichlet random_bernoulli random_binomial random_dropout random_poisson standard_gamma""".split())
LINEAR = set("neg conjugate times_i copy_to choose".split())             # of a sum over processes the sum of what each makes of its own
SUMS = {"add", "sub"}
PRODUCTS = {"mul": (0, 1), "div_true": (0,), "mul_conjugate": (0, 1)}    # linear in these operands, one at a time


def shifted(x, shape, d):
    """The placement of an operand, broadcast to `shape`, where the result is cut along d."""
    k = d - (len(shape) - len(x.shape))
    return S(k) if k >= 0 and x.shape[k] == shape[d] and (x.shape[k] != 1 or shape[d] == 1) else R


def along(call, n, outs=None):
    """The result cut along a dim that an operand is cut along; an operand that is repeated along it is whole on each process."""
    shape = call.outs[0][0]
    dims = {p.dim + len(shape) - len(x.shape) for x in call.tensors for p in x.placements if type(p) is Shard}
    for d in sorted(dims):
        if shape[d] > 1 or n == 1:
            yield [shifted(x, shape, d) for x in call.tensors], [S(d)] * len(call.outs)


def sums(call):
    """The reductions that are still to be done with one of the operands."""
    return {p for x in call.tensors for p in x.placements if type(p) is Partial}


def elementwise(call, n):
    """What an elementwise operator can do along one mesh dim of n."""
    yield from along(call, n)
    name = call.op.__name__
    for p in sums(call):
        if p.reduce_op not in ("sum", "avg"):
            continue
        if name in SUMS:
            if all(isinstance(a, Tensor) for a in call.args[:2]) or p.reduce_op == "avg":
                yield [p] * len(call.tensors), [p]
        elif name in PRODUCTS:
            for k in PRODUCTS[name]:
                if isinstance(call.args[k], Tensor):
                    place = call.where[call.op.names[k]]
                    yield [p if j == place else R for j in range(len(call.tensors))], [p]
        elif name in LINEAR and all(isinstance(a, Tensor) for a in call.args[:3 if name == "choose" else 1]):
            yield call.given(**{key: p for key in ("input", "other") if key in call.where}), [p]
        elif "g_out" in call.where:                                      # slopes: linear in the gradient that arrives
            yield call.given(g_out=p), [p]


pointwise = by_mesh_dim(elementwise)
pointwise.to_order = True


def rule_of(op):
    """The rule of an operator."""
    found = rules.get(op.__name__)
    if found is None:
        ours = op.aliasable is True and op.__name__ not in OTHERS and op.__module__.partition(".")[0] == "tritorch"
        found = rules[op.__name__] = pointwise if ours else whole
    return found


# ------------------------------------------------------------------ copies
def _copied(call, plan, parts):
    """copy_to: the strides are those of the whole."""
    _, dtype, device, strides, non_blocking = call.args
    if strides is not None:
        usual = layout(call.outs[0][0])[1]
        strides = layout(parts[0].shape)[1] if strides == usual else in_order_of(strides, parts[0].shape)
    return call.op(parts[0], dtype, device, strides, non_blocking)


def _copies(call, n):
    for p in sums(call) if call.outs[0][1].has_gradients else ():
        yield [p], [p]
    yield from along(call, n)


rules["copy_to"] = by_mesh_dim(_copies, _copied)


def _assigned(call, n):
    """`input` only says what is written; it may be placed in any way."""
    for x in call.tensors:
        for p in x.placements:
            if type(p) is Shard:
                yield from along(call, n)
                break
    for p in {p for p in sums(call) if p in call.tensors[0].placements}:
        yield [p, p], [p]


rules["assign"] = by_mesh_dim(_assigned)
rules["assign"].to_order = True


@rule("fill")
def fill(call, wanted=None):
    """As the tensor, of which only the shape is read; what is still to be reduced becomes whole."""
    need = call.tensors[0].placements
    out = tuple([R if type(p) is Partial else p for p in need])
    return None if wanted is not None and wanted != [out] else Plan([need], [out])


fill.to_order = True
