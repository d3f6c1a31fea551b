"""Devices: `cpu`, `cuda:i` and `meta`, where tensors have no memory. One object of each, so `is` compares them."""
import threading

from tritorch.errors import check, sentence

ELSEWHERE = "hpu ipu lazy maia mps mtia privateuseone vulkan xla xpu".split()       # PyTorch's names of what has no tensors here
_devices = {}
_current = [lambda: 0]                                                   # tritorch.cuda puts its current-device lookup here


class device:
    """A place where tensors live: `device("cpu")`, `device("cuda")`, `device("cuda:1")`, `device("cuda", 1)`, `device(1)`.

    Used as a context manager it becomes the default for new tensors. On `device("meta")` these have shape, strides, dtype and history, but
    no memory: operators only tell what their results look like. `device("mps")` and others of PyTorch's can be named and compared;
    NotImplementedError is for those who ask for a tensor there.

    >>> import tritorch; tritorch.device("cuda:1")
    device(type='cuda', index=1)
    >>> with tritorch.device("meta"):
    ...     tritorch.nn.Linear(3, 2).weight.shape, tritorch.zeros(2, 10**12)
    (tritorch.Size([2, 3]), tensor(..., device='meta', size=(2, 1000000000000)))
    """

    __slots__ = ("type", "index")

    def __new__(cls, type, index=None):
        if isinstance(type, device):
            return type
        key = (type, index)
        found = _devices.get(key)
        if found is None:
            found = _devices[key] = _intern(*_parse(type, index))
        return found

    def __repr__(self):
        return f"device(type={self.type!r})" if self.index is None else f"device(type={self.type!r}, index={self.index})"

    def __str__(self):
        return self.type if self.index is None else f"{self.type}:{self.index}"

    def __reduce__(self):
        return device, (self.type, self.index)

    def __copy__(self):
        return self

    def __deepcopy__(self, memo):
        return self

    def __enter__(self):
        _default.stack = (*_default.stack, self)
        return self

    def __exit__(self, *exception):
        _default.stack = _default.stack[:-1]


class _Default(threading.local):
    stack = ()


_default = _Default()


def _parse(kind, index):
    if isinstance(kind, int) and index is None:
        kind, index = "cuda", kind
    check(isinstance(kind, str), "device", "a string or an index", repr(kind), error=TypeError)
    name, colon, number = kind.partition(":")
    if colon:
        check(number.isdigit() and index is None, "device", "'cuda:INDEX'", repr(kind))
        index = int(number)
    check(name in ("cpu", "cuda", "meta") or name in ELSEWHERE, "device", "a device of type 'cpu' or 'cuda'", repr(kind))
    check(index is None or 0 <= index < (1 if name == "cpu" else 256), "device", "an index of an existing device", repr((kind, index)))
    return name, None if name == "cpu" else index


def _intern(kind, index):
    found = _devices.get((kind, index))
    if found is None:
        found = object.__new__(device)
        found.type, found.index = kind, index
        found = _devices.setdefault((kind, index), found)
    return found


cpu, meta = device("cpu"), device("meta")


def as_device(value=None):
    """The device meant by a device, a string, an index or None (the default); 'cuda' gets its current index."""
    if value is None:
        value = _default.stack[-1] if _default.stack else cpu
    elif not isinstance(value, device):
        value = device(value)
    if value.type == "cuda":
        return _intern("cuda", _current[0]()) if value.index is None else value
    if value is not cpu:
        if value.type == "meta":
            return meta                                                  # whatever its index
        raise NotImplementedError(sentence("device", "a device of type 'cpu' or 'cuda', where tensors are", value))
    return value


def get_default_device():
    """The device of new tensors.

    >>> import tritorch; tritorch.get_default_device()
    device(type='cpu')
    """
    chosen = _default.stack[-1] if _default.stack else cpu
    return chosen if chosen.type in ELSEWHERE else as_device(chosen)


def set_default_device(device):
    """Make `device` the device of new tensors in this thread; None is the CPU again."""
    _default.stack = () if device is None else (as_device(device),)
