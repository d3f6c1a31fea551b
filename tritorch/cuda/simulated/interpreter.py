"""Runs a plain `@triton.jit` kernel on the host.

The kernel's source is parsed once, its few constructs that mean something else in Triton than in Python are rewritten (`and`,
`or`, `not`, assignments of numbers, assert), and the result runs in a namespace where `tl` is `language`, libdevice is
`libdevice` and every other jit function is its own rewritten self. Nothing of Triton is patched, so the same kernel object can be
compiled at any time, and file and line numbers stay those of the source.
"""
from __future__ import annotations

import ast
import builtins
import copy
import itertools
import operator
import re
import textwrap
import threading
import types

import numpy as np
import triton.language as tl
from triton.language.extra import libdevice as triton_libdevice
from triton.runtime.jit import JITFunction

from . import language
from .accesses import Descriptor, Origin, Program
from .conversions import INT1, INT32, INT64, TYPES, constant
from .libdevice import FUNCTIONS as LIBDEVICE
from .memory import MemoryFault
from .names import NAMES
from .values import Pointer, Value, to_value


class KernelError(RuntimeError):
    """A kernel did something its language does not allow; names the kernel, the line and the reason."""


# glibc gives freed blocks above 128 KiB back to the system at once, and taking them again costs more than computing on them.
# Freeing one block just under its 32 MiB limit makes it keep them: a kernel on blocks of 65536 elements takes 0.18 ms instead of 0.7.
np.empty(2**25 - 2**16, np.uint8)


# the rewriting

class Rewriter(ast.NodeTransformer):
    """New nodes take the place of the old in the source, so that errors name the right line."""

    def _call(self, node, name, *args):
        return ast.copy_location(ast.Call(ast.Name(name, ast.Load()), list(args), []), node)

    def visit_FunctionDef(self, node):
        node.decorator_list, node.returns = [], None
        for argument in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs):
            argument.annotation = None
        node.args.defaults, node.args.kw_defaults = [], [None] * len(node.args.kwonlyargs)
        return self.generic_visit(node)

    def visit_Assign(self, node):
        self.generic_visit(node)
        node.value = self._call(node.value, "__assigned", node.value)
        return node

    def visit_AugAssign(self, node):
        self.generic_visit(node)
        read = copy.copy(node.target)
        read.ctx = ast.Load()
        value = ast.copy_location(ast.BinOp(read, node.op, node.value), node)
        return ast.copy_location(ast.Assign([node.target], self._call(node, "__assigned", value)), node)

    def visit_AnnAssign(self, node):
        if "constexpr" in ast.unparse(node.annotation) or node.value is None:
            return self.generic_visit(node)
        return self.visit_Assign(ast.copy_location(ast.Assign([node.target], node.value), node))

    def visit_BoolOp(self, node):
        self.generic_visit(node)
        nothing = ast.arguments(posonlyargs=[], args=[], kwonlyargs=[], kw_defaults=[], defaults=[])
        name = "__and" if isinstance(node.op, ast.And) else "__or"
        return self._call(node, name, *(ast.copy_location(ast.Lambda(nothing, value), value) for value in node.values))

    def visit_UnaryOp(self, node):
        self.generic_visit(node)
        return self._call(node, "__not", node.operand) if isinstance(node.op, ast.Not) else node

    def visit_While(self, node):
        self.generic_visit(node)
        if node.orelse:
            return node
        test = ast.copy_location(ast.If(self._call(node.test, "__no", node.test), [ast.Break()], []), node.test)
        return ast.copy_location(ast.For(ast.Name("__turn", ast.Store()), self._call(node, "__turns"), [test, *node.body], []), node)

    def visit_Assert(self, node):
        self.generic_visit(node)
        return ast.copy_location(ast.Expr(self._call(node, "__assert", node.test, node.msg or ast.Constant(""))), node)


VALUES = {Value, Pointer}


def assigned(value):
    """Assigning a number makes it a scalar of the kernel; `x: tl.constexpr = …` keeps it a number."""
    if value.__class__ in VALUES:                                        # nearly always; kernels that unroll hold tuples of many
        return value
    if type(value) is tuple:
        return tuple([part if part.__class__ in VALUES else assigned(part) for part in value])
    return to_value(value) if isinstance(value, (bool, int, float)) else value


def _logical(short, combine):
    """`and` and `or`: constants decide at once, values are all evaluated and combined."""
    def function(*thunks):
        values = []
        for thunk in thunks:
            value = thunk()
            if isinstance(value, Value):
                values.append(value.cast(INT1, bitcast=value.dtype is not INT1))
            elif bool(value) is short:
                return value
        if not values:
            return value
        out = values[-1]
        for value in reversed(values[:-1]):
            out = combine(value, out)
        return out
    return function


def negated(value):
    return ~value.cast(INT1, bitcast=value.dtype is not INT1) if isinstance(value, Value) else not value


def turns():
    """The turns of a while loop, which end: programs run one after the other, so one that waits for another waits for ever."""
    yield from range(MANY_TURNS)
    raise RuntimeError(f"a while loop has not ended after {MANY_TURNS} turns; does it wait for a program that has not run?")


MANY_TURNS = 1_000_000


SYNTAX = {"__assigned": assigned, "__and": _logical(False, operator.and_), "__or": _logical(True, operator.or_), "__not": negated,
          "__assert": language.device_assert, "__turns": turns, "__no": lambda value: not value}
BUILTINS = {"range": language.range_, "min": language.minimum, "max": language.maximum, "print": print}


MISSING = object()
USER_CODE: dict = {}                                      # code object -> file, of every rewritten function that is not Triton's own


def code_objects(code):
    yield code
    for part in code.co_consts:
        if isinstance(part, types.CodeType):
            yield from code_objects(part)


class Function:
    """A jit function, rewritten: `run` is its body as a Python function."""

    made: dict = {}                                 # Python function -> Function

    @classmethod
    def of(cls, jit):
        found = cls.made.get(jit.fn)
        if found is None:
            found = cls.made[jit.fn] = cls(jit)     # known before its names are looked up: functions may call each other in a circle
            found.bind()
        return found

    def __init__(self, jit):
        fn = jit.fn
        lines, first = jit.raw_src, jit.starting_line_number
        skipped = next(i for i, line in enumerate(lines) if line.lstrip().startswith("def "))
        tree = Rewriter().visit(ast.parse(textwrap.dedent("".join(lines[skipped:]))))
        ast.increment_lineno(ast.fix_missing_locations(tree), first + skipped - 1)
        code = compile(tree, fn.__code__.co_filename, "exec")
        body = next(part for part in code.co_consts if isinstance(part, types.CodeType))
        codes = set(code_objects(body))
        if not fn.__module__.startswith("triton.language"):
            USER_CODE.update(dict.fromkeys(codes, fn.__code__.co_filename))
        self.globals, self.cells = fn.__globals__, dict(zip(fn.__code__.co_freevars, fn.__closure__ or ()))
        self.names = sorted({name for c in codes for name in c.co_names} - set(SYNTAX))
        self.namespace = {"__builtins__": builtins} | SYNTAX
        self.run = types.FunctionType(body, self.namespace, fn.__name__, tuple(map(convert, fn.__defaults__ or ())))
        self.run.__kwdefaults__ = {name: convert(value) for name, value in (fn.__kwdefaults__ or {}).items()}

    def bind(self):
        """Give every outer name its meaning on the host; done again when the module's own binding changed."""
        self.bound = [(name, self.globals.get(name, MISSING)) for name in self.names if name not in self.cells]
        self.closed = [(cell, cell.cell_contents) for cell in self.cells.values()]
        inner = zip(self.cells, (value for _, value in self.closed))
        for name, value in (*self.bound, *inner):
            if value is not MISSING:
                self.namespace[name] = convert(value)
            elif name in BUILTINS:
                self.namespace[name] = BUILTINS[name]

    def current(self):
        """The function to run, bound anew if an outer name of its own changed (those of functions it calls are not looked at)."""
        changed = any(self.globals.get(name, MISSING) is not value for name, value in self.bound)
        if changed or any(cell.cell_contents is not value for cell, value in self.closed):
            self.bind()
        return self.run


# what the names of a kernel's module mean on the host

class Namespace:
    """A module whose functions are replaced where we have our own; the rest is converted as it is asked for, once for Triton's modules."""

    def __init__(self, module, ours=None, otherwise=None):
        self.__dict__.update(ours or {})
        self._module, self._otherwise, self._fixed = module, otherwise, ours is not None

    def __getattr__(self, name):
        value = getattr(self._module, name)
        value = self._otherwise(name) if self._otherwise and callable(value) else convert(value)
        if self._fixed:
            setattr(self, name, value)
        return value


LANGUAGE_MODULES = (tl, tl.core, tl.math, tl.standard, tl.random)
LIBDEVICE_MODULES = (triton_libdevice, tl.extra.cuda.libdevice)
LIBDEVICE_NAMES = tuple(module.__name__ for module in LIBDEVICE_MODULES)
MEANING = {id(getattr(module, name)): ours for modules, table in ((LANGUAGE_MODULES, NAMES), (LIBDEVICE_MODULES, LIBDEVICE))
           for module in modules for name, ours in table.items() if hasattr(module, name)}
MEANING |= {id(module): Namespace(module, NAMES) for module in LANGUAGE_MODULES}
MEANING |= {id(module): Namespace(module, LIBDEVICE, language.refused) for module in LIBDEVICE_MODULES}


def convert(value):
    """What a value of the world outside is inside a running kernel."""
    ours = MEANING.get(id(value))
    if ours is not None:
        return ours
    if isinstance(value, JITFunction):
        return Function.of(value).run
    if isinstance(value, tl.constexpr):
        return convert(value.value)
    if isinstance(value, tuple):
        items = map(convert, value)
        return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
    if isinstance(value, types.ModuleType):
        return Namespace(value)
    if hasattr(tl.core, "JITCallable") and isinstance(value, tl.core.JITCallable):
        return value.fn                             # a constexpr_function: plain Python on plain numbers
    if isinstance(getattr(value, "fn", None), JITFunction):
        return convert(value.fn)                    # autotune and heuristics around a kernel
    if isinstance(value, types.FunctionType) and value.__module__ in LIBDEVICE_NAMES:
        return LIBDEVICE.get(value.__name__) or language.refused(value.__name__)     # of a second copy of the module: Triton goes by names
    if getattr(value, "__triton_builtin__", False):
        return NAMES.get(value.__name__) or language.refused(value.__name__)
    return value


# launching

SCALARS = {"i1": INT1, "u1": INT1, "i8": tl.int8, "i16": tl.int16, "i32": INT32, "i64": INT64, "u8": tl.uint8, "u16": tl.uint16,
           "u32": tl.uint32, "u64": tl.uint64, "f16": tl.float16, "f32": tl.float32, "f64": tl.float64} | TYPES


def pointer_maker(spelling, name):
    dtype = tl.pointer_type(SCALARS[spelling.lstrip("*k")])
    return lambda address: Pointer(int(address), dtype, Origin(name, int(address)))


def descriptor_maker(spelling, name):
    element, block = re.fullmatch(r"tensordesc<(\w+)\[([\d, ]+)\].*>", spelling).groups()
    dtype, block = tl.pointer_type(SCALARS[element]), [int(b) for b in block.split(",")]
    return lambda d: Descriptor(Pointer(int(d.ptr), dtype, Origin(name, int(d.ptr))), d.shape, d.strides, block,
                                getattr(d, "padding", "zero"), getattr(d, "round_f32_to_tf32", False))


def maker(spelling, name):
    """A function from a launch value to the kernel's argument, for one type of a signature."""
    if spelling.startswith("*"):
        return pointer_maker(spelling, name)
    if spelling.startswith("tensordesc"):
        return descriptor_maker(spelling, name)
    dtype = SCALARS[spelling]
    return lambda number: Value(constant(number, dtype), dtype)


class Kernel:
    """A kernel with the types of its arguments and its constants, ready to run."""

    def __init__(self, jit, signature, constexprs):
        self.name, self.function = jit.fn.__name__, Function.of(jit)
        self.makers = []
        self.plan = [self._leaf(signature.get(p.name, "constexpr"), p.name, (i,), constexprs, p) for i, p in enumerate(jit.params)]

    def _leaf(self, spelling, name, path, constexprs, param):
        """A constant, or None for a value, or a tuple of them."""
        if isinstance(spelling, (tuple, list)):
            return tuple(self._leaf(s, f"{name}[{i}]", (*path, i), constexprs, param) for i, s in enumerate(spelling))
        if spelling != "constexpr":
            self.makers.append(maker(spelling, name))
            return MISSING
        if path in constexprs:
            return Constant(convert(constexprs[path]))
        return Constant(convert(constexprs[name] if name in constexprs else param.default))

    def arguments(self, values):
        made = (make(value) for make, value in zip(self.makers, values))

        def filled(leaf):
            if leaf is MISSING:
                return next(made)
            return tuple(map(filled, leaf)) if type(leaf) is tuple else leaf.value
        return [filled(leaf) for leaf in self.plan]

    def run(self, grid, values, memory, random):
        """Every program of the grid, one after the other in an order that `random` draws."""
        with LOCK, np.errstate(all="ignore"):
            Program.memory, Program.grid = memory, grid
            try:
                arguments, function = self.arguments(values), self.function.current()
                for Program.index in in_any_order(grid, random):
                    function(*arguments)
            except MemoryFault as fault:
                raise MemoryFault(f"{self.place(fault)}: {fault}") from fault
            except Exception as error:
                raise KernelError(f"{self.place(error)}: {type(error).__name__}: {error}") from error

    def place(self, error):
        """The kernel and the line of its source where it stopped."""
        line, trace = None, error.__traceback__
        while trace is not None:
            if trace.tb_frame.f_code in USER_CODE:
                line = f"{USER_CODE[trace.tb_frame.f_code]}:{trace.tb_lineno}"
            trace = trace.tb_next
        where = f"{line}, " if line else ""
        return f"{self.name} ({where}program {Program.index} of {Program.grid})"


class Constant:
    __slots__ = ("value",)

    def __init__(self, value):
        self.value = value


LOCK = threading.RLock()
SHUFFLED = 65536


def in_any_order(grid, random):
    indices = itertools.product(*map(range, grid))
    if 1 < grid[0] * grid[1] * grid[2] <= SHUFFLED:
        indices = list(indices)
        random.shuffle(indices)
    return indices
