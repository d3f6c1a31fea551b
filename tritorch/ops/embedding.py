"""Embedding: the rows of a table that integers name, and the gradient of the table, which adds up equal rows in their order."""
import numpy as np

from tritorch.autograd.modes import no_grad
from tritorch.autograd.parts import joined_grads
from tritorch.dispatch import op
from tritorch.dtype import types
from tritorch.errors import check, refuse_misuse, sentence, tensors, whole_numbers
from tritorch.ops import create, view
from tritorch.ops.indexing import (
    add_slices,
    check_index,
    finish,
    in_order,
    index_add,
    index_select,
    linear_places,
)
from tritorch.ops.put import put
from tritorch.ops.segments import join_rows
from tritorch.pairs import OWN
from tritorch.tensor import empty


@op
def table_rows(weight, index, padding_idx, by_freq=False):
    """The rows of `weight` that `index` names; the row padding_idx (-1: none) gets no gradient, with by_freq the others that of one of the
    times that they are named, on average."""
    check_index("embedding", index)
    check(len(weight.shape) == 2, "embedding", "a weight of 2 dims", weight.shape)
    return (*index.shape, weight.shape[1]), weight.dtype, weight.storage.device


@table_rows.impl("cpu", raw=True)
@table_rows.impl("cuda")
def table_rows_any(out, weight, index, padding_idx, by_freq):
    made = out if out.is_contiguous() else empty(out.shape, out.dtype, out.device)
    flat = view.reshape(made.detach(), -1, weight.shape[1])
    index_select.into(flat, weight.detach(), 0, view.reshape(index, -1))
    if made is not out:
        out.detach().copy_(made)


@table_rows.grad("weight")
def table_rows_grad(g, weight_shape, index, padding_idx, by_freq):
    if by_freq:
        g = g * rarity(index, weight_shape[0], g.dtype).unsqueeze(-1)

    def add(total):
        index_add.into(total, total, 0, view.reshape(index, -1), view.reshape(g, index.numel(), weight_shape[1]).to(total.dtype))

    if padding_idx < 0 and joined_grads(add, (g,), "weight"):
        return None                                                      # a pass over the rows that were read, not over the table
    return table_gradient(g, index, weight_shape[0], padding_idx)


def rarity(index, count, dtype):
    """1 over the times that an index names what it names, of each index."""
    flat, kind = view.reshape(index, -1), dtype.compute
    one = create.ones(flat.shape, dtype=kind, device=index.device)
    named = create.zeros(count, dtype=kind, device=index.device).index_add(0, flat, one)
    return view.reshape(named.index_select(0, flat).reciprocal().to(dtype), index.shape)


table_rows.complex = OWN


@table_rows.samples
def table_rows_samples(make):
    yield make(7, 3), make(2, 5, integer=True, low=0, high=7), -1
    yield make(4, 2, grad=False), make(6, integer=True, low=0, high=4), 1       # its gradient is not the derivative: tested by hand
    yield make(5, 3), make(0, integer=True), -1
    yield make(5, 1), make(integer=True, low=0, high=5), -1


@table_rows.workloads
def table_rows_workloads(make):
    weight, places = make(50304, 1024, grad=False), make(65536, integer=True, low=0, high=50304)
    yield "65536 of 50304x1024 fp32", lambda: (weight, places, -1), 2 * 65536 * 4096 + places.nbytes, 0


@op
def table_gradient(rows, index, count, padding_idx):
    """The gradient of a table of which `index` named some rows: for each of `count` rows the sum of its `rows`, 0 for padding_idx."""
    return (count, rows.shape[-1]), rows.dtype, rows.storage.device


@table_gradient.impl("cpu")
def table_gradient_cpu(out, rows, index, count, padding_idx):
    made = np.zeros(out.shape, np.float32 if out.dtype.itemsize == 2 else out.dtype)
    add_slices(made, 0, index.reshape(-1), np.asarray(rows, made.dtype).reshape(index.size, out.shape[1]))
    if padding_idx >= 0:
        made[padding_idx] = 0
    np.copyto(out, made, casting="unsafe")


@table_gradient.impl("cuda")
def table_gradient_cuda(out, rows, index, count, padding_idx):
    made = in_order(out)
    places = linear_places(view.reshape(index, -1), 0, (count,), "embedding")
    join_rows(made, None, places, view.reshape(rows, index.numel(), out.shape[1]), skip=padding_idx)
    finish(out, made)


table_gradient.complex = OWN


@table_gradient.grad("rows")
def table_gradient_grad(g, index, padding_idx):
    picked = table_rows(g, index, -1)
    return picked if padding_idx < 0 else picked.masked_fill((index == padding_idx).unsqueeze(-1), 0)


@table_gradient.samples
def table_gradient_samples(make):
    yield make(2, 5, 3), make(2, 5, integer=True, low=0, high=7), 7, -1
    yield make(6, 2), make(6, integer=True, low=0, high=4), 4, 1
    yield make(40, 33), make(40, integer=True, low=0, high=2), 3, -1              # long segments
    yield make(0, 3), make(0, integer=True), 5, -1
    yield make(3), make(integer=True, low=0, high=5), 5, -1


@table_gradient.workloads
def table_gradient_workloads(make):
    rows = make(65536, 1024, grad=False).to(types.bfloat16)
    nbytes = rows.nbytes + 50304 * 2048 + 65536 * 8
    for label, high in (("any", 50304), ("16 hot", 16)):
        places = make(65536, integer=True, low=0, high=high)
        yield f"65536 rows ({label}) to 50304x1024 bf16", lambda places=places: (rows, places, 50304, -1), nbytes, 1 << 26


def embedding(input, weight, padding_idx=None, max_norm=None, norm_type=2.0, scale_grad_by_freq=False, sparse=False):
    """The rows of `weight` (n, d) that the integers in `input` name: shape (*, d).

    The row `padding_idx` gets no gradient; with `max_norm` the rows used are first scaled down, in place, to that norm; with
    `scale_grad_by_freq` the gradient of a row is divided by the times that it is named. With `sparse` the gradient is a sparse tensor
    of the rows that were named, and does not go with `scale_grad_by_freq`.

    >>> import tritorch as torch; w = torch.eye(3); torch.nn.functional.embedding(torch.tensor([2, 0]), w)
    tensor([[0., 0., 1.],
            [1., 0., 0.]])
    """
    try:
        count = weight.shape[0]
    except (AttributeError, IndexError) as error:
        if answer := refuse_misuse(error):
            return answer[0]
        tensors("embedding", weight=weight)
        raise RuntimeError(sentence("embedding", "a weight of 2 dims", weight.shape)) from None
    if padding_idx is not None:
        if padding_idx.__class__ is not int:
            padding_idx, = whole_numbers("embedding", "padding_idx", (padding_idx,))
        check(-count <= padding_idx < count, "embedding", f"a padding_idx in [{-count}, {count - 1}]", padding_idx)
        padding_idx += count if padding_idx < 0 else 0
    if max_norm is not None:
        renormalize_rows(weight, input, max_norm, norm_type)
    if sparse:
        from tritorch.sparse.embedding import looked_up

        return looked_up(weight, input, -1 if padding_idx is None else padding_idx, scale_grad_by_freq)
    return table_rows(weight, input, -1 if padding_idx is None else padding_idx, scale_grad_by_freq)


def renormalize_rows(weight, input, max_norm, norm_type):
    """Scale the rows that are used down, in place, to this norm."""
    with no_grad():
        used = view.reshape(input, -1)
        rows = index_select(weight, 0, used)
        norms = rows.norm(norm_type, 1, True)
        put.into(weight, weight, (used, None), rows * (max_norm / (norms + 1e-7)).clamp(max=1.0), False, False)
