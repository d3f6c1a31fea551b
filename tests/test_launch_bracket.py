"""`kernel[grid](...)`: Triton programs as they are, on our tensors."""

import os
import subprocess
import sys
import types
from pathlib import Path

import numpy as np
import pytest

triton = pytest.importorskip("triton")
import bracket_kernels as K  # noqa: E402
import triton.language as tl  # noqa: E402
from triton.tools.tensor_descriptor import TensorDescriptor  # noqa: E402

import tritorch as torch  # noqa: E402
from tritorch.cuda import compiler, driver, launch_bracket  # noqa: E402
from tritorch.cuda.dry import DryDriver  # noqa: E402
from tritorch.cuda.launch import launch  # noqa: E402
from tritorch.testing import ptx  # noqa: E402

pytestmark = pytest.mark.smoke


def blocks(meta):
    return (triton.cdiv(meta["n"], meta["BLOCK"]),)


@pytest.fixture
def xy(cuda):
    return torch.randn(1000, device=cuda), torch.randn(1000, device=cuda), torch.full((1000,), torch.nan, device=cuda)


@pytest.mark.parametrize("call", [
    lambda x, y, out: K.saxpy_kernel[blocks](x, y, out, 1000, 2.0, 128),
    lambda x, y, out: K.saxpy_kernel[(16,)](x, y, out, 1000, alpha=2.0),
    lambda x, y, out: K.saxpy_kernel[16, 1](out_ptr=out, y_ptr=y, x_ptr=x, n=1000, alpha=2.0, num_warps=8, num_stages=1),
    lambda x, y, out: K.saxpy_kernel[blocks](x, y, n=1000, out_ptr=out, BLOCK=tl.constexpr(32), alpha=np.float32(2), maxnreg=None),
    lambda x, y, out: K.saxpy_kernel.run(x, y, out, 1000, 2, grid=blocks, warmup=False),
])
def test_arguments_by_position_keyword_and_default(xy, call):
    x, y, out = xy
    call(x, y, out)
    np.testing.assert_allclose(out.cpu(), (2 * x + y).cpu(), rtol=1e-6)


def test_autotune_and_heuristics(cuda):
    for n in (1000, 1024):
        x, out = torch.randn(n, device=cuda), torch.empty(n, device=cuda)
        K.tuned_kernel[blocks](x, out, n)
        np.testing.assert_array_equal(out.cpu(), (2 * x).cpu())
    assert K.tuned_kernel.best_config in K.tuned_kernel.configs


@pytest.mark.parametrize("arch", [80, 90])
def test_autotune_passes_over_what_does_not_fit(arch):
    with ptx.simulate(arch):                                             # the simulated device has all the shared memory one wants
        x, out = torch.ones(128, 128, device="cuda"), torch.zeros(128, device="cuda")
        K.greedy_kernel.cache.clear()
        K.greedy_kernel[(1,)](x, out, 128)
        assert K.greedy_kernel.best_config is K.greedy_kernel.configs[1]
        assert out.tolist() == [128.0 * 32] * 32 + [0.0] * 96


def test_all_configurations_are_compiled_ahead():
    with driver.using(DryDriver(90)), compiler.recording() as record:
        x = torch.empty(100, device="cuda")
        K.tuned_kernel.cache.clear()
        K.tuned_kernel[blocks](x, x, 100)
    K.tuned_kernel.cache.clear()
    assert sorted(spec.options["num_warps"] for spec in record.values() if spec.kernel.__name__ == "tuned_kernel") == [1, 4]


def measured(kernel_call, quantiles):
    kernel_call()
    return [1.0] * len(quantiles)


@pytest.mark.filterwarnings("ignore:warmup, rep, and use_cuda_graph:DeprecationWarning")
@pytest.mark.parametrize("choice", [{"do_bench": measured}, {"warmup": 1, "rep": 1}, {"warmup": 1, "rep": 1, "use_cuda_graph": True}])
def test_autotune_by_another_clock_passes_over_what_does_not_fit(choice):
    tuned = triton.autotune(K.greedy_kernel.configs, ["n"], reset_to_zero=["out_ptr"], **choice)(K.greedy_kernel.fn)
    with ptx.simulate(80):
        x, out = torch.ones(64, 64, device="cuda"), torch.zeros(64, device="cuda")
        tuned[(1,)](x, out, 64)
        assert tuned.best_config is K.greedy_kernel.configs[1]
        assert out.tolist() == [64.0 * 32] * 32 + [0.0] * 32


def test_parameters_with_the_names_of_options(cuda):
    x, out = torch.ones(50, device=cuda), torch.zeros(50, device=cuda)
    for call, found in ((lambda: K.staged_kernel[(1,)](x, out, 50, BLOCK=16, num_stages=2, num_warps=2), 2),
                        (lambda: K.staged_kernel[(1,)](x, out, 50, 16, 4), 4),
                        (lambda: launch(K.staged_kernel, (1,), x, out, 50, BLOCK=16, num_stages=5, num_ctas=1), 5)):
        call()
        assert out.tolist() == [found] * 50
    spec = K.staged_kernel[(1,)](x, out, 50, BLOCK=16, num_stages=2)._spec
    assert spec.options["num_stages"] == 2 and spec.options["num_ctas"] == 1


LIBDEVICE = triton.knobs.nvidia.libdevice_path or str(Path(triton.__file__).parent / "backends/nvidia/lib/libdevice.10.bc")


def test_a_library_by_its_path(cuda):
    x, out = torch.rand(64, device=cuda), torch.zeros(64, device=cuda)
    for libraries in (None, {"libdevice": LIBDEVICE}):
        out.zero_()
        K.saxpy_kernel[(1,)](x, x, out, 64, extern_libs=libraries)
        assert torch.equal(out, 2 * x)


def test_descriptors_of_triton(cuda):
    x = torch.randn(64, 32, device=cuda, dtype=torch.float16)
    out = torch.zeros_like(x)
    K.tile_kernel[(4,)](TensorDescriptor.from_tensor(x, [16, 32]), TensorDescriptor.from_tensor(out, [16, 32]), 2, BLOCK=16)
    np.testing.assert_array_equal(out.cpu(), (x + 2).cpu())


def test_padding_of_a_descriptor_is_nan(cuda):
    x, out = torch.ones(8, 32, device=cuda), torch.zeros(16, 32, device=cuda)
    source = TensorDescriptor(x, [8, 32], [32, 1], [16, 32], padding="nan")
    K.tile_kernel[(1,)](source, TensorDescriptor.from_tensor(out, [16, 32]), 0, BLOCK=16)
    assert out[:8].eq(1).all() and out[8:].isnan().all()


def test_reinterpreted_tensors_and_tuples_and_lists(cuda):
    x = torch.arange(16, device=cuda, dtype=torch.uint8)
    out = torch.empty(16, device=cuda, dtype=torch.float16)
    K.bits_kernel[(1,)](triton.reinterpret(x, tl.float8e5), out, BLOCK=16)
    np.testing.assert_array_equal(out.cpu(), x.view(torch.float8_e5m2).to(torch.float16).cpu())
    with pytest.raises(TypeError, match="fp8e4b15"):
        K.bits_kernel[(1,)](triton.reinterpret(x, tl.float8e4b15), out, BLOCK=16)
    ones, out = torch.ones(16, device=cuda), torch.empty(16, device=cuda)
    for pair in ((2, 5), [2, 5]):
        K.scaled_kernel[(1,)](ones, out, pair, 16)
        assert out.tolist() == [13.0] * 16
    K.scaled_kernel[(1,)](ones, out, (1, 1), 16, ADD=0.5)
    assert out.tolist() == [4.5] * 16


def test_what_is_not_to_be_specialised(cuda):
    x, out = torch.arange(16.0, device=cuda), torch.empty(16, device=cuda)
    for n in (1, 16, 3):
        K.shifted_kernel[(1,)](x, out, n, BLOCK=16)
        assert out.tolist() == [float(i + n) if i + n < 16 else 0.0 for i in range(16)]
    spec = K.shifted_kernel[(1,)](x, out, 1, BLOCK=16)._spec
    assert spec.signature["n"] == "i32" and (0,) not in spec.attrs and (1,) in spec.attrs


def test_it_is_captured(cuda):
    x, y, out = torch.ones(100, device=cuda), torch.ones(100, device=cuda), torch.zeros(100, device=cuda)
    K.saxpy_kernel[(2,)](x, y, out, 100)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        K.saxpy_kernel[(2,)](x, y, out, 100, 3.0)
    x.fill_(2)
    graph.replay()
    assert out.tolist() == [7.0] * 100


def test_it_is_part_of_a_compiled_step(cuda):
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            out = torch.empty_like(x)
            K.tuned_kernel[blocks](x, out, x.numel())
            return out

        @staticmethod
        def backward(ctx, g):
            out = torch.empty_like(g)
            K.saxpy_kernel[blocks](g, g, out, g.numel(), BLOCK=32)
            return out

    def train(compiled):
        torch.manual_seed(0)
        w = torch.randn(50, device=cuda, requires_grad=True)
        optimizer = torch.optim.SGD([w], lr=0.1)

        def step(x):
            loss = (Double.apply(w) * x).square().sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            return loss.detach()

        run = torch.compile(step) if compiled else step
        losses = [run(torch.full((50,), float(k), device=cuda)).item() for k in range(5)]
        assert not compiled or "is replayed" in run.report()
        return losses, w.tolist()

    assert train(True) == train(False)


def test_errors_say_what_is_wrong(cuda):
    x, kernel = torch.zeros(4, device=cuda), K.bits_kernel
    with pytest.raises(ValueError, match="bits_kernel: expected CUDA tensors, got the CPU tensor out_ptr"):
        kernel[(1,)](x, torch.zeros(4), BLOCK=4)
    with pytest.raises(TypeError, match="at most 3 arguments, got 4"):
        kernel[(1,)](x, x, 4, 4)
    with pytest.raises(TypeError, match="none for BLOCK"):
        kernel[(1,)](x, x)
    with pytest.raises(TypeError, match="x_ptr once"):
        kernel[(1,)](x, x, BLOCK=4, x_ptr=x)
    with pytest.raises(KeyError, match="num_wraps"):
        kernel[(1,)](x, x, BLOCK=4, num_wraps=4)
    with pytest.raises(TypeError, match="got str"):
        kernel[(1,)](x, "y", BLOCK=4)


def test_a_global_that_changed_is_noticed(cuda, monkeypatch):
    out = torch.zeros(1, device=cuda)
    K.factor_kernel[(1,)](out)
    assert out.item() == 5
    K.factor_kernel.cache_key  # noqa: B018 finds the globals
    monkeypatch.setattr(K, "FACTOR", tl.constexpr(6))
    with pytest.raises(RuntimeError, match="global FACTOR has changed"):
        K.factor_kernel[(1,)](out)


def test_memory_and_launches_are_those_of_the_current_stream(cuda):
    x, out = torch.ones(64, device=cuda), torch.zeros(64, device=cuda)
    torch.cuda.synchronize()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        K.saxpy_kernel[(1,)](x, x, out, 64)
    side.synchronize()
    assert out.tolist() == [2.0] * 64


def test_the_machine_code_of_a_call():
    with driver.using(DryDriver(90)):
        x = torch.empty(64, device="cuda")
        started = K.saxpy_kernel[(1,)](x, x, x, 64, BLOCK=64, num_warps=2)
        assert started is K.saxpy_kernel[(2,)](x, x, x, 128, BLOCK=64, num_warps=2)
        compiled = K.saxpy_kernel.warmup(torch.float32, x, torch.float32, 64, BLOCK=64, num_warps=2, grid=(1,))
        assert compiled.n_regs > 0 and compiled.n_spills == 0 and compiled.metadata.num_warps == 2 and compiled.metadata.shared == 0
        assert compiled.name == "saxpy_kernel" and {"ttir", "ttgir", "llir", "ptx", "cubin"} <= set(compiled.asm)
        assert compiled.asm["ptx"].count("target sm_90")
        assert compiled[(4,)](x, x, x, 64) is not None
        assert K.saxpy_kernel.warmup(x, x, x, 64, extern_libs={"libdevice": LIBDEVICE}, grid=(1,)).n_regs > 0
        assert K.bits_kernel[(0,)](x, x, BLOCK=64).fn is K.bits_kernel and K.saxpy_kernel[(0,)](x, x, x, 64).fn is K.saxpy_kernel


def test_equal_constexprs_of_other_types_and_options_are_other_code():
    with driver.using(DryDriver(90)):
        x = torch.empty(16, device="cuda")
        calls = [{"ADD": 1}, {"ADD": True}, {"ADD": 1.0}, {"ADD": 0.0}, {"ADD": -0.0}, {"num_warps": 8}, {"num_stages": 8}, {"num_ctas": 2}]
        found = [K.scaled_kernel[(1,)](x, x, (2, 5), 16, **options) for options in calls]
        again = [K.scaled_kernel[(1,)](x, x, (3, 7), 16, **options) for options in calls]
    assert len({*map(id, found)}) == len(calls) and all(a is b for a, b in zip(found, again))
    assert [one._spec.options["num_warps"] for one in found[4:7]] == [4, 8, 4]


def test_another_run_in_the_place_of_ours_is_called(monkeypatch):
    monkeypatch.setattr(triton.JITFunction, "run", lambda self, *args, grid, warmup, **kwargs: (self, args, grid, warmup, kwargs))
    assert K.bits_kernel[(2,)](1, BLOCK=4) == (K.bits_kernel, (1,), (2,), False, {"BLOCK": 4})


@pytest.fixture
def no_torch(monkeypatch):
    """As in a program that has not imported it: other tests may have."""
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    for name in ("_active", "_default"):
        monkeypatch.setattr(triton.runtime.driver, name, None)


def test_autotune_beside_torch(monkeypatch):
    """Torch's driver is the active one, and the arguments are ours."""
    monkeypatch.setitem(sys.modules, "torch", types.ModuleType("torch"))
    monkeypatch.setattr(triton.runtime.driver, "_active", active := object())
    with ptx.simulate(90):
        x, out = torch.ones(128, 128, device="cuda"), torch.zeros(128, device="cuda")
        K.greedy_kernel.cache.clear()
        K.greedy_kernel[(1,)](x, out, 128)
        assert K.greedy_kernel.best_config is K.greedy_kernel.configs[1]
    assert triton.runtime.driver.active is active


def test_a_benchmark_asks_our_driver(cuda, no_torch):
    active = triton.runtime.driver.active
    assert active.get_active_torch_device() == torch.device("cuda", torch.cuda.current_device())
    assert active.get_device_interface() is torch.cuda
    properties = active.utils.get_device_properties(0)
    assert properties["multiprocessor_count"] == torch.cuda.get_device_properties(0).multi_processor_count
    x = torch.ones(64, device=cuda)
    assert triton.testing.do_bench(lambda: K.saxpy_kernel[(1,)](x, x, x, 64), warmup=0, rep=1) >= 0


def test_helpers_of_triton_that_import_torch(cuda, no_torch):
    x, out = torch.ones(64, device=cuda), torch.zeros(64, device=cuda)
    assert triton.testing.do_bench_cudagraph(lambda: K.saxpy_kernel[(1,)](x, x, out, 64), rep=1) >= 0
    triton.testing.assert_close(out, 2 * x)
    with pytest.raises(AssertionError):
        triton.testing.assert_close(out, x)
    assert getattr(sys.modules.get("torch"), "__name__", "torch") == "torch"


def test_hooks_are_told_of_a_launch(cuda):
    x, out, heard = torch.zeros(50, device=cuda), torch.zeros(50, device=cuda), []
    hooks, enter, leave = triton.knobs.runtime, lambda told: heard.append(told.get()), lambda told: heard.append(out.clone())
    hooks.launch_enter_hook.add(enter)
    hooks.launch_exit_hook.add(leave)
    try:
        K.told_kernel[blocks](x, out, 50)
        K.bits_kernel[(1,)](x, out, BLOCK=16)
    finally:
        hooks.launch_enter_hook.remove(enter)
        hooks.launch_exit_hook.remove(leave)
    assert heard[0]["bytes"] == 400 and heard[0]["name"] == "told_kernel of 50" and heard[0]["programs"] == 2
    assert heard[1].eq(1).all() and heard[2]["name"] == "bits_kernel" and len(heard) == 4
    K.told_kernel[blocks](x, out, 50)
    assert len(heard) == 4


ORDERS = {
    "tritorch first": "import tritorch as torch, triton",
    "triton first": "import triton; import tritorch as torch",
    "our part of it first": "import tritorch.cuda.launch_bracket, tritorch as torch, triton",
    "under PyTorch's name": "import tritorch, sys; sys.modules['torch'] = tritorch; import torch, triton",
}


@pytest.mark.parametrize("order", ORDERS)
def test_whatever_is_imported_first(order):
    run_program(f"""
{ORDERS[order]}
import bracket_kernels as K
assert str(triton.runtime.driver.active.get_active_torch_device()) == "cuda:0"
x, out = torch.ones(8, device="cuda"), torch.zeros(8, device="cuda")
try:
    K.bits_kernel[(1,)](x, torch.ones(8), BLOCK=8)
except ValueError:                                                       # the first kernel of a program
    K.bits_kernel[(1,)](x, out, BLOCK=8)
assert out.tolist() == [1.0] * 8
""", TRITORCH_CUDA="simulated")


def test_triton_s_own_interpreter():
    run_program("""
import tritorch as torch
import bracket_kernels as K
x, out = torch.randn(100), torch.zeros(10, 20)
K.saxpy_kernel[(2,)](x, x, out[2:], 100, 2.0)
assert torch.equal(out.flatten()[40:140], 3 * x) and out.flatten()[:40].eq(0).all()
""", TRITON_INTERPRET="1")


def test_importing_tritorch_does_not_import_triton():
    run_program("import tritorch, sys; assert 'triton' not in sys.modules")


def run_program(text, **environment):
    here = Path(__file__).parent
    environment = {**os.environ, **environment, "PYTHONPATH": os.pathsep.join((str(here.parent), str(here)))}
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr


def test_torch_s_tensors_go_triton_s_way():
    pytorch = pytest.importorskip("torch")
    if pytorch.cuda.is_available():
        pytest.skip("a GPU: the call would succeed")
    with pytest.raises(RuntimeError, match="tensors of tritorch"):
        K.bits_kernel[(1,)](pytorch.ones(4), pytorch.ones(4), BLOCK=4)
    assert launch_bracket.torch_is_there()
    with torch.cuda.simulate():
        x, out = torch.ones(4, device="cuda"), torch.zeros(4, device="cuda")
        K.bits_kernel[(1,)](x, out, BLOCK=4)
        assert out.tolist() == [1.0] * 4
