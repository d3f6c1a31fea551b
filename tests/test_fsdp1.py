"""FullyShardedDataParallel between two processes: they train as one does, and their state dicts are those of one."""
import copy
import functools
import os
import warnings

import fsdp_models as models
import numpy as np
import pytest
from fsdp_models import Block, Few, Language, adamw, batch, loss_of, sgd
from worlds import no_gpu, world  # noqa: F401

import tritorch as torch
from tritorch import distributed as dist
from tritorch import nn
from tritorch.distributed import fsdp
from tritorch.distributed.checkpoint import state_dict as by_name
from tritorch.distributed.fsdp import FullyShardedDataParallel as FSDP
from tritorch.distributed.fsdp import ShardingStrategy, StateDictType
from tritorch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler
from tritorch.distributed.fsdp.wrap import ModuleWrapPolicy, size_based_auto_wrap_policy, transformer_auto_wrap_policy

pytestmark = [pytest.mark.usefixtures("no_gpu"), pytest.mark.filterwarnings("ignore::FutureWarning")]
BLOCKS = ModuleWrapPolicy({Block})
FULL, SHARDED, LOCAL = StateDictType.FULL_STATE_DICT, StateDictType.SHARDED_STATE_DICT, StateDictType.LOCAL_STATE_DICT


# ------------------------------------------------------------------ ways of training
def averaged(state, gradients, part=None):
    """A communication hook that does what is done without one, and counts."""
    state.append(gradients.numel())
    if part is None:
        dist.all_reduce(gradients, dist.ReduceOp.AVG)
    else:
        dist.reduce_scatter_tensor(part, gradients, dist.ReduceOp.AVG)


def hooked(model):
    """Gradients by a hook of the program's."""
    model.register_comm_hook([], averaged)


def on_mesh(shape, model, **options):
    """A model on a mesh of replicas and shards."""
    return FSDP(model, device_mesh=dist.init_device_mesh("cpu", shape), **options)


def by_hand(model, **options):
    """Units inside of units, without a policy."""
    model.blocks[1].mlp = FSDP(model.blocks[1].mlp, **options)
    model.blocks[1], model.head = FSDP(model.blocks[1], **options), FSDP(model.head, **options)
    return FSDP(model, **options)


TRANSFORMER = functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={Block})
BY_SIZE = functools.partial(size_based_auto_wrap_policy, min_num_params=150)
WAYS = [
    (Language, {"auto_wrap_policy": BLOCKS, "use_orig_params": True, "early": True}),
    (Language, {"auto_wrap_policy": TRANSFORMER, "sharding_strategy": ShardingStrategy.SHARD_GRAD_OP, "clip": 0.1, "accumulates": True}),
    (Language, {"auto_wrap_policy": BY_SIZE, "sharding_strategy": ShardingStrategy.NO_SHARD, "clip": 0.1, "setup": hooked}),
    (Language, {"wrap": by_hand, "backward_prefetch": None, "limit_all_gathers": False, "clip": 0.1, "norm": float("inf")}),
    (Language, {"auto_wrap_policy": BLOCKS, "cpu_offload": fsdp.CPUOffload(True), "accumulates": True, "setup": hooked}),
    (functools.partial(Language, tied=True, again=False), {"auto_wrap_policy": BLOCKS, "optimizer": sgd,
     "backward_prefetch": fsdp.BackwardPrefetch.BACKWARD_POST}),
    (Few, {"sharding_strategy": ShardingStrategy.HYBRID_SHARD, "wrap": functools.partial(on_mesh, (1, 2)), "clip": 1e-3}),
    (Few, {"sharding_strategy": ShardingStrategy._HYBRID_SHARD_ZERO2, "wrap": functools.partial(on_mesh, (2, 1)), "accumulates": True}),
]


def train(make, rank, size, wrap=FSDP, optimizer=adamw, clip=None, norm=2.0, accumulates=False, setup=None, early=False, **options):
    """(losses, parameters by name) after three steps, here and in one process alone."""
    model = models.filled(make(), torch.float64)
    steps = optimizer([p for p in model.parameters() if p.requires_grad]) if early or size == 1 else None
    if size > 1:
        model = wrap(model, device_id=torch.device("cpu"), **options)
        setup(model) if setup else None
    steps, losses = steps or optimizer([p for p in model.parameters() if p.requires_grad]), []
    for step in range(3):
        steps.zero_grad(set_to_none=step != 1)
        if accumulates and size > 1:
            with model.no_sync():
                loss_of(model, *batch(step + 50, rank, size)).backward()
        elif accumulates:
            loss_of(model, *batch(step + 50)).backward()
        loss = loss_of(model, *batch(step, rank, size))
        loss.backward()
        losses.append(loss.detach() if size == 1 else models.average(loss.detach()))
        if clip:
            losses.append(model.clip_grad_norm_(clip, norm) if size > 1 else nn.utils.clip_grad_norm_(model.parameters(), clip, norm))
        steps.step()
    return [x.item() for x in losses], {name: x.numpy().copy() for name, x in model.state_dict().items()}


# ------------------------------------------------------------------ what else two processes do
def numbers(state):
    """Tensors of a state dict as arrays."""
    if isinstance(state, dict):
        return {key: numbers(value) for key, value in state.items()}
    return state.numpy().copy() if isinstance(state, torch.Tensor) else state


def one_step(model, steps, rank, size, step=0):
    loss_of(model, *batch(step, rank, size)).backward()
    steps.step()
    steps.zero_grad()


def states(rank, size):
    """State dicts of every type, loaded into other models, which go on in the same way."""
    make = lambda seed: FSDP(models.filled(Language(depth=2), torch.float64) if seed else Language(depth=2).double(),
                             auto_wrap_policy=BLOCKS, device_id="cpu")
    model, out = make(1), []
    steps = adamw(model.parameters())
    one_step(model, steps, rank, size)
    configs = [(FULL, None, fsdp.FullOptimStateDictConfig(rank0_only=False)), (SHARDED,), (LOCAL,)]
    kept = []
    for config in configs:
        with FSDP.state_dict_type(model, *config):
            assert FSDP.get_state_dict_type(model).state_dict_type is config[0]
            state, of_steps = model.state_dict(), FSDP.optim_state_dict(model, steps)
        kept.append(copy.deepcopy((dict(state), of_steps)))              # which share memory with the model
        kinds = [type(x).__name__ for x in state.values()]
        out.append([list(state), kinds, list(of_steps["state"]), of_steps["param_groups"][0]["params"]])
    full, of_steps = kept[0]
    out.append((numbers(full), numbers(of_steps["state"])))
    with FSDP.state_dict_type(model, FULL, fsdp.FullStateDictConfig(True, True), fsdp.FullOptimStateDictConfig(True, True)):
        alone = FSDP.optim_state_dict(model, steps)
        out.append((list(model.state_dict()), list(alone)))
    one_step(model, steps, rank, size, 1)
    return out, numbers(model.state_dict()), loaded(make, configs, kept, alone, rank, size)


def loaded(make, configs, kept, alone, rank, size):
    """State dicts of models of other numbers that have loaded those, and made a step."""
    after, whole = [], by_name.StateDictOptions(full_state_dict=True)
    full, of_steps = kept[0]
    for config in [*configs, "from one rank", "by names"]:
        model = make(0)
        steps = adamw(model.parameters())
        if config == "by names":
            by_name.set_state_dict(model, steps, model_state_dict=full, optim_state_dict=of_steps, options=whole)
        elif config == "from one rank":
            model.load_state_dict(full)
            steps.load_state_dict(FSDP.scatter_full_optim_state_dict(alone or None, model, optim=steps))
        else:
            state, of_optimizer = kept[len(after)]
            with FSDP.state_dict_type(model, *config):
                assert str(model.load_state_dict(state)) == "<All keys matched successfully>"
                steps.load_state_dict(FSDP.optim_state_dict_to_load(model, steps, of_optimizer))
        one_step(model, steps, rank, size, 1)
        after.append(numbers(model.state_dict()))
    assert list(numbers(by_name.get_model_state_dict(model, options=whole))) == list(after[-1])
    assert FSDP.get_state_dict_type(model).state_dict_type is FULL
    return after


def summoned(rank, size):
    """Whole parameters, changed, with gradients; those of rank 0 alone; ignored ones; what rank 0 has, in all."""
    out, module = [], models.filled(nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 3), nn.BatchNorm1d(3)), torch.float64)
    with torch.no_grad():
        module[0].weight += rank
        module[2].running_mean += rank
    model = FSDP(module, ignored_modules=[module[1]], sync_module_states=True, device_id="cpu")
    model(torch.full((4, 3), 1.0 + rank, dtype=torch.float64)).sum().backward()
    own = {name: p.grad.full_tensor().numpy() for name, p in model.named_parameters() if "1." not in name}
    with FSDP.summon_full_params(model, with_grads=True):
        out.append({name: (type(p).__name__, p.detach().numpy().copy()) for name, p in model.named_parameters()})
        assert all(np.array_equal(p.grad.numpy(), own["_fsdp_wrapped_module." + name])
                   for name, p in model.named_parameters() if name[0] != "1")
        with torch.no_grad():
            model[0].weight.copy_(torch.arange(15.0).view(5, 3))
            model[0].bias.grad.fill_(7)
    assert isinstance(model[0].bias, torch.distributed.tensor.DTensor)
    out.append((model[0].weight.full_tensor().detach().numpy(), model[0].bias.grad.full_tensor().numpy()))
    with FSDP.summon_full_params(model, writeback=False):
        model[0].weight.data.zero_()
    with FSDP.summon_full_params(model, writeback=False, rank0_only=True, offload_to_cpu=True):
        out.append([type(p).__name__ for p in model.parameters()])
    model.apply(lambda m: m.weight.data.mul_(2) if m is module[0] else None)
    out.append((model[0].weight.full_tensor().detach().numpy(), module[2].running_mean.numpy().copy()))
    return out


def scaled(rank, size):
    """An infinity in the gradients of one rank: no rank steps."""
    model, out = FSDP(nn.Linear(2, 2), device_id="cpu"), []
    steps, scaler = torch.optim.SGD(model.parameters(), lr=1.0), ShardedGradScaler("cpu", init_scale=4.0)
    for value in (float("inf"), 1.0):
        before = model.module.weight.to_local().clone()
        scaler.scale(model(torch.ones(1, 2)).sum()).backward()
        if rank == 1:
            model.module.weight.grad.to_local().fill_(value)
        scaler.step(steps)
        scaler.update()
        steps.zero_grad()
        out.append((torch.equal(before, model.module.weight.to_local()), scaler.get_scale()))
    return out


class Net(nn.Module):
    """Three units' worth of layers, and a buffer."""

    def __init__(self):
        super().__init__()
        self.a, self.mid, self.b = nn.Linear(4, 7), nn.Sequential(nn.Linear(7, 5), nn.GELU(), nn.Linear(5, 7)), nn.Linear(7, 3)
        self.register_buffer("scale", torch.full((3,), 0.5))

    def forward(self, x):
        x = self.a(x).tanh()
        return self.b(x + self.mid(x)) * self.scale


def of_rank_0(rank, size):
    """(loss of this rank, norm of gradients) of three steps in float32 and with mixed precision."""
    out = []
    for precision in (None, fsdp.MixedPrecision(torch.bfloat16, torch.float32, torch.bfloat16), fsdp.MixedPrecision(torch.bfloat16)):
        model = Net()
        with torch.no_grad():
            for k, p in enumerate(model.parameters()):
                p.copy_((((torch.arange(p.numel()).float() * 0.37 + k) % 1.0) - 0.5).reshape(p.shape))
        model = FSDP(model, auto_wrap_policy=ModuleWrapPolicy({nn.Sequential}), mixed_precision=precision, device_id="cpu")
        steps = torch.optim.AdamW(model.parameters(), lr=1e-2, eps=1e-3)
        for step in range(3):
            x = ((torch.arange(32).float() * (0.71 + step)) % 2 - 1).reshape(8, 4)[rank::size]
            steps.zero_grad()
            if step == 1:
                with model.no_sync():
                    model(x + 0.25).float().square().mean().backward()
            loss = model(x).float().square().mean()
            loss.backward()
            out.append((loss.item(), model.clip_grad_norm_(0.05).item()))
            steps.step()
    return out


def all_of_it(rank, size):
    warnings.simplefilter("ignore")
    trained = [train(make, rank, size, **options) for make, options in WAYS]
    return trained, states(rank, size), summoned(rank, size), scaled(rank, size), of_rank_0(rank, size)


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    return world(all_of_it, 2, tmp_path_factory.mktemp("fsdp1"))


OURS = {"optimizer", "clip", "norm", "accumulates"}


@pytest.mark.parametrize("k", range(len(WAYS)))
def test_ranks_train_as_one_process(ranks, k):
    make, options = WAYS[k]
    losses, parameters = train(make, 0, 1, **{name: value for name, value in options.items() if name in OURS})
    for rank in ranks:
        np.testing.assert_allclose(rank[0][k][0], losses, rtol=1e-12)
        assert list(rank[0][k][1]) == list(parameters)
        for name, wanted in parameters.items():
            np.testing.assert_allclose(rank[0][k][1][name], wanted, rtol=1e-11, atol=1e-12, err_msg=name)


def test_state_dicts(ranks):
    model = models.filled(Language(depth=2), torch.float64)
    names, steps = [name for name, _ in model.named_parameters()], adamw(model.parameters())
    one_step(model, steps, 0, 1)
    of_steps = {names[k]: numbers(value) for k, value in steps.state_dict()["state"].items()}
    for number, rank in enumerate(ranks):
        (full, sharded, local, values, alone), wanted, after = rank[1]
        for found, kind in ((full, "Tensor"), (sharded, "DTensor"), (local, "Tensor")):
            assert found == [list(model.state_dict()), [kind] * len(names), names, names]
        for name, x in model.state_dict().items():
            np.testing.assert_allclose(values[0][name], x.numpy(), rtol=1e-12, atol=1e-12)
            for key, of_it in of_steps[name].items():
                np.testing.assert_allclose(values[1][name][key], of_it, rtol=1e-10, atol=1e-14)
        assert alone == ((names, ["state", "param_groups"]) if number == 0 else ([], []))
        for found in after:
            assert list(found) == names and all(np.array_equal(found[name], wanted[name]) for name in names)


def test_whole_parameters(ranks):
    module = models.filled(nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 3), nn.BatchNorm1d(3)), torch.float64)
    line = np.arange(15.0).reshape(5, 3)
    for number, rank in enumerate(ranks):
        first, (weight, grad), kinds, (doubled, mean) = rank[2]
        assert {kind for kind, _ in first.values()} == {"Parameter"}
        assert all(np.array_equal(first[name][1], p.detach().numpy()) for name, p in module.named_parameters())
        assert np.array_equal(weight, line) and grad.tolist() == [7.0] * 5 and np.array_equal(doubled, 2 * line)
        assert (kinds == ["Parameter"] * 6) is (number == 0) and kinds[2:4] == ["Parameter"] * 2
        assert np.isfinite(mean).all()


def test_scaler_of_all_ranks(ranks):
    assert [rank[3] for rank in ranks] == [[(True, 2.0), (False, 2.0)]] * 2


def test_numbers_of_pytorch(ranks):
    """What PyTorch 2.13 gives for the same program, on the CPU with gloo."""
    wanted = [(0.104178, 0.459772), (0.108387, 0.749825), (0.063433, 0.337339),
              (0.104026, 0.460134), (0.108303, 0.748457), (0.063446, 0.337485),
              (0.104026, 0.460193), (0.108303, 0.748385), (0.063446, 0.337431)]
    np.testing.assert_allclose(ranks[0][4][:3], wanted[:3], atol=1e-6)
    np.testing.assert_allclose(ranks[0][4], wanted, rtol=4e-4)           # of bfloat16, gradients add up in no_sync with more digits here


def in_nodes(rank, size):
    """Four ranks as two nodes: by process groups, and by what a launcher says; a model that rank 0 alone has."""
    warnings.simplefilter("ignore")
    shards, replicas = [dist.new_group(ranks) for ranks in ([0, 1], [2, 3])], [dist.new_group(ranks) for ranks in ([0, 2], [1, 3])]
    options = {"auto_wrap_policy": BLOCKS, "clip": 0.1, "accumulates": True}
    out = [train(Language, rank, size, sharding_strategy=ShardingStrategy.HYBRID_SHARD,
                 process_group=(shards[rank // 2], replicas[rank % 2]), **options)]
    os.environ["LOCAL_WORLD_SIZE"] = "2"
    out.append(train(Language, rank, size, sharding_strategy=ShardingStrategy._HYBRID_SHARD_ZERO2, **options))
    with torch.device("meta" if rank else "cpu"):
        model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    fill = None if rank == 0 else lambda module: module.to_empty(device="cpu", recurse=False)
    model = FSDP(model, auto_wrap_policy=ModuleWrapPolicy({nn.Linear}), device_id="cpu", sync_module_states=True, param_init_fn=fill,
                 sharding_strategy=ShardingStrategy.HYBRID_SHARD)
    return out, numbers(dict(model.state_dict()))


def test_nodes(tmp_path):
    first, *others = world(in_nodes, 4, tmp_path)
    losses, parameters = train(Language, 0, 1, clip=0.1, accumulates=True)
    for mine, values in first[0]:
        np.testing.assert_allclose(mine, losses, rtol=1e-11)
        for name, wanted in parameters.items():
            np.testing.assert_allclose(values[name], wanted, rtol=1e-10, atol=1e-12, err_msg=name)
    for rank in others:
        assert all(np.array_equal(rank[1][name], value) for name, value in first[1].items()) and np.isfinite(first[1]["0.weight"]).all()
        assert all(np.array_equal(a[1][name], b[1][name]) for a, b in zip(rank[0], first[0]) for name in parameters)
