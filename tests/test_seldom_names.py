"""Switches, questions and methods that programs meet seldom: what they answer, and what they refuse."""
import pytest

import tritorch as torch

X = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])


def refused(kind, *calls):
    for call in calls:
        with pytest.raises(kind):
            call()


def test_questions():
    assert torch.is_signed(X) and not torch.is_signed(X > 0) and torch.get_device(X) == -1 and torch.is_same_size(X, X + 1)
    assert not any(ask(X) for ask in (torch.is_conj, torch.is_neg, torch.is_inference, torch.is_distributed))
    assert not any((X.is_conj(), X.is_neg(), X.is_distributed())) and X.const_data_ptr() == X.data_ptr() and X.name is None
    with torch.inference_mode():
        assert torch.is_inference(X + 1)
    refused(TypeError, lambda: torch.is_signed(1), lambda: torch.is_conj(None), lambda: torch.get_device("cpu"))
    assert (X * torch.ones(1, requires_grad=True)).output_nr == 0
    leaf = X.clone().requires_grad_()
    assert leaf.sort().indices.output_nr == 0 and leaf.max(0).values.output_nr == 0


def test_functions_that_write_their_first_argument():
    for name, arguments, want in (("fill_", (2,), X * 0 + 2), ("zero_", (), X * 0), ("selu_", (), torch.selu(X)),
                                  ("celu_", (), torch.celu(X)),
                                  ("threshold_", (2.5, 0), X * (X > 2.5)), ("conj_physical_", (), X),
                                  ("as_strided_", ((2,), (2,), 1), torch.tensor([2.0, 4.0])),
                                  ("index_put_", ((torch.tensor([0]), torch.tensor([1])), torch.tensor(9.0)), None),
                                  ("resize_as_", (X[:1],), X[:1])):
        x = X.clone()
        made = getattr(torch, name)(x, *arguments)
        assert made is x
        assert x[0, 1] == 9 if want is None else torch.equal(x, want), name
    n = torch.tensor([12, 18])
    assert torch.gcd_(n.clone(), n[0]).tolist() == [12, 6] and torch.lcm_(n, torch.tensor(8)).tolist() == [24, 72]
    ones = torch.ones(2, dtype=torch.int64)
    assert torch.bernoulli(torch.tensor([0.0, 1.0]), out=ones) is ones and ones.tolist() == [0, 1]


def test_dim_order():
    last = torch.empty(2, 3, 4, 5).to(memory_format=torch.channels_last)
    assert X.dim_order() == (0, 1) and X.t().dim_order() == (1, 0) and torch.tensor(1).dim_order() == ()
    assert last.dim_order(ambiguity_check=True) == (0, 2, 3, 1) and torch.empty(3, 4, 5).permute(1, 2, 0).dim_order() == (2, 0, 1)
    one = torch.empty(2, 1, 3)
    assert one.dim_order() == (0, 1, 2) == one.dim_order(ambiguity_check=[torch.contiguous_format])
    refused(RuntimeError, lambda: one.dim_order(ambiguity_check=True), lambda: one.dim_order(ambiguity_check=[torch.channels_last]),
            lambda: X[:1].expand(2, 3).dim_order(ambiguity_check=True))
    refused(TypeError, lambda: X.dim_order(ambiguity_check="no"), lambda: X.dim_order(ambiguity_check=[1]))


def test_methods():
    class Measured(torch.Tensor):
        pass

    leaf = X.clone().requires_grad_()
    seen = (leaf * 2).as_subclass(Measured)
    assert type(seen) is Measured and torch.autograd.grad(seen.sum(), leaf)[0].tolist() == [[2] * 3] * 2
    assert X.as_subclass(Measured).data_ptr() == X.data_ptr()
    refused(TypeError, lambda: X.as_subclass(int), lambda: X.as_subclass(3))
    assert X.clone().map2_(X, torch.tensor([1.0]), lambda a, b, c: a * b + c).tolist() == (X * X + 1).tolist()
    refused(RuntimeError, lambda: leaf.map2_(X, X, max))
    assert X.to_dense() is X and X.to_dense(torch.float64).dtype is torch.float64
    target = X.clone()
    loaded = target.module_load(torch.tensor(7))
    assert loaded.data_ptr() == target.data_ptr() and target.tolist() == [[7] * 3] * 2
    assert X.module_load(target, assign=True).data_ptr() == target.data_ptr()


def test_deterministic_modes():
    try:
        for mode, level, on, warn in (("warn", 1, True, True), (2, 2, True, False), ("error", 2, True, False), (0, 0, False, False)):
            torch.set_deterministic_debug_mode(mode)
            assert torch.get_deterministic_debug_mode() == level and torch.are_deterministic_algorithms_enabled() is on
            assert torch.is_deterministic_algorithms_warn_only_enabled() is warn
        torch.use_deterministic_algorithms(True, warn_only=True)
        assert torch.get_deterministic_debug_mode() == 1
    finally:
        torch.use_deterministic_algorithms(False)
    refused(RuntimeError, lambda: torch.set_deterministic_debug_mode("loud"), lambda: torch.set_deterministic_debug_mode(5))
    refused(TypeError, lambda: torch.set_deterministic_debug_mode(1.5))


def test_anomalies():
    try:
        torch.set_anomaly_enabled(True, False)
        assert torch.is_anomaly_enabled() and not torch.is_anomaly_check_nan_enabled()
    finally:
        torch.set_anomaly_enabled(False)
    assert not torch.is_anomaly_enabled()
    refused(TypeError, lambda: torch.set_anomaly_enabled(1))


def test_switches(cuda):
    assert not torch.is_warn_always_enabled()
    torch.set_warn_always(True)
    assert torch.is_warn_always_enabled()
    torch.set_warn_always(False)
    refused(RuntimeError, lambda: torch.set_warn_always(1), lambda: torch.set_num_interop_threads(0))
    assert torch.set_flush_denormal(True) is False and torch.get_num_interop_threads() >= 1
    assert torch.get_device_module("cuda:0") is torch.cuda is torch.get_device_module() and torch.get_device_module("cpu") is torch.cpu
    refused(RuntimeError, lambda: torch.get_device_module("abacus"))


def test_types_by_name(cuda):
    try:
        for given, dtype, place in ((torch.DoubleTensor, torch.float64, "cpu"), ("torch.cuda.HalfTensor", torch.float16, "cuda"),
                                    (torch.FloatTensor, torch.float32, "cpu")):
            torch.set_default_tensor_type(given)
            made = torch.tensor([0.5])
            assert made.dtype is dtype and made.device.type == place
    finally:
        torch.set_default_dtype(torch.float32)
    refused(TypeError, lambda: torch.set_default_tensor_type("torch.LongTensor"), lambda: torch.set_default_tensor_type(torch.LongTensor),
            lambda: torch.set_default_tensor_type(3), lambda: torch.set_default_tensor_type("FloatTensor"))
    assert torch.typename(X) == "tritorch.FloatTensor" and torch.typename(torch.nn.Linear(1, 1)) == "tritorch.nn.linear.Linear"
    assert torch.typename("a") == "str" and torch.typename(torch.float32) == "tritorch.dtype"


def test_autocast_without_a_block():
    product = lambda: (X @ X.t()).dtype                                  # noqa: E731
    try:
        torch.set_autocast_enabled("cpu", True)
        assert torch.is_autocast_enabled("cpu") and product() is torch.bfloat16
        torch.set_autocast_cpu_dtype(torch.float16)
        assert product() is torch.float16 is torch.get_autocast_dtype("cpu")
        with torch.autocast("cpu", enabled=False):
            assert product() is torch.float32
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert product() is torch.bfloat16
            torch.set_autocast_cpu_enabled(False)
            assert product() is torch.float32 and not torch.is_autocast_cpu_enabled()
        assert product() is torch.float16
    finally:
        torch.set_autocast_enabled("cpu", False)
        assert torch.get_autocast_cpu_dtype() is torch.float16
        torch.set_autocast_dtype("cpu", torch.bfloat16)
    assert product() is torch.float32
    depths = [torch.autocast_increment_nesting(), torch.autocast_increment_nesting(), torch.autocast_decrement_nesting()]
    assert depths[1] == depths[0] + 1 and depths[2] == depths[0] and torch.autocast_decrement_nesting() == depths[0] - 1
    refused(TypeError, lambda: torch.set_autocast_enabled(1), lambda: torch.set_autocast_enabled("cpu", 1))
    refused(RuntimeError, lambda: torch.set_autocast_enabled("abacus", True))


def test_older_modules():
    with pytest.warns(FutureWarning, match="NLLLoss2d"):
        loss = torch.nn.NLLLoss2d()
    assert isinstance(loss, torch.nn.NLLLoss) and loss(X.t().log_softmax(1), torch.tensor([0, 1, 0])).item() > 0
    with pytest.warns(FutureWarning, match="Container"):
        both = torch.nn.Container(a=torch.nn.Linear(1, 2), b=None)
    assert [name for name, _ in both.named_parameters()] == ["a.weight", "a.bias"] and repr(both).splitlines()[2] == "  (b): None"


def test_weights_in_a_memory_format():
    nn, change = torch.nn, torch.nn.utils.convert_conv2d_weight_memory_format
    model = nn.Sequential(nn.Conv2d(2, 3, 3), nn.ConvTranspose2d(3, 2, 2), nn.Conv3d(2, 2, 3), nn.BatchNorm2d(2))
    before = [p.clone() for p in model.parameters()]
    assert change(model, torch.channels_last) is model and torch.nn.utils.convert_conv3d_weight_memory_format(
        model, torch.channels_last_3d) is model
    assert [p.dim_order() for p in model.parameters() if p.ndim > 1] == [(0, 2, 3, 1), (0, 2, 3, 1), (0, 2, 3, 4, 1)]
    assert all(map(torch.equal, before, model.parameters())) and all(p.requires_grad for p in model.parameters())
    refused(RuntimeError, lambda: change(model, torch.channels_last_3d))


def test_modules_that_are_not_drawn():
    torch.manual_seed(3)
    state = torch.get_rng_state()
    layer = torch.nn.utils.skip_init(torch.nn.Linear, 3, 4, dtype=torch.float64)
    assert layer.weight.dtype is torch.float64 and torch.equal(torch.get_rng_state(), state)
    refused(RuntimeError, lambda: torch.nn.utils.skip_init(torch.nn.ReLU), lambda: torch.nn.utils.skip_init(int, 3))
    refused(TypeError, lambda: torch.nn.utils.skip_init(3))


def test_stateless_call_and_batch_norms():
    layer = torch.nn.Linear(3, 1)
    given = {"weight": torch.ones(1, 3), "bias": torch.zeros(1)}
    with pytest.warns(FutureWarning):
        assert torch.nn.utils.stateless.functional_call(layer, given, X).tolist() == [[6], [15]]
    with pytest.warns(FutureWarning):
        refused(RuntimeError, lambda: torch.nn.utils.stateless.functional_call(layer, {"weight": X[:1]}, X, strict=True))
    model = torch.nn.Sequential(torch.nn.BatchNorm1d(3), torch.nn.InstanceNorm1d(3, track_running_stats=True))
    assert torch.func.replace_all_batch_norm_modules_(model) is model and model[1].running_mean is not None
    assert list(model[0].state_dict()) == ["weight", "bias"] and torch.allclose(model[0].eval()(X).sum(0), torch.zeros(3), atol=1e-6)
    assert torch.func.debug_unwrap(X) is X


def test_waiting_is_told(cuda):
    x = X.to(cuda)
    torch.cuda.set_sync_debug_mode("error")
    try:
        assert torch.cuda.get_sync_debug_mode() == 2
        y = x + 1
        refused(RuntimeError, y.cpu, x[0, 0].item, x.nonzero, torch.cuda.current_stream().synchronize)
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode(1)
        with pytest.warns(UserWarning, match="synchronizing"):
            assert y.tolist() == (X + 1).tolist()
    finally:
        torch.cuda.set_sync_debug_mode(0)
    refused(RuntimeError, lambda: torch.cuda.set_sync_debug_mode("loud"), lambda: torch.cuda.set_sync_debug_mode(7))


def test_older_names_of_memory(cuda):
    x = X.to(cuda)
    with pytest.warns(FutureWarning):
        assert torch.cuda.memory_cached() == torch.cuda.memory_reserved() >= x.nbytes
    with pytest.warns(FutureWarning):
        assert torch.cuda.max_memory_cached() == torch.cuda.max_memory_reserved()
    with pytest.warns(FutureWarning):
        torch.cuda.reset_max_memory_cached()
    assert torch.cuda.max_memory_reserved() == torch.cuda.memory_reserved() and torch.cuda.get_allocator_backend() == "native"


def test_architectures(cuda):
    major, minor = torch.cuda.get_device_capability()
    assert torch.cuda.get_arch_list() == [f"sm_{major}{minor}"]
    assert torch.cuda.get_gencode_flags() == f"-gencode compute=compute_{major}{minor},code=sm_{major}{minor}"
    assert not torch.cuda.can_device_access_peer(0, "cuda:0")
    refused(AssertionError, lambda: torch.cuda.can_device_access_peer(0, 99))


def test_peers():
    with torch.cuda.simulate(devices=2):
        assert torch.cuda.can_device_access_peer(0, 1) and not torch.cuda.can_device_access_peer(1, 1)


def test_control_and_files(tmp_path):
    leaf = torch.tensor([1.0, -2.0], requires_grad=True)
    out = torch.cond(leaf.sum() > 0, lambda x: x, lambda x: -3 * x, (leaf,))
    assert torch.autograd.grad(out.sum(), leaf)[0].tolist() == [-3, -3] and torch.cond(False, int, lambda: 5) == 5
    refused(RuntimeError, lambda: torch.cond("x", int, int), lambda: torch.cond(X > 2, int, int))
    refused(TypeError, lambda: torch.cond(True, 3, int), lambda: torch.cond(True, int, int, X))
    path = str(tmp_path / "numbers")
    shared = torch.from_file(path, shared=True, size=3, dtype=torch.int32)
    shared.copy_(torch.tensor([7, 8, 9]))
    alone = torch.from_file(path, size=2, dtype=torch.int32)
    alone[0] = 1
    assert torch.from_file(path, size=3, dtype=torch.int32).tolist() == [7, 8, 9] and alone.tolist() == [1, 8]
    assert torch.from_file(path).shape == (0,) and torch.from_file(path, True, 5, dtype=torch.int32).tolist() == [7, 8, 9, 0, 0]
    refused(RuntimeError, lambda: torch.from_file(path, size=50), lambda: torch.from_file(path + "x", size=1))


def test_further_spellings():
    x = torch.tensor([1.0, -4.0])
    assert torch.threshold_(torch.selu_(torch.celu_(x.clone())), 0, 7)[1] == 7 and torch.zero_(torch.fill_(x.clone(), 3)).sum() == 0
    assert torch.gcd_(torch.tensor([6]), torch.tensor([4])) == 2
    assert torch.index_put_(x.clone(), (torch.tensor([1]),), x[:1]).tolist() == [1, 1]
    assert X[torch.newaxis].shape == (1, 2, 3) and X[0]._is_view() and not X._is_view() and torch.GradScaler is torch.amp.GradScaler
    assert torch.default_generator is torch.random.default_generator and torch.manual_seed(3) is torch.default_generator
    assert [t.itemsize for t in (torch.chalf, torch.float8_e8m0fnu, torch.float4_e2m1fn_x2)] == [4, 1, 1] and torch.complex32.is_complex
    turned = torch.empty_permuted((2, 3, 5), (1, 2, 0), dtype=torch.int64)
    assert turned.shape == (2, 3, 5) and turned.stride() == (1, 10, 2) and turned.dtype is torch.int64
    refused(RuntimeError, *[lambda order=order: torch.empty_permuted((2, 3), order) for order in ((0,), (0, 0), (0, 2), (-1, 0))])
    assert torch.init_num_threads() is None and not torch.is_vulkan_available() and not X.is_mkldnn and not X.is_sparse_csr


def test_files_of_gradients():
    from tritorch.autograd.anomaly_mode import detect_anomaly
    from tritorch.autograd.grad_mode import no_grad
    from tritorch.autograd.variable import Variable

    assert no_grad is torch.no_grad and detect_anomaly is torch.autograd.detect_anomaly and Variable is torch.autograd.Variable
