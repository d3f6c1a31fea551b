"""op(): a shape rule becomes an operator. Its verbs, its door, the registry, the interpreter slot.

An operator is one Python function: the signature is the schema, the docstring the manual, the body the shape rule. The body
returns a promise `(shape, dtype, device)`, a list of promises, or a Tensor, which is then a view. A promise may ask for strides,
`(shape, dtype, device, strides)`, or name an operand's and a rule for the result's (see memory_format.py). Verbs add the rest.
"""
import functools
import inspect

from tritorch import keywords, storage
from tritorch.autograd import graph, modes, places, slices
from tritorch.autograd.formula import formula_rule
from tritorch.autograd.graph import record
from tritorch.autograd.modes import state
from tritorch.calling import on_arrays, on_device, on_meta
from tritorch.cuda.allocator import memories
from tritorch.errors import OtherLayout, check, check_flags, numbers_in, refuse_misuse
from tritorch.repeat import repeating
from tritorch.shape import layout
from tritorch.tensor import Tensor, Unfollowed, empty, refresh, swaps

registry, NUMPY = {}, keywords.NUMPY                                     # every operator by name; numpy's names, which PyTorch takes
watchers = []                                                            # functions that are given each operator when it is implemented


class Interpreter:
    """Sees every operator call of this thread inside its `with` block.

    Subclasses give `__call__(op, args, out)`: `args` has every parameter in order, `out` is the destination of an in-place or
    out= call, else None. `self.proceed(op, args, out)` goes on with the call; the slot then holds the interpreter around this one.
    `looks_on`: it changes nothing; inside, compiled functions are captured and replayed, which it does not see. `views`: it sees views.
    `of_samples`: it is a call of vmap.

    >>> import tritorch as torch
    >>> class Log(torch.dispatch.Interpreter):
    ...     def __call__(self, op, args, out):
    ...         print(op.__name__)
    ...         return self.proceed(op, args, out)
    >>> with Log():
    ...     y = torch.ones(2) + 1
    fill
    add
    """

    outer, looks_on, views, of_samples = None, False, True, False

    def __enter__(self):
        self.outer, state.interpreter = state.interpreter, self
        modes.interpreted = True
        return self

    def __exit__(self, *exception):
        state.interpreter = self.outer

    def __call__(self, op, args, out):
        return self.proceed(op, args, out)

    @staticmethod
    def proceed(op, args, out):
        return op(*args) if out is None else op.into(out, *args)


def _interpret(door, args, out=None):
    """Hand the call to the interpreter in the slot; while it works the slot holds the one around it."""
    interpreter = state.interpreter
    state.interpreter = interpreter.outer
    try:
        return interpreter(door, args, out)
    finally:
        state.interpreter = interpreter


def op(body=None, *, returns=("out",), aliasable=()):
    """Turn a shape rule into an operator.

    `returns` names the outputs. `aliasable` says that implementations may read an input and write the output in the same
    memory (elementwise operators), or names the inputs of which that is so: otherwise an in-place call goes through a temporary.
    `door.exact`, to be set: results are not cast to an out= of another dtype. Long, because a closure is read quicker than attributes.
    """
    if body is None:
        return functools.partial(op, returns=returns, aliasable=aliasable)
    signature, body = inspect.signature(body), numbers_in(body)
    names, defaults, ways = tuple(signature.parameters), tuple([p.default for p in signature.parameters.values()]), {}
    arity, missing, impls, single, again, rewrite = len(names), inspect.Parameter.empty, {}, len(returns) == 1, None, None
    tails = {k: defaults[k:] for k in range(arity + 1) if missing not in defaults[k:]}       # what completes k positional arguments
    flags = {place for place, default in enumerate(defaults) if default is True or default is False}

    def bind(args, kw):
        way = ways.get((len(args), *kw))
        if way is None:
            known = [n if n in names else keywords.meant(door.__name__, n) for n in kw]
            signature.bind(*args, **dict(zip(known, kw.values())))       # raises TypeError in Python's words
            way = ways[(len(args), *kw)] = defaults[len(args):], [names.index(n) for n in known]
        full = [*args, *way[0]]
        for place, v in zip(way[1], kw.values()):
            if place in flags and v.__class__ is not bool:
                check_flags(door.__name__, {names[place]}, kw)
            full[place] = v
        return full

    def complete(args):
        return args if len(args) == arity else args + tails[len(args)] if len(args) in tails else bind(args, {})

    @functools.wraps(body)
    def door(*args, **kw):
        try:
            if kw:
                if (out := kw.pop("out", None)) is not None:
                    return door.into(out, *args, **kw)
                args = bind(args, kw)
            if modes.interpreted and (slot := state.interpreter) is not None and (impls or slot.views or slot.outer is not None):
                return _interpret(door, complete(args))
            if again is not None and memories and (found := again(args)) is not None:      # none until there is memory on a device
                return found
            if len(args) != arity:
                args = complete(args)
            promise = body(*args)
            if type(promise) is tuple:
                outs = (empty(*promise),)
            elif isinstance(promise, Tensor):
                return _view(door, args, promise)
            else:
                outs = [empty(*p) for p in promise]
            home = outs[0].storage.device
            run = impls.get(home.type)
            if run is None:
                run = _without(door, home)
            run(*outs, *args)
        except OtherLayout as other:
            return other.instead(door, complete(args))
        except Exception as error:
            if answer := refuse_misuse(error, door.__name__, body, args):
                return answer[0]
            raise
        if state.grad:
            record(door, args, outs)
        elif modes.inferred and state.inference:
            for out in outs:
                out._inference = True
        return outs[0] if single else tuple(outs)

    def repeat(*fns):
        """Have `again(args)` asked first for what a call returns, and `rewrite(out, args)` whether it did the call: tritorch/repeat.py."""
        nonlocal again, rewrite
        again, rewrite = door.again, door.rewrite = fns

    def into(out, *args, **kw):
        args = bind(args, kw) if kw else complete(args)
        if modes.interpreted and state.interpreter is not None:
            return _interpret(door, args, out)
        try:
            if rewrite is not None and memories and rewrite(out, args):
                return out
            return write(door, out, args, body(*args))
        except OtherLayout as other:
            return other.instead(door, args, out)

    door.names, door.returns, door.gnames = names, tuple(returns), ("g",) if single else tuple("g_" + r for r in returns)
    door.impls, door.rules, door.plans, door.aliasable, door.body, door.defaults = impls, [], graph.Plans(door), aliasable, body, defaults
    door.into, door.repeat, door.complete, door.tails, door.__signature__, door.exact = into, repeat, complete, tails, signature, False
    door.batch_rule = door.jvp_rule = door.formula_body = door.samples_body = door.errors_body = door.workloads_body = door.complex = None
    for verb in (impl, grad, jvp, formula, batch, samples, errors, workloads, rules_for):
        setattr(door, verb.__name__, functools.partial(verb, door))
    known, clash = door.gnames + door.returns, set(names) & {*door.gnames, *returns}
    check(not clash, door.__name__, f"parameters not named {known}, by which gradient rules ask for the rest", *clash, error=TypeError)
    registry[door.__name__] = door
    return door


# ------------------------------------------------------------------ verbs
def impl(door, kind, *, raw=False, passes=None):
    """How the operator runs on devices of type `kind`: `fn(outputs…, every parameter…)` fills the outputs.

    On the CPU tensors arrive as numpy arrays, and numpy does not warn about infinities and NaN. On CUDA what a call launches is
    launched again by later calls whose arguments have the same shapes, strides, dtypes and numbers, without `fn` (see repeat.py): it must
    look at nothing else, or have `driver.forget_calls()` called when that changes; nor is the shape rule asked again. `passes` names
    parameters, with their type, `int` or `float`, that are numbers which `fn` only hands to its kernels: they may differ (a float beside a
    first argument computed in float32). A tuple's types are {place: type}; a function, which `fn` calls too, makes the floats that kernels
    get for a number: its `parts`, if it has them. `raw` leaves all this out. The last one given counts.
    """

    def verb(fn):
        if raw or kind != "cuda":
            run, *again = fn if raw else (on_arrays if kind == "cpu" else on_device)(door, fn), None, None
        else:
            run, *again = repeating(on_device(door, fn), door, (passes or {}).items())
        door.impls[kind] = run
        if kind == "cuda":
            door.repeat(*again)
        for told in watchers:
            told(door)
        return fn

    return verb


def grad(door, *inputs):
    """The gradient of the named inputs. The rule's parameters are names: `g` (or `g_<return>`), inputs, outputs; what it names is saved.
    `x_shape` (_strides, _offset, _dtype, _device) asks for a fact of the input x and keeps no memory alive.

    It returns one gradient for each name (None: no gradient), in public operators. The engine sums broadcast dims away and casts.
    """
    for name in inputs:
        check(name in door.names, door.__name__, f"one of the inputs {door.names}", name, error=TypeError)

    def verb(fn):
        wants = tuple(inspect.signature(fn).parameters)
        known = door.gnames + door.names + door.returns + graph.facts(door.names)
        for want in wants:
            check(want in known, door.__name__, f"a gradient rule that asks for {door.gnames + door.names + door.returns} (or an input's "
                                                f"_shape, _strides, _offset, _dtype, _device)", want, error=TypeError)
        door.rules = [r for r in door.rules if not set(r[2]) & set(inputs)] + [(fn, wants, inputs)]
        door.plans.clear()
        return fn

    return verb


def jvp(door, fn):
    """Forward mode given outright: `fn(tangents, args, outs)` returns the tangents of the outputs; of inputs without one they are None."""
    door.jvp_rule = fn
    return fn


def formula(door, fn):
    """The same outputs as a composition of public operators: it gives gradients for the inputs no `grad` rule covers, by recomputation."""
    door.formula_body = fn
    door.plans.clear()
    return fn


def batch(door, fn):
    """How `tritorch.vmap` calls the operator: `fn(call)` gets a `tritorch.func.batching.calls.Call`, which has the arguments, with tensors
    of all samples, along their first dims, and returns the results of all, made by public operators. Without it each sample has its call.
    An elementwise operator's rule is `tritorch.func.batching.pointwise.pointwise`."""
    door.batch_rule = fn
    return fn


def samples(door, fn):
    """Calls worth testing: `fn(make)` yields argument tuples, a trailing dict being keywords."""
    door.samples_body = fn
    return fn


def errors(door, fn):
    """Calls that must fail: `fn(make)` yields (args, keywords, exception type, part of the sentence)."""
    door.errors_body = fn
    return fn


def workloads(door, fn):
    """Calls worth timing: `fn(make)` yields (label, thunk that makes the arguments, bytes moved, floating point operations)."""
    door.workloads_body = fn
    return fn


# ------------------------------------------------------------------ gradient rules of a call
def rules_for(door, needed):
    """The rules that cover the needed inputs; the formula stands in for the rest."""
    covered = {n for r in door.rules for n in r[2]}
    rest = tuple(n for n in door.names if n in needed and n not in covered)
    stands_in = rest and door.formula_body is not None
    return [*door.rules, (formula_rule(door, rest), door.gnames + door.names, rest)] if stands_in else door.rules


# ------------------------------------------------------------------ the ways out of the door
def _without(door, device):
    """How a call goes on where the operator has no implementation: on meta there is nothing to do."""
    if device.type == "meta":
        return functools.partial(on_meta, door)
    raise NotImplementedError(f"{door.__name__}: expected an implementation for {device.type}, got only {', '.join(door.impls) or 'none'}")


def _view(door, args, out):
    """A body that returned a Tensor: nothing runs, but base and history are kept."""
    source = args[0]
    base = out.base = source if source.base is None else source.base
    if state.grad:
        if base is not source and base.node is not source.base_node:
            refresh(source)
        out.base_node = base.node if type(source.base_node) is not Unfollowed else source.base_node
        if source.node is not None:
            record(door, args, (out,))
    elif base.node is None and not state.inference:
        out.base_node = _NO_GRAD
    else:
        out.base_node = Unfollowed("A view was created in inference mode" if state.inference else _NO_GRAD.why, base.node)
    if source._inference:
        out._inference = True
    return out


_NO_GRAD = Unfollowed("A view was created in no_grad mode")


def write(door, out, args, promise, run=None):
    """out= and in-place: everything is checked before anything is written. `run`: what to call in the place of the implementation."""
    outs, promises = (tuple(out), promise) if isinstance(out, (tuple, list)) else ((out,), (promise,))
    check(not isinstance(promise, Tensor), door.__name__, "an operator that computes", "a view")
    check(len(outs) == len(promises), door.__name__, "as many destinations as outputs", len(outs), len(promises))
    targets = [_target(door, o, args, *p[:3]) for o, p in zip(outs, promises)]
    node = slices.prepare(door, outs, args) if state.grad else None
    run = run or door.impls.get(promises[0][2].type) or _without(door, promises[0][2])
    run(*targets, *args)
    for o, target in zip(outs, targets):
        if target is not o:
            o.detach().copy_(target)
        o.storage.version += 1
        o.storage.writer = places.user_place()
    if node is not None:
        slices.rebase(outs[0], node) if len(outs) == 1 else graph.hang(node, outs)
    return out


def _target(door, out, args, shape, dtype, device):
    """Where the result is computed: in the destination, or in fresh memory where its dtype or an input that is still to be read forbids."""
    if not (isinstance(out, Tensor) and out.shape == shape and out.dtype is dtype and out.storage.device is device
            and 0 not in out.strides and not out._inference):            # else there is nothing to check
        _check_destination(door, out, shape, dtype, device, args)
    return out if out.dtype is dtype and not _overlaps(door, out, args) else empty(shape, dtype, device)


def _check_destination(door, out, shape, dtype, device, args):
    name = door.__name__
    check(isinstance(out, Tensor), name, "a Tensor as destination", type(out).__name__, error=TypeError)
    check(out.storage.device is device, name, f"a destination on {device}", out.storage.device)
    check(dtype.category <= out.dtype.category, name, f"a destination that {dtype} can be cast to", out.dtype)
    check(not door.exact or out.dtype is dtype, name, f"a destination of {dtype}", out.dtype)
    check(not out._inference or state.inference, name, "a normal tensor to write outside of inference mode", "an inference tensor",
          use="x.clone()")
    if out.shape != layout(shape)[0]:
        read = any(out is a for arg in args for a in (arg if type(arg) is tuple else (arg,)))
        check(out.numel() == 0 and not read, name, f"a destination of shape {tuple(shape)}", out.shape)
        if state.grad:
            slices.prepare(door, (out,), args)                           # raises where a gradient is wanted
        out.form, fresh = None, empty(shape, out.dtype, device)          # an empty out= takes the shape of the result, as in PyTorch
        out.storage, out.shape, out.strides, out.offset, out._array = fresh.storage, fresh.shape, fresh.strides, 0, fresh._array
        swaps[0] += 1
    check(0 not in out.strides or all(n == 1 or s for n, s in zip(out.shape, out.strides)) or 0 in out.shape, name,
          "a destination whose elements have memory of their own", f"strides {out.strides}", use="x.clone() before writing")


def _overlaps(door, out, args):
    """Whether writing `out` would change an input that is still to be read."""
    memory, alone = out.storage, type(out.storage) is storage.Unwritten  # what nobody has looked at is nobody else's
    for name, a in zip(door.names, args):
        if isinstance(a, Tensor):
            if (a.storage is memory or not alone and a.storage.owner is memory.owner) and not _may_lie_in(door, out, name, a):
                return True
        elif type(a) is tuple:
            if any(isinstance(v, Tensor) and v.storage.owner is memory.owner and not _may_lie_in(door, out, name, v) for v in a):
                return True
    return False


def _may_lie_in(door, out, name, v):
    """Whether the implementation may be given an input in the memory of its output: the same elements, where the operator says so."""
    same = v is out or v.dtype is out.dtype and v.offset == out.offset and v.strides == out.strides and v.shape == out.shape
    return same and (door.aliasable is True or name in door.aliasable)


def common_device(name, *operands):
    """The device of the result: all tensors on one device, but 0-dim CPU tensors may join CUDA ones."""
    found = None
    for x in operands:
        if isinstance(x, Tensor):
            device = x.storage.device
            if found is None or device is found.device:
                found = x if found is None or x.shape else found
            elif not x.shape and device.type == "cpu":
                continue
            elif not found.shape and found.storage.device.type == "cpu":
                found = x
            else:
                raise RuntimeError(f"{name}: expected all tensors on one device, got {found.device} and {device}")
    return found.storage.device
