"""Functions of the C library, a call for each lane. float32 goes by the float64 function: its result, rounded, is off by hardly more than half an ulp."""
from __future__ import annotations

from .vectors import Body, Lanes, type_name

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


def define(symbol, rule, types, lanes, more=""):
    """The texts of a function whose body `rule` writes, by symbol, what it needs among them."""
    body = Body()
    out = rule(*(Lanes(body, f"%x{i}", t, lanes) for i, t in enumerate(types)))
    given = ", ".join(f"{type_name(t, lanes)} %x{i}" for i, t in enumerate(types))
    lines = "".join(f"  {line}\n" for line in body.lines)
    return body.needs | {symbol: f"define internal {out.type} {symbol}({given}) {ATTRIBUTES} {more}{{\n{lines}  ret {out.type} {out.register}\n}}"}


def rarely(condition, name, rule, x, otherwise):
    """`rule` of x where `condition` holds, `otherwise` elsewhere; the rule, a function of its own, is called only if a lane needs it."""
    em, lanes = x.em, x.lanes
    symbol = f"@{name}x{lanes}"
    em.needs |= define(symbol, rule, [x.element], lanes, "noinline cold ")
    any_lane = condition.register
    if lanes > 1:
        mask = condition.make(f"bitcast <{lanes} x i1> {condition.register} to i{lanes}").register
        any_lane = condition.make(f"icmp ne i{lanes} {mask}, 0").register
    begin, slow, done = em.label(), em.label(), em.label()
    em.line(f"br label %{begin}")
    em.line(f"{begin}:")
    em.line(f"br i1 {any_lane}, label %{slow}, label %{done}")
    em.line(f"{slow}:")
    careful = condition.where(otherwise.make(f"call {x.type} {symbol}({x.type} {x.register})"), otherwise)
    em.line(f"br label %{done}")
    em.line(f"{done}:")
    return otherwise.make(f"phi {x.type} [ {otherwise.register}, %{begin} ], [ {careful.register}, %{slow} ]")
