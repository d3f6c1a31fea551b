"""save and load: round trips of nests, shared memory, atomic files, foreign readers, devices."""
import io
import os
import pickle
from collections import Counter, OrderedDict

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tritorch as T
from tritorch import cuda
from tritorch.nn.parameter import Parameter
from tritorch.safetensors import NAMES, load_file, safe_open, save_file
from tritorch.serialization import load, save
from tritorch.shape import Size

DTYPES = list(NAMES)


def stored(obj):
    stream = io.BytesIO()
    save(obj, stream)
    return stream.getvalue()


def round_trip(obj, **kw):
    return load(io.BytesIO(stored(obj)), **kw)


def equal(a, b):
    if isinstance(a, T.Tensor):
        bits = [np.ascontiguousarray(x.detach().cpu().array).reshape(-1).view(np.uint8) for x in (a, b)]
        return a.dtype is b.dtype and a.shape == b.shape and (bits[0] == bits[1]).all() and a.requires_grad == b.requires_grad
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return len(a) == len(b) and all(equal(i, j) and equal(a[i], b[j]) for i, j in zip(a, b))
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(equal, a, b))
    if isinstance(a, complex):
        return equal(a.real, b.real) and equal(a.imag, b.imag)
    return a == b or a != a and b != b


# ------------------------------------------------------------------ round trips
SCALARS = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.binary(max_size=20), st.complex_numbers(),
                    st.sampled_from([T.float32, T.bool, T.float8_e5m2, T.device("cpu"), T.device("cuda:1"), Size((2, 0))]))
HASHABLE = st.one_of(st.none(), st.booleans(), st.integers(), st.text(), st.tuples(st.integers(), st.text()))


@st.composite
def tensors(draw):
    shape = draw(st.lists(st.integers(0, 4), max_size=4))
    kind = draw(st.sampled_from(DTYPES))
    x = T.tensor(np.random.default_rng(draw(st.integers(0, 99))).integers(0, 2, shape)).to(kind)
    if x.ndim > 1 and draw(st.booleans()):
        x = x.transpose(0, -1)
    if x.ndim and draw(st.booleans()):
        x = x[draw(st.integers(0, 2)):]
    return x.requires_grad_() if kind.is_floating_point and draw(st.booleans()) else x


NESTS = st.recursive(st.one_of(SCALARS, tensors()), lambda inner: st.one_of(
    st.lists(inner, max_size=4), st.lists(inner, max_size=4).map(tuple), st.dictionaries(HASHABLE, inner, max_size=4),
    st.dictionaries(st.text(), inner, max_size=3).map(OrderedDict), st.sets(HASHABLE, max_size=3), st.frozensets(HASHABLE, max_size=3),
    st.dictionaries(st.text(), st.integers(), max_size=3).map(Counter)), max_leaves=12)


@given(NESTS)
@settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
def test_nests_come_back(obj):
    assert equal(round_trip(obj), obj)


def test_every_dtype_and_a_parameter():
    state = {kind.name: T.tensor([[0.0, 1.0], [2.0, 3.0]]).to(kind) for kind in DTYPES}
    state["parameter"] = Parameter(T.ones(3))
    state["frozen"] = Parameter(T.ones(3), requires_grad=False)
    out = round_trip(state)
    assert equal(out, state) and type(out["parameter"]) is Parameter and not out["frozen"].requires_grad
    assert equal(round_trip(T.tensor(1.5)), T.tensor(1.5)) and round_trip(3) == 3


def test_shared_memory_is_written_once_and_shared_again():
    base = T.arange(1000)
    state = {"base": base, "same": base, "tail": base[900:], "matrix": base[:100].reshape(10, 10).t(), "alias": base.detach()}
    data = stored(state)
    assert len(data) < 8 * 1000 + 2000
    out = load(io.BytesIO(data))
    assert equal(out, state) and out["same"] is out["base"] and out["alias"] is not out["base"]
    out["base"][900] = -1
    out["matrix"][0, 1] = -2
    assert out["tail"][0] == -1 and out["base"][10] == -2 and out["alias"][900] == -1
    assert out["matrix"].stride() == (1, 10)


def test_views_of_one_memory_under_several_dtypes():
    base = T.arange(10)
    state = [base[1:], base.view(T.int32)[3:7], base.view(T.uint8)[5:6]]
    out = round_trip(state)
    assert equal(out, state)
    out[0][0] = 77
    assert out[1].tolist() == base.view(T.int32)[3:7].tolist()               # element 1 is no part of that view
    out[0][1] = 5
    assert out[1][1] == 5


def test_a_slice_of_a_big_tensor_is_written_small_and_contiguous():
    big = T.zeros(1000, 1000)
    data = stored(big[:, 0])
    assert len(data) < 6000
    assert load(io.BytesIO(data)).is_contiguous()


def test_tied_weights_of_a_module_stay_tied():
    weight = Parameter(T.ones(2))
    out = round_trip({"a": weight, "b": weight, "c": weight.detach()})
    assert out["a"] is out["b"] and out["c"].data_ptr() == out["a"].data_ptr()


def test_foreign_readers(tmp_path):
    numpy_side = pytest.importorskip("safetensors.numpy")
    path = tmp_path / "model.safetensors"
    save({"model": {"w": T.ones(2, 3), "b": T.arange(3)}, "epoch": 4}, path)
    read = numpy_side.load_file(path)
    assert (read["model.w"] == np.ones((2, 3))).all() and read["model.b"].tolist() == [0, 1, 2]
    save_file({"x": T.ones(2), "flag": T.tensor([True]), "half": T.ones(3, dtype=T.float16)}, path, {"k": "v"})
    assert sorted(numpy_side.load_file(path)) == ["flag", "half", "x"]
    numpy_side.save_file({"y": np.arange(4), "z": np.zeros((2, 0), np.float32)}, path)
    out = load(path)
    assert out["y"].tolist() == [0, 1, 2, 3] and out["z"].shape == (2, 0)
    with safe_open(path, mmap=False) as file:
        assert file.keys() == ["y", "z"] and file.get_tensor("z").shape == (2, 0) and file.get_tensor("y")[3] == 3
        with pytest.raises(KeyError):
            file.get_tensor("q")


def test_bfloat16_of_other_writers(tmp_path):
    torch = pytest.importorskip("torch")
    side = pytest.importorskip("safetensors.torch")
    path = tmp_path / "x.safetensors"
    side.save_file({"a": torch.tensor([1.5, -2.0], dtype=torch.bfloat16), "b": torch.tensor([0.5]).to(torch.float8_e4m3fn)}, str(path))
    out = load_file(path)
    assert out["a"].dtype is T.bfloat16 and out["a"].tolist() == [1.5, -2] and out["b"].dtype is T.float8_e4m3fn
    save_file(out, path)
    assert side.load_file(str(path))["a"].tolist() == [1.5, -2]


def test_mmap_reads_late_and_never_writes(tmp_path):
    path = tmp_path / "x"
    save({"x": T.arange(10), "flag": T.tensor([True, False]), "y": T.ones(3)}, path)
    before = path.read_bytes()
    out = load(path, mmap=True)
    out["x"][0] = 99
    assert out["x"].tolist()[:2] == [99, 1] and path.read_bytes() == before
    with pytest.raises(ValueError, match="mmap"):
        load(io.BytesIO(before), mmap=True)


def test_several_objects_in_one_stream():
    stream = io.BytesIO()
    save(T.arange(3), stream)
    save({"b": T.ones(2)}, stream)
    stream.seek(0)
    assert load(stream).tolist() == [0, 1, 2] and load(stream)["b"].tolist() == [1, 1]


def test_readers_without_readinto_or_seek():
    class Pipe:
        def __init__(self, data):
            self.stream = io.BytesIO(data)

        def read(self, n):
            return self.stream.read(n)

    assert load(Pipe(stored([T.arange(5)])))[0].tolist() == [0, 1, 2, 3, 4]


# ------------------------------------------------------------------ places
def test_map_location():
    with cuda.simulate():
        state = {"x": T.arange(3, device="cuda"), "y": T.ones(2)}
        data = stored(state)
        assert load(io.BytesIO(data))["x"].is_cuda
        for where in ("cpu", T.device("cpu"), {"cuda:0": "cpu"}, lambda x, home: x):
            out = load(io.BytesIO(data), map_location=where)
            assert not out["x"].is_cuda and out["x"].tolist() == [0, 1, 2]
        out = load(io.BytesIO(data), map_location="cuda")
        assert out["y"].is_cuda and load(io.BytesIO(data), map_location=lambda x, home: None)["x"].is_cuda
        assert load(io.BytesIO(data), map_location=lambda x, home: x.cuda(0) if home == "cpu" else x)["y"].is_cuda
        view = stored([state["x"], state["x"][1:]])
        a, b = load(io.BytesIO(view))
        a[1] = 8
        assert b.is_cuda and b[0] == 8
    with pytest.raises(TypeError, match="map_location"):
        load(io.BytesIO(data), map_location=lambda x, home: 3)


def test_a_missing_device_names_the_way_out(monkeypatch):
    with cuda.simulate():
        data = stored(T.arange(3, device="cuda"))
    monkeypatch.setattr(cuda.driver, "available", lambda: False)
    with pytest.raises(RuntimeError, match="use map_location='cpu'"):
        load(io.BytesIO(data))


# ------------------------------------------------------------------ numpy
def test_arrays_and_numbers_of_numpy(tmp_path):
    rng = np.random.default_rng()
    name, keys, *rest = np.random.RandomState(3).get_state()                  # checkpoints hold it: 624 uint32
    whole = rng.standard_normal((4, 6))
    values = {"state": (name, keys, *rest), "turned": whole.T[::2], "empty": np.zeros((2, 0), np.float32), "alone": np.array(3, np.int16),
              "bools": whole > 0, "big": rng.integers(0, 1 << 60, 3).astype(">u8"), "half": whole.astype(np.float16),
              "complex": whole + 1j, "numbers": [np.float32(1.5), np.uint64(1 << 63), np.bool_(True), np.complex64(1j)]}
    save(values, tmp_path / "x")
    back = load(tmp_path / "x", mmap=bool(rng.integers(2)))
    assert back["state"][0] == name and back["state"][2:] == tuple(rest) and back["state"][1].dtype == np.uint32
    assert (back["state"][1] == keys).all()
    for key in ("turned", "empty", "alone", "bools", "big", "half", "complex"):
        assert type(back[key]) is np.ndarray and back[key].dtype == values[key].dtype and back[key].shape == values[key].shape
        assert (back[key] == values[key]).all() and back[key].flags.writeable
    assert back["numbers"] == values["numbers"] and [type(x) for x in back["numbers"]] == [type(x) for x in values["numbers"]]
    frozen = np.arange(3)
    frozen.flags.writeable = False
    save(frozen, tmp_path / "y")
    assert load(tmp_path / "y").tolist() == [0, 1, 2]


# ------------------------------------------------------------------ what cannot be saved
class Settings:
    """A class of a program's own."""

    def __init__(self, lr, weight):
        self.lr, self.weight = lr, weight


def test_objects_of_other_classes_come_back_where_the_file_is_trusted(tmp_path):
    path, shared = tmp_path / "x", T.rand(3, 4)
    made = Settings(0.1, Parameter(shared.t()))
    save({"settings": made, "weight": shared, "texts": np.array(["a"]), "net": T.nn.Linear(2, 2)}, path)
    for unsure in ({}, {"weights_only": True}, {"weights_only": None}):
        with pytest.raises(pickle.UnpicklingError, match=r"an object of \S+Settings; use .*weights_only=False"):
            load(path, **unsure)
    back = load(path, weights_only=False)
    assert type(back["settings"]) is Settings and back["settings"].lr == 0.1 and back["texts"].tolist() == ["a"]
    assert T.equal(back["weight"], shared) and type(back["settings"].weight) is Parameter
    back["weight"].zero_()                                               # both still show one memory
    assert not back["settings"].weight.any() and back["net"](T.ones(1, 2)).shape == (1, 2)


class Unknown:
    """Another one, which nobody has allowed."""


def test_objects_of_classes_that_are_allowed_come_back_without_trust(tmp_path):
    path, nn = tmp_path / "x", T.nn
    net = nn.Sequential(nn.Linear(2, 3), nn.Dropout(0.1), nn.Linear(3, 1))
    net.kept = Settings((T.device("cpu"), T.float16, T.Size([2, 3]), {1: {2}}, T.strided), net[0].weight)
    save({"net": net, "weight": net[0].weight}, path)
    names = [Settings, nn.Sequential, nn.Linear, nn.Dropout]
    with T.serialization.safe_globals(names):
        back = load(path)
    assert back["net"].kept.lr == net.kept.lr and back["net"].kept.weight is back["net"][0].weight
    x = T.randn(4, 2)
    assert T.equal(back["net"].eval()(x), net.eval()(x)) and T.equal(back["weight"], net[0].weight)
    for k, name in enumerate(names):
        with T.serialization.safe_globals(names[:k] + names[k + 1:]), pytest.raises(pickle.UnpicklingError, match=name.__name__):
            load(path)
    for hostile in (Unknown(), print, type("Own", (), {"__reduce__": lambda self: (print, ("ran",))})()):
        save({"x": Settings(hostile, None)}, path)
        with T.serialization.safe_globals([Settings]), pytest.raises(pickle.UnpicklingError, match="Unknown|print"):
            load(path)


def test_objects_that_pickle_refuses_are_refused(tmp_path):
    path = tmp_path / "x"
    path.write_bytes(b"before")
    for bad in ({"a": [lambda: 1]}, open(path), (n for n in range(3))):
        with pytest.raises(TypeError, match="save: expected values that pickle can hold, got"):
            save(bad, path)

    class Module:
        def state_dict(self):
            return {}

    with pytest.raises(TypeError, match=r"Module at model; use its state_dict\(\)"):
        save({"model": Module()}, path)
    cycle = [1]
    cycle.append({"again": cycle})
    with pytest.raises(ValueError, match="without cycles, got one at 1.again"):
        save(cycle, path)
    deep = []
    for _ in range(300):
        deep = [deep]
    with pytest.raises(ValueError, match="at most 200 levels"):
        save(deep, path)
    assert path.read_bytes() == b"before" and os.listdir(tmp_path) == ["x"]
    twice = [1]
    assert round_trip([twice, twice]) == [[1], [1]]


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "x"
    save(T.ones(2), path)
    before = path.read_bytes()
    monkeypatch.setattr(os, "fsync", lambda fd: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        save(T.zeros(3), path)
    assert path.read_bytes() == before and os.listdir(tmp_path) == ["x"]


def test_links_are_followed_and_missing_files_are_pythons_error(tmp_path):
    real, link = tmp_path / "real", tmp_path / "link"
    save(1, real)
    try:
        link.symlink_to(real)
    except OSError:
        pytest.skip("no symbolic links here")
    save(2, link)
    assert link.is_symlink() and load(real) == 2
    with pytest.raises(FileNotFoundError):
        load(tmp_path / "none")
    with pytest.raises(FileNotFoundError):
        save(1, tmp_path / "no" / "folder")


def test_flat_files_check_names():
    for bad in ({1: T.ones(1)}, {"a": 1}, {"__metadata__": T.ones(1)}):
        with pytest.raises(TypeError):
            save_file(bad, io.BytesIO())
    with pytest.raises(TypeError):
        save_file({}, io.BytesIO(), {"a": 1})
    with pytest.raises(ValueError, match="Unicode"):
        save_file({"\ud800": T.ones(1)}, io.BytesIO())
    assert round_trip({"\ud800": T.ones(1), "a.b": T.ones(1), "a": {"b": T.zeros(1)}, "__metadata__": T.ones(1)})["a"]["b"] == 0
