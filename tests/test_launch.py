"""Launching: what is specialised, what a driver is given, when a kernel is loaded, what errors say."""

import subprocess
import sys

import numpy as np
import pytest

pytest.importorskip("triton")
import launch_kernels as K

import tritorch
from tritorch.cuda import driver
from tritorch.cuda.launch import LaunchError, TensorDescriptor, kernels, launch, sm_count, tile
from tritorch.cuda.simulated import SimulatedDriver
from tritorch.device import device
from tritorch.shape import Size

pytestmark = pytest.mark.smoke

DIVISIBLE = [["tt.divisibility", 16]]


class Storage:
    __slots__ = ("ptr", "device")


class Tensor:
    """The slots of a tritorch.Tensor that a launch reads."""

    __slots__ = ("storage", "shape", "strides", "offset", "dtype")

    def __init__(self, *shape, ptr=0x7F0000000000, offset=0, dtype=tritorch.float32, index=0, strides=None):
        self.storage = Storage()
        self.storage.ptr, self.storage.device = ptr, device("cuda", index)
        self.shape, self.offset, self.dtype = Size(shape), offset, dtype
        self.strides = strides or tuple(int(np.prod(shape[i + 1:])) for i in range(len(shape)))

    def data_ptr(self):
        return self.storage.ptr + self.offset * self.dtype.itemsize


class Driver:
    """Remembers what it loads and starts."""

    name = "recording"

    def __init__(self):
        self.loads, self.starts, self.device, self.waits, self.error = [], [], 0, [], None

    def device_count(self):
        return 2

    def device_properties(self, index):
        return driver.DeviceProperties("recording", 9, 0, 1, 132, 32, 1, 1, 1, 1)

    def set_device(self, index):
        self.device = index

    def capture_status(self, stream):
        return False

    def stream_synchronize(self, stream):
        self.waits.append(stream)

    def load(self, *spec):
        self.loads.append((*spec, self.device))
        return self

    def launch(self, *args):
        if self.error:
            raise self.error
        self.starts.append((*args[:4], list(args[4])))


@pytest.fixture
def gpu():
    recording = Driver()
    with driver.using(recording):
        yield recording


def loaded(gpu, kernel, *args, **constexprs):
    """(signature, constexprs, attrs, options, values) of one launch."""
    driver.functions.clear()
    launch(kernel, (1,), *args, **constexprs)
    return (*gpu.loads[-1][1:5], gpu.starts[-1][4])


def test_arguments_become_types_and_values(gpu):
    out, x, y = Tensor(8), Tensor(8, offset=1), Tensor(8, dtype=tritorch.bfloat16, offset=8)
    signature, constants, attrs, options, values = loaded(gpu, K.axpy_kernel, out, x, y, 48, 2.5, BLOCK=64, num_warps=8, maxnreg=64)
    assert signature == {"out_ptr": "*fp32", "x_ptr": "*fp32", "y_ptr": "*bf16", "n": "i32", "alpha": "fp32", "BLOCK": "constexpr"}
    assert list(signature) == ["out_ptr", "x_ptr", "y_ptr", "n", "alpha", "BLOCK"]
    assert constants == {(5,): 64}
    assert attrs == {(0,): DIVISIBLE, (2,): DIVISIBLE, (3,): DIVISIBLE}
    assert options == {"num_warps": 8, "num_stages": 3, "maxnreg": 64}
    assert values == [out.data_ptr(), out.data_ptr() + 4, out.data_ptr() + 16, 48, 2.5]


def test_scalars_none_and_tuples(gpu):
    out = Tensor(1, dtype=tritorch.float64)
    args = (out, 3, 1 << 40, 0.5, np.float64(0.1), True, None, (1, (1.5)))
    signature, constants, attrs, _, values = loaded(gpu, K.types_kernel, *args, N=2)
    assert list(signature.values()) == ["*fp64", "i32", "i64", "fp32", "fp64", "i1", "constexpr", ("constexpr", "fp32"), "constexpr"]
    assert constants == {(6,): None, (7, 0): 1, (8,): 2}
    assert attrs == {(0,): DIVISIBLE, (2,): DIVISIBLE}
    assert values == [out.data_ptr(), 3, 1 << 40, 0.5, 0.1, True, 1.5]


def test_shapes_and_strides_are_specialised_inside_tuples(gpu):
    x = Tensor(32, 48)
    signature, constants, attrs, _, values = loaded(gpu, K.strided_kernel, x, x, x.shape, x.strides, (5, 0), BLOCK=64)
    assert [signature[name] for name in ("shape", "x_strides", "out_strides")] == [("i32", "i32"), ("i32", "constexpr"), ("i32", "i32")]
    assert constants == {(3, 1): 1, (5,): 64}
    assert {path for path in attrs if len(path) == 2} == {(2, 0), (2, 1), (3, 0), (4, 1)}
    assert values[2:] == [32, 48, 48, 5, 0]


def test_numpy_numbers_subclasses_and_lists_are_taken(gpu):
    class Parameter(Tensor):
        __slots__ = ()

    signature, constants, _, _, values = loaded(
        gpu, K.axpy_kernel, Parameter(4), Tensor(4), Tensor(4), np.int32(7), np.float32(0.5), BLOCK=64)
    assert (signature["n"], signature["alpha"]) == ("i32", "fp32") and values[3:] == [7, 0.5]
    assert [type(v) for v in values[3:]] == [int, float]
    assert loaded(gpu, K.types_kernel, Tensor(1), *[2] * 5, None, [3, 4], N=1)[4][-2:] == [3, 4]
    with pytest.raises(TypeError, match="expected a tensor, number, tuple, None or TensorDescriptor, got str"):
        launch(K.map_kernel, (1,), Tensor(4), "x", 4, FN=K.twice, BLOCK=64)


def test_integers_of_every_width(gpu):
    x = Tensor(4)
    for n, kind in ((0, "i32"), (2**31 - 2**20 - 1, "i32"), (2**31 - 1, "i64"), (2**31, "i64"), (-2**31, "i32"),
                    (-2**31 - 1, "i64"), (2**63 - 1, "i64"), (2**63, "u64"), (2**64 - 1, "u64")):
        signature, _, attrs, _, values = loaded(gpu, K.map_kernel, x, x, n, FN=K.twice, BLOCK=64)
        assert signature["n"] == kind and values[-1] == n and ((2,) in attrs) == (n % 16 == 0)
    with pytest.raises(OverflowError):
        launch(K.map_kernel, (1,), x, x, 2**64, FN=K.twice, BLOCK=64)


@pytest.mark.parametrize(("change", "again"), [
    (dict(n=34), False), (dict(n=1), True), (dict(n=48), True), (dict(n=2**31 + 1), True), (dict(x=Tensor(8, ptr=0x100)), False),
    (dict(x=Tensor(8, offset=1)), True), (dict(x=Tensor(8, dtype=tritorch.float16)), True), (dict(FN=K.square), True),
    (dict(BLOCK=128), True), (dict(num_warps=8), True), (dict(num_stages=4), True), (dict(BLOCK=64.0), True),
    (dict(x=Tensor(8, index=1)), False),                              # the first tensor says where
])
def test_what_machine_code_depends_on(gpu, change, again):
    base = dict(x=Tensor(8), n=33, FN=K.twice, BLOCK=64)

    def start(x, n, **constexprs):
        launch(K.map_kernel, (1,), Tensor(8), x, n, **constexprs)

    start(**base)
    start(**base)
    assert len(gpu.loads) == 1
    start(**{**base, **change})
    assert len(gpu.loads) == 1 + again
    assert len(gpu.starts) == 3


def test_equal_constants_of_other_types_are_other_code(gpu):
    for block in (1, True, 1.0, 0.0, -0.0, float("nan"), float("nan")):
        launch(K.map_kernel, (1,), Tensor(8), Tensor(8), 33, FN=K.twice, BLOCK=block)
    assert len(gpu.loads) == 6


def test_loads_belong_to_a_device_and_a_driver(gpu):
    for index in (0, 1, 0, 1):
        launch(K.map_kernel, (1,), Tensor(8, index=index), Tensor(8, index=index), 33, FN=K.twice, BLOCK=64)
    assert [load[-1] for load in gpu.loads] == [0, 1] and gpu.device == 0
    other = Driver()
    driver.use(other)
    launch(K.map_kernel, (1,), Tensor(8), Tensor(8), 33, FN=K.twice, BLOCK=64)
    assert len(other.loads) == 1


def test_the_first_tensor_decides_even_when_it_is_empty(gpu):
    class Empty(Storage):
        def __len__(self):
            return 0

    first, second = Tensor(0, index=1), Tensor(8, index=0)
    storage = Empty()
    storage.ptr, storage.device = 0, first.storage.device
    first.storage = storage
    launch(K.map_kernel, (1,), first, second, 33, FN=K.twice, BLOCK=64)
    launch(K.types_kernel, (1,), first, *[2] * 5, None, (second, 3), N=1)
    assert [load[-1] for load in gpu.loads] == [1, 1]


def test_grids(gpu):
    x = Tensor(8)
    for grid in ((3,), (3, 4), (3, 4, 5), [2]):
        launch(K.map_kernel, grid, x, x, 33, FN=K.twice, BLOCK=64)
    launch(K.map_kernel, (0,), x, x, 33, FN=K.twice, BLOCK=64)
    launch(K.map_kernel, (3, 0), x, x, 33, FN=K.twice, BLOCK=64)
    assert [start[:3] for start in gpu.starts] == [(3, 1, 1), (3, 4, 1), (3, 4, 5), (2, 1, 1)]


def test_annotations_and_do_not_specialize(gpu):
    x = Tensor(8)
    signature, _, attrs, _, values = loaded(gpu, K.annotated_kernel, x, 16, 2.0)
    assert list(signature.values()) == ["*fp32", "i64", "fp64"] and values[1:] == [16, 2.0] and (1,) in attrs
    for n in (1, 16, 5):
        signature, constants, attrs, _, values = loaded(gpu, K.unspecialised_kernel, x, n)
        assert list(signature.values()) == ["*fp32", "i32"] and not constants and list(attrs) == [(0,)] and values[1:] == [n]


def test_descriptors(gpu):
    x = Tensor(64, 64, dtype=tritorch.bfloat16)
    descriptor = TensorDescriptor(x, (32, 32))
    signature, _, _, _, values = loaded(gpu, K.tile_kernel, Tensor(32, 32), descriptor, 3, BLOCK=32)
    assert signature["x_desc"] == "tensordesc<bf16[32, 32]>" and values[1] is descriptor
    assert (descriptor.ptr, descriptor.shape, descriptor.strides, descriptor.block) == (x.data_ptr(), (64, 64), (64, 1), (32, 32))
    launch(K.tile_kernel, (1,), Tensor(32, 32), TensorDescriptor(x, (32, 32)), 3, BLOCK=32)
    assert len(gpu.loads) == 1
    launch(K.tile_kernel, (1,), Tensor(32, 32), TensorDescriptor(x, (32, 64)), 3, BLOCK=32)
    assert len(gpu.loads) == 2
    for bad in (Tensor(64, 63, dtype=tritorch.bfloat16), Tensor(64, 64, dtype=tritorch.bfloat16, offset=1), Tensor(8, 8, strides=(1, 8)),
                Tensor(0, 64)):
        with pytest.raises(ValueError, match="TensorDescriptor: expected"):
            TensorDescriptor(bad, (8, 8))


def test_errors_name_the_kernel_its_source_and_its_arguments(gpu):
    x = Tensor(8)
    gpu.error = driver.DriverError("cuLaunchKernel: CUDA_ERROR_INVALID_VALUE: invalid argument")
    with pytest.raises(LaunchError, match=r"kernel map_kernel \(.*launch_kernels.py:\d+\) on grid \(4,\) with out_ptr=float32\[8\], "
                       r"x_ptr=float32\[8\], n=8, FN=.*twice.*, BLOCK=64: cuLaunchKernel: CUDA_ERROR_INVALID_VALUE"):
        launch(K.map_kernel, (4,), x, x, 8, FN=K.twice, BLOCK=64)
    gpu.error = driver.OutOfMemory("full")
    with pytest.raises(driver.OutOfMemory):
        launch(K.map_kernel, (4,), x, x, 8, FN=K.twice, BLOCK=64)
    gpu.error = None
    with pytest.raises(LaunchError, match="expected arguments for out_ptr, x_ptr, n, FN, BLOCK, got 2"):
        launch(K.map_kernel, (4,), x, x, FN=K.twice, BLOCK=64)
    with pytest.raises(LaunchError, match="expected arguments for"):
        launch(K.map_kernel, (4,), x, x, 8, 9, FN=K.twice, BLOCK=64)
    with pytest.raises(LaunchError, match="expected the constexpr BLOCK by keyword"):
        launch(K.map_kernel, (4,), x, x, 8, FN=K.twice)
    x.storage.device = device("cpu")
    with pytest.raises(LaunchError, match="expected CUDA tensors, got a CPU tensor"):
        launch(K.map_kernel, (4,), x, x, 8, FN=K.twice, BLOCK=64)


class Code(SimulatedDriver):
    """Machine code takes 40 MiB while it is loaded."""

    def load(self, *what):
        self.free(self.alloc(40 << 20))
        return super().load(*what)


def test_machine_code_gets_memory_that_the_allocator_has_cached():
    with driver.using(Code(total_memory=64 << 20)):
        tritorch.empty(40 << 20, dtype=tritorch.uint8, device="cuda")
        assert (tritorch.ones(3, device="cuda") + 1).tolist() == [2, 2, 2]
        held = tritorch.empty(40 << 20, dtype=tritorch.uint8, device="cuda")
        with pytest.raises(tritorch.cuda.OutOfMemoryError, match="free bytes"):
            tritorch.ones(3, device="cuda").sin()
        del held


def test_blocking_launches_wait(gpu, monkeypatch):
    monkeypatch.setenv("CUDA_LAUNCH_BLOCKING", "1")
    launch(K.map_kernel, (4,), Tensor(8), Tensor(8), 8, FN=K.twice, BLOCK=64)
    assert gpu.waits == [0]


def test_tiles_and_processors(gpu):
    assert tile(128, 4096) == 128 and sm_count() == 132
    gpu.name = "simulated"
    assert tile(128, 4096) == 4096


def test_kernels_are_imported_at_the_first_attribute():
    code = ("import sys; from tritorch.cuda.launch import kernels; K = kernels('elementwise_of_nobody'); "
            "assert 'triton' not in sys.modules and 'triton_kernels' not in sys.modules; print(K)")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "kernels('elementwise_of_nobody')"
    with pytest.raises(ImportError, match="tritorch needs its own package triton_kernels, found .* without elementwise_of_nobody"):
        kernels("elementwise_of_nobody").add_kernel  # noqa: B018
