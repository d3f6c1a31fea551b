"""Operators of users: a package of their own with a card and a kernel, our kernels replaced by theirs, and their kernels' mistakes."""
import importlib
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import tritorch as torch
from tritorch.dispatch import Interpreter, registry
from tritorch.testing import check_op

pytest.importorskip("triton")
ROOT = Path(__file__).parent.parent

KERNEL = '''
import triton
import triton.language as tl


@triton.jit
def cube_kernel(y_ptr, x_ptr, N, scale, BLOCK: tl.constexpr):
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i, mask=i < N)
    wide = x if x.dtype == tl.float64 else x.to(tl.float32)
    tl.store(y_ptr + i, wide * wide * wide * scale, mask=i < N)


@triton.jit
def clipped_kernel(y_ptr, x_ptr, N, BLOCK: tl.constexpr):
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i, mask=i < N)
    tl.store(y_ptr + i, tl.where(x > 7, 7, x), mask=i < N)


@triton.jit
def careless_kernel(y_ptr, x_ptr, N, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(y_ptr + i, tl.load(x_ptr + i), mask=i < N)


@triton.jit
def meaningless_kernel(y_ptr, N, BLOCK: tl.constexpr):
    tl.store(y_ptr + tl.arange(0, BLOCK), no_such_name)
'''
CARD = '''
import numpy as np
import tritorch as torch
from tritorch.cuda.launch import launch
from tritorch.shape import cdiv

from their_operators.kernels import cube_kernel


@torch.op
def their_cube(x, scale=1.0):
    """scale · x³ of a floating tensor of any shape."""
    return x.shape, x.dtype, x.device


@their_cube.impl("cpu")
def their_cube_cpu(y, x, scale):
    kind = np.float64 if x.dtype == np.float64 else np.float32
    y[...] = x.astype(kind) ** 3 * scale


@their_cube.impl("cuda")
def their_cube_cuda(y, x, scale):
    flat = y if y.is_contiguous() else torch.empty(x.shape, dtype=x.dtype, device=x.device)
    launch(cube_kernel, (cdiv(x.numel(), 128),), flat, x.contiguous(), x.numel(), float(scale), BLOCK=128)
    if flat is not y:
        y.copy_(flat)


@their_cube.grad("x")
def their_cube_grad(g, x, scale):
    return g * (3 * scale) * x * x


@their_cube.samples
def their_cube_samples(make):
    yield make(3, 5),
    yield make(7, 50), 1.5
    yield make(), {"scale": 2.0}
    yield make(0, 2),


@their_cube.errors
def their_cube_errors(make):
    yield (), {}, TypeError, "missing a required argument"
'''


@pytest.fixture(scope="module")
def theirs(tmp_path_factory):
    """(the operator, its kernels) of a package in two files somewhere else."""
    folder = tmp_path_factory.mktemp("site")
    package = folder / "their_operators"
    package.mkdir()
    (package / "__init__.py").write_text(CARD, encoding="utf-8")
    (package / "kernels.py").write_text(KERNEL, encoding="utf-8")
    sys.path.insert(0, str(folder))
    yield importlib.import_module("their_operators"), importlib.import_module("their_operators.kernels")
    sys.path.remove(str(folder))
    for name in ("their_operators", "their_operators.kernels"):
        del sys.modules[name]
    del registry["their_cube"]


# ------------------------------------------------------------------ an operator of another package
def test_their_card_passes_the_generated_tests_on_the_cpu(theirs):
    assert registry["their_cube"] is theirs[0].their_cube and "scale" in str(theirs[0].their_cube.__signature__)
    check_op(theirs[0].their_cube, "cpu")


def test_their_card_passes_the_generated_tests_on_cuda(cuda, theirs):
    check_op(theirs[0].their_cube, "cuda")


def test_their_operator_has_gradients_modes_and_capture(cuda, theirs):
    cube, x = theirs[0].their_cube, torch.arange(4.0, device=cuda).requires_grad_()
    (g,) = torch.autograd.grad(cube(x, 2.0).sum(), x, create_graph=True)
    (h,) = torch.autograd.grad(g.sum(), x)
    assert g.tolist() == [0, 6, 24, 54] and h.tolist() == [0, 12, 24, 36]
    y, recorded = x.detach().clone(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(recorded):
        z = cube(y)
    y.fill_(3)
    recorded.replay()
    assert z.tolist() == [27] * 4
    out = torch.empty(4, device=cuda)
    assert cube(y, out=out) is out and out.tolist() == [27] * 4

    class Names(Interpreter):
        def __call__(self, op, args, out):
            names.append(op.__name__)
            return self.proceed(op, args, out)

    names = []
    with Names():
        cube(y)
    assert names == ["their_cube"]


def run_tutorial(cuda):
    environment, command = {**os.environ, "TRITORCH_CUDA": cuda, "OPENBLAS_NUM_THREADS": "1"}, [sys.executable, "tutorials/custom_op.py"]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)


@pytest.mark.parametrize("device", ["none", "simulated"])
def test_the_tutorial_runs(device):
    done = run_tutorial(device)
    assert done.returncode == 0, done.stderr
    assert "gradient" in done.stdout and ("simulated" in done.stdout.lower()) == (device == "simulated")


# ------------------------------------------------------------------ our kernel replaced by theirs
def test_a_kernel_of_ours_is_replaced_in_one_line_and_put_back(cuda, theirs):
    from tritorch.cuda.launch import launch

    relu, ours = registry["relu"], registry["relu"].impls["cuda"]
    assert relu is torch.ops.activation.relu and set(relu.impls) >= {"cpu", "cuda"}

    def clipped(out, input):
        launch(theirs[1].clipped_kernel, (1,), out, input, input.numel(), BLOCK=16)

    x = torch.tensor([-1.0, 3.0, 9.0], device=cuda, requires_grad=True)
    relu.impl("cuda")(clipped)
    try:
        assert torch.relu(x).tolist() == torch.nn.functional.relu(x).tolist() == x.relu().tolist() == [-1, 3, 7]
        assert x.detach().cpu().relu().tolist() == [0, 3, 9]             # the other device keeps its own
        torch.relu(x).sum().backward()                                   # and the gradient its rule, which reads the output
        assert x.grad.tolist() == [0, 1, 1]
    finally:
        relu.impl("cuda", raw=True)(ours)
    assert relu.impls["cuda"] is ours and torch.relu(x).tolist() == [0, 3, 9]


def test_an_operator_without_a_kernel_says_so(cuda):
    @torch.op
    def only_on_the_cpu(x):
        """x."""
        return x.shape, x.dtype, x.device

    try:
        only_on_the_cpu.impl("cpu")(lambda out, x: np.copyto(out, x))
        with pytest.raises(NotImplementedError, match="only_on_the_cpu: expected an implementation for cuda, got only cpu"):
            only_on_the_cpu(torch.ones(2, device=cuda))
    finally:
        del registry["only_on_the_cpu"]


# ------------------------------------------------------------------ mistakes in kernels
def test_a_load_outside_of_memory_names_kernel_line_and_arguments(theirs):
    from tritorch.cuda.launch import launch

    with torch.cuda.simulate():
        x, y = torch.ones(100, device="cuda"), torch.zeros(100, device="cuda")
        launch(theirs[1].careless_kernel, (1,), y, x, 100, BLOCK=1024)   # queued: found when the device is waited for
        line = 1 + next(k for k, text in enumerate(KERNEL.splitlines()) if "tl.load(x_ptr + i), mask" in text)
        with pytest.raises(RuntimeError, match=rf"careless_kernel \(.*their_operators/kernels.py:{line}, program .*x_ptr.*") as caught:
            torch.cuda.synchronize()
        assert "\n" not in str(caught.value)
        assert (x + 1).sum().item() == 200                               # the device goes on
        assert (y == 0).all()


def test_a_kernel_that_cannot_be_compiled_or_started_names_itself(theirs):
    from tritorch.cuda.launch import launch

    with torch.cuda.simulate():
        y = torch.zeros(4, device="cuda")
        for call, sentence in [
            (lambda: launch(theirs[1].meaningless_kernel, (1,), y, 4, BLOCK=4), r"meaningless_kernel.*no_such_name"),
            (lambda: launch(theirs[1].cube_kernel, (1,), y, y, 4, BLOCK=4), r"cube_kernel \(.*kernels.py:\d+\) on grid \(1,\) with "
             r"y_ptr=float32\[4\], x_ptr=float32\[4\], N=4, BLOCK=4: TypeError: launch: expected arguments for y_ptr"),
            (lambda: launch(theirs[1].cube_kernel, (1,), y, torch.ones(4), 4, 1.0, BLOCK=4), r"cube_kernel.*is not device memory"),
            (lambda: launch(theirs[1].cube_kernel, (1,), torch.ones(4), y, 4, 1.0, BLOCK=4), "CUDA tensors, got a CPU tensor"),
        ]:
            with pytest.raises(RuntimeError, match=sentence) as caught:
                call()
                torch.cuda.synchronize()
            assert "\n" not in str(caught.value), str(caught.value)
        launch(theirs[1].cube_kernel, (1,), y, torch.full((4,), 2.0, device="cuda"), 4, 1.0, BLOCK=4)
        assert y.tolist() == [8] * 4
