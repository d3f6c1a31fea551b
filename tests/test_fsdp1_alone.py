"""FullyShardedDataParallel in a world of one: names, dtypes, policies, hooks and what it refuses."""
import functools

import numpy as np
import pytest
from worlds import no_gpu  # noqa: F401

import tritorch as torch
from tritorch import distributed as dist
from tritorch import nn
from tritorch.distributed import checkpoint, fsdp
from tritorch.distributed.algorithms._checkpoint import checkpoint_wrapper as activations
from tritorch.distributed.algorithms._comm_hooks import LOW_PRECISION_HOOKS
from tritorch.distributed.algorithms._comm_hooks import default_hooks as hooks
from tritorch.distributed.checkpoint.optimizer import load_sharded_optimizer_state_dict
from tritorch.distributed.checkpoint.state_dict import get_optimizer_state_dict
from tritorch.distributed.fsdp import FullyShardedDataParallel as FSDP
from tritorch.distributed.fsdp import MixedPrecision, OptimStateKeyType, ShardingStrategy, StateDictType
from tritorch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler
from tritorch.distributed.fsdp.units import mesh_for
from tritorch.distributed.fsdp.wrap import (
    CustomPolicy,
    ModuleWrapPolicy,
    always_wrap_policy,
    enable_wrap,
    lambda_auto_wrap_policy,
    size_based_auto_wrap_policy,
    wrap,
)

pytestmark = [pytest.mark.usefixtures("no_gpu", "alone"), pytest.mark.filterwarnings("ignore::FutureWarning")]
BF16, F32, F64 = torch.bfloat16, torch.float32, torch.float64
LINEAR = ModuleWrapPolicy({nn.Linear})


@pytest.fixture
def alone():
    dist.init_process_group("gloo", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


class Seen(nn.Module):
    """Two layers, a normalization and a buffer, and what they have been called with."""

    def __init__(self):
        super().__init__()
        self.first, self.norm, self.last, self.dtypes = nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 2), []
        self.register_buffer("scale", torch.ones(2))
        self.register_buffer("count", torch.ones(2, dtype=torch.int64))

    def forward(self, x):
        y = self.norm(self.first(x))
        self.dtypes = [x.dtype, self.first.weight.dtype, self.norm.weight.dtype, y.dtype, self.scale.dtype]
        self.shapes = [type(self.first.weight), tuple(self.first.weight.shape)]
        return self.last(y) * self.scale


def paths(model):
    """Where units are."""
    return [name.replace("_fsdp_wrapped_module", "*") for name, m in model.named_modules() if isinstance(m, FSDP)]


def test_what_a_wrapper_shows():
    inner = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 2))
    inner.own, inner[0].weight.mark = "mine", 5
    weight, model = inner[0].weight, FSDP(inner, auto_wrap_policy=LINEAR, device_id="cpu")
    assert model.module is inner is model._fsdp_wrapped_module and type(inner) is nn.Sequential and model.own == "mine"
    assert model[0].module.weight is weight and weight.mark == 5 and isinstance(weight, nn.Parameter)       # optimizers may have it
    assert [name for name, _ in model.named_parameters()][0] == "_fsdp_wrapped_module.0._fsdp_wrapped_module.weight"
    assert FSDP.fsdp_modules(model) == [model, model[0], model[1]] == FSDP.fsdp_modules(nn.Sequential(model))
    assert FSDP.fsdp_modules(nn.Sequential(model), root_only=True) == [model]
    assert model.check_is_root() and not model[0].check_is_root() and not model._has_params and model[0]._has_params
    assert model.sharding_strategy is ShardingStrategy.NO_SHARD and (model.rank, model.world_size) == (0, 1)
    assert model._flat_param is None and model._handle is None and model[1]._flat_param._fqns == ["weight", "bias"]
    assert model.process_group is dist.group.WORLD and str(model).count("(_fsdp_wrapped_module)") == 3
    with pytest.raises(AttributeError, match="nothing"):
        model.nothing  # noqa: B018
    seen = FSDP(Seen(), device_id="cpu")
    steps = torch.optim.SGD(seen.parameters(), lr=0.1)
    with torch.no_grad():
        seen(torch.ones(2, 4))
    assert seen.shapes == [nn.Parameter, (3, 4)] and type(seen.first.weight) is type(weight)
    assert all(mine is own for mine, own in zip(seen.parameters(), steps.param_groups[0]["params"], strict=True))
    seen(torch.ones(2, 4))
    assert type(seen.first.weight) is nn.Parameter and len(get_optimizer_state_dict(seen, steps)["param_groups"][0]["params"]) == 6


def test_views_are_told():
    model = FSDP(nn.Sequential(nn.Linear(2, 2), nn.Flatten(0)), device_id="cpu")
    with pytest.warns(UserWarning, match="forward of Sequential returned a view"):
        model(torch.ones(1, 2))


def test_policies_and_wrapping():
    make = lambda: nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 9), nn.ReLU()), nn.Linear(9, 1))
    by_name = functools.partial(lambda_auto_wrap_policy, lambda_fn=lambda m: isinstance(m, nn.ReLU))
    other = {"sharding_strategy": ShardingStrategy.SHARD_GRAD_OP}
    custom = CustomPolicy(lambda m: other if isinstance(m, nn.ReLU) else len(list(m.children())) == 2)
    wanted = {
        LINEAR: ["", "*.0", "*.1.0", "*.2"], custom: ["", "*.1", "*.1.*.1"], by_name: ["", "*.1.1"],
        functools.partial(size_based_auto_wrap_policy, min_num_params=30): ["", "*.1.0"],
        always_wrap_policy: ["", "*.0", "*.1", "*.1.*.0", "*.1.*.1", "*.2"],
    }
    for policy, where in wanted.items():
        assert paths(FSDP(make(), auto_wrap_policy=policy, device_id="cpu")) == where
    ignored = make()
    assert paths(FSDP(ignored, auto_wrap_policy=LINEAR, ignored_modules=[ignored[1]], device_id="cpu")) == ["", "*.0", "*.2"]
    assert type(ignored[1][0].weight) is nn.Parameter
    with enable_wrap(wrapper_cls=FSDP, device_id="cpu", use_orig_params=False):
        made = wrap(nn.Linear(2, 2), use_orig_params=True)
        with pytest.raises(NotImplementedError), enable_wrap(wrapper_cls=FSDP):
            pass
    assert isinstance(made, FSDP) and made._use_orig_params and type(wrap(nn.Linear(2, 2))) is nn.Linear
    with pytest.raises(ValueError, match="without units"):
        FSDP(nn.Sequential(made), auto_wrap_policy=LINEAR)
    with pytest.raises(ValueError, match="bool or a dict"):
        FSDP(make(), auto_wrap_policy=CustomPolicy(lambda m: 1))
    assert "Linear" in repr(LINEAR) and LINEAR(nn.Linear(1, 1), recurse=False, nonwrapped_numel=0)


@pytest.mark.filterwarnings("ignore:.*units of their own")
@pytest.mark.parametrize("policy", [LINEAR, functools.partial(lambda_auto_wrap_policy, lambda_fn=lambda m: isinstance(m, nn.Linear))])
def test_mixed_precision(policy):
    model = FSDP(Seen(), auto_wrap_policy=policy, mixed_precision=MixedPrecision(BF16, F32, BF16), device_id="cpu")
    assert paths(model) == ["", "*.first", "*.norm", "*.last"] and model.norm.mixed_precision == MixedPrecision()
    y = model(torch.ones(5, 4))
    y.float().sum().backward()
    assert y.dtype is BF16 and model.dtypes == [BF16, BF16, F32, BF16, BF16]
    assert {p.dtype for p in model.parameters()} == {p.grad.dtype for p in model.parameters()} == {F32}
    state = model.state_dict()
    assert state["scale"].dtype is F32 and state["norm.running_mean"].dtype is F32 and model.scale.dtype is BF16
    assert model.norm.running_mean.dtype is F32 and model.count.dtype is torch.int64
    with FSDP.summon_full_params(model):
        assert model.first.module.weight.dtype is F32 and [name for name, _ in model.named_buffers()][0] == "scale"


def test_which_inputs_are_cast():
    every = MixedPrecision(F64, cast_root_forward_inputs=False, cast_forward_inputs=True)
    for precision, wanted in ((MixedPrecision(BF16), BF16), (every, F64)):
        inner = nn.Sequential(nn.Linear(2, 2), nn.Identity())
        inner[1] = FSDP(nn.Linear(2, 2), mixed_precision=MixedPrecision(F32, cast_forward_inputs=True), device_id="cpu")
        seen = []
        inner[0].register_forward_hook(lambda m, args, out, seen=seen: seen.append(out.dtype))
        assert FSDP(inner, mixed_precision=precision, device_id="cpu")(torch.ones(1, 2)).dtype is F32 and seen == [wanted]
    kept = Seen()
    precision = MixedPrecision(buffer_dtype=BF16)
    low = FSDP(nn.Sequential(nn.Identity(), kept), ignored_modules=[kept], mixed_precision=precision, device_id="cpu")
    assert low(torch.ones(3, 4)).dtype is F32 and kept.scale.dtype is F32
    model = FSDP(nn.Linear(2, 2), mixed_precision=MixedPrecision(BF16, cast_root_forward_inputs=False), device_id="cpu")
    with pytest.raises(RuntimeError):
        model(torch.ones(1, 2))


def test_modules_on_meta():
    with torch.device("meta"):
        plain, told = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)), nn.Linear(2, 2)
    torch.manual_seed(0)
    model = FSDP(plain, device_id="cpu")
    assert all(not x.is_meta for x in model.state_dict().values()) and model.state_dict()["1.running_var"].tolist() == [1.0, 1.0]
    given = []

    def fill(module):
        given.append(module)
        module.to_empty(device="cpu", recurse=False)
        with torch.no_grad():
            module.weight.fill_(3)
            module.bias.fill_(4)

    assert FSDP(told, param_init_fn=fill, device_id="cpu").state_dict()["bias"].tolist() == [4.0, 4.0] and given == [told]


def test_state_dicts_of_one():
    model = FSDP(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)), auto_wrap_policy=LINEAR, device_id="cpu")
    state = nn.Sequential(model).state_dict()
    assert list(state)[0] == "0.0.weight" and state._metadata["0.1"] == {"version": 2}
    assert not any("_fsdp" in name for name in state._metadata)
    before = FSDP.set_state_dict_type(model, StateDictType.SHARDED_STATE_DICT)
    assert before.state_dict_config == fsdp.FullStateDictConfig() and FSDP.get_state_dict_type(nn.Linear(1, 1)) is None
    with pytest.raises(RuntimeError, match="ShardedStateDictConfig"):
        FSDP.set_state_dict_type(model, StateDictType.SHARDED_STATE_DICT, fsdp.FullStateDictConfig())
    with pytest.raises(ZeroDivisionError), FSDP.state_dict_type(model, StateDictType.LOCAL_STATE_DICT):
        assert type(model.state_dict()["0.weight"]) is torch.Tensor
        1 / 0  # noqa: B018
    assert FSDP.get_state_dict_type(model).state_dict_type is StateDictType.SHARDED_STATE_DICT
    FSDP.set_state_dict_type(model, StateDictType.FULL_STATE_DICT)
    values = {name: torch.full_like(x, 2) for name, x in model.state_dict().items()}
    model.load_state_dict(values)
    assert all(torch.equal(x, values[name]) for name, x in model.state_dict().items())
    with pytest.raises(RuntimeError, match=r"size mismatch for .*0.*weight.*\(2, 2\), got \(3, 2\)"):
        model.load_state_dict({**values, "0.weight": torch.ones(3, 2)})
    assert model.half() is model and model.state_dict()["0.weight"].dtype is torch.float16
    model[0]._flat_param.data = model[0]._flat_param.data.to(F64)
    assert model[0]._flat_param.dtype is F64 and model[0].module.bias.dtype is F64 and isinstance(model[0]._flat_param, fsdp.FlatParameter)


def test_optimizer_states_of_one():
    plain = nn.Linear(2, 1)
    model = FSDP(nn.Sequential(plain, nn.Linear(1, 3)), device_id="cpu")
    steps = torch.optim.SGD([{"params": [model[1].bias], "lr": 0.5}, {"params": [model[0].weight, model[0].bias]}], lr=0.1, momentum=0.9)
    model(torch.ones(2, 2)).sum().backward()
    steps.step()
    saved = FSDP.optim_state_dict(model, steps)
    assert [g["params"] for g in saved["param_groups"]] == [["1.bias"], ["0.weight", "0.bias"]]
    assert saved["state"]["1.bias"]["momentum_buffer"].tolist() == [2.0] * 3
    for back in (FSDP.shard_full_optim_state_dict(saved, model, optim=steps), FSDP.scatter_full_optim_state_dict(saved, model, optim=steps),
                 FSDP.flatten_sharded_optim_state_dict(FSDP.sharded_optim_state_dict(model, steps), model, steps),
                 FSDP.optim_state_dict_to_load(model, steps, FSDP.full_optim_state_dict(model, steps), load_directly=True)):
        assert list(back["state"]) == [0, 1, 2] and [g["params"] for g in back["param_groups"]] == [[0], [1, 2]]
        steps.load_state_dict(back)
        assert steps.state[model[1].bias]["momentum_buffer"].full_tensor().tolist() == [2.0] * 3
    alike = nn.Sequential(nn.Linear(2, 1), nn.Linear(1, 3))
    by_id = FSDP.rekey_optim_state_dict(saved, OptimStateKeyType.PARAM_ID, alike)
    assert sorted(by_id["state"]) == [0, 1, 3] and [g["params"] for g in by_id["param_groups"]] == [[3], [0, 1]]
    assert FSDP.rekey_optim_state_dict(by_id, OptimStateKeyType.PARAM_NAME, alike)["state"].keys() == saved["state"].keys()
    with pytest.raises(KeyError, match="optimizer of the model's parameters"):
        FSDP.optim_state_dict(model, torch.optim.SGD(alike.parameters(), lr=0.1))


def test_hooks_and_scalers():
    model, sizes = FSDP(nn.Linear(2, 2), device_id="cpu"), []

    def doubled(state, gradients):
        state.append(gradients.numel())
        gradients *= 2

    model.register_comm_hook(sizes, doubled)
    model(torch.ones(1, 2)).sum().backward()
    assert len(sizes) == 1 and sizes[0] >= 6 and model.bias.grad.to_local().tolist() == [2.0, 2.0]
    with pytest.raises(AssertionError, match="a second"):
        model.register_comm_hook(None, doubled)
    with pytest.raises(ValueError, match="called"):
        model.register_comm_hook(None, 3)
    low = FSDP(nn.Linear(2, 2).half(), device_id="cpu")
    steps, scaler = torch.optim.SGD(low.parameters(), lr=0.5), ShardedGradScaler("cpu", init_scale=8.0)
    loss = scaler.scale([low(torch.ones(1, 2, dtype=torch.float16)).sum()])[0]
    loss.backward()
    assert loss.dtype is torch.float16 and low.bias.grad.to_local().tolist() == [8.0, 8.0]
    scaler.step(steps)
    assert low.bias.grad.to_local().tolist() == [1.0, 1.0]
    off = ShardedGradScaler("cpu", enabled=False)
    assert off.scale(loss) is loss and off.unscale_(steps) is None


def test_what_it_refuses():
    inner = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model = FSDP(inner, auto_wrap_policy=LINEAR, device_id="cpu")
    model(torch.ones(1, 2))
    for call in (model[0].no_sync().__enter__, lambda: model[0].clip_grad_norm_(1.0)):
        with pytest.raises(RuntimeError, match="the outermost unit"):
            call()
    summon = lambda **options: FSDP.summon_full_params(model, **options).__enter__()
    for options in ({"rank0_only": True}, {"offload_to_cpu": True, "with_grads": True}):
        with pytest.raises(NotImplementedError):
            summon(**options)
    with FSDP.summon_full_params(model):
        with pytest.raises(ValueError, match="summon_full_params"):
            model(torch.ones(1, 2))
        with pytest.raises(AssertionError):
            summon()
    assert model(torch.ones(1, 2)).shape == (1, 2)
    mesh = dist.init_device_mesh("cpu", (1,))
    refused = lambda error, **options: pytest.raises(error, lambda: FSDP(nn.Linear(1, 1), device_id="cpu", **options))
    refused(NotImplementedError, mixed_precision=MixedPrecision(keep_low_precision_grads=True))
    refused(ValueError, process_group=dist.group.WORLD, device_mesh=mesh)
    refused(ValueError, sharding_strategy=ShardingStrategy.HYBRID_SHARD)
    refused(ValueError, sharding_strategy=ShardingStrategy.HYBRID_SHARD, device_mesh=mesh)
    refused(ValueError, ignored_modules=[model], ignored_states=[nn.Parameter(torch.ones(1))])
    refused(ValueError, ignored_modules=[nn.Sequential(model)])
    with pytest.warns(UserWarning, match="without a forward"):
        FSDP(nn.ModuleList([nn.Linear(1, 1)]), device_id="cpu")
    with pytest.warns(UserWarning, match="no gradients"):
        assert FSDP(nn.Linear(1, 1), device_id="cpu").clip_grad_norm_(1.0).item() == 0.0


def test_meshes_of_strategies(monkeypatch):
    hybrid, world = ShardingStrategy.HYBRID_SHARD, dist.group.WORLD
    for given in ((None, None), ((world, world), None), (None, dist.init_device_mesh("cpu", (1, 1)))):
        mesh = mesh_for(hybrid, *given, True, "cpu")
        assert mesh.shape == (1, 1) and mesh.mesh_dim_names == ("replicate", "shard")
    assert mesh_for(ShardingStrategy.FULL_SHARD, world, None, False, "cpu").shape == (1,)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "3")
    with pytest.raises(ValueError, match="nodes of 3"):
        mesh_for(hybrid, None, None, True, "cpu")
    model = FSDP(nn.Linear(2, 1), sharding_strategy=hybrid, process_group=(world, world), device_id="cpu")
    model(torch.ones(3, 2)).sum().backward()
    assert model.bias.grad.full_tensor().tolist() == [3.0]


def test_parameters_that_stay():
    inner = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 2))
    inner[2].requires_grad_(False)
    model = FSDP(inner, ignored_states=[inner[0].bias], device_id="cpu")
    model(torch.ones(1, 2)).sum().backward()
    kinds = [type(p.grad).__name__ for p in model.parameters()]
    assert kinds == ["DTensor", "Tensor", "DTensor", "DTensor", "NoneType", "NoneType"] and type(inner[0].bias) is nn.Parameter
    local = [getattr(p.grad, "_local_tensor", p.grad) for p in model.parameters() if p.grad is not None]
    wanted = np.sqrt(sum(float((g ** 2).sum()) for g in local))
    assert model.clip_grad_norm_(0.5).item() == pytest.approx(wanted, rel=1e-6)
    assert model.clip_grad_norm_(0.5).item() == pytest.approx(0.5, rel=1e-4)
    assert list(model.state_dict()) == [f"{k}.{name}" for k in range(3) for name in ("weight", "bias")]


class Twice(nn.Module):
    """A layer that counts its calls, with a keyword."""

    def __init__(self):
        super().__init__()
        self.layer, self.calls = nn.Linear(3, 3), 0

    def forward(self, x, factor=1.0):
        self.calls += 1
        return self.layer(x).tanh() * factor


@pytest.mark.parametrize("wrapper", [
    activations.checkpoint_wrapper, activations.offload_wrapper,
    functools.partial(activations.checkpoint_wrapper, checkpoint_impl=activations.CheckpointImpl.REENTRANT),
    functools.partial(activations.checkpoint_wrapper, checkpoint_fn=lambda fn, *args, **kwargs: fn(*args, **kwargs))])
def test_activations_that_are_computed_again(wrapper):
    """As accelerate does it: checkpoints inside of the units of a model that is wrapped."""
    make = lambda: FSDP(nn.Sequential(Twice(), nn.ReLU(), Twice()), auto_wrap_policy=ModuleWrapPolicy({Twice}), device_id="cpu")
    plain, model = make(), make()
    policy = functools.partial(lambda_auto_wrap_policy, lambda_fn=lambda m: isinstance(m, Twice))
    activations.apply_activation_checkpointing(model, wrapper, auto_wrap_policy=policy)
    assert str(model.load_state_dict(plain.state_dict())) == "<All keys matched successfully>"
    assert list(model.state_dict()) == list(plain.state_dict()) and list(model.state_dict()._metadata) == list(plain.state_dict()._metadata)
    x = torch.linspace(-1, 1, 6).view(2, 3).requires_grad_()
    for one in (plain, model):
        one(x).sum().backward()
    again = wrapper is activations.checkpoint_wrapper or "checkpoint_impl" in getattr(wrapper, "keywords", {})
    assert model[0].module.calls == 1 + again and type(model[0].module) is Twice and model[0]._fsdp_wrapped_module.calls == 1 + again
    for mine, wanted in zip(model.parameters(), plain.parameters(), strict=True):
        assert torch.equal(mine.grad.to_local(), wanted.grad.to_local())
    saved = FSDP.optim_state_dict(model, torch.optim.SGD(model.parameters(), lr=0.1))
    assert saved["param_groups"][0]["params"] == list(model.state_dict())
    alone = wrapper(Twice())
    assert torch.equal(alone(x, factor=2.0), 2 * alone(x))
    assert [name for name, _ in alone.named_parameters()] == ["layer.weight", "layer.bias"]
    with pytest.raises(AttributeError):
        alone.nothing  # noqa: B018
    assert wrapper(nn.Sequential(Twice()))[0].calls == 0


def test_which_modules_are_computed_again():
    make = lambda: nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 2)), nn.ReLU())
    for given in ({"check_fn": lambda m: isinstance(m, nn.Linear)}, {"auto_wrap_policy": LINEAR}):
        model = make()
        activations.apply_activation_checkpointing(model, **given)
        wrapped = [isinstance(m, activations.CheckpointWrapper) for m in (model[0], model[1], model[1][0], model[2])]
        assert wrapped == [True, False, True, False]


def test_checkpoint_of_shards(tmp_path):
    """As Lightning does it: the optimizer's state is read before the optimizer has one."""
    def made(seed):
        torch.manual_seed(seed)
        model = FSDP(nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1)), auto_wrap_policy=LINEAR, device_id="cpu")
        FSDP.set_state_dict_type(model, StateDictType.SHARDED_STATE_DICT)
        return model, torch.optim.Adam(model.parameters(), lr=0.1)

    model, steps = made(0)
    model(torch.ones(2, 3)).sum().backward()
    steps.step()
    checkpoint.save({"model": model.state_dict(), "steps": FSDP.optim_state_dict(model, steps)}, checkpoint_id=tmp_path)
    other, fresh = made(1)
    state = {"model": other.state_dict()}
    checkpoint.load(state, checkpoint_id=tmp_path)
    other.load_state_dict(state["model"])
    reader = checkpoint.FileSystemReader(path=tmp_path)
    loaded = load_sharded_optimizer_state_dict(model_state_dict=state["model"], optimizer_key="steps", storage_reader=reader)
    fresh.load_state_dict(FSDP.optim_state_dict_to_load(other, fresh, loaded["steps"]))
    for mine, wanted in zip(other.parameters(), model.parameters(), strict=True):
        assert torch.equal(mine.to_local(), wanted.to_local()) and fresh.state[mine]["step"] == 1
        assert torch.equal(fresh.state[mine]["exp_avg_sq"].to_local(), steps.state[wanted]["exp_avg_sq"].to_local())
    assert list(loaded["steps"]["state"]) == list(model.state_dict()) and fresh.param_groups[0]["lr"] == 0.1


@pytest.mark.parametrize("hook", [hooks.allreduce_hook, *LOW_PRECISION_HOOKS])
def test_hooks_for_gradients(hook):
    model, x = FSDP(nn.Linear(2, 1), device_id="cpu"), torch.tensor([[1.0, 1.001]])
    model.register_comm_hook(hooks.LowPrecisionState(dist.group.WORLD), hook)
    model(x).sum().backward()
    kind = {hooks.fp16_compress_hook: torch.float16, hooks.bf16_compress_hook: BF16}.get(hook, F32)
    assert torch.equal(model.weight.grad.to_local(), x.to(kind).float())
    part = torch.zeros(2)
    hook(hooks.DefaultState(dist.group.WORLD), x[0], part) if kind is not F32 else hooks.reduce_scatter_hook(
        hooks.DefaultState(dist.group.WORLD), x[0], part)
    assert torch.equal(part, x[0].to(kind).float())
    assert [hooks.DefaultState._get_gradient_predivide_factor(n) for n in (1, 2, 4, 6, 8, 64)] == [1.0, 2.0, 2.0, 4.0, 4.0, 8.0]
    with pytest.raises(ValueError, match="process group"):
        hooks.DefaultState(None)
