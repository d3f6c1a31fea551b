"""How tensors look when printed: PyTorch's format, character for character."""
from __future__ import annotations

import contextlib
import math
import textwrap
from dataclasses import asdict, dataclass

import numpy as np

from tritorch.dtype import bool as bool_
from tritorch.dtype import get_default_dtype, int64
from tritorch.errors import check
from tritorch.storage import Batched


@dataclass
class PrintOptions:
    precision: int = 4
    threshold: float = 1000
    edgeitems: int = 3
    linewidth: int = 80
    sci_mode: bool | None = None


options = PrintOptions()
PROFILES = {"default": (4, 1000, 3, 80), "short": (2, 1000, 2, 80), "full": (4, math.inf, 3, 80)}


def set_printoptions(precision=None, threshold=None, edgeitems=None, linewidth=None, profile=None, sci_mode=None):
    """Set how tensors are printed: digits, the size from which only edges are shown, how many of them, the line width.

    `profile` is 'default', 'short' or 'full' (never abbreviated); `sci_mode` None chooses by the values.

    >>> import tritorch as torch
    >>> torch.set_printoptions(precision=2); print(torch.tensor([1.12345]))
    tensor([1.12])
    >>> torch.set_printoptions(profile="default")
    """
    if profile is not None:
        check(profile in PROFILES, "set_printoptions", f"a profile among {', '.join(PROFILES)}", profile, error=ValueError)
        options.precision, options.threshold, options.edgeitems, options.linewidth = PROFILES[profile]
    for name, value in (("precision", precision), ("threshold", threshold), ("edgeitems", edgeitems), ("linewidth", linewidth)):
        if value is not None:
            setattr(options, name, value)
    options.sci_mode = sci_mode


def get_printoptions():
    """The options of `set_printoptions`, as a dictionary."""
    return asdict(options)


@contextlib.contextmanager
def printoptions(**kwargs):
    """`set_printoptions` within a with block."""
    before = get_printoptions()
    set_printoptions(**kwargs)
    try:
        yield
    finally:
        set_printoptions(**before)


def formatter(values, is_float):
    """The function that writes one element, with a width that fits all of `values`; and that width."""
    if not is_float:
        width = max((len(str(v)) for v in values.ravel().tolist()), default=1)
        return (lambda v: str(v).rjust(width)), width
    finite = values[np.isfinite(values) & (values != 0)]
    if not finite.size:
        return (lambda v: f"{v:.0f}." if math.isfinite(v) else f"{v:.0f}"), 1
    low, high = np.abs(finite).min(), np.abs(finite).max()
    with np.errstate(over="ignore"):
        scientific = options.sci_mode if options.sci_mode is not None else bool(high / low > 1000 or high > 1e8 or low < 1e-4)
    whole = bool((finite == np.ceil(finite)).all())
    style = ".0f" if whole and not scientific else f".{options.precision}{'e' if scientific else 'f'}"
    point = "." if whole and not scientific else ""
    width = max(len(format(v, style)) for v in finite.tolist()) + len(point)
    return (lambda v: (format(v, style) + (point if math.isfinite(v) else "")).rjust(width)), width


def complex_formatter(values):
    """As `formatter`, of complex numbers: real parts of one width, imaginary ones as well, their sign between them."""
    flat = values.ravel()
    (re, wide), (im, high) = [formatter(part.astype(np.float64), True) for part in (flat.real, flat.imag)]

    def write(v):
        text = im(v.imag).lstrip()
        return re(v.real) + ("" if text.startswith("-") else "+") + text + "j"

    return write, wide + high + 1


def edges(x, dim=0):
    """The first and last `edgeitems` of every long dim of a Tensor, as an array on the host: no more than these are copied."""
    if dim == x.ndim:
        return x.cpu().array
    size, edge = x.shape[dim], options.edgeitems
    if size <= 2 * edge:
        return edges(x, dim + 1)
    return np.concatenate([edges(x.narrow(dim, start, edge), dim + 1) for start in (0, size - edge)], dim)


def nested(values, shape, indent, summarize, write, width):
    """The brackets around `values`, which hold only the edges of the dims of `shape` that are summarized."""
    if not shape:
        return write(values.item())
    edge = options.edgeitems
    cut = summarize and shape[0] > 2 * edge
    if len(shape) == 1:
        items = [write(v) for v in values.tolist()]
        if cut:
            items[edge:edge] = [" ..." if edge else "..."]
        per_line = max(1, (options.linewidth - indent) // (width + 2))
        lines = [", ".join(items[i:i + per_line]) for i in range(0, len(items), per_line)]
        return "[" + (",\n" + " " * (indent + 1)).join(lines) + "]"
    rows = [nested(row, shape[1:], indent + 1, summarize, write, width) for row in values]
    if cut:
        rows[edge:edge] = ["..."]
    return "[" + ("," + "\n" * (len(shape) - 1) + " " * (indent + 1)).join(rows) + "]"


def contents(x, indent):
    """The elements of a Tensor as text, `indent` columns in."""
    count = x.numel()
    if x.is_meta:
        return "..."
    if not count:
        return "[]"
    summarize = count > options.threshold
    values = edges(x) if summarize else x.cpu().array
    if x.dtype.is_floating_point:
        values = values.astype(np.float64)
    write, width = complex_formatter(values) if x.dtype.is_complex else formatter(values, x.dtype.is_floating_point)
    return nested(values, x.shape, indent, summarize, write, width)


def suffixes(x):
    """What follows the elements: device, size, dtype, gradient."""
    if x.device.type != "cpu":
        yield f"device='{x.device}'"
    if x.is_meta:
        yield f"size={tuple(x.shape)}"
    elif x.numel() == 0:
        if x.ndim != 1:
            yield f"size={tuple(x.shape)}"
    elif not options.edgeitems:
        yield f"size={tuple(x.shape)}"
    usual = get_default_dtype()
    if x.dtype is not usual and (x.numel() == 0 or x.is_meta or x.dtype not in (int64, bool_, usual.to_complex())):
        yield f"dtype={x.dtype}"
    if x.grad_fn is not None:
        yield f"grad_fn=<{x.grad_fn.name()}>"
    elif x.requires_grad:
        yield "requires_grad=True"


def tensor_repr(x):
    """The text of a Tensor.

    >>> import tritorch as torch
    >>> torch.tensor([[1.0, 2.5], [-3.0, float("nan")]])
    tensor([[ 1.0000,  2.5000],
            [-3.0000,     nan]])
    """
    if type(x.storage) is Batched:                                       # inside of vmap
        depth, whole = Batched.shown(x)
        return f"BatchedTensor(lvl={depth}, bdim=0, value=\n" + textwrap.indent(tensor_repr(whole), "    ") + "\n)"
    own = type(x).__module__.partition(".")[0] == "tritorch"         # subclasses of users carry their names
    text = "tensor(" if own else f"{type(x).__name__}("
    indent = len(text)
    text = suffixed(text + contents(x.detach(), indent), suffixes(x), indent)
    return f"Parameter({text})" if getattr(x, "_is_param", False) else text


def suffixed(text, found, indent, newline=False):
    """The text, what follows the elements, and the last bracket; with `newline` they begin on a line of their own."""
    column = len(text) - text.rfind("\n") + 1
    for suffix in found:
        if newline or column + len(suffix) + 2 > options.linewidth:
            text += ",\n" + " " * indent + suffix
            column, newline = indent + len(suffix), False
        else:
            text += ", " + suffix
            column += len(suffix) + 2
    return text + ")"


def tensor_format(x, spec):
    """`format(x, spec)`: that of the number for 0-dim tensors."""
    number = x.ndim == 0 and not x.is_meta and (spec or type(x.storage) is not Batched)
    return format(x.item(), spec) if number else object.__format__(x, spec)
