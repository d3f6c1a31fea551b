"""Views of the tensor of all samples, made as an operator makes one of a sample: the history of views in the graph around. Where nothing is
recorded around nobody asks for them: strides say it all."""
from tritorch.ops import complex, slicing, view
from tritorch.shape import infer_shape, layout, wrap_dim

views = {}                                                               # by operator: functions of the tensor and the other arguments


def viewed(*names):
    def verb(fn):
        views.update(dict.fromkeys(names, fn))
        return fn

    return verb


def inner(x, dim, more=0):
    """A dim of a sample as one of all."""
    return wrap_dim(dim, x.ndim - 1 + more, "vmap") + 1


@viewed("select")
def select(x, dim, index):
    return x.select(inner(x, dim), index)


@viewed("slice_dim")
def slice_dim(x, dim, *how):
    return slicing.slice_dim(x, inner(x, dim), *how)


@viewed("diagonal")
def diagonal(x, offset, dim1, dim2):
    return x.diagonal(offset, inner(x, dim1), inner(x, dim2))


@viewed("unfold")
def unfold(x, dim, *how):
    return x.unfold(inner(x, dim), *how) if x.ndim > 1 else x.unsqueeze(1).unfold(1, *how).squeeze(1)


@viewed("permute_dims")
def permute_dims(x, dims):
    return x.permute(0, *[inner(x, d) for d in dims])


@viewed("transpose")
def transpose(x, dim0, dim1):
    return x.transpose(inner(x, dim0), inner(x, dim1)) if x.ndim > 1 else x.view_as(x)


@viewed("unsqueeze")
def unsqueeze(x, dim):
    return x.unsqueeze(inner(x, dim, 1))


@viewed("squeeze_dims")
def squeeze_dims(x, dims):
    return view.squeeze_dims(x, tuple([inner(x, d) for d in dims]) if x.ndim > 1 else ())


@viewed("view_as_shape")
def view_as_shape(x, shape):
    return x.view(x.shape[0], *infer_shape(tuple(shape), layout(x.shape[1:])[2], "view"))


@viewed("expand_to")
def expand_to(x, shape):
    whole = x.view(x.shape[0], *[1] * (len(shape) - x.ndim + 1), *x.shape[1:])
    return whole.expand(-1, *shape)


for _made in (complex.part_of, complex.view_as_real, complex.view_as_complex, view.view_as_dtype):
    views[_made.__name__] = _made                                        # the first dim does not matter
