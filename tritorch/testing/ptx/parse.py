"""PTX text -> Program. Only what Triton and its inline assembly write is understood; anything else raises."""
import functools
import re
from dataclasses import dataclass, field

from tritorch.testing.ptx import registry
from tritorch.testing.ptx.operands import DTYPES, Address, Block, Label, Not, Number, Pair, Register, Sink, Special, Symbol, Vector

SHARED_BASE = 1024                      # hardware reserves the first kilobyte; so a null pointer is not a valid address here either
_PARAMETERS = {80: 0x160, 90: 0x210}    # where they begin in constant memory: offsets count from there, alignments do not
_SPECIAL = re.compile(r"%(tid|ntid|ctaid|nctaid|cluster_ctaid|cluster_nctaid|clusterid|nclusterid)\.[xyz]$|"
                      r"%(laneid|warpid|cluster_ctarank|cluster_nctarank|clock|clock64|globaltimer|globaltimer_lo|smid|lanemask_\w+)$")
_WORD = re.compile(r"[A-Za-z_$][\w$]*$")
_NUMBER = re.compile(r"-?(0[xX][0-9a-fA-F]+|0[fFdD][0-9a-fA-F]+|\d+(\.\d*)?)U?$")


class ParseError(ValueError):
    """This is no PTX that the machine understands."""


@dataclass(slots=True)
class Instruction:
    """One instruction; `guard` is the predicate before it, `line` its line in the PTX, `source` the "file.py:line:column" it came from."""

    opcode: str
    operands: list
    guard: object
    line: int
    source: str
    text: str
    name: str = ""
    modifiers: tuple = ()
    types: tuple = ()
    execute: object = None
    control: bool = False

    def __post_init__(self):
        self.name, self.types, self.modifiers = _words(self.opcode)
        self.execute, self.control = registry.find(self.opcode)


@functools.cache
def _words(opcode):
    """The name, the types, the other modifiers."""
    name, *words = opcode.split(".")
    return name, tuple(w for w in words if w in DTYPES), tuple(w for w in words if w not in DTYPES)


@dataclass(slots=True)
class Parameter:
    """A parameter of the kernel: its place in the packed block, and its size in bytes."""

    name: str
    offset: int
    size: int


@dataclass(slots=True)
class Program:
    """A kernel. `symbols` maps names to addresses in their own memory; `constants` are global arrays, whose addresses the loader adds."""

    name: str = ""
    arch: int = 0
    threads: int = 0
    cluster: int = 0                                            # CTAs along x that the kernel wants to run together
    maxnreg: int = 0                                            # registers of a thread at the start, where setmaxnreg changes them
    code: list = field(default_factory=list)
    opcodes: frozenset = frozenset()                            # those that are in it, once each
    registers: list = field(default_factory=list)               # their kinds
    parameters: list = field(default_factory=list)
    constants: dict = field(default_factory=dict)               # name -> (alignment, bytes)
    symbols: dict = field(default_factory=dict)
    static_shared: int = 0
    extern: str = ""                                            # the array in shared memory whose size the launch gives
    local_bytes: int = 0


def parse(text):
    """The kernel in a module of one kernel."""
    program = Program()
    head, opening, body = text.partition(".visible .entry ")
    if not opening:
        raise ParseError("no .visible .entry")
    program.arch = int(re.search(r"\.target sm_(\d+)", head)[1])
    _declarations(program, head)
    program.name, _, body = body.partition("(")
    parameters, _, body = body.partition(")\n")
    _parameters(program, parameters)
    directives, _, _ = body.partition("{")
    program.threads = int(re.search(r"\.reqntid (\d+)", directives)[1])
    maxnreg = re.search(r"\.maxnreg (\d+)", directives)
    program.maxnreg = int(maxnreg[1]) if maxnreg else 0
    cluster = re.search(r"\.reqnctapercluster (\d+)\s", directives)
    program.cluster = int(cluster[1]) if cluster else 0
    _Body(program, text).parse(text.index("{", len(text) - len(body)))
    program.opcodes = frozenset(ins.opcode for ins in program.code)
    return program


def _declarations(program, head):
    """Arrays outside the kernel: shared memory begins at SHARED_BASE, the extern one behind the others."""
    for space, align, name, size, values in re.findall(
            r"^\.(?:visible |extern )?\.?(global|shared) \.align (\d+) \.b8 ([\w$]+)\[(\d*)\](?: = \{([^}]*)\})?;",
            head.replace(".extern .", ".").replace(".visible .", "."), re.M):
        if space == "global":
            data = bytes(int(v) for v in values.split(",") if v.strip())
            program.constants[name] = int(align), data.ljust(int(size), b"\0")
        elif size:
            _shared(program, align, name, size)
        else:
            program.extern = name
    _settle(program)


def _shared(program, align, name, size):
    start = program.static_shared + -program.static_shared % int(align)
    program.symbols[name], program.static_shared = SHARED_BASE + start, start + int(size)


def _settle(program):
    """The extern array comes behind the others."""
    if program.extern:
        program.symbols[program.extern] = SHARED_BASE + program.static_shared + -program.static_shared % 1024


def _parameters(program, text):
    base, end = _PARAMETERS[program.arch], 0
    for line in filter(None, (part.strip() for part in text.split(","))):
        kind, name, count = re.match(r"\.param (?:\.align \d+ )?\.(\w+).* ([\w$]+)(?:\[(\d+)\])?$", line).groups()
        size = DTYPES[kind].itemsize * int(count or 1)
        aligned = re.match(r"\.param \.align (\d+)", line)
        end += -(base + end) % (int(aligned[1]) if aligned else size)
        program.parameters.append(Parameter(name, end, size))
        program.symbols[name] = end
        end += size


class _Body:
    """The statements between the braces of a kernel. Inline assembly opens scopes with registers and labels of their own, and so does a
    function that is called: its statements take the place of the call, its parameters are registers."""

    def __init__(self, program, text):
        self.program, self.text, self.scopes, self.path, self.opened = program, text, [{}], (0,), 0
        self.labels, self.wanted, self.source, self.line, self.inside = {}, [], "", 0, []

    def parse(self, start):
        self._block(start)
        self._resolve()

    def _block(self, start):
        """From an opening brace to the one that closes it."""
        pending, depth = "", 0
        first = self.text.count("\n", 0, start) + 1
        for number, line in enumerate(self.text[start:].split("\n"), first):
            self.line = number
            code, _, comment = line.partition("//")
            code = code.strip()
            if code.startswith((".loc\t", ".file\t")):
                if code.startswith(".loc\t"):
                    self.source = comment.strip().partition(" @")[0]
                continue
            if not pending and code.count(";") == 1 and code[-1] == ";" and code[0] not in "{}" and ":" not in code:
                self._statement(code[:-1])                      # a line that is a statement, as most are
                continue
            for piece in re.findall(r"[;{}]|[^;{}]+", code):
                if piece == "{" and not pending.strip():
                    depth += 1
                    if depth > 1:
                        self._open()
                elif piece == "}" and not pending.strip():
                    depth -= 1
                    if not depth:
                        return
                    self._close()
                elif piece == ";":
                    self._statement(pending.strip())
                    pending = ""
                else:
                    pending = self._after_labels(pending + " " + piece if pending else piece)
        raise ParseError("the kernel does not end")

    def _open(self):
        self.opened += 1
        self.scopes.append({})
        self.path += (self.opened,)

    def _close(self):
        self.scopes.pop()
        self.path = self.path[:-1]

    def _after_labels(self, text):
        while found := re.match(r"\s*([A-Za-z_$][\w$]*):(?!:)", text):
            self.labels[self.path, found[1]] = len(self.program.code)
            text = text[found.end():]
        return text if text.strip() else ""

    def _statement(self, text):
        if text.startswith((".reg", ".param")):
            self._registers(text)
        elif text.startswith("call"):
            self._call(text)
        elif text.startswith(".local"):
            align, name, size = re.match(r"\.local \.align (\d+) \.b8\s+([\w$]+)\[(\d+)\]", text).groups()
            self.program.symbols[name], self.program.local_bytes = 0, int(size) + -int(size) % 16
        elif text.startswith(".shared"):
            _shared(self.program, *re.match(r"\.shared \.align (\d+) \.b8 ([\w$]+)\[(\d+)\]", text).groups())
            _settle(self.program)
        elif text.startswith(".branchtargets"):
            self.labels[next(reversed(self.labels))] = [self._label(word.strip()) for word in text[len(".branchtargets"):].split(",")]
        elif text.startswith("."):
            if not text.startswith(".pragma"):
                raise ParseError(f"line {self.line}: {text}")
        elif text:
            self._instruction(text)

    def _registers(self, text):
        if block := re.match(r"\.param\s+\.align \d+ \.b8\s+([\w$]+)\[(\d+)\]$", text):
            words = [f"{block[1]}[{at}]" for at in range(0, int(block[2]), 4)]
            self._registers(f".param .b32 {', '.join(words)}")
            self.scopes[-1][block[1]] = Block(tuple(map(self._register, words)))
            return
        _, kind, names = text.split(None, 2)
        for name in (n.strip() for n in names.split(",")):
            family = re.match(r"(.*)<(\d+)>$", name)
            for each in [f"{family[1]}{i}" for i in range(int(family[2]))] if family else [name]:
                self.scopes[-1][each] = Register(each, len(self.program.registers), kind[1:])
                self.program.registers.append(kind[1:])

    def _call(self, text):
        results, name, arguments = re.match(r"call(?:\.uni)?\s+(?:\((.*?)\), )?\s*([\w$]+)\s*, \((.*)\)$", text).groups()
        found = re.search(rf"\.func\s+(?:\(([^)]*)\))?\s*{re.escape(name)}\s*\(([^)]*)\)[^;{{]*{{", self.text)
        if found is None or name in self.inside:
            raise ParseError(f"line {self.line}: {text}")
        given = [self._register(word.strip()) for word in f"{results},{arguments}".split(",")]
        formal = [word.split()[-1].partition("[")[0] for word in f"{found[1]},{found[2]}".split(",")]
        line, source = self.line, self.source
        self._open()
        self.inside.append(name)
        self.scopes[-1].update(zip(formal, given))
        self._block(found.end() - 1)
        self.inside.pop()
        self.labels[self.path, "return to the caller"] = len(self.program.code)
        self._close()
        self.line, self.source = line, source

    def _instruction(self, text):
        guard = None
        if text[0] == "@":
            word, text = text[1:].split(None, 1)
            guard = self._operand(word)
        opcode, _, rest = text.replace("\t", " ").strip().partition(" ")
        operands = [self._operand(word) for word in _split(rest)]
        if opcode == "ret" and self.inside:
            opcode, operands = "bra", [self._label("return to the caller")]
        self.program.code.append(Instruction(opcode, operands, guard, self.line, self.source, text.strip()))

    def _operand(self, text):
        text = text.strip()
        if found := self._register(text):
            return found
        if _NUMBER.match(text):
            return Number.parse(text)
        if text[0] == "{":
            return Vector(tuple(self._operand(word) for word in _split(text[1:-1])))
        if text[0] == "[":
            return self._address(text[1:-1])
        if text[0] == "!":
            return Not(self._register(text[1:]))
        if "|" in text:
            return Pair(*(self._operand(word) for word in text.split("|")))
        if _SPECIAL.match(text):
            return Special(text[1:])
        if text == "_":
            return Sink()
        if text in self.program.symbols or text in self.program.constants:
            return Symbol(text)
        if _WORD.match(text):
            return self._label(text)
        raise ParseError(f"line {self.line}: what is {text!r}?")

    def _register(self, name):
        for scope in reversed(self.scopes):
            if name in scope:
                return scope[name]
        return None

    def _label(self, name):
        self.wanted.append(Label(name, self.path))
        return self.wanted[-1]

    def _address(self, text):
        place, *rest = _split(text)
        base, offset = re.match(r"\s*([^+\s-]+)\s*\+?\s*(-?\w*)\s*$", place).groups()
        return Address(self._operand(base), int(offset or "0", 0), tuple(self._operand(word) for word in rest))

    def _resolve(self):
        for label in self.wanted:
            paths = (label.scope[:length] for length in range(len(label.scope), 0, -1))
            found = next((self.labels[path, label.name] for path in paths if (path, label.name) in self.labels), None)
            if found is None:
                raise ParseError(f"{label.name} is no label")
            label.target = found
        for label in self.wanted:
            if isinstance(label.target, list):
                label.target = [entry.target for entry in label.target]


def _split(text):
    """At the commas that are in no brackets."""
    if "{" not in text and "[" not in text:
        return [part for part in text.split(",") if part.strip()]
    parts, depth, start = [], 0, 0
    for i, letter in enumerate(text):
        if letter in "{[":
            depth += 1
        elif letter in "}]":
            depth -= 1
        elif letter == "," and not depth:
            parts.append(text[start:i])
            start = i + 1
    return [part for part in (*parts, text[start:]) if part.strip()]
