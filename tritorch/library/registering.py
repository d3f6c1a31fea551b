"""Operators declared by a schema and completed piece by piece, and the same for any operator by its name."""
from __future__ import annotations

import contextlib
import functools
import re
import threading
import weakref

from tritorch.dispatch import registry
from tritorch.errors import check, sentence
from tritorch.library.declared import parse_schema
from tritorch.library.operators import CustomOpDef
from tritorch.library.overload import OpOverload, as_device_type, operators
from tritorch.ops.namespaces import OpOverloadPacket

OTHER_KEYS = "ADInplaceOrView BackendSelect Functionalize Python PythonTLSSnapshot PreDispatch FuncTorchBatched Undefined".split()
_waiting = {}                                                            # what was given for operators that are not declared yet
_owned = {}                                                              # the libraries that declare a whole namespace
_forever = []                                                            # libraries of `define` and `impl` without one of the caller's


def fallthrough_kernel():
    """What to give `Library.impl` to have nothing done under a key. RuntimeError when it is called."""
    raise NotImplementedError(sentence("fallthrough_kernel", "to be given to Library.impl", "a call"))


class Library:
    """Operators of a namespace, declared by schemas and given functions one by one.

    kind "DEF" declares all operators of a namespace, of which there is one; "FRAGMENT" some of them; "IMPL" gives functions to operators
    that others declare, then or later. When the library is no longer referenced, what it did is undone. Raises ValueError for another
    kind, RuntimeError for a second "DEF".

    >>> import tritorch as torch
    >>> library = torch.library.Library("doclib", "DEF")
    >>> library.define("scaled(Tensor x, float by=2.0) -> Tensor")
    'scaled'
    >>> library.impl("scaled", lambda x, by: x * by, "CompositeExplicitAutograd")
    >>> torch.ops.doclib.scaled(torch.ones(2))
    tensor([2., 2.])
    """

    def __init__(self, ns, kind, dispatch_key=""):
        check(kind in ("IMPL", "DEF", "FRAGMENT"), "Library", "kind DEF, IMPL or FRAGMENT", repr(kind), error=ValueError)
        check(ns != "prim" and (ns != "aten" or kind != "DEF"), "Library", "a namespace that is not PyTorch's own", ns, error=ValueError)
        check(kind != "DEF" or ns not in _owned, "Library", f"one library that declares the namespace {ns}", "a second one", use="FRAGMENT")
        if kind == "DEF":
            _owned[ns] = True
        self.ns, self.kind, self.dispatch_key, self._undo = ns, kind, dispatch_key, []
        self._end = weakref.finalize(self, _undo, self._undo, ns if kind == "DEF" else None)

    def __repr__(self):
        return f"Library(kind={self.kind}, ns={self.ns}, dispatch_key={self.dispatch_key})>"

    def define(self, schema, alias_analysis="", *, tags=()):
        """Declare an operator: "name.overload(arguments) -> results". Returns its name. RuntimeError for one that is there already."""
        check(alias_analysis in ("", "FROM_SCHEMA", "CONSERVATIVE"), "define", 'alias_analysis "", "FROM_SCHEMA" or "CONSERVATIVE"',
              repr(alias_analysis))
        check(self.kind != "IMPL", "define", "a library of kind DEF or FRAGMENT", "IMPL")
        found = parse_schema(schema)
        name = found.name.removeprefix(self.ns + "::")
        check("::" not in name, "define", f"an operator of the namespace {self.ns}", found.name)
        found.name = f"{self.ns}::{name}"
        full = f"{found.name}.{found.overload_name}" if found.overload_name else found.name
        taken = full in operators or self.ns == "aten" and name in registry
        check(not taken, "define", f"{full} to be declared once", "a second time")
        operator = OpOverload(found, opaque=False)
        self._undo.append(operator.forget)
        for key, fn in _waiting.get(full, ()):
            _put(operator, key, fn)
        return full.removeprefix(self.ns + "::")

    def impl(self, op_name, fn, dispatch_key="", *, with_keyset=False, allow_override=True):
        """Give an operator a function, by its name or overload, under a dispatch key.

        * CPU, CUDA: what runs for tensors on the device. CompositeExplicitAutograd: on all that have none of their own.
        * CompositeImplicitAutograd, the default: on all, made of operators through which gradients flow.
        * Autograd, AutogradCPU, AutogradCUDA: what runs in their place, mostly the `apply` of an autograd.Function, whose forward calls
          the operator under `tritorch._C._AutoDispatchBelowAutograd()`.
        * AutocastCPU, AutocastCUDA: what runs where autocast is on; it is off inside.
        * Meta: what the results are like, as `register_fake` has it.

        Keys of devices that are not here are kept and never asked. Raises TypeError where fn is no function, RuntimeError for other keys
        and, without `allow_override`, for a second function under a key.
        """
        check(callable(fn), "impl", "a function", type(fn).__name__, error=TypeError)
        check(not with_keyset, "impl", "a function without a set of dispatch keys", "with_keyset=True", error=NotImplementedError)
        name = op_name._schema.name.partition("::")[2] + f".{op_name._schema.overload_name}".rstrip(".") if isinstance(
            op_name, OpOverload) else op_name
        check(isinstance(name, str), "impl", "a name or an overload", type(op_name).__name__)
        name = name.removeprefix(self.ns + "::").removesuffix(".default")
        key, full = _key(dispatch_key or self.dispatch_key or "CompositeImplicitAutograd"), f"{self.ns}::{name}"
        if full not in operators and self.ns == "aten":
            raise NotImplementedError(sentence("impl", "an operator of one's own", f"aten::{name}", use=_instead(name)))
        operator, given = operators.get(full), _waiting.setdefault(full, [])
        check(allow_override or all(k != key for k, _ in given), "impl", f"one function for {full} under {key}", "a second one")
        given.append((key, fn))
        self._undo.append(functools.partial(_take_back, full, (key, fn)))
        if operator is not None:
            _put(operator, key, fn)

    def fallback(self, fn, dispatch_key="", *, with_keyset=False):
        """Only of the namespace "_", and only `fallthrough_kernel`: there is nothing to fall back to."""
        check(self.ns == "_" and fn is fallthrough_kernel, "fallback", 'fallthrough_kernel for the namespace "_"', self.ns,
              error=NotImplementedError)

    def _register_fake(self, op_name, fn, _stacklevel=1, *, allow_override=True):
        self.impl(op_name, fn, "Meta", allow_override=allow_override)

    def _destroy(self):
        """Undo what this library did."""
        self._end()


@contextlib.contextmanager
def _scoped_library(*args, **kwargs):
    """A Library until the end of the `with` block."""
    library = Library(*args, **kwargs)
    try:
        yield library
    finally:
        library._destroy()


def _undo(steps, ns):
    for step in reversed(steps):
        step()
    steps.clear()
    _owned.pop(ns, None)


def _instead(name):
    """What to do in the place of giving an operator of ours another function."""
    name = name.partition(".")[0]
    return f"tritorch.dispatch.registry[{name!r}].impl('cuda')" if name in registry else "tritorch.op"


def _key(key):
    """A dispatch key as it is kept. RuntimeError for what is none."""
    if key in ("CompositeImplicitAutograd", "CompositeExplicitAutograd", "CompositeExplicitAutogradNonFunctional", "Meta", *OTHER_KEYS):
        return key
    for head in ("Autograd", "Autocast"):
        if isinstance(key, str) and key.startswith(head):
            return head + (as_device_type(key.removeprefix(head)).upper() if key != head else "")
    if not isinstance(key, str) or not re.fullmatch(r"\w+", key):
        raise RuntimeError(sentence("impl", "the name of a dispatch key", repr(key)))
    return as_device_type(re.sub(r"^PrivateUse1$", "privateuseone", key)).upper()


def _put(operator, key, fn):
    """Have an operator use a function under a key."""
    if fn is fallthrough_kernel:
        return
    check(key not in OTHER_KEYS, operator.name(), "a dispatch key that means something here", key, error=NotImplementedError)
    if key == "Meta":
        operator._fake = fn
    elif key.startswith("Auto"):
        for kind in ("CPU", "CUDA") if key == "Autocast" else (key.removeprefix("Autocast"),):
            operator._around[f"Autocast{kind}" if key.startswith("Autocast") else key] = fn
    elif key == "CompositeImplicitAutograd":
        operator._implicit = fn
    else:
        operator._kernels[None if key.startswith("Composite") else key.lower()] = fn


def _take_back(full, entry):
    """Forget one function of an operator; what was given before counts again."""
    given = _waiting.get(full, [])
    if entry in given:
        given.remove(entry)
    operator = operators.get(full)
    if operator is not None:
        for table in (operator._kernels, operator._around):
            for key in [k for k, fn in table.items() if fn is entry[1]]:
                del table[key]
        operator._fake = None if operator._fake is entry[1] else operator._fake
        operator._implicit = None if operator._implicit is entry[1] else operator._implicit
        for key, fn in given:
            _put(operator, key, fn)


# ------------------------------------------------------------------ by the name of an operator
def _split(qualname):
    space, colons, name = qualname.partition("::")
    check(colons and name, "library", "a name like namespace::operator", repr(qualname), error=ValueError)
    return space, name


def define(qualname, schema, alias_analysis="", *, lib=None, tags=()):
    """Declare an operator `namespace::name` with a schema "(arguments) -> results". It lives as long as `lib`, without one for ever.

    With a Library as the first argument the schema has the name, and a decorator gives the function.

    >>> import tritorch as torch
    >>> torch.library.define("docs::shifted", "(Tensor x, float by) -> Tensor")
    >>> @torch.library.impl("docs::shifted", "cpu")
    ... def shifted(x, by):
    ...     return x + by
    >>> torch.ops.docs.shifted(torch.zeros(2), 3.0)
    tensor([3., 3.])
    """
    if isinstance(qualname, Library):
        name = qualname.define(schema, alias_analysis, tags=tags)
        return lambda fn: (qualname.impl(name, fn), fn)[1]
    check(isinstance(qualname, str), "define", "a name", type(qualname).__name__, error=ValueError)
    space, name = _split(qualname)
    check(re.match(r"\(.*\) -> ", schema, re.DOTALL), "define", 'a schema like "(Tensor x) -> Tensor"', repr(schema), error=ValueError)
    if lib is None:
        lib = Library(space, "FRAGMENT")
        _forever.append(lib)
    lib.define(name + schema, alias_analysis, tags=tags)


def impl(qualname, types, func=None, *, lib=None):
    """Give an operator the function for types of devices, one or several, or under dispatch keys; "default" is for all that have none.

    With a Library as the first argument: `impl(library, name, dispatch_key="")`. Without `func` a decorator.
    """
    if isinstance(qualname, Library):
        return lambda fn: (qualname.impl(types, fn, func or ""), fn)[1]
    space, name = _split(qualname)
    keys = ["CompositeExplicitAutograd" if t == "default" else t for t in ([types] if isinstance(types, str) else types)]
    for key in keys:
        _key(key)

    def register(fn):
        library = lib or Library(space, "IMPL")
        if lib is None:
            _forever.append(library)
        for key in keys:
            library.impl(name, fn, key)
        return fn

    return register if func is None else register(func)


def _known(op):
    """The overload that is meant."""
    if isinstance(op, CustomOpDef):
        return op._opoverload
    if isinstance(op, OpOverloadPacket):
        op = op._overloads.get("default", op)
    found = op if isinstance(op, OpOverload) else operators.get(op.removesuffix(".default")) if isinstance(op, str) else None
    check(found is not None, "library", "an operator that is declared, or the name of one", repr(op), error=ValueError)
    return found


def register_kernel(op, device_types, func=None, /, *, lib=None):
    """`op.register_kernel`, of an operator or of the name of one; so are the following."""
    return _known(op).register_kernel(device_types, func)


def register_fake(op, func=None, /, *, lib=None, _stacklevel=1, allow_override=True):
    """`op.register_fake`; without `func` a decorator. By the name of an operator that nobody has declared yet, the function waits for it,
    where PyTorch raises: so packages whose operators are in C++ libraries can be imported, and used as far as Python goes.

    >>> import tritorch as torch
    >>> @torch.library.register_fake("elsewhere::doubled")
    ... def doubled(x):
    ...     return x.new_empty(x.shape)
    """
    if isinstance(op, str) and "::" in op and op.removesuffix(".default") not in operators:
        return impl(op, "Meta", func, lib=lib)
    operator = _known(op)
    check(allow_override or operator._fake is None, operator.name(), "one function that tells what the results are like", "a second one")
    return operator.register_fake if func is None else operator.register_fake(func)


def register_autograd(op, backward, /, *, setup_context=None, lib=None):
    """`op.register_autograd`."""
    _known(op).register_autograd(backward, setup_context=setup_context)


def register_autocast(op, device_type, cast_inputs, /, *, lib=None):
    """`op.register_autocast`."""
    _known(op).register_autocast(device_type, cast_inputs)


def register_vmap(op, func=None, /, *, lib=None):
    """`op.register_vmap`; without `func` a decorator."""
    return _known(op).register_vmap(func)


def register_torch_dispatch(op, torch_dispatch_class, func=None, /, *, lib=None):
    """`op.register_torch_dispatch`; without `func` a decorator."""
    return _known(op).register_torch_dispatch(torch_dispatch_class, func)


# ------------------------------------------------------------------ inside of register_fake
_asking = threading.local()


class FakeImplCtx:
    """What a function under `register_fake` asks for sizes that depend on values."""

    def __init__(self, size):
        self._size = size

    def new_dynamic_size(self, *, min=0, max=None):
        """A size that is known only when the operator has run, from `min` to `max`."""
        check(min >= 0 and (max is None or max >= min), "new_dynamic_size", "0 <= min <= max", min, max, error=ValueError)
        return max if max is not None and max < min + self._size else min + self._size

    create_unbacked_symint = new_dynamic_size


def get_ctx():
    """Inside of a function under `register_fake`: what has `new_dynamic_size()`. None elsewhere."""
    return getattr(_asking, "ctx", None)


def told(fake, args, kwargs, size):
    """What a function under `register_fake` returns, sizes that depend on values being about `size`."""
    _asking.ctx = FakeImplCtx(size)
    try:
        return fake(*args, **kwargs)
    finally:
        _asking.ctx = None
