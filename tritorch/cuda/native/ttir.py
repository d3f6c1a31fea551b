"""TTIR, the text that Triton's frontend makes of a kernel, as objects.

    %y = arith.addf %x, %x : tensor<128xf32> loc(#loc7)

is an `Op` with the name "arith.addf", two operands and one result, which are `Value`s: a value knows its type and who uses it.
"""
from __future__ import annotations

import re
from dataclasses import dataclass, field

BITS = {"f64": 64, "f32": 32, "f16": 16, "bf16": 16, "ptr": 64, "index": 64}


@dataclass(frozen=True)
class Type:
    """`shape` is () for a scalar; `element` is "f32", "i1", "bf16", "f8E5M2", …, or "ptr" with the type that it points to."""

    shape: tuple[int, ...]
    element: str
    pointee: str = ""

    @property
    def size(self):
        size = 1
        for n in self.shape:
            size *= n
        return size

    @property
    def bits(self):
        return BITS.get(self.element) or (8 if self.element.startswith("f8") else int(self.element[1:]))

    @property
    def is_float(self):
        return self.element[0] in "fb"

    def of(self, element, pointee=""):
        return Type(self.shape, element, pointee)

    def scalar(self):
        return Type((), self.element, self.pointee)


@dataclass(eq=False)
class Value:
    name: str
    type: Type
    op: Op | None = None                    # who made it; None for arguments of a block
    users: list = field(default_factory=list)


@dataclass(eq=False)
class Op:
    name: str
    operands: list
    results: list
    text: str                               # the line, for what else a rule wants to know
    attributes: dict = field(default_factory=dict)
    regions: list = field(default_factory=list)
    successors: list = field(default_factory=list)      # (label, values) of branches
    where: str = ""                         # "file.py:12"


@dataclass(eq=False)
class Block:
    label: str
    arguments: list
    ops: list = field(default_factory=list)


@dataclass
class Function:
    name: str
    arguments: list
    blocks: list


class Unreadable(ValueError):
    """A text that is not the TTIR that this file knows."""


# types
def split(text, separator=","):
    """The parts of a text, at separators outside of brackets."""
    parts, depth, start, i = [], 0, 0, 0
    while i < len(text):
        if text[i] in "<({[":
            depth += 1
        elif text[i] in ">)}]" and text[i - 1:i + 1] != "->":
            depth -= 1
        elif depth == 0 and text.startswith(separator, i):
            parts.append(text[start:i].strip())
            start = i + len(separator)
        i += 1
    parts.append(text[start:].strip())
    return [part for part in parts if part]


def type_of(text):
    text = text.strip()
    if text.startswith("tensor<"):
        sizes, _, element = re.fullmatch(r"tensor<((\d+x)*)(.*)>", text).groups()
        inner = type_of(element)
        return Type(tuple(int(n) for n in sizes.split("x") if n), inner.element, inner.pointee)
    if text.startswith("!tt.ptr<"):
        return Type((), "ptr", split(text[8:-1])[0])
    if re.fullmatch(r"i\d+|f\d+\w*|bf16|index", text):
        return Type((), text)
    raise Unreadable(f"the type {text}")


def types_of(text):
    text = text.strip()
    return [type_of(part) for part in split(text[1:-1] if text.startswith("(") else text)]


# places
def balanced(text, start):
    """The index behind the bracket that closes the one at `start`."""
    depth, quoted = 0, False
    for i in range(start, len(text)):
        if text[i] == '"':
            quoted = not quoted
        elif quoted:
            continue
        elif text[i] in "(<{[":
            depth += 1
        elif text[i] in ")]}>" and text[i - 1:i + 1] != "->":
            depth -= 1
            if depth == 0:
                return i + 1
    raise Unreadable(text)


def without_places(line):
    """A line without its `loc(…)`s, and the last of them."""
    place = ""
    while (at := line.rfind(" loc(")) >= 0:
        end = balanced(line, at + 4)
        place = place or line[at + 5:end - 1]
        line = line[:at] + line[end:]
    return line, place


class Places:
    """What #loc7 says: the innermost file and line of it."""

    def __init__(self, lines):
        self.known = {}
        for line in lines:
            if line.startswith("#loc"):
                name, _, text = line.partition(" = loc(")
                self.known[name] = text.rstrip()[:-1]

    def __call__(self, text, depth=0):
        found = re.search(r'"([^"]*)":(\d+):\d+', text)
        if found:
            return f"{found[1]}:{found[2]}"
        for name in re.findall(r"#loc\d*", text) if depth < 20 else ():
            place = self(self.known.get(name, ""), depth + 1)
            if place:
                return place
        return ""


# operators
NAME = re.compile(r"%[\w$.-]+(?:#\d+)?")
WITH_REGION = ("scf.for", "scf.if", "scf.while")


def result_types(name, text, operands):
    """The types of the results, from what stands behind the colon."""
    parts = split(text, " : ")
    last = parts[-1] if len(parts) > 1 else ""
    arrow = split(parts[-1], " -> ")
    if len(arrow) == 2:
        return types_of(arrow[1]) * (2 if name == "tt.split" else 1)
    cast = split(last, " to ")
    if len(cast) == 2:
        return types_of(cast[1])
    if name == "arith.constant" and not last:
        return [Type((), "i1")]                                 # `arith.constant true`
    kinds = types_of(last)
    if name in ("arith.cmpi", "arith.cmpf"):
        return [kinds[0].of("i1")]
    if name == "tt.load":
        found = type_of(kinds[0].pointee)
        return [Type(kinds[0].shape, found.element, found.pointee)]
    if name == "tt.addptr":
        return [kinds[0]]
    return [kinds[-1]]


def attributes_of(text):
    """{axis = 1 : i32, reverse = false, order = array<i32: 1, 0>, symbol = "x"} and `key = word` outside of braces."""
    found = {}
    for key, value in re.findall(r'(\w+) = (array<[^>]*>|dense<[^>]*>|"[^"]*"|[\w.+-]+)', text):
        if value.startswith("array<"):
            found[key] = [int(n) for n in re.findall(r"-?\d+", value.partition(":")[2])]
        elif value.startswith('"'):
            found[key] = value[1:-1]
        elif re.fullmatch(r"-?\d+", value):
            found[key] = int(value)
        else:
            found[key] = {"true": True, "false": False}.get(value, value)
    return found


class Parser:
    """One function. `self.values` has what is visible by name; names are unique in a function."""

    def __init__(self, text):
        self.lines = text.splitlines()
        self.places, self.at, self.values = Places(self.lines), 0, {}

    def module(self):
        functions = []
        while self.at < len(self.lines):
            line = self.lines[self.at].strip()
            if line.startswith("tt.func "):
                functions.append(self.function())
            else:
                self.at += 1
        return functions

    def next(self):
        line, place = without_places(self.lines[self.at].rstrip())
        self.at += 1
        return line.strip(), place

    def function(self):
        line, _ = self.next()
        self.values = {}
        name = re.search(r"@([\w$.-]+|\"[^\"]*\")\(", line)
        start = name.end() - 1
        inside = line[start + 1:balanced(line, start) - 1]
        arguments = []
        for part in split(inside):
            register, _, kind = part.partition(": ")
            kind = kind.partition(" {")[0]
            arguments.append(self.value(register, type_of(kind)))
        return Function(name[1].strip('"'), arguments, self.blocks())

    def value(self, name, kind, op=None):
        self.values[name] = value = Value(name, kind, op)
        return value

    def blocks(self):
        """Up to the closing brace, which is left to be read again where something follows it."""
        blocks = [Block("", [])]
        while True:
            text = self.lines[self.at].strip()
            if text.startswith("}"):
                self.at += 1
                self.closing = without_places(text)[0]
                return blocks
            if not text or text.startswith("//"):
                self.at += 1
            elif text.startswith("^"):
                line, _ = self.next()
                line = line.partition("  //")[0].rstrip()
                label = re.match(r"\^\w+", line)[0]
                inside = line[len(label):].rstrip(":").strip()
                arguments = [self.value(*(p.strip() for p in part.split(": ", 1))) for part in split(inside[1:-1])] if inside else []
                for argument in arguments:
                    argument.type = type_of(argument.type)
                if blocks[-1].ops or blocks[-1].label:
                    blocks.append(Block(label, arguments))
                else:
                    blocks[-1].label, blocks[-1].arguments = label, arguments
            else:
                blocks[-1].ops.append(self.op())

    def op(self):
        line, place = self.next()
        left, equals, rest = line.partition(" = ")
        if not (equals and left.startswith("%")):
            left, rest = "", line
        names = []
        for part in split(left):
            base, _, count = part.partition(":")
            names += [f"{base}#{i}" for i in range(int(count))] if count else [base]
        name, _, text = rest.partition(" ")
        name, opened = name.strip('"').partition('"')[0], name
        if opened.startswith('"'):
            name = re.match(r'"([\w.]+)"', opened)[1]
            text = rest[len(name) + 2:]
        if "(" in name:                                         # scf.condition(%c) %x
            name, _, text = rest.partition("(")
        op = Op(name, [], [], rest, where=self.places(place))
        if name in WITH_REGION:
            kinds = getattr(self, name[4:] + "_")(op, text)
        elif text.rstrip().endswith("({"):
            kinds = self.regions(op, text)
        else:
            kinds = self.plain(op, text, bool(names))
        if len(kinds) != len(names):
            raise Unreadable(f"{line}: {len(names)} results and {len(kinds)} types")
        op.results = [self.value(n, kind, op) for n, kind in zip(names, kinds)]
        if len(names) == 1 and names[0].endswith("#0"):
            self.values[names[0][:-2]] = op.results[0]
        return op

    def use(self, op, names):
        for name in names:
            value = self.values[name]
            op.operands.append(value)
            value.users.append(op)

    def plain(self, op, text, has_results):
        if op.name.startswith("cf."):
            for label, inside in re.findall(r"(\^\w+)(?:\(([^)]*)\))?", text):
                values = [self.values[n] for n in NAME.findall(inside.partition(" : ")[0])]
                for value in values:
                    value.users.append(op)
                op.successors.append((label, values))
            text = text.partition("^")[0]
        self.use(op, NAME.findall(re.sub(r'"[^"]*"', "", text)))
        op.attributes = attributes_of(text)
        return result_types(op.name, text, op.operands) if has_results else []

    def regions(self, op, text):
        """"tt.reduce"(%x) <{axis = 0 : i32}> ({ ^bb0(…): … }) : (tensor<…>) -> f32"""
        self.use(op, NAME.findall(text))
        op.attributes = attributes_of(text)
        op.regions.append(self.blocks())
        return types_of(split(self.closing.partition(" : ")[2], " -> ")[1]) if " -> " in self.closing else []

    def for_(self, op, text):
        head = re.match(r"(?:unsigned )?(%\S+) = (%\S+) to (%\S+) step (%\S+)", text)
        self.use(op, head.groups()[1:])
        op.attributes["unsigned"] = text.startswith("unsigned ")
        carried, kinds = [], []
        if "iter_args(" in text:
            start = text.index("iter_args(") + 9
            end = balanced(text, start)
            pairs = [part.split(" = ") for part in split(text[start + 1:end - 1])]
            kinds = types_of(split(text[end:].split(" -> ", 1)[1].rpartition(" {")[0], " : ")[0])
            self.use(op, [initial for _, initial in pairs])
            carried = [self.value(n, kind) for (n, _), kind in zip(pairs, kinds)]
        counter = self.value(head[1], op.operands[0].type)
        blocks = self.blocks()
        blocks[0].arguments = [counter, *carried]
        op.regions.append(blocks)
        return kinds

    def if_(self, op, text):
        condition = text.split()[0]
        self.use(op, [condition])
        kinds = types_of(text.partition(" -> ")[2].rpartition(" {")[0]) if " -> " in text else []
        op.regions.append(self.blocks())
        if self.closing.startswith("} else"):
            op.regions.append(self.blocks())
        return kinds

    def while_(self, op, text):
        inside = text[1:balanced(text, 0) - 1] if text.startswith("(") else ""
        pairs = [part.split(" = ") for part in split(inside)]
        before, after = split(text.rpartition(" {")[0].partition(": ")[2], " -> ")
        self.use(op, [initial for _, initial in pairs])
        carried = [self.value(n, kind) for (n, _), kind in zip(pairs, types_of(before))]
        first = self.blocks()
        first[0].arguments = carried
        op.regions += [first, self.blocks()]
        return types_of(after)


def parse(text):
    """The functions of a module; raises Unreadable."""
    return Parser(text).module()
