"""Autocast: an interpreter that casts the arguments of operators, by lists of names as PyTorch has them.

Products run in the low dtype, what needs range or accuracy in float32, everything else in the dtype that its arguments have.
Gradients run in the dtypes of their forward operators: inside of a backward pass nothing is cast.
"""
import functools
import threading
import warnings
import weakref

from tritorch.autograd.graph import record
from tritorch.autograd.modes import state
from tritorch.cuda.device import is_available
from tritorch.device import ELSEWHERE
from tritorch.dispatch import Interpreter
from tritorch.dtype import as_dtype, bfloat16, float16, float32, promote_types
from tritorch.errors import check, switches
from tritorch.ops.casting import cast_all
from tritorch.ops.copy import copy_to
from tritorch.storage import Spread
from tritorch.tensor import Tensor, empty

LOW = dict(matmul=2, addmm=3, linear=3, linear_activation=3, linear_slope=3, feed_forward_layers=5, convolution=3, attention=4,
           convolution_input=2, linear_cross_entropy_rows=3, linear_cross_entropy_sum=3, grouped_rows=2, grouped_sums=2,
           recurrent_layer=7)
"""How many of an operator's arguments, from the first on, are cast."""
BIASES = dict(linear=(2,), linear_activation=(2,), feed_forward_layers=(2, 4), recurrent_layer=(3, 4))
"""Which of these are added to sums in float32, and stay in float32 if they are."""
LOSSES = set("""cross_entropy soft_cross_entropy nll_loss binary_cross_entropy binary_cross_entropy_with_logits mse_loss l1_loss
    smooth_l1_loss huber_loss kl_div poisson_nll_loss soft_margin_loss margin_ranking_loss hinge_embedding_loss cosine_embedding_loss
    triplet_margin_loss multi_margin_loss multilabel_margin_loss""".split())
MATRICES = set("""cholesky cholesky_inverse cholesky_solve cond eig eigh eigvals eigvalsh geqrf householder_product inverse lstsq lu_solve
    matrix_rank orgqr ormqr pinverse qr solve svd svdvals tensorinv tensorsolve""".split())
FLOAT32 = {
    "cpu": LOSSES | MATRICES | {"prod", "ctc_loss"},
    "cuda": LOSSES | set("""acos asin cosh erfinv exp expm1 log log10 log2 log1p reciprocal rsqrt sinh tan pow softplus layer_norm_rows
        rms_norm_rows group_norm_rows logsumexp prod softmax log_softmax cumprod cumsum vector_norm sum cosine_similarity""".split()),
}
WIDEST = set("addcmul_value addcdiv_value atan2 scatter_add put".split())
KEPT = 16                                                                # regions whose weights are remembered
KINDS = {"cuda": (float16, bfloat16), "cpu": (bfloat16, float16)}        # the default first


class _Local(threading.local):
    def __init__(self):
        self.active = dict.fromkeys(KINDS)                               # device type -> the caster that is in charge
        self.dtypes = {kind: dtypes[0] for kind, dtypes in KINDS.items()}
        self.depth, self.cached, self.caching = 0, {}, True
        self.used, self.before = {}, {}                                  # keys of cached casts -> weights, as they were needed; see ahead


_local = _Local()


class _Caster(Interpreter):
    """The interpreter of one entered `autocast`. Only the innermost of a device type works."""

    views = False

    def __init__(self, kind, dtype, caches):
        self.kind, self.dtype, self.caches, self.run = kind, dtype, caches, state.run

    def __call__(self, op, args, out):
        if out is None and self.works():
            name = op.__name__
            if name in LOW:
                args = self.low(args, LOW[name], BIASES.get(name, ()))
            elif name in FLOAT32[self.kind]:
                args = self.raised(op, args)
            elif name in WIDEST:
                args = self.widened(args)
        return self.proceed(op, args, out)

    def low(self, args, count, biases):
        """The arguments of a product: `count` of them in the low dtype, but for biases in float32."""
        args, dtype = [*args], self.dtype
        for k in range(count):
            a = args[k]
            if isinstance(a, Tensor):
                if a.dtype is not dtype and not (a.dtype is float32 and k in biases) and self.eligible(a):
                    args[k] = self.lowered(a)
            elif type(a) is tuple:
                args[k] = tuple(self.each(a, self.lowered))
        return args

    def enter(self, name, args):
        """The arguments of a composite."""
        return self.each(args, lambda x: x.to(float32)) if name in FLOAT32[self.kind] and self.works() else args

    def result(self, name, x):
        """The dtype of the result of a composite that computes in float32 without its arguments being cast."""
        return float32 if name in FLOAT32[self.kind] and self.works() and self.eligible(x) else None

    def works(self):
        return _local.active[self.kind] is self and state.run is self.run

    def eligible(self, x):
        return isinstance(x, Tensor) and x.storage.device.type == self.kind and x.dtype in (float32, float16, bfloat16)

    def each(self, args, cast):
        return [cast(a) if self.eligible(a) else tuple(self.each(a, cast)) if type(a) is tuple else a for a in args]

    def lowered(self, x):
        """x in the low dtype; the cast of a weight is kept, so that it is made once, however often the weight is used."""
        if x.dtype is self.dtype:
            return x
        if not self.caches:
            return x.to(self.dtype)
        key = id(x), self.dtype, state.grad
        found = _local.cached.get(key)
        if found is None or found[1] != x.storage.version:
            if not (x.requires_grad and x.is_leaf and x.base is None):
                return x.to(self.dtype)
            if found is None and not _local.used and key in _local.before:
                found = self.ahead(key, x)
            if found is None or found[1] != x._version:
                found = _local.cached[key] = x, x._version, x.to(self.dtype)
        if key not in _local.used:
            _local.used[key] = weakref.ref(x)
        return found[2]

    def ahead(self, key, x):
        """The cast of a region's first weight, and by the same kernel those of all that the last region which began with it needed."""
        weights = [weight for weight in [ref() for ref in _local.before[key]] if weight is not None and weight.requires_grad
                   and weight.is_leaf and weight.base is None and weight.is_contiguous() and weight.dtype is x.dtype
                   and weight.storage.device is x.storage.device and type(weight.storage) is not Spread]
        if len(weights) < 2 or weights[0] is not x:
            return None
        lows = [empty(weight.shape, self.dtype, weight.storage.device) for weight in weights]
        cast_all(lows, weights)
        for weight, low in zip(weights, lows):
            if state.grad:
                record(copy_to, (weight, self.dtype, weight.storage.device), (low,))
            elif state.inference:
                low._inference = True
            _local.cached[(id(weight), *key[1:])] = weight, weight._version, low
        return _local.cached[key]

    def raised(self, op, args):
        """float32 by the operator's own `dtype` where it has one, which casts as it reads."""
        if "dtype" not in op.names:
            return self.each(args, lambda x: x.to(float32))
        k = op.names.index("dtype")
        if args[k] is None and self.eligible(args[0]):
            args = [*args[:k], float32, *args[k + 1:]]
        return args

    def widened(self, args):
        kinds = {a.dtype for a in args if self.eligible(a)}
        if len(kinds) < 2:
            return args
        widest = functools.reduce(promote_types, kinds)
        return self.each(args, lambda x: x.to(widest))


class autocast:
    """Inside, each operator runs in the dtype that suits it: products in `dtype`, losses and what needs range in float32.

    A context manager and a decorator. `device_type` is "cuda" or "cpu", `dtype` float16 or bfloat16 (default: float16 on CUDA,
    bfloat16 on the CPU). `enabled=False` switches casting off inside. float64 is never cast, nor are in-place and out= calls.
    Call backward outside. On a GPU a block casts by one kernel all the weights that the last block with the same first weight used.
    `cache_enabled=False` casts weights anew at each use. Biases of linear layers in float32 are added as they are
    (PyTorch rounds them first); they and their weights get gradients that were never rounded to `dtype`.

    >>> import tritorch as torch
    >>> weight = torch.ones(2, 2, requires_grad=True)
    >>> with torch.autocast("cpu"):
    ...     y = torch.ones(1, 2) @ weight
    >>> y.dtype
    tritorch.bfloat16
    >>> y.sum().backward(); weight.grad.dtype
    tritorch.float32
    """

    def __init__(self, device_type, dtype=None, enabled=True, cache_enabled=None):
        check(isinstance(device_type, str), "autocast", "a string as device_type", type(device_type).__name__, error=ValueError)
        _check_kind("autocast", device_type)
        self.device, self.fast_dtype = device_type, get_autocast_dtype(device_type) if dtype is None else as_dtype(dtype)
        self._enabled, self._cache_enabled, self._entered = enabled, cache_enabled, []
        if enabled and device_type == "cuda" and not is_available():
            warnings.warn("autocast: expected a CUDA device, got none; casting is disabled", stacklevel=2)
            self._enabled = False
        if enabled and self.fast_dtype not in KINDS[device_type]:
            warnings.warn(f"autocast: expected float16 or bfloat16 as dtype, got {self.fast_dtype}; casting is disabled", stacklevel=2)
            self._enabled = False

    def __enter__(self):
        caches = _local.caching if self._cache_enabled is None else self._cache_enabled
        caster = _Caster(self.device, self.fast_dtype, caches) if self._enabled else None
        self._entered.append((caster, _local.active[self.device], _local.dtypes[self.device]))
        _local.active[self.device], _local.dtypes[self.device] = caster, self.fast_dtype
        _local.depth += 1
        if caster is not None:
            caster.__enter__()
        return self

    def __exit__(self, *exception):
        caster, _local.active[self.device], _local.dtypes[self.device] = self._entered.pop()
        if caster is not None:
            caster.__exit__(*exception)
        _local.depth -= 1
        if not _local.depth:
            _local.cached.clear()
            if len(_local.used) > 1 and self.device == "cuda":
                first = next(iter(_local.used))
                _local.before.pop(first, None)
                if len(_local.before) >= KEPT:
                    del _local.before[next(iter(_local.before))]         # that which has not been for the longest time
                _local.before[first] = [ref for key, ref in _local.used.items() if key[1:] == first[1:]]
            _local.used.clear()

    def __call__(self, fn):
        @functools.wraps(fn)
        def wrapped(*args, **kwargs):
            with autocast(self.device, self.fast_dtype, self._enabled, self._cache_enabled):
                return fn(*args, **kwargs)

        return wrapped


def _check_kind(name, device_type):
    check(device_type in KINDS, name, "device_type 'cuda' or 'cpu'", repr(device_type))


def is_autocast_available(device_type):
    """Whether autocast knows the device type."""
    check(isinstance(device_type, str), "is_autocast_available", "a string as device_type", type(device_type).__name__, error=TypeError)
    return device_type in KINDS


def is_autocast_enabled(device_type="cuda"):
    """Whether operators on this type of device are being cast in this thread: False of devices that have no tensors here."""
    if device_type in ELSEWHERE:
        return False
    _check_kind("is_autocast_enabled", device_type)
    return _local.active[device_type] is not None


def get_autocast_dtype(device_type):
    """The low dtype that autocast uses on this type of device.

    >>> import tritorch as torch; torch.get_autocast_dtype("cpu")
    tritorch.bfloat16
    """
    _check_kind("get_autocast_dtype", device_type)
    return _local.dtypes[device_type]


def set_autocast_dtype(device_type, dtype):
    """Choose the low dtype of `autocast` on this type of device, in this thread: until the block around it ends, or by default."""
    _check_kind("set_autocast_dtype", device_type)
    _local.dtypes[device_type] = as_dtype(dtype)
    if _local.active[device_type] is not None:
        _local.active[device_type].dtype = _local.dtypes[device_type]


def set_autocast_enabled(device_type, enabled=None):
    """Switch casting on or off in this thread, on "cuda" where only True or False is given; the end of the `autocast` block around it
    restores what was before. `with autocast(…):` does the same and ends by itself.

    >>> import tritorch as torch
    >>> torch.set_autocast_enabled("cpu", True); (torch.ones(1, 1) @ torch.ones(1, 1)).dtype
    tritorch.bfloat16
    >>> torch.set_autocast_enabled("cpu", False)
    """
    kind, enabled = ("cuda", device_type) if enabled is None else (device_type, enabled)
    switches("set_autocast_enabled", enabled=enabled)
    _check_kind("set_autocast_enabled", kind)
    active = _local.active[kind]
    if enabled and active is None:
        _local.active[kind] = _Caster(kind, _local.dtypes[kind], _local.caching)
        _local.active[kind].__enter__()
    elif not enabled and active is not None:
        _local.active[kind] = None
        if state.interpreter is active:                                  # else it stays in its place, and casts nothing
            state.interpreter = active.outer


def set_autocast_cpu_enabled(enabled):
    """`set_autocast_enabled("cpu", enabled)`, as it was called before."""
    set_autocast_enabled("cpu", enabled)


def set_autocast_gpu_dtype(dtype):
    """`set_autocast_dtype("cuda", dtype)`, as it was called before."""
    set_autocast_dtype("cuda", dtype)


def set_autocast_cpu_dtype(dtype):
    """`set_autocast_dtype("cpu", dtype)`, as it was called before."""
    set_autocast_dtype("cpu", dtype)


def autocast_increment_nesting():
    """Count one more `autocast` around what follows, whose casts are kept until it ends; returns how many there are."""
    _local.depth += 1
    return _local.depth


def autocast_decrement_nesting():
    """Count one less; who makes it 0 calls `clear_autocast_cache`."""
    _local.depth -= 1
    return _local.depth


def is_autocast_cpu_enabled():
    """`is_autocast_enabled("cpu")`, as it was called before."""
    return is_autocast_enabled("cpu")


def get_autocast_gpu_dtype():
    """`get_autocast_dtype("cuda")`, as it was called before."""
    return get_autocast_dtype("cuda")


def get_autocast_cpu_dtype():
    """`get_autocast_dtype("cpu")`, as it was called before."""
    return get_autocast_dtype("cpu")


def is_autocast_cache_enabled():
    """Whether casts of weights are kept until the outermost autocast ends."""
    return next((caster.caches for caster in _local.active.values() if caster is not None), _local.caching)


def set_autocast_cache_enabled(enabled):
    """Keep casts of weights or not, where `autocast` is not told."""
    switches("set_autocast_cache_enabled", enabled=enabled)
    _local.caching = enabled


def clear_autocast_cache():
    """Forget the casts of weights."""
    _local.cached.clear()


# ------------------------------------------------------------------ for autograd.Function
def custom_fwd(fwd=None, *, device_type, cast_inputs=None):
    """Decorator for the `forward` of an autograd.Function: with `cast_inputs`, a dtype, floating inputs are cast to it under autocast and
    autocast is off inside; without, backward finds autocast as forward had it (see `custom_bwd`)."""
    check(isinstance(device_type, str), "custom_fwd", "a string as device_type", type(device_type).__name__, error=ValueError)
    if fwd is None:
        return functools.partial(custom_fwd, device_type=device_type, cast_inputs=cast_inputs)

    @functools.wraps(fwd)
    def decorated(ctx, *args, **kwargs):
        ctx._dtype, active = get_autocast_dtype(device_type), is_autocast_enabled(device_type)
        ctx._fwd_used_autocast = active and cast_inputs is None
        if not active or cast_inputs is None:
            return fwd(ctx, *args, **kwargs)
        with autocast(device_type, enabled=False):
            return fwd(ctx, *cast_floating(args, device_type, cast_inputs), **cast_floating(kwargs, device_type, cast_inputs))

    return decorated


def custom_bwd(bwd=None, *, device_type):
    """Decorator for the `backward` of an autograd.Function whose forward has `custom_fwd`: runs under the same autocast."""
    check(isinstance(device_type, str), "custom_bwd", "a string as device_type", type(device_type).__name__, error=ValueError)
    if bwd is None:
        return functools.partial(custom_bwd, device_type=device_type)

    @functools.wraps(bwd)
    def decorated(ctx, *args, **kwargs):
        with autocast(device_type, enabled=ctx._fwd_used_autocast, dtype=ctx._dtype):
            return bwd(ctx, *args, **kwargs)

    return decorated


def cast_floating(value, device_type, dtype):
    """Floating tensors of the device type inside of a value in another dtype; float64 stays."""
    if isinstance(value, Tensor):
        fits = value.is_floating_point() and value.device.type == device_type and value.dtype.itemsize < 8
        return value.to(dtype) if fits else value
    if isinstance(value, dict):
        return {key: cast_floating(v, device_type, dtype) for key, v in value.items()}
    return type(value)([cast_floating(v, device_type, dtype) for v in value]) if type(value) in (list, tuple) else value
