"""Rules of random operators: every process draws what an ordinary tensor of the whole shape would get, and keeps its part, so that the
numbers do not depend on the mesh. All processes must draw alike: the first time that they do on a mesh they take over the seed of its
first process, and from then on `manual_seed` has to be called on all of them with the same number."""
from tritorch.distributed import collectives as dist
from tritorch.distributed.tensor import exchange
from tritorch.distributed.tensor.placement_types import Shard
from tritorch.distributed.tensor.plans import Plan, R, rule
from tritorch.distributed.tensor.spec import pieces
from tritorch.generator import default_generator
from tritorch.ops import create


def agreed(op, args, mesh, device):
    """The arguments of a random operator with the seed and offset of the mesh's first process, if this is the first call on it."""
    places = [op.names.index(name) for name in ("seed", "offset")] if "seed" in op.names else []
    drops = op.names.index("dropout") if "dropout" in op.names and isinstance(args[op.names.index("dropout")], tuple) else None
    if not places and (drops is None or not args[drops][0]) or (mesh, device) in mesh._get_root_mesh().seeded:
        return args
    mesh._get_root_mesh().seeded.add((mesh, device))
    mine = tuple(args[k] for k in places) if places else args[drops][1:]
    seed, offset = _first(mine, mesh)
    generator = default_generator(device)
    if (seed, offset) != mine and generator._seed == mine[0]:
        generator._go(seed, generator._offset - mine[1] + offset)
    args = list(args)
    if places:
        args[places[0]], args[places[1]] = seed, offset
    else:
        args[drops] = (args[drops][0], seed, offset)
    return tuple(args)


def _first(numbers, mesh):
    """Two numbers of the mesh's first process, on all."""
    words = [n >> 32 * k & 0xFFFFFFFF for n in numbers for k in range(3)]
    x = create.tensor(words, device=mesh.device_type)
    for k in range(mesh.ndim):
        exchange.tell("broadcast", mesh.get_group(k))
        dist.broadcast(x, group=mesh.get_group(k), group_src=0)
    values = [sum(word << 32 * k for k, word in enumerate(x.tolist()[i:i + 3])) for i in (0, 3)]
    return tuple([n - (1 << 96) if n >> 95 else n for n in values])


def part_of(x, mesh, placements):
    """This process's part of a tensor that it has as a whole."""
    sizes, offsets = pieces(x.shape, mesh, placements)
    for d, (n, first) in enumerate(zip(sizes, offsets)):
        x = x.narrow(d, first, n) if n != x.shape[d] else x
    return x


@rule("random_dropout")
def dropout(call, wanted=None):
    """The factors are drawn for the whole tensor, of which each process multiplies its part."""
    places = tuple([p if type(p) is Shard else R for p in call.tensors[0].placements])
    rest = [(R,) * call.mesh.ndim] * (len(call.tensors) - 1)
    return Plan([places, *rest], [places], _dropped if any(type(p) is Shard for p in places) else None)


def _dropped(call, plan, parts):
    x, args = call.tensors[0], list(call.args)
    whole = create.ones(x.shape, dtype=x.dtype, device=parts[0].device)
    args[0] = whole
    if len(parts) > 1:
        args[call.op.names.index("base")] = parts[1]
    return parts[0] * part_of(call.op(*args), call.mesh, plan.needs[0])
