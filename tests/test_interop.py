"""Sharing memory with numpy, PyTorch and others: values, layouts, lifetimes, errors."""
import ctypes
import gc
import subprocess
import sys
import warnings
import weakref

import ml_dtypes
import numpy as np
import pytest

import tritorch as T
from tritorch import cuda, dlpack
from tritorch.cuda.stream import Stream, current_handle, stream
from tritorch.interop import as_tensor, asarray, from_dlpack, from_numpy, frombuffer, numpy, to_dlpack

KINDS = ["float64", "float32", "float16", "int64", "int32", "int16", "int8", "uint8", "bool"]
SMALL = ["bfloat16", "float8_e4m3fn", "float8_e5m2"]
numpy_1 = pytest.mark.skipif(not dlpack.NUMPY_KNOWS_VERSIONS, reason="numpy 2.0 speaks DLPack 0: no copy=, no device=, nothing read-only")


def layouts(x):
    return [x, x.t(), x[:, 1:], x[1], x[0, 0], x[:0], x[:, ::2], x[:1].expand(3, x.shape[1])]


# ------------------------------------------------------------------ numpy
@pytest.mark.parametrize("kind", KINDS)
def test_numpy_shares_memory(kind):
    x = T.tensor([[0, 1, 1], [1, 0, 1]], dtype=getattr(T, kind))
    for y in layouts(x):
        array = y.numpy()
        assert array.dtype == kind and array.shape == y.shape and (array == y.array).all()
        assert from_numpy(array).dtype is x.dtype and np.asarray(y).tolist() == y.tolist()
    x.numpy()[0, 0] = 1
    assert x[0, 0] == 1
    back = from_numpy(x.numpy())
    back[1, 1] = 1
    assert x[1, 1] == 1 and back.data_ptr() == x.data_ptr()


def test_numpy_of_small_floats():
    assert T.ones(2, dtype=T.bfloat16).numpy().dtype == ml_dtypes.bfloat16
    assert from_numpy(np.ones(2, ml_dtypes.float8_e5m2)).dtype is T.float8_e5m2


@pytest.mark.filterwarnings("ignore:Setting the shape:DeprecationWarning")
def test_the_array_is_not_the_tensors_own():
    x = T.zeros(4)
    x.numpy().shape = (2, 2)
    x.numpy().flags.writeable = False
    x[0] = 1
    assert x.shape == (4,) and x.array.shape == (4,)


def test_numpy_errors_are_of_pytorchs_types():
    x = T.ones(2, requires_grad=True)
    for f in (lambda: x.numpy(), lambda: np.asarray(x)):
        with pytest.raises(RuntimeError, match=r"use x.detach\(\).numpy\(\)"):
            f()
    assert x.numpy(force=True).tolist() == [1, 1]
    with cuda.simulate():
        y = T.ones(2, device="cuda")
        for f in (lambda: y.numpy(), lambda: np.asarray(y)):
            with pytest.raises(TypeError, match=r"use x.cpu\(\).numpy\(\)"):
                f()
        assert y.numpy(force=True).tolist() == [1, 1]


def test_array_protocol():
    x = T.arange(3)
    assert np.asarray(x).ctypes.data == x.data_ptr()
    assert np.array(x).ctypes.data != x.data_ptr()
    assert np.asarray(x, dtype=np.float32).dtype == np.float32
    assert np.add(x, np.ones(3, np.int64)).tolist() == [1, 2, 3]
    with pytest.raises(ValueError, match="without a copy"):
        x.__array__(np.float32, copy=False)
    assert isinstance(np.sqrt(T.ones(3)), T.Tensor)


@pytest.mark.parametrize(("array", "error", "words"), [
    ([1, 2], TypeError, "np.ndarray"),
    (np.array(["a"]), TypeError, "numpy dtype"),
    (np.array([None]), TypeError, "numpy dtype"),
    (np.zeros(2, np.uint16), TypeError, "numpy dtype"),
    (np.zeros(2, ">f4"), ValueError, "byte order"),
    (np.arange(3)[::-1], ValueError, "not negative"),
    (np.zeros(3, [("a", "i1"), ("b", "f4")])["b"], ValueError, "whole elements"),
])
def test_from_numpy_errors(array, error, words):
    with pytest.raises(error, match=words):
        from_numpy(array)


def test_read_only_memory_warns_and_stays_read_only():
    array = np.arange(3)
    array.flags.writeable = False
    with pytest.warns(UserWarning, match="not writable"):
        x = from_numpy(array)
    with pytest.raises(ValueError, match="read-only"):
        x[0] = 5
    assert array[0] == 0
    with pytest.warns(UserWarning, match="not writable"):
        frombuffer(b"abcd", dtype=T.uint8)


def test_memory_lives_as_long_as_either_side():
    array = np.arange(1000.0)
    watch = weakref.ref(array)
    x = from_numpy(array)
    y = x[5:].numpy()
    del array, x
    gc.collect()
    assert watch() is not None and y[0] == 5
    del y
    gc.collect()
    assert watch() is None


def test_frombuffer():
    data = bytearray(np.arange(6, dtype=np.int32).tobytes())
    x = frombuffer(data, dtype=T.int32, count=2, offset=4)
    assert x.tolist() == [1, 2]
    x[0] = 9
    assert data[4] == 9
    assert frombuffer(bytearray(4), dtype=T.bfloat16).tolist() == [0, 0]
    assert frombuffer(bytearray(4), dtype=T.float32, requires_grad=True).requires_grad
    for kw in (dict(offset=24), dict(offset=1), dict(count=7), dict(count=0), dict(offset=-1)):
        with pytest.raises(ValueError, match="frombuffer"):
            frombuffer(data, dtype=T.int32, **kw)


def test_as_tensor_and_asarray():
    x = T.ones(2, requires_grad=True)
    assert as_tensor(x) is x and as_tensor(x * 2).requires_grad
    array = np.zeros(2, np.float32)
    as_tensor(array)[0] = 1
    assert array[0] == 1
    assert as_tensor(array, dtype=T.float64).dtype is T.float64
    assert as_tensor([1, 2]).tolist() == [1, 2] and as_tensor(3.0).shape == () and as_tensor(np.float32(2)).dtype is T.float32
    assert asarray(array).data_ptr() == array.ctypes.data != asarray(array, copy=True).data_ptr()
    assert not asarray(x).requires_grad and asarray(x).data_ptr() == x.data_ptr()
    assert asarray([1.0], requires_grad=True).requires_grad
    assert asarray(bytearray(8)).tolist() == [0, 0]
    for bad in (lambda: asarray([1], copy=False), lambda: asarray(array, dtype=T.float64, copy=False)):
        with pytest.raises(ValueError, match="asarray"):
            bad()


# ------------------------------------------------------------------ DLPack
@pytest.mark.parametrize("version", [None, (0, 8), (1, 0), (1, 1), (2, 0)])
@pytest.mark.parametrize("kind", KINDS + SMALL)
def test_own_round_trip(kind, version):
    x = T.tensor([[0.0, 1.0, 1.0], [1.0, 0.0, 1.0]]).to(getattr(T, kind))
    for y in layouts(x):
        z = from_dlpack(y.__dlpack__(max_version=version))
        assert z.dtype is y.dtype and z.shape == y.shape and z.tolist() == y.tolist()
        if y.numel():
            assert z.data_ptr() == y.data_ptr() and z.stride() == y.stride()
    assert x.__dlpack_device__() == (1, 0)


@pytest.mark.parametrize("kind", KINDS)
def test_with_numpy(kind):
    x = T.tensor([[0, 1, 1], [1, 0, 1]], dtype=getattr(T, kind))
    for y in layouts(x):
        assert np.from_dlpack(y).tolist() == y.tolist() and np.from_dlpack(y).dtype == kind
    array = np.array([[0, 1, 1], [1, 0, 1]], kind)
    z = from_dlpack(array)
    assert z.dtype is x.dtype and z.data_ptr() == array.ctypes.data and from_dlpack(array.T).tolist() == array.T.tolist()


@pytest.mark.parametrize("kind", KINDS + SMALL)
def test_with_torch(kind):
    torch = pytest.importorskip("torch")
    theirs = torch.tensor([[0.0, 1.0, 1.0], [1.0, 0.0, 1.0]]).to(getattr(torch, kind))
    mine = from_dlpack(theirs)
    assert mine.data_ptr() == theirs.data_ptr() and mine.dtype is getattr(T, kind) and mine.tolist() == theirs.float().tolist()
    assert from_dlpack(theirs.t()).tolist() == theirs.t().float().tolist()
    assert from_dlpack(torch.utils.dlpack.to_dlpack(theirs)).tolist() == mine.tolist()
    for y in layouts(mine):
        back = torch.from_dlpack(y)
        assert back.dtype == theirs.dtype and back.float().tolist() == y.tolist()
        if y.numel():
            assert back.data_ptr() == y.data_ptr()
    back = torch.utils.dlpack.from_dlpack(to_dlpack(mine))
    if kind == "float32":
        back[0, 0] = 7
        assert mine[0, 0] == 7 and theirs[0, 0] == 7


def alive(make, use):
    """Whether the memory that `make` returns a tensor over lives while the result of `use` does, and dies with it."""
    array = np.zeros(100)
    watch = weakref.ref(array)
    held = use(make(array))
    del array
    gc.collect()
    before = watch() is not None
    del held
    gc.collect()
    return before, watch() is None


def test_memory_is_freed_with_the_last_consumer():
    torch = pytest.importorskip("torch")
    for use in (np.from_dlpack, torch.from_dlpack, from_dlpack, lambda x: from_dlpack(torch.from_dlpack(x)),
                lambda x: from_dlpack(np.from_dlpack(x)), lambda x: x.__dlpack__(), lambda x: x.__dlpack__(max_version=(1, 0)),
                lambda x: from_dlpack(x)[3:].numpy()):
        assert alive(from_numpy, use) == (True, True)
        assert alive(from_dlpack, use) == (True, True)


def test_capsules_that_nobody_consumes_leak_nothing():
    x = T.zeros(1000)
    owner = weakref.ref(x.storage)
    for k in range(50):
        x.__dlpack__(max_version=(1, 0) if k % 2 else None)
    with pytest.raises(ZeroDivisionError):
        print(x.__dlpack__(), 1 / 0)                   # a capsule dies while an exception is on its way
    del x
    gc.collect()
    assert owner() is None


def test_a_capsule_is_consumed_once():
    capsule = T.ones(2).__dlpack__()
    from_dlpack(capsule)
    for bad in (capsule, 3):
        with pytest.raises(ValueError, match="capsule that nobody has consumed"):
            from_dlpack(bad)


@numpy_1
def test_read_only_memory_keeps_its_flag():
    array = np.arange(3)
    array.flags.writeable = False
    x = from_dlpack(array)
    with pytest.raises(ValueError, match="read-only"):
        x[0] = 1
    with pytest.raises(ValueError, match="read-only"):
        np.from_dlpack(x)[0] = 1
    with pytest.raises(BufferError):
        x.__dlpack__()                                 # a capsule of the old kind cannot say it
    from_dlpack(T.ones(2))[0] = 5
    np.from_dlpack(T.ones(2))[0] = 5


def test_dlpack_errors():
    x = T.ones(2, requires_grad=True)
    with pytest.raises(BufferError, match=r"use x.detach\(\)"):
        x.__dlpack__()
    with pytest.raises(BufferError, match="no stream"):
        T.ones(2).__dlpack__(stream=3)
    with pytest.raises(BufferError, match="not negative"):
        from_dlpack(np.arange(3)[::-1])
    with pytest.raises(BufferError, match="lanes"):
        from_dlpack(np.zeros(2, np.uint16))
    with pytest.raises(BufferError, match="CPU or CUDA"):
        T.ones(2).__dlpack__(dl_device=(10, 0))


def test_copies():
    x = T.ones(2)
    y = from_dlpack(x, copy=True)
    y[0] = 5
    assert x[0] == 1 and from_dlpack(x, copy=False).data_ptr() == x.data_ptr()

    class Old:
        def __dlpack__(self, stream=None):
            return x.__dlpack__()

        def __dlpack_device__(self):
            return 1, 0

    assert from_dlpack(Old()).data_ptr() == x.data_ptr()
    with pytest.raises(BufferError, match="knows copy="):
        from_dlpack(Old(), copy=True)


@numpy_1
def test_copies_for_numpy():
    x = T.ones(2)
    z = np.from_dlpack(x, copy=True)
    z[0] = 5
    assert x[0] == 1
    with cuda.simulate():
        assert np.from_dlpack(T.ones(3, device="cuda"), device="cpu").tolist() == [1, 1, 1]


def test_cuda_tensors():
    with cuda.simulate():
        x = T.arange(6, device="cuda").reshape(2, 3)
        assert x.__dlpack_device__() == (2, 0)
        for y in (x, x.t(), x[:, 1:], x.bfloat16()):
            z = from_dlpack(y)
            assert z.device == x.device and z.data_ptr() == y.data_ptr() and z.stride() == y.stride() and z.tolist() == y.tolist()
        owner = weakref.ref(x.storage)
        z = from_dlpack(x)
        z[0, 0] = 9
        assert x[0, 0] == 9
        del x, y
        gc.collect()
        assert owner() is not None and z[0, 0] == 9
        del z
        gc.collect()
        assert owner() is None
        w = T.ones(3, device="cuda")
        assert from_dlpack(w, device="cpu").tolist() == [1, 1, 1]
        assert not from_dlpack(w.__dlpack__(), device="cpu").is_cuda
        for bad in (lambda: w.__dlpack__(dl_device=(1, 0), copy=False), lambda: w.__dlpack__(stream=0), lambda: w.__dlpack__(stream=2)):
            with pytest.raises(BufferError):
                bad()
        with pytest.raises(TypeError, match="int or None"):
            w.__dlpack__(stream="a")


@pytest.mark.parametrize("seed", range(4))
def test_the_consumers_stream_waits(seed):
    """On another stream the values are read after the producer's work, whatever order the device chooses."""
    with cuda.simulate(seed=seed):
        side = Stream()
        x = T.zeros(4, device="cuda")
        cuda.synchronize()
        x.fill_(3)
        capsule = x.__dlpack__(stream=side.cuda_stream)
        with stream(side):
            y = from_dlpack(capsule).clone()
        side.synchronize()
        assert y.tolist() == [3, 3, 3, 3]
        with stream(side):
            x.fill_(4)
            z = from_dlpack(x)
        assert current_handle(0) == 0
        w = as_tensor(Face(z, side.cuda_stream))
        assert w.tolist() == [4, 4, 4, 4]


# ------------------------------------------------------------------ CUDA array interface
class Face:
    def __init__(self, x, handle=None):
        self.x = x
        self.__cuda_array_interface__ = dict(x.__cuda_array_interface__)
        if handle is not None:
            self.__cuda_array_interface__["stream"] = handle


def test_cuda_array_interface():
    with cuda.simulate():
        x = T.arange(6, device="cuda", dtype=T.float32).reshape(2, 3)
        face = x.__cuda_array_interface__
        assert face == {"version": 3, "shape": (2, 3), "strides": None, "typestr": "<f4", "data": (x.data_ptr(), False), "stream": 1}
        assert x.t().__cuda_array_interface__["strides"] == (4, 12)
        y = as_tensor(Face(x.t()))
        assert y.data_ptr() == x.data_ptr() and y.tolist() == x.t().tolist()
        assert T.empty(0, device="cuda").__cuda_array_interface__["data"] == (0, False)
        owner = weakref.ref(x.storage)
        del x
        gc.collect()
        assert owner() is not None and y[0, 0] == 0
        with pytest.raises(RuntimeError, match="does not require grad"):
            _ = T.ones(2, device="cuda", requires_grad=True).__cuda_array_interface__
        for strides in ((-12, 4), (12, 6)):
            face = Face(T.ones(2, 3, device="cuda"))
            face.__cuda_array_interface__["strides"] = strides
            with pytest.raises(ValueError, match="expected strides of whole elements, not negative"):
                as_tensor(face)
    assert not hasattr(T.ones(2), "__cuda_array_interface__")


# ------------------------------------------------------------------ the end
def test_interpreter_exit_with_everything_alive(tmp_path):
    code = """
import numpy as np, tritorch as T
from tritorch.interop import from_dlpack
x = T.ones(3); capsule = x.__dlpack__(); other = x.__dlpack__(max_version=(1, 0))
a, b = np.from_dlpack(x), from_dlpack(np.ones(3))
try:
    import torch
    c, d = torch.from_dlpack(x), from_dlpack(torch.ones(3))
    T.keep = d, from_dlpack(torch.zeros(2).__dlpack__())
except ImportError:
    pass
keep = [a]; keep.append(keep)
"""
    done = subprocess.run([sys.executable, "-X", "dev", "-c", code], capture_output=True, text=True)
    assert done.returncode == 0 and "Error" not in done.stderr, done.stderr


def test_structures_have_the_sizes_of_the_c_header():
    assert ctypes.sizeof(dlpack.DLTensor) == 48 and ctypes.sizeof(dlpack.Managed) == 64 and ctypes.sizeof(dlpack.ManagedVersioned) == 80


def test_no_warnings_from_ordinary_use():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        from_dlpack(np.ones(2))
        as_tensor(np.ones(2))
        assert numpy(T.ones(2)).sum() == 2
