"""DTensors in files (see serialization.py): this process's part, and what it is a part of. A process loads what it has saved."""
from tritorch.distributed.device_mesh import mesh_of
from tritorch.distributed.tensor.dtensor import made
from tritorch.distributed.tensor.placement_types import Partial, Replicate, Shard
from tritorch.distributed.tensor.spec import pieces
from tritorch.nn.parameter import Parameter
from tritorch.safetensors import is_count, need


def encode(x, encode_tensor):
    """A DTensor as values of JSON; `encode_tensor` takes its part."""
    mesh, kinds = x.device_mesh, [p.dim if type(p) is Shard else getattr(p, "reduce_op", "replicate") for p in x.placements]
    names = None if mesh.mesh_dim_names is None else list(mesh.mesh_dim_names)
    return [encode_tensor(x.to_local().detach()), mesh.device_type, mesh._ranks.tolist(), names, kinds, list(x.shape), list(x.strides),
            isinstance(x, Parameter), x.requires_grad]


def decode(value, decode_tensor, trial):
    """The DTensor again. In a trial its values are only looked at."""
    facts = type(value) is list and len(value) == 9 and type(value[0]) is dict and value[0].keys() == {"tensor"}
    need(facts, "nine facts of a DTensor", value)
    node, device_type, ranks, names, kinds, shape, strides, parameter, wants = value
    need(device_type in ("cpu", "cuda") and type(ranks) is list, "a mesh of a DTensor", device_type, ranks)
    need(names is None or type(names) is list and all(type(name) is str for name in names), "names of mesh dims", names)
    need(type(kinds) is list and all(is_count(k) or k in ("replicate", *Partial.ALL_REDUCE_OPS) for k in kinds), "placements", kinds)
    lists = all(type(v) is list and all(map(is_count, v)) for v in (shape, strides)) and len(shape) == len(strides) <= 64
    need(lists and all(type(k) is str or k < len(shape) for k in kinds), "the shape of a DTensor", shape, strides)
    need(type(parameter) is type(wants) is bool, "flags of a DTensor", parameter, wants)
    local = decode_tensor(node)
    if trial:
        return None
    mesh = mesh_of(device_type, ranks, None if names is None else tuple(names))
    placements = tuple([Shard(k) if is_count(k) else Replicate() if k == "replicate" else Partial(k) for k in kinds])
    need(len(placements) == mesh.ndim and local.shape == pieces(shape, mesh, placements)[0], "the part of this process",
         f"one of shape {tuple(local.shape)} for {placements}", use="the file that this process has saved")
    out = made(local.detach(), mesh, placements, tuple(shape), tuple(strides))
    return Parameter(out, wants) if parameter else out.requires_grad_(wants)
