"""The norm of gradients that are in parts on several ranks."""
import math

from tritorch import distributed as dist
from tritorch.autograd.modes import no_grad
from tritorch.distributed.options import ReduceOp
from tritorch.distributed.tensor import DTensor, Shard
from tritorch.dtype import float32, promote_types
from tritorch.linalg import vector_norm
from tritorch.ops.create import zeros
from tritorch.ops.shaping import stack


def parts(x):
    """The process groups over which a tensor is cut."""
    if not isinstance(x, DTensor):
        return ()
    return tuple(x.device_mesh.get_group(k) for k, placement in enumerate(x.placements) if isinstance(placement, Shard))


@no_grad()
def clip(parameters, max_norm, norm_type, device):
    """Scale gradients in place so that the norm of all, as one vector, is at most `max_norm`; returns what it was. One all-reduce for all
    parameters that are cut over the same ranks. Sums are in float32 at least."""
    norm_type, buckets = float(norm_type), {}
    for p in parameters:                                                 # of all ranks alike, whether they have gradients or not
        grads = buckets.setdefault(parts(p), [])
        if p.grad is not None:
            grads.append(p.grad.storage.local if isinstance(p.grad, DTensor) else p.grad.detach())
    every = [g for grads in buckets.values() for g in grads]
    kind = float32
    for g in every:
        kind = promote_types(kind, g.dtype)
    total = zeros((), dtype=kind, device=device)
    for groups, grads in buckets.items():
        norms = [vector_norm(g, norm_type, dtype=kind).to(device) for g in grads if g.numel()]
        norm = vector_norm(stack(norms), norm_type) if norms else zeros((), dtype=kind, device=device)
        norm = norm if norm_type == math.inf else norm ** norm_type
        for group in groups:
            dist.all_reduce(norm, ReduceOp.MAX if norm_type == math.inf else ReduceOp.SUM, group)
        total = total.maximum(norm) if norm_type == math.inf else total + norm
    total = total if norm_type == math.inf else total ** (1 / norm_type)
    scale = (float(max_norm) / (total + 1e-6)).clamp(max=1.0)
    for g in every:
        g.mul_(scale.to(g.device, g.dtype))
    out = every[0].dtype if every else kind
    for g in every:
        out = promote_types(out, g.dtype)
    return total.to(out)
