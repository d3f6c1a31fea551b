"""Sparse tensors in files of `tritorch.save`: their parts are tensors of the file, the rest is written beside them."""
from tritorch.errors import sentence
from tritorch.safetensors import FileFormatError, is_count, need
from tritorch.sparse.construct import KINDS, sparse_compressed_tensor, sparse_coo_tensor
from tritorch.sparse.coo import Coo


def encode(x, part):
    """A sparse tensor as values of JSON; `part(tensor, name)` takes one of its parts."""
    names = ("indices", "values") if isinstance(x, Coo) else ("compressed", "plain", "values")
    parts = [part(p.detach(), name) for p, name in zip(x.parts, names)]
    return [x.layout.name, list(x.shape), parts, isinstance(x, Coo) and x.is_coalesced(), x.requires_grad]


def decode(value, part, trial):
    """The sparse tensor again; `part` decodes a tensor. In a trial its form alone is looked at."""
    need(type(value) is list and len(value) == 5, "layout, shape, parts and two flags of a sparse tensor", value)
    name, shape, parts, coalesced, wanted = value
    kinds = {kind.name: kind for kind in KINDS}
    need(name == "sparse_coo" or type(name) is str and name in kinds, "the name of a sparse layout", name)
    need(type(shape) is list and all(map(is_count, shape)) and len(shape) <= 64, "a shape", shape)
    need(type(coalesced) is bool and type(wanted) is bool, "flags of a sparse tensor", value)
    number = 2 if name == "sparse_coo" else 3
    tensors = type(parts) is list and len(parts) == number and all(type(p) is dict and p.keys() == {"tensor"} for p in parts)
    need(tensors, f"{number} tensors as parts", parts)
    found = [part(p) for p in parts]
    if trial:
        return None
    try:
        need(not wanted or found[-1].dtype.has_gradients, "a gradient of a floating tensor", name)
        if number == 2:
            return sparse_coo_tensor(*found, shape, is_coalesced=coalesced, requires_grad=wanted, check_invariants=True)
        return sparse_compressed_tensor(*found, shape, layout=kinds[name], requires_grad=wanted, check_invariants=True)
    except FileFormatError:
        raise
    except RuntimeError as error:
        raise FileFormatError(sentence("load", "a sparse tensor that is one", error)) from None
