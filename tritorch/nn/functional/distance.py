"""Norms of vectors and distances between them."""
from tritorch.dtype import promote
from tritorch.errors import check, explained
from tritorch.ops.composite import composite
from tritorch.ops.pointwise import div
from tritorch.ops.shaping import broadcast_tensors
from tritorch.ops.triangles import triu_indices


@explained
def normalize(input, p=2.0, dim=1, eps=1e-12, out=None):
    """x / max(‖x‖_p, eps) over `dim`.

    >>> import tritorch as torch
    >>> torch.nn.functional.normalize(torch.tensor([[3.0, 4.0]])).tolist()
    [[0.6000000238418579, 0.800000011920929]]
    """
    length = input.norm(p, dim, keepdim=True).clamp_min(eps)
    return input / length if out is None else div(input, length, out=out)


@composite
def cosine_similarity(x1, x2, dim=1, eps=1e-8):
    """x1 · x2 / (max(‖x1‖, eps) max(‖x2‖, eps)) over `dim` of the broadcast shape.

    >>> import tritorch as torch
    >>> torch.nn.functional.cosine_similarity(torch.tensor([[1.0, 0.0]]), torch.tensor([[3.0, 0.0]])).tolist()
    [1.0]
    """
    dtype = promote(x1, x2)
    check(dtype.is_floating_point, "cosine_similarity", "inputs one of which is floating", x1.dtype, x2.dtype)
    x1, x2 = x1.to(dtype), x2.to(dtype)
    x1, x2 = (x / x.norm(2, dim, keepdim=True).clamp_min(eps) for x in broadcast_tensors(x1, x2))
    return (x1 * x2).sum(dim)


@explained
def pairwise_distance(x1, x2, p=2.0, eps=1e-6, keepdim=False):
    """‖x1 - x2 + eps‖_p over the last dim.

    >>> import tritorch as torch
    >>> torch.nn.functional.pairwise_distance(torch.tensor([[3.0, 4.0]]), torch.zeros(1, 2))
    tensor([5.0000])
    """
    return (x1 - x2 + eps).norm(p, -1, keepdim=keepdim)


@explained
def pdist(input, p=2):
    """‖x_i - x_j‖_p for all i < j of (N, D), in order: N (N - 1) / 2 numbers.

    >>> import tritorch as torch
    >>> torch.nn.functional.pdist(torch.tensor([[0.0, 0.0], [3.0, 4.0], [0.0, 1.0]]))
    tensor([5.0000, 1.0000, 4.2426])
    """
    if input.ndim != 2:
        raise RuntimeError(f"pdist: expected an input of 2 dims, got {input.ndim}")
    if not p >= 0:
        raise RuntimeError(f"pdist: expected p ≥ 0, got {p}")
    if input.dtype.is_complex:
        raise RuntimeError(f"pdist: expected real numbers, got {input.dtype}")
    i, j = triu_indices(input.shape[0], input.shape[0], 1, device=input.device)
    return (input[i] - input[j]).norm(p, -1)
