"""Runs a Triton kernel on numpy arrays on a simulated device of its own, or on another one: for tests of the interpreter."""
import dataclasses
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tritorch.cuda.simulated import SimulatedDriver

bf16, e4m3, e5m2 = ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2
rng = np.random.default_rng(0)
N = 64


def normal(*shape, dtype="f4"):
    return rng.standard_normal(shape).astype(dtype)


X = normal(N)
SQUARE = normal(16, 16)
SPELLING = {np.dtype(numpy): triton for numpy, triton in {
    "?": "i1", "i1": "i8", "i2": "i16", "i4": "i32", "i8": "i64", "u1": "u8", "u2": "u16", "u4": "u32", "u8": "u64",
    "f2": "fp16", "f4": "fp32", "f8": "fp64",
    bf16: "bf16", e4m3: "fp8e4nv", e5m2: "fp8e5"}.items()}


class Descriptor:
    """What launch.TensorDescriptor is to a kernel, on a numpy array."""

    def __init__(self, array, block):
        self.array, self.block, self.shape = array, block, array.shape
        self.strides = [s // array.itemsize for s in array.strides]


def spelling(arg):
    if isinstance(arg, Descriptor):
        return f"tensordesc<{SPELLING[arg.array.dtype]}{list(arg.block)}>"
    if isinstance(arg, tuple):
        return tuple(map(spelling, arg))
    if isinstance(arg, np.ndarray):
        return "*" + SPELLING[arg.dtype]
    if isinstance(arg, np.generic):
        return SPELLING[arg.dtype]
    return {bool: "i1", float: "fp32"}.get(type(arg)) or ("i32" if -(2**31) <= arg < 2**31 else "i64")


def leaves(arg):
    return [leaf for part in arg for leaf in leaves(part)] if isinstance(arg, tuple) else [arg]


def launch(kernel, grid, *args, seed=0, driver=None, **constexprs):
    """Run `kernel` and write what it stored back into the arrays."""
    driver = driver or SimulatedDriver(seed)
    stream = driver.stream_create(0)
    homes, values = [], []
    for leaf in leaves(args):
        array = leaf.array if isinstance(leaf, Descriptor) else leaf
        if isinstance(array, np.ndarray):
            ptr = driver.alloc(array.nbytes)
            driver.copy(ptr, array.ctypes.data, array.nbytes, "h2d", stream)
            driver.stream_synchronize(stream)
            homes.append((array, ptr))
            if isinstance(leaf, Descriptor):
                leaf.ptr = ptr
            values.append(leaf if isinstance(leaf, Descriptor) else ptr)
        else:
            values.append(leaf)
    names = [p.name for p in kernel.params]
    signature = dict(zip(names, map(spelling, args))) | dict.fromkeys(names[len(args):], "constexpr")
    paths = {(names.index(name),): value for name, value in constexprs.items()}
    driver.load(kernel, signature, paths, {}, {}).launch(*grid, *(1,) * (3 - len(grid)), stream, values)
    for array, ptr in homes:
        driver.copy(array.ctypes.data, ptr, array.nbytes, "d2h", stream)
    driver.stream_synchronize(stream)


@dataclasses.dataclass
class Probe:
    """A kernel (o_ptr, inputs…, constants…) and what it is to store."""

    kernel: Any
    inputs: tuple
    expected: np.ndarray
    dtype: Any
    grid: tuple
    tol: float
    constexprs: dict

    def check(self):
        out = np.zeros(self.expected.shape, self.dtype)
        inputs = tuple(a.copy() if isinstance(a, np.ndarray) else a for a in self.inputs)
        launch(self.kernel, self.grid, out, *inputs, **self.constexprs)
        if np.dtype(self.dtype).kind in "biu":
            np.testing.assert_array_equal(out, self.expected)
        else:
            np.testing.assert_allclose(out.astype("f8"), self.expected.astype("f8"), rtol=self.tol, atol=self.tol)


class Probes(list):
    """Collects kernels: `@probe(expected, *inputs, **constants)`, where `expected` is an array or a function of the inputs."""

    def __call__(self, expected, *inputs, out=None, grid=(1,), tol=1e-6, **constexprs):
        def register(kernel):
            value = np.asarray(expected(*inputs[:expected.__code__.co_argcount]) if callable(expected) else expected)
            case = Probe(kernel, inputs, value, out or value.dtype, grid, tol, constexprs)
            self.append(pytest.param(case, id=kernel.fn.__name__))
            return kernel
        return register
