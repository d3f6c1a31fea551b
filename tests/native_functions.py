"""Functions of LLVM IR called on numpy arrays, and the numbers that the tests of the native device's functions give them."""
import ctypes
import math
import re

import numpy as np

from tritorch.cuda.native import elf, llvm, mathematics
from tritorch.cuda.native.emit import llvm_type

CALL = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
ELEMENT = {"half": "f16", "float": "f32", "double": "f64"}
NUMPY = {"f16": np.float16, "f32": np.float32, "f64": np.float64, "i1": np.bool_, "i8": np.int8, "i16": np.int16, "i32": np.int32,
         "i64": np.int64}
WIDE = np.longdouble
rng = np.random.default_rng(0)
SPECIAL = np.array([0, -0.0, np.inf, -np.inf, np.nan, 1, -1, 2, -2, 3, -3, 0.5, -0.5, 1.5, -1.5, 1e-45, -1e-45, 1e-40, -1e-40,
                    1.1754944e-38, 3.4028235e38, -3.4028235e38, 88.72283, 88.72284, -103.97208, -103.97209, 127.99999, -149,
                    -150, 1e10, -1e10, 16777215, 16777217, 0.99999994, 1.0000001, 10, -20, 0.625, 0.92], np.float32)
ANY_BITS = rng.integers(0, 2**32, 1 << 14, dtype=np.uint32).view(np.float32)
LOOP = """define internal void @loop{k}(ptr %arguments, i64 %last) {{
  {addresses}
  br label %loop
loop:
  %i = phi i64 [ 0, %0 ], [ %j, %loop ]
  {loads}
  %y = call {result} {symbol}({given})
  {store}
  %j = add i64 %i, {lanes}
  %more = icmp ult i64 %j, %last
  br i1 %more, label %loop, label %end
end:
  ret void
}}
"""


def loop(k, symbol, types, result, lanes):
    """A function of LLVM that goes over arrays whose addresses lie at %arguments, the result's last."""
    slots = [f"%s{i} = getelementptr i64, ptr %arguments, i64 {i}\n  %p{i} = load ptr, ptr %s{i}" for i in range(len(types) + 1)]
    places = [f"%q{i} = getelementptr {'i8' if t == 'i1' else llvm_type(t, 1)}, ptr %p{i}, i64 %i" for i, t in enumerate([*types, result])]
    loads = [f"%x{i} = load {llvm_type(t, lanes)}, ptr %q{i}, align 1" for i, t in enumerate(types)]
    given = ", ".join(f"{llvm_type(t, lanes)} %x{i}" for i, t in enumerate(types))
    byte = f"%b = zext {llvm_type('i1', lanes)} %y to {llvm_type('i8', lanes)}\n  " if result == "i1" else ""
    kind, name = (llvm_type("i8", lanes), "%b") if byte else (llvm_type(result, lanes), "%y")
    return LOOP.format(k=k, addresses="\n  ".join(slots), loads="\n  ".join(places + loads), result=llvm_type(result, lanes), symbol=symbol,
                       given=given, store=f"{byte}store {kind} {name}, ptr %q{len(types)}, align 1", lanes=lanes)


def signature(text):
    """The elements of the arguments and of the result of a definition."""
    match = re.match(r"define internal (.*?) @\S+?\((.*?)\) nounwind", text)
    result, *types = (re.sub(r"<\d+ x (\w+)>", r"\1", t) for t in (match[1], *(a.rsplit(" ", 1)[0] for a in match[2].split(", "))))
    return [ELEMENT.get(t, t) for t in types], ELEMENT.get(result, result)


def compiled(functions, fused=True):
    """Functions of numpy arrays, of (symbol, texts, lanes), made in one module; `%first` picks one of them."""
    texts, signatures = {}, []
    for symbol, needed, _ in functions:
        texts |= needed
        signatures.append(signature(needed[symbol]))
    loops = [loop(k, symbol, *signatures[k], lanes) for k, (symbol, _, lanes) in enumerate(functions)]
    cases = "\n".join(f"c{k}:\n  call void @loop{k}(ptr %arguments, i64 %last)\n  ret void" for k in range(len(functions)))
    switch = " ".join(f"i64 {k}, label %c{k}" for k in range(len(functions)))
    kernel = f"""define void @kernel(ptr %arguments, ptr %scratch, i64 %first, i64 %last) {{
  switch i64 %first, label %none [ {switch} ]
none:
  ret void
{cases}
}}"""
    loaded = elf.load(llvm.assemble("\n".join([*texts.values(), *loops, kernel]), fused))
    entry = CALL(loaded.address("entry"))

    def caller(k):
        types, result = signatures[k]

        def call(*arrays):
            assert loaded is not None
            size = len(arrays[0])
            padded = -(-size // 16) * 16
            arrays = [np.resize(np.asarray(a), padded).astype(NUMPY[t], copy=False) for a, t in zip(arrays, types, strict=True)]
            out = np.empty(padded, NUMPY[result])
            entry(np.array([a.ctypes.data for a in (*arrays, out)], np.int64).ctypes.data, None, k, padded)
            return out[:size]
        return call
    return [caller(k) for k in range(len(functions))]


def made(names, element, lanes=16, fused=True):
    return dict(zip(names, compiled([(*mathematics.function(name, element, lanes), lanes) for name in names], fused)))


def ulps(got, exact):
    """The largest error in units of the last place of the result's type; infinity where one is NaN or infinite and the other is not."""
    nearest = exact.astype(got.dtype)
    finite = np.isfinite(nearest) & np.isfinite(got)
    same = (got == nearest) | (np.isnan(got) & np.isnan(nearest))
    unit = np.maximum(np.spacing(np.abs(nearest[finite])), np.finfo(got.dtype).smallest_subnormal).astype(WIDE)
    error = np.abs(got[finite].astype(WIDE) - exact[finite].astype(WIDE)) / unit
    return max(float(error.max(initial=0)), 0.0 if same[~finite].all() else math.inf)


def same(got, expected):
    """Equal, NaN to NaN and zeros of one sign."""
    zeros = expected == 0
    np.testing.assert_array_equal(got, expected)
    np.testing.assert_array_equal(np.signbit(got[zeros]), np.signbit(expected[zeros]))
