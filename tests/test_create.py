"""Making tensors against PyTorch: dtypes, sizes, ranges, nested data, like-functions, out=, errors."""
import numpy as np
from oracle import EVERY, agree, draw


def test_from_sizes():
    for f in (lambda lib: lib.zeros(2, 3), lambda lib: lib.zeros((2, 3)), lambda lib: lib.zeros([2, 3]),
              lambda lib: lib.ones(2, dtype=lib.int32), lambda lib: lib.zeros(()),
              lambda lib: lib.full((2,), 7), lambda lib: lib.full((2,), 7.5), lambda lib: lib.full((2,), True),
              lambda lib: lib.full((2,), 7, dtype=lib.float64),
              lambda lib: lib.full((), 3), lambda lib: lib.eye(3), lambda lib: lib.eye(2, 4), lambda lib: lib.eye(3, dtype=lib.bool),
              lambda lib: lib.zeros(0, 3),
              lambda lib: lib.zeros(lib.Size([2, 2])), lambda lib: lib.zeros(2, 3, out=lib.ones(2, 3)), lambda lib: lib.empty(3, 2).shape,
              lambda lib: lib.empty_strided((2, 3), (1, 2)).stride(), lambda lib: lib.full((2,), 3, out=lib.zeros(2)),
              lambda lib: lib.eye(0),
              lambda lib: lib.zeros(-1), lambda lib: lib.zeros("a"), lambda lib: lib.eye(-1), lambda lib: lib.zeros(2, 2.5),
              lambda lib: lib.full((2,), 300, dtype=lib.uint8), lambda lib: lib.full((2,), -1, dtype=lib.uint8),
              lambda lib: lib.full((2,), 2.7, dtype=lib.int64),
              lambda lib: lib.scalar_tensor(3), lambda lib: lib.zeros(2, requires_grad=True).requires_grad,
              lambda lib: lib.ones(2, dtype=lib.int64, requires_grad=True)):
        agree(f, what=str(f.__code__.co_consts))


def test_ranges():
    for args in ((5,), (2, 7), (1, 10, 3), (5, 0, -2), (0.0, 1.0, 0.3), (1, 2, 0.25), (0,), (3, 3), (0.5,), (5, 1), (1, 5, -1), (1, 5, 0),
                 (10, 0, -3), (-1.0, 1.0, 0.1)):
        agree(lambda lib, args=args: lib.arange(*args), what=str(args))
        for kind in ("float64", "int32", "bfloat16", "uint8"):
            if min(args) >= 0 or kind != "uint8":
                agree(lambda lib, args=args, kind=kind: lib.arange(*args, dtype=getattr(lib, kind)), what=f"{args} {kind}")
    agree(lambda lib: lib.arange(start=2, end=5))
    agree(lambda lib: lib.arange(4, out=lib.empty(0, dtype=lib.int64)))
    for args in ((0, 1, 5), (3, -2, 4), (1, 1, 3), (0, 1, 1), (0, 1, 0), (-1e3, 1e3, 11), (0, 10, 4)):
        agree(lambda lib, args=args: lib.linspace(*args), what=str(args))
        agree(lambda lib, args=args: lib.linspace(*args, dtype=lib.float64), what=str(args))
        agree(lambda lib, args=args: lib.linspace(*args, dtype=lib.int64), what=str(args))
        agree(lambda lib, args=args: lib.logspace(*args) if abs(args[0]) < 10 else 0, what=str(args), rtol=1e-5)
    agree(lambda lib: lib.logspace(0, 3, 4, base=2))
    agree(lambda lib: lib.linspace(0, 1, -1))
    agree(lambda lib: lib.linspace(lib.tensor(1.0), 2, 3))


def test_from_data():
    for data in (1, 2.5, True, [1, 2], [1, 2.5], [True, 2], [[1], [2]], [], [[]], [[], []], [True, False], [1, float("nan")], (1, (2)),
                 [(1, 2), [3, 4]], range(4),
                 np.int16(3), [np.float64(1.5), 2], [np.int32(2)], np.arange(3), np.ones((2, 2)), np.array(2.5),
                 [np.arange(2), np.arange(2)], "a", None, {}, [1, "a"], [[1, 2], [3]], [None], -2 ** 63, [2 ** 40]):
        agree(lambda lib, data=data: lib.tensor(data), what=repr(data))
        for kind in ("float32", "int64", "bool", "bfloat16"):
            agree(lambda lib, data=data, kind=kind: lib.tensor(data, dtype=getattr(lib, kind)), what=f"{data!r} {kind}")
    for f in (lambda lib: lib.tensor([lib.tensor(1), lib.tensor(2)]), lambda lib: lib.tensor([lib.tensor(1.5), 2]),
              lambda lib: lib.tensor(lib.ones(2)),
              lambda lib: lib.tensor(300, dtype=lib.uint8), lambda lib: lib.tensor([1, 300], dtype=lib.uint8),
              lambda lib: lib.tensor(2.9, dtype=lib.int32), lambda lib: lib.tensor([-1.5, 2.9], dtype=lib.int32),
              lambda lib: lib.tensor(1e40, dtype=lib.float32),
              lambda lib: lib.tensor([1.0], requires_grad=True).requires_grad, lambda lib: lib.tensor([1], requires_grad=True),
              lambda lib: lib.tensor(np.array(["a"])),
              lambda lib: lib.as_tensor([1, 2]), lambda lib: lib.asarray([1.5]), lambda lib: lib.tensor([1.0], dtype=float),
              lambda lib: lib.tensor([1.7], dtype=int)):
        agree(f, what=str(f.__code__.co_consts) + str(f.__code__.co_names))


def test_like():
    x = draw(2, 3)
    for name in ("zeros_like", "ones_like", "empty_like", "rand_like", "randn_like"):
        agree(lambda lib, x, name=name: getattr(lib, name)(x).shape, x)
        agree(lambda lib, x, name=name: getattr(lib, name)(x.t()).stride(), x)
        agree(lambda lib, x, name=name: getattr(lib, name)(x.expand(4, 2, 3)).stride(), x)
    agree(lambda lib, x: (lib.zeros_like(x), lib.ones_like(x, dtype=lib.int64), lib.full_like(x, 2.5), lib.full_like(x, 3, dtype=lib.bool)),
          x)
    agree(lambda lib, x: (x.new_zeros(2), x.new_ones(2, 2), x.new_full((2,), 3), x.new_tensor([1, 2]), x.new_empty(3).shape,
                          x.new_zeros((1, 2), dtype=lib.int8)), x)
    agree(lambda lib, x: (lib.full_like(x, 2.5), lib.zeros_like(x)), np.arange(3))


def test_default_dtype():
    def program(lib):
        lib.set_default_dtype(lib.float64)
        try:
            return (lib.tensor(1.5), lib.zeros(2), lib.arange(0.0, 2.0), lib.ones(2, dtype=lib.int64) / 2, lib.tensor([1]) * 1.5,
                    lib.linspace(0, 1, 3), lib.eye(2))
        finally:
            lib.set_default_dtype(lib.float32)

    agree(program)
    agree(lambda lib: lib.set_default_dtype(lib.int64))


def test_casts():
    x = np.array([-1.7, 0.0, 1.7, 100.0])
    for a in EVERY:
        if a == "uint8":
            continue
        for b in EVERY:
            if b != "uint8":
                agree(lambda lib, x, b=b: x.to(getattr(lib, b)), (x, a), what=f"{a} to {b}")
    for name in "float double half bfloat16 long int short char byte bool".split():
        agree(lambda lib, x, name=name: getattr(x, name)(), np.abs(x), what=name)
    for f in (lambda lib, x: x.to(lib.float64), lambda lib, x: x.to("cpu"), lambda lib, x: x.to("cpu", lib.int32),
              lambda lib, x: x.to(x.long()), lambda lib, x: x.type_as(x.long()),
              lambda lib, x: x.to(dtype=lib.half), lambda lib, x: x.to(x.dtype) is x, lambda lib, x: x.to(x.dtype, copy=True) is x,
              lambda lib, x: x.clone() is x,
              lambda lib, x: x.contiguous() is x, lambda lib, x: x.to(lib.float64, False, True), lambda lib, x: x.to("nowhere"),
              lambda lib, x: x.to(lib.float64).to(lib.float32), lambda lib, x: x.cpu(), lambda lib, x: x.type(lib.int64),
              lambda lib, x: x.float() is x):
        agree(f, draw(4), grad=True, what=str(f.__code__.co_consts) + str(f.__code__.co_names))


def test_copies():
    agree(lambda lib, x, y: x.clone().copy_(y), draw(3, 4), draw(4))
    agree(lambda lib, x, y: x.clone().copy_(y), draw(3, 4), np.arange(4))
    agree(lambda lib, x, y: y.clone().copy_(x), draw(4), np.arange(4))
    agree(lambda lib, x, y: x.clone().copy_(y), draw(4), draw(3, 4))
    agree(lambda lib, x, y: (x * 1).copy_(y), draw(3, 4), draw(4), grad=True)
    agree(lambda lib, x: x.clone().fill_(2.5), draw(3))
    agree(lambda lib, x: x.clone().fill_(2.5), np.arange(3))
    agree(lambda lib, x: x.clone().fill_(lib.tensor(3)), draw(3))
    agree(lambda lib, x: x.clone().fill_(lib.ones(2)), draw(3))
    agree(lambda lib, x: (x * 1).fill_(1), draw(3), grad=True)
    agree(lambda lib, x: x.clone().zero_(), draw(3))
    agree(lambda lib, x: (x.tolist(), x[0].item(), x[1:2].item()), np.array([1, 2, 3]))
    agree(lambda lib, x: x.item(), draw(3))
    agree(lambda lib, x: x.byte().fill_(300), draw(3))
    agree(lambda lib, x: x.bool().fill_(2), draw(3))


def test_on_a_cuda_device(cuda):
    def program(lib):
        keywords = {"device": cuda} if lib.__name__ == "tritorch" else {}
        return (lib.arange(1, 10, 3, **keywords), lib.linspace(0, 1, 7, **keywords), lib.eye(3, 4, **keywords),
                lib.full((3,), 2.5, dtype=lib.bfloat16, **keywords),
                lib.tensor([[1, 2]], **keywords), lib.zeros(2, 0, **keywords), lib.arange(5, dtype=lib.uint8, **keywords),
                lib.logspace(0, 2, 3, **keywords))

    agree(program)
    x = np.array([-1.7, 0.0, 1.7, 100.0])
    for a in EVERY:
        for b in EVERY:
            if "uint8" not in (a, b):
                agree(lambda lib, x, b=b: x.to(getattr(lib, b)), (x, a), device=cuda, what=f"{a} to {b}")
