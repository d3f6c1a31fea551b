"""How a door calls its implementations: with arrays on the CPU, with tensors of one device elsewhere, complex ones as the card says."""
from tritorch.errors import check
from tritorch.pairs import apart, met, refuse
from tritorch.quiet import quietly
from tritorch.tensor import Tensor


def on_arrays(door, fn):
    """On the CPU they take numpy arrays."""

    def run(*values):
        arrays, mixed = [], False
        try:
            for v in values:
                if isinstance(v, Tensor):
                    mixed = mixed or v.dtype.is_complex
                    v = v.array
                elif type(v) is tuple:
                    mixed = mixed or met(v)
                    v = tuple([part.array if isinstance(part, Tensor) else part for part in v])
                arrays.append(v)
        except TypeError:                                                # one of them has no array
            for part in [part for v in values for part in (v if type(v) is tuple else (v,))]:
                _brought(door, part, values[0].storage.device)
            raise
        return quietly(apart, door, fn, arrays, values) if mixed else quietly(fn, *arrays)

    return run


def on_device(door, fn):
    """Kernels get addresses: all tensors must lie on the device of the outputs."""

    def run(*values):
        home = values[0].storage.device
        for v in values:
            if isinstance(v, Tensor):
                if v.storage.device is not home:
                    values = [_brought(door, v, home, values) for v in values]
                    break
            elif type(v) is tuple:
                for part in v:
                    _brought(door, part, home)
        return apart(door, fn, values, values) if met(values) else fn(*values)

    return run


def on_meta(door, *values):
    """Where there is no memory nothing runs: the shape rule has said it all. What implementations ask of operands is asked here: that they
    lie where the results do, and are real if the card does not know complex ones."""
    if door.complex is None and met(values):
        refuse(door.__name__, *[x for v in values for x in (v if type(v) is tuple else (v,))])
    home = values[0].storage.device
    for v in values:
        for part in v if type(v) is tuple else (v,):
            if isinstance(part, Tensor) and part.storage.device is not home:
                _check_joins(door, part, home)


def _check_joins(door, v, home):
    check(not v.shape and v.storage.device.type == "cpu", door.__name__, "all tensors on one device", home, v.storage.device)


def _brought(door, v, home, values=()):
    """A 0-dim CPU tensor as a number, as in PyTorch; copied if a result of bools would not tell in which dtype to compute."""
    if not isinstance(v, Tensor) or v.storage.device is home:
        return v
    _check_joins(door, v, home)
    mixed = values and values[0].dtype.category == 0 and not values[0].shape and any(
        isinstance(x, Tensor) and x.dtype is not v.dtype for x in values[len(door.returns):])
    return v.to(home) if mixed else v.item()
