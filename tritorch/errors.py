"""The errors and the one sentence they speak: what was expected, what came, and the way out when there is one."""
import dis
import functools
import inspect
import itertools
import numbers
import operator
import sys

from tritorch.frames import callee, package_of, variables

REFLECTED = {"add": "__radd__", "sub": "__rsub__", "mul": "__rmul__", "div_true": "__rtruediv__", "div": "__rtruediv__",
             "floor_divide": "__rfloordiv__", "remainder": "__rmod__", "pow": "__rpow__", "matmul": "__rmatmul__",
             "bitwise_and": "__rand__", "bitwise_or": "__ror__", "bitwise_xor": "__rxor__",
             "bitwise_left_shift": "__rlshift__", "bitwise_right_shift": "__rrshift__"}   # what Python asks next, by operator


class OutOfMemoryError(RuntimeError):
    """No memory is left on the device; the sentence says who holds what."""


class GradientError(RuntimeError):
    """The gradient graph cannot do what was asked: freed, overwritten, or not differentiable."""


class LinAlgError(RuntimeError):
    """A matrix is not what an algorithm asks for: singular, not positive definite, or not finite."""


class OtherLayout(NotImplementedError):
    """An operator asked a tensor that has no strides, a sparse one, for its memory. `instead(operator, args, out)` is what the call does
    then, if anything: doors ask it in the place of raising, so that dense tensors pay nothing."""

    instead = None


class NoTensor(TypeError, AttributeError):
    """An argument is of another kind, mostly no tensor. PyTorch raises TypeError or, from its functions in Python, AttributeError."""


def check(ok, op, rule, *got, use=None, error=RuntimeError):
    """Raise `error` with one sentence unless `ok`.

    Values are formatted only when the check fails, so pass them as they are. A `rule` with values in it is formatted every time, for about
    1 µs: operators that cost as little raise `sentence(…)` instead.

    >>> check(2 == 3, "matmul", "a.shape[-1] == b.shape[-2]", (3, 4), (5, 6))
    Traceback (most recent call last):
    RuntimeError: matmul: expected a.shape[-1] == b.shape[-2], got (3, 4) and (5, 6)
    """
    if not ok:
        raise error(sentence(op, rule, *got, use=use))


def no_values(op, use):
    """What a tensor on meta says to those who want its values."""
    return NotImplementedError(sentence(op, "a tensor that has values", "one on meta, where there is no memory", use=use))


def underivable(op, argument=None):
    """The gradient rule of an input that has none, neither here nor in PyTorch: whoever asks for it gets the sentence."""
    def rule(g):
        raise NotImplementedError(sentence(op, "no gradient to be asked for" + (f" of {argument}" if argument else ""), "backward"))

    return rule


def whole_numbers(op, what, values):
    """A tuple of ints, or a TypeError that says which argument has to be one.

    >>> whole_numbers("zeros", "sizes", (2, 1.5))
    Traceback (most recent call last):
    TypeError: zeros: expected whole numbers as sizes, got (2, 1.5)
    """
    try:
        return tuple(map(operator.index, values))
    except TypeError:
        raise TypeError(sentence(op, f"whole numbers as {what}", repr(values))) from None


def real_numbers(op, **options):
    """A TypeError that says which option has to be a number, and is none.

    >>> real_numbers("SGD", lr=0.1, momentum="0.9")
    Traceback (most recent call last):
    TypeError: SGD: expected a number as momentum, got '0.9'
    """
    for name, value in options.items():
        if not hasattr(type(value), "__float__"):
            raise TypeError(sentence(op, f"a number as {name}", repr(value)))


def tensors(op, **arguments):
    """A NoTensor that says which argument has to be a tensor, and is none.

    >>> tensors("cross", input=None)
    Traceback (most recent call last):
    tritorch.errors.NoTensor: cross: expected a tensor as input, got NoneType
    """
    for name, value in arguments.items():
        if not hasattr(value, "storage"):
            raise NoTensor(sentence(op, f"a tensor as {name}", type(value).__name__))


def switches(op, error=TypeError, **options):
    """An error that says which option has to be True or False, and is neither.

    >>> switches("set_grad_enabled", mode=None)
    Traceback (most recent call last):
    TypeError: set_grad_enabled: expected True or False as mode, got None
    """
    for name, value in options.items():
        if value is not True and value is not False:
            raise error(sentence(op, f"True or False as {name}", repr(value)))


def refused_size(error, shape, dtype):
    """The error to raise for numpy's at an array of this shape and dtype."""
    if isinstance(error, AttributeError):
        return TypeError(sentence("empty", "a tritorch.dtype", repr(dtype)))
    rule, kind = ("at most 64 dims", RuntimeError) if len(shape) > 64 else ("sizes for which the host has memory", OutOfMemoryError)
    return kind(sentence("empty", rule, f"{tuple(shape)} of {dtype}"))


def answered(error):
    """What a function returns whose body had this error: see `refuse_misuse`, which has nothing to say to most. They are raised again."""
    try:
        if answer := refuse_misuse(error, frame=sys._getframe(1)):
            return answer[0]
        raise error
    finally:
        del error                                                        # its traceback holds this frame, and the memory of all others


def refuse_misuse(error, op=None, fn=None, args=(), kwargs=None, frame=None):
    """Raise a sentence for an error of Python's or numpy's inside our code, where it can name an argument of the wrong kind: of the
    function of ours that the user called, or of one that was called on the way to the error, such as `fn`, under the name `op`. Errors that
    we or others raise on purpose are left to the caller, as they are. Where the call shall return something after all it is (that,): what
    an argument with a `__torch_function__` answers, or NotImplemented if `x + other` shall be left to the other operand."""
    for answer in answers if not isinstance(error, OutOfMemoryError) else ():            # to look at frames keeps what they hold
        if (found := answer(frame or sys._getframe(1))) is not None:
            return found
    method = REFLECTED.get(op.removesuffix("_")) if op else None
    if method is not None and _left_to_other(error, method, args):
        return (NotImplemented,)
    frames = _frames(error)
    if frames is None:
        return
    for name, signature, values in _calls(frames, op, fn, args, kwargs or {}):
        wrong = {key: what for key, value in values.items() if (what := _missed(value, error)) is not None}
        wanted = wrong or {key: _wanted(signature.parameters[key], value, error) for key, value in values.items()}
        for key, kind in wanted.items():
            if kind is not None:
                value = error.obj if wrong and kind == "tensors" else values[key]
                if kind in ("a tensor", "tensors"):
                    raise NoTensor(sentence(name, f"{kind} as {key}", type(value).__name__)) from error
                raise TypeError(sentence(name, f"{kind} as {key}", _shown(value))) from error
    if isinstance(error, MemoryError) or str(error).startswith(("array is too big", "Maximum allowed dimension")):
        raise OutOfMemoryError(sentence(op or frames[0].f_code.co_name, "sizes for which the host has memory", error)) from None


def _left_to_other(error, method, args):
    """Whether the second operand of a Python operator is of another kind, for which there was an error, but knows the operator itself, as
    numpy's arrays do: it is asked then, as everywhere in Python, also for operator.add and sum, which are written in C."""
    frame = error.__traceback__.tb_frame.f_back
    if not knows(method, args):
        return False
    while frame.f_code.co_filename in passed or frame.f_code.co_name in ("div", "matmul") and package_of(frame) == "tritorch":
        frame = frame.f_back                                             # what stands between the operator and its card
    if dis.opname[frame.f_code.co_code[frame.f_lasti]].startswith(("BINARY_", "INPLACE_")):
        return True
    called = callee(frame)
    return called is sum or getattr(called, "__module__", None) == "_operator"


def knows(method, args):
    """Whether the first operand is a tensor and the second is of another kind that has Python's method for such operands."""
    if len(args) < 2 or not hasattr(args[0], "storage"):
        return False
    return not isinstance(args[1], numbers.Number) and not hasattr(args[1], "storage") and hasattr(type(args[1]), method)


def refuse_arguments(op, fn, args, kwargs):
    """Raise a sentence for an argument of a constructor that is of another kind than the parameter's name or default asks for. What cannot
    be bound at all is left to the call, which says so in Python's words, and None, tensors and strings to what uses them."""
    signature = _signature(fn)
    try:
        values = signature.bind(*args, **kwargs).arguments
    except TypeError:
        return
    for key, value in values.items():
        parameter = signature.parameters[key]
        if type(parameter.default) is not bool or key in _FLAGS:         # Python's own flags may be anything
            kind = "True or False" if key in _FLAGS and not is_flag(value) else _wanted(parameter, value)
            if kind not in (None, "a tensor", "a string") and (value is not None or key in _FLAGS):
                raise TypeError(sentence(op, f"{kind} as {key}", _shown(value)))


def _missed(value, error):
    """What an argument, or each of several in a sequence, has to be, if it has not the attribute that an error is about."""
    if not isinstance(error, AttributeError) or error.name is None:
        return None
    if value is error.obj or error.obj is not None and getattr(value, "dtype", None) is error.obj:
        return "a tensor"
    return "tensors" if isinstance(value, (tuple, list)) and any(v is error.obj for v in value) else None


def explained(fn):
    """Decorator for functions made of operators: an argument of the wrong kind gets its sentence. Costs 0.1 µs, so it is for those that
    cost many; others have the handler in their body."""
    flags = flags_of(fn)

    @functools.wraps(fn)
    def wrapped(*args, **kwargs):
        if flags and kwargs:
            check_flags(fn.__name__, flags, kwargs)
        try:
            return fn(*args, **kwargs)
        except Exception as error:
            if answer := refuse_misuse(error, fn.__name__, fn, args, kwargs):
                return answer[0]
            raise

    return wrapped


def _frames(error):
    """The frames of ours that an error has come through or would go to, the outermost first; None where it was raised on purpose, or by
    code of others."""
    frames, last = [], error.__traceback__
    caller = last.tb_frame.f_back
    while True:
        frames.append(last.tb_frame)
        if last.tb_next is None:
            break
        last = last.tb_next
    raised = package_of(frames[-1]) == "tritorch" and frames[-1].f_code.co_code[last.tb_lasti] == _RAISE
    if raised or package_of(frames[-1]) not in ("tritorch", "numpy"):
        return None
    while caller is not None and package_of(caller) == "tritorch":
        frames.insert(0, caller)
        caller = caller.f_back
    return [frame for frame in frames if package_of(frame) == "tritorch"]


def _calls(frames, op, fn, args, kwargs):
    """(name, signature, arguments by name) of the functions in these frames that are known by their name, and of `fn`."""
    outside = itertools.takewhile(lambda frame: frame.f_code.co_name != "quietly", frames)      # numpy's arrays in what it calls
    known = [call for call in map(_called, outside) if call[1] is not None]
    if fn is not None:
        known.append((op, fn, lambda signature: signature.bind_partial(*args, **kwargs).arguments))
    for name, f, bind in known:
        try:
            signature = inspect.signature(f)
            values = bind(signature)
        except (TypeError, ValueError):                                  # a forward that has no signature
            continue
        yield name, signature, {key: v for key, v in values.items() if key != "self"}


def _called(frame):
    """The name and the function that a frame runs, and what its parameters are bound to; of a layer's methods, its constructor and what
    the layer keeps of the arguments."""
    name, kept = frame.f_code.co_name, variables(frame)
    owner = kept.get("self")
    if frame.f_globals.get("__name__") == "tritorch.dispatch" or hasattr(type(owner), "proceed"):      # an interpreter hands the call on
        return name, None, None
    if owner is None:
        found = frame.f_globals.get(name)
    elif name != "__init__" and "_parameters" in getattr(owner, "__dict__", ()):
        name, found, kept = type(owner).__name__, type(owner).__init__, {k: v for k, v in vars(owner).items() if not callable(v)}
        kept = {k: v for k, v in kept.items() if v is not None and not hasattr(v, "storage")}
        return name, inspect.unwrap(found), lambda s: {k: kept[k] for k in s.parameters if k in kept}
    else:
        found, name = getattr(type(owner), name, None), type(owner).__name__
    found = inspect.unwrap(found) if callable(found) else None
    if getattr(found, "__code__", None) is not frame.f_code or name.endswith(("_cuda", "_grad")):
        found = None
    return name, found, lambda s: {k: kept[k] for k in s.parameters if k in kept}


def _wanted(parameter, value, error=None):
    """What a parameter has to be, in words, if `value` is something else: told by its default, or else by its name, which is PyTorch's."""
    name, default = parameter.name, parameter.default
    if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD) or value is default:
        return None
    if value is None and (default is None or type(default) is bool or name == "momentum" or _KINDS.get(name, " ")[0] == "a tensor"):
        return None
    if default is True or default is False:
        return None if isinstance(value, int) and -1 << 31 < value < 1 << 31 or "bool" in type(value).__name__ else "True or False"
    if type(value) is int and not -1 << 63 <= value < 1 << 63 and type(default) is not float:
        return "a number of 64 bits"
    if name in _SIZES and isinstance(error, TypeError) and hasattr(type(value), "__index__") and "not iterable" in str(error):
        return "a sequence of whole numbers"
    words, fits = _KINDS["size" if type(default) is tuple and name in _KINDS else name] if name in _KINDS else (None, None)
    if name == "dim" and type(default) is int:
        words, fits = "a whole number", _is_whole
    if words is None and type(default) is int or type(default) is float:
        words, fits = "a number", _is_number
    return None if words is None or fits(value) else words


def flags_of(fn):
    """The parameters of a function that are True or False in PyTorch's C++, where nothing else will do."""
    code = inspect.unwrap(fn).__code__                                   # a signature takes ten times as long
    return _FLAGS.intersection(code.co_varnames[:code.co_argcount + code.co_kwonlyargcount])


def check_flags(op, flags, kwargs):
    """A TypeError that says which of these is neither True nor False."""
    for name in flags & kwargs.keys():
        if not is_flag(kwargs[name]):
            raise TypeError(sentence(op, f"True or False as {name}", _shown(kwargs[name])))


def is_flag(value):
    return value is True or value is False or type(value).__name__ in ("bool_", "bool")         # numpy's


def _is_whole(value):
    return hasattr(type(value), "__index__") and not getattr(value, "shape", ()) and "bool" not in type(value).__name__


def _is_number(value):
    return hasattr(type(value), "__float__") and not getattr(value, "shape", ())


def _are(fits):
    return lambda value: fits(value) or isinstance(value, (tuple, list)) and all(v is None or fits(v) for v in value)


def _shown(value):
    text = repr(value) if type(value).__repr__ is not object.__repr__ and not hasattr(value, "storage") else type(value).__name__
    return text if len(text) < 60 and "\n" not in text else type(value).__name__


def numbers_in(body):
    """The shape rule `body`, which refuses what is no number where its parameter is one by default; itself where none is."""
    found = [(place, p.name) for place, p in enumerate(inspect.signature(body).parameters.values()) if type(p.default) in (int, float)]
    if not found:
        return body

    @functools.wraps(body)
    def checked(*args):
        for place, name in found:
            if args[place].__class__ in NO_NUMBERS:
                raise TypeError(sentence(body.__name__, f"a number as {name}", _shown(args[place])))
        return body(*args)

    return checked


passed: set[str] = set()                                                 # files whose functions stand between an operator and its door
answers: list = []                                                       # who is asked first what a call that failed shall return
_signature = functools.cache(inspect.signature)
no_sizes = "sizes: expected at least one, got none; use () for a tensor of no dims"
NO_NUMBERS = frozenset((type(None), str, list, tuple, dict, type))
_RAISE = dis.opmap["RAISE_VARARGS"]
_FLAGS = frozenset("""bidirectional ceil_mode count_include_pad descending enable_gqa is_causal keepdim largest log_input log_target
                      replacement return_inverse scale_grad_by_freq sorted sparse""".split())
_SIZES = ("kernel_size stride dilation output_padding output_size normalized_shape size pad dim start_dim end_dim dims shifts "
          "storage_offset split_size_or_sections").split()
_KINDS = {name: (words, fits) for words, fits, names in (
    ("whole numbers", _are(_is_whole), " ".join(_SIZES)),
    ("whole numbers or a string", lambda value: isinstance(value, str) or _are(_is_whole)(value), "padding"),
    ("a whole number", _is_whole,
     "groups num_groups num_channels num_features num_heads nhead embed_dim d_model dim_feedforward num_layers num_encoder_layers "
     "num_decoder_layers input_size hidden_size proj_size in_channels out_channels in_features out_features in1_features in2_features "
     "num_embeddings embedding_dim padding_idx upscale_factor downscale_factor num_classes ignore_index kdim vdim k chunks length "
     "num_samples n N r seed minlength"),
    ("a number or a tensor", lambda value: _is_number(value) or hasattr(value, "storage"), "min max low high mean std start end step"),
    ("a whole number or a tensor", lambda value: _is_whole(value) or hasattr(value, "storage"), "index repeats"),
    ("numbers", _are(_is_number), "fill_value gain rtol atol correction max_norm"),
    ("tensors", lambda value: hasattr(value, "__iter__") and not isinstance(value, str), "sequences parameters inputs outputs lengths"),
    ("a string", lambda value: isinstance(value, str), "mode nonlinearity"),
    ("a number", _is_number, "eps momentum lambd threshold norm_type divisor_override dropout dropout_p margin min_val max_val "
     "min_value max_value"),
    ("a number", lambda value: _is_number(value) or hasattr(value, "storage"), "p value scale"),
    ("numbers", _are(_is_number), "scale_factor"),
    ("a tensor", lambda value: hasattr(value, "storage") or hasattr(value, "batch_sizes") or _is_number(value),
     "input weight bias target x1 x2 input1 input2 query key anchor positive negative grid theta running_mean running_var pos_weight "
     "attn_mask var src tgt"),
    ("a function", callable, "custom_encoder custom_decoder distance_function"),
    ("a function or its name", lambda value: callable(value) or isinstance(value, str), "activation norm"),
    ("a device", lambda value: isinstance(value, (str, int)) or type(value).__name__ == "device", "device"),
    ("a Generator", lambda value: hasattr(value, "manual_seed"), "generator")) for name in names.split()}


def sentence(op, rule, *got, use=None):
    """The words of a failed check."""
    text = f"{op}: expected {rule}"
    if got:
        text += ", got " + " and ".join(f"{value}" for value in got)
    return f"{text}; use {use}" if use else text
