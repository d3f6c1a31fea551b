"""DTensor: a tensor of which every process of a mesh has a part, and which otherwise is a tensor like any other."""
import sys
from copy import deepcopy

from tritorch.autograd.function import Function
from tritorch.autograd.modes import no_grad, state
from tritorch.distributed.tensor import distribute, exchange
from tritorch.distributed.tensor.placement_types import Partial, Replicate, Shard
from tritorch.distributed.tensor.spec import DTensorSpec, TensorMeta, checked, pieces, whole_of, whole_on_all
from tritorch.errors import check
from tritorch.memory_format import dense_strides
from tritorch.ops import create, shaping
from tritorch.shape import layout
from tritorch.storage import Spread, spread
from tritorch.tensor import Tensor, alias, empty

__all__ = ["DTensor"]

_new = object.__new__


class Gathered(RuntimeError):
    """A write to what would be a view of whole tensors, and is a copy since its elements came from several processes."""


class DTensor(Tensor):
    """A tensor that is spread over the processes of a mesh: `shape` is that of the whole, `to_local()` this process's part, and for each
    dim of the mesh `placements` says how the parts make the whole. Made by `from_local`, `distribute_tensor` and `zeros`, `rand`, ….

    Operators on DTensors compute what they would compute on whole tensors. Each process computes its part of the result where that is
    possible, and where the parts it has do not suffice, they do what communication is needed. A process that holds a DTensor must do
    what the others do, in the same order. Tensors of one element mix with DTensors; of others say what they are by `from_local`.

    >>> import tritorch as torch
    >>> from tritorch import distributed as dist
    >>> from tritorch.distributed.tensor import DTensor, Shard
    >>> mesh = dist.init_device_mesh("cpu", (1,))
    >>> x = DTensor.from_local(torch.tensor([[1.0, 2.0]]), mesh, [Shard(0)])
    >>> y = x.sum(0); y.placements, y.full_tensor()
    ((Partial(sum),), tensor([1., 2.]))
    >>> dist.destroy_process_group()
    """

    def __new__(cls, local_tensor, spec, *, requires_grad=False):
        out = made(local_tensor.detach(), spec.mesh, spec.placements, spec.tensor_meta.shape, spec.tensor_meta.stride)
        out = out if cls is DTensor else alias(out, cls)
        return out.requires_grad_() if requires_grad else out

    def __init__(self, *args, **kwargs):
        pass

    # -------------------------------------------------------------- what it is
    _spec = property(lambda self: self.storage.spec)
    _local_tensor = property(lambda self: self.storage.local)
    device_mesh = property(lambda self: self.storage.spec.mesh, doc="The processes that have parts.")
    placements = property(lambda self: self.storage.spec.placements, doc="How the parts make the whole, for each dim of the mesh.")

    def __repr__(self):
        return f"DTensor(local_tensor={self.storage.local!r}, device_mesh={self.device_mesh}, placements={self.placements})"

    def __format__(self, spec):
        return repr(self) if self.shape else format(self.item(), spec)

    @staticmethod
    def from_local(local_tensor, device_mesh=None, placements=None, *, run_check=False, shape=None, stride=None, grad_placements=None):
        """The DTensor of which this process's part is `local_tensor`. Gradients flow through, placed as it is (where it is Partial, they
        are Replicate) or as `grad_placements` says.

        Without `shape` and `stride` of the whole, all parts are taken to be of one size. With `run_check` the processes make sure that
        they are, and that what is replicated is that of the first one.
        """
        check(isinstance(local_tensor, Tensor), "from_local", "a tensor", type(local_tensor).__name__, error=TypeError)
        check(not isinstance(local_tensor, DTensor), "from_local", "a tensor of this process", "a DTensor", use="redistribute")
        check((shape is None) == (stride is None), "from_local", "both shape and stride, or none of them", "one")
        mesh = device_mesh if device_mesh is not None else distribute.mesh_around(local_tensor.device.type)
        placements = checked("from_local", mesh, whole_on_all(mesh) if placements is None else placements, local_tensor.ndim)
        gradients = None if grad_placements is None else checked("from_local", mesh, grad_placements, local_tensor.ndim)
        if shape is None:
            shape, stride = whole_of(local_tensor.shape, local_tensor.strides, mesh, placements)
        if mesh.get_coordinate() is None:
            local_tensor = local_tensor.detach().new_empty(0).requires_grad_(local_tensor.requires_grad)
        elif run_check:
            local_tensor = distribute.same_parts(local_tensor, mesh, placements)
        if not (state.grad and local_tensor.requires_grad):
            return made(local_tensor.detach(), mesh, placements, shape, stride)
        return _FromLocal.apply(local_tensor, mesh, placements, tuple(shape), tuple(stride), gradients)

    def to_local(self, *, grad_placements=None):
        """This process's part. Gradients flow through; `grad_placements` says how they are placed, if otherwise than the tensor."""
        if not (state.grad and self.requires_grad):
            return self.storage.local.detach()
        gradients = None if grad_placements is None else checked("to_local", self.device_mesh, grad_placements, self.ndim)
        return _ToLocal.apply(self, gradients)

    def redistribute(self, device_mesh=None, placements=None, *, async_op=False, forward_dtype=None, backward_dtype=None):
        """The same tensor under other placements. Shard → Replicate gathers, Partial → Replicate reduces, Partial → Shard reduces to the
        pieces, Shard → Shard exchanges them, Replicate → Shard cuts without communication; gradients go the way back.

        It travels in `forward_dtype`, the gradient in `backward_dtype`, if given. `async_op` changes nothing: it is always waited for.
        """
        mesh = self.device_mesh if device_mesh is None else device_mesh
        check(mesh == self.device_mesh, "redistribute", f"the mesh of the tensor, {self.device_mesh}", mesh, error=NotImplementedError)
        check(placements is not None, "redistribute", "placements", "none")
        placements = checked("redistribute", mesh, placements, self.ndim)
        for k, (was, will) in enumerate(zip(self.placements, placements)):
            check(type(will) is not Partial or was == will, "redistribute", f"Shard or Replicate in placement {k}", f"{was} to {will}")
        return redistributed(self, placements, forward_dtype, backward_dtype)

    def full_tensor(self, *, grad_placements=None):
        """The whole tensor, on each process. Gradients flow through, taken to be the same on all, unless `grad_placements` says else."""
        return redistributed(self, whole_on_all(self.device_mesh)).to_local(grad_placements=grad_placements)

    # -------------------------------------------------------------- what tensors do otherwise
    def detach(self):
        out = alias(self, DTensor)
        if "_gathered" in self.__dict__:
            out._gathered = True
        return out

    @property
    def data(self):
        """The same memory without history and with a version of its own; assigning swaps the memory under this tensor."""
        out = self.detach()
        out.storage = self.storage.alias()
        return out

    @data.setter
    def data(self, other):
        check(isinstance(other, DTensor), "data", "a DTensor", type(other).__name__, error=TypeError)
        Tensor.data.fset(self, other)

    @property
    def array(self):
        """The whole tensor as a numpy array that cannot be written, for functions that look at values."""
        found = self.detach().full_tensor().array.view()
        found.flags.writeable = False
        return found

    def item(self):
        """The value of a tensor of one element, after what communication it takes."""
        check(self.numel() == 1, "item", "one element", self.shape)
        return self.detach().full_tensor().item()

    def numpy(self, *, force=False):
        check(False, "numpy", "a tensor of this process", "a DTensor", use="to_local() or full_tensor()")

    tolist = numpy

    def __array__(self, *args, **kwargs):
        self.numpy()

    def __setitem__(self, index, value):
        try:
            Tensor.__setitem__(self, index, value)
        except Gathered:                                                 # the elements are not this process's alone
            wants = state.grad and (self.requires_grad or isinstance(value, Tensor) and value.requires_grad)
            check(not wants, "setitem", "no gradients where a dim is written that is cut", "some", use="torch.where")
            with no_grad():
                whole = redistributed(self.detach(), whole_on_all(self.device_mesh)).clone()
                Tensor.__setitem__(whole, index, value)
                self.detach().copy_(whole)

    def __deepcopy__(self, memo):
        if id(self) not in memo:
            check(self.is_leaf, "deepcopy", "a tensor made by the user (a graph leaf)", f"the result of {self.grad_fn}",
                  use="x.detach().clone()")
            out = memo[id(self)] = alias(_over(deepcopy(self.storage.local, memo), self), type(self))
            out.__dict__.update(deepcopy({k: v for k, v in self.__dict__.items() if k[:1] != "_"}, memo))
            out.requires_grad_(self.requires_grad)
            if self.grad is not None and not hasattr(_plain.get(type(self)), "__deepcopy__"):      # as nn.Parameter has it
                out.grad = deepcopy(self.grad, memo)
        return memo[id(self)]

    def __copy__(self):
        return alias(self, type(self)).requires_grad_(self.requires_grad)

    def __reduce_ex__(self, protocol):
        return _again, (_plain.get(type(self), DTensor), self.storage.local, self.device_mesh, self.placements, tuple(self.shape),
                        self.strides, self.requires_grad)

    # -------------------------------------------------------------- new tensors like it
    def _like(self, name, sizes, size, dtype, device, requires_grad, fill=None):
        shape = layout(create._sizes(sizes, size))[0]
        places = self.placements if shape == self.shape and not self._spec.sums else whole_on_all(self.device_mesh)
        out = unset(shape, self.dtype if dtype is None else dtype, self.device_mesh, places, self.device if device is None else device)
        if fill is not None:
            out.storage.local.fill_(fill)
        return out.requires_grad_() if requires_grad else out

    def new_empty(self, *sizes, size=None, dtype=None, device=None, requires_grad=False, layout=None, pin_memory=False):
        """An unset DTensor on the same mesh, placed as this one if it has its shape, else whole on each process."""
        return self._like("new_empty", sizes, size, dtype, device, requires_grad)

    def new_zeros(self, *sizes, size=None, dtype=None, device=None, requires_grad=False, layout=None, pin_memory=False):
        """Zeros, as `new_empty`."""
        return self._like("new_zeros", sizes, size, dtype, device, requires_grad, 0)

    def new_ones(self, *sizes, size=None, dtype=None, device=None, requires_grad=False, layout=None, pin_memory=False):
        """Ones, as `new_empty`."""
        return self._like("new_ones", sizes, size, dtype, device, requires_grad, 1)

    def new_full(self, size, fill_value, *, dtype=None, device=None, requires_grad=False, layout=None, pin_memory=False):
        """One value, as `new_empty`."""
        return self._like("new_full", (size,), None, dtype, device, requires_grad, fill_value)

    def new_empty_strided(self, size, stride, dtype=None, layout=None, device=None, pin_memory=False, requires_grad=False):
        """As `new_empty`; the order of the dims in memory is not followed."""
        return self._like("new_empty_strided", (size,), None, dtype, device, requires_grad)


def made(local, mesh, placements, shape, strides=None):
    """The DTensor of a part, without checks. The part must have no history."""
    shape, usual, _ = layout(shape if isinstance(shape, tuple) else tuple(shape))
    strides = usual if strides is None else tuple(strides)
    return of_spec(local, DTensorSpec(mesh, placements, TensorMeta(shape, strides, local.dtype)))


def of_spec(local, spec):
    """The same, of which all is known."""
    if Spread.kind is None:
        from tritorch.distributed.tensor import resident

        resident.begin()
    out, meta = _new(DTensor), spec.tensor_meta
    out.shape, out.strides, out.dtype = meta
    out.storage = spread(local, spec, layout(meta[0])[2] * meta[2].itemsize)
    out.offset = out.index = 0
    out.node = out.base = out.base_node = out._array = out.form = None
    return out


def _over(local, like):
    """A DTensor such as another over another part."""
    return made(local, like.device_mesh, like.placements, like.shape, like.strides)


def unset(shape, dtype, mesh, placements, device):
    """A DTensor whose elements are not set."""
    return made(empty(pieces(shape, mesh, placements)[0], create._kind(dtype), create.as_device(device)), mesh, placements, shape)


def _again(cls, local, mesh, placements, shape, strides, requires_grad):
    """What was pickled."""
    out = made(local.detach(), mesh, placements, shape, strides)
    return (out if cls is DTensor else alias(out, cls)).requires_grad_(requires_grad)


_standing, _plain = {}, {}                                               # the class of DTensors that stand for tensors of a class; back


def standing_for(cls):
    """The class of DTensors that are also of `cls`: an `nn.Parameter` of a DTensor is both."""
    if issubclass(DTensor, cls):
        return DTensor
    if issubclass(cls, DTensor):
        return cls
    if cls not in _standing:
        both = type("DTensor", (DTensor, cls), {"__module__": __name__, "__doc__": DTensor.__doc__})
        _standing[cls], _plain[both] = both, cls
    return _standing[cls]


def gradient_of(g, leaf):
    """What a leaf keeps of a gradient that has come to it, one of the two being a DTensor."""
    if type(leaf.storage) is not Spread:
        return g.detach().full_tensor()
    if type(g.storage) is not Spread:
        return made(g.clone().detach(), leaf.device_mesh, whole_on_all(leaf.device_mesh), g.shape)
    local = g.storage.local
    alone = sys.getrefcount(local) <= 3 and sys.getrefcount(local.storage) <= 2 and sys.getrefcount(g.storage) <= 2
    return g if state.grad else _over(local if alone else local.clone(), g)


def like(x, dtype, device):
    """An unset DTensor of another dtype or device and otherwise as x; what is still to be reduced of x, each process has."""
    local, spec = x.storage.local, x.storage.spec
    part = empty(local.shape, dtype, device, local.strides, dense_strides)
    return made(part, spec.mesh, _for_gradients(spec.placements), x.shape, dense_strides(x.shape, x.strides))


# ------------------------------------------------------------------ gradients
def _for_gradients(placements):
    """How the gradient of a tensor with these placements is placed: each process that has values to be summed gets all of it."""
    return tuple([Replicate() if type(p) is Partial else p for p in placements])


def redistributed(x, placements, forward_dtype=None, backward_dtype=None):
    """A DTensor under other placements; x itself where nothing changes."""
    if x.placements == placements and forward_dtype is None and backward_dtype is None:
        return x
    if state.grad and x.requires_grad:
        return _Redistribute.apply(x, placements, forward_dtype, backward_dtype)
    return _moved(x, placements, forward_dtype)


def _moved(x, placements, dtype=None):
    """The same without history."""
    local = x.storage.local if dtype is None else x.storage.local.detach().to(dtype)
    out = exchange.moved(local, x.device_mesh, x.placements, placements, x.shape)
    out = out if dtype is None else out.to(x.dtype)
    if out.storage is x.storage.local.storage and x.placements != placements:
        out = out.clone()
    return made(out.detach() if out is x.storage.local else out, x.device_mesh, placements, x.shape, dense_strides(x.shape, x.strides))


def as_dtensor(g, mesh, shape):
    """A gradient as a DTensor: rules may have made ordinary tensors, which are the same on all processes."""
    return g if isinstance(g, DTensor) else made(g.detach(), mesh, whole_on_all(mesh), shape)


class _Redistribute(Function):
    @staticmethod
    def forward(ctx, x, placements, forward_dtype, backward_dtype):
        ctx.mesh, ctx.placements, ctx.shape, ctx.dtype = x.device_mesh, x.placements, x.shape, backward_dtype
        out = _moved(x, placements, forward_dtype)
        return _over(out.storage.local.detach(), out)

    @staticmethod
    def backward(ctx, g):
        g = as_dtensor(g, ctx.mesh, ctx.shape)
        target = tuple([now if type(was) is Partial and type(now) is Partial else want
                        for was, now, want in zip(ctx.placements, g.placements, _for_gradients(ctx.placements))])
        return redistributed(g, target, ctx.dtype), None, None, None


class _FromLocal(Function):
    @staticmethod
    def forward(ctx, local, mesh, placements, shape, strides, gradients):
        ctx.mesh, ctx.shape, ctx.placements = mesh, shape, _for_gradients(placements) if gradients is None else gradients
        return made(local.detach(), mesh, placements, shape, strides)

    @staticmethod
    def backward(ctx, g):
        return redistributed(as_dtensor(g, ctx.mesh, ctx.shape), ctx.placements).to_local(), None, None, None, None, None


class _ToLocal(Function):
    @staticmethod
    def forward(ctx, x, gradients):
        ctx.mesh, ctx.shape, ctx.placements = x.device_mesh, x.shape, _for_gradients(x.placements) if gradients is None else gradients
        ctx.strides = x.strides
        return x.storage.local.detach()

    @staticmethod
    def backward(ctx, g):
        return DTensor.from_local(g, ctx.mesh, ctx.placements, shape=ctx.shape, stride=ctx.strides), None


def on_whole(fn, *xs):
    """fn of whole tensors, for what is no operator: gradients flow through."""
    mesh = next(x.device_mesh for x in xs if isinstance(x, DTensor))
    out = fn(*[x.full_tensor() if isinstance(x, DTensor) else x for x in xs])
    return DTensor.from_local(out, mesh, whole_on_all(mesh))


def rows_first(*xs):
    """Tensors of which all dims but the last become one, in whatever order that is the same for all of them: a dim that is cut comes first,
    so that it can stay cut."""
    cut = sorted({p.dim for x in xs if isinstance(x, DTensor) for p in x.placements if type(p) is Shard and p.dim < x.ndim - 1})
    return [x.movedim(cut[0], 0) for x in xs] if cut and cut[0] else xs


def whole_gradient(part):
    """A gradient that has come in pieces (see autograd/parts.py), placed as its pieces are."""
    total = None
    for g, dim, start in part.pieces:
        around = [(*part.shape[:dim], n, *part.shape[dim + 1:]) for n in (start, part.shape[dim] - start - g.shape[dim])]
        x = shaping.cat([g.new_zeros(around[0]), g, g.new_zeros(around[1])], dim)
        total = x if total is None else total + x
    return total
