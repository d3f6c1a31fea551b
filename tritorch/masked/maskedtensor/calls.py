"""What functions make of masked tensors: by the name of the function, with data and with masks."""
from tritorch.errors import check, sentence
from tritorch.layout import strided
from tritorch.masked import functions
from tritorch.ops.compare import where as choose
from tritorch.ops.create import ones_like
from tritorch.protocol import DisableTorchFunction, fields
from tritorch.tensor import Tensor

UNARY = set("""abs absolute acos arccos acosh arccosh angle asin arcsin asinh arcsinh atan arctan atanh arctanh bitwise_not ceil clamp clip
    conj_physical cos cosh deg2rad digamma erf erfc erfinv exp exp2 expm1 fix floor frac lgamma log log10 log1p log2 logit i0 isnan
    nan_to_num neg negative positive pow rad2deg reciprocal round rsqrt sigmoid sign sgn signbit sin sinc sinh sqrt square tan tanh trunc
    __invert__ __abs__ __neg__ __pos__ __pow__""".split())
BINARY = set("""add atan2 arctan2 bitwise_and bitwise_or bitwise_xor bitwise_left_shift bitwise_right_shift div divide floor_divide fmod
    logaddexp logaddexp2 mul multiply nextafter remainder sub subtract true_divide eq ne le ge greater greater_equal gt less_equal lt less
    maximum minimum fmax fmin not_equal __and__ __or__ __xor__ __lshift__ __rshift__ __mod__ __floordiv__ __truediv__
    rsub __radd__ __rsub__ __rmul__ __rtruediv__ __rdiv__ __rfloordiv__ __rmod__ __rand__ __ror__ __rxor__""".split())
REDUCTIONS = set("sum mean amin amax argmin argmax prod all norm var std".split())
THROUGH = set("""select transpose swapaxes swapdims split t slice index expand expand_as view reshape cat concat concatenate unsqueeze
    unfold fold stack permute squeeze flatten unflatten movedim moveaxis narrow chunk unbind ravel view_as __getitem__ T mT""".split())
DATA_ALONE = set("detach clone ones_like".split())
TYPES = set("to float double half int long short char bool type cpu cuda".split())
AS_IT_IS = set("""size dim ndimension numel nelement element_size is_contiguous stride storage_offset data_ptr get_device is_floating_point
    is_complex is_signed is_inference requires_grad_ retain_grad register_hook register_post_accumulate_grad_hook backward __len__ __hash__
    untyped_storage is_tensor __format__ detach_ is_same_size""".split())
WHERE_PROPERTIES_ARE = {vars(Tensor)[name].__get__: name for name in ("T", "mT")}


def answer(func, args, kwargs):
    """The result of a call with masked tensors among its arguments, or NotImplemented."""
    name = WHERE_PROPERTIES_ARE.get(func) or getattr(func, "__name__", "")
    for names, rule in RULES:
        if name in names:
            return rule(func, name, args, kwargs)
    if name in ONES:
        return ONES[name](func, args, kwargs)
    if name.endswith("_") and not name.endswith("__") and name[:-1] in UNARY | BINARY:
        return _in_place(func, name, args, kwargs)
    if func in fields or name in ("__get__", "__set__", "__delete__"):
        return _plain(func, args, kwargs)
    return NotImplemented


def _plain(func, args, kwargs):
    """The call with the data of masked tensors."""
    with DisableTorchFunction():
        return func(*args, **kwargs)


def _mask_of(x):
    return getattr(x, "_masked_mask", None)


def _made(found, mask):
    """Tensors, also in lists and tuples, with their masks."""
    from tritorch.masked.maskedtensor.core import masked

    if isinstance(found, (list, tuple)):
        return type(found)(_made(x, m) for x, m in zip(found, mask))
    return masked(found, mask) if isinstance(found, Tensor) else found


def _masks(value):
    """A masked tensor as its mask, and those of a list, in which others count as a whole."""
    if isinstance(value, (list, tuple)) and any(_mask_of(v) is not None for v in value):
        return [ones_like(v, dtype=BOOL) if _mask_of(v) is None else _mask_of(v) for v in value]
    return value if _mask_of(value) is None else _mask_of(value)


# ------------------------------------------------------------------ rules
def _unary(func, name, args, kwargs):
    check(not kwargs, name, "no keywords beside a MaskedTensor", *kwargs, error=TypeError)
    check(not any(isinstance(a, Tensor) for a in args[1:]), name, "no further tensors beside a MaskedTensor", "some", error=TypeError)
    return _made(_plain(func, args, kwargs), _mask_of(args[0]))


def _common_mask(name, args, kwargs):
    """The mask of two operands, which both have, or one."""
    check(not kwargs, name, "no keywords beside a MaskedTensor", *kwargs, error=ValueError)
    check(not any(isinstance(a, Tensor) for a in args[2:]), name, "no further tensors beside a MaskedTensor", "some", error=TypeError)
    masks = [m for m in map(_mask_of, args[:2]) if m is not None]
    same = len(masks) == 1 or masks[0].shape == masks[1].shape and bool((masks[0] == masks[1]).all())
    check(same, name, "operands with the same mask", "different ones", use="x.to_tensor(value)", error=ValueError)
    return masks[0]


def _binary(func, name, args, kwargs):
    mask = _common_mask(name, args, kwargs)
    made = _plain(func, args, kwargs)
    return _made(made, mask.expand_as(made))


def _in_place(func, name, args, kwargs):
    check(_mask_of(args[0]) is not None, name, "a MaskedTensor to write", type(args[0]).__name__, error=TypeError)
    if name[:-1] in BINARY:
        _common_mask(name, args, kwargs)
    _plain(func, args, kwargs)
    return args[0]


def _reduction(func, name, args, kwargs):
    """Over what counts; a result counts if anything did."""
    from tritorch.masked.maskedtensor.creation import as_masked_tensor

    data, mask = args[0].get_data(), _mask_of(args[0])
    if len(args) == 1 and not kwargs:
        made = data.masked_fill(~mask, True).all() if name == "all" else getattr(functions, name)(data, mask=mask)
        return as_masked_tensor(made, mask.any())
    known = ("p", "dim", "keepdim", "dtype") if name == "norm" else ("dim", "keepdim", "dtype")
    names = dict(zip(known, args[1:])) | kwargs
    fits = set(names) <= {*known} and len(args) <= len(known) + 1
    check(fits, name, f"{', '.join(known)} beside a MaskedTensor", *names, error=TypeError)
    dims = () if names.get("dim") is None else names["dim"], names.get("keepdim", False)
    if name == "all":
        return as_masked_tensor(data.masked_fill(~mask, True).all(*dims), mask.amax(*dims))
    if "p" in names:
        names["ord"] = names.pop("p")
    return as_masked_tensor(getattr(functions, name)(data, mask=mask, **names), mask.amax(*dims))


def _through(func, name, args, kwargs):
    made = _plain(func, args, kwargs)
    return _made(made, func(*map(_masks, args), **{k: _masks(v) for k, v in kwargs.items()}))


def _data_alone(func, name, args, kwargs):
    return _made(_plain(func, args, kwargs), _mask_of(args[0]))


def _converted(func, name, args, kwargs):
    """Another dtype, or another device, whither the mask goes, too."""
    made = _plain(func, args, kwargs)
    return _made(made, _mask_of(args[0]).to(made.device))


def _as_it_is(func, name, args, kwargs):
    return _plain(func, args, kwargs)


# ------------------------------------------------------------------ functions of their own
def _where(func, args, kwargs):
    check(len(args) == 3 and not kwargs, "where", "a condition and two operands", f"{len(args)} arguments", error=ValueError)
    condition, *operands = args
    condition = condition.get_data() if _mask_of(condition) is not None else condition
    masks = [ones_like(x, dtype=BOOL) if _mask_of(x) is None else _mask_of(x) for x in operands]
    return _made(_plain(func, (condition, *operands), kwargs), choose(condition, *masks))


def _contiguous(func, args, kwargs):
    return _made(_plain(func, args, kwargs), _mask_of(args[0]).contiguous())


def _softmax(func, args, kwargs):
    names = dict(zip(("dim", "dtype"), args[1:])) | {k: v for k, v in kwargs.items() if k in ("dim", "dtype")}
    return _made(functions.softmax(args[0].get_data(), mask=_mask_of(args[0]), **names), _mask_of(args[0]))


def _item(func, args, kwargs):
    check(bool(_mask_of(args[0]).all()), "item", "an element that counts", "one that does not", error=ValueError)
    return _plain(func, args, kwargs)


def _copy_(func, args, kwargs):
    _common_mask("copy_", args[:2], {})
    _plain(func, args, kwargs)
    return args[0]


def _dense(func, args, kwargs):
    check(args[0].layout is strided, "to_dense", "a strided MaskedTensor", args[0].layout)
    return args[0]


def _shown(func, args, kwargs):
    return repr(args[0])


def _refused(func, args, kwargs):
    raise NotImplementedError(sentence(func.__name__, "a Tensor", "a MaskedTensor, whose data is strided", use="x.to_tensor(0)"))


BOOL = functions.types.bool
RULES = ((UNARY, _unary), (BINARY, _binary), (REDUCTIONS, _reduction), (THROUGH, _through), (DATA_ALONE, _data_alone), (TYPES, _converted),
         (AS_IT_IS, _as_it_is))
ONES = {"where": _where, "contiguous": _contiguous, "softmax": _softmax, "item": _item, "copy_": _copy_, "to_dense": _dense,
        "__repr__": _shown, "to_sparse": _refused, "to_sparse_csr": _refused, "to_sparse_coo": _refused}
