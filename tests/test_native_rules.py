"""The rules of the native device for reductions, scans and moves of elements, each compiled alone, against numpy."""
import itertools

import numpy as np
import pytest
from native_rules import chained, operator, run, run_text, text_of, type_of

from tritorch.cuda.native import reductions, shapes
from tritorch.cuda.native.ttir import Type

SHAPES = [(1,), (2,), (8,), (32,), (256,), (2, 64), (64, 2), (4, 4), (16, 16), (1, 8), (8, 1), (128, 16), (2, 4, 8), (16, 2, 4), (4, 1, 32),
          (2, 8, 2, 4)]
CASES = [(shape, axis) for shape in SHAPES for axis in range(len(shape))]


def numbers(shape, dtype, seed=0):
    random = np.random.default_rng(seed)
    if dtype == "?":
        return random.random(shape) < 0.9
    if dtype[0] == "f":
        return random.standard_normal(shape).astype(dtype)
    return random.integers(-1000 if dtype[0] == "i" else 0, 1000, shape).astype(dtype)


def without(shape, axis, element):
    return Type(shape[:axis] + shape[axis + 1:], element)


def added(em, lanes, x, y):
    return [em.value("fadd", "f32", lanes, x, y)]


def added_whole(element):
    return lambda em, lanes, x, y: [em.value("add", element, lanes, x, y)]


def anded(em, lanes, x, y):
    return [em.value("and", "i1", lanes, x, y)]


def larger_bits(em, lanes, x, y):
    """bfloat16 of no sign, as bits."""
    kind, more = many("i16", lanes), em.value("icmp ugt", "i16", lanes, x, y)
    return [em.set(f"select {many('i1', lanes)} {more}, {kind} {x}, {kind} {y}")]


def many(kind, lanes):
    return kind if lanes == 1 else f"<{lanes} x {kind}>"


def first_largest(em, lanes, x, i, y, j):
    """Triton's argmax that breaks ties to the left."""
    more, equal = em.value("fcmp ogt", "f32", lanes, x, y), em.value("fcmp oeq", "f32", lanes, x, y)
    earlier = em.value("and", "i1", lanes, equal, em.value("icmp slt", "i32", lanes, i, j))
    takes = em.value("or", "i1", lanes, more, earlier)
    return [em.set(f"select {many('i1', lanes)} {takes}, {many(kind, lanes)} {a}, {many(kind, lanes)} {b}")
            for kind, a, b in (("float", x, y), ("i32", i, j))]


@pytest.mark.parametrize("shape, axis", CASES)
def test_sums(shape, axis):
    x = numbers(shape, "f4")
    out, = run(reductions.RULES, "tt.reduce", [x], [without(shape, axis, "f32")], added, axis=axis)
    np.testing.assert_allclose(out, x.astype("f8").sum(axis), rtol=1e-6, atol=2e-5)


@pytest.mark.parametrize("shape, axis", CASES[::4] + [((512,), 0), ((4, 512), 1), ((512, 4), 0)])
@pytest.mark.parametrize("dtype, element", [("i8", "i64"), ("i4", "i32")])
def test_sums_of_integers(shape, axis, dtype, element):
    x = numbers(shape, dtype)
    out, = run(reductions.RULES, "tt.reduce", [x], [without(shape, axis, element)], added_whole(element), axis=axis)
    np.testing.assert_array_equal(out, x.sum(axis))


@pytest.mark.parametrize("shape, axis", CASES[1::3])
def test_all_and_largest_of_narrow_elements(shape, axis):
    x = numbers(shape, "?")
    out, = run(reductions.RULES, "tt.reduce", [x], [without(shape, axis, "i1")], anded, axis=axis)
    np.testing.assert_array_equal(out, x.all(axis))
    x = numbers(shape, "u2")
    out, = run(reductions.RULES, "tt.reduce", [x], [without(shape, axis, "bf16")], larger_bits, axis=axis)
    np.testing.assert_array_equal(out, x.max(axis))


@pytest.mark.parametrize("shape, axis", CASES[::2] + [((512,), 0), ((64, 256), 0)])
def test_argmax_breaks_ties_to_the_left(shape, axis):
    x = numbers(shape, "i4").astype("f4") // 500                    # many are equal
    index = np.indices(shape, "i4")[axis].copy()
    kinds = [without(shape, axis, "f32"), without(shape, axis, "i32")]
    largest, where = run(reductions.RULES, "tt.reduce", [x, index], kinds, first_largest, axis=axis)
    np.testing.assert_array_equal(largest, x.max(axis))
    np.testing.assert_array_equal(where, x.argmax(axis))


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("shape, axis", CASES)
def test_scans(shape, axis, reverse):
    x = numbers(shape, "i8")
    out, = run(reductions.RULES, "tt.scan", [x], [type_of(x)], added_whole("i64"), axis=axis, reverse=reverse)
    expected = np.flip(np.flip(x, axis).cumsum(axis), axis) if reverse else x.cumsum(axis)
    np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("shape, axis", CASES[::2] + [((256, 32), 0)])
def test_scans_keep_the_order(shape, axis, reverse):
    """A recurrence h = a h + x, which does not commute, as two operands (a, x)."""
    a, x = numbers(shape, "i4", 1), numbers(shape, "i4", 2)

    def recurrence(em, lanes, a, x, b, y):
        kept = em.value("mul", "i32", lanes, x, b)
        return [em.value("mul", "i32", lanes, a, b), em.value("add", "i32", lanes, kept, y)]

    out = run(reductions.RULES, "tt.scan", [a, x], [type_of(a), type_of(x)], recurrence, axis=axis, reverse=reverse)
    factors, steps = (np.moveaxis(np.flip(v, axis) if reverse else v, axis, 0) for v in (a, x))
    product, h = np.ones_like(factors[0]), np.zeros_like(steps[0])
    for i in range(shape[axis]):
        with np.errstate(over="ignore"):
            product, h = product * factors[i], h * factors[i] + steps[i]
        at = shape[axis] - 1 - i if reverse else i
        np.testing.assert_array_equal(np.moveaxis(out[0], axis, 0)[at], product)
        np.testing.assert_array_equal(np.moveaxis(out[1], axis, 0)[at], h)


@pytest.mark.parametrize("shape", [(64, 64), (2, 256), (256, 2), (8, 4), (16, 32), (4, 64, 2), (2, 4, 64), (8, 4, 32), (8, 16, 1),
                                   (4, 8, 16), (2, 4, 2, 16), (1, 1, 4)], ids=str)
def test_permutations(shape):
    for i, order in enumerate(itertools.permutations(range(len(shape)))):
        x = numbers(shape, ("f4", "u2", "i8", "i1", "?")[i % 5])
        expected = x.transpose(order)
        out, = run(shapes.RULES, "tt.trans", [x], [type_of(expected)], order=list(order))
        np.testing.assert_array_equal(out, expected, err_msg=str(order))


@pytest.mark.parametrize("dtype", ["f4", "u2", "i8", "i1", "?", "f8", "u8"])
def test_transposes_of_all_widths(dtype):
    for shape in [(32, 64), (4, 128), (128, 2)]:
        x = numbers(shape, dtype)
        out, = run(shapes.RULES, "tt.trans", [x], [type_of(x.T)], order=[1, 0])
        np.testing.assert_array_equal(out, x.T)


@pytest.mark.parametrize("dtype", ["f4", "u2", "i8", "?"])
@pytest.mark.parametrize("shape", [(1,), (4,), (64,), (8, 2), (2, 4, 8)])
def test_join_and_split(shape, dtype):
    x, y = numbers(shape, dtype, 1), numbers(shape, dtype, 2)
    both = np.stack([x, y], -1)
    out, = run(shapes.RULES, "tt.join", [x, y], [type_of(both)])
    np.testing.assert_array_equal(out, both)
    left, right = run(shapes.RULES, "tt.split", [both], [type_of(x), type_of(y)])
    np.testing.assert_array_equal(left, x)
    np.testing.assert_array_equal(right, y)


@pytest.mark.parametrize("dtype", ["f4", "u2", "i8", "?"])
@pytest.mark.parametrize("shape, order", [((4, 128), (0, 2, 1)), ((8, 4), (2, 0, 1)), ((2, 4, 32), (0, 3, 1, 2)), ((16, 2), (0, 2, 1)),
                                          ((64,), (1, 0)), ((8, 16), (1, 0, 2)), ((8, 16), (1, 2, 0))])
def test_pairs_that_are_moved(shape, order, dtype):
    """A join whose new axis goes elsewhere at once, and a split along another axis than the last."""
    x, y = numbers(shape, dtype, 1), numbers(shape, dtype, 2)
    both = np.stack([x, y], -1)
    moved = np.ascontiguousarray(both.transpose(order))
    join, trans = operator("tt.join", [x, y], [type_of(both)], {}), operator("tt.trans", [both], [type_of(moved)], {"order": list(order)})
    out, = run_text(*text_of(shapes.RULES, chained(join, trans)), [x, y], [type_of(moved)])
    np.testing.assert_array_equal(out, moved)
    kinds = [type_of(x), type_of(y)]
    back = operator("tt.trans", [moved], [type_of(both)], {"order": np.argsort(order).tolist()})
    halves = run_text(*text_of(shapes.RULES, chained(back, operator("tt.split", [both], kinds, {}))), [moved], kinds)
    np.testing.assert_array_equal(halves, [x, y])


@pytest.mark.parametrize("sizes", [(1, 1), (4, 4), (64, 32)])
def test_cat_and_reshape(sizes):
    x, y = numbers(sizes[:1], "f4", 1), numbers(sizes[1:], "f4", 2)
    both = np.concatenate([x, y])
    out, = run(shapes.RULES, "tt.cat", [x, y], [type_of(both)])
    np.testing.assert_array_equal(out, both)
    out, = run(shapes.RULES, "tt.reshape", [x], [Type((1, sizes[0]), "f32")])
    np.testing.assert_array_equal(out, x[None])


@pytest.mark.parametrize("shape, axis", CASES)
def test_gather(shape, axis):
    x = numbers(shape, "f4")
    for places, dtype in ((shape[axis] * 2, "i4"), (1, "i8")):
        around = shape[:axis] + (places,) + shape[axis + 1:]
        index = np.random.default_rng(1).integers(0, shape[axis], around).astype(dtype)
        out, = run(shapes.RULES, "tt.gather", [x, index], [Type(around, "f32")], axis=axis)
        np.testing.assert_array_equal(out, np.take_along_axis(x, index.astype(np.intp), axis))


@pytest.mark.parametrize("bins", [1, 16, 128])
@pytest.mark.parametrize("dtype", ["i4", "i8"])
def test_histogram(bins, dtype):
    x = np.random.default_rng(0).integers(-3, bins + 3, 256).astype(dtype)
    mask = numbers((256,), "?")
    out, = run(shapes.RULES, "tt.histogram", [x], [Type((bins,), "i32")])
    np.testing.assert_array_equal(out, [(x == i).sum() for i in range(bins)])
    out, = run(shapes.RULES, "tt.histogram", [x, mask], [Type((bins,), "i32")])
    np.testing.assert_array_equal(out, [((x == i) & mask).sum() for i in range(bins)])
