"""Operators on the native device, whose kernels are compiled for this machine's processors, and on the CPU with such kernels (`cpu.native`)
and without, beside PyTorch's, all with as many threads as there are processors. Inputs are the same; a case is a function of the library,
forward or with its gradient."""
import importlib
import importlib.util
import math

import numpy as np

import tritorch
from bench import rows
from bench.timing import PAUSE, race

SIDE = 1024


def cases():
    """{name: (shapes of the inputs, function of (library, inputs), whether the gradient belongs to it)}"""
    square, wide = (SIDE, SIDE), (4096, SIDE)
    image, filters = (8, 64, 32, 32), (64, 64, 3, 3)
    return {
        "add": ([square] * 2, lambda lib, x, y: x + y, False),
        "add, transposed": ([square] * 2, lambda lib, x, y: x + y.T, False),
        "gelu": ([square], lambda lib, x: lib.nn.functional.gelu(x), False),
        "exp": ([square], lambda lib, x: lib.exp(x), False),
        "where": ([square], lambda lib, x: lib.where(x > 0, x, 0.1 * x), False),
        "sum of rows": ([square], lambda lib, x: x.sum(1), False),
        "sum of columns": ([square], lambda lib, x: x.sum(0), False),
        "softmax": ([square], lambda lib, x: lib.softmax(x, -1), True),
        "layer_norm": ([square, (SIDE,), (SIDE,)], lambda lib, x, w, b: lib.nn.functional.layer_norm(x, (SIDE,), w, b), True),
        "cumsum": ([square], lambda lib, x: x.cumsum(1), False),
        "argmax": ([square], lambda lib, x: x.argmax(1), False),
        "sort of rows": ([(256, SIDE)], lambda lib, x: x.sort(1).values, False),
        "transposed copy": ([square], lambda lib, x: x.T.contiguous(), False),
        "take rows": ([wide], lambda lib, x: x[lib.arange(0, 4096, 2, device=x.device)], False),
        "matmul": ([(512, 512)] * 2, lambda lib, x, y: x @ y, False),
        "linear": ([(512, 512), (512, 512), (512,)], lambda lib, x, w, b: lib.nn.functional.linear(x, w, b), True),
        "attention": ([(4, 8, 256, 64)] * 3,
                      lambda lib, q, k, v: lib.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True), True),
        "conv2d": ([image, filters], lambda lib, x, w: lib.nn.functional.conv2d(x, w, padding=1), True),
        "max_pool2d": ([image], lambda lib, x: lib.nn.functional.max_pool2d(x, 2), True),
        "batch_norm": ([image, (64,), (64,)], lambda lib, x, w, b: lib.nn.functional.batch_norm(x, None, None, w, b, training=True), True),
    }


SIDES = {"native": "on the native device", "cpu native": "on the CPU by kernels", "cpu": "on the CPU by numpy"}


def by_kernels(call):
    def inside():
        with tritorch.cpu.native():
            return call()
    return inside


def contestant(library, function, arrays, device, gradient):
    inputs = [library.from_numpy(a.copy()).to(device).requires_grad_(gradient) for a in arrays]
    seed = library.ones_like(function(library, *inputs)).mul_(0.5) if gradient else None

    def call():
        result = function(library, *inputs)
        return library.autograd.grad(result, inputs, seed) if gradient else result
    return call


def main(args):
    torch = importlib.import_module("torch") if importlib.util.find_spec("torch") else None
    tritorch.cuda.simulate(native=True)
    chosen = {name: case for name, case in cases().items() if any(word in name for word in args.only.split("|"))}
    found, generator = [], np.random.default_rng(0)
    for name, (shapes, function, gradient) in chosen.items():
        arrays = [generator.standard_normal(shape, dtype="float32") for shape in shapes]
        where = {"native": (tritorch, "cuda"), "cpu native": (tritorch, "cpu"), "cpu": (tritorch, "cpu"),
                 **({"torch": (torch, "cpu")} if torch else {})}
        sides = {side: contestant(library, function, arrays, device, gradient) for side, (library, device) in where.items()}
        sides["cpu native"] = by_kernels(sides["cpu native"])
        for side in SIDES:
            sides[side]()                                        # its kernels are compiled
        tritorch.cuda.synchronize()
        times = race(sides, rounds=3 if args.quick else 5, pause=PAUSE)
        name = f"{name}, with gradient" if gradient else name
        for side, words in SIDES.items():
            ours, theirs = (1e6 * times[s] if s in times else None for s in (side, "torch"))
            found.append(rows.row(f"native: {name}, {words}", "µs", ours, theirs, "torch"))
        print(f"{name}: " + ", ".join(f"{side} {1e6 * t:.0f} µs" for side, t in times.items()), flush=True)
    for words in SIDES.values():
        ratios = [r.ratio for r in found if r.name.endswith(words) and r.ratio]
        if ratios:
            mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
            found.append(rows.row(f"native: PyTorch's time over ours, {words}, geometric mean of {len(ratios)} operators", "×", mean))
    versions = [f"torch {torch.__version__}"] if torch else []
    rows.record("native", found, "python -m bench native", *versions, keep=not (args.quick or args.only))
