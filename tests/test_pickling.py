"""Pickled and copied tensors: values, layouts, shared memory, attributes, errors."""
import copy
import io
import pickle

import numpy as np
import pytest

import tritorch as T
from tritorch import cuda
from tritorch.nn.parameter import Parameter

KINDS = ["float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool", "float8_e4m3fn", "float8_e5m2"]


def round_trip(obj, protocol=pickle.HIGHEST_PROTOCOL):
    return pickle.loads(pickle.dumps(obj, protocol))


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("kind", KINDS)
def test_values_and_dtypes(kind, protocol):
    x = T.tensor([[0.0, 1.0, 2.0], [1.0, 0.0, 1.0]]).to(getattr(T, kind))
    for y in (x, x.t(), x[:, 1:], x[0, 0], x[:0]):
        z = round_trip(y, protocol)
        assert z.dtype is y.dtype and z.shape == y.shape and z.stride() == y.stride()
        assert (z.array == y.array).all()


def test_views_share_memory_again():
    x = T.arange(6)
    a, b, c = round_trip((x, x[2:], x.detach()))
    b[0] = 50
    assert a[2] == 50 and c[2] == 50 and x[2] == 2
    again = round_trip([x, x])
    assert again[0] is again[1]


def test_gradients_and_attributes():
    x = T.ones(2, requires_grad=True)
    x.name = "weight"
    (x * 2).sum().backward()
    y = round_trip(x)
    assert y.requires_grad and y.is_leaf and y.grad is None and y.name == "weight"
    z = round_trip(x * 2)
    assert z.requires_grad and z.is_leaf and z.tolist() == [2, 2]
    p = round_trip(Parameter(T.ones(2), requires_grad=False))
    assert type(p) is Parameter and not p.requires_grad


def test_out_of_band_buffers():
    x = T.arange(1000)
    buffers = []
    data = pickle.dumps(x, 5, buffer_callback=buffers.append)
    assert len(data) < 1000 and len(buffers) == 1
    y = pickle.loads(data, buffers=[b.raw() for b in buffers])
    assert (y == x).all()
    z = pickle.loads(data, buffers=[bytes(b.raw()) for b in buffers])
    z[0] = 5                                         # read-only buffers are copied
    assert x[0] == 0


def test_dtypes_devices_and_sizes_stay_single():
    assert round_trip(T.float32) is T.float32 and round_trip(T.device("cpu")) is T.device("cpu")
    assert round_trip(T.ones(2, 3).shape) == (2, 3)
    assert copy.deepcopy(T.bfloat16) is T.bfloat16


def test_cuda():
    with cuda.simulate():
        x = T.arange(6, device="cuda").reshape(2, 3)
        y, z = round_trip((x, x.t()))
        assert y.device == x.device and y.tolist() == x.tolist() and z.stride() == (1, 3)
        y[0, 0] = 9
        assert z[0, 0] == 9
        w = copy.deepcopy(x)
        w[0, 0] = 7
        assert w.is_cuda and x[0, 0] == 0


def test_deepcopy():
    x = T.ones(2, 3, requires_grad=True)
    (x * x).sum().backward()
    x.note = ["a"]
    y = copy.deepcopy(x)
    assert y.requires_grad and y.is_leaf and (y == x).all() and (y.grad == x.grad).all() and y.grad is not x.grad
    assert y.note == ["a"] and y.note is not x.note
    with T.no_grad():
        y.zero_()
    assert x.sum() == 6
    with pytest.raises(RuntimeError, match="leaf"):
        copy.deepcopy(x * 2)
    base = T.arange(4)
    copied = copy.deepcopy({"base": base, "tail": base[2:], "same": base, "data": base.data})
    copied["tail"][0] = 9
    assert copied["base"][2] == 9 and copied["same"] is copied["base"] and base[2] == 2 and copied["data"][2] == 9


def test_copy_shares_memory():
    x = T.ones(2, requires_grad=True)
    x.note = 1
    y = copy.copy(x)
    assert y is not x and y.requires_grad and y.note == 1 and y.data_ptr() == x.data_ptr()
    y.note = 2
    assert x.note == 1


class Tagged(T.Tensor):
    pass


def test_subclasses():
    from tritorch.tensor import alias
    x = alias(T.ones(2), Tagged)
    assert type(round_trip(x)) is Tagged and type(copy.deepcopy(x)) is Tagged and type(copy.copy(x)) is Tagged


def test_pickler_to_a_stream():
    stream = io.BytesIO()
    pickle.dump({"x": T.tensor(np.arange(3))}, stream)
    stream.seek(0)
    assert pickle.load(stream)["x"].tolist() == [0, 1, 2]


def test_functions_are_found_again():
    from tritorch.nn import functional as F
    from tritorch.nn import init

    for f in (T.tanh, T.cat, T.abs, T.relu_, T.max, T.cumsum, T.special.i0e, T.special.expit, F.hardshrink, F.softplus, F.sigmoid,
              init.uniform):
        assert round_trip(f) is f
    for home in (T, F, T.special, T.linalg, T.fft):
        for name, f in vars(home).items():
            if callable(f) and not name.startswith("_"):
                assert round_trip(f) is f, f"{home.__name__}.{name}"


def test_named_results():
    x = T.tensor([[3.0, 1.0, 2.0]])
    for made in (x.max(1), x.sort(), x.topk(2), x.cummax(1), T.aminmax(x), T.frexp(x), T.linalg.qr(x), x.mode(1), T.histogram(x, 2)):
        again = round_trip(made)
        assert type(again) is type(made) is getattr(T.return_types, type(made).__name__) and repr(again) == repr(made)
    assert repr(x.max(1)) == "tritorch.return_types.max(\nvalues=tensor([3.]),\nindices=tensor([0]))"
