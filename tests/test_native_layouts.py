"""The native device keeps tiles in the order in which they are loaded, writes what loops carry in place, and has ways of the host's own."""
import importlib.util
import platform
import sys
import warnings

import numpy as np
import pytest

if sys.platform != "linux" or platform.machine() != "x86_64" or importlib.util.find_spec("triton") is None:
    pytest.skip("the native device takes Linux on x86-64, and triton", allow_module_level=True)

import native_layout_kernels as K
from test_native_programs import both, empty, numbers

import tritorch as torch
from tritorch.cuda.compiler import Specialisation
from tritorch.cuda.native import compiler, lower
from tritorch.ops import gemm_host

ROWS, COLUMNS = 32, 16
SHAPE = dict(ROWS=ROWS, COLUMNS=COLUMNS)

pytestmark = pytest.mark.smoke


@pytest.mark.parametrize("turns", [1, 4])
def test_a_tile_that_lies_column_by_column(turns):
    both(K.sums_kernel, empty(ROWS + COLUMNS), empty(ROWS, COLUMNS), empty(COLUMNS, ROWS), numbers(turns * COLUMNS, ROWS), ROWS,
         turns * COLUMNS, **SHAPE)


@pytest.mark.parametrize("kernel,size", [(K.best_kernel, 2 * ROWS), (K.began_kernel, COLUMNS * ROWS),
                                         (K.turned_kernel, 2 * COLUMNS * ROWS),
                                         (K.kept_kernel, COLUMNS * ROWS + ROWS * ROWS)])
def test_what_a_loop_carries(kernel, size):
    both(kernel, empty(size), numbers(4 * COLUMNS, ROWS), ROWS, 4 * COLUMNS, **SHAPE)


@pytest.mark.parametrize("turns", [0, 1, 3, 6])
def test_a_loop_in_a_loop(turns):
    both(K.nested_kernel, empty(COLUMNS, ROWS), numbers(4 * COLUMNS, ROWS), ROWS, 4 * COLUMNS, turns, **SHAPE)


@pytest.mark.parametrize("width", [1, 7, 16, 48, 200])
def test_quotients_by_a_reciprocal(width):
    n = 300
    both(K.quotients_kernel, empty(n), numbers(n * (width + 3) // width + 1000), width, width + 3, n, grid=(3,), BLOCK=128)


def text_of(kernel, arguments, **constexprs):
    signature = {name: arguments.get(name, "constexpr") for name in kernel.arg_names}
    return lower.lower(compiler.ttir(Specialisation(kernel, signature, constexprs, {}, {}))).llvm


def test_sums_of_columns_move_no_element():
    """No tile is transposed, and none is copied to where the next turn expects it."""
    text = text_of(K.best_kernel, {"out_ptr": "*fp32", "x_ptr": "*fp32", "M": "i32", "N": "i32"}, **SHAPE)
    assert "call void @llvm.memcpy" not in text and "shufflevector <8 x i32>" not in text


# ------------------------------------------------------------------ operators in ways of the host's
@pytest.fixture
def native():
    with torch.cuda.simulate(native=True) as device, warnings.catch_warnings():
        warnings.filterwarnings("error", message=".* runs in the interpreter")
        yield device


def compared(function, *arrays, dtype=torch.float32, tolerance=2e-5):
    """A function and its gradients on the native device and, in float64, on the CPU."""
    found = []
    for device, kind in (("cuda", dtype), ("cpu", torch.float64)):
        inputs = [torch.from_numpy(a).to(dtype).to(kind).to(device).requires_grad_(True) if a.dtype.kind == "f" else
                  torch.from_numpy(a).to(device) for a in arrays]
        out = function(*inputs)
        seed = torch.from_numpy(np.random.default_rng(1).standard_normal(out.shape)).to(dtype).to(kind).to(device)
        gradients = torch.autograd.grad(out, [x for x in inputs if x.requires_grad], seed)
        found.append([t.detach().cpu().to(torch.float64).numpy() for t in (out, *gradients)])
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance * max(np.abs(other).max(initial=0), 1))


def normal(*shape):
    return np.random.default_rng(0).standard_normal(shape)


CONVOLUTIONS = {
    "depthwise": ((2, 4, 9, 17), (4, 1, 3, 3), 1, 1, 1, 4), "strided": ((2, 4, 9, 17), (8, 1, 3, 5), 2, (1, 2), 1, 4),
    "dilated": ((1, 3, 9, 11), (3, 1, 3, 3), 1, 2, 2, 3), "more padding than taps": ((1, 2, 5, 6), (2, 1, 3, 3), 1, 3, 1, 2),
    "long rows": ((1, 2, 3, 1030), (2, 1, 3, 3), 1, 1, 1, 2), "channels": ((2, 40, 6, 9), (24, 40, 3, 3), 1, 1, 1, 1),
    "groups": ((1, 80, 5, 7), (12, 40, 3, 3), 2, 1, 1, 2),
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions(native, name):
    x, w, stride, padding, dilation, groups = CONVOLUTIONS[name]
    compared(lambda x, w, b: torch.nn.functional.conv2d(x, w, b, stride, padding, dilation, groups), normal(*x), normal(*w), normal(w[0]))


def test_depthwise_convolutions_in_other_layouts(native):
    x, w = normal(2, 4, 9, 10), normal(4, 1, 3, 3)
    compared(lambda x, w: torch.nn.functional.conv2d(x.transpose(2, 3), w, padding=1, groups=4), x, w)
    compared(lambda x, w: torch.nn.functional.conv2d(x[:, :, ::2, 1:], w.flip(2), padding=1, groups=4), x, w)
    compared(lambda x, w: torch.nn.functional.conv2d(x, w, padding=1, groups=4), x, w, dtype=torch.float16, tolerance=4e-3)


@pytest.mark.parametrize("dtype,tolerance", [(torch.float32, 2e-5), (torch.bfloat16, 2e-2)])
def test_sums_over_equal_indices(native, dtype, tolerance):
    index = np.random.default_rng(2).integers(0, 7, (20, 9))
    compared(lambda x, i, s: x.scatter_add(0, i, s), normal(7, 9), index, normal(20, 9), dtype=dtype, tolerance=tolerance)
    compared(lambda x, i, s: x.index_add(0, i, s, alpha=-2), normal(7, 300), index[:, 0], normal(20, 300), dtype=dtype, tolerance=tolerance)
    compared(lambda w, i: torch.nn.functional.embedding(i, w, padding_idx=3), normal(7, 5), index, dtype=dtype, tolerance=tolerance)


def test_sums_of_whole_numbers_over_equal_indices(native):
    numbers, index = np.arange(20, dtype=np.int32), np.arange(20) % 3
    found = torch.zeros(4, dtype=torch.int32).cuda().index_add_(0, torch.from_numpy(index).cuda(), torch.from_numpy(numbers).cuda())
    np.testing.assert_array_equal(found.cpu().numpy(), np.bincount(index, numbers, 4))


@pytest.mark.parametrize("width", [1, 48, 320, 768, 4100])
def test_norms_of_rows(native, width):
    arrays = normal(5, width), normal(width), normal(width)
    compared(lambda x, w, b: torch.nn.functional.layer_norm(x, (width,), w, b), *arrays, tolerance=1e-4)


@pytest.mark.parametrize("size", [(8, 8), (8, 24), (5, 5)])
def test_group_norm(native, size):
    compared(lambda x, w, b: torch.nn.functional.group_norm(x, 2, w, b), normal(3, 6, *size), normal(6), normal(6), tolerance=1e-4)


def test_large_products(native):
    """In the largest tiles, of which the last ones are not full."""
    side = gemm_host.SIDES[0]
    assert gemm_host.plain(4 * side, side, 20, 1, 4, 1)[0][1]["BLOCK_M"] == side
    rows = side * 4 * native.properties[0].multi_processor_count - 3
    compared(lambda a, b: a @ b, normal(rows, 20), normal(20, side - 1))
