"""The surface of Tensor and of `tritorch` that operators give, as one table: every public name under the family that defines it.

`BOTH` are functions `tritorch.f(x)` and methods `x.f()`, `METHODS` only methods, `FUNCTIONS` only functions. `IN_PLACE` are
operators that also get `x.f_()`: the same operator written into x, `IN_PLACE_VIEWS` those that show x itself in another way.
`OPERATORS` are Python's.
"""
import builtins
import functools
import inspect
import numbers

import numpy as np

from tritorch.autograd import engine, places, slices
from tritorch.autograd.hooks import move_kept
from tritorch.autograd.modes import state
from tritorch.dispatch import NUMPY, registry
from tritorch.dtype import types
from tritorch.errors import check, check_flags, explained, flags_of, passed, refuse_misuse, sentence
from tritorch.layout import strided
from tritorch.ops import (
    activation,
    attention_bias,
    bessel,
    bincount,
    compare,
    complex,
    convolution,
    convolution_volumes,
    copy,
    create,
    dropout,
    einsum,
    extremes,
    gamma,
    gamma_functions,
    getitem,
    indexing,
    item,
    lerp,
    linear_algebra,
    linspace,
    logsumexp,
    matmul,
    normalize,
    padding,
    picking,
    pointwise,
    pooling,
    put,
    quantile,
    random,
    reduce,
    scaled,
    scan,
    scatter,
    shaping,
    slicing,
    softmax,
    sorting,
    statistics,
    triangles,
    trigonometry,
    vectors,
    view,
)
from tritorch.tensor import Tensor, swaps

BOTH = {
    view: """transpose unsqueeze reshape ravel flatten unflatten permute squeeze t movedim moveaxis swapaxes swapdims
            broadcast_to view_as""",
    slicing: """as_strided diagonal select narrow unbind split split_with_sizes chunk tensor_split hsplit vsplit dsplit select_scatter
            slice_scatter diagonal_scatter as_strided_scatter""",
    copy: "clone",
    pointwise: """add sub subtract mul multiply div divide true_divide floor_divide remainder fmod pow neg negative positive abs absolute
            sign sgn square ceil floor round trunc fix frac exp exp2 expm1 log log2 log10 log1p sqrt rsqrt reciprocal erf erfc erfinv
            lgamma digamma maximum minimum fmax fmin copysign logaddexp logaddexp2 xlogy nextafter heaviside ldexp float_power rsub
            sigmoid logit""",
    trigonometry: """sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh arcsin arccos arctan arcsinh arccosh arctanh sinc deg2rad
            rad2deg atan2 arctan2 hypot""",
    compare: """eq ne lt le gt ge equal not_equal less less_equal greater greater_equal isnan isinf isfinite isposinf isneginf signbit
            isclose allclose logical_not logical_and logical_or logical_xor where isreal is_nonzero isin nan_to_num bitwise_not
            bitwise_and bitwise_or bitwise_xor bitwise_left_shift bitwise_right_shift clamp clip clamp_min
            clamp_max gcd lcm""",
    lerp: "lerp addcmul addcdiv",
    activation: "relu prelu hardshrink",
    reduce: "sum nansum mean nanmean prod any all count_nonzero",
    logsumexp: "logsumexp logcumsumexp",
    extremes: "amax amin max min argmax argmin aminmax",
    statistics: "var std var_mean std_mean norm",
    quantile: "median nanmedian mode quantile nanquantile",
    scan: "cumsum cumprod cummax cummin",
    softmax: "softmax log_softmax",
    matmul: "matmul mm bmm mv dot vdot inner outer ger addmm addmv addbmm baddbmm addr matrix_power kron chain_matmul",
    indexing: "gather index_select index_add",
    scatter: "scatter scatter_add scatter_reduce index_reduce",
    put: "index_copy index_fill index_put masked_fill masked_scatter",
    picking: "masked_select nonzero argwhere take take_along_dim",
    bincount: "bincount",
    shaping: "repeat_interleave tile roll flip fliplr flipud rot90 diff",
    triangles: "tril triu diag diag_embed diagflat trace",
    vectors: "cross cov corrcoef dist",
    sorting: "sort argsort topk msort kthvalue unique unique_consecutive searchsorted bucketize histc histogram",
    random: "bernoulli multinomial",
    complex: "adjoint conj conj_physical resolve_conj resolve_neg",
    linear_algebra: """cholesky cholesky_solve cholesky_inverse triangular_solve inverse det logdet slogdet lu lu_solve geqrf orgqr ormqr qr
            svd pinverse matrix_exp""",
    bessel: "i0",
    gamma_functions: "igamma igammac mvlgamma",
}
METHODS = {
    view: "view reshape_as expand expand_as size stride",
    slicing: "unfold",
    put: "put_ fill_diagonal_ apply_ map_",
    item: "item tolist",
    copy: "copy_ fill_ zero_ contiguous to pin_memory is_pinned type_as",
    create: "new_tensor new_full new_zeros new_ones new_empty_strided",
    shaping: "repeat",
    random: "uniform_ normal_ bernoulli_ random_ exponential_ geometric_ cauchy_ log_normal_",
}
FUNCTIONS = {
    convolution: "conv1d conv2d conv_transpose1d conv_transpose2d",
    convolution_volumes: "conv3d conv_transpose3d conv_tbc convolution",
    pooling: "max_pool1d max_pool2d avg_pool1d adaptive_avg_pool1d",
    padding: "",
    linear_algebra: "lu_unpack nuclear_norm svd_lowrank pca_lowrank",
    create: "empty zeros ones full empty_like full_like zeros_like ones_like arange eye tensor scalar_tensor",
    linspace: "linspace logspace",
    scaled: "_int_mm _scaled_mm",
    einsum: "einsum tensordot",
    complex: "complex polar real imag view_as_complex view_as_real",
    activation: "selu celu threshold",
    picking: "unravel_index",
    attention_bias: "",
    shaping: """cat concat concatenate stack hstack vstack dstack row_stack column_stack meshgrid atleast_1d atleast_2d atleast_3d
            broadcast_tensors broadcast_shapes""",
    vectors: "cdist trapezoid trapz cumulative_trapezoid vander cartesian_prod combinations",
    triangles: "block_diag tril_indices triu_indices",
    random: "rand randn randint randperm rand_like randn_like randint_like normal poisson",
    gamma_functions: "polygamma",
    gamma: "_standard_gamma _standard_gamma_grad _sample_dirichlet _dirichlet_grad",
    dropout: "dropout",
    normalize: "rms_norm",
}
IN_PLACE = {
    pointwise: """add sub subtract mul multiply div divide true_divide floor_divide remainder fmod pow neg negative abs absolute sign sgn
            square ceil floor round trunc fix frac exp exp2 expm1 log log2 log10 log1p sqrt rsqrt reciprocal erf erfc erfinv lgamma
            digamma copysign xlogy float_power sigmoid logit ldexp nextafter heaviside""",
    trigonometry: """sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh sinc atan2 hypot deg2rad rad2deg arcsin arccos arctan
            arcsinh arccosh arctanh arctan2""",
    complex: "conj_physical",
    compare: """eq ne lt le gt ge not_equal less less_equal greater greater_equal logical_not logical_and logical_or logical_xor
            nan_to_num bitwise_not bitwise_and bitwise_or bitwise_xor bitwise_left_shift bitwise_right_shift
            clamp clip clamp_min clamp_max gcd lcm""",
    lerp: "lerp addcmul addcdiv",
    activation: "relu",
    scan: "cumsum cumprod",
    matmul: "addmm addmv baddbmm addbmm addr",
    indexing: "index_add",
    scatter: "scatter scatter_add scatter_reduce index_reduce",
    put: "index_copy index_fill index_put masked_fill masked_scatter",
    triangles: "tril triu",
    bessel: "i0",
    gamma_functions: "igamma igammac mvlgamma",
}
SEVERAL = {"ldexp", "scatter_reduce", "index_reduce"}                    # several operators: the first may save what the last overwrites
IN_PLACE_FUNCTIONS = """abs acos acosh addmv arccos arccosh arcsin arcsinh arctan arctanh as_strided asin asinh atan atanh ceil clamp
    clamp_max clamp_min clip conj_physical cos cosh deg2rad erf erfc exp exp2 expm1 fill fix floor frac gcd i0 index_put lcm ldexp log
    log10 log1p log2 logit nan_to_num neg negative rad2deg reciprocal relu round rsqrt sigmoid sin sinc sinh sqrt square tan tanh trunc
    xlogy zero"""  # methods in place that are functions, too
IN_PLACE_VIEWS = {
    view: "squeeze unsqueeze t transpose swapaxes swapdims",
    slicing: "as_strided",
}
OPERATORS = {
    pointwise: """__add__ add, __mul__ mul, __rmul__ mul, __radd__ add, __sub__ sub, __rsub__ rsub, __truediv__ div, __rtruediv__ rdiv,
            __floordiv__ floor_divide, __mod__ remainder, __pow__ pow, __neg__ neg, __pos__ positive, __abs__ abs""",
    compare: """__invert__ invert, __and__ bitwise_and, __or__ bitwise_or, __xor__ bitwise_xor, __rand__ bitwise_and, __ror__ bitwise_or,
            __rxor__ bitwise_xor, __lshift__ bitwise_left_shift, __rshift__ bitwise_right_shift, __eq__ eq, __ne__ ne, __lt__ lt,
            __le__ le, __gt__ gt, __ge__ ge""",
    matmul: "__matmul__ matmul",
    put: "put put_elements",
    getitem: "__getitem__ getitem, __setitem__ setitem",
}
QUICK = frozenset("""div where clamp view expand permute flatten t contiguous to copy_ fill_ zero_ item clone masked_fill mm bmm addmm
    baddbmm layer_norm rms_norm size stride empty zeros ones full empty_like zeros_like ones_like full_like""".split())
surface = {}                                                             # the functions of `tritorch`, by name
CASTS = dict(float=types.float32, double=types.float64, half=types.float16, bfloat16=types.bfloat16, long=types.int64, int=types.int32,
             short=types.int16, char=types.int8, byte=types.uint8, bool=types.bool,
             cfloat=types.complex64, cdouble=types.complex128)
IN_PLACE_OPERATORS = """__iadd__ add, __isub__ sub, __imul__ mul, __itruediv__ div, __ipow__ pow, __ifloordiv__ floor_divide,
    __imod__ remainder, __iand__ bitwise_and, __ior__ bitwise_or, __ixor__ bitwise_xor,
    __ilshift__ bitwise_left_shift, __irshift__ bitwise_right_shift"""
REFLECTED = """__rpow__ pow, __rfloordiv__ floor_divide, __rmod__ remainder, __rmatmul__ matmul,
    __rlshift__ bitwise_left_shift, __rrshift__ bitwise_right_shift"""


def in_place(f):
    """`x.f_(…)`: the operator, or the function above one, written into x."""
    if hasattr(f, "into"):
        def method(self, *args, **kw):
            try:
                return f.into(self, self, *args, **kw)
            except Exception as error:
                if answer := refuse_misuse(error, method.__name__, f, (self, *args), kw):
                    return answer[0]
                raise
    else:
        def method(self, *args, **kw):
            if f.__name__ in SEVERAL and state.grad and any(isinstance(v, Tensor) and v.requires_grad for v in (self, *args, *kw.values())):
                return f(self.clone(), *args, out=self, **kw)
            if 0 in self.shape:                                          # a destination without elements would take another shape
                made = f(self, *args, **kw)
                check(made.shape == self.shape, method.__name__, f"a result of shape {tuple(self.shape)}", tuple(made.shape))
            try:
                return f(self, *args, out=self, **kw)
            except TypeError as error:
                if answer := refuse_misuse(error, method.__name__, f, (self, *args), kw):
                    return answer[0]
                raise
    method.__name__ = method.__qualname__ = f.__name__ + "_"
    method.__doc__ = f"`{f.__name__}` written into the tensor itself."
    return method


def in_place_view(f):
    """`x.f_(…)`: the tensor itself becomes the view. What was saved of it before counts as overwritten, as in PyTorch."""
    def method(self, *args, **kw):
        if state.grad:
            slices.check_history(method.__name__, self, 0)
        seen, old = f(self, *args, **kw), (self.node, self.index)
        self.shape, self.strides, self.offset, self._array, self.form = seen.shape, seen.strides, seen.offset, None, None
        if self.base is not None:
            self.base_node = seen.base_node
        if state.grad and seen.node is not None:
            self.node, self.index = seen.node, seen.index
            move_kept(self, *old)
        self.storage.version += 1
        self.storage.writer = places.user_place()
        swaps[0] += 1
        return self

    method.__name__ = method.__qualname__ = f.__name__ + "_"
    method.__doc__ = f"`{f.__name__}` of the tensor itself: it keeps its memory and is seen as the view from here on."
    return method


def reflected(f, name):
    """The operator with its operands exchanged."""
    def method(self, other):
        return f(other, self)

    method.__name__ = method.__qualname__ = name
    return method


def names_of(table):
    """(name, function) of every entry of a table."""
    for module, names in table.items():
        for name in names.split():
            yield name, public(getattr(module, name))


def public(f):
    """A plain function as it is called by users: arguments of the wrong kind get their sentence, and one with a `dim` takes `axis` and
    `keepdims`, too. Operators do both by themselves, others are so quick that the 0.1 µs would show."""
    if registry.get(f.__name__) is f or f.__name__ in QUICK:
        return f
    if "dim" not in (known := inspect.signature(f).parameters) or "axis" in known:
        return f if hasattr(f, "__wrapped__") or "refuse_misuse" in f.__code__.co_names else explained(f)

    flags = flags_of(f)

    @functools.wraps(f)
    def wrapped(*args, **kw):
        if kw:
            kw = {NUMPY.get(name, name): value for name, value in kw.items()}
            if flags:
                check_flags(f.__name__, flags, kw)
        try:
            return f(*args, **kw)
        except Exception as error:
            if answer := refuse_misuse(error, f.__name__, f, args, kw):
                return answer[0]
            raise

    return wrapped


def pairs_of(text):
    """(special name, name) of every entry of a list of Python operators."""
    return [pair.split() for pair in text.split(",")]


def attach():
    """Put the tables on Tensor."""
    for name, f in names_of(BOTH):
        surface[name] = f
        setattr(Tensor, name, f)
    for name, f in names_of(METHODS):
        setattr(Tensor, name, f)
    surface.update(names_of(FUNCTIONS))
    for name, f in names_of(IN_PLACE):
        setattr(Tensor, name + "_", in_place(f))
    for name, f in names_of(IN_PLACE_VIEWS):
        setattr(Tensor, name + "_", in_place_view(f))
    surface.update({name + "_": getattr(Tensor, name + "_") for name in IN_PLACE_FUNCTIONS.split()})
    for module, text in OPERATORS.items():
        for special, name in pairs_of(text):
            setattr(Tensor, special, getattr(module, name))
    for special, name in pairs_of(IN_PLACE_OPERATORS):
        setattr(Tensor, special, getattr(Tensor, name + "_"))
    for special, name in pairs_of(REFLECTED):
        setattr(Tensor, special, reflected(surface[name], special))
    for name, kind in CASTS.items():
        setattr(Tensor, name, copy.as_type(kind))
    for f in (backward, engine.register_hook, engine.register_post_accumulate_grad_hook, engine.retain_grad):
        setattr(Tensor, f.__name__, f)
    Tensor.cpu, Tensor.cuda = copy.cpu_, copy.cuda_
    Tensor._filled = copy.fill                                           # a fresh tensor of one value: backward begins with it
    Tensor.polygamma, Tensor.polygamma_ = public(gamma_functions.polygamma_of), in_place(gamma_functions.polygamma_of)
    Tensor.new_empty, Tensor.where, Tensor.layout = create.new_empty_method, compare.tensor_where, strided
    Tensor.__reversed__ = lambda self: self.flip(0) if self.shape else self
    Tensor.__index__, Tensor.__contains__ = as_index, contains
    Tensor.__bool__, Tensor.__int__, Tensor.__float__ = _as_bool, as_number(int), as_number(float)
    Tensor.__eq__, Tensor.__ne__ = comparison(surface["eq"]), comparison(surface["ne"])
    Tensor.__iter__ = iterate
    Tensor.T = property(lambda self: self.permute(tuple(range(self.ndim))[::-1]), doc="The dims in reverse order.")
    Tensor.mT = property(view.matrices_transposed, doc="The last two dims exchanged.")
    Tensor.retains_grad = property(engine.retains_grad)
    surface.update(spmm=surface["mm"], empty_strided=create.strided_empty, put=put.put_elements)           # mm takes sparse matrices, too
    surface.update({name: getattr(Tensor, name) for name in ("detach", "detach_")})


def backward(self, gradient=None, retain_graph=None, create_graph=False, inputs=None):
    """Accumulate the gradients of this tensor into the `.grad` of the leaves it came from.

    >>> import tritorch as torch; x = torch.ones(2, requires_grad=True); (x * 3).sum().backward(); x.grad
    tensor([3., 3.])
    """
    engine.backward(self, gradient, retain_graph, create_graph, inputs=inputs)


def as_number(kind):
    """How Python makes a number of a tensor."""
    def convert(self):
        check(self.numel() == 1, kind.__name__, "a tensor of 1 element", f"{self.numel()} elements", error=ValueError)
        value = self.item()
        if isinstance(value, builtins.complex) and kind is not builtins.complex:
            check(value.imag == 0, kind.__name__, "a number without an imaginary part", value)
            value = value.real
        return kind(value)

    return convert


def comparison(op):
    """`==` or `!=`: with what is no tensor or number (None, say) no error, but Python's answer."""
    @functools.wraps(op)
    def compared(self, other):
        try:
            return op(self, other)
        except TypeError:
            if isinstance(other, (Tensor, numbers.Number)):
                raise
            return op(self, create.tensor(other)) if isinstance(other, np.ndarray) and other.dtype.kind in "biufc" else NotImplemented

    return compared


def _as_bool(self):
    """Whether the one element is not 0."""
    if self.shape and self.numel() != 1:
        raise RuntimeError(f"bool: expected a tensor of 1 element, got {self.numel()} elements; use x.any() or x.all()")
    return bool(self.item())


def as_index(self):
    """A whole number as a Python index."""
    if self.dtype.has_gradients or self.numel() != 1:
        raise TypeError(f"index: expected an integer tensor of one element, got {self.dtype} of shape {self.shape}")
    return int(self.item())


def iterate(self):
    """The slices along the first dim."""
    check(len(self.shape) > 0, "iter", "a tensor of at least one dim", "0 dims", error=TypeError)
    return iter(self.unbind(0))


def contains(self, value):
    """Whether some element equals the value."""
    if not isinstance(value, (Tensor, numbers.Number, np.generic)):
        raise RuntimeError(sentence("contains", "a tensor or a number", type(value).__name__))
    return bool((self == value).any().item())



passed.add(__file__)                                                     # of what fails in place, the operator's caller is asked
attach()
