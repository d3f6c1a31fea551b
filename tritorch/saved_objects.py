"""Objects of programs' own classes in files of `tritorch.save`: pickles, which `load` runs where it is told that the file is trusted, or
that all classes and functions which they name are (`serialization.safe_globals`).

Their tensors are entries of the file like any others; what the pickle holds is where they are.
"""
import base64
import io
import pickle

from tritorch import pytorch_pickles
from tritorch.dtype import dtype, types
from tritorch.errors import sentence
from tritorch.layout import strided
from tritorch.nn.parameter import Parameter
from tritorch.pytorch_pickles import RefusedName, constructors
from tritorch.safetensors import need
from tritorch.storage import Spread
from tritorch.tensor import Tensor


class _Pickler(pickle.Pickler):
    def __init__(self, file, encode_tensor):
        super().__init__(file, 4)
        self.encode_tensor = encode_tensor

    def persistent_id(self, x):
        plain = type(x) in (Tensor, Parameter) and x.layout is strided and type(x.storage) is not Spread
        return self.encode_tensor(x) if plain else None


class _Unpickler(pickle.Unpickler):
    def __init__(self, file, decode_tensor):
        super().__init__(file)
        self.decode_tensor = decode_tensor

    def persistent_load(self, node):
        need(type(node) is dict and "tensor" in node, "a tensor in a pickle", node)
        return self.decode_tensor(node)


class _Careful(pytorch_pickles.Unpickler):
    """The same, where a name means a plain value or what `add_safe_globals` has allowed."""

    PLAIN = {"builtins.dict": pytorch_pickles.of(dict, dict, list), "tritorch.layout.strided": strided,
             "tritorch.shape.Size": constructors()["torch.Size"], "tritorch.device.device": constructors()["torch.device"],
             **{f"tritorch.dtype.{x.name}": x for x in vars(types).values() if isinstance(x, dtype)}}

    def __init__(self, text, decode_tensor):
        super().__init__(text, None, trusted=False)
        self.decode_tensor = decode_tensor

    def find_class(self, module, name):
        found = self.PLAIN.get(f"{module}.{name}")
        return super().find_class(module, name) if found is None else found

    persistent_load = _Unpickler.persistent_load


def refusal(rule, obj, path):
    """The error for an object that is no such value."""
    way_out = "its state_dict()" if hasattr(obj, "state_dict") else "tensors, numbers, strings, and containers of them"
    return TypeError(sentence("save", rule, f"{type(obj).__name__} at {path or 'the top'}", use=way_out))


def encode(obj, path, encode_tensor):
    """An object as values of JSON, the name of its class first; `encode_tensor` takes its tensors. TypeError for what pickle refuses."""
    name, out = f"{type(obj).__module__}.{type(obj).__qualname__}", io.BytesIO()
    try:
        _Pickler(out, encode_tensor).dump(obj)
    except (pickle.PicklingError, AttributeError, TypeError, RecursionError) as error:
        raise refusal("values that pickle can hold", obj, path) from error
    return [name, base64.b64encode(out.getvalue()).decode()]


def decode(value, decode_tensor, trusted, trial):
    """The object again. In a trial it is only looked at."""
    need(type(value) is list and len(value) == 2 and all(type(part) is str for part in value), "a class and a pickle", value)
    if not trusted and pytorch_pickles.allowed(value[0]) is None:
        raise RefusedName(sentence("load", "values that no code restores", f"an object of {value[0]:.80}",
                                   use="serialization.safe_globals for its classes, or weights_only=False for a file that you trust"))
    if trial:
        return None
    text = base64.b64decode(value[1])
    return (_Unpickler(io.BytesIO(text), decode_tensor) if trusted else _Careful(text, decode_tensor)).load()
