"""Functions of the C library, a call for each lane; and how a function of LLVM is defined.

float32 goes by the function of float64, whose result, rounded, is off by hardly more than half an ulp.
"""
from __future__ import annotations

from .emit import Emitter, llvm_type
from .vectors import Lanes

ATTRIBUTES = "nounwind willreturn memory(none)"                    # errno and signgam, which some set, nobody reads


def call_by_lane(symbol, result, *arguments):
    """`symbol` of C, which gives `result`, of the arguments as they are."""
    em, lanes = arguments[0].em, arguments[0].lanes
    types = ", ".join(llvm_type(a.element, 1) for a in arguments)
    em.definitions[f"@{symbol}"] = f"declare {llvm_type(result, 1)} @{symbol}({types}) {ATTRIBUTES}"
    out = None
    for i in range(lanes):
        given = ", ".join(f"{llvm_type(a.element)} {em.lane(a.register, a.element, lanes, i)}" for a in arguments)
        one = Lanes(em, "", result, 1).make(f"call {llvm_type(result, 1)} @{symbol}({given})")
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
    em = Emitter()
    em.lines.append("entry:")
    out = rule(*(Lanes(em, f"%x{i}", t, lanes) for i, t in enumerate(types)))
    given = ", ".join(f"{llvm_type(t, lanes)} %x{i}" for i, t in enumerate(types))
    head = f"define internal {out.type} {symbol}({given}) {ATTRIBUTES} {more}"
    return em.definitions | {symbol: "\n".join([f"{head}{{", *em.lines, f"  ret {out.type} {out.register}", "}"])}


def rarely(condition, name, rule, x, otherwise):
    """`rule` of x where `condition` holds, `otherwise` elsewhere; the rule, a function of its own, is called only if a lane needs it."""
    em, lanes = x.em, x.lanes
    symbol = f"@{name}x{lanes}"
    em.definitions |= define(symbol, rule, [x.element], lanes, "noinline cold ")
    any_lane = condition.register
    if lanes > 1:
        mask = em.set(f"bitcast {condition.type} {condition.register} to i{lanes}")
        any_lane = em.set(f"icmp ne i{lanes} {mask}, 0")
    before, slow, done = em.block, em.label(), em.label()
    em.branch(any_lane, slow, done)
    em.start(slow)
    careful = condition.where(otherwise.make(f"call {x.type} {symbol}({x.type} {x.register})"), otherwise)
    em.go_on(done)
    return otherwise.make(f"phi {x.type} [ {otherwise.register}, %{before} ], [ {careful.register}, %{slow} ]")
