"""Arithmetic on LLVM registers in Python's operators: `x * y + 1.0` writes the LLVM IR that computes it, for one lane or several."""
from __future__ import annotations

from .emit import constant, llvm_type, suffix

BITS = {"f16": 16, "f32": 32, "f64": 64} | {f"i{n}": n for n in (1, 8, 16, 32, 64, 128)}


class Lanes:
    """A register: `lanes` numbers of type `element`, or one number where lanes is 1."""
    __slots__ = ("em", "register", "element", "lanes")

    def __init__(self, em, register, element, lanes):
        self.em, self.register, self.element, self.lanes = em, register, element, lanes

    @property
    def type(self):
        return llvm_type(self.element, self.lanes)

    @property
    def floating(self):
        return self.element[0] == "f"

    def make(self, text, element=None):
        """A new register that holds what `text` computes."""
        return Lanes(self.em, self.em.set(text), element or self.element, self.lanes)

    def constant(self, number, element=None):
        """A number in every lane; of an integer its low bits."""
        element = element or self.element
        if element[0] == "i":
            half = 1 << (BITS[element] - 1)
            number = (number + half) % (2 * half) - half if half > 1 else number
        text = constant(number, element)
        text = text if self.lanes == 1 else f"splat ({llvm_type(element)} {text})"
        return Lanes(self.em, text, element, self.lanes)

    def lift(self, other):
        return other if isinstance(other, Lanes) else self.constant(other)

    def binary(self, operation, other):
        return self.make(f"{operation} {self.type} {self.register}, {self.lift(other).register}")

    def intrinsic(self, name, *others):
        """A call of llvm.name, which is overloaded on this register's type alone. Flags are Python's True and False. LLVM declares its
        intrinsics itself."""
        given = [f"{self.type} {self.register}"]
        given += [f"i1 {str(o).lower()}" if isinstance(o, bool) else f"{self.type} {self.lift(o).register}" for o in others]
        return self.make(f"call {self.type} @llvm.{name}.{suffix(self.type)}({', '.join(given)})")

    def __add__(self, other):
        return self.binary("fadd" if self.floating else "add", other)

    def __sub__(self, other):
        return self.binary("fsub" if self.floating else "sub", other)

    def __mul__(self, other):
        return self.binary("fmul" if self.floating else "mul", other)

    def __radd__(self, other):
        return self.lift(other) + self

    def __rsub__(self, other):
        return self.lift(other) - self

    def __rmul__(self, other):
        return self.lift(other) * self

    def __truediv__(self, other):
        return self.binary("fdiv", other)

    def __rtruediv__(self, other):
        return self.lift(other) / self

    def __neg__(self):
        return self.make(f"fneg {self.type} {self.register}") if self.floating else 0 - self

    def __and__(self, other):
        return self.binary("and", other)

    def __or__(self, other):
        return self.binary("or", other)

    def __xor__(self, other):
        return self.binary("xor", other)

    def __lshift__(self, other):
        return self.binary("shl", other)

    def __rshift__(self, other):
        """Keeps the sign."""
        return self.binary("ashr", other)

    def shifted_right(self, other):
        """Fills with zeros."""
        return self.binary("lshr", other)

    def compare(self, how, other):
        word = "fcmp" if self.floating else "icmp"
        return self.make(f"{word} {how} {self.type} {self.register}, {self.lift(other).register}", "i1")

    def __lt__(self, other):
        return self.compare("olt" if self.floating else "slt", other)

    def __le__(self, other):
        return self.compare("ole" if self.floating else "sle", other)

    def __gt__(self, other):
        return self.compare("ogt" if self.floating else "sgt", other)

    def __ge__(self, other):
        return self.compare("oge" if self.floating else "sge", other)

    def equals(self, other):
        return self.compare("oeq" if self.floating else "eq", other)

    def differs(self, other):
        """True where either is NaN."""
        return self.compare("une" if self.floating else "ne", other)

    def where(self, a, b):
        """a in the lanes where this is true, b in the others; one of them may be a number."""
        a = a if isinstance(a, Lanes) else b.lift(a)
        b = a.lift(b)
        return self.make(f"select {self.type} {self.register}, {a.type} {a.register}, {b.type} {b.register}", a.element)

    def convert(self, operation, element):
        """fpext, fptrunc, sitofp, trunc, zext, bitcast, ... to another element type."""
        return self.make(f"{operation} {self.type} {self.register} to {llvm_type(element, self.lanes)}", element)

    def bits(self):
        return self.convert("bitcast", f"i{BITS[self.element]}")

    def as_float(self):
        """An integer's bits as a floating number of its width."""
        return self.convert("bitcast", f"f{BITS[self.element]}")

    def fma(self, b, c):
        return self.intrinsic("fma", b, c)

    def __abs__(self):
        return self.intrinsic("fabs") if self.floating else self.intrinsic("abs", False)

    def copysign(self, other):
        return self.intrinsic("copysign", other)


def polynomial(x, coefficients):
    """Horner's rule, the coefficient of the highest power first."""
    out = x.lift(coefficients[0])
    for c in coefficients[1:]:
        out = out.fma(x, x.lift(c))
    return out
