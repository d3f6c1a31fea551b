"""One rule of tritorch/cuda/native, compiled and run: arrays in, arrays out. bfloat16 is given as its bits, uint16."""
import ctypes

import numpy as np
import pytest

llvm = pytest.importorskip("tritorch.cuda.native.llvm")
elf = pytest.importorskip("tritorch.cuda.native.elf")

from tritorch.cuda.native import emit, ttir  # noqa: E402

ELEMENTS = {"f4": "f32", "f8": "f64", "f2": "f16", "i1": "i8", "i2": "i16", "i4": "i32", "i8": "i64", "b1": "i1", "u2": "bf16", "u8": "ptr"}
DTYPES = {element: np.dtype(code if code != "b1" else "?") for code, element in ELEMENTS.items()}


def type_of(array):
    return ttir.Type(array.shape, ELEMENTS[array.dtype.str[1:]])


def operator(name, arrays, results, attributes):
    """An Op that looks as if it had been read."""
    op = ttir.Op(name, [ttir.Value(f"%x{i}", type_of(a)) for i, a in enumerate(arrays)], [], "", attributes)
    op.results = [ttir.Value(f"%y{i}", kind, op) for i, kind in enumerate(results)]
    return op


def chained(*ops):
    """Operators of which each uses the first result of the one before; the results are those of the last."""
    for op, following in zip(ops, ops[1:]):
        op.results[0].users.append(following)
    return ops


def text_of(rules, ops, combine=None, repeats=None):
    """The LLVM text of a kernel whose arguments are the addresses of the operands and of the results, of one operator or of a chain."""
    em = emit.Emitter()

    def pointer(i):
        return em.set(f"load ptr, ptr {em.set(f'getelementptr ptr, ptr %arguments, i64 {i}')}")

    operands = [emit.Buffer(pointer(i), value.type) for i, value in enumerate(ops[0].operands)]
    outs = [emit.Buffer(pointer(len(operands) + i), value.type) for i, value in enumerate(ops[-1].results)]
    with em.loop(0, repeats or 1):
        results = operands
        for op in ops:
            results = rules[op.name](em, op, results, lambda region, inputs, lanes: combine(em, lanes, *inputs))
        for out, result in zip(outs, results):
            if isinstance(result, emit.Buffer):
                assert result.type == out.type
                em.copy(out, result)
            else:
                em.store(out, "0", result, 1)
    body = "\n".join(em.lines)
    head = "define void @kernel(ptr %arguments, ptr %scratch, i64 %first, i64 %last) {\nentry:"
    return "\n".join([*em.definitions.values(), head, body, "  ret void", "}"]), em.scratch


def run(rules, name, arrays, results, combine=None, **attributes):
    """`results` are types. Operands and results have guards behind them, which nobody may write."""
    op = operator(name, arrays, results, attributes)
    op.regions = [None] * (combine is not None)
    return run_text(*text_of(rules, [op], combine), arrays, results)


def run_text(text, size, arrays, results):
    """A text of `text_of`."""
    code = elf.load(llvm.assemble(text))
    function = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)(code.address("entry"))
    scratch = np.full(size + 128, 0xA5, np.uint8)
    base = -scratch.ctypes.data % 64
    places = [guarded(a.nbytes, a) for a in arrays]
    places += [guarded(kind.size * DTYPES[kind.element].itemsize) for kind in results]
    arguments = np.array([place.ctypes.data for place in places], np.int64)
    function(arguments.ctypes.data, scratch.ctypes.data + base, 0, 1)
    assert (scratch[base + size:] == 0xA5).all(), "the kernel wrote behind its scratch memory"
    for place, array in zip(places, arrays):
        assert place[:array.nbytes].tobytes() == array.tobytes(), "the kernel wrote to an operand"
    outs = []
    for place, kind in zip(places[len(arrays):], results):
        size = kind.size * DTYPES[kind.element].itemsize
        assert (place[size:] == 0xA5).all()
        outs.append(place[:size].view(DTYPES[kind.element]).reshape(kind.shape))
    return outs


def guarded(size, array=None):
    place = np.full(size + 64, 0xA5, np.uint8)
    if array is not None:
        place[:size] = np.frombuffer(array.tobytes(), np.uint8)
    return place
