"""What a GPU is measured with: cases, each one program for both libraries on the same inputs.

`bench gpu` times them, `bench tune` tunes for them.

A family is a module here whose `cases(size)` yields its cases; `size(*shape)` gives the shape, or a tiny one where the program
is only rehearsed.
"""
from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

FAMILIES = {
    "memory": "elementwise, reductions, scans, copies, dropout, random numbers",
    "rows": "softmax, layer norm, RMS norm, cross entropy, batch norm, pooling",
    "index": "embedding, index_select, index_add, cat, sorts, top-k",
    "optim": "AdamW and the gradient norm of 124 million parameters",
    "matmul": "square products in four precisions, the layers of GPT-2 124M, skinny and batched products",
    "attention": "scaled dot product attention, forward and backward",
    "conv": "convolutions of ResNet, VGG and MobileNet, forward and both gradients",
}


@dataclass
class Input:
    """A tensor that both libraries see; `own`: each gets a copy of its own, because it writes there."""

    shape: tuple
    dtype: str = "float32"
    high: int | None = None
    """Whole numbers from 0 to high - 1 instead of normal ones."""
    grad: bool = False
    own: bool = False
    nhwc: bool = False
    values: Callable | None = None
    """Makes the numbers instead, as a numpy array of a shape: where what they are decides what there is to do, as of a mask."""


@dataclass
class Case:
    """`build(torch, *tensors)` returns the thunk that is timed; what it returns is compared. `torch` is one of the two libraries."""

    name: str
    build: Callable
    inputs: list[Input]
    nbytes: float = 0
    operations: float = 0
    full: float = 1.0
    """The share of what the matrix units do that these operations are, where tiles are not full: for `bench predict`."""
    aim: float = 1.0
    """How many times better than PyTorch ours is meant to be."""
    tolerance: float | None = None
    """Of the relative error between the two results; None: by dtype."""
    compare: Any = 0
    """Which result to compare: a place, slice(None) for all, None for none (random numbers)."""
    precision: str = "highest"
    """Of float32 products, set in both libraries."""
    exact: bool = False
    """Both results are also held against float64; where ours is near enough to that, it need not be near PyTorch's."""
    opponents: dict[str, Callable] = field(default_factory=dict)
    """PyTorch's ways to do it, by name, each a `build`; empty: `build` itself."""


def half(*shape, **more):
    return Input(shape, "bfloat16", **more)


def backward(forward, wrt):
    """The build of a backward pass: `forward(torch, *inputs)` runs once; the first input is the gradient that comes in."""
    def build(torch, g, *inputs):
        out = forward(torch, *inputs)
        sources = [inputs[i] for i in wrt]
        return lambda: torch.autograd.grad(out, sources, g, retain_graph=True)

    return build


def of(function):
    """The build of a call without a graph."""
    def build(torch, *inputs):
        def thunk():
            with torch.no_grad():
                return function(torch, *inputs)

        return thunk

    return build


def within(context, build):
    """A build whose set-up and thunk run inside `context()`."""
    def inside(torch, *inputs):
        with context():
            thunk = build(torch, *inputs)

        def call():
            with context():
                return thunk()

        return call

    return inside


def real(*shape):
    return shape


def tiny(*shape):
    """A shape that the simulated device computes in no time: the same ranks, at most 16 of everything."""
    return tuple(min(n, 16) for n in shape)


def cases(families, size=real):
    """(family, case) of every case of the families."""
    for family in families:
        for case in importlib.import_module(f"bench.anchors.{family}").cases(size):
            yield family, case


@contextlib.contextmanager
def precision(torch, wanted):
    """`wanted` for float32 products inside, and for PyTorch's convolutions, which have a switch of their own."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(wanted)
    if torch.__name__ == "torch":
        torch.backends.cudnn.allow_tf32 = wanted != "highest"
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
