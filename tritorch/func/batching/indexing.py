"""Rules of operators that take elements, rows and slices by their places, or write them there.

Where samples have indices of their own, the places of all are found by `joint_places`, which tells an index outside of its sample, and are
those in a tensor that has the samples among its rows. Results have samples outermost in memory, so that one has the views that it
would have alone.
"""
from tritorch.func.batching.calls import rule
from tritorch.func.batching.folding import padded
from tritorch.ops import create
from tritorch.ops.bags import NAME
from tritorch.ops.bounds import within
from tritorch.ops.compare import where
from tritorch.ops.embedding import table_rows
from tritorch.ops.indexing import gather as gather_elements
from tritorch.ops.put import joint_places as joint
from tritorch.ops.put import put_shape
from tritorch.shape import broadcast_shapes, prod, wrap_dim
from tritorch.tensor import Tensor


def counting(count, device, *more):
    """0, 1, … count - 1, before `more` dims of length 1."""
    return create.arange(count, device=device).reshape(count, *more)


def places_among(call, index, rows, wrap=False):
    """For each sample's index (samples, …) into so many rows the place among those of all samples, flat."""
    return joint((counting(call.size, index.device, *[1] * (index.ndim - 1)), index), (call.size, rows), wrap)


# ------------------------------------------------------------------ slices by an index
def taken(call, input, d, index, wrap):
    """input[:, …, index, …] with both of all samples: index (samples, …) along the dim `d` of a sample."""
    before, n, after = input.shape[1:d + 1], input.shape[d + 1], input.shape[d + 2:]
    shape = (call.size, *before, *index.shape[1:], *after)
    if not after and before and not wrap:                                # element by element; the index need not be repeated in memory
        column = index.reshape(call.size, *[1] * len(before), prod(index.shape[1:]))
        return gather_elements(input, d + 1, column.expand(call.size, *before, column.shape[-1])).reshape(shape)
    if not before:
        places = places_among(call, index, n, wrap)
    else:
        ones = [1] * (index.ndim - 1)
        numbers = counting(call.size, index.device, 1, *ones), counting(prod(before), index.device, *ones)
        places = joint((*numbers, index.unsqueeze(1)), (call.size, prod(before), n), wrap)
    return input.reshape(call.size * prod(before) * n, *after).index_select(0, places).reshape(shape)


@rule("index_select")
def index_select(call):
    """An index of each sample's own names rows of one input, or of the inputs of all under each other."""
    input, dim, index = call.args
    if not call.given[0].shape:                                          # a number is a vector of one element
        one = call.all(2).reshape(call.size, 1)
        return taken(call, call.all(0).unsqueeze(1), 0, one, False).reshape(call.size)
    d = wrap_dim(dim, len(call.given[0].shape), "index_select")
    if not call.where[2]:
        return call.run(input, d + 1, index)
    index = index.reshape(call.size, call.given[2].numel())
    if call.where[0]:
        return taken(call, input, d, index, False)
    return call.op(input, d, index.reshape(-1)).unflatten(d, index.shape).movedim(d, 0).contiguous()


@rule("pick")
def pick(call):
    """As index_select, for an index of any dims."""
    input, dim, index, _ = call.args
    d = wrap_dim(dim, len(call.given[0].shape), "index")
    if not call.where[2]:
        return call.op(input, d + 1, index)
    return taken(call, input, d, index, True) if call.where[0] else call.op(input, d, index).movedim(d, 0).contiguous()


@rule("index_add")
def index_add(call):
    """An index of each sample's own names rows of all samples under each other."""
    (_, dim, index, _, alpha), input, shape = call.args, call.all(0), call.given[0].shape
    if not shape:
        added = call.all(3).reshape(call.size, 1)
        return call.op(input.unsqueeze(1), 1, index.reshape(-1)[:1], added, alpha).squeeze(1)
    d, count = wrap_dim(dim, len(shape), "index_add"), call.given[2].numel()
    source = call.all(3).reshape(call.size, *shape[:d], count, *shape[d + 1:])
    if not call.where[2] and d:
        return call.run(input, d + 1, index, source, alpha)
    places = places_among(call, call.all(2).reshape(call.size, count), shape[d])
    rows, added = [x.movedim(d + 1, 1).flatten(0, 1) for x in (input, source)]
    if call.out is not None and d == 0 and call.out[0] is input and input.is_contiguous():
        call.op.into(rows, rows, 0, places, added, alpha)
        return input
    made = call.op(rows, 0, places, added, alpha)
    return made.unflatten(0, (call.size, shape[d])).movedim(1, d + 1).contiguous()


# ------------------------------------------------------------------ elements by an index
@rule("gather")
def gather(call):
    """One more dim, without memory for what is the same for all samples; or more places in one input."""
    (input, dim, index, sparse), own, asked = call.args, call.given[0].shape, call.given[2].shape
    d = wrap_dim(dim, len(own), "gather")
    if not call.where[0] and own and asked and (d == 0 or input.requires_grad):      # no gradient of each sample's own
        more = index.movedim(0, d).reshape(*asked[:d], call.size * asked[d], *asked[d + 1:])
        return call.op(input, d, more, sparse).unflatten(d, (call.size, asked[d])).movedim(d, 0).contiguous()
    return call.op(_one(call.all(0)), d + 1, _one(call.all(2)), sparse).reshape(call.size, *asked)


def _one(x):
    """Numbers of all samples as vectors of one element."""
    return x.unsqueeze(1) if isinstance(x, Tensor) and x.ndim == 1 else x


@rule("scatter_write", "scatter_add", "scatter_join")
def scatter(call):
    """One more dim."""
    input, dim, index, src, *more = call.everything()
    d = wrap_dim(dim, len(call.given[0].shape), call.op.__name__) + 1
    if call.given[0].shape:
        return call.run(input, d, _one(index), _one(src), *more)
    return call.op(_one(input), d, _one(index), _one(src), *more).squeeze(1)


# ------------------------------------------------------------------ places by several index tensors
@rule("joint_places")
def joint_places(call):
    """Indices of one sample broadcast with those of all."""
    _, sizes, wrap = call.args
    rank = max([len(k.shape) for k in call.given[0]])
    return call.op(tuple(aligned(call, 0, rank)), sizes, wrap).reshape(call.size, *call.promises[0][0])


def aligned(call, k, rank):
    """The indices in the k-th argument, those of samples with dims of length 1 before theirs, so that they broadcast."""
    return [padded(x, rank) if differs else x for x, differs in zip(call.args[k], call.where[k])]


@rule("put")
def put(call):
    """Samples are one more dim that an index names; or, if all have the same indices, one that is kept."""
    input, indices, values, accumulate, wrap = call.args
    picked = [d for d, k in enumerate(indices) if k is not None]
    together = picked == list(range(picked[0], picked[-1] + 1))
    shape = put_shape(call.given[0], call.given[1])                      # of a sample's values
    many = len(broadcast_shapes("index", *[call.given[1][d].shape for d in picked]))
    if call.where[2]:
        values = padded(values, len(shape))
    values = values.expand(call.size, *shape)
    if any(call.where[1]):
        indices = counting(call.size, input.device, *[1] * many), *aligned(call, 1, many)
        if together:                                                     # where indices are not neighbours, their dims come first
            values = values.movedim([picked[0] + 1 + k for k in range(many)], [1 + k for k in range(many)])
    else:
        indices = None, *indices
        values = values if together else values.movedim(0, many)
    return call.run(call.all(0), indices, values, accumulate, wrap)


# ------------------------------------------------------------------ rows of tables
@rule("table_rows")
def rows_of_table(call):
    """More rows of one table, or rows of the tables of all samples under each other."""
    weight, index, padding, by_freq = call.args
    if not call.where[0] and not (by_freq and weight.requires_grad):
        return call.run(*call.args)
    index, count = call.all(1), call.given[0].shape[0]
    plain = not weight.requires_grad or padding < 0 and not by_freq
    if plain and not call.where[1]:
        return weight.index_select(1, call.args[1].reshape(-1)).reshape(call.size, *call.promises[0][0])
    rows = table_rows(call.all(0).flatten(0, 1), places_among(call, index, count), -1, by_freq).reshape(call.size, *call.promises[0][0])
    return rows if plain or padding < 0 else where((index == padding).unsqueeze(-1), rows.detach(), rows)


@rule("table_gradient")
def gradient_of_table(call):
    """The tables of all samples under each other."""
    rows, index, count, padding = call.everything()
    places, width = places_among(call, index, count), rows.shape[-1]
    made = call.op(rows.reshape(places.shape[0], width), places, call.size * count, -1).reshape(call.size, count, width)
    if padding >= 0:
        made[:, padding] = 0
    return made


# ------------------------------------------------------------------ bags of rows
class Bags:
    """The bags of all samples after each other: indices, offsets, the bag of each index, factors. Where each sample has a table of so many
    `rows` of its own, indices are places in all of them under each other, and padding_idx is that of the first."""

    def __init__(self, call, bags, rows=0):
        every = dict(zip(call.op.names, call.everything()))
        self.call, index, offsets = call, every["index"], every["offsets"]
        if rows:
            places, padding = places_among(call, index, rows).reshape(index.shape), call["padding_idx"]
            index = where(index == padding, padding, places) if padding >= 0 else places
        self.index, self.offsets = index.flatten(0, 1), None
        if offsets is not None:
            if call.differs("offsets"):
                within(offsets[:, :1], 0, 0, NAME, "offsets from 0 on")
            self.offsets = self.after(offsets, call.sample("index").numel()).flatten(0, 1)
        self.owners = self.after(every["owners"], bags).flatten(0, 1) if "owners" in every else None
        self.factors = None if every.get("factors") is None else every["factors"].flatten(0, 1)

    def after(self, x, step):
        """Numbers of all samples, to those of each so much more added than to those of the one before."""
        return x + step * counting(self.call.size, x.device, *[1] * (x.ndim - 1))


def tables(call):
    """The tables of all samples under each other and the rows of one; or one table, and 0."""
    table = call["table"]
    if not call.differs("table") and not ("by_freq" in call.op.names and call["by_freq"] and table.requires_grad):
        return table, 0
    return call.all("table").flatten(0, 1), call.sample("table").shape[0]


def parted(call, k, x):
    """The k-th result of all samples."""
    return x.reshape(call.size, *call.promises[k][0])


@rule("bag_sums")
def bag_sums(call):
    """More bags."""
    (table, rows), bags = tables(call), call.promises[0][0][0]
    every = Bags(call, bags, rows)
    made = call.op(table, every.index, every.offsets, every.factors, call["mean"], call["by_freq"], call["padding_idx"])
    out, sizes, owners = [parted(call, k, x) for k, x in enumerate(made)]
    return out, sizes, every.after(owners, -bags)


@rule("bag_maxima")
def bag_maxima(call):
    """More bags."""
    (table, rows), bags = tables(call), call.promises[0][0][0]
    every = Bags(call, bags, rows)
    made = call.op(table, every.index, every.offsets, call["padding_idx"])
    out, chosen, sizes, owners = [parted(call, k, x) for k, x in enumerate(made)]
    chosen = where(chosen < 0, chosen, every.after(chosen, -rows)) if rows else chosen
    return out, chosen, sizes, every.after(owners, -bags)


@rule("bag_gradient")
def bag_gradient(call):
    """More bags, of the tables of all samples under each other."""
    count, padding = call.args[5:]
    every = Bags(call, call.given[0].shape[0], count)
    made = call.op(call.all(0).flatten(0, 1), every.index, every.owners, every.offsets, every.factors, call.size * count, padding)
    return parted(call, 0, made)


@rule("bag_dots")
def bag_dots(call):
    """More bags."""
    table, rows = tables(call)
    every = Bags(call, call.sample("rows").shape[0], rows)
    made = call.op(table, call.all(1).flatten(0, 1), every.index, every.owners, every.offsets, call["padding_idx"])
    return parted(call, 0, made)
