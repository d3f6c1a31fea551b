"""Comparisons, predicates, logic, bits, where, clamp and their kin against PyTorch."""
import numpy as np
import pytest
from oracle import EVERY, FLOATS, SPECIAL, WHOLES, agree, draw

COMPARISONS = "eq ne lt le gt ge not_equal less less_equal greater greater_equal".split()
PREDICATES = "isnan isinf isfinite isposinf isneginf signbit isreal logical_not".split()
LOGIC = "logical_and logical_or logical_xor".split()
BITS = "bitwise_and bitwise_or bitwise_xor bitwise_left_shift bitwise_right_shift gcd lcm".split()
GRID = np.meshgrid(SPECIAL, SPECIAL)


@pytest.mark.parametrize("name", COMPARISONS + LOGIC)
def test_comparisons_and_logic(name):
    for kind in EVERY:
        x, y = (GRID if kind in FLOATS else (draw(5, 6, dtype=kind, seed=1), draw(6, dtype=kind, seed=2)))
        agree(lambda lib, x, y: getattr(lib, name)(x, y), (x, kind), (y, kind), what=f"{name} {kind}")
        agree(lambda lib, x, y: getattr(x.clone(), name + "_")(y), (x, kind), (y, kind), what=f"{name}_ {kind}")
        if name in COMPARISONS:
            for number in (1, 0.5, True, float("nan")):
                agree(lambda lib, x, number=number: getattr(x, name)(number), (x, kind), what=f"{name} {kind} {number}")
    agree(lambda lib, x, y: getattr(lib, name)(x, y), draw(3), draw(4))


@pytest.mark.parametrize("name", PREDICATES)
def test_predicates(name):
    for kind in EVERY:
        agree(lambda lib, x: getattr(lib, name)(x), (SPECIAL if kind in FLOATS else draw(6, dtype=kind), kind), what=f"{name} {kind}")


@pytest.mark.parametrize("name", BITS)
def test_bits(name):
    for kind in (*WHOLES, "bool", "float32"):
        x, y = draw(5, 6, dtype=kind, seed=1), draw(6, dtype=kind, seed=2)
        if "shift" in name and kind in WHOLES:
            y = np.abs(y) % 7
        agree(lambda lib, x, y: getattr(lib, name)(x, y), (x, kind), (y, kind), what=f"{name} {kind}")
        agree(lambda lib, x, y: getattr(x.clone(), name + "_")(y), (x, kind), (y, kind), what=f"{name}_ {kind}")
        if name.startswith("bitwise"):
            for number in (3, True, 1.5):
                agree(lambda lib, x, number=number: getattr(lib, name)(x, number), (x, kind), what=f"{name} {kind} {number}")
    for f in (lambda x: ~x, lambda x: x & 3, lambda x: 3 | x, lambda x: x ^ True, lambda x: x << 2, lambda x: x >> 1, lambda x: 1 << x):
        for kind in ("int64", "uint8", "bool", "float32"):
            agree(lambda lib, x, f=f: f(x), (np.array([0, 1, 2, 3]), kind), what=kind)


def test_where():
    for a in EVERY:
        for b in EVERY:
            agree(lambda lib, x, y: lib.where(x != 0, x, y), (draw(3, 4, dtype=a, seed=1), a), (draw(4, dtype=b, seed=2), b),
                  what=f"{a} {b}")
        for number in (2, 2.5, True):
            agree(lambda lib, x, number=number: (lib.where(x != 0, x, number), lib.where(x != 0, number, x)),
                  (draw(3, 4, dtype=a, seed=1), a), what=f"{a} {number}")
    agree(lambda lib, x: lib.where(x > 0, 1, 2), draw(4))
    agree(lambda lib, x: lib.where(x > 0, 1.0, 2), draw(4))
    agree(lambda lib, x: lib.where(x > 0), draw(4, 3))
    agree(lambda lib, x: lib.where(x, x, x), draw(4))
    agree(lambda lib, x, y: x.where(y > 0, y), draw(4), draw(3, 4, seed=1), grad=True)
    agree(lambda lib, x, y: lib.where(x > 0, x, y), draw(4), draw(3, 4, seed=1), grad=True)
    agree(lambda lib, x, y: lib.where(x > 0, x, y), draw(4), draw(3, seed=1))
    agree(lambda lib, x: lib.where(x > 0, x, lib.tensor(float("nan"))), draw(5), grad=True)


def test_clamp():
    for kind in (*FLOATS, *WHOLES):
        x = SPECIAL if kind in FLOATS else draw(9, dtype=kind)
        for low, high in ((-1, 1), (0, None), (None, 2), (0.5, 2.5), (3, 1), (-2, 1.5)):
            if kind == "uint8" and min(low or 0, high or 0) < 0:
                continue
            agree(lambda lib, x, low=low, high=high: x.clamp(low, high), (x, kind), what=f"{kind} {low} {high}", grad=kind == "float64")
            agree(lambda lib, x, low=low, high=high: x.clone().clamp_(low, high), (x, kind), what=f"{kind} {low} {high} in place")
        agree(lambda lib, x: (x.clamp_min(1), x.clamp_max(1), lib.clip(x, 1, 2)), (x, kind), what=kind)
        agree(lambda lib, x: x.clamp(max=lib.tensor([1.0, 2.0, 3.0]).to(x.dtype)), (x[:3], kind), what=kind)
    agree(lambda lib, x: x.clamp(), draw(3))
    agree(lambda lib, x: x.clamp(0, 1), draw(3, dtype="bool"))
    x, low, high = draw(4, 3), draw(3, seed=1) - 1, draw(3, seed=2) + 1
    agree(lambda lib, x, low, high: x.clamp(low, high), x, low, high, grad=True)
    agree(lambda lib, x, low: x.clamp(min=low), x, low, grad=True)
    agree(lambda lib, x, low: lib.clamp(x, low, None, out=lib.empty(0)), x, low)
    agree(lambda lib, x: x.clamp(float("nan"), 1), x)


def test_close():
    x, y = SPECIAL, SPECIAL + 1e-6
    for kind in ("float32", "float64"):
        for nan in (False, True):
            agree(lambda lib, x, y, nan=nan: (lib.isclose(x, y, equal_nan=nan), lib.allclose(x, y, equal_nan=nan),
                                              lib.allclose(x, x, equal_nan=nan)), (x, kind), (y, kind))
    agree(lambda lib, x: (lib.isclose(x, x + 1), lib.allclose(x, x), lib.isclose(x, x + 1, atol=1)), np.arange(4))
    agree(lambda lib, x: lib.isclose(x, x.double()), draw(3))
    agree(lambda lib, x: lib.isclose(x, x, rtol=-1), draw(3))
    agree(lambda lib, x: (lib.equal(x, x), lib.equal(x, x + 1), lib.equal(x, x[:2])), draw(3))


def test_replacing():
    for kind in FLOATS:
        agree(lambda lib, x: x.nan_to_num(), (SPECIAL, kind), what=kind)
        agree(lambda lib, x: x.nan_to_num(1, 2, 3), (SPECIAL, kind), what=kind)
    agree(lambda lib, x: x.nan_to_num(), SPECIAL, grad=True)
    agree(lambda lib, x: x.nan_to_num(), np.arange(3))
    for kind in ("int64", "float32"):
        x = (np.array([1, 2, 3, 2, 5]), kind)
        agree(lambda lib, x: (lib.isin(x, lib.tensor([2, 5]).to(x.dtype)), lib.isin(x, 2), lib.isin(x, x[:0]),
                              lib.isin(x, x[1:3], invert=True)), x, what=kind)


def test_three_operands():
    x, y, z = draw(4, 3, dtype="float64"), draw(3, dtype="float64", seed=1), draw(4, 1, dtype="float64", seed=2)
    agree(lambda lib, x, y, z: lib.lerp(x, y, z), x, y, z, grad=True)
    agree(lambda lib, x, y: lib.lerp(x, y, 0.3), x, y, grad=True)
    for value in (1, 0.5, -2):
        agree(lambda lib, x, y, z, value=value: lib.addcmul(x, y, z, value=value), x, y, z, grad=True)
        agree(lambda lib, x, y, z, value=value: lib.addcdiv(x, y, z, value=value), x, y, z, grad=True)
    for kind in ("int64", "float16", "bfloat16", "uint8"):
        agree(lambda lib, x, y, z: lib.addcmul(x, y, z),
              *[(v, kind) for v in (draw(4, dtype="uint8"), draw(4, dtype="uint8", seed=1), draw(4, dtype="uint8", seed=2))], what=kind)
    agree(lambda lib, x: lib.addcdiv(x, x, x), np.array([1, 2]))
    agree(lambda lib, x, y: lib.lerp(x, y, 0.5), x, (y, "float32"))
    agree(lambda lib, x, y, z: x.clone().addcmul_(y, z).lerp_(x, 0.25).addcdiv_(x, x), x, y, z)


def test_truth():
    for value in (0.0, 2.0, [1.0], [[0]], [], [1, 2]):
        agree(lambda lib, value=value: bool(lib.tensor(value)), what=str(value))
        agree(lambda lib, value=value: lib.is_nonzero(lib.tensor(value)), what=str(value))


def test_on_a_cuda_device(cuda):
    for name in COMPARISONS[:6] + LOGIC:
        agree(lambda lib, x, y, name=name: getattr(lib, name)(x, y), *GRID, device=cuda, what=name)
    for name in PREDICATES:
        agree(lambda lib, x, name=name: getattr(lib, name)(x), (SPECIAL, "bfloat16"), device=cuda, what=name)
        agree(lambda lib, x, name=name: getattr(lib, name)(x), np.arange(4), device=cuda, what=name)
    for name in BITS:
        for kind in (*WHOLES, "bool"):
            agree(lambda lib, x, y, name=name: getattr(lib, name)(x, y),
                  (np.abs(draw(6, dtype=kind)) if kind != "bool" else draw(6, dtype=kind), kind),
                  (np.array([0, 1, 2, 3, 2, 1]), kind), device=cuda, what=f"{name} {kind}")
    for kind in EVERY:
        agree(lambda lib, x, y: (lib.where(x != 0, x, y), lib.where(x != 0, x, 2.5)), (draw(3, 4, dtype=kind), kind),
              (draw(4, dtype="int32"), "int32"), device=cuda, what=kind)
    agree(lambda lib, x: (x.clamp(-1, 1), x.clamp(min=0), x.nan_to_num()), (SPECIAL, "float32"), device=cuda)
    agree(lambda lib, x: (x.clamp(-1, 1), x.clamp(min=0)), np.arange(-3, 4), device=cuda)
