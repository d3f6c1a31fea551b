"""Functions of the C library, a call for each lane. float32 goes by the float64 function: its result, rounded, is off by hardly more than half an ulp."""
from __future__ import annotations

from .vectors import Lanes, type_name

ATTRIBUTES = "nounwind willreturn memory(none)"                    # errno and signgam, which some set, nobody reads


def lane(x, i):
    """One number of a register, alone."""
    if x.lanes == 1:
        return x
    register = x.em.new()
    x.em.line(f"{register} = extractelement {x.type} {x.register}, i64 {i}")
    return Lanes(x.em, register, x.element, 1)


def call_by_lane(symbol, result, *arguments):
    """`symbol` of C, which gives `result`, of the arguments as they are."""
    em, lanes = arguments[0].em, arguments[0].lanes
    types = ", ".join(type_name(a.element, 1) for a in arguments)
    em.needs[f"@{symbol}"] = f"declare {type_name(result, 1)} @{symbol}({types}) {ATTRIBUTES}"
    out = None
    for i in range(lanes):
        given = ", ".join(f"{a.type} {a.register}" for a in (lane(x, i) for x in arguments))
        one = Lanes(em, "", result, 1).make(f"call {type_name(result, 1)} @{symbol}({given})")
        if lanes == 1:
            return one
        whole = Lanes(em, out.register if out else "poison", result, lanes)
        out = whole.make(f"insertelement {whole.type} {whole.register}, {one.type} {one.register}, i64 {i}")
    return out


def by_libm(symbol):
    """The rule of a function that C has in float64 under this name; arguments that are integers are C's int."""
    def rule(*arguments):
        element = next(a.element for a in arguments if a.floating)
        wide = [a.convert("fpext", "f64") if a.element == "f32" else a for a in arguments]
        out = call_by_lane(symbol, "f64", *wide)
        return out.convert("fptrunc", "f32") if element == "f32" else out
    return rule
