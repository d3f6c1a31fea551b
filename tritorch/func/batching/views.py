"""Views of the tensor of all samples, as an operator makes one of a sample: the history of views inside of a graph around. Where nothing is
recorded around, strides say it all."""
from tritorch.shape import wrap_dim

views = {}


def view(name):
    def verb(fn):
        views[name] = fn
        return fn

    return verb


def inner(x, dim, more=0):
    """A dim of a sample as one of all."""
    return wrap_dim(dim, x.ndim - 1 + more, "vmap") + 1


@view("select")
def select(x, dim, index):
    return x.select(inner(x, dim), index)


@view("permute_dims")
def permute_dims(x, dims):
    return x.permute(0, *[inner(x, d) for d in dims])


@view("transpose")
def transpose(x, dim0, dim1):
    return x.transpose(inner(x, dim0), inner(x, dim1)) if x.ndim > 1 else x.view_as(x)


@view("unsqueeze")
def unsqueeze(x, dim):
    return x.unsqueeze(inner(x, dim, 1))
