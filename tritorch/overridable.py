"""Public functions that ask the classes of their arguments and the modes around a call: `__torch_function__`.

The functions themselves change, once: each keeps its object, and so every name that was bound to it, while its code becomes a few words
that put the question first. A program that never needs this runs the functions as they are written, at no cost.
"""
import dis
import functools
import inspect
import sys
import threading
from importlib import import_module
from types import FunctionType

from tritorch import interop, pickling, protocol, serialization, surface
from tritorch.autograd import engine, function, snapshot
from tritorch.cuda.watching import host_work
from tritorch.device import device
from tritorch.dispatch import registry
from tritorch.dtype import dtype
from tritorch.errors import REFLECTED, knows, passed, variables
from tritorch.nn import parameter
from tritorch.ops import namespaces
from tritorch.protocol import has_own, state
from tritorch.shape import Size
from tritorch.tensor import Tensor

HOMES = ("tritorch.ops.", "tritorch.nn.functional", "tritorch.linalg", "tritorch.fft", "tritorch.special", "tritorch.signal",
         "tritorch.native", "tritorch.recurrent", "tritorch.foreach")
SPACES = ("nn.functional", "linalg", "fft", "special", "signal.windows")
MORE = {"tritorch": "_assert is_floating_point is_complex numel as_tensor asarray can_cast promote_types result_type",
        "tritorch.nn.init": "uniform_ normal_ constant_ kaiming_uniform_", "tritorch.autograd": "grad"}
MODES_ONLY = set("tensor as_tensor asarray scalar_tensor can_cast promote_types".split())   # of their arguments the classes do not matter
NEVER = set("broadcast_shapes is_storage is_tensor from_numpy frombuffer from_file from_dlpack".split())
NO_METHODS = set("""__new__ __init__ __init_subclass__ __torch_function__ __hash__ __iter__ __getstate__ __setstate__ as_subclass
    _make_subclass _seen_as _filled new""".split())
FACTS = "shape dtype device ndim is_cuda is_cpu itemsize nbytes requires_grad grad grad_fn is_leaf retains_grad _base".split()
WAYS = "__get__", "__set__", "__delete__"
VALUES = "data T mT H mH real imag".split()
PLAIN = frozenset((Tensor, parameter.Parameter, int, float, bool, complex, str, type(None), Size, slice, type(...), dtype, device))
passed.add(__file__)                             # which Python's operators call, too
HOLE = "becomes the function that asks"
OPERATOR = ("BINARY_", "INPLACE_", "COMPARE_", "UNARY_")

public, originals = {}, {}                       # name and asking function by function; the function of each original
lock = threading.RLock()


# ------------------------------------------------------------------ asking
def relevant(values):
    """The arguments to ask: the first of each class with a `__torch_function__` of its own, before those whose classes it comes from,
    otherwise in the order of the call. In lists and tuples, too."""
    found = None
    for v in values:
        kind = type(v)
        if kind in PLAIN:
            continue
        if kind is tuple or kind is list or isinstance(v, (tuple, list)) and not has_own(kind):
            for w in v:
                if type(w) not in PLAIN and has_own(type(w)):
                    found = _ranked(found or [], w)
        elif has_own(kind):
            found = _ranked(found or [], v)
    return found or ()


def _ranked(found, v):
    kind = type(v)
    if all(type(w) is not kind for w in found):
        place = next((k for k, w in enumerate(found) if issubclass(kind, type(w))), len(found))
        found.insert(place, v)
    return found


def decide(func, found, args, kwargs):
    """What the modes around a call, and then the arguments in `found`, answer to it."""
    types = tuple([type(v) for v in found])
    if func.__class__ is FunctionType and func.__name__ == "einsum" and len(args) == 2 and isinstance(args[1], (list, tuple)):
        args = args[0], *args[1]                                         # which is how PyTorch hands on a list of operands
    host_work("a call that a __torch_function__ sees")
    try:
        answer = _asked(func, found, types, args, kwargs)
    except TypeError:
        if _by_operator(sys._getframe(3)) and knows(REFLECTED.get(func.__name__, ""), args):
            return NotImplemented                                        # numpy's arrays, say
        raise
    if answer is not NotImplemented or _by_operator(sys._getframe(3)):
        return answer
    asked = [*map(repr, state.modes[-1:]), *[kind.__name__ for kind in types]]
    raise TypeError(f"{name_of(func)}: expected an answer from one of {', '.join(asked)}, got NotImplemented from each __torch_function__")


def _asked(func, found, types, args, kwargs):
    if state.modes:
        around = state.modes
        state.modes = around[:-1]
        try:
            answer = around[-1].__torch_function__(func, types, args, kwargs)
        finally:
            state.modes = around
        if answer is not NotImplemented:
            return answer
    for v in () if state.off else found:
        answer = v.__torch_function__(func, types, args, kwargs)
        if answer is not NotImplemented:
            return answer
    return NotImplemented


def _by_operator(frame):
    """Whether a frame stands at an operator of Python's, where the other operand may know better."""
    code = frame.f_code.co_code
    return dis.opname[code[frame.f_lasti]].startswith(OPERATOR)


def name_of(func):
    """The public name of a function, without its package."""
    return public[func][0] if func in public else getattr(func, "__name__", repr(func))


def asking(func, original, modes_only):
    """The call of a public function: first those who want to see it are asked."""
    def ask(args, kwargs):
        plain = modes_only or PLAIN.issuperset(map(type, args)) and (not kwargs or PLAIN.issuperset(map(type, kwargs.values())))
        if not (plain or state.off):
            found = relevant((*args, *kwargs.values()))
            if found or state.modes:
                return decide(func, found, args, kwargs)
        elif state.modes and state.off != 2:
            return decide(func, (), args, kwargs)
        return original(*args, **kwargs)

    return ask


def calling(original):
    """The call of an object that is the public function itself, as an operator of `tritorch.ops` is."""
    def ask(args, kwargs):
        if state.off != 2:
            found = () if state.off else relevant((*args[1:], *kwargs.values()))
            if found or state.modes:
                return decide(args[0], found, args[1:], kwargs)
        return original(*args, **kwargs)

    return ask


def _asking(func, name, original):
    if name not in MODES_ONLY:
        return asking(func, original, False)
    hidden = aside(original)
    return asking(func, lambda *args, **kwargs: hidden(args, kwargs), True)


def aside(original):
    """The call of a function that has work of its own to do with tensors: nobody sees what it does inside."""
    def ask(args, kwargs):
        was = state.off, state.outside
        state.off, state.outside = 2, was[0] if was[1] is None else was[1]
        try:
            return original(*args, **kwargs)
        finally:
            state.off, state.outside = was

    return ask


def outside(original):
    """The call of a function that runs the user's code inside of a backward pass: it is seen as it would be outside."""
    def ask(args, kwargs):
        was = state.off, state.outside
        if was[1] is not None:
            state.off, state.outside = was[1], None
        try:
            return original(*args, **kwargs)
        finally:
            state.off, state.outside = was

    return ask


# ------------------------------------------------------------------ arming
def arm():
    """Give every public function, and what of the engine runs between the user's lines, its question."""
    with lock:
        if public:
            return
        operators = {*registry.values()}
        for space, name, f in sorted(functions(), key=lambda found: found[1] != found[2].__name__):
            if f not in public:                                          # of several names that of the function itself
                public[f] = f"{space}.{name}".removeprefix("tritorch."), space
                if f not in operators:                                   # which go by their own
                    f.__name__ = name
                change(f, functools.partial(_asking, f, name))
        for name in VALUES:
            shown = Tensor.__dict__[name]
            for way, f in zip(WAYS, (shown.fget, shown.fset, shown.fdel)):
                if f is not None and f not in public:
                    func = getattr(shown, way)
                    public[func] = f"Tensor.{name}.{way}", "tritorch.Tensor"
                    change(f, lambda original, func=func: asking(func, original, False))
        for name in FACTS:
            for way in WAYS:
                if hasattr(Tensor.__dict__[name], way):
                    public[getattr(Tensor.__dict__[name], way)] = f"Tensor.{name}.{way}", "tritorch.Tensor"
        protocol.fields.update(Tensor.__dict__[name].__get__ for name in ("grad", "_base"))
        from tritorch.library import overload
        from tritorch.ops import aten_names

        for kind in (namespaces.OpOverload, namespaces.OpOverloadPacket, aten_names.AtenPacket, overload.OpOverload):
            change(kind.__call__, calling)
        for f in (serialization.save, engine.backward, engine.gradients_of, function._record, function._as_output, function._check_dirty,
                  pickling.rebuild, interop.frombuffer, parameter._alias, parameter._trained, Tensor.__new__):
            change(f, aside)
        parameter.Kind.__instancecheck__ = parameter.Kind.has_instance
        for f in (function.FunctionCtx.pull, snapshot._Hooked.restore):
            change(f, outside)


def functions():
    """(space, name, function) of all functions that ask."""
    import tritorch

    for name in sorted({*vars(tritorch), *surface.LAZY}):
        home = "tritorch." + surface.LAZY[name] if name in surface.LAZY else ""
        if not home or home.startswith(HOMES):
            yield from _found("tritorch", tritorch, name)
    for space in SPACES:
        home = import_module("tritorch." + space)
        for name in getattr(home, "__all__", None) or vars(home):
            yield from _found("tritorch." + space, home, name)
    for space, names in MORE.items():
        home = import_module(space)
        yield from ((space, name, getattr(home, name)) for name in names.split())
    for name, f in Tensor.__dict__.items():
        if type(f) is FunctionType and name not in NO_METHODS and (name.startswith("__") or not name.startswith("_")):
            yield "tritorch.Tensor", name, f


def _found(space, home, name):
    f = getattr(home, name)
    ours = type(f) is FunctionType and (f.__module__ == "tritorch" or f.__module__.startswith(HOMES))
    if ours and not name.startswith("_") and name not in NEVER:
        yield space, name, f


@functools.cache
def template(variables):
    """The code of a function of any arguments that hands them to a constant, HOLE; it has these variables of enclosing functions, as a
    function keeps its own for life."""
    made, lines = {}, "\n" * (template.__wrapped__.__code__.co_firstlineno + 4)          # tracebacks show the lines of this file
    exec(compile(lines + f"""def enclosing({', '.join(variables)}):
    def _asks(*_args, **_kwargs):
        _ask = {HOLE!r}
        return _ask(_args, _kwargs)
        ({' '.join(v + ',' for v in variables)})
    return _asks""", __file__, "exec"), made)                            # noqa: S102 names of variables
    return made["enclosing"](*variables).__code__


def change(f, make):
    """Give a function the code of `template`, which calls what `make` makes of the function as it was."""
    original = FunctionType(f.__code__, f.__globals__, f.__name__, f.__defaults__, f.__closure__)
    original.__kwdefaults__, original.__qualname__ = f.__kwdefaults__, f.__qualname__
    vars(original).update(vars(f))
    ask, code = make(original), template(f.__code__.co_freevars)
    originals.setdefault(original.__code__, []).append((f, original))
    f.__code__ = code.replace(co_name=f.__code__.co_name, co_consts=tuple([ask if c == HOLE else c for c in code.co_consts]))
    f.__defaults__ = f.__kwdefaults__ = None
    if not hasattr(f, "__wrapped__"):
        f.__wrapped__ = original


# ------------------------------------------------------------------ classes
def show_facts(cls):
    """Have a class see that its shape, dtype and their like are asked for; of other classes this costs nothing."""
    for name in FACTS:
        if next(k for k in cls.__mro__ if name in vars(k)) is Tensor:
            setattr(cls, name, _fact(name))


@functools.cache
def _fact(name):
    shown = Tensor.__dict__[name]
    if not isinstance(shown, property):                                  # shape and dtype, which only our own code sets
        get = asking(shown.__get__, shown.__get__, False)
        return property(lambda self: get((self,), {}), shown.__set__, doc=shown.__doc__)
    get, put, cut = [asking(getattr(shown, way), getattr(shown, way), False) for way in WAYS]
    return property(lambda self: get((self,), {}), shown.fset and (lambda self, value: put((self, value), {})),
                    shown.fdel and (lambda self: cut((self,), {})), shown.__doc__)


# ------------------------------------------------------------------ the call that failed before all this
def call_of(frame):
    """The call that the user made, to be made anew, of which the one in a frame is a part; None unless what the latter returns is what
    the former does."""
    found, handed = frame if frame.f_code in originals else None, True
    outer = frame.f_back
    while outer is not None and outer.f_globals.get("__name__", "").startswith("tritorch."):
        handed = handed and _hands_on(outer)
        if outer.f_code in originals:
            found = outer if handed else None
        outer = outer.f_back
    if found is None:
        return None
    values = variables(found)
    for f, original in originals[found.f_code]:
        if f in public and all(cell.cell_contents is values.get(name) for name, cell in zip(found.f_code.co_freevars, f.__closure__ or ())):
            args, kwargs = _given(f, original, values)
            return functools.partial(f, *args, **kwargs)
    return None


def _hands_on(frame):
    """Whether a frame returns what the call in it returns."""
    steps = {step.offset: step for step in dis.get_instructions(frame.f_code)}
    place = frame.f_lasti + 2
    while place not in steps or steps[place].opname in ("CACHE", "NOP", "POP_BLOCK", "JUMP_FORWARD"):
        place = steps[place].argval if place in steps and steps[place].opname == "JUMP_FORWARD" else place + 2
    return steps[place].opname == "RETURN_VALUE"


def _given(f, original, values):
    """(args, kwargs) with which a function was called, from its variables; without those that are its defaults."""
    if "door" in values and "args" in values:                            # an operator, which has completed its arguments
        names, args, kw = f.names, list(values["args"]), values["kw"]
        del args[min([names.index(n) for n in kw if n in names], default=len(args)):]
        while args and len(args) in f.tails and args[-1] is f.defaults[len(args) - 1]:
            args.pop()
        return args, kw
    code, defaults = original.__code__, original.__defaults__ or ()
    named, only = code.co_argcount, code.co_argcount + code.co_kwonlyargcount
    names, least = code.co_varnames, named - len(defaults)
    args, kwargs = [values[name] for name in names[:least]], {}
    known = {**dict(zip(names[least:named], defaults)), **(original.__kwdefaults__ or {})}
    for k, name in enumerate(names[least:only], least):
        if name not in known or values[name] is not known[name]:
            if k == len(args) < named:
                args.append(values[name])
            else:
                kwargs[name] = values[name]
    if code.co_flags & inspect.CO_VARARGS:
        args += values[names[only]]
    if code.co_flags & inspect.CO_VARKEYWORDS:
        kwargs.update(values[names[only + bool(code.co_flags & inspect.CO_VARARGS)]])
    return args, kwargs
