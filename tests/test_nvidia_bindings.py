"""The NVIDIA driver over the real cuda.bindings and a libcuda that notes what it is given: types, order and handles of every call."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("cuda.bindings.driver")
pytest.importorskip("triton")
COMPILER = shutil.which("cc") or shutil.which("gcc")
pytestmark = [pytest.mark.smoke, pytest.mark.skipif(COMPILER is None or sys.platform != "linux", reason="needs a C compiler and Linux")]


@pytest.fixture(scope="module")
def stub(tmp_path_factory):
    folder = tmp_path_factory.mktemp("libcuda")
    source = Path(__file__).with_name("stub_libcuda.c")
    subprocess.run([COMPILER, "-shared", "-fPIC", "-w", "-o", str(folder / "libcuda.so.1"), str(source), "-ldl"], check=True)
    return folder


@pytest.fixture
def run(stub, tmp_path):
    """run(program): what it prints and what the library noted, both as lines."""
    def run(program):
        path = os.pathsep.join(filter(None, [str(stub), os.environ.get("LD_LIBRARY_PATH")]))
        environment = {**os.environ, "LD_LIBRARY_PATH": path, "STUB_LOG": str(tmp_path / "log"), "TRITORCH_CUDA": "nvidia",
                       "CUDA_LAUNCH_BLOCKING": "1",                                  # the log is the same with kernels on disk and without
                       "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
        (tmp_path / "log").touch()
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines(), (tmp_path / "log").read_text().splitlines()

    return run


def test_memory_streams_events_and_graphs(run):
    printed, noted = run("""
import tritorch as torch
print(torch.cuda.get_device_name(), torch.cuda.get_device_capability(), torch.cuda.mem_get_info())
x = torch.tensor([1.0, 2.0, 3.0]).cuda()
print(x.tolist())
stream = torch.cuda.Stream(priority=-1)
with torch.cuda.stream(stream):
    y = x * 2
print(stream.query(), torch.cuda.default_stream().query())
start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
start.record(), end.record(), stream.wait_event(end)
print(start.elapsed_time(end), end.query())
print(torch.ones(4).pin_memory().to("cuda", non_blocking=True).tolist())
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    z = x + 1
graph.replay()
torch.cuda.synchronize()
try:
    torch.empty(1 << 34, device="cuda")
except torch.cuda.OutOfMemoryError as error:
    print(type(error).__name__)
""")
    assert printed == ["Stub GPU (9, 0) (1073741824, 17179869184)", "[1.0, 2.0, 3.0]", "False True", "1.5 True", "[1.0, 1.0, 1.0, 1.0]",
                       "OutOfMemoryError"]
    assert "stream 1 -1" in noted and "capture 2" in noted and "graph 0x62" in noted and "host_alloc 512 1" in noted
    on_stream = [line for line in noted if line.startswith("launch 0x91") and "stream 0x5001" in line]
    assert len(on_stream) == 1
    assert re.search(r"grid 1 1 1 block \d+ 1 1 shared 0 .* first 0x[0-9a-f]+00 extra \(nil\) aligned 1$", on_stream[0])


def test_kernels_with_descriptors(run):
    _, noted = run("""
import tritorch as torch
a, b = [torch.empty(4096, 4096, device="cuda", dtype=torch.bfloat16) for _ in range(2)]
a @ b
""")
    maps = [line for line in noted if line.startswith("map")]
    assert len(maps) == 3
    assert all("type 9 rank 3" in line and "shape 4096 4096 stride 8192" in line and line.endswith("aligned 1") for line in maps)
    (launch,) = [line for line in noted if line.startswith("launch")]
    assert "first 0xabababababababab" in launch and launch.endswith("aligned 1")             # the map itself is the first parameter
    shared = re.search(r"shared (\d+)", launch)[1]
    assert f"attribute 8 {shared}" in noted                                                  # asked for beforehand


def test_memory_of_other_processes(run):
    printed, noted = run("""
import tritorch as torch
from tritorch.cuda import driver
x = torch.arange(8.0, device="cuda")
here = driver.current()
handle, offset = here.ipc_handle(x.data_ptr() + 20)
base = here.ipc_open(handle)
here.ipc_close(base)
print(len(handle), offset, base == x.data_ptr(), hex(base))
""")
    _, _, _, base = printed[0].split()
    assert printed[0].startswith("64 20 True") and noted[-2:] == ["open 1 90 90", f"close {base}"]


def test_attributes_of_a_launch(run):
    _, noted = run("""
import types
from tritorch.cuda import driver
from tritorch.cuda.nvidia_function import NvidiaFunction
nvidia = driver.current()
nvidia.set_device(0)
compiled = types.SimpleNamespace(name="k", cubin=b"\\x7fELF", shared=0, num_warps=4, num_ctas=2, cluster=1, global_scratch_size=0,
                                 cooperative=True, pdl=True, waits_first=False, descriptors=[], parameters=[8, 4, 8, 8])
NvidiaFunction(nvidia, nvidia.device_properties(0), compiled, {"x_ptr": "*fp32", "n": "i32"}).launch(3, 2, 1, 0, [0x1000, 5])
""")
    (launch,) = [line for line in noted if line.startswith("launch_ex")]
    assert "grid 6 2 1 block 128 1 1" in launch and "first 0x1000 attributes 4 6=1 2=1 4=2 5=1 aligned" in launch


def test_errors_carry_the_drivers_words(run):
    printed, _ = run("""
from tritorch.cuda.nvidia_call import call
from tritorch.cuda import driver
for name, arguments in (("cuModuleLoadData", [b"nonsense"]), ("cuDeviceGet", [3])):
    try:
        call(name, *arguments)
    except driver.DriverError as error:
        print(error)
""")
    assert printed[0].startswith("cuModuleLoadData: CUDA_ERROR_STUB: what the stub means; ") and "an older triton" in printed[0]
    assert printed[1:] == ["cuDeviceGet: CUDA_ERROR_STUB: what the stub means"]


BOARD = '''
import sys, types

class NVMLError(Exception):
    pass

nvml = types.ModuleType("pynvml")
nvml.NVMLError_DriverNotLoaded = nvml.NVMLError_LibraryNotFound = NVMLError
nvml.NVML_TEMPERATURE_GPU, nvml.NVML_CLOCK_SM = 0, 1
nvml.nvmlInit = lambda: None
nvml.nvmlDeviceGetHandleByUUID = lambda uuid: print(uuid) or "handle"
nvml.nvmlDeviceGetUtilizationRates = lambda handle: types.SimpleNamespace(gpu=87, memory=41)
nvml.nvmlDeviceGetMemoryInfo = lambda handle: types.SimpleNamespace(used=5 << 30)
nvml.nvmlDeviceGetTemperature = lambda handle, sensor: 61 + sensor
nvml.nvmlDeviceGetPowerUsage = lambda handle: 412_000
nvml.nvmlDeviceGetClockInfo = lambda handle, clock: {1: 1980}[clock]
nvml.nvmlDeviceGetComputeRunningProcesses = lambda handle: [types.SimpleNamespace(pid=42, usedGpuMemory=3 << 20),
                                                            types.SimpleNamespace(pid=43, usedGpuMemory=None)]
sys.modules["pynvml"] = nvml
'''


def test_the_board_is_asked_by_its_own_name(run):
    printed, _ = run(BOARD + """
import tritorch as torch
c = torch.cuda
print(c.utilization(), c.memory_usage(0), c.device_memory_used("cuda:0"), c.temperature(), c.power_draw(), c.clock_rate())
print(c.list_gpu_processes())
nvml.nvmlDeviceGetComputeRunningProcesses = lambda handle: []
print(c.list_gpu_processes())
def gone():
    raise NVMLError("Driver Not Loaded")
nvml.nvmlInit = gone
print(c.list_gpu_processes())
try:
    c.temperature()
except RuntimeError as error:
    print(error)
sys.modules["pynvml"] = None
try:
    c.power_draw()
except ModuleNotFoundError as error:
    print(error)
""")
    name = "GPU-00112233-4455-6677-8899-aabbccddeeff"
    gone, absent = "pynvml: expected a loaded NVIDIA driver, got Driver Not Loaded", "pynvml: expected the package nvidia-ml-py, got none"
    assert printed[:8] == [name] * 6 + [f"87 41 {5 << 30} 61 412000 1980", name]
    assert printed[8:11] == ["GPU:0", *[f"process         {pid} uses        {mb}.000 MB GPU memory" for pid, mb in ((42, 3), (43, 0))]]
    assert printed[11:16] == [name, "GPU:0", "no processes are running", gone, gone] and printed[16].startswith(absent)
