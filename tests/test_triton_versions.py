"""Between compiler and launch, where versions of Triton differ: what kernels are given, against Triton's own launcher; the assembler that
a driver knows; what drivers get wrong in tensor maps for Blackwell."""
import importlib
import inspect
import os
import re
from types import SimpleNamespace

import pytest
from fake_cuda_bindings import Code
from test_nvidia_stub import descriptor, function, read, stub  # noqa: F401  stub is a fixture

triton = pytest.importorskip("triton")

import tritorch as torch  # noqa: E402
from tritorch.cuda import compiler, compiler_assembler, driver, tuner  # noqa: E402
from tritorch.cuda.dry import DryDriver  # noqa: E402

NAME = "TRITON_PTXAS_BLACKWELL_PATH"
MAP = {"swizzle": 3, "elem_size": 2, "elem_type": 10, "block_size": [32, 64], "fp4_padded": False}


@pytest.fixture
def alone(monkeypatch):
    """Nothing is chosen yet, nor after it."""
    for name in compiler_assembler.VARIABLES:
        monkeypatch.setenv(name, "")                                     # monkeypatch knows what to put back
        monkeypatch.delenv(name)
    compiler_assembler.choose.cache_clear()
    yield
    compiler_assembler.choose.cache_clear()


@pytest.mark.parametrize("newer, known, taken", [
    ("13.4", 12080, True), ("13.4", 13000, False), ("12.9", 12040, False), ("13.4", 11080, False)])
def test_a_driver_before_the_newer_assembler_gets_the_older_one(alone, monkeypatch, newer, known, taken):
    tools = SimpleNamespace(ptxas=SimpleNamespace(path="older", version="12.9"),
                            ptxas_blackwell=SimpleNamespace(path="newer", version=newer))
    monkeypatch.setattr(compiler_assembler, "knobs", SimpleNamespace(nvidia=tools))
    compiler_assembler.choose(known)
    assert os.environ.get(NAME) == ("older" if taken else None)


def test_what_the_environment_names_stays(alone, monkeypatch):
    monkeypatch.setenv(NAME, "mine")
    compiler_assembler.choose(12080)
    assert os.environ[NAME] == "mine"


def product():
    """A product with warps of their own."""
    candidate = dict(kernel="gluon", BLOCK_M=128, BLOCK_N=128, BLOCK_K=64, num_warps=8, STAGES=3, PIECES=2, CONSUMERS=1, PARTS=1,
                     STREAM=False)
    with driver.using(DryDriver(90)), compiler.recording() as record, tuner.forcing("matmul", candidate):
        x = torch.empty(256, 256, dtype=torch.bfloat16, device="cuda")
        x @ x
    return list(record.values())[0]


@pytest.mark.smoke
def test_code_for_a_driver_of_cuda_12(alone):
    """Triton's own older assembler takes what it writes for that; the code is kept under another key."""
    spec = product()
    before = spec.key(90)
    compiler_assembler.choose(12080)
    version = re.search(r"\.version (\d+)\.", compiler.compile_here(spec, 90).ptx)
    assert int(version[1]) == 8                                          # CUDA 13 writes 9
    assert (spec.key(90) == before) == (NAME not in os.environ)


def test_code_that_a_driver_does_not_know(stub):  # noqa: F811
    fake, _ = stub
    fake.errors = {"cuModuleLoadData": Code.INVALID_IMAGE}
    with pytest.raises(driver.DriverError, match="cuModuleLoadData: CUDA_ERROR_INVALID_IMAGE: .*newer driver, or an older triton"):
        function(stub, {"n": "i32"})


@pytest.mark.parametrize("major, rows, cleared", [(10, 100, True), (12, 100, True), (9, 100, False), (10, 600, False), (13, 100, False)])
def test_maps_of_small_tensors_on_blackwell(stub, major, rows, cleared):  # noqa: F811
    """100 rows 256 bytes apart are small, 600 are not. The stand-in's maps are 128 bytes of 0xab, of which the bit is one."""
    fake, _ = stub
    given = descriptor()
    given.shape = (rows, 64)
    k = function(stub, {"d": "tensordesc<bf16[32, 64]>"}, major=major, descriptors=[MAP])
    k.launch(1, 1, 1, 0, [given])
    words = read(fake.parameters[-1], 0, "Q"), read(fake.parameters[-1], 0, "8xQ")
    assert words == (0xABABABABABABABAB, 0xABABABABAB8BABAB if cleared else 0xABABABABABABABAB)


# ------------------------------------------------------------------ as Triton's own launcher does it
def by_triton(monkeypatch, given, meta):
    """(what its launcher passes of a descriptor, what it asks the driver's map for)."""
    asked, module = [], importlib.import_module("triton.backends.nvidia.driver")

    def fill(*arguments):
        asked.append(arguments)
        return "map"

    utils = SimpleNamespace(fill_tma_descriptor=fill, fill_tma_descriptor_tiled=fill)           # the first is that of Triton 3.6
    monkeypatch.setattr(triton.runtime.driver, "_active", SimpleNamespace(utils=utils))
    arguments = (given, meta, None)[:len(inspect.signature(module.make_tensordesc_arg).parameters)]
    return module.make_tensordesc_arg(*arguments), asked


@pytest.mark.smoke
@pytest.mark.parametrize("padding", ["zero", "nan"])
def test_descriptors_before_hopper_are_passed_as_triton_does(stub, monkeypatch, padding):  # noqa: F811
    given = descriptor()
    given.base, given.padding = given.ptr, padding
    expected, _ = by_triton(monkeypatch, given, None)
    sizes = [8] * 5 + [1] * (len(expected) - 9) + [4, 4, 8, 8] + [8, 8]
    layout = importlib.import_module("tritorch.cuda.nvidia_function").Layout({"d": "tensordesc<bf16[32, 64]>"}, [], sizes)
    assert layout.expand([given]) == expected


@pytest.mark.smoke
@pytest.mark.parametrize("padding", ["zero", "nan"])
@pytest.mark.parametrize("kind, size", [(10, 2), (7, 4), (6, 2), (8, 8), (9, 4)])
def test_maps_are_those_that_triton_asks_for(stub, monkeypatch, kind, size, padding):  # noqa: F811
    """Of the numbers by which a GPU knows element types, Triton's launcher and ours make those of the driver."""
    fake, meta = stub[0], {**MAP, "elem_type": kind, "elem_size": size}
    given = descriptor()
    given.base, given.padding = SimpleNamespace(data_ptr=lambda: given.ptr), padding
    (_, *expected), [(address, swizzle, width, host_kind, box, shape, strides, fill)] = by_triton(monkeypatch, given, meta)
    k = function(stub, {"d": "tensordesc<bf16[32, 64]>"}, descriptors=[meta])
    k.launch(1, 1, 1, 0, [given])
    assert [read(fake.parameters[-1], i, code) for i, code in enumerate("iiqq", 1)] == expected
    assert fake.maps == [{"aligned": True, "kind": host_kind, "address": address, "rest": (0, swizzle, 2, fill), "shape": [*shape[::-1]],
                          "strides": [width * strides[0]], "box": [*box[::-1]], "ones": [1, 1]}]
