"""Result types against PyTorch: every pair of dtypes, as tensors, 0-dim tensors and numbers; casts in place; wrapping."""
import numpy as np
import pytest
from oracle import EVERY, WHOLES, agree, same, tensor

import tritorch

torch = pytest.importorskip("torch")

NUMBERS = [True, 2, 1.5]
BINARY = {
    "add": lambda lib, x, y: lib.add(x, y), "mul": lambda lib, x, y: x * y, "div": lambda lib, x, y: x / y, "eq": lambda lib, x, y: x == y,
    "lt": lambda lib, x, y: x < y, "atan2": lambda lib, x, y: lib.atan2(x, y), "pow": lambda lib, x, y: x ** y, "sub": lambda lib, x,
    y: x - y,
    "bitwise": lambda lib, x, y: x & y, "floor": lambda lib, x, y: x // y, "logical": lambda lib, x, y: lib.logical_and(x, y),
    "maximum": lambda lib, x, y: lib.maximum(x, y), "where": lambda lib, x, y: lib.where(lib.tensor([True, False, True]), x, y),
    "result_type": lambda lib, x, y: lib.result_type(x, y),
}


def operands(kind):
    """A tensor and a 0-dim tensor of a dtype."""
    return (np.array([1, 1, 1]), kind), (np.array(1), kind)


@pytest.mark.parametrize("name", BINARY)
def test_pairs(name):
    for a in EVERY:
        for b in EVERY:
            for x in operands(a):
                for y in operands(b):
                    agree(BINARY[name], x, y, what=f"{name} {a}{x[0].shape} {b}{y[0].shape}")


@pytest.mark.parametrize("name", sorted(set(BINARY) - {"maximum", "atan2", "logical"}))                 # which take no numbers in PyTorch
def test_numbers(name):
    for kind in EVERY:
        for number in NUMBERS:
            for x in operands(kind):
                agree(lambda lib, x, number=number: BINARY[name](lib, x, number), x, what=f"{name} {kind} {number}")
                agree(lambda lib, x, number=number: BINARY[name](lib, number, x), x, what=f"{name} {number} {kind}")


def test_cat_and_stack():
    for a in EVERY:
        for b in EVERY:
            x, y = operands(a)[0], operands(b)[0]
            agree(lambda lib, x, y: (lib.cat([x, y]), lib.stack([x, y])), x, y, what=f"{a} {b}")


def test_in_place_casts():
    for a in EVERY:
        for b in EVERY:
            for name in ("add_", "mul_", "div_", "copy_", "eq_", "logical_and_"):
                agree(lambda lib, x, y, name=name: getattr(x.clone(), name)(y), operands(a)[0], operands(b)[0], what=f"{a} {name} {b}")
        for number in NUMBERS:
            for name in ("add_", "mul_", "div_", "sub_"):
                agree(lambda lib, x, name=name, number=number: getattr(x.clone(), name)(number), operands(a)[0],
                      what=f"{a} {name} {number}")


def test_outputs_of_other_dtypes():
    for a in EVERY:
        for b in EVERY:
            agree(lambda lib, x, b=b: lib.add(x, x, out=lib.empty(3, dtype=getattr(lib, b))), operands(a)[0], what=f"{a} into {b}")
            agree(lambda lib, x, b=b: lib.sin(x, out=lib.empty(3, dtype=getattr(lib, b))), operands(a)[0], what=f"sin {a} into {b}",
                  rtol=1e-2)


def test_functions_on_dtypes():
    for a in EVERY:
        for b in EVERY:
            same(tritorch.promote_types(getattr(tritorch, a), getattr(tritorch, b)),
                 torch.promote_types(getattr(torch, a), getattr(torch, b)), what=f"{a} {b}")
            assert tritorch.can_cast(getattr(tritorch, a), getattr(tritorch, b)) == torch.can_cast(getattr(torch, a),
                getattr(torch, b)), f"{a} {b}"


def test_reductions_and_casts_keep_their_rules():
    for kind in EVERY:
        for f in (lambda lib, x: x.sum(), lambda lib, x: x.prod(), lambda lib, x: x.cumsum(0), lambda lib, x: x.mean(), lambda lib,
                  x: x.sum(dtype=lib.float32), lambda lib, x: x.max(),
                  lambda lib, x: x.any(), lambda lib, x: x.float() + x, lambda lib, x: x.clone(), lambda lib, x: lib.zeros_like(x),
                  lambda lib, x: x * lib.tensor(2.0)):
            agree(f, operands(kind)[0], what=f"{kind} {f.__code__.co_names}")


def test_whole_numbers_wrap():
    for kind in WHOLES:
        limits = np.iinfo(kind)
        x = (np.array([limits.min, limits.max, 1], kind), kind)
        for f in (lambda lib, x: x + 1, lambda lib, x: x * 2, lambda lib, x: -x, lambda lib, x: x - 1, lambda lib,
                  x: x.cumsum(0).to(x.dtype), lambda lib, x: x ** 2, lambda lib, x: x << 1,
                  lambda lib, x: x.abs(), lambda lib, x: x // 2, lambda lib, x: x % 3):
            agree(f, x, what=f"{kind} {f.__code__.co_consts}")
    agree(lambda lib, x: (x + 300, x * -1, x & 300), (np.array([1, 2, 255]), "uint8"))


def test_a_zero_dim_cpu_tensor_joins_cuda_tensors(cuda):
    x = tensor(tritorch, np.ones(3, np.float32), device=cuda)
    y = tritorch.tensor(2.0, dtype=tritorch.float64)
    for f in (lambda: x + y, lambda: y * x, lambda: x / y, lambda: tritorch.where(x > 0, x, y), lambda: x.masked_fill(x > 0, y)):
        assert f().device is cuda and f().dtype is tritorch.float32
    with pytest.raises(RuntimeError):
        x + tritorch.ones(3)


@pytest.mark.parametrize("number", [np.float32(2.5), np.float64(2.5), np.float16(2.5), np.int64(3), np.int32(3)], ids=repr)
@pytest.mark.parametrize("kind", ["float32", "float16", "int64"])
def test_numbers_of_numpy_are_numbers(number, kind, cuda):
    """They have a dtype, numpy's, and do not decide the result's."""
    for program in ("x * n", "n * x", "x + n", "n - x", "x / n", "x ** n", "x > n", "x.clamp(min=n)", "x % n", "torch.pow(n, x)"):
        made = [eval(program, {"torch": lib, "n": number, "x": lib.tensor([1, 2, 4], dtype=getattr(lib, kind)).to(place)})
                for lib, place in ((torch, "cpu"), (tritorch, "cpu"), (tritorch, cuda))]
        theirs, *ours = [x.cpu().double().numpy() for x in made]
        assert {str(x.dtype).rpartition(".")[2] for x in made} == {str(made[0].dtype).rpartition(".")[2]}, program
        for x in ours:
            np.testing.assert_allclose(x, theirs, rtol=2e-3, err_msg=program)


@pytest.mark.parametrize("kind", ["float16", "bfloat16", "float32", "float64", "float8_e4m3fn", "float8_e5m2"])
def test_limits_are_shown_as_pytorch_shows_them(kind):
    assert repr(tritorch.finfo(getattr(tritorch, kind))) == repr(torch.finfo(getattr(torch, kind)))
