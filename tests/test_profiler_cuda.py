"""tritorch.profiler on a device: kernels, copies, graphs and compiled steps, memory, traces of all of them."""
import threading

import numpy as np
import pytest
from profiles import CPU, CUDA, host, kernels, names, nothing_left  # noqa: F401
from test_ahead import Loaded, device, program  # noqa: F401

import tritorch as torch
from tritorch.autograd.modes import state
from tritorch.cuda import driver, measuring
from tritorch.profiler import ProfilerActivity, profile, record_function, supported_activities


def test_kernels(cuda):
    x = torch.ones(64, 64, device=cuda)
    for _ in range(3):
        x.exp()                                                          # known, and repeated
    assert supported_activities() == {ProfilerActivity.CPU, ProfilerActivity.CUDA}
    with profile() as prof:
        for _ in range(2):
            x.exp()
            with record_function("block"):
                torch.tanh(x + 1)
    assert all(e.self_device_time_total > 0 and e.cpu_time_total == 0 and e.kind == "kernel" for e in kernels(prof))
    exp, block = ([e for e in prof.events() if e.name == name][0] for name in ("aten::exp", "block"))
    assert len(exp.kernels) == 1 and exp.self_device_time_total == exp.device_time_total == exp.kernels[0].self_device_time_total
    assert names(exp.cpu_children) == ["cuLaunchKernel"]
    assert block.self_device_time_total == 0 and block.device_time_total == sum(e.device_time_total for e in block.cpu_children) > 0
    assert len(kernels(prof)) == sum(len(e.kernels) for e in host(prof)) == len([e for e in host(prof) if e.name == "cuLaunchKernel"]) == 6
    averages = prof.key_averages()
    total = sum(e.self_device_time_total for e in kernels(prof))
    assert averages.total_average().self_device_time_total == pytest.approx(total)
    assert averages.total_average().self_cuda_time_total == averages.total_average().self_device_time_total
    text = averages.table(sort_by="cuda_time_total")
    assert "Self CUDA time total" in text and "CUDA time avg" in text and exp.kernels[0].name in text


def test_times_of_kernels_lie_where_the_host_waited(cuda):
    x = torch.ones(64, 64, device=cuda)
    torch.cuda.synchronize()
    with profile() as prof:
        with record_function("queued"):
            x.exp()
            torch.cuda.synchronize()
    kernel, block = kernels(prof)[0], prof.events()[0]
    assert block.start < kernel.start < kernel.end < block.end + 1000


def test_what_starts_kernels_is_the_same_afterwards(cuda):
    def run():
        x.exp().sum()

    x = torch.ones(8, 5, device=cuda)
    run()
    torch.cuda.synchronize()                                             # kernels that were compiled meanwhile have taken their places
    before = dict(driver.functions)
    assert not any(type(start) is measuring.Measured for start in before.values())
    with profile():
        run()
        inside = dict(driver.functions)
        torch.ones(3, 7, device=cuda).log2().sqrt()                      # which load
    assert all(type(start) is measuring.Measured for start in inside.values())
    assert all(driver.functions[key] is start for key, start in before.items())
    assert all(inside[key].start is start for key, start in before.items())
    run()
    with profile(activities=CPU) as prof:
        assert driver.functions.items() >= before.items() and measuring.meter is None
        run()
    assert not kernels(prof) and "aten::exp" in names(prof.events())
    with profile(activities=CUDA) as prof:
        run()
    assert {e.name for e in host(prof)} <= {"cuLaunchKernel"} and len(kernels(prof)) >= 2


def test_kernels_of_triton_programs_are_seen(cuda):
    from bracket_kernels import saxpy_kernel

    x = torch.ones(100, device=cuda)
    y = torch.empty_like(x)
    for _ in range(2):                                                   # loaded inside, and known
        with profile() as prof:
            saxpy_kernel[(2,)](x, x, y, 100, alpha=2.0)
        assert names(kernels(prof)) == ["saxpy_kernel"] and y.tolist() == [3.0] * 100


def test_copies_and_fills(cuda):
    with profile() as prof:
        x = torch.from_numpy(np.ones(100, np.float32)).to(cuda)
        y = x.cpu()
    assert [(e.name, e.kind) for e in kernels(prof)] == [("Memcpy HtoD", "gpu_memcpy"), ("Memcpy DtoH", "gpu_memcpy")]
    assert names(e for e in host(prof) if e.kind == "cuda_runtime") == ["cudaMemcpyAsync"] * 2 and y.sum().item() == 100
    with profile() as prof:
        torch.cuda.memory.fill(x.data_ptr(), 0, 1, 400, 0)
    assert [(e.name, e.kind) for e in kernels(prof)] == [("Memset (Device)", "gpu_memset")]


def test_device_memory_is_counted(cuda):
    x = torch.ones(1000, device=cuda)
    before = torch.cuda.memory_allocated()
    with profile(profile_memory=True) as prof:
        y = x + 1
        after = torch.cuda.memory_allocated()
        with record_function("freed"):
            del y
        with record_function("passing"):
            x.mul(2)
    found = {e.name: e for e in prof.events()}
    assert found["aten::add"].device_memory_usage == after - before == 4096
    assert found["freed"].device_memory_usage == -4096
    assert found["passing"].device_memory_usage == 0 and found["passing"].self_cuda_memory_usage == -4096
    assert "Self CUDA Mem" in prof.key_averages().table()


def test_threads_share_the_device(cuda):
    x = torch.ones(5, 5, device=cuda)
    with profile() as prof:
        thread = threading.Thread(target=lambda: x.exp())
        thread.start()
        thread.join()
    assert len(kernels(prof)) == 1 and not host(prof) and kernels(prof)[0].launch is None


def test_graphs(cuda):
    x, graph = torch.ones(6, 6, device=cuda), torch.cuda.CUDAGraph()
    (x + 1).exp()
    with profile() as prof:
        with torch.cuda.graph(graph):
            y = (x + 1).exp()
        assert "aten::exp" in names(state.interpreter.events)
        with record_function("replays"):
            graph.replay()
            graph.replay()
    assert [(e.name, e.kind) for e in kernels(prof)] == [("cudaGraphLaunch", "gpu_graph")] * 2
    block = next(e for e in prof.events() if e.name == "replays")
    assert names(block.cpu_children) == ["cudaGraphLaunch"] * 2 and len(block.kernels) == 2
    assert np.allclose(y.cpu().numpy(), np.exp(2))


def test_compiled_steps_are_one_event(cuda):
    model = torch.nn.Linear(4, 4).to(cuda)
    optimizer, runs = torch.optim.SGD(model.parameters(), lr=0.01), []

    @torch.compile
    def step(x):
        with record_function("forward"):
            loss = model(x).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    x = torch.ones(2, 4, device=cuda)
    for _ in range(5):
        runs.append(step(x).item())
    with profile() as prof:
        for _ in range(3):
            runs.append(step(x).item())
    runs.append(step(x).item())
    regions = [e for e in prof.events() if e.name.startswith("Torch-Compiled Region: ")]
    assert len(regions) == 3 and all("cudaGraphLaunch" in names(e.cpu_children) for e in regions)
    assert "aten::linear" not in names(prof.events()) and "cudaGraphLaunch" in names(kernels(prof))
    with profile(activities=CPU) as prof:
        runs.append(step(x).item())
    assert len([e for e in prof.events() if e.name.startswith("Torch-Compiled Region: ")]) == 1
    assert np.allclose(np.diff(runs), runs[1] - runs[0], rtol=1e-3), "every call took its step"


def test_steps_are_compiled_inside_of_a_profile(cuda):
    calls = []

    @torch.compile
    def step(x):
        return (x * 2).exp()

    x = torch.ones(3, device=cuda)
    with profile() as prof:
        for _ in range(6):
            calls.append(step(x).sum().item())
    assert len(set(calls)) == 1 and "is replayed" in step.report() and step.latest is None
    assert 1 <= names(kernels(prof)).count("cudaGraphLaunch") < 6
    assert step(x).sum().item() == calls[0] and step.latest.fits((x,), {}) is not None       # the quick way, from here on
    with profile():
        assert step.latest.fits((x,), {}) is None and step(x).sum().item() == calls[0]
    assert step.latest.fits((x,), {}) is not None

    @torch.compile
    def profiles(x):
        with profile(activities=CPU):
            return x * 2

    with pytest.raises(RuntimeError, match=r"profile.start: expected a call outside of compiled functions, got one inside"):
        profiles(x)


def test_what_waits_for_kernels_is_measured(device):                     # noqa: F811
    with profile() as prof:
        program()
        assert not driver.waiting                                        # a value was asked for: kernels have their starts now
        program()
    launched = [k for k, call in enumerate(device.told) if len(call) == 6]
    assert launched and all(device.told[k - 1][0] == device.told[k + 1][0] == "record" for k in launched)
    assert len([e for e in prof.events() if e.kind == "kernel"]) == len(launched)
    assert all(type(getattr(start, "__self__", None)) in (Loaded, type(None)) for start in driver.functions.values())


def test_another_driver_in_between(cuda):
    if driver.current().name != "simulated":
        pytest.skip("replaces the simulated device")
    with profile(profile_memory=True) as prof:
        torch.ones(2, device=cuda).exp()
        with torch.cuda.simulate():
            torch.ones(2, device="cuda").exp()
    assert names(host(prof)).count("aten::exp") == 2 and [e.launch.cpu_parent.name for e in kernels(prof)] == ["aten::fill_", "aten::exp"]


def test_without_a_device(monkeypatch):
    monkeypatch.setattr(driver, "available", lambda: False)
    with pytest.warns(UserWarning, match="profile: CUDA is not available, so only the CPU is looked at"):
        with profile(activities=[*CPU, *CUDA]) as prof:
            torch.ones(2)
    assert names(prof.events()) == ["aten::fill_"] and supported_activities() == {*CPU}
