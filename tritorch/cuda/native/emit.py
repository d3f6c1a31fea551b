"""Writes LLVM IR: registers, loops, and buffers that hold the elements of a tensor.

A register is its text ("%v7", or a number). `lanes` elements together are a vector, one element is a scalar. An element in a register has
the type of `llvm_type`: floats as they are, but bfloat16 and float8 as their bits, pointers as addresses. In a buffer an i1 is a byte.

    em = Emitter()
    with em.loop("0", "1024", 16) as i:                 # i64 registers, or numbers
        x = em.load(source, i, 16)                      # 16 elements from the i-th on
        em.store(target, i, em.value("fadd", "f32", 16, x, x), 16)
"""
from __future__ import annotations

import contextlib
from dataclasses import dataclass

import ml_dtypes
import numpy as np

from .ttir import Type

LLVM = {"f64": "double", "f32": "float", "f16": "half", "bf16": "i16", "ptr": "i64", "index": "i64"}
LANES = 16
WIDTH = 64                                      # buffers begin at multiples of these bytes


# A program is a function of its own: with all of it in the loop over programs LLVM takes three times as long for a kernel of many loops.
PROGRAMS = """define internal void @program(ptr %arguments, ptr noalias %scratch, i64 %program) noinline {
BODY
}
define void @kernel(ptr %arguments, ptr noalias %scratch, i64 %first, i64 %last) {
entry:
  br label %turn
turn:
  %program = phi i64 [ %first, %entry ], [ %next, %turn ]
  call void @program(ptr %arguments, ptr %scratch, i64 %program)
  %next = add i64 %program, 1
  %more = icmp slt i64 %next, %last
  br i1 %more, label %turn, label %end
end:
  ret void
}
"""


class Untranslatable(NotImplementedError):
    """A kernel does what this translation does not know; says which operator, and where."""


def llvm_type(element, lanes=1):
    name = LLVM.get(element) or ("i8" if element.startswith("f8") else element)
    return name if lanes == 1 else f"<{lanes} x {name}>"


def storage(element):
    return "i8" if element == "i1" else element


def constant(number, element):
    """A Python number as LLVM writes it: floats by their bits, float32 as those of the same number in float64."""
    if element == "f16":
        return f"0xH{int(np.float16(number).view(np.uint16)):04X}"
    if element in ("f32", "f64"):
        return f"0x{int(np.float64(np.float32(number) if element == 'f32' else number).view(np.uint64)):016X}"
    if element == "bf16":
        return str(int(np.float32(number).astype(ml_dtypes.bfloat16).view(np.uint16)))
    if element == "i1":
        return "true" if number else "false"
    return str(int(number))


@dataclass(eq=False)
class Buffer:
    """The elements of a tensor in memory, row by row unless it has another `order`. `type.shape` may be another than it was made with (a
    reshape), of the same size."""

    base: str                                   # a register of type ptr
    type: Type
    owner: object = None                        # what is given back when nobody reads it any more
    order: tuple | None = None                  # the dims, outermost first; None: row by row

    def as_(self, kind):
        return Buffer(self.base, kind, self.owner or self)


class Emitter:
    """The text of one LLVM function, and what it needs beside it."""

    def __init__(self, fused=True):
        self.lines, self.count = [], 0
        self.fused, self.products = fused, {}   # whether a product and a sum are one operator; register -> what it is the product of
        self.definitions = {}                   # symbol -> text, of functions that are called
        self.block = "entry"                    # where the next line goes
        self.scratch, self.holes = 0, []        # bytes in use; free (offset, size)

    # lines
    def line(self, text):
        self.lines.append("  " + text)

    def new(self):
        self.count += 1
        return f"%v{self.count}"

    def set(self, text):
        """A new register for the value of an instruction."""
        register = self.new()
        self.line(f"{register} = {text}")
        return register

    def label(self):
        self.count += 1
        return f"b{self.count}"

    def start(self, label):
        """Begin a block; the one before must have ended."""
        self.lines.append(f"{label}:")
        self.block = label

    def jump(self, label):
        self.line(f"br label %{label}")

    def branch(self, condition, yes, no):
        self.line(f"br i1 {condition}, label %{yes}, label %{no}")

    def again(self, label, condition=None, end=None):
        """Back to the head of a loop (if the condition is true, else to `end`). LLVM is told not to unroll it: turns are of vectors, and
        long enough, while copies of them make the compilation take three times as long."""
        self.branch(condition, label, end) if condition else self.jump(label)
        self.count += 1
        self.lines[-1] += f", !llvm.loop !{self.count}"
        name = f"!{self.count}"
        self.definitions |= {"!0": '!0 = !{!"llvm.loop.unroll.disable"}', name: f"{name} = distinct !{{{name}, !0}}"}

    def go_on(self, label):
        """End this block, begin the next."""
        self.jump(label)
        self.start(label)

    @contextlib.contextmanager
    def loop(self, start, stop, step=1):
        """`for i in range(start, stop, step)`, i64; a loop of one turn is none."""
        numbers = [str(n) for n in (start, stop, step)]
        if all(n.lstrip("-").isdigit() for n in numbers) and int(numbers[1]) - int(numbers[0]) == int(numbers[2]):
            yield numbers[0]
            return
        head, body, end = self.label(), self.label(), self.label()
        before, i, following = self.block, self.new(), self.new()
        self.jump(head)
        self.start(head)
        patched = len(self.lines)
        self.lines.append("")
        self.branch(self.set(f"icmp slt i64 {i}, {stop}"), body, end)
        self.start(body)
        yield i
        self.line(f"{following} = add i64 {i}, {step}")
        self.lines[patched] = f"  {i} = phi i64 [ {start}, %{before} ], [ {following}, %{self.block} ]"
        self.again(head)
        self.start(end)

    @contextlib.contextmanager
    def when(self, condition):
        """What is written inside runs only if the i1 is true."""
        yes, end = self.label(), self.label()
        self.branch(condition, yes, end)
        self.start(yes)
        yield
        self.go_on(end)

    # values
    def value(self, instruction, element, lanes, *operands):
        """`fadd <16 x float> a, b`"""
        return self.set(f"{instruction} {llvm_type(element, lanes)} {', '.join(operands)}")

    def number(self, number, element, lanes=1):
        """A constant; of several lanes all the same."""
        text = constant(number, element)
        if lanes == 1:
            return text
        kind = llvm_type(element)
        return "<" + ", ".join([f"{kind} {text}"] * lanes) + ">"

    def splat(self, register, element, lanes):
        """A scalar in every lane."""
        if lanes == 1:
            return register
        if not register.startswith("%"):
            return "<" + ", ".join([f"{llvm_type(element)} {register}"] * lanes) + ">"
        many, one = llvm_type(element, lanes), llvm_type(element)
        first = self.set(f"insertelement {many} poison, {one} {register}, i64 0")
        return self.set(f"shufflevector {many} {first}, {many} poison, <{lanes} x i32> zeroinitializer")

    def lane(self, register, element, lanes, index):
        """One lane of a vector."""
        return register if lanes == 1 else self.set(f"extractelement {llvm_type(element, lanes)} {register}, i64 {index}")

    def iota(self, element, lanes, stride=1):
        """<0, 1, 2, …>"""
        kind = llvm_type(element)
        return "0" if lanes == 1 else "<" + ", ".join(f"{kind} {i * stride}" for i in range(lanes)) + ">"

    def part(self, register, element, lanes, start, count):
        """`count` lanes from `start` on."""
        if count == lanes:
            return register
        if count == 1:
            return self.lane(register, element, lanes, start)
        many = llvm_type(element, lanes)
        picked = ", ".join(f"i32 {start + i}" for i in range(count))
        return self.set(f"shufflevector {many} {register}, {many} poison, <{count} x i32> <{picked}>")

    def call(self, function, kind, *operands):
        """`function` is (symbol, definitions); operands are (LLVM type, register)."""
        symbol, definitions = function
        self.definitions.update(definitions)
        text = f"call {kind} {symbol}({', '.join(' '.join(o) for o in operands)})"
        if kind == "void":
            return self.line(text)
        return self.set(text)

    def intrinsic(self, name, kind, *operands):
        """An LLVM intrinsic, "@llvm.smax.v16i32" of name "smax" and kind "<16 x i32>"; all operands of one kind."""
        symbol = f"@llvm.{name}.{suffix(kind)}"
        declaration = f"declare {kind} {symbol}({', '.join([kind] * len(operands))})"
        return self.call((symbol, {symbol: declaration}), kind, *((kind, o) for o in operands))

    # buffers
    def allocate(self, kind):
        """Room for a tensor, in the scratch memory of the thread; its numbers are whatever was there."""
        size = -(-max(kind.size * storage_bytes(kind.element), 1) // WIDTH) * WIDTH
        for i, (offset, free) in enumerate(self.holes):
            if free >= size:
                self.holes[i:i + 1] = [(offset + size, free - size)] if free > size else []
                break
        else:
            offset, self.scratch = self.scratch, self.scratch + size
        buffer = Buffer(self.set(f"getelementptr i8, ptr %scratch, i64 {offset}"), kind)
        buffer.room = (offset, size)
        return buffer

    def release(self, buffer):
        """Give room back: later buffers may be there."""
        owner = buffer.owner or buffer
        room, owner.room = getattr(owner, "room", None), None
        if room is None:
            return
        holes = sorted([*self.holes, room])
        self.holes = holes[:1]
        for offset, size in holes[1:]:
            last = self.holes[-1]
            if last[0] + last[1] == offset:
                self.holes[-1] = (last[0], last[1] + size)
            else:
                self.holes.append((offset, size))

    def pointer(self, buffer, index):
        """The place of the element `index` (an i64 register or number) of a buffer."""
        return self.set(f"getelementptr {llvm_type(storage(buffer.type.element))}, ptr {buffer.base}, i64 {index}")

    def load(self, buffer, index, lanes):
        """`lanes` elements of a buffer, from the index on."""
        element = buffer.type.element
        kind, align = llvm_type(storage(element), lanes), storage_bytes(element)
        register = self.set(f"load {kind}, ptr {self.pointer(buffer, index)}, align {align}")
        return self.set(f"trunc {kind} {register} to {llvm_type('i1', lanes)}") if element == "i1" else register

    def store(self, buffer, index, register, lanes):
        """The opposite of `load`."""
        element = buffer.type.element
        kind, align = llvm_type(storage(element), lanes), storage_bytes(element)
        if element == "i1":
            register = self.set(f"zext {llvm_type('i1', lanes)} {register} to {kind}")
        self.line(f"store {kind} {register}, ptr {self.pointer(buffer, index)}, align {align}")

    def copy(self, target, source):
        """All elements of a buffer into another of the same size."""
        size = source.type.size * storage_bytes(source.type.element)
        symbol = "@llvm.memcpy.p0.p0.i64"
        self.call((symbol, {symbol: f"declare void {symbol}(ptr, ptr, i64, i1)"}), "void", ("ptr", target.base), ("ptr", source.base),
                  ("i64", str(size)), ("i1", "false"))


def storage_bytes(element):
    return max(Type((), element).bits // 8, 1)


def suffix(kind):
    """"v16f32" of "<16 x float>"."""
    if kind.startswith("<"):
        count, _, scalar = kind[1:-1].partition(" x ")
        return f"v{count}{suffix(scalar)}"
    return {"float": "f32", "double": "f64", "half": "f16", "ptr": "p0"}.get(kind, kind)
