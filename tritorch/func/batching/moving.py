"""Rules of operators that put elements in other places, join tensors, or transform whole lines of them."""
from tritorch.func.batching.calls import rule
from tritorch.shape import wrap_dim, wrap_dims


# ------------------------------------------------------------------ what takes samples as they come
@rule("constant_pad", "hermitian", "overlap_add", "triangle", "within")
def last_dims(call):
    """Of the last dims, or of elements."""
    return call.run(*call.args)


@rule("edge_pad", "edge_pad_back", "fold_images", "unfold_images", "affine_places")
def images(call):
    """Of images one after the other: the first dim of a sample goes on with the next one."""
    return call.op(call.args[0].flatten(0, 1), *call.args[1:]).reshape(call.size, *call.promises[0][0])


# ------------------------------------------------------------------ along dims
@rule("flip_dims")
def flip_dims(call):
    x, dims = call.args
    return call.run(x, tuple([d + 1 for d in wrap_dims(dims, x.ndim - 1, "flip")]))


@rule("roll_dims")
def roll_dims(call):
    x, shifts, dims = call.args
    return call.run(x, shifts, tuple([wrap_dim(d, x.ndim - 1, "roll") + 1 for d in dims]))


@rule("fourier", "fourier_of_real", "fourier_to_real")
def fourier(call):
    return call.run(*call.put(dim=wrap_dim(call["dim"], call.args[0].ndim - 1, "fft") + 1))


@rule("concatenated")
def concatenated(call):
    """Empty vectors, which PyTorch lets pass among tensors of other dims, only count for the dtype."""
    tensors, dim, sizes = call.everything()
    kept = [k for k, x in enumerate(call.given[0]) if x.shape != (0,)] or [0]
    dim = wrap_dim(dim, tensors[kept[0]].ndim - 1, "cat") + 1
    if len(kept) == len(tensors):
        return call.run(tensors, dim, sizes)
    return call.op(tuple([tensors[k] for k in kept]), dim, tuple([sizes[k] for k in kept])).to(call.promises[0][1])


# ------------------------------------------------------------------ with tables
@rule("rotary_embedding")
def rotary_embedding(call):
    """Tables of samples get the dims of the input."""
    x, *tables = call.everything()[:3]
    rank = x.ndim - 1
    tables = [t.reshape(call.size, *[1] * (rank - len(own.shape)), *own.shape) if differs else own
              for t, own, differs in zip(tables, call.given[1:3], call.where[1:3])]
    return call.run(x, *tables, *call.args[3:])
