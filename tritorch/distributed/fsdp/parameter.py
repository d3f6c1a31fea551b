"""One parameter of which every rank has a part: where it is registered, how it is cut, and how parts become the whole."""
import weakref
from itertools import count

from tritorch.distributed.fsdp.meshes import NAME
from tritorch.distributed.fsdp.shards import Place, local_of, sharded_parameter
from tritorch.distributed.tensor import Shard
from tritorch.errors import check
from tritorch.nn.parameter import Parameter
from tritorch.shape import cdiv, layout
from tritorch.tensor import strided

_origins = count()


class Cut:
    """A parameter, or what this rank has of a DTensor, cut along `dim` into one part a rank. `sharded` is the parameter that optimizers
    see, a DTensor of this rank's part; `full`, once it has been gathered, the one that the module computes with. All parts have room for
    `count` elements, of which rows along dim 0 may be left over."""

    def __init__(self, parameter, places, meshes, placement):
        self.places = [(weakref.ref(module), name) for module, name in places]
        self.origin = vars(parameter).setdefault("_fsdp_origin", next(_origins))        # known by modules of other groups, too
        dim, local = 0 if placement is None else placement.dim + parameter.ndim * (placement.dim < 0), local_of(parameter)
        check(0 <= dim < parameter.ndim, NAME, f"Shard of a dim of {places[0][1]}, which has {parameter.ndim}", placement,
              error=AssertionError)
        check(local.is_contiguous(), NAME, "contiguous parameters", f"{places[0][1]} with strides {local.strides}",
              error=NotImplementedError)
        self.shape, self.dim, self.ranks = tuple(local.shape), dim, meshes.size
        length = self.shape[dim]
        check(dim == 0 or length % meshes.size == 0, NAME, f"a size of dim {dim} that {meshes.size} divides", self.shape,
              error=NotImplementedError)
        self.rows = cdiv(length, meshes.size) if length else 0
        first = min(meshes.rank * self.rows, length)
        mine = min(self.rows, length - first)
        self.own = (*self.shape[:dim], mine, *self.shape[dim + 1:])      # the shape of this rank's part
        self.outer, rest = layout(self.shape[:dim])[2], layout(self.shape[dim + 1:])[2]
        self.inner, self.count = self.rows * rest, self.outer * self.rows * rest
        self.start, self.full, self.collected = 0, None, None            # collected: the gradient so far, in the dtype of the reduction
        self.name = places[0][1]                                         # in its module, and later in the root
        self.place = Place(parameter, meshes, Shard(dim))
        self.sharded = sharded_parameter(local.narrow(dim, first, mine), self.place, parameter)
        self.register(self.sharded)

    def register(self, parameter):
        """Let the modules have `sharded` or `full`."""
        for module, name in self.places:
            module()._parameters[name] = parameter

    def registered(self):
        """What the module has, which a program may have put there."""
        module, name = self.places[0]
        return module()._parameters[name]

    def show(self, storage, kind):
        """Make what the module computes with, in the memory of all of its group."""
        whole = strided(storage, self.shape, layout(self.shape)[1], self.start * self.ranks, kind)
        self.full = Parameter(self.place.gathered(whole), self.sharded.requires_grad)

    def forget_memory(self):
        """The memory of `full` is another now."""
        for x in (self.full,) if self.place.inner is None else (self.full, self.full.storage.local):
            x._array = x.form = None

    def grad(self):
        """The gradient of `full`, as this rank has it, or None."""
        grad = None if self.full is None else self.full._grad
        return None if grad is None else self.place.local(grad)

    def part_in(self, memory):
        """This rank's part in the memory of its shards."""
        return strided(memory.storage, self.own, layout(self.own)[1], self.start, memory.dtype)

    def move_to(self, memory):
        """Bring this rank's part into the memory of its shards. The parameter, and what shows the same part, stay the same objects."""
        part, spread = self.part_in(memory), self.sharded.storage
        part.copy_(spread.local)
        part.storage.version = spread.version
        spread.local, spread.device = part, part.device

    def whole_from(self, table, flat):
        """Copy the parts of all ranks, which are side by side in the rows of `table`, to their places in `flat`."""
        parts = table.as_strided((self.ranks, self.outer, self.inner), (table.strides[0], self.inner, 1), self.start)
        flat.as_strided(parts.shape, (self.inner, self.ranks * self.inner, 1), self.start * self.ranks).copy_(parts)

    def parts_of(self, grad, table, start):
        """Copy the parts of a gradient into the rows of `table`, one a rank, from column `start` on."""
        step = table.strides[0]
        if self.dim:
            parts = grad.reshape(self.outer, self.ranks, self.inner).transpose(0, 1)
            table.as_strided(parts.shape, (step, self.inner, 1), start).copy_(parts)
            return
        whole, rest = divmod(grad.numel(), self.count) if self.count else (0, 0)
        line = grad.reshape(-1)
        if whole:
            parts = line.narrow(0, 0, whole * self.count).view(whole, self.count)
            table.as_strided(parts.shape, (step, 1), start).copy_(parts)
        if rest:
            table.as_strided((rest,), (1,), whole * step + start).copy_(line.narrow(0, whole * self.count, rest))

    def even(self):
        """Whether the parts leave nothing over."""
        return self.shape[self.dim] == self.rows * self.ranks
