"""Rules of operators that work along some dims of their tensors: reductions, statistics, scans, softmax, sorting."""
import math

from tritorch.dtype import types
from tritorch.func.batching.calls import rule
from tritorch.func.batching.folding import padded
from tritorch.ops import create, loss_terms
from tritorch.ops.bincount import tally as count_all
from tritorch.ops.medians import middle
from tritorch.ops.reduce import dims_of
from tritorch.shape import wrap_dim
from tritorch.tensor import Tensor


# ------------------------------------------------------------------ along dims
@rule(*"""sum nansum mean prod all any count_nonzero amax amin amin_amax variance deviation var_mean std_mean logsumexp vector_norm
          xor_bits""".split())
def reductions(call):
    """Over some dims of one tensor, all of them for None: the first dim stays."""
    x, dims = call.args[0], dims_of(call["dim"], len(call.given[0].shape), call.op.__name__)
    if not call.given[0].shape:                                          # of a number: there is a dim all the same
        return call.op(x.unsqueeze(1), *call.put(dim=(1,), keepdim=False)[1:])
    return call.run(*call.put(dim=tuple([d + 1 for d in dims])))


@rule(*"""cummax_pair cummin_pair cumprod cumsum glu glu_backward linear_recurrence log_softmax log_softmax_backward logcumsumexp max_along
          middle min_along order_statistic reverse_cumsum softmax softmax_backward sorted_first""".split())
def along(call):
    """Along one dim, of one tensor or of some of the same dims: it is the next one."""
    rank = len(call.given[0].shape)
    changed = dict(zip(call.op.names, call.everything()), dim=wrap_dim(call["dim"], rank, call.op.__name__) + 1)
    if rank:
        return call.run(*changed.values())
    changed = {name: a.unsqueeze(1) if isinstance(a, Tensor) else a for name, a in changed.items()}
    made = call.op(*(changed | {name: v for name, v in (("keepdim", False), ("k", 1)) if name in changed}).values())
    return [x.reshape(call.size) for x in (made if type(made) is tuple else (made,))]


# ------------------------------------------------------------------ over all elements
@rule("argmax", "argmin")
def places(call):
    """Without a dim the place in a line of all elements."""
    if call["dim"] is not None:
        return along(call)
    line = call.args[0].reshape(call.size, call.given[0].numel())
    return call.op(line, 1).reshape(call.size, *call.promises[0][0])


@rule("middle_of_all")
def middle_of_all(call):
    """The median of a line. Gradients go to all elements that have its value, for which the greatest of them stands."""
    x, skip = call.args
    line = x.reshape(call.size, call.given[0].numel())
    value = middle(line.detach(), 1, skip)[0]
    if not x.requires_grad:
        return value
    other = (line != value.unsqueeze(1)) & (value == value).unsqueeze(1)
    return line.masked_fill(other, -math.inf).amax(1)


@rule("weighted_mean")
def weighted_mean(call):
    loss, weight = [x.reshape(call.size, call.given[0].numel()) for x in call.everything()]
    kind = call.promises[0][1]
    total = weight.sum(1, dtype=kind)
    return loss.sum(1, dtype=kind) / total, total.detach()


@rule("loss_of_all")
def loss_of_all(call):
    """The terms of the loss, and their sums."""
    x, y, kind, bend, mean = call.args
    result = call.promises[0][1]
    rank = len(call.given[0].shape)
    terms = loss_terms.each(kind, x.to(result.compute), y.to(result.compute), bend)
    line = terms.reshape(call.size, call.given[0].numel()) if rank else terms.unsqueeze(1)
    return (line.mean(1) if mean else line.sum(1)).to(result)


@rule("tally")
def tally(call):
    """Each sample has bins of its own, one after the other: elements are counted under the numbers of their bins."""
    x, bins, low, high, even = call.args
    x = x.reshape(call.size, call.given[0].numel())
    if even:
        x = x.to(types.float64)
        inside = (x >= low) & (x <= high)
        found = ((x.masked_fill(~inside, low) - low) * (bins / (high - low))).floor().to(types.int64).clamp(max=bins - 1)
    else:
        inside, found = (x >= 0) & (x < bins), x.to(types.int64)
    first = create.arange(call.size, device=x.device).unsqueeze(1) * bins
    return count_all((found + first).masked_fill(~inside, -1), call.size * bins, 0.0, 0.0, False).reshape(call.size, bins)


# ------------------------------------------------------------------ pairs of rows
@rule("search_sorted_rows")
def search_sorted_rows(call):
    """One sequence for all values of a sample serves them as one line; one for all samples serves as it is."""
    sequence, values, *rest = call.args
    alone = len(call.given[0].shape) == 1
    if alone and not call.where[0]:
        return call.run(*call.args)
    if not alone:
        return call.run(*call.everything())
    line = call.all(1).reshape(call.size, call.given[1].numel())
    return call.op(sequence, line, *rest).reshape(call.size, *call.given[1].shape)


@rule("distances", "distance_slope")
def distances(call):
    """Of batches of rows, whose leading dims broadcast: samples come in front of all of them."""
    rank = max([len(x.shape) for x in call.given if isinstance(x, Tensor)])
    return call.run(*[padded(a, rank) if isinstance(a, Tensor) else a for a in call.everything()])


# ------------------------------------------------------------------ fake quantization
@rule("fake_quantize_masked", "fake_quantize_values")
def fake_quantize(call):
    """A sample with `on` of its own is quantized anyway, and then it or what was given is taken."""
    if not call.differs("on"):
        return _quantized(call, *call.args)
    x, on = call.all(0), call["on"].reshape(call.size, *[1] * len(call.given[0].shape)) != 0
    made = _quantized(call, *call.put(on=None))
    if type(made) is not tuple:
        return made.where(on, x)
    return made[0].where(on, x), made[1] | ~on


def _quantized(call, x, scale, zero, axis, *rest):
    """Scales of samples are those of rows: of samples, or of samples and what lies along the axis."""
    x, rank = call.all(0), len(call.given[0].shape)
    axis = None if axis is None else wrap_dim(axis, rank, "fake_quantize") + 1
    if not call.differs("scale") and not call.differs("zero_point"):
        return call.op(x, scale, zero, axis, *rest)
    scale, zero = [call.all(k).reshape(-1) for k in (1, 2)]
    if axis is not None:
        made = call.op(x.movedim(axis, 1).flatten(0, 1), scale, zero, 0, *rest)
        shape = call.size, x.shape[axis]
        made = [y.unflatten(0, shape).movedim(1, axis) for y in (made if type(made) is tuple else (made,))]
        return tuple(made) if len(made) > 1 else made[0]
    made = call.op(x, scale, zero.to(types.int32), 0, *rest)             # as the one zero point of a tensor is taken
    if x.dtype is not types.float64:
        return made
    y, *mask = made if type(made) is tuple else (made,)                  # as is the scale
    y = y.to(types.float32).to(types.float64)
    return (y, *mask) if mask else y


@rule("moving_range")
def moving_range(call):
    """Vectors as one. Samples that differ in `on` and `used` are counted and measured anyway, and then what is wanted is taken."""
    call_of, shape = call.everything(), (call.size, *call.given[0].shape)
    old, seen, (on, used), rest = [x.reshape(-1) for x in call_of[:4]], [x.reshape(-1) for x in call_of[4:6]], call.args[6:8], call_of[8:]
    if not call.differs("on") and not call.differs("used"):
        return [x.reshape(shape) for x in call.op(*old, *seen, on, used, *rest)]
    yes, no = [x.new_full((1,), v) for x, v in ((on, 1), (on, 0))]
    wanted = [x.reshape(-1, 1).ne(0).expand(shape).reshape(-1) for x in (on, used)]
    ranges = [x.where(wanted[0], o) for x, o in zip(call.op(*old, *seen, yes, no, *rest)[:2], old)]
    scales = [x.where(wanted[1], o) for x, o in zip(call.op(*ranges, *old[2:], *seen, no, yes, *rest)[2:], old[2:])]
    return [x.reshape(shape) for x in (*ranges, *scales)]
