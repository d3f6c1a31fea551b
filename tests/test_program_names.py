"""Names beside operators that programs and libraries import or ask: what they give, and what they refuse."""
import pickle
import zipfile
from collections import namedtuple
from importlib import import_module
from typing import Optional, Union

import numpy as np
import pytest

import tritorch as torch
from tritorch import nn
from tritorch._subclasses import fake_tensor
from tritorch.distributed import rpc
from tritorch.fx.experimental import proxy_tensor
from tritorch.nn.parallel.scatter_gather import gather, scatter, scatter_kwargs

X = torch.arange(6.0).reshape(2, 3)


def refused(kind, *calls):
    for call in calls:
        with pytest.raises(kind):
            call()


def test_layouts():
    assert isinstance(torch.strided, torch.layout) and X.layout is torch.strided and repr(torch.sparse_csr) == "tritorch.sparse_csr"
    others = {torch.sparse_coo, torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc, torch.jagged}
    assert len(others) == 6 and X.layout not in others and pickle.loads(pickle.dumps(torch.strided)) is torch.strided
    calls = [lambda k: torch.zeros(2, layout=k), lambda k: torch.ones(2, layout=k), lambda k: torch.empty(2, layout=k),
             lambda k: torch.full((2,), 1.0, layout=k), lambda k: torch.arange(2, layout=k), lambda k: torch.linspace(0, 1, 2, layout=k),
             lambda k: torch.logspace(0, 1, 2, layout=k), lambda k: torch.eye(2, layout=k), lambda k: torch.zeros_like(X, layout=k),
             lambda k: torch.ones_like(X, layout=k), lambda k: torch.empty_like(X, layout=k), lambda k: torch.full_like(X, 1, layout=k),
             lambda k: X.new_zeros(2, layout=k), lambda k: X.new_ones(2, layout=k), lambda k: X.new_empty(2, layout=k),
             lambda k: X.new_full((2,), 1, layout=k), lambda k: X.new_tensor([1.0], layout=k), lambda k: torch.rand(2, layout=k),
             lambda k: torch.randn(2, layout=k), lambda k: torch.randint(3, (2,), layout=k), lambda k: torch.randperm(2, layout=k),
             lambda k: torch.rand_like(X, layout=k), lambda k: torch.empty_strided((2,), (1,), layout=k),
             lambda k: torch.tril_indices(2, 2, layout=k), lambda k: torch.scalar_tensor(1.0, layout=k)]
    sparse = 0
    for make in calls:
        assert make(torch.strided).layout is make(None).layout is torch.strided
        refused(TypeError, lambda make=make: make("strided"))
        try:
            made = make(torch.sparse_coo)
        except NotImplementedError as error:
            assert "layout strided" in str(error)
        else:
            assert made.layout is torch.sparse_coo and made.shape == make(None).shape and not made.to_dense().any()
            sparse += 1
    assert sparse == 5                                                   # zeros, empty, zeros_like, empty_like, new_empty


def test_rows_of_tensors():
    from tritorch._utils import _element_size, _flatten_dense_tensors, _get_device_index, _unflatten_dense_tensors

    given = [X.t().clone().requires_grad_(), torch.tensor(7.0), torch.ones(0, 2)]
    flat = _flatten_dense_tensors(given)
    back = _unflatten_dense_tensors(flat, given)
    assert flat.tolist() == [0, 3, 1, 4, 2, 5, 7] and [x.shape for x in back] == [x.shape for x in given]
    assert all(torch.equal(a, b) for a, b in zip(back, given)) and back[0].data_ptr() == flat.data_ptr()
    flat.sum().backward()
    assert given[0].grad.tolist() == [[1, 1]] * 3 and _unflatten_dense_tensors(torch.zeros(0), []) == ()
    assert _element_size(torch.bfloat16) == 2 and _get_device_index(3) == 3 and _get_device_index("cpu", allow_cpu=True) == -1
    refused(ValueError, lambda: _get_device_index("cpu"), lambda: _get_device_index(None))
    refused(RuntimeError, lambda: _element_size(float), lambda: _unflatten_dense_tensors(torch.zeros(1), [X]))


def test_conditions():
    kinds = {"_check": RuntimeError, "_check_index": IndexError, "_check_value": ValueError, "_check_type": TypeError,
             "_check_not_implemented": NotImplementedError}
    for name, kind in kinds.items():
        check = getattr(torch, name)
        assert check(True) is None and check(True, "never asked") is None
        with pytest.raises(kind, match="seven 7"):
            check(False, lambda: "seven 7")
        refused(kind, lambda check=check: check(False))
        refused(TypeError, lambda check=check: check(1), lambda check=check: check(torch.tensor(True)))
    refused(TypeError, lambda: torch._check(False, "no function"), lambda: torch._check_tensor_all(True),
            lambda: torch._check_tensor_all(torch.tensor([1])))
    refused(KeyError, lambda: torch._check_with(KeyError, False), lambda: torch._check_tensor_all_with(KeyError, X > 0, lambda: "x"))
    refused(TypeError, lambda: torch._check_with(KeyError, X > 0), lambda: torch._check_tensor_all_with(KeyError, True))
    assert torch._check_with(KeyError, True) is None and torch._check_tensor_all_with(KeyError, X >= 0) is None
    assert torch._check_tensor_all(X >= 0) is None and torch._check_is_size(3, max=3) is None and torch._assert_async(X[0, 1]) is None
    refused(RuntimeError, lambda: torch._check_tensor_all(X > 0), lambda: torch._check_is_size(-1), lambda: torch._check_is_size(4, max=3),
            lambda: torch._assert_async(X), lambda: torch._assert_async(X[:1, :0]))
    with pytest.raises(RuntimeError, match="said so"):
        torch._assert_async(torch.tensor(0), "said so")


def test_batches_over_devices():
    Pair = namedtuple("Pair", "a b")
    cpus, y = ["cpu", "cpu"], X.clone().requires_grad_()
    first, second = scatter({"x": y, "k": 3, "p": Pair(y, None)}, cpus)
    assert first["x"].tolist() == X[:1].tolist() and second["p"].a.tolist() == X[1:].tolist() and first["k"] == 3 and second["p"].b is None
    joined = gather([{"x": p["x"] * 2, "p": p["p"]} for p in (first, second)], "cpu")
    joined["x"].sum().backward()
    assert type(joined["p"]) is Pair and torch.equal(joined["p"].a, X) and y.grad.tolist() == [[2] * 3] * 2
    assert [p[0].shape for p in scatter((X,), cpus, dim=1)] == [(2, 2), (2, 1)] and scatter([], cpus) == [[], []]
    assert gather([torch.tensor(1.0), torch.tensor(2.0)], -1).tolist() == [1, 2] and gather([None, None], "cpu") is None
    assert scatter_kwargs((X,), None, cpus)[1] == ({}, {}) and scatter_kwargs((), {"x": X}, cpus)[0] == ((), ())
    refused(ValueError, lambda: gather([{"x": X}, {"x": X, "y": X}], "cpu"))
    assert nn.parallel.gather is gather and nn.parallel.scatter is scatter


def test_devices_that_are_not_there():
    for place, kind in ((torch.xpu, AssertionError), (torch.mps, RuntimeError)):
        assert not place.is_available() and place.device_count() == 0 and place.manual_seed(1) is None
        refused(kind, place.synchronize)
    assert torch.xpu.empty_cache() is None and torch.xpu.memory_allocated() == 0 and not torch.xpu.is_bf16_supported()
    refused(AssertionError, torch.xpu.current_device, lambda: torch.xpu.set_device(0))
    refused(RuntimeError, torch.mps.empty_cache, torch.mps.current_allocated_memory)


def test_devices_that_can_only_be_named():
    for name in ("mps", "xpu:1", "hpu", "xla"):
        place = torch.device(name)
        assert str(place) == name and place is torch.device(place) and place == torch.device(name) and place != X.device
        assert pickle.loads(pickle.dumps(place)) is place
        for make in (lambda: torch.zeros(2, device=place), lambda: torch.empty(2, device=name), lambda: X.to(place), lambda: X.to(name),
                     lambda: torch.tensor(1.0, device=name), lambda: nn.Linear(2, 2).to(place), lambda: nn.Linear(2, 2, device=name),
                     lambda: torch.randn(2, device=place), lambda: X.new_zeros(2, device=place), lambda: torch.zeros_like(X, device=name),
                     lambda: torch.Generator(place), lambda: torch.as_tensor([1], device=place), lambda: torch.arange(3, device=name)):
            with pytest.raises(NotImplementedError, match=name):
                make()
        with place:
            assert torch.get_default_device() is place
            refused(NotImplementedError, lambda: torch.zeros(2))
        assert torch.get_default_device() is X.device and torch.zeros(2).device is X.device
    refused(RuntimeError, lambda: torch.device("gpu"), lambda: torch.device("mps:x"))


def test_programs_of_jit_run_as_they_are():
    jit, layer = torch.jit, nn.Linear(2, 2)
    x = torch.ones(1, 2)
    assert jit.script(layer) is jit.trace(layer, (x,)) is jit.trace_module(layer, {"forward": x}) is layer
    assert jit.freeze(layer) is jit.optimize_for_inference(layer) is layer
    with jit.optimized_execution(False):
        assert jit.wait(jit.fork(lambda a, b: a + b, 1, b=2)) == 3
    assert not isinstance(layer, jit.ScriptModule) and issubclass(jit.RecursiveScriptModule, nn.Module)
    for refused in (lambda: jit.save(layer, "f"), lambda: jit.load("f"), lambda: jit._get_trace_graph(layer, (x,))):
        with pytest.raises(NotImplementedError, match="; use "):
            refused()


def test_types_of_elements():
    Tensor, x, seen = torch.Tensor, torch.ones(1), torch.jit.isinstance
    for value, kind in ((x, Tensor), (None, Optional[Tensor]), (3, str | int),  # noqa: UP045
                        ([x], (Tensor, list[Tensor])), (x, Union[int, Tensor]), ([], list[int]),  # noqa: UP007
                        ((1, "a"), tuple[int, str]), ((1, 2, 3), tuple[int, ...]), ({"a": [1]}, dict[str, list[int]])):
        assert seen(value, kind)
    for value, kind in (([x, 1], list[Tensor]), ((1,), tuple[int, str]), ({1: 2}, dict[str, int]), ([1], tuple[int])):
        assert not seen(value, kind)


def test_guards_of_dispatch_keys():
    keys, c = torch._C.DispatchKey, torch._C
    both = c.DispatchKeySet(keys.AutocastCPU) | c.DispatchKeySet(keys.AutocastXPU)
    assert both.has(keys.AutocastXPU) and not both.has(keys.AutogradCPU)
    x = torch.ones(2, 2, requires_grad=True)
    with torch.autocast("cpu"), c._ExcludeDispatchKeyGuard(both):
        assert (x @ x).dtype == torch.float32 and (x @ x).requires_grad
    with c._ExcludeDispatchKeyGuard(c.DispatchKeySet(keys.Autograd)):
        assert not (x @ x).requires_grad
    refused(NotImplementedError, lambda: c._ExcludeDispatchKeyGuard(c.DispatchKeySet(keys.CPU)).__enter__())


def test_complex_halves_can_only_be_named():
    kind = torch.complex32
    assert kind is torch.chalf and kind.is_complex and kind.itemsize == 4 and kind not in (torch.complex64, torch.float32)
    assert repr(kind) == "tritorch.complex32" and pickle.loads(pickle.dumps(kind)) is kind
    refused((TypeError, NotImplementedError, RuntimeError), lambda: torch.zeros(2, dtype=kind), lambda: X.to(kind),
            lambda: torch.tensor([1j], dtype=kind), lambda: torch.empty(2, dtype=kind))


def test_names_of_the_exporter():
    onnx = torch.onnx
    assert not onnx.is_in_onnx_export() and onnx.symbolic_helper.parse_args("v", "i")(refused) is refused
    assert onnx.register_custom_op_symbolic("a::b", refused, 11) is None and onnx.TrainingMode.EVAL.name == "EVAL"
    assert onnx.unregister_custom_op_symbolic("a::b", 11) is None
    refused(NotImplementedError, lambda: torch.autograd.profiler.emit_nvtx())


def test_records_of_files(tmp_path):
    with zipfile.ZipFile(tmp_path / "f.pt", "w") as archive:
        archive.writestr("f/data.pkl", b"a")
        archive.writestr("f/data/0", b"bc")
    reader = torch.PyTorchFileReader(str(tmp_path / "f.pt"))
    assert reader.get_all_records() == ["data.pkl", "data/0"] and reader.get_record("data/0") == b"bc" and not reader.has_record("f")
    refused(RuntimeError, lambda: reader.get_record("data/1"))


def test_states_of_devices():
    from tritorch.utils.checkpoint import get_device_states, set_device_states

    x = torch.ones(2, device="cuda") if torch.cuda.is_available() else X
    indices, states = get_device_states(x, [x], 3)
    assert indices == [0, 0] * x.is_cuda and len(states) == len(indices) and torch.cuda._initialized is torch.cuda.is_initialized()
    a = torch.rand(3, device=x.device)
    set_device_states(indices, states)
    assert not x.is_cuda or torch.equal(a, torch.rand(3, device=x.device))


def test_what_depends_on_the_order_of_threads():
    from tritorch._prims_common import alert_not_deterministic

    assert alert_not_deterministic("roi") is None
    torch.use_deterministic_algorithms(True)
    try:
        refused(RuntimeError, lambda: alert_not_deterministic("roi"))
        torch.use_deterministic_algorithms(True, warn_only=True)
        with pytest.warns(UserWarning, match="roi"):
            alert_not_deterministic("roi")
    finally:
        torch.use_deterministic_algorithms(False)


def test_whether_a_profiler_is_at_work():
    with torch.profiler.profile():
        assert torch.autograd._profiler_enabled()
        torch.autograd._disable_profiler()
        assert not torch.autograd._profiler_enabled()


def test_names_below():
    c = torch._C
    assert c._TensorMeta is type(torch.Tensor) and not c._are_functorch_transforms_active() and not c._jit_can_fuse_on_gpu()
    assert c._get_privateuse1_backend_name() == "privateuseone" and not rpc.is_available()
    assert not fake_tensor.is_fake(X) and proxy_tensor.get_proxy_mode() is None
    assert c._get_tracing_state() is None and c._log_api_usage_once("x") is None and c._get_default_device() == "cpu"
    assert c._nn._parse_to("cpu", torch.float64) == (torch.device("cpu"), torch.float64, False, None)
    assert c._nn._parse_to(X, True, memory_format=torch.channels_last) == (X.device, X.dtype, True, torch.channels_last)
    assert c._LinAlgError is torch.linalg.LinAlgError and c._disabled_torch_function_impl(max, (), (1, 2)) == 2
    with pytest.raises(OSError, match=r"lib\.so"):
        torch.ops.load_library("lib.so")


@pytest.mark.parametrize("path, names", [
    ("nn.modules", "Embedding Linear Module MultiheadAttention"), ("nn.modules.lazy", "LazyLinear"),
    ("nn.modules.module", "_IncompatibleKeys Module"), ("nn.common_types", "_size_2_t _ratio_any_t"),
    ("optim.optimizer", "ParamsT required"), ("utils.dlpack", "to_dlpack from_dlpack"), ("utils.model_zoo", "load_url tqdm"),
    ("types", "Number Device Storage _TensorOrTensors _dtype"), ("serialization", "MAP_LOCATION"),
    ("utils._pytree", "PyTree _namedtuple_flatten _namedtuple_unflatten"), ("distributions.utils", "_standard_normal _sum_rightmost"),
    ("_dynamo.utils", "is_compile_supported"), ("_dynamo", "OptimizedModule assume_constant_result mark_static_address eval_frame"),
    ("distributed.constants", "default_pg_timeout"), ("_dynamo._trace_wrapped_higher_order_op", "TransformGetItemToIndex"),
    ("__config__", "show parallel_info"), ("distributed", "ReduceOp"), ("nn.parallel.scatter_gather", "gather scatter"),
    ("utils.data.dataloader", "_BaseDataLoaderIter _SingleProcessDataLoaderIter _MultiProcessingDataLoaderIter _DatasetKind"),
    ("functional", "einsum norm split"), ("_custom_ops", "custom_op"), ("_tensor_str", "_tensor_str PRINT_OPTS _add_suffixes"),
    ("_jit_internal", "_copy_to_script_wrapper Final BroadcastingList2"), ("fx.graph_module", "_CodeOnlyModule _copy_attr _assign_attr"),
    ("fx.node", "Node Target Argument map_arg"), ("autograd.profiler", "EventList"), ("profiler", "kineto_available"),
    ("profiler.profiler", "_default_schedule_fn schedule"),
    ("", "Future UntypedStorage layout celu_ selu_ ScriptModule SymInt SymFloat SymBool sym_int sym_not")])
def test_where_programs_import_from(path, names):
    module = import_module("tritorch" + (path and "." + path))
    for name in names.split():
        assert getattr(module, name) is not None


def test_what_those_names_are():
    assert nn.modules.Embedding is nn.Embedding and not hasattr(nn.modules, "functional_") and not hasattr(nn.modules, "Odd")
    keys = nn.Linear(1, 1).load_state_dict({}, strict=False)
    assert type(keys) is nn.modules.module._IncompatibleKeys and keys.missing_keys == ["weight", "bias"]
    assert torch.distributed.ReduceOp.RedOpType is torch.distributed.ReduceOp and isinstance(2, torch.types.Number)
    assert torch.utils._pytree._namedtuple_unflatten([1, 2], namedtuple("P", "a b")) == (1, 2)
    from_ = torch.utils.dlpack.from_dlpack(torch.utils.dlpack.to_dlpack(X))
    assert from_.data_ptr() == X.data_ptr() and np.shares_memory(from_.numpy(), X.numpy())


def test_dtypes_that_can_only_be_named():
    for name, bits in (("uint16", 16), ("uint32", 32), ("uint64", 64)):
        kind = getattr(torch, name)
        assert repr(kind) == f"tritorch.{name}" and kind.itemsize == bits // 8 and torch.iinfo(kind).max == 2**bits - 1
        assert not kind.is_signed and not kind.is_floating_point and kind not in (torch.uint8, X.dtype)
        assert pickle.loads(pickle.dumps(kind)) is kind
        for make in (lambda: torch.zeros(2, dtype=kind), lambda: X.to(kind), lambda: X.view(kind), lambda: X.sum(dtype=kind),
                     lambda: torch.tensor([1], dtype=kind), lambda: torch.empty_like(X, dtype=kind), lambda: X.new_zeros(2, dtype=kind),
                     lambda: torch.promote_types(kind, torch.int32), lambda: nn.Linear(2, 2, dtype=kind),
                     lambda: torch.can_cast(kind, X.dtype)):
            with pytest.raises(NotImplementedError, match=name):
                make()


def test_dtypes_of_few_bits_can_be_named():
    for name in [f"{kind}{bits}" for kind in ("uint", "int") for bits in range(1, 8)]:
        kind = getattr(torch, name)
        assert kind.itemsize == 1 and kind.is_signed == name.startswith("int") and pickle.loads(pickle.dumps(kind)) is kind
        refused(NotImplementedError, lambda kind=kind: torch.zeros(2, dtype=kind), lambda kind=kind: X.to(kind))
        refused(TypeError, lambda kind=kind: torch.iinfo(kind))


def test_view_takes_numpys_numbers():
    assert torch.zeros(4).view(np.int64(4)).shape == (4,) and torch.zeros(2, 2).view(np.int32(-1)).shape == (4,)
    assert torch.zeros(2).view(torch.int16).shape == (4,)


def test_two_numbers_are_divided_to_a_tensor():
    for pair, rounding_mode, want in (((5, 2), None, 2.5), ((5, 2), "trunc", 2), ((-7, 2), "floor", -4), ((-7, 2), "trunc", -3),
                                      ((5.0, 2), "floor", 2.0), ((True, 2), None, 0.5)):
        got = torch.div(*pair, rounding_mode=rounding_mode)
        assert got.item() == want and got.dtype is (torch.float32 if isinstance(want, float) else torch.int64)
    refused(TypeError, lambda: torch.div("a", 2))
    refused(RuntimeError, lambda: torch.div(5, 2, rounding_mode="up"), lambda: torch.div(5, 0, rounding_mode="floor"))


def test_streams_of_accelerators():
    assert torch.Stream is torch.cuda.Stream is torch.accelerator.Stream and torch.Event is torch.cuda.Event


def test_memory_that_knows_a_dtype():
    with pytest.raises(NotImplementedError, match="use x.untyped_storage"):
        X.storage()


def test_sizes():
    size = X.shape
    for made in (size + (4,), (4,) + size, size * 2, 2 * size, size + size, size + ()):
        assert type(made) is torch.Size and made.numel() == np.prod(made)
    size += (1,)
    assert size == (2, 3, 1) and f"{X.shape}" == str(X.shape) == format(X.shape) == "tritorch.Size([2, 3])"
    refused(TypeError, lambda: size + [1], lambda: size + 1, lambda: size * 1.5, lambda: f"{X.shape:>9}")
    with pytest.raises(RuntimeError, match=r"got \(2, 3\) and \(4\)|got \(2, 3\) and \(4,\)"):
        X + torch.ones(4)


def test_what_is_not_here_says_so():
    from tritorch.distributed.tensor.placement_types import _StridedShard
    from tritorch.utils import cpp_extension

    refused(NotImplementedError, lambda: cpp_extension.load("kernel", ["kernel.cu"]), lambda: cpp_extension.load_inline("kernel", ""),
            lambda: _StridedShard(0, split_factor=2))
    assert cpp_extension.CUDA_HOME is None and not isinstance(nn.Linear(2, 2), torch.export.ExportedProgram)


def test_policies_of_what_is_sharded():
    from tritorch.distributed.fsdp.wrap import (
        _or_policy,
        lambda_auto_wrap_policy,
        size_based_auto_wrap_policy,
        transformer_auto_wrap_policy,
    )

    layer, rows = nn.Linear(2, 2), nn.ModuleList([nn.Linear(2, 2)])
    assert transformer_auto_wrap_policy(layer, False, 0, {nn.Linear}) and not transformer_auto_wrap_policy(rows, False, 0, {nn.Linear})
    assert transformer_auto_wrap_policy(rows, True, 0, {nn.Linear})
    size = [size_based_auto_wrap_policy(m, r, n, 5) for m in (layer, rows) for r in (False, True) for n in (4, 5)]
    assert size == [False, True, False, True, False, False, False, True]
    policies = [lambda module, recurse, nonwrapped_numel: lambda_auto_wrap_policy(module, recurse, nonwrapped_numel, lambda m: m is layer)]
    assert _or_policy(layer, False, 0, policies) and not _or_policy(rows, False, 0, policies)


@pytest.mark.parametrize("n", range(1, 10))
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("mode", ["pointwise", "generic"])
def test_associative_scan(n, reverse, mode):
    from tritorch._higher_order_ops.associative_scan import associative_scan

    decay, x = torch.rand(2, n, 3, dtype=torch.float64).requires_grad_(), torch.randn(2, n, 3, dtype=torch.float64).requires_grad_()
    _, h = associative_scan(lambda a, b: (a[0] * b[0], a[1] * b[0] + b[1]), (decay, x), 1, reverse, mode)
    rows, order = [torch.zeros(2, 3, dtype=torch.float64)], range(n)
    for i in reversed(order) if reverse else order:
        rows.append(rows[-1] * decay[:, i] + x[:, i])
    expected = torch.stack(rows[:0:-1] if reverse else rows[1:], 1)
    assert torch.allclose(h, expected)
    for ours, right in zip(*[torch.autograd.grad(y.sin().sum(), (x, decay), allow_unused=True) for y in (h, expected)]):
        assert torch.allclose(ours, right) if ours is not None else not right.any()


def test_associative_scans_that_cannot_be():
    from tritorch._higher_order_ops import associative_scan

    refused(ValueError, lambda: associative_scan(None, X, 0), lambda: associative_scan(torch.add, X, 0, combine_mode="any"),
            lambda: associative_scan(torch.add, (), 0), lambda: associative_scan(torch.add, (X, X[:1]), 0),
            lambda: associative_scan(lambda a, b: (a, b), X, 0))
