"""What each elementwise operator of TTIR is in LLVM IR: `rule(em, op, registers, lanes) -> register`.

All registers have `lanes` lanes. bfloat16 and float8 are bits there, so arithmetic on them widens to float32 and narrows again.
"""
from __future__ import annotations

import re

from . import conversions, mathematics
from .emit import Untranslatable, llvm_type

RULES = {}
NARROW = ("bf16", "f8")                     # whose arithmetic is float32's


def rule(*names):
    def note(function):
        RULES.update(dict.fromkeys(names, function))
        return function
    return note


def refuse(op, why=""):
    raise Untranslatable(f"{op.name} ({op.where}): {why or 'not known to this translation'}")


def find(op):
    """The rule of an operator; None for those that are not elementwise."""
    return RULES.get(op.name)


def element_of(op, index=0):
    return op.operands[index].type.element


def is_narrow(element):
    return element.startswith(NARROW)


# integers
BINARY = {"addi": "add", "subi": "sub", "muli": "mul", "andi": "and", "ori": "or", "xori": "xor"}
EXTREMES = {"minsi": "smin", "maxsi": "smax", "minui": "umin", "maxui": "umax"}


@rule(*(f"arith.{name}" for name in BINARY))
def integers(em, op, registers, lanes):
    return em.value(BINARY[op.name[6:]], element_of(op), lanes, *registers)


@rule("arith.shli", "arith.shrsi", "arith.shrui")
def shifts(em, op, registers, lanes):
    """A shift by as many bits as there are, or more, is poison in LLVM; a GPU gives 0, or copies of the sign."""
    value, count = registers
    element = element_of(op)
    bits = op.operands[0].type.bits
    name = {"shli": "shl", "shrsi": "ashr", "shrui": "lshr"}[op.name[6:]]
    if not count.startswith("%") and all(0 <= n < bits for n in numbers_in(count)):
        return em.value(name, element, lanes, value, count)
    most = em.number(bits - 1, element, lanes)
    kept = em.intrinsic("umin", llvm_type(element, lanes), count, most)
    shifted = em.value(name, element, lanes, value, kept)
    if name == "ashr":
        return shifted
    inside = em.value("icmp ule", element, lanes, count, most)
    return choose(em, inside, shifted, em.number(0, element, lanes), element, lanes)


def numbers_in(constant):
    """Those of a constant's text, of one lane or several."""
    return [int(n) for n in re.findall(r"-?\d+", re.sub(r"i\d+|<\d+ x", "", constant))]


def choose(em, condition, yes, no, element, lanes):
    kind = llvm_type(element, lanes)
    return em.set(f"select {llvm_type('i1', lanes)} {condition}, {kind} {yes}, {kind} {no}")


@rule(*(f"arith.{name}" for name in EXTREMES))
def extremes(em, op, registers, lanes):
    return em.intrinsic(EXTREMES[op.name[6:]], llvm_type(element_of(op), lanes), *registers)


@rule("arith.divsi", "arith.divui", "arith.remsi", "arith.remui")
def division(em, op, registers, lanes, name=""):
    """Division by 0, and of the least number by -1, would end the process: lanes that nobody looks at may do either."""
    a, b = registers
    name = name or op.name[6:]
    element, signed = element_of(op), name.endswith("si")
    name = {"divsi": "sdiv", "divui": "udiv", "remsi": "srem", "remui": "urem"}[name]
    fixed = [] if b.startswith("%") else numbers_in(b)
    if fixed and not {0, -1} & set(fixed):
        return em.value(name, element, lanes, a, b)
    one, zero = em.number(1, element, lanes), em.number(0, element, lanes)
    wrong = em.value("icmp eq", element, lanes, b, zero)
    if signed:
        minus = em.value("icmp eq", element, lanes, b, em.number(-1, element, lanes))
        wrong = em.value("or", "i1", lanes, wrong, minus)
    safe = choose(em, wrong, one, b, element, lanes)
    if element == "i32" and lanes > 1:
        quotient = by_doubles(em, a, safe, signed, lanes)
        if name.endswith("rem"):
            quotient = em.value("sub", element, lanes, a, em.value("mul", element, lanes, quotient, safe))
    else:
        quotient = em.value(name, element, lanes, a, safe)
    if signed and name == "sdiv":
        quotient = choose(em, minus, em.value("sub", element, lanes, zero, a), quotient, element, lanes)
    return quotient


def by_doubles(em, a, b, signed, lanes):
    """Quotients of 32-bit integers are exact in float64, and there is a vector instruction for those."""
    doubles = [conversions.to_float(em, x, "i32", "f64", signed, lanes) for x in (a, b)]
    return conversions.to_integer(em, em.value("fdiv", "f64", lanes, *doubles), "f64", "i32", signed, lanes)


@rule("arith.cmpi")
def compare_integers(em, op, registers, lanes):
    predicate = op.text.split()[1].rstrip(",")
    return em.value(f"icmp {predicate}", element_of(op), lanes, *registers)


@rule("arith.extsi", "arith.extui", "arith.trunci", "arith.index_cast", "arith.index_castui")
def resize(em, op, registers, lanes):
    return convert_integer(em, registers[0], element_of(op), op.results[0].type.element, op.name != "arith.extui", lanes)


def convert_integer(em, register, source, target, signed, lanes):
    """An integer in another width."""
    before, after = (64 if e in ("ptr", "index") else int(e[1:]) for e in (source, target))
    if before == after:
        return register
    name = "trunc" if after < before else "sext" if signed else "zext"
    return em.set(f"{name} {llvm_type(source, lanes)} {register} to {llvm_type(target, lanes)}")


@rule("tt.mulhiui")
def high_half(em, op, registers, lanes):
    element = element_of(op)
    bits = op.operands[0].type.bits
    wide = f"i{2 * bits}"
    a, b = (convert_integer(em, r, element, wide, False, lanes) for r in registers)
    product = em.value("mul", wide, lanes, a, b)
    return convert_integer(em, em.value("lshr", wide, lanes, product, em.number(bits, wide, lanes)), wide, element, False, lanes)


# floats
FLOATS = {"arith.addf": "fadd", "arith.subf": "fsub", "arith.mulf": "fmul", "arith.divf": "fdiv", "arith.remf": "frem",
          "tt.precise_divf": "fdiv"}
FLOAT_EXTREMES = {"arith.maxnumf": "maxnum", "arith.minnumf": "minnum", "arith.maximumf": "maximum", "arith.minimumf": "minimum"}


def in_float32(em, op, registers, lanes, compute):
    """`compute(element, registers)` on registers that LLVM can compute with; the result has the operator's own element."""
    element = element_of(op)
    if not is_narrow(element):
        return compute(element, registers)
    wide = [conversions.widen(em, r, element, lanes) for r in registers]
    result = compute("f32", wide)
    return conversions.narrow(em, result, element, lanes) if op.results[0].type.element == element else result


@rule(*FLOATS)
def floats(em, op, registers, lanes):
    name = FLOATS[op.name]
    if name == "frem":
        return in_float32(em, op, registers, lanes, lambda e, r: mathematical(em, "fmod", e, lanes, r, op))
    return in_float32(em, op, registers, lanes, lambda e, r: with_product(em, name, e, lanes, r) or arithmetic(em, name, e, lanes, r))


def arithmetic(em, name, element, lanes, registers):
    result = em.value(name, element, lanes, *registers)
    if name == "fmul" and element in ("f32", "f64"):
        em.products[result] = registers
    return result


def with_product(em, name, element, lanes, registers):
    """a * b + c is rounded once, as NVIDIA's compiler does it, though others may want the product, too; of two products it is the left one.
    So a formula has the same bits in every kernel, if it is one loop. LLVM, left to choose, looks at what else there is."""
    if not em.fused or name not in ("fadd", "fsub"):
        return None
    for i, register in enumerate(registers):
        if register in em.products:
            (a, b), c = em.products[register], registers[1 - i]
            if name == "fsub":
                a, c = (a, em.value("fneg", element, lanes, c)) if i == 0 else (em.value("fneg", element, lanes, a), c)
            return em.intrinsic("fmuladd", llvm_type(element, lanes), a, b, c)
    return None


@rule("arith.negf")
def negate(em, op, registers, lanes):
    return in_float32(em, op, registers, lanes, lambda e, r: em.value("fneg", e, lanes, *r))


@rule(*FLOAT_EXTREMES)
def float_extremes(em, op, registers, lanes):
    name = FLOAT_EXTREMES[op.name]
    return in_float32(em, op, registers, lanes, lambda e, r: em.intrinsic(name, llvm_type(e, lanes), *r))


@rule("tt.clampf")
def clamp(em, op, registers, lanes):
    def compute(element, r):
        kind = llvm_type(element, lanes)
        low, high = ("maximum", "minimum") if "propagateNan = all" in op.text else ("maxnum", "minnum")
        return em.intrinsic(high, kind, em.intrinsic(low, kind, r[0], r[1]), r[2])
    return in_float32(em, op, registers, lanes, compute)


@rule("arith.cmpf")
def compare_floats(em, op, registers, lanes):
    predicate = op.text.split()[1].rstrip(",")
    return in_float32(em, op, registers, lanes, lambda e, r: em.value(f"fcmp {predicate}", e, lanes, *r))


@rule("arith.select")
def select(em, op, registers, lanes):
    return choose(em, *registers, element_of(op, 1), lanes)


@rule("arith.extf", "arith.truncf", "tt.fp_to_fp")
def convert_float(em, op, registers, lanes):
    rounding = "rtz" if "rounding = rtz" in op.text else "rtne"
    return float_to_float(em, registers[0], element_of(op), op.results[0].type.element, lanes, rounding)


def float_to_float(em, register, source, target, lanes, rounding="rtne"):
    if source == target:
        return register
    if {source, target} == {"f64", "f32"}:
        name = "fpext" if target == "f64" else "fptrunc"
        return em.set(f"{name} {llvm_type(source, lanes)} {register} to {llvm_type(target, lanes)}")
    if target == "f64":
        return float_to_float(em, conversions.widen(em, register, source, lanes), "f32", "f64", lanes)
    if source == "f64":
        if target == "f16" and rounding == "rtne":
            return em.set(f"fptrunc {llvm_type('f64', lanes)} {register} to {llvm_type('f16', lanes)}")
        register, source = float_to_float(em, register, "f64", "f32", lanes), "f32"
    wide = register if source == "f32" else conversions.widen(em, register, source, lanes)
    return wide if target == "f32" else conversions.narrow(em, wide, target, lanes, rounding)


@rule("arith.sitofp", "arith.uitofp")
def integer_to_float(em, op, registers, lanes):
    source, target = element_of(op), op.results[0].type.element
    first = target if target in ("f32", "f64") else "f32"
    found = conversions.to_float(em, registers[0], source, first, op.name == "arith.sitofp", lanes)
    return float_to_float(em, found, first, target, lanes)


@rule("arith.fptosi", "arith.fptoui")
def float_to_integer(em, op, registers, lanes):
    source, target = element_of(op), op.results[0].type.element
    register = registers[0]
    if source not in ("f32", "f64"):
        register, source = conversions.widen(em, register, source, lanes), "f32"
    return conversions.to_integer(em, register, source, target, op.name == "arith.fptosi", lanes)


@rule("tt.bitcast", "arith.bitcast", "tt.int_to_ptr", "tt.ptr_to_int")
def bitcast(em, op, registers, lanes):
    source, target = (llvm_type(e, lanes) for e in (element_of(op), op.results[0].type.element))
    return registers[0] if source == target else em.set(f"bitcast {source} {registers[0]} to {target}")


@rule("tt.addptr")
def add_to_pointer(em, op, registers, lanes):
    offset = convert_integer(em, registers[1], element_of(op, 1), "i64", True, lanes)
    size = pointee_bytes(op.operands[0].type)
    if size > 1:
        offset = em.value("mul", "i64", lanes, offset, em.number(size, "i64", lanes))
    return em.value("add", "i64", lanes, registers[0], offset)


def pointee_bytes(kind):
    from .emit import storage_bytes
    from .ttir import type_of

    return storage_bytes(type_of(kind.pointee).element)


# mathematics
def mathematical(em, name, element, lanes, registers, op):
    """A call of a function of mathematics.py."""
    kind = llvm_type(element, lanes)
    try:
        function = mathematics.function(name, element, lanes)
    except KeyError:
        refuse(op, f"{name} of {element}")
    return em.call(function, kind, *((kind, r) for r in registers))


MATHEMATICS = ("exp exp2 expm1 log log2 log10 log1p sin cos tan tanh sqrt rsqrt erf floor ceil absf fma powf round roundeven trunc "
               "copysign atan atan2").split()


@rule(*(f"math.{name}" for name in MATHEMATICS), "tt.precise_sqrt")
def mathematics_of_floats(em, op, registers, lanes):
    name = op.name.partition(".")[2].replace("precise_sqrt", "sqrt")
    return in_float16_too(em, op, registers, lanes, lambda e, r: mathematical(em, name, e, lanes, r, op))


def in_float16_too(em, op, registers, lanes, compute):
    """As `in_float32`, for functions that there are not of float16 either."""
    element = element_of(op)
    if element in ("f32", "f64"):
        return compute(element, registers)
    result = compute("f32", [conversions.widen(em, r, element, lanes) for r in registers])
    return conversions.narrow(em, result, element, lanes)


@rule("math.absi")
def absolute(em, op, registers, lanes):
    kind = llvm_type(element_of(op), lanes)
    symbol = f"@llvm.abs.{kind.strip('<>').replace(' x ', '') if lanes == 1 else 'v' + kind[1:-1].replace(' x ', '')}"
    return em.call((symbol, {symbol: f"declare {kind} {symbol}({kind}, i1)"}), kind, (kind, registers[0]), ("i1", "false"))


@rule("tt.extern_elementwise")
def library(em, op, registers, lanes):
    """A function of libdevice. Its operands, and its result, may be of several types."""
    symbol = op.attributes["symbol"]
    try:
        function = mathematics.function(symbol, element_of(op), lanes)
    except KeyError:
        refuse(op, f"the function {symbol} of libdevice")
    kinds = [llvm_type(o.type.element, lanes) for o in op.operands]
    return em.call(function, llvm_type(op.results[0].type.element, lanes), *zip(kinds, registers))


NOTHING = re.compile(r'"(griddepcontrol\.[\w.]+|bar\.warp\.sync[^"]*|membar[^"]*|fence[^"]*|nanosleep[^"]*);? *(//[^"]*)?"')


APPROXIMATE = re.compile(r'"\s*(tanh|ex2|lg2|rsqrt|sqrt|rcp|sin|cos)\.approx(?:\.ftz)?\.f32\s+\$0,\s*\$1;?\s*"')
SPELLED = {"ex2": "exp2", "lg2": "log2"}


@rule("tt.elementwise_inline_asm")
def assembly(em, op, registers, lanes):
    """Instructions that only order things, which happen in order here anyway, and functions of float32, which are more exact here."""
    found = APPROXIMATE.search(op.text)
    if found and [o.type.element for o in (*op.operands, *op.results)] == ["f32", "f32"]:
        if found[1] == "rcp":
            return em.value("fdiv", "f32", lanes, em.number(1, "f32", lanes), *registers)
        return mathematical(em, SPELLED.get(found[1], found[1]), "f32", lanes, registers, op)
    if not NOTHING.search(op.text):
        refuse(op, "PTX inside the kernel")
    return em.number(0, op.results[0].type.element, lanes)
