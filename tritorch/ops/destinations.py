"""`out=` of functions that PyTorch casts no result of: destinations have the dtype, and are checked before anything is written."""
from tritorch.dtype import types
from tritorch.errors import check
from tritorch.ops.copy import deliver
from tritorch.tensor import Tensor


def deliver_all(kind, made, out):
    """What a function with several results returns: the named tuple `kind` of `made`, or of the tensors of `out` holding their values."""
    if out is None:
        return kind(*made)
    check_destinations(kind.__name__, out, [v.dtype for v in made])
    return kind(*[deliver(v, o) for v, o in zip(made, out)])


def check_destinations(name, out, dtypes):
    """Before anything is written: `out` is a tuple of tensors of these dtypes."""
    check(isinstance(out, (tuple, list)) and len(out) == len(dtypes) and all(isinstance(o, Tensor) for o in out), name,
          f"{len(dtypes)} tensors as destinations", type(out).__name__, error=TypeError)
    check(all(o.dtype is dtype for o, dtype in zip(out, dtypes)), name, f"destinations of {', '.join(map(str, dtypes))}",
          *[o.dtype for o in out])


def call(door, args, out, kind=None):
    """What an operator returns, written into `out` if that is given, which must have its dtype as of these in PyTorch; several results as
    the named tuple `kind`."""
    if out is not None:
        promise = door.body(*door.complete(args))
        if kind is None:
            check(isinstance(out, Tensor) and out.dtype is promise[1], door.__name__, f"a destination of {promise[1]}", out)
        else:
            check_destinations(kind.__name__, out, [p[1] for p in promise])
    made = door(*args) if out is None else door.into(out, *args)
    return made if kind is None else kind(*made)


def made_in_dtype(door):
    """An operator with `dtype`, which is that of the destination where there is one: x is cast to it before it is added up."""
    into, place = door.into, door.names.index("dtype")

    def typed(out, *args, **kw):
        dtype = args[place] if len(args) > place else kw.pop("dtype", None)
        if isinstance(out, Tensor):
            check(dtype is None or types.as_dtype(dtype) is out.dtype, door.__name__, f"a destination of {dtype}", out.dtype)
            dtype = out.dtype
        return into(out, *args[:place], **kw, dtype=dtype)

    door.into = typed
    return door
