"""Lookups in a dense table whose gradient is sparse: it has the rows that were looked up, one for each time."""
from tritorch.dtype import types
from tritorch.errors import check
from tritorch.ops import create
from tritorch.ops.bags import bag_dots, bag_sums
from tritorch.ops.embedding import table_rows
from tritorch.ops.shaping import stack
from tritorch.sparse.coo import made_of
from tritorch.sparse.graph import plain, recorded


def _rows(index, g, count, padding_idx, by_freq):
    """The gradient of a table from those of its rows. With a padding_idx the number of rows that count is read from the device."""
    check(not by_freq, "embedding_backward", "scale_grad_by_freq False with sparse gradients", by_freq)
    index = index.reshape(-1).to(types.int64)
    if padding_idx >= 0:
        kept = (index != padding_idx).nonzero().reshape(-1)
        index, g = index.index_select(0, kept), g.index_select(0, kept)
    return made_of((count, g.shape[1]), index.reshape(1, -1), g)


def elements(g, shape, dim, index):
    """The gradient of a tensor of which `gather` took one element for each of the index."""
    if not shape:
        return made_of(shape, index.reshape(1, -1)[:0], g.reshape(1))
    index, count = index if index.shape else index.reshape(1), index.numel()
    rows = []
    for d, n in enumerate(index.shape):
        if d == dim % len(shape):
            rows.append(index.reshape(-1).to(types.int64))
        else:
            along = create.arange(n, device=index.device).reshape([n if k == d else 1 for k in range(len(shape))])
            rows.append(along.expand(index.shape).reshape(-1))
    return made_of(shape, stack(rows), g.reshape(count))


def looked_up(weight, index, padding_idx, by_freq):
    """The rows of the table that the index names."""
    count, width = weight.shape
    out = table_rows(plain(weight), index, padding_idx, by_freq)
    return recorded("Embedding", out, [(weight, lambda g, i: _rows(i, g.reshape(-1, width), count, padding_idx, by_freq))], index)


def bags(weight, index, offsets, factors, mean, by_freq, padding_idx):
    """What `ops.bags.bag_sums` returns."""
    count = weight.shape[0]
    out, sizes, owners = bag_sums(plain(weight), index, offsets, plain(factors), mean, False, padding_idx)

    def scaled(g, sizes):
        return g / sizes.clamp(min=1).to(g.dtype).unsqueeze(1) if mean else g

    def of_table(g, w, index, sizes, owners, factors):
        g = scaled(g, sizes).index_select(0, owners)
        return _rows(index, g if factors is None else g * factors.unsqueeze(1), count, padding_idx, by_freq)

    def of_factors(g, w, index, sizes, owners, factors):
        return bag_dots(w, scaled(g, sizes), index, owners, offsets, padding_idx)

    inputs = [(weight, of_table), (factors, of_factors)]
    return recorded("EmbeddingBag", out, inputs, weight, index, sizes, owners, factors), sizes, owners
