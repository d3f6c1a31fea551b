"""What nodes of exported graphs call: PyTorch's operators, `torch.ops.aten`, where one of them is what an operator here does, and
`torch.ops.tritorch` for the others.

A rule gets a node and its arguments and says how PyTorch would write the call, or None where it would not. What the call runs is then
the same operator of ours with the same arguments.
"""
import math

from tritorch.memory_format import contiguous_format
from tritorch.tracing.sizes import Varying
from tritorch.tracing.tracer import Value

RULES = {}
UNARY = """abs acos acosh asin asinh atan atanh bitwise_not ceil cos cosh digamma erf erfc erfinv exp exp2 expm1 floor hardsigmoid hardswish
    isfinite isinf isnan isneginf isposinf lgamma log log10 log1p log2 logical_not mish neg reciprocal relu rsqrt selu sigmoid sign signbit
    silu sin sinc sinh sqrt square tan tanh trunc view_as_complex view_as_real""".split()
# what graphs call besides them: only these names come out of files
NAMED = {*UNARY, *"""
    _to_copy add addmm amax amin arange argmax argmin atan2 baddbmm batch_norm bitwise_and bitwise_or bitwise_xor cat clamp clone
    conv2d copy_ cumsum detach diagonal diagonal_scatter div dropout embedding eq expand fill_ flip fmax fmin fmod full gather ge
    gelu group_norm gt hypot index index_select layer_norm le leaky_relu lift_fresh_copy linear log_softmax logaddexp logaddexp2
    logical_and logical_or logical_xor lt matmul max max_pool2d maximum mean min minimum mul ne permute pow rand randn remainder
    reshape rms_norm rsub scaled_dot_product_attention select select_scatter slice slice_scatter softmax softplus squeeze sub sum
    sym_size transpose unfold unsqueeze view where""".split()}
NAMED |= {f"{name}_" for name in NAMED if not name.endswith("_")}
BINARY = """bitwise_and bitwise_or bitwise_xor eq ge gt le lt ne fmod remainder mul""".split()
TENSORS = "atan2 fmax fmin hypot logaddexp logaddexp2 maximum minimum logical_and logical_or logical_xor".split()


class Call:
    """PyTorch's words for a node: `aten.name.overload(*args, **kwargs)`; `draws` if it takes from the generator itself."""

    def __init__(self, name, overload, *args, draws=False, **kwargs):
        self.name, self.overload, self.args, self.kwargs, self.draws = name, overload, args, kwargs, draws


def rule(*names, alone=False):
    """The decorated function says how these operators are written; `alone`: where nobody asks for more than their first result."""
    def enter(write):
        RULES.update(dict.fromkeys(names, (write, alone)))
        return write

    return enter


def written(node, used):
    """The Call of a node, of whose results those in `used` are asked for; None if PyTorch has none for it."""
    write, alone = RULES.get(node.name, (None, False))
    if write is None or node.back or alone and any(out in used for out in node.outs[1:]):
        return None
    if node.name == "view_as_shape" and node.facts[2]:
        return Call("reshape", "default", node.args[0], list(node.args[1]))
    return write(*node.args) if not alone else write(node, *node.args)


def tensor(x):
    return isinstance(x, Value)


def of_tensor(write):
    """A rule for calls whose first argument is a tensor."""
    return lambda x, *rest: write(x, *rest) if tensor(x) else None


def dims_of(dim):
    return list(dim) if isinstance(dim, tuple) else [dim]


# ------------------------------------------------------------------ elementwise
for _name in UNARY:
    rule(_name)(lambda x, name=_name: Call(name, "default", x))
for _name in BINARY:
    rule(_name)(of_tensor(lambda x, y, name=_name: Call(name, "Tensor" if tensor(y) or name in ("mul", "fmod", "remainder") else "Scalar",
                                                        x, y)))
for _name in TENSORS:
    rule(_name)(of_tensor(lambda x, y, name=_name: Call(name, "default", x, y) if tensor(y) else None))


@rule("add")
@of_tensor
def add(x, y, alpha):
    return Call("add", "Tensor", x, y, **_unless(1, alpha=alpha))


@rule("sub")
def sub(x, y, alpha):
    if not tensor(x):
        return Call("rsub", "Scalar", y, x) if tensor(y) and alpha == 1 else None
    return Call("sub", "Tensor", x, y, **_unless(1, alpha=alpha))


def _unless(default, **named):
    """The argument by its name, unless it is the default."""
    return {name: value for name, value in named.items() if isinstance(value, (Value, Varying)) or value != default}


rule("div_true")(of_tensor(lambda x, y: Call("div", "Tensor", x, y)))
rule("pow")(lambda x, y: Call("pow", "Scalar" if not tensor(x) else "Tensor_Tensor" if tensor(y) else "Tensor_Scalar", x, y))
rule("gelu_erf")(lambda x: Call("gelu", "default", x))
rule("gelu_tanh")(lambda x: Call("gelu", "default", x, approximate="tanh"))
rule("softplus")(lambda x, beta, threshold: Call("softplus", "default", x, beta, threshold))
rule("leaky_relu")(lambda x, slope: Call("leaky_relu", "default", x, slope))
rule("clamp_numbers")(lambda x, low, high: Call("clamp", "default", x, *[None if n in (-math.inf, math.inf) else n for n in (low, high)]))
rule("choose")(lambda condition, x, y: Call("where", "self", condition, x, y) if tensor(x) and tensor(y) else None)


# ------------------------------------------------------------------ shapes
rule("view_as_shape")(lambda x, shape: Call("view", "default", x, list(shape)))
rule("expand_to")(lambda x, shape: Call("expand", "default", x, list(shape)))
rule("permute_dims")(lambda x, dims: Call("permute", "default", x, list(dims)))
rule("transpose")(lambda x, first, second: Call("transpose", "int", x, first, second))
rule("unsqueeze")(lambda x, dim: Call("unsqueeze", "default", x, dim))
rule("squeeze_dims")(lambda x, dims: Call("squeeze", "dims", x, list(dims)))
rule("select")(lambda x, dim, index: Call("select", "int", x, dim, index))
rule("slice_dim")(lambda x, dim, start, stop, step: Call("slice", "Tensor", x, dim, start, stop, *([step] if step != 1 else [])))
rule("diagonal")(lambda x, offset, first, second: Call("diagonal", "default", x, offset, first, second))
rule("unfold")(lambda x, dim, size, step: Call("unfold", "default", x, dim, size, step))
rule("flip_dims")(lambda x, dims: Call("flip", "default", x, list(dims)))
rule("concatenated")(lambda tensors, dim, sizes: Call("cat", "default", list(tensors), dim))
rule("gather")(lambda x, dim, index, sparse: None if sparse else Call("gather", "default", x, dim, index))
rule("index_select")(lambda x, dim, index: Call("index_select", "default", x, dim, index))
rule("assign")(of_tensor(lambda x, source, soon: Call("copy_", "default", x, source) if tensor(source) else None))


@rule("pick")
def index(x, dim, index, strides):
    """Bytes are masks there, and numbers without dims are looked at."""
    plain = strides is None and dim >= 0 and index.ndim and index.dtype.name in ("int64", "int32")
    return Call("index", "Tensor", x, [None] * dim + [index]) if plain else None


@rule("copy_to")
def copy_to(x, dtype, device, strides, soon):
    if strides is None:
        moved = {} if device is x.tensor.device else {"device": device}
        return Call("_to_copy", "default", x, **({} if dtype is x.dtype and moved else {"dtype": dtype}), **moved)
    if dtype is not x.dtype or device is not x.tensor.device:
        return None
    steps, size = [], 1
    for n in reversed(x.tensor.shape):
        steps.insert(0, size)
        size *= n
    first = tuple([s.values[0] if isinstance(s, Varying) else s for s in strides])
    return Call("clone", "default", x, memory_format=contiguous_format) if first == tuple(steps) and 0 not in x.tensor.shape else None


# ------------------------------------------------------------------ sums and products
rule("linear")(lambda x, weight, bias: Call("linear", "default", x, weight, *([] if bias is None else [bias])))
rule("matmul")(lambda x, y: Call("matmul", "default", x, y))


@rule("addmm")
def addmm(x, first, second, beta, alpha, out_dtype):
    name = "addmm" if first.ndim == 2 else "baddbmm"
    return None if out_dtype is not None else Call(name, "default", x, first, second, **_unless(1, beta=beta, alpha=alpha))


@rule("sum", "mean")
def total(x, dim, keepdim, dtype, name="sum"):
    kind = {} if dtype is None else {"dtype": dtype}
    if dim is None:
        return None if keepdim else Call(name, "default", x, **kind)
    overload = "dim" if name == "mean" else "dim_IntList"
    return Call(name, overload, x, dims_of(dim), *([True] if keepdim else []), **kind)


rule("mean")(lambda *args: total(*args, name="mean"))
for _name in ("amax", "amin"):
    rule(_name)(lambda x, dim, keepdim, name=_name: Call(name, "default", x, [] if dim is None else dims_of(dim),
                                                         *([True] if keepdim else [])))
for _name in ("argmax", "argmin"):
    rule(_name)(lambda x, dim, keepdim, name=_name: Call(name, "default", x, *([] if dim is None and not keepdim else [dim, keepdim])))
for _name in ("max", "min"):
    rule(f"{_name}_along")(lambda x, dim, keepdim, name=_name: Call(name, "dim", x, dim, *([True] if keepdim else [])))
for _name in ("softmax", "log_softmax"):
    rule(_name)(lambda x, dim, dtype, name=_name: Call(name, "int", x, dim, *([] if dtype is None else [dtype])))
rule("cumsum")(lambda x, dim, dtype: Call("cumsum", "default", x, dim, **({} if dtype is None else {"dtype": dtype})))


# ------------------------------------------------------------------ layers
def rounded_down(x, size, kernel, stride, padding, dilation):
    """Whether windows over an image are as many as fit, at all sizes."""
    for n, out, k, s, p, d in zip(x.shape[2:], size, kernel, stride, padding, dilation):
        given, made = [v.values if isinstance(v, Varying) else (v,) for v in (n, out)]
        count = max(len(given), len(made))
        given, made = given * (count // len(given)), made * (count // len(made))
        if any((a + 2 * p - d * (k - 1) - 1) // s + 1 != b for a, b in zip(given, made)):
            return False
    return True


@rule("convolution")
def convolution(x, weight, bias, size, stride, padding, dilation, groups):
    if not rounded_down(x, size, weight.shape[2:], stride, padding, dilation):
        return None
    return Call("conv2d", "default", x, weight, bias, list(stride), list(padding), list(dilation), groups)


@rule("max_pool", "max_pool_values", alone=True)
def max_pool(node, x, size, kernel, stride, padding, dilation):
    """Without a kernel the windows are what gives the size."""
    if kernel is None or not rounded_down(x, size, kernel, stride, padding, dilation):
        return None
    return Call("max_pool2d", "default", x, list(kernel), list(stride), list(padding), list(dilation))


@rule("layer_norm_rows", alone=True)
def layer_norm(node, x, shape, weight, bias, eps):
    return Call("layer_norm", "default", x, list(shape), weight, bias, eps)


@rule("group_norm_rows", alone=True)
def group_norm(node, x, groups, weight, bias, eps):
    return Call("group_norm", "default", x, groups, weight, bias, eps)


@rule("rms_norm_rows", alone=True)
def rms_norm(node, x, shape, weight, eps):
    return Call("rms_norm", "default", x, list(shape), weight, eps)


@rule("batch_norm_apply")
def batch_norm(x, mean, var, weight, bias, eps, relu):
    return None if relu else Call("batch_norm", "default", x, weight, bias, mean, var, False, 0.0, eps, False)


@rule("table_rows")
def embedding(weight, index, padding, by_freq):
    return Call("embedding", "default", weight, index, *([] if padding == -1 and not by_freq else [padding, by_freq]))


@rule("attention", alone=True)
def attention(node, query, key, value, mask, slopes, starts_q, starts_k, longest, window, scale, dropout, base):
    """Of four dims, whole; a causal one where there are as many queries as keys."""
    causal = window == (None, 0)
    plain = slopes is None and starts_q is None and starts_k is None and query.ndim == 4
    fits = window in ((None, None), (None, 0)) and (not causal or mask is None and query.shape[2] == key.shape[2])
    if not plain or not fits or isinstance(scale, Varying) or query.shape[1] != key.shape[1]:
        return None
    return Call("scaled_dot_product_attention", "default", query, key, value, mask, dropout[0], causal, scale=scale, draws=dropout[0] > 0)


# ------------------------------------------------------------------ what begins with nothing
@rule("random_dropout")
def dropout(x, p, seed, offset, base, order):
    return Call("dropout", "default", x, p, True, draws=True) if order is None else None


@rule("random_uniform")
def rand(shape, dtype, device, low, high, seed, offset, base):
    return Call("rand", "default", list(shape), dtype=dtype, device=device, draws=True) if (low, high) == (0, 1) else None


@rule("random_normal")
def randn(shape, dtype, device, mean, std, seed, offset, base):
    return Call("randn", "default", list(shape), dtype=dtype, device=device, draws=True) if (mean, std) == (0, 1) else None


@rule("ramp")
def arange(start, step, count, dtype, device):
    """Of whole numbers: others are rounded differently where the end is given."""
    if any(not isinstance(v, int) for n in (start, step) for v in getattr(n, "values", (n,))) or dtype.is_floating_point:
        return None
    if isinstance(start, Varying) or isinstance(step, Varying) or start + step == start:
        return None
    end = Varying([start + step * n for n in count.values]) if isinstance(count, Varying) else start + step * count
    return Call("arange", "start_step", start, end, step, dtype=dtype, device=device)
