"""Compiled kernels of every family on the GPU made of PTX (tritorch/testing/ptx), through the real driver, against the CPU.

All of the suite runs there with `TRITORCH_PTX=90 python -m pytest -m gpu`; here is a part that takes seconds.
"""
import dataclasses
import os

import numpy as np
import pytest

pytest.importorskip("triton")
from optimizers import assert_near, trajectory  # noqa: E402

import tritorch as torch  # noqa: E402
import tritorch.nn  # noqa: E402
import tritorch.optim  # noqa: E402,F401
from tritorch.cuda import ahead  # noqa: E402
from tritorch.cuda.launch import launch  # noqa: E402
from tritorch.testing import samples  # noqa: E402
from tritorch.testing.ptx import batches, registry  # noqa: E402
from tritorch.testing.ptx.device import simulate  # noqa: E402
from tritorch.testing.ptx.machine import Fault  # noqa: E402
from tritorch.testing.ptx.operands import DTYPES  # noqa: E402
from tritorch.testing.ptx.trace import tracing  # noqa: E402

OPERATORS = """add exp2 sin erfinv gelu_tanh_backward floor_divide lerp copy_to concatenated gather sum amax argmax variance cumsum
linear_recurrence softmax log_softmax_backward layer_norm_rows rms_norm_backward batch_norm_train cross_entropy_rows random_normal
random_bernoulli sorted_first order_statistic nonzero_places index_add max_pool rotary_embedding""".split()


@pytest.fixture(scope="module", params=[80, 90])
def gpu(request):
    if os.environ.get("TRITORCH_PTX"):
        pytest.skip("the whole suite runs on it")
    with simulate(request.param) as gpu, ahead.staying():       # launches are looked at where they are made
        yield gpu


def test_pixels_that_no_tap_reaches(gpu):
    """With a stride and a dilation of 2 every second pixel has no gradient: LLVM concludes from a division that no divisor is 0, even of
    one that is done in vain before a loop."""
    gradients = []
    for device in ("cpu", "cuda"):
        x = torch.zeros(1, 1, 1, 9, device=device, requires_grad=True)
        weight = torch.arange(1.0, 6.0, device=device).reshape(1, 1, 1, 5)
        torch.nn.functional.conv2d(x, weight, stride=2, padding=(0, 3), dilation=2).sum().backward()
        gradients.append(x.grad.tolist())
    assert gradients[0] == gradients[1]


def test_the_pipeline_of_a_loop_without_turns_divides_by_no_0(gpu, monkeypatch):
    """Of a mask's tile that no row meets: what comes before such a loop divides all the same, and LLVM concludes from it."""
    divisors = []

    def watched(run):
        def divide(machine, ins):
            value = ins.operands[2].read(machine, DTYPES[ins.types[-1]])
            divisors.append((ins.source, bool((np.asarray(value != 0) | ~machine.mask).all())))
            run(machine, ins)
        return divide

    for opcode, run in list(registry._handlers.items()):
        if opcode.startswith(("div.s", "div.u", "rem.s", "rem.u")):
            monkeypatch.setitem(registry._handlers, opcode, watched(run))
    q, k, mask = [torch.ones(*shape, device="cuda", requires_grad=True) for shape in ((1, 1, 5, 16), (1, 1, 200, 16), (5, 200))]
    torch.nn.functional.scaled_dot_product_attention(q, k, k, mask, window_size=(2, 1)).sum().backward()
    torch.cuda.synchronize()
    assert divisors and not [source for source, fine in divisors if not fine]


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int32, torch.int64])
def test_shifts_by_as_much_as_the_width_and_more(dtype, gpu):
    """Compiled without care, a shift of 64 bits by 2³² is one by 0."""
    bits = torch.iinfo(dtype).bits
    by = [0, 1, bits - 1, bits, bits + 1, torch.iinfo(dtype).max] + [-1] * (dtype != torch.uint8) + [2**32, 2**32 + 1] * (bits == 64)
    x = torch.tensor([5, 100]).to(dtype)[:, None] * torch.tensor([1, -1]).to(dtype)
    x, y = torch.broadcast_tensors(x.reshape(4, 1), torch.tensor(by, dtype=dtype))
    left = (x.cuda() << y.cuda()).cpu()
    assert left.tolist() == (x << y).tolist() and not left[:, 3:].any()
    assert (x.cuda() >> y.cuda()).tolist() == (x >> y).tolist()


@pytest.mark.parametrize("name", OPERATORS)
def test_operator(name, gpu):
    op, before = torch.dispatch.registry[name], gpu.launches
    kind = torch.bfloat16 if gpu.arch == 90 else torch.float32
    args = next(args for args in samples.samples_of(op, kind) if all(t.numel() for t in samples.tensors_in(args)))
    with torch.no_grad():
        want = samples.results(op(*samples.leaves(args)))
        got = samples.results(op(*samples.leaves(args, torch.device("cuda:0"))))
    for have, expect in zip(got, want):
        samples.assert_near(have, expect, samples.describe(op, args), samples.tolerance(have.dtype))
    assert gpu.launches > before


def test_optimizers_count_and_step(gpu):
    for name, options in (("AdamW", {"fused": True, "amsgrad": True}), ("NAdam", {"capturable": True}), ("SGD", {"momentum": 0.9})):
        moves = [trajectory(torch, name, options, steps=3, device=device) for device in ("cpu", "cuda")]
        assert_near(*moves, 3e-6)


def test_a_captured_graph_runs_again(gpu):
    x = torch.ones(1000, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = (x + 1).cumsum(0)
    x.fill_(2.0)
    graph.replay()
    assert y[-1].item() == 3000


@pytest.mark.parametrize("columns", [32, 768, 40000])
def test_statistics_of_a_norm_do_not_depend_on_the_type_of_its_result(gpu, columns):
    """`torch.compile` lets a norm round its result itself and promises the bits of the operators."""
    x, weight = torch.randn(9, columns, device="cuda"), torch.randn(columns, device="cuda")
    with torch.no_grad():
        for name, bias in (("layer_norm_rows", (None,)), ("rms_norm_rows", ())):
            op = torch.dispatch.registry[name]
            y, *want = op(x, (columns,), weight, *bias, 1e-5)
            narrow, *got = [torch.empty_like(t, dtype=torch.bfloat16 if t is y else t.dtype) for t in (y, *want)]
            op.impls["cuda"](narrow, *got, x, (columns,), weight, *bias, 1e-5)
            assert all(torch.equal(a, b) for a, b in zip((narrow, *got), (y.bfloat16(), *want)))


@pytest.mark.parametrize("columns", [32, 768])
def test_a_stream_s_gradient_does_not_depend_on_what_is_stored_beside_it(gpu, columns):
    g, weight = torch.randn(9, columns, device="cuda").bfloat16(), torch.randn(columns, device="cuda")
    args = (g, torch.randn(9, columns, device="cuda"), torch.randn(9, columns, device="cuda"), *torch.randn(2, 9, device="cuda"), weight)
    registry = torch.dispatch.registry
    with torch.no_grad():
        gs, gw, gb = registry["residual_norm_backward"](*args)
        found, narrow, *sums, _ = registry["residual_norm_dropped_backward"](*args, p=0.0)
    assert all(torch.equal(a, b) for a, b in zip((found, narrow, *sums), (gs, gs.bfloat16(), gw, gb)))


def test_every_kind_of_parameter(gpu):
    from launch_kernels import types_kernel

    out = torch.empty(1, dtype=torch.float64, device="cuda")
    launch(types_kernel, (1,), out, 7, 1 << 40, 0.5, np.float64(0.1), True, None, (3, 2.0), N=10)
    assert out.item() == 7 + (1 << 40) + 0.5 + 0.1 + 1 + 1 + 3 + 2 + 10


def test_an_access_outside_names_kernel_line_and_thread(gpu):
    from launch_kernels import map_kernel, square

    x = torch.ones(1000, device="cuda")
    with pytest.raises(RuntimeError, match=r"map_kernel in thread \d+ of CTA .* not inside live memory.*launch_kernels.py:\d+"):
        launch(map_kernel, (32,), torch.empty_like(x), x, 1 << 15, FN=square, BLOCK=1024)


def test_programs_begin_in_any_order(gpu, monkeypatch):
    from launch_kernels import order_kernel

    monkeypatch.setattr(batches, "_CTAS", 4)                # as many run together
    out, ticket = torch.empty(64, dtype=torch.int32, device="cuda"), torch.zeros(1, dtype=torch.int32, device="cuda")
    launch(order_kernel, (64,), out, ticket)
    assert out.tolist() != sorted(out.tolist()) == list(range(64))


def test_a_wrong_promise_of_alignment_is_seen(gpu):
    from launch_kernels import map_kernel, same

    from tritorch.cuda import driver

    x = torch.ones(1024, device="cuda")
    launch(map_kernel, (1,), torch.empty_like(x), x, 1024, FN=same, BLOCK=1024)                  # specialised on aligned pointers
    start = next(reversed(driver.functions.values()))
    with pytest.raises(Fault, match="misaligned address .* of 16 bytes"):
        start(1, 1, 1, 0, [x.data_ptr(), x.data_ptr() + 4, 960])


def test_a_barrier_taken_out_of_a_compiled_kernel_is_noticed(gpu):
    x = torch.randn(3, 4000, device="cuda")
    with torch.no_grad():
        want = torch.softmax(x, -1)
        with tracing(gpu) as launches:
            torch.softmax(x, -1)
        kernel = launches[0].kernel
        code = kernel.program.code
        barriers = [i for i, ins in enumerate(code) if ins.opcode == "bar.sync"]
        assert kernel.program.name == "softmax_kernel" and len(barriers) > 3
        noticed = []
        for i in barriers:
            whole, code[i] = code[i], dataclasses.replace(code[i], opcode="fence", text="")
            noticed.append(any(not (torch.softmax(x, -1) == want).all().item() for _ in range(24)))
            code[i] = whole
    assert all(noticed[1:])                                     # the first one parts rounds of a loop that here has one
