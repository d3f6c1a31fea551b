"""tt.dot as machine code of this processor, against float64."""
import ctypes
import platform
import sys

import ml_dtypes
import numpy as np
import pytest

pytestmark = pytest.mark.skipif(platform.machine() != "x86_64" or sys.platform != "linux", reason="machine code for Linux on x86-64")

from tritorch.cuda.native import elf, llvm, products, ttir  # noqa: E402
from tritorch.cuda.native.emit import Buffer, Emitter  # noqa: E402

NUMPY = {"f32": np.float32, "f64": np.float64, "f16": np.float16, "bf16": ml_dtypes.bfloat16, "i8": np.int8, "i32": np.int32,
         "f8E5M2": ml_dtypes.float8_e5m2, "f8E4M3FN": ml_dtypes.float8_e4m3fn, "f8E4M3FNUZ": ml_dtypes.float8_e4m3fnuz}
TEXT = """module {{
  tt.func public @f(%a: {a}, %b: {b}, %c: {c}) {{
    %d = tt.dot %a, %b, %c, inputPrecision = {precision} : {a} * {b} -> {c}
    tt.return
  }}
}}"""
GUARD = 64                                                      # bytes behind a buffer that must stay as they are


def tensor(shape, element):
    return "tensor<" + "".join(f"{n}x" for n in shape) + element + ">"


class Compiled:
    """A function of the buffers a, b, c and a place for the result."""

    def __init__(self, shapes, elements, in_place=False, held=None, precision="ieee"):
        a, b, c = (tensor(shape, element) for shape, element in zip(shapes, elements))
        op = ttir.parse(TEXT.format(a=a, b=b, c=c, precision=precision))[0].blocks[0].ops[0]
        em = Emitter()
        kinds = [value.type for value in op.operands]
        if held:                                                # the operands' buffers have this type already
            kinds[:2] = [kind.of(held) for kind in kinds[:2]]
        buffers = [Buffer(em.set(f"load ptr, ptr {self.slot(em, i)}"), kind) for i, kind in enumerate([*kinds, kinds[2]])]
        into = {None: None, False: buffers[3], True: buffers[2]}[in_place]
        out, = products.dot(em, op, buffers[:3], into=into)
        if into is None:
            em.copy(buffers[3], out)
        em.line("ret void")
        text = "\n".join(["define void @kernel(ptr %arguments, ptr %scratch, i64 %first, i64 %last) {", "entry:", *em.lines, "}",
                          *em.definitions.values()])
        self.code = elf.load(llvm.assemble(text))
        self.scratch = np.empty(em.scratch + 64, np.uint8)
        self.left_over = em.scratch - sum(size for _, size in em.holes)

    @staticmethod
    def slot(em, i):
        return em.set(f"getelementptr ptr, ptr %arguments, i64 {i}")

    def __call__(self, *arrays):
        guarded = [np.full(array.nbytes + GUARD, 0xA5, np.uint8) for array in arrays]
        for room, array in zip(guarded, arrays):
            room[:array.nbytes] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        pointers = (ctypes.c_void_p * len(arrays))(*(room.ctypes.data for room in guarded))
        scratch = -(-self.scratch.ctypes.data // 64) * 64
        kind = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
        kind(self.code.address("entry"))(ctypes.addressof(pointers), scratch, 0, 1)
        assert all((room[-GUARD:] == 0xA5).all() for room in guarded)
        return [room[:array.nbytes].view(array.dtype).reshape(array.shape) for room, array in zip(guarded, arrays)]


def numbers(rng, shape, element):
    if element in ("i8", "i32"):
        return rng.integers(-128, 128, shape).astype(NUMPY[element])
    return rng.standard_normal(shape).astype(NUMPY[element])


def operands(rng, shapes, elements):
    return [numbers(rng, shape, element) for shape, element in zip(shapes, elements)]


def check(result, a, b, c, element):
    a, b, c = (x.astype(np.float64) for x in (a, b, c))
    exact, size = a @ b + c, abs(a) @ abs(b) + abs(c)
    if element == "i32":
        assert np.array_equal(result, exact)
        return
    last_place = {"f64": 2.0**-52, "f32": 2.0**-23, "f16": 2.0**-23}[element]
    allowed = a.shape[-1] * last_place * size + (2.0**-11 * abs(exact) + 2.0**-24 if element == "f16" else 0)
    assert (abs(result - exact) <= allowed).all()


def run(shapes, elements, **options):
    rng = np.random.default_rng(sum(shapes[0]) + 7 * shapes[1][-1])
    a, b, c = operands(rng, shapes, elements)
    compiled = Compiled(shapes, elements, **options)
    poison = np.full(c.shape, np.nan if elements[2] != "i32" else -1).astype(c.dtype)
    after = compiled(a, b, c, poison)
    in_place = options.get("in_place", False)
    assert all(x.tobytes() == y.tobytes() for x, y in zip(after[:2 if in_place else 3], (a, b, c)))
    check(after[2 if in_place else 3], a, b, c, elements[2])
    return compiled


def matrices(M, N, K):
    return (M, K), (K, N), (M, N)


TYPES = [("f32", "f32", "f32"), ("f16", "f16", "f32"), ("f16", "f16", "f16"), ("bf16", "bf16", "f32"), ("bf16", "bf16", "f16"),
         ("f64", "f64", "f64"), ("i8", "i8", "i32"), ("f8E5M2", "f8E5M2", "f32"), ("f8E4M3FN", "f8E4M3FN", "f16"),
         ("f8E4M3FN", "f8E5M2", "f32"), ("f8E4M3FNUZ", "f8E4M3FNUZ", "f32")]


@pytest.mark.parametrize("elements", TYPES, ids="-".join)
@pytest.mark.parametrize("sizes", [(16, 32, 32), (4, 64, 8)], ids=str)
def test_types(elements, sizes):
    run(matrices(*sizes), elements)


SHAPES = [(1, 1, 1), (1, 1, 64), (2, 1, 4), (1, 2, 2), (1, 128, 16), (128, 1, 16), (64, 2, 1), (2, 128, 32), (128, 4, 64), (8, 8, 128),
          (32, 8, 2), (16, 16, 16), (128, 16, 8), (64, 64, 32), (64, 128, 64), (128, 128, 128), (32, 256, 32)]


@pytest.mark.parametrize("sizes", SHAPES, ids=str)
def test_shapes(sizes):
    run(matrices(*sizes), ("f32", "f32", "f32"))


@pytest.mark.parametrize("sizes", [(1, 1, 1), (2, 2, 32), (1, 64, 16), (128, 128, 64)], ids=str)
def test_shapes_of_narrow_types(sizes):
    run(matrices(*sizes), ("bf16", "bf16", "f32"))
    run(matrices(*sizes), ("i8", "i8", "i32"))


@pytest.mark.parametrize("elements", [("f32", "f32", "f32"), ("f16", "f16", "f16"), ("f64", "f64", "f64")], ids="-".join)
def test_batches(elements):
    run([(4, 8, 16), (4, 16, 64), (4, 8, 64)], elements)
    run([(1, 32, 64), (1, 64, 128), (1, 32, 128)], elements)
    run([(2, 32, 64), (2, 64, 128), (2, 32, 128)], elements, in_place=True)


@pytest.mark.parametrize("elements", [("f32", "f32", "f32"), ("bf16", "bf16", "f16"), ("i8", "i8", "i32")], ids="-".join)
def test_sum_in_the_place_of_c(elements):
    run(matrices(32, 32, 16), elements, in_place=True)


def test_result_in_a_buffer_of_its_own():
    compiled = run(matrices(8, 16, 32), ("bf16", "bf16", "f32"), in_place=None)
    assert compiled.left_over == 8 * 16 * 4                     # the result; what the widened operands took was given back


def test_operands_that_are_widened_already():
    shapes = matrices(32, 64, 16)
    a, b, c = (x.astype(np.float32) for x in operands(np.random.default_rng(0), shapes, ("bf16", "bf16", "f32")))
    compiled = Compiled(shapes, ("bf16", "bf16", "f32"), held="f32")
    check(compiled(a, b, c, np.full_like(c, np.nan))[3], a, b, c, "f32")
    assert not len(compiled.scratch) - 64                       # there was nothing to widen


def test_one_function_for_products_of_a_kind():
    em = Emitter()
    for M, N, K in [(16, 16, 16), (16, 32, 16), (16, 16, 16)]:
        kinds = [ttir.Type(shape, "f32") for shape in matrices(M, N, K)]
        op = ttir.Op("tt.dot", [], [ttir.Value("%d", kinds[2])], "")
        products.dot(em, op, [Buffer(f"%p{i}", kind) for i, kind in enumerate(kinds)])
    symbols = [line.partition("@dot")[2].partition("(")[0] for line in em.lines if "call" in line]
    assert symbols[0] == symbols[2] != symbols[1]
    assert sum(name.startswith("@dot") for name in em.definitions) == 2


@pytest.mark.parametrize("K", [16, 1024, 2048])
def test_integers_wrap(K):
    """The largest sums that float32 has, and those of more products, which it does not."""
    shapes = matrices(2, 16, K)
    a, b = np.full(shapes[0], -128, np.int8), np.full(shapes[1], -128, np.int8)
    c = np.full(shapes[2], 2**31 - 1, np.int32)
    result = Compiled(shapes, ("i8", "i8", "i32"))(a, b, c, np.zeros_like(c))[3]
    assert (result == K * 128 * 128 - 2**31 - 1).all()


@pytest.mark.parametrize("elements", [TYPES[0], TYPES[2], TYPES[3], TYPES[5]], ids="-".join)
def test_nan_and_infinity(elements):
    shapes = matrices(8, 32, 16)
    a, b, c = operands(np.random.default_rng(3), shapes, elements)
    a[1, 2], a[2, 3], a[3, 4], b[5, 6], b[3, 8], c[6, 0], c[7, 31] = np.nan, np.inf, -np.inf, np.nan, 0, np.inf, np.nan
    b[7, 9] = np.inf
    result = Compiled(shapes, elements)(a, b, c, np.zeros_like(c))[3].astype(np.float64)
    with np.errstate(invalid="ignore"):
        exact = a.astype(np.float64) @ b.astype(np.float64) + c.astype(np.float64)
    special = ~np.isfinite(exact)
    assert special.sum() > 80 and np.array_equal(result[special], exact[special], equal_nan=True) and np.isfinite(result[~special]).all()


@pytest.mark.parametrize("precision", ["tf32", "tf32x3", "ieee"])
@pytest.mark.parametrize("sizes", [(16, 32, 16), (32, 256, 64), (1, 16, 2)], ids=str)
def test_what_matrix_units_look_at(precision, sizes):
    """A kernel may add half of the last bit of TF32 to round: infinity has to stay what it is."""
    shapes = matrices(*sizes)
    a, b, c = operands(np.random.default_rng(1), shapes, ("f32",) * 3)
    a[0, 0], b[1, 3] = np.inf, -np.inf
    seen, given = (a, b), (a, b)
    if precision == "tf32":
        bits = [x.view(np.uint32) & np.uint32(0xFFFFE000) for x in (a, b)]
        seen, given = [x.view(np.float32) for x in bits], [(x + np.uint32(0x1000)).view(np.float32) for x in bits]
    result = Compiled(shapes, ("f32",) * 3, precision=precision)(*given, c, np.full_like(c, np.nan))[3]
    with np.errstate(invalid="ignore"):
        exact = seen[0].astype(np.float64) @ seen[1] + c
    np.testing.assert_allclose(result, exact, rtol=0, atol=1e-5 * shapes[0][1] ** 0.5)


def test_narrower_types_are_whole_in_tf32():
    run(matrices(16, 32, 32), ("f16", "f16", "f32"), precision="tf32")
    run(matrices(16, 32, 32), ("bf16", "bf16", "f32"), precision="tf32")


def test_overflow_of_a_half_is_infinity():
    shapes = matrices(4, 16, 16)
    a, b, c = np.full(shapes[0], 100, np.float16), np.full(shapes[1], 100, np.float16), np.zeros(shapes[2], np.float16)
    assert np.isposinf(Compiled(shapes, ("f16", "f16", "f16"))(a, b, c, c)[3]).all()


@pytest.mark.parametrize("processor", ["x86-64-v4", "x86-64-v2"])
def test_tiles_of_other_processors(processor, monkeypatch):
    monkeypatch.setattr(products, "processor", lambda: (processor, ""))
    tile = products.tile_of(64, 64, "f32")
    assert tile.rows * tile.columns * 4 == {"x86-64-v4": 16 * 64, "x86-64-v2": 8 * 16}[processor]
    run(matrices(16, 64, 16), ("f32", "f32", "f32"))
    run(matrices(32, 128, 64), ("bf16", "bf16", "f32"))
    run(matrices(4, 4, 4), ("f64", "f64", "f64"))
