"""Graphs as the text of Python functions."""
import enum
import inspect
import keyword
import math
import operator
import re
import sys
import types
import typing
from dataclasses import dataclass
from typing import Any, NamedTuple

from tritorch.device import device
from tritorch.dtype import dtype
from tritorch.fx import _pytree as fx_pytree
from tritorch.fx.names import _get_qualified_name, _type_repr, abbreviated, is_ours, reserved
from tritorch.fx.node import Node
from tritorch.layout import layout
from tritorch.memory_format import memory_format
from tritorch.ops.namespaces import OpOverload
from tritorch.tensor import Tensor
from tritorch.utils import _pytree as pytree

OURS = sys.modules["tritorch"]
# names that generated functions use, with the statement that makes each of them
BUILTINS = {"tritorch": ("import tritorch", OURS), "torch": ("import tritorch as torch", OURS), "operator": ("import operator", operator),
            "NoneType": ("NoneType = type(None)", type(None)),
            "fx_pytree": ("import tritorch.fx._pytree as fx_pytree", fx_pytree),
            "pytree": ("import tritorch.utils._pytree as pytree", pytree)}
reserved.update({name: value for name, (_, value) in BUILTINS.items()})
_binary = {"add": "+", "sub": "-", "mul": "*", "floordiv": "//", "truediv": "/", "mod": "%", "pow": "**", "lshift": "<<", "rshift": ">>",
           "and_": "&", "or_": "|", "xor": "^", "matmul": "@"}
reflectable_magic_methods = {**{name: f"{{}} {sign} {{}}" for name, sign in _binary.items()}, "getitem": "{}[{}]"}
magic_methods = {**{name: f"{{}} {sign} {{}}" for name, sign in
                    {"eq": "==", "ne": "!=", "lt": "<", "gt": ">", "le": "<=", "ge": ">="}.items()},
                 "pos": "+{}", "neg": "-{}", "invert": "~{}", **reflectable_magic_methods}
inplace_methods = {**{f"i{name.rstrip('_')}": f"{{}} {sign}= {{}}" for name, sign in _binary.items()}, "setitem": "{}[{}] = {}"}
COLORS = {"red": "\033[31m", "blue": "\033[34m", "dim": "\033[2m"}


@dataclass
class PythonCode:
    """A generated function: its text, what it reads from its globals, and the number of the node by lines from its head on."""

    src: str
    globals: dict[str, Any]
    _lineno_map: dict[int, int | None] | None = None
    _prologue_start: int = 0


def _format_target(base, target):
    """`base.target`, by getattr where a part of the name is none in Python."""
    for name in target.split("."):
        base = f"{base}.{name}" if name.isidentifier() and not keyword.iskeyword(name) else f'getattr({base}, "{name}")'
    return base


def _name(parameter):
    """The name of a parameter given with its annotation and default."""
    return re.split("[:=]", parameter)[0].strip(" *")


def _in_order(parameters, keyword_only):
    """Parameters as Python takes them: after *args those that are given by keyword alone, as are those without a default that come after
    one with a default."""
    kinds = [len(text) - len(text.lstrip("*")) for text in parameters]
    first = next((k for k, text in enumerate(parameters) if "=" in text), len(parameters))
    late = [text for k, text in enumerate(parameters) if not kinds[k] and (
        1 in kinds and _name(text) in keyword_only or k > first and "=" not in text)]
    plain = [text for k, text in enumerate(parameters) if not kinds[k] and text not in late]
    stars = [text for k, text in enumerate(parameters) if kinds[k] == 1] or ["*"] * bool(late)
    return [*plain, *stars, *late, *[text for k, text in enumerate(parameters) if kinds[k] == 2]]


def _called(method, *args, **options):
    """What a method returns that subclasses may have written without some of the options."""
    known = inspect.signature(method).parameters
    return method(*args, **{name: value for name, value in options.items() if name in known})


class CodeGen:
    """What writes the code of a graph: subclasses change the head, the return statement and how containers go in and out."""

    def __init__(self):
        self._body_transformer, self._func_name, self.keyword_only = None, "forward", ()

    def gen_fn_def(self, free_vars, maybe_return_annotation, *, expanded_def=False):
        """The head of the function of these parameters, as texts; `expanded_def`: one a line."""
        inputs = ["self", *_in_order(free_vars, self.keyword_only)]
        listed = "\n" + "".join(f"    {text},\n" for text in inputs) if expanded_def else ", ".join(inputs)
        return f"def {self._func_name}({listed}){maybe_return_annotation}:"

    def generate_output(self, output_args, *, repr_fn=repr):
        """The return statement."""
        return f"return {repr_fn(output_args)}"

    def process_inputs(self, *args):
        """The values of the placeholders for the arguments."""
        return args

    def process_outputs(self, outputs):
        """What is returned for the value of the output."""
        return outputs

    def additional_globals(self):
        """More names and values that the code uses."""
        return []

    def _gen_python_code(self, nodes, root_module, namespace, **options):
        writer = _Writer(self, nodes, root_module, namespace, **options)
        return writer.write()


class _PyTreeInfo(NamedTuple):
    """The parameters of a function, and the forms of its arguments and of what it returns."""

    orig_args: list[str]
    in_spec: Any
    out_spec: Any


class _PyTreeCodeGen(CodeGen):
    """Writes functions that take their arguments apart first and put together what they return."""

    def __init__(self, pytree_info):
        super().__init__()
        self.pytree_info = pytree_info

    def process_inputs(self, *args):
        return self.pytree_info.in_spec.flatten_up_to(args)

    def process_outputs(self, outputs):
        spec = self.pytree_info.out_spec
        return outputs if spec is None else spec.unflatten(outputs if isinstance(outputs, (list, tuple)) else [outputs])

    def gen_fn_def(self, free_vars, maybe_return_annotation, *, expanded_def=False):
        inputs, texts = [], iter(free_vars)
        for name, spec in zip(self.pytree_info.orig_args, self.pytree_info.in_spec.children_specs):
            leaves = [next(texts) for _ in range(spec.num_leaves)]
            inputs.append(leaves[0].replace(_name(leaves[0]), _name(name), 1) if spec.is_leaf() else name)
        head = super().gen_fn_def(inputs, maybe_return_annotation, expanded_def=expanded_def)
        if not free_vars:
            return head
        leaves, given = ", ".join(map(_name, free_vars)), ", ".join(map(_name, inputs))
        return f"{head}\n    {leaves}, = fx_pytree.tree_flatten_spec(({given},), self._in_spec)"

    def generate_output(self, output_args, *, repr_fn=repr):
        if self.pytree_info.out_spec is None:
            return super().generate_output(output_args, repr_fn=repr_fn)
        return f"return pytree.tree_unflatten({repr_fn(output_args)}, self._out_spec)"


class _Writer:
    """The text of one function in the making."""

    def __init__(self, codegen, nodes, root_module, namespace, *, verbose=False, include_stride=False, include_device=False, colored=False,
                 expanded_def=False, additional_meta=None):
        self.codegen, self.nodes, self.root_module, self.namespace, self.verbose = codegen, nodes, root_module, namespace, verbose
        self.include_stride, self.include_device, self.colored, self.expanded_def = include_stride, include_device, colored, expanded_def
        self.additional_meta, self.returns, self.place = additional_meta or (), "", ""
        self.inputs, self.body, self.globals, self.wrapped, self.last = [], [], {}, {}, {}
        seen = set()
        for user in reversed(nodes):
            for node in user._input_nodes:
                if node not in seen:
                    seen.add(node)
                    self.last.setdefault(user, []).append(node)

    def write(self):
        for node in self.nodes:                                          # names of parameters are taken, whatever the nodes are called
            if node.op == "placeholder":
                name = node.target.lstrip("*")
                self.namespace.used.add(name)
                if name == node.name:
                    self.namespace.names[node] = name
        for name, (_, value) in BUILTINS.items():
            name = self.namespace.create_name(name, None) if name in self.namespace.used else name
            self.namespace.used.add(name)
            self.namespace.names.setdefault(value, name)
            self.globals[name] = value
        self.ours = self.namespace.names[OURS]
        for k, node in enumerate(self.nodes):
            if self.verbose:
                self.tell_place(node)
            self.body.append(f"# COUNTER: {k}\n")
            self.emit(node)
        body = self.body or ["pass\n"]
        marks = [f'{self.ours}.fx.wrap("{name}")' for name in self.wrapped]
        if self.codegen._body_transformer:
            body = self.codegen._body_transformer(body)
        for name, value in self.codegen.additional_globals():
            self.add_global(name, value)
        head = _called(self.codegen.gen_fn_def, self.inputs, self.returns, expanded_def=self.expanded_def)
        lines, numbers, number = [], {}, None
        for line in "".join(body).split("\n"):
            counter = re.search(r"# COUNTER: (\d+)", line)
            if counter:
                number = int(counter.group(1))
            else:
                numbers[len(lines) + head.count("\n") + 1] = number
                lines.append(line)
        code = "\n".join(["    " + line for line in "\n".join(lines).lstrip("\n").split("\n")])
        wraps = "\n".join(marks)
        return PythonCode(f"\n{wraps}\n\n{head}\n{code}", self.globals, numbers, wraps.count("\n") + 4)

    # -------------------------------------------------------------- names and values
    def add_global(self, hint, obj):
        """The name by which the code reaches an object: from `tritorch` on if it is there, else as a global of its own."""
        if is_ours(obj):
            return self.ours + _get_qualified_name(obj).removeprefix("tritorch")
        name = self.namespace.create_name(hint, obj)
        self.globals[name] = obj
        return name

    def type_repr(self, kind):
        """An annotation as text."""
        if isinstance(kind, (str, int, bytes, tuple)) or kind is ...:
            return "..." if kind is ... else repr(kind)
        if isinstance(kind, list):
            return f"[{', '.join(map(self.type_repr, kind))}]"
        if isinstance(kind, types.UnionType):
            return " | ".join(map(self.type_repr, typing.get_args(kind)))
        origin, inner = typing.get_origin(kind), typing.get_args(kind)
        if origin is None or not inner:
            return self.add_global(_type_repr(kind), kind)
        name = self.add_global("Union", typing.Union) if origin is typing.Union else self.add_global(_type_repr(origin), origin)
        return f"{name}[{', '.join(map(self.type_repr, inner))}]"

    def repr(self, arg):
        """An argument as text."""
        if isinstance(arg, Node):
            return repr(arg)
        if isinstance(arg, tuple) and hasattr(arg, "_fields"):
            return f"{self.add_global(_get_qualified_name(type(arg)), type(arg))}({', '.join(map(self.repr, arg))})"
        if isinstance(arg, (OpOverload, type)):
            return self.add_global(_get_qualified_name(arg), arg)
        if isinstance(arg, enum.Enum):
            return f"{self.add_global(type(arg).__name__, type(arg))}.{arg.name}"
        if isinstance(arg, Tensor):
            return f"{self.ours}.Tensor(size={list(arg.shape)}, dtype={arg.dtype.name})"
        if isinstance(arg, tuple):
            return f"({', '.join(map(self.repr, arg))}{',' if len(arg) == 1 else ''})"
        if isinstance(arg, list):
            return f"[{', '.join(map(self.repr, arg))}]"
        if isinstance(arg, dict):
            return "{" + ", ".join(f"{self.repr(key)}: {self.repr(value)}" for key, value in arg.items()) + "}"
        if isinstance(arg, slice):
            return f"slice({self.repr(arg.start)}, {self.repr(arg.stop)}, {self.repr(arg.step)})"
        text = repr(arg)
        if isinstance(arg, float) and not math.isfinite(arg):
            text = f"float({text!r})"
        elif isinstance(arg, (device, dtype, layout, memory_format)):
            text = f"{self.ours}.{text if isinstance(arg, device) else arg.name}"
        return self.paint("blue", text)

    def paint(self, color, text):
        return f"{COLORS[color]}{text}\033[0m" if self.colored else text

    def arguments(self, args, kwargs):
        return ", ".join([*map(self.repr, args), *[f"{key} = {self.repr(value)}" for key, value in kwargs.items()]])

    # -------------------------------------------------------------- lines
    def tell_place(self, node):
        """A comment that says where the program made the nodes that follow."""
        if node.op in ("placeholder", "output"):
            return
        known = ", ".join(f"{key}: {node.meta[key]}" for key in self.additional_meta if key in node.meta)
        lines = (node.stack_trace or "").strip().split("\n")
        place = re.match(r'File "(.+)", line (\d+), in (.+)$', lines[-2].strip()) if len(lines) > 1 else None
        found = f"File: {place.group(1)}:{place.group(2)} in {place.group(3)}, code: {lines[-1].strip()}" if place else ""
        text = " # ".join(filter(None, (known, found)))
        if text != self.place:
            self.place = text
            self.body.append(f"\n{self.paint('dim', f'# {text}')}\n" if text else "\n")

    def annotation(self, node):
        """What is known of a node's value, as an annotation."""
        value = node.meta.get("val", node.meta.get("tensor_meta", node.meta.get("example_value"))) if self.verbose else None
        if isinstance(value, Tensor) or hasattr(value, "dtype") and hasattr(value, "shape"):
            stride = value.stride() if callable(value.stride) else value.stride
            sizes = node.meta.get("sizes")                               # of exported graphs: names of those that are dynamic
            shown = str(list(value.shape)) if sizes is None else f"[{', '.join(sizes)}]"
            facts = self.paint("red", abbreviated(value.dtype)) + self.paint("blue", shown)
            facts += self.paint("dim", str(list(stride))) if self.include_stride else ""
            return f': "{facts}{value.device if self.include_device and hasattr(value, "device") else ""}"'
        if isinstance(value, int) and "sizes" in node.meta:
            return f': "Sym({node.meta["sizes"]})"'
        return "" if node.type is None else f" : {self.type_repr(node.type)}"

    def emit(self, node):
        """The lines of a node, and of what nobody needs after it."""
        if node.op == "placeholder":
            default = f" = {self.repr(node.args[0])}" if node.args else ""
            name = node.target.lstrip("*")
            self.inputs.append(f"{node.target}{self.annotation(node)}{default}")
            self.body.append(f"{node!r} = {name}\n" if name != repr(node) else "")
        elif node.op == "output":
            self.returns = "" if node.type is None else f" -> {self.type_repr(node.type)}"
            self.body.append(_called(self.codegen.generate_output, node.args[0], repr_fn=self.repr) + "\n")
        else:
            before, value = self.expression(node)
            gone = [*self.last.get(node, ()), *([] if node.users else [node])]
            gone = f";  {self.paint('dim', ' = '.join([*map(repr, gone), 'None']))}" if gone else ""
            self.body.append(f"{before}{node!r}{self.annotation(node)} = {value}{gone}\n")

    def expression(self, node):
        """(a statement that comes before, the text of the node's value)"""
        args, kwargs = node.args, node.kwargs
        if node.op == "get_attr":
            return "", _format_target(self.root_module, node.target)
        if node.op == "call_module":
            return "", f"{_format_target(self.root_module, node.target)}({self.arguments(args, kwargs)})"
        if node.op == "call_method":
            return "", f"{_format_target(self.repr(args[0]), node.target)}({self.arguments(args[1:], kwargs)})"
        name = getattr(node.target, "__name__", "")
        if getattr(node.target, "__module__", "") == "_operator":
            if name in magic_methods:
                return "", magic_methods[name].format(*map(self.repr, args))
            if name in inplace_methods:
                return inplace_methods[name].format(*map(self.repr, args)) + ";  ", self.repr(args[0])
            return "", f"{self.add_global('operator', operator)}.{name}({self.arguments(args, kwargs)})"
        if node.target is getattr and len(args) == 2 and isinstance(args[1], str):
            return "", _format_target(self.repr(args[0]), args[1])
        name = self.add_global(_get_qualified_name(node.target), node.target)
        if node.meta.get("is_wrapped"):
            self.wrapped[name] = None
        return "", f"{name}({self.arguments(args, kwargs)})"


def import_block(code):
    """The import statements that make the globals of a generated function, a `PythonCode`.

    Errors: RuntimeError for one that is no name of a module's, as of a function inside of another.
    """
    lines = set()
    for name, obj in code.globals.items():
        if not re.search(rf"\b{name}\b", code.src):
            continue
        if name in BUILTINS:
            lines.add(BUILTINS[name][0])
        elif inspect.ismodule(obj):
            lines.add(f"import {obj.__name__} as {name}")
        else:
            lines.add(f"from {_module_of(obj)} import {obj.__qualname__} as {name}")
    return "\n".join(sorted(lines, key=lambda line: (" = " in line, line))) + "\n"


def _module_of(obj):
    module, name = getattr(obj, "__module__", None), getattr(obj, "__qualname__", "")
    if module is None or not inspect.getattr_static(sys.modules.get(module), name, None):
        raise RuntimeError(f"fx: expected functions in the graph that a module has, to write their imports, got {obj!r}")
    return module
