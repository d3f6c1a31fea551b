"""From tensors that are spread to whole ones, and back."""
from tritorch import distributed as dist
from tritorch.device import cpu
from tritorch.distributed.checkpoint.pieces import cut
from tritorch.distributed.tensor import DTensor
from tritorch.distributed.tensor.dtensor import made
from tritorch.distributed.tensor.spec import pieces
from tritorch.ops.create import empty
from tritorch.tensor import Tensor


def mapped(fn, value, like=None):
    """Dictionaries, lists and tuples with `fn(tensor, what is in its place in `like`)` of each tensor."""
    if isinstance(value, Tensor):
        return fn(value, like)
    if isinstance(value, dict):
        inner = like if isinstance(like, dict) else {}
        return {key: mapped(fn, v, inner.get(key)) for key, v in value.items()}
    if isinstance(value, (list, tuple)) and not hasattr(value, "_fields"):
        inner = like if isinstance(like, (list, tuple)) and len(like) == len(value) else [None] * len(value)
        return type(value)([mapped(fn, v, x) for v, x in zip(value, inner)])
    return value


def whole(state, options):
    """A state dict as the options want it: whole, on the CPU, or {} where rank 0 alone gets it."""
    if not (options.full_state_dict or options.cpu_offload):
        return state
    mine = not (options.full_state_dict and options.cpu_offload and dist.is_initialized()) or dist.get_rank() == 0

    def one(x, _):
        if options.full_state_dict and isinstance(x, DTensor):
            x = x.detach().full_tensor()                                 # all ranks take part
        if not mine:
            return None
        return x.detach().to(cpu) if options.cpu_offload else x

    made_whole = mapped(one, state)
    return made_whole if mine else {}


class Fitting:
    """A state dict on its way into tensors that are spread as they are. `names` are its names on all ranks; `assigns`: there was no memory
    to copy something to."""

    def __init__(self, options, state):
        self.options, self.state, self.assigns = options, state, False
        self.tells = options.broadcast_from_rank0 and dist.is_initialized() and dist.get_world_size() > 1
        self.names = self._told(list(state))

    def of(self, name, like):
        """What is under a name, fitted to a tensor of the model."""
        value = self._everywhere(self.state.get(name), like)
        if not isinstance(value, Tensor) or not isinstance(like, Tensor):
            return value
        self.assigns = self.assigns or like.is_meta
        return self.fit(value, like) if self.options.full_state_dict else value

    def everywhere(self):
        """All of it, with the tensors that rank 0 has."""
        if not self.tells:
            return self.state
        shapes = self._told(mapped(lambda x, _: _Shape(x), self.state))
        return self._sent(shapes, self.state)

    def _sent(self, shapes, state):
        if isinstance(shapes, _Shape):
            return self._broadcast(shapes, state)
        if isinstance(shapes, dict):
            return {key: self._sent(v, state.get(key) if isinstance(state, dict) else None) for key, v in shapes.items()}
        if isinstance(shapes, (list, tuple)):
            return type(shapes)([self._sent(v, state[k] if isinstance(state, (list, tuple)) else None) for k, v in enumerate(shapes)])
        return shapes

    def _everywhere(self, value, like):
        if not self.tells:
            return value
        shape = self._told(_Shape(value) if isinstance(value, Tensor) else value)
        return self._broadcast(shape, value, like) if isinstance(shape, _Shape) else shape

    def _broadcast(self, shape, value, like=None):
        device = _device()
        if dist.get_rank() == 0:
            x = value.detach().to(device).contiguous()
        else:
            x = empty(shape.shape, dtype=shape.dtype, device=device)
        dist.broadcast(x, 0)
        return x

    def _told(self, value):
        if not self.tells:
            return value
        box = [value if dist.get_rank() == 0 else None]
        dist.broadcast_object_list(box, 0)
        return box[0]

    @staticmethod
    def fit(x, like):
        """This rank's piece of a whole tensor, as a DTensor like another; x itself for one that is not spread."""
        if not isinstance(like, DTensor) or isinstance(x, DTensor) or tuple(x.shape) != tuple(like.shape):
            return x
        sizes, offsets = pieces(tuple(like.shape), like.device_mesh, like.placements)
        home = _device() if like.is_meta else like.device
        local = cut(x.detach(), offsets, sizes).to(device=home, dtype=like.dtype).clone()
        return made(local, like.device_mesh, like.placements, like.shape)


class _Shape:
    """What is told of a tensor before it is sent."""

    def __init__(self, x):
        self.shape, self.dtype = tuple(x.shape), x.dtype


def _device():
    """Where the world's backend takes tensors."""
    from tritorch.distributed.objects import _device as of

    return of(dist.group.WORLD)
