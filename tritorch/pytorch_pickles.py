"""What PyTorch's files hold beside the numbers: a pickle, read so that it can only make tensors and plain values.

A pickle is a small program: it names callables and calls them. Here a name means one of the constructors below, or a class that
`add_safe_globals` has allowed; any other is refused before it is imported. State is set on dictionaries and allowed classes alone.
"""
import contextlib
import functools
import io
import pickle
from collections import Counter, OrderedDict, defaultdict, deque

import numpy as np

from tritorch.device import device
from tritorch.dtype import dtype as dtypes
from tritorch.dtype import types
from tritorch.errors import sentence
from tritorch.layout import layout as layouts
from tritorch.nn.parameter import Buffer, Parameter
from tritorch.safetensors import FileFormatError, is_count, need
from tritorch.shape import Size, extent
from tritorch.storage import UntypedStorage, meta_storage
from tritorch.tensor import Tensor, strided
from tritorch.typed import NAMES

STORAGES = {f"{kind}Storage": dtype for kind, dtype in NAMES.items()}
SMALL_NUMBERS = "biufc"                                                  # numpy's kinds of numbers, as opposed to objects, text and records


class RefusedName(FileFormatError, pickle.UnpicklingError):
    """A pickle names what nobody has allowed it to name."""


# ------------------------------------------------------------------ what a file may name beside that
_allowed = []


def add_safe_globals(safe_globals):
    """Let PyTorch's files that `load` reads name these classes and functions; a pair (class, "module.name") allows one by another name."""
    _allowed.extend(x for x in safe_globals if x not in _allowed)


def get_safe_globals():
    """What `add_safe_globals` has allowed."""
    return list(_allowed)


def clear_safe_globals():
    """Allow nothing but what every file may name."""
    _allowed.clear()


@contextlib.contextmanager
def safe_globals(safe_globals):
    """`add_safe_globals` for a block.

    >>> import fractions, tritorch as torch
    >>> with torch.serialization.safe_globals([fractions.Fraction]):
    ...     torch.serialization.get_safe_globals()
    [<class 'fractions.Fraction'>]
    """
    before = get_safe_globals()
    add_safe_globals(safe_globals)
    try:
        yield
    finally:
        _allowed[:] = before


def allowed(name):
    """The class or function that `add_safe_globals` has allowed under "module.name", or None."""
    for entry in _allowed:
        entry, own = entry if isinstance(entry, tuple) else (entry, f"{entry.__module__}.{entry.__qualname__}")
        if own == name:
            return entry
    return None


# ------------------------------------------------------------------ constructors
class Memory(UntypedStorage):
    """A storage of the file: `kind` is the dtype that its name gives, None for an untyped one; `start` its first byte."""

    __slots__ = ("kind", "start")

    def __init__(self, storage, kind, start=0):
        self.storage, self.kind, self.start = storage, kind, start


class Named:
    """What a name in a pickle stands for. Nothing can be set on it, and called it does what `call` does."""

    __slots__ = ("value", "call")

    def __init__(self, value=None, call=None):
        object.__setattr__(self, "value", value)
        object.__setattr__(self, "call", call)

    def __setattr__(self, name, value):
        raise FileFormatError(f"load: expected a pickle that builds values, got one that sets {name!r} of a name")

    def __call__(self, *args):
        need(self.call is not None, "a pickle that calls constructors", self.value)
        return self.call(*args)


def tensor(memory, offset, size, stride, requires_grad=False, hooks=None, kind=None, metadata=None):
    """A tensor over a storage; hooks do not come along."""
    need(isinstance(memory, Memory), "the storage of a tensor", type(memory).__name__)
    kind = kind if type(kind) is dtypes else memory.kind
    need(kind is not None, "a dtype of a tensor", kind)
    check_sizes(offset, size, stride)
    first, rest = divmod(memory.start, kind.itemsize)
    need(not rest and memory.start + (offset + extent(size, stride)) * kind.itemsize <= memory.storage.nbytes,
         f"a tensor within its storage of {memory.storage.nbytes} bytes", f"sizes {tuple(size)}, strides {tuple(stride)}, offset {offset}")
    x = strided(memory.storage, tuple(size), tuple(stride), first + offset, kind)
    need(not requires_grad or kind.has_gradients, "a gradient of a floating tensor", kind)
    return x.requires_grad_(bool(requires_grad))


def check_sizes(offset, size, stride):
    sizes = type(size) in (tuple, list, Size) and type(stride) in (tuple, list) and len(size) == len(stride) <= 64
    need(sizes and is_count(offset) and all(map(is_count, size)) and all(map(is_count, stride)), "sizes of a tensor", size, stride, offset)


def tensor_on_meta(kind, size, stride, requires_grad=False):
    """A tensor that had no memory."""
    need(type(kind) is dtypes and kind in types.ALL, "a dtype that tensors have", kind)
    check_sizes(0, size, stride)
    return tensor(Memory(meta_storage(extent(size, stride) * kind.itemsize), kind), 0, size, stride, requires_grad)


def tensor_with_dtype(memory, offset, size, stride, requires_grad, hooks, kind, metadata=None):
    """As `tensor`, where the dtype has no storage of its name."""
    need(kind in types.ALL, "a dtype that tensors have", kind)
    need(kind is not types.bool, "bools in a storage of bools", "an untyped one")
    return tensor(memory, offset, size, stride, requires_grad, hooks, kind)


def sparse_tensor(kind, parts):
    """A sparse tensor of its parts, which are checked."""
    from tritorch import sparse_compressed_tensor, sparse_coo_tensor

    need(isinstance(kind, layouts) and type(parts) is tuple and len(parts) in (3, 4), "the parts of a sparse tensor", type(parts).__name__)
    coordinates = kind.name == "sparse_coo"
    *tensors, sizes = parts[:3] if coordinates else parts
    need(all(isinstance(x, Tensor) for x in tensors) and type(sizes) in (tuple, Size), "the parts of a sparse tensor", parts)
    try:
        if coordinates:
            made = sparse_coo_tensor(*tensors, size(tuple(sizes)), check_invariants=True)
            return made._coalesced_(parts[3] is True) if len(parts) == 4 else made
        return sparse_compressed_tensor(*tensors, size(tuple(sizes)), layout=kind, check_invariants=True)
    except RuntimeError as error:
        raise FileFormatError(f"load: expected a sparse tensor that is one, got {error}") from None


def parameter(data, requires_grad, hooks, state=None):
    """A Parameter over a tensor of the file."""
    need(isinstance(data, Tensor), "the tensor of a parameter", type(data).__name__)
    need(not requires_grad or data.dtype.has_gradients, "a gradient of a floating tensor", data.dtype)
    return with_state(Parameter(data, bool(requires_grad)), state)


def of_type(rebuild, kind, args, state):
    """A tensor that had attributes, or that is a Parameter or a Buffer."""
    need(isinstance(rebuild, Named) and isinstance(kind, Named) and type(args) is tuple, "a tensor of a known class", kind)
    x = rebuild(*args)
    need(isinstance(x, Tensor), "a tensor", type(x).__name__)
    if kind.value in (Parameter, Buffer) and not isinstance(x, kind.value):
        x = kind.value(x, x.requires_grad) if kind.value is Parameter else Buffer(x)
    return with_state(x, state)


def with_state(x, state):
    """Attributes that a tensor had in Python; names that tensors have themselves stay what they are."""
    for part in state if type(state) is tuple else (state,):
        need(part is None or isinstance(part, dict), "the attributes of a tensor", type(part).__name__)
        for name, value in (part or {}).items():
            if type(name) is str and not hasattr(Tensor, name):
                setattr(x, name, value)
    return x


def encoded(text, encoding="latin1"):
    """Bytes, as old pickles write them."""
    need(type(text) is str and encoding == "latin1", "bytes as latin1", encoding)
    return text.encode("latin1")


def of(kind, *accepted):
    """A constructor of one value of the accepted types, or of nothing."""
    def make(*args):
        need(len(args) <= 1 and all(type(value) in accepted for value in args), f"one value for {kind.__name__}", *map(type, args))
        return kind(*args)

    return Named(kind, make)


def by_default(factory=None, *rest):
    """A defaultdict, whose default is made by a type."""
    value = factory.value if isinstance(factory, Named) else factory
    need(not rest and (value is None or value in (dict, list, set, int, float, str, bool, tuple)), "a plain type in a defaultdict", value)
    return defaultdict(value)


def queue(items=(), longest=None):
    need(type(items) in (list, tuple) and (longest is None or is_count(longest)), "the items of a deque", type(items).__name__)
    return deque(items, longest)


def number_type(name, *flags):
    need(type(name) is str and name[:1] in SMALL_NUMBERS and name[1:].isdigit() and int(name[1:]) <= 16, "a numpy dtype of numbers", name)
    return np.dtype(name)


def number(kind, data):
    need(isinstance(kind, np.dtype) and type(data) is bytes and len(data) == kind.itemsize, "the bytes of one number", data)
    return np.frombuffer(data, kind)[0]


class Unset:
    """A numpy array before its state is known."""


def array_of(state):
    need(type(state) is tuple and len(state) == 5, "the state of a numpy array", type(state).__name__)
    _, shape, kind, columns_first, data = state
    counts = type(shape) is tuple and len(shape) <= 64 and all(map(is_count, shape))
    need(counts and isinstance(kind, np.dtype) and type(data) is bytes, "shape, dtype and bytes of a numpy array", shape)
    flat = np.frombuffer(data, kind).copy()
    count = int(np.prod(shape, dtype=object))
    need(flat.size == count, f"{count} numbers in a numpy array", flat.size)
    return flat.reshape(shape, order="F" if columns_first is True else "C")


def layout(name):
    need(type(name) is str, "the name of a layout", name)
    found = getattr(__import__("tritorch"), name.removeprefix("torch."), None)
    need(isinstance(found, layouts), "the name of a layout", name)
    return found


def place(name, index=None):
    need(type(name) is str and (index is None or is_count(index)), "the name of a device", name)
    return device(name) if index is None else device(name, index)


def size(sizes=()):
    need(type(sizes) in (tuple, list) and all(map(is_count, sizes)), "the sizes of a Size", sizes)
    return Size(sizes)


@functools.cache
def constructors():
    """{module.name: what it stands for}."""
    plain = {f"builtins.{kind.__name__}": Named(kind) for kind in (dict, list, tuple, int, float, str, bool)}
    numbers = {"scalar": Named(number, number), "_reconstruct": Named(Unset, lambda *_: Unset())}
    return {
        **plain,
        "builtins.set": of(set, list, tuple), "builtins.frozenset": of(frozenset, list, tuple), "builtins.bytearray": of(bytearray, bytes),
        "builtins.complex": Named(complex, complex), "_codecs.encode": Named(bytes, encoded),
        "collections.OrderedDict": of(OrderedDict, list, tuple, dict), "collections.Counter": of(Counter, dict),
        "collections.defaultdict": Named(defaultdict, by_default), "collections.deque": Named(deque, queue),
        **{f"numpy.{core}.multiarray.{name}": value for core in ("core", "_core") for name, value in numbers.items()},
        "numpy.dtype": Named(np.dtype, number_type), "numpy.ndarray": Named(np.ndarray),
        "torch.Size": Named(Size, size), "torch.device": Named(device, place), "torch.serialization._get_layout": Named(layouts, layout),
        "torch.Tensor": Named(Tensor), "torch._tensor.Tensor": Named(Tensor),
        "torch.nn.parameter.Parameter": Named(Parameter), "torch.nn.parameter.Buffer": Named(Buffer),
        "torch._utils._rebuild_tensor": Named(Tensor, tensor), "torch._utils._rebuild_tensor_v2": Named(Tensor, tensor),
        "torch._utils._rebuild_tensor_v3": Named(Tensor, tensor_with_dtype),
        "torch._utils._rebuild_meta_tensor_no_storage": Named(Tensor, tensor_on_meta),
        "torch._utils._rebuild_sparse_tensor": Named(Tensor, sparse_tensor),
        "torch._utils._rebuild_parameter": Named(Parameter, parameter),
        "torch._utils._rebuild_parameter_with_state": Named(Parameter, parameter),
        "torch._tensor._rebuild_from_type_v2": Named(Tensor, of_type),
        "torch.storage.UntypedStorage": Named(None), **{f"torch.{name}": Named(kind) for name, kind in STORAGES.items()},
        **{f"torch.cuda.{name}": Named(kind) for name, kind in STORAGES.items()},
        **{f"torch.{kind.name}": kind for kind in vars(types).values() if type(kind) is dtypes},
    }


# ------------------------------------------------------------------ the reader
class Unpickler(pickle._Unpickler):
    """Python's own, in Python, so that names and state can be watched. `memory(kind, key, location, count, view)` finds a storage."""

    def __init__(self, text, memory, trusted):
        super().__init__(io.BytesIO(text), encoding="utf-8")
        self.find_memory, self.trusted = memory, trusted

    def find_class(self, module, name):
        module = {"__builtin__": "builtins", "copy_reg": "copyreg"}.get(module, module)
        full = f"{module}.{name}"
        found = constructors().get(full)
        if found is None:
            found = allowed(full)
        if found is None and self.trusted and module.split(".")[0] != "torch":
            found = super().find_class(module, name)
        if found is None:
            ours = module.split(".")[0] == "torch"
            way_out = "the state_dict() of a model" if ours else "serialization.add_safe_globals if it is yours and does no harm"
            raise RefusedName(sentence("load", "a file that names tensors and plain values", f"{full:.120}", use=way_out))
        return found

    def persistent_load(self, key):
        need(type(key) is tuple and key and key[0] == "storage" and len(key) in (5, 6), "the key of a storage", key)
        _, kind, name, location, count, *view = key
        known = isinstance(kind, Named) and (kind.value is None or type(kind.value) is dtypes)
        need(known and type(name) is str and type(location) is str and is_count(count), "the name of a storage", key)
        return self.find_memory(kind.value, name, location, count, view[0] if view else None)

    def load_build(self):
        state, target = self.stack[-1], self.stack[-2]
        if type(target) is Unset:
            array = array_of(self.stack.pop())
            for place, value in self.memo.items():                       # those that have seen it before it had its numbers
                if value is target:
                    self.memo[place] = array
            self.stack[-1] = array
        elif isinstance(target, np.dtype):
            need(type(state) is tuple and state[1:5] in (("<", None, None, None), ("|", None, None, None)), "a little-endian number", state)
            self.stack.pop()
        elif type(target) is OrderedDict:                                # a state dict has its _metadata as an attribute
            need(type(state) in (dict, OrderedDict), "the attributes of an OrderedDict", type(state).__name__)
            target.__dict__.update({name: value for name, value in state.items() if not hasattr(OrderedDict, name)})
            self.stack.pop()
        else:
            fit = self.trusted or any(type(target) is (x[0] if isinstance(x, tuple) else x) for x in _allowed)
            need(fit and not isinstance(target, Tensor), "state of a class that is allowed", type(target).__name__)
            super().load_build()

    dispatch = {**pickle._Unpickler.dispatch, pickle.BUILD[0]: load_build}
    for code in (pickle.EXT1, pickle.EXT2, pickle.EXT4, pickle.NEXT_BUFFER, pickle.READONLY_BUFFER):   # they reach objects without a name
        del dispatch[code[0]]
