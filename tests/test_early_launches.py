"""Kernels that begin before the one in front of them has ended: what the compiler puts first, and how the NVIDIA driver is asked for it."""
import re

import pytest
from test_nvidia_stub import function, read, stub  # noqa: F401
from test_ptx_races import run

import tritorch as torch
from tritorch.cuda import driver

compiler = pytest.importorskip("tritorch.cuda.compiler")
DryDriver = pytest.importorskip("tritorch.cuda.dry").DryDriver
WAIT, NEXT = "griddepcontrol.wait;", "griddepcontrol.launch_dependents;"


def launches(fake):
    return [call[:2] for call in fake.calls if call[0].startswith("cuLaunch")]


def test_kernels_that_begin_early_have_a_configuration_for_each_grid_and_stream(stub):  # noqa: F811
    fake, _ = stub
    k = function(stub, {"n": "i32"}, pdl=True)
    for grid, stream in ((3, 0x51), (3, 0x51), (4, 0x51), (3, 0x52)):
        k.launch(grid, 2, 1, stream, [grid])
        name, config, handle, address, extra = fake.calls[-1]
        assert (name, handle, extra) == ("cuLaunchKernelEx", 0x91, 0) and read(address, 0, "i") == grid
        assert (config.gridDimX, config.gridDimY, config.hStream, config.numAttrs) == (grid, 2, ("stream", stream), 1)
    configs = [call[1] for call in fake.named("cuLaunchKernelEx")]
    assert configs[0] is configs[1] and len(set(map(id, configs))) == 3


@pytest.mark.parametrize("waits", [True, False])
def test_a_graphs_kernels_begin_early_if_they_wait_first(stub, monkeypatch, waits):  # noqa: F811
    fake, _ = stub
    from tritorch.cuda import nvidia_function

    k = function(stub, {"n": "i32"}, waits_first=waits)
    monkeypatch.setitem(nvidia_function.captures, 0, object())
    monkeypatch.setattr(nvidia_function, "is_capturing", lambda index, stream: (index, stream) == (0, 0x51))
    k.launch(3, 2, 1, 0x51, [7])                                         # recorded
    k.launch(3, 2, 1, 0x52, [8])                                         # another stream, which is not
    assert [name for name, _ in launches(fake)] == ["cuLaunchKernelEx" if waits else "cuLaunchKernel", "cuLaunchKernel"]
    if waits:
        config = launches(fake)[0][1]
        assert config.attrs[0].value.programmaticStreamSerializationAllowed == 1 and config.numAttrs == 1
        assert (config.gridDimX, config.gridDimY, config.hStream) == (3, 2, ("stream", 0x51))


def test_no_kernel_begins_early_on_a_gpu_that_refuses_it(stub):  # noqa: F811
    fake, _ = stub
    function(stub, {"n": "i32"}, major=12, pdl=True).launch(3, 2, 1, 0x51, [7])
    assert [name for name, _ in launches(fake)] == ["cuLaunchKernel"]


def compiled(arch):
    """The kernels of an addition."""
    with driver.using(DryDriver(arch)), compiler.recording() as record:
        torch.zeros(512, 64, device="cuda") + 1
    return [compiler.compile_kernel(s.kernel, s.signature, s.constexprs, s.attrs, s.options, arch) for s in record.values()]


@pytest.mark.smoke
def test_every_kernel_waits_before_its_first_instruction():
    found = compiled(90)
    for kernel in found:
        code = re.sub(r"//.*|^\s*\..*", "", kernel.ptx[kernel.ptx.index("{", kernel.ptx.index(".entry")) + 1:], flags=re.M)
        assert kernel.waits_first and not kernel.pdl and code.split()[:2] == ["{", WAIT]
        assert kernel.ptx.count(WAIT) == kernel.ptx.count(NEXT) == 1
    assert len(found) == 2


def test_older_gpus_know_no_such_instruction():
    assert [(kernel.waits_first, "griddepcontrol" in kernel.ptx) for kernel in compiled(80)] == [(False, False)] * 2


COPY = "mov.u32 %r4, global_smem;\ncp.async.ca.shared.global [%r4], [%rd1], 4;\ncp.async.wait_all;"
BY_ONE = "@%p0 griddepcontrol.wait;\nbar.sync 0;\nld.global.b32 %r3, [%rd1];\nst.global.b32 [%rd1], %r3;"


@pytest.mark.parametrize("body, fault", [
    ("griddepcontrol.wait;\nld.global.b32 %r3, [%rd1];", None), (BY_ONE, None), ("griddepcontrol.wait;", None),
    ("ld.global.b32 %r3, [%rd1];\ngriddepcontrol.wait;", "used before the wait"),
    ("@%p0 st.global.b32 [%rd1], %r1;", "used before the wait"), (f"{COPY}\ngriddepcontrol.wait;", "used before the wait"),
    ("setp.eq.u32 %p1, %r1, 0;\n@%p1 griddepcontrol.wait;", "ends without a wait"), ("", "ends without a wait")])
def test_the_simulated_gpu_finds_what_comes_before_the_wait(body, fault):
    run(body, threads=64)                                                # in front of it nothing runs
    if fault is None:
        run(body, threads=64, early=True)
    else:
        with pytest.raises(RuntimeError, match=fault):
            run(body, threads=64, early=True)
