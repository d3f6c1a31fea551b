"""Kernels on the simulated device run as Triton runs them: control flow, constants, helpers, loads and stores, and what is refused."""

import numpy as np
import pytest

triton = pytest.importorskip("triton")
import triton.language as tl  # noqa: E402
from interpreted import SQUARE, N, Probes, X, launch  # noqa: E402

from tritorch.cuda.simulated import MemoryFault  # noqa: E402

pytestmark = pytest.mark.smoke

probe = Probes()


@pytest.mark.parametrize("case", probe)
def test_probe(case):
    case.check()


# control flow, constants, helpers

@triton.jit
def scaled(x, factor: tl.constexpr = 3.0):
    return x * factor


@triton.jit
def relu(x):
    return tl.maximum(x, 0.0)


@triton.jit
def through_scaled(x):
    return scaled(scaled(x), factor=2.0)


FACTOR = tl.constexpr(3)


@probe(lambda x: x * 6, X)
@triton.jit
def nested_calls(o_ptr, x_ptr):
    i = tl.arange(0, 64)
    tl.store(o_ptr + i, through_scaled(tl.load(x_ptr + i)))


@probe(lambda x: np.maximum(x, 0), X, ACT=relu)
@triton.jit
def function_as_constant(o_ptr, x_ptr, ACT: tl.constexpr):
    i = tl.arange(0, 64)
    tl.store(o_ptr + i, ACT(tl.load(x_ptr + i)))


@probe(lambda x: np.maximum(x, 0) * 3, X, ACTS=(relu, scaled))
@triton.jit
def functions_in_a_tuple(o_ptr, x_ptr, ACTS: tl.constexpr):
    i = tl.arange(0, 64)
    x = tl.load(x_ptr + i)
    for k in tl.static_range(len(ACTS)):
        x = ACTS[k](x)
    tl.store(o_ptr + i, x)


@probe(lambda x: x * 3, X)
@triton.jit
def global_constant(o_ptr, x_ptr):
    i = tl.arange(0, 64)
    tl.store(o_ptr + i, tl.load(x_ptr + i) * FACTOR)


@probe(lambda x: x * 2, X, MODE="double")
@triton.jit
def string_constant(o_ptr, x_ptr, MODE: tl.constexpr):
    i = tl.arange(0, 64)
    x = tl.load(x_ptr + i)
    if MODE == "double":
        x = x * 2
    elif MODE == "triple":
        x = x * 3
    tl.store(o_ptr + i, x)


@probe(lambda x: x, X, BIAS=None)
@triton.jit
def absent_pointer(o_ptr, x_ptr, BIAS: tl.constexpr):
    i = tl.arange(0, 64)
    x = tl.load(x_ptr + i)
    if BIAS is not None:
        x += tl.load(BIAS + i)
    tl.store(o_ptr + i, x)


@probe(lambda x: x.astype("f2").astype("f4"), X, DTYPE=tl.float16)
@triton.jit
def type_as_constant(o_ptr, x_ptr, DTYPE: tl.constexpr):
    i = tl.arange(0, 64)
    tl.store(o_ptr + i, tl.load(x_ptr + i).to(DTYPE).to(o_ptr.dtype.element_ty))


@probe(lambda x, n: np.where(np.arange(N) < n, x, 0), X, 50)
@triton.jit
def while_loop(o_ptr, x_ptr, n):
    j = 0
    while j < n:
        tl.store(o_ptr + j, tl.load(x_ptr + j))
        j += 1


@probe(lambda x, n: np.where(np.arange(N) < n, x + 1, 0), X, 50)
@triton.jit
def runtime_range(o_ptr, x_ptr, n):
    for j in tl.range(0, n, num_stages=2):
        x = tl.load(x_ptr + j)
        if n > 10:
            x += 1
        tl.store(o_ptr + j, x)


@probe(lambda x, n: np.full(1, x[:n:3].sum() + sum(range(0, n, 3)), "f4"), X, 50, tol=1e-4)
@triton.jit
def plain_range(o_ptr, x_ptr, n):
    total = 0.0
    for j in range(0, n, 3):
        total += tl.load(x_ptr + j) + j.to(tl.float32)
    tl.store(o_ptr, total)


@probe(lambda x: x * 6, X)
@triton.jit
def static_range(o_ptr, x_ptr):
    i = tl.arange(0, 64)
    x = tl.load(x_ptr + i)
    total = x * 0
    for j in tl.static_range(4):
        total += x * j
    tl.store(o_ptr + i, total)


@probe(np.zeros(N, "f4"), X, 0)
@triton.jit
def early_return(o_ptr, x_ptr, n):
    i = tl.arange(0, 64)
    if n == 0:
        return
    tl.store(o_ptr + i, tl.load(x_ptr + i))


@probe(lambda x, n: x * n[0] + n[1] + n[2], X, (3, 4, 2))
@triton.jit
def tuple_of_integers(o_ptr, x_ptr, n):
    i = tl.arange(0, 64)
    tl.store(o_ptr + i, tl.load(x_ptr + i) * n[0] + n[1] + n[2])


@probe(lambda pair: pair[0] + pair[1], (X, X * 2))
@triton.jit
def tuple_of_pointers(o_ptr, pair):
    i = tl.arange(0, 64)
    total = tl.zeros((64,), tl.float32)
    for k in tl.static_range(len(pair)):
        total += tl.load(pair[k] + i)
    tl.store(o_ptr + i, total)


@triton.constexpr_function
def half_of(n):
    return n // 2


@probe(lambda x: x[:32], X, SIZE=64)
@triton.jit
def constexpr_function(o_ptr, x_ptr, SIZE: tl.constexpr):
    HALF: tl.constexpr = half_of(SIZE)
    i = tl.arange(0, HALF)
    tl.store(o_ptr + i, tl.load(x_ptr + i))


@probe(lambda n, m: np.array([n + m, n - m], "i4"), 7, 3)
@triton.jit
def several_results(o_ptr, n, m):
    a, b = n + m, n - m
    if a > b and not b == 0 or n < 0:
        tl.store(o_ptr, a)
        tl.store(o_ptr + 1, b)


@probe(lambda x: np.where((x > 0) & (x < 1) | (x < -1), 1.0, 0.0).astype("f4"), X)
@triton.jit
def logic_on_blocks(o_ptr, x_ptr):
    i = tl.arange(0, 64)
    x = tl.load(x_ptr + i)
    tl.store(o_ptr + i, tl.where((x > 0) and (x < 1) or (x < -1), 1.0, 0.0))


@probe(lambda b: ~b, np.tile([True, False, False], 3)[:8])
@triton.jit
def not_on_blocks(o_ptr, b_ptr):
    i = tl.arange(0, 8)
    tl.store(o_ptr + i, not tl.load(b_ptr + i))


@probe(lambda x, s: x, X, True)
@triton.jit
def bool_argument(o_ptr, x_ptr, s):
    i = tl.arange(0, 64)
    if s:
        tl.store(o_ptr + i, tl.load(x_ptr + i))


@probe(np.arange(24, dtype="i4").reshape(2, 3, 4).transpose(2, 1, 0).ravel() * 0 + np.arange(24), grid=(2, 3, 4), out="i4")
@triton.jit
def three_axes(o_ptr):
    x, y, z = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    place = (x * tl.num_programs(1) + y) * tl.num_programs(2) + z
    tl.store(o_ptr + place, place)


@probe(lambda x: x * x.sum(), X, 64, tol=1e-4)
@triton.jit
def hints(o_ptr, x_ptr, n):
    tl.assume(n > 0)
    tl.static_assert(1 + 1 == 2)
    tl.device_assert(n < 100)
    i = tl.max_contiguous(tl.multiple_of(tl.arange(0, 64), 64), 64)
    x = tl.load(x_ptr + i, mask=i < n, other=0.0, eviction_policy="evict_last", cache_modifier=".cg")
    x = tl.where(i < n, x, tl.load(x_ptr + i, volatile=True))
    tl.debug_barrier()
    tl.store(o_ptr + i, x * tl.sum(x), cache_modifier=".cs")


# loads and stores

@probe(lambda x: np.where(np.arange(128) < N, np.pad(x, (0, 64)), -1), X)
@triton.jit
def masked_load(o_ptr, x_ptr):
    i = tl.arange(0, 128)
    tl.store(o_ptr + i, tl.load(x_ptr + i, mask=i < 64, other=-1.0))


@probe(lambda x: x[::-1], X)
@triton.jit
def reversed_pointers(o_ptr, x_ptr):
    i = tl.arange(0, 64)
    tl.store(o_ptr + 63 - i, tl.load(x_ptr + i))


@probe(lambda x: x.T[:8], SQUARE)
@triton.jit
def two_dimensions(o_ptr, x_ptr):
    i, j = tl.arange(0, 8), tl.arange(0, 16)
    x = tl.load(x_ptr + j[None, :] * 16 + i[:, None])
    tl.store(o_ptr + i[:, None] * 16 + j[None, :], x)


@probe(lambda x: np.full(N, np.nan, "f4"), X)
@triton.jit
def masked_lanes_are_undefined(o_ptr, x_ptr):
    i = tl.arange(0, 64)
    tl.store(o_ptr + i, tl.load(x_ptr + i, mask=i < 0))


@probe(lambda x, n: x + 2, X, 2**33)
@triton.jit
def int64_argument(o_ptr, x_ptr, n):
    i = tl.arange(0, 64)
    tl.store(o_ptr + i, tl.load(x_ptr + i) + (n // 4294967296).to(tl.float32))


@probe(lambda x: x, X)
@triton.jit
def int64_offsets(o_ptr, x_ptr):
    i = tl.arange(0, 64).to(tl.int64) + tl.program_id(0).to(tl.int64)
    far = x_ptr + 2**40
    tl.store(o_ptr + i, tl.load(far - 2**40 + i))


@probe(lambda x: x.view("i4"), X)
@triton.jit
def pointer_casts(o_ptr, x_ptr):
    i = tl.arange(0, 64)
    again = x_ptr.to(tl.int64).to(tl.pointer_type(tl.int32))
    tl.store(o_ptr + i, tl.load(again + i))


@probe(lambda x, n: np.where(np.arange(N) < n, x, -x), X, 10)
@triton.jit
def chosen_pointers(o_ptr, x_ptr, n):
    i = tl.arange(0, 64)
    p = tl.where(i < n, o_ptr + i, o_ptr + i)
    tl.store(p, tl.where(i < n, tl.load(x_ptr + i), -tl.load(x_ptr + i)))


@probe(lambda x: x[:8] + 1, X)
@triton.jit
def methods(o_ptr, x_ptr):
    i = tl.arange(0, 8)
    (o_ptr + i).store(tl.load(x_ptr + i).cast(tl.float64).to(tl.float32) + tl.exp(tl.zeros_like(i).to(tl.float32)))


# what a kernel may not do

@triton.jit
def block_as_condition(o_ptr):
    i = tl.arange(0, 4)
    if i > 2:
        tl.store(o_ptr + i, i)


@triton.jit
def runtime_block_size(o_ptr):
    n = 64
    tl.store(o_ptr + tl.arange(0, n), 0)


@triton.jit
def half_exponential(o_ptr):
    tl.store(o_ptr, tl.exp(tl.load(o_ptr).to(tl.float16)))


@triton.jit
def odd_block(o_ptr):
    tl.store(o_ptr + tl.arange(0, 3), 0)


@pytest.mark.parametrize("kernel, sentence", [
    (block_as_condition, "a block of shape (4,) has no single truth value"), (runtime_block_size, "must be of type tl.constexpr"),
    (half_exponential, "Expected dtype ['fp32', 'fp64'] but got fp16"), (odd_block, "must be a power of 2")],
    ids=lambda k: getattr(k, "__name__", ""))
def test_refused(kernel, sentence):
    with pytest.raises(RuntimeError) as error:
        launch(kernel, (1,), np.zeros(64, "f4"))
    assert sentence in str(error.value) and kernel.__name__ in str(error.value) and "test_interpreter.py:" in str(error.value)


@triton.jit
def waits_for_another_program(o_ptr):
    while tl.load(o_ptr) == 0:
        tl.debug_barrier()


def test_an_endless_loop_ends(monkeypatch):
    from tritorch.cuda.simulated import interpreter

    monkeypatch.setattr(interpreter, "MANY_TURNS", 1000)
    with pytest.raises(RuntimeError, match="a while loop has not ended after 1000 turns"):
        launch(waits_for_another_program, (1,), np.zeros(1, "f4"))


def test_fault_names_the_line_of_a_helper():
    with pytest.raises(MemoryFault) as error:
        launch(calls_a_bad_helper, (1,), np.zeros(8, "f4"))
    line = bad_helper.fn.__code__.co_firstlineno + 3
    assert f"test_interpreter.py:{line}" in str(error.value)
    assert "load through o_ptr is out of bounds: 4 bytes past the end" in str(error.value)


@triton.jit
def bad_helper(p):
    if True:
        x = tl.load(p + 1)
    return x


@triton.jit
def calls_a_bad_helper(o_ptr):
    tl.store(o_ptr, bad_helper(o_ptr + 8))


def test_the_same_kernel_compiles_afterwards():
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    launch(nested_calls, (1,), np.empty(N, "f4"), X)
    kernel = triton.compile(ASTSource(nested_calls, {"o_ptr": "*fp32", "x_ptr": "*fp32"}), target=GPUTarget("cuda", 90, 32))
    assert "ptx" in kernel.asm
    launch(nested_calls, (1,), np.empty(N, "f4"), X)
