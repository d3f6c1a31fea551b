"""Parameters as one vector."""
from tritorch.ops.shaping import cat
from tritorch.tensor import Tensor


def parameters_to_vector(parameters):
    """All parameters, flattened and one after the other.

    >>> import tritorch as torch
    >>> torch.nn.utils.parameters_to_vector(torch.nn.Linear(3, 2).parameters()).shape
    tritorch.Size([8])
    """
    return cat([parameter.reshape(-1) for parameter in parameters])


def vector_to_parameters(vec, parameters):
    """Give the parameters the values of a vector: each becomes a view of its part."""
    if not isinstance(vec, Tensor):
        raise TypeError(f"expected torch.Tensor, but got: {type(vec)}")
    start = 0
    for parameter in parameters:
        count = parameter.numel()
        parameter.data = vec[start:start + count].view(parameter.shape).data
        start += count
