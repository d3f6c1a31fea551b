"""DTensors in worlds of gloo: what they are, how they move, and that operators on them compute what they compute on whole tensors."""
import copy
import itertools
import pickle
import random

import pytest
from worlds import no_gpu, world  # noqa: F401

import tritorch as torch
from tritorch import distributed as dist
from tritorch import nn
from tritorch.dispatch import registry
from tritorch.testing.samples import each_tensor, results, samples_of, tensors_in

pytestmark = pytest.mark.usefixtures("no_gpu")


def refusal(call, kind=RuntimeError):
    with pytest.raises(kind) as caught:
        call()
    return str(caught.value)


# ------------------------------------------------------------------ what they are
def basics(rank, size, path):
    from tritorch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor, init_device_mesh

    mesh, x = init_device_mesh("cpu", (size,)), torch.arange(15.0).view(5, 3)
    d = distribute_tensor(x + rank, mesh, [Shard(0)])                    # values are those of rank 0
    assert torch.equal(d.full_tensor(), x) and d.shape == (5, 3) and d.stride() == (3, 1) and d.is_leaf and not d.requires_grad
    assert torch.equal(d.to_local(), x[:3] if rank == 0 else x[3:]) and d.placements == (Shard(0),) and d.device_mesh is mesh
    assert repr(d).endswith("device_mesh=DeviceMesh((2,), 'cpu', stride=(1,)), placements=(Shard(dim=0),))") and len(d) == 5
    local = DTensor.from_local(torch.full((2, 3), float(rank)), mesh, [Shard(-1)])
    assert local.shape == (2, 6) and local.stride() == (6, 1) and local.placements == (Shard(1),)
    uneven = DTensor.from_local(d.to_local(), mesh, [Shard(0)], shape=(5, 3), stride=(3, 1))
    assert torch.equal(uneven.full_tensor(), x) and (uneven * 2).placements == (Shard(0),)
    parts = DTensor.from_local(torch.tensor([1.0 + rank]), mesh, [Partial("max")])
    assert parts.item() == 2 and float(parts) == 2 and bool(parts) and f"{parts.sum():.1f}" == "2.0"
    same = DTensor.from_local(torch.tensor([1.0 + rank]), mesh, [Replicate()], run_check=True)
    assert same.to_local().item() == 1
    tiny = distribute_tensor(torch.tensor([[7.0]]), mesh, [Shard(0)])    # fewer rows than processes
    assert tiny.to_local().shape == (1 - rank, 1) and (tiny * 3).sum().item() == 21 and (tiny.exp() @ tiny).full_tensor().shape == (1, 1)
    assert "use DTensor.from_local" in refusal(lambda: d + torch.ones(5, 3)) and (d + torch.tensor(1.0)).shape == (5, 3)
    assert "use to_local" in refusal(d.numpy) and "to P(sum)" in refusal(lambda: d.redistribute(placements=[Partial()]))
    assert "a dim of a tensor of 2 dims" in refusal(lambda: DTensor.from_local(x, mesh, [Shard(5)]))
    assert "1 placements" in refusal(lambda: distribute_tensor(x, mesh, [Shard(0), Shard(1)]), ValueError)
    assert "redistribute" in refusal(lambda: distribute_tensor(d, mesh, [Shard(1)]), ValueError)
    with dist.init_device_mesh("cpu", (size,)):
        assert distribute_tensor(x).placements == (Replicate(),)
    copies = [pickle.loads(pickle.dumps(d)), copy.deepcopy(d.requires_grad_()), torch.nn.Parameter(d)]
    torch.save({"d": d, "p": copies[2]}, path / str(rank))               # each process its part
    copies += torch.load(path / str(rank)).values()
    for again in copies:
        assert torch.equal(again.to_local(), d.to_local()) and again.placements == d.placements and again.device_mesh == mesh
    assert copies[1].requires_grad and isinstance(copies[-1], nn.Parameter) and isinstance(copies[-1], DTensor)
    writes(mesh, x, rank)
    gradients(mesh, x, rank)
    training(mesh)
    factories(mesh, rank)


def writes(mesh, x, rank):
    """In place: the placements of what is written stay."""
    from tritorch.distributed.tensor import Partial, Replicate, Shard, distribute_tensor

    for places in ([Shard(0)], [Shard(1)], [Replicate()], [Partial()]):
        a = distribute_tensor(x, mesh, places)
        a.add_(1).mul_(distribute_tensor(x, mesh, [Replicate()])).relu_()
        assert torch.allclose(a.full_tensor(), (x + 1) * x) and a.placements == tuple(places)
        a.copy_(distribute_tensor(x, mesh, [Shard(0)]))
        assert torch.allclose(a.full_tensor(), x)
        a.zero_()
        assert not a.full_tensor().any()
    a = distribute_tensor(x, mesh, [Shard(0)])
    a[:, 1] = 9.0
    a[-1], a[3:, 0] = 7.0, distribute_tensor(torch.tensor([2.0, 3.0]), mesh, [Shard(0)])         # rows of several processes
    assert a.full_tensor()[:, 1].tolist() == [9.0] * 4 + [7.0] and a.full_tensor()[3:, 0].tolist() == [2.0, 3.0]
    assert "its base would not be written" in refusal(lambda: a[0].zero_())
    b = distribute_tensor(torch.zeros(1, 2), mesh, [Shard(0)])           # of which one process has nothing
    b[:, 1] = 5.0
    assert b.full_tensor().tolist() == [[0.0, 5.0]]
    b = a.view(5, 3, 1)                                                  # a view has the memory of its base
    b.zero_()
    assert not a.full_tensor().any() and a._version == b._version
    w = distribute_tensor(x, mesh, [Shard(0)]).requires_grad_()
    y = (w * 2).add_(w)
    y.sum().backward()
    assert (w.grad.full_tensor() == 3).all()
    y = w.exp()
    y.mul_(2)
    assert "modified by an inplace operation" in refusal(lambda: y.sum().backward())
    assert "no view to write in" in refusal(lambda: (w * 1)[:, 0].add_(1))


def gradients(mesh, x, rank):
    """Of what goes to local tensors and comes from them, and of moves."""
    from tritorch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

    t = (x + 1).requires_grad_()
    for places, expect in (([Shard(0)], 2.0), ([Replicate()], 4.0), ([Partial()], 2.0)):
        d = DTensor.from_local(t, mesh, places, shape=None) if places != [Shard(0)] else DTensor.from_local(t, mesh, places)
        (g,) = torch.autograd.grad((d * 2).redistribute(placements=[Replicate()]).to_local(grad_placements=[Partial()]).sum(), t)
        assert (g == (expect if places != [Shard(0)] and places != [Partial()] else 4.0)).all(), (places, g)
    w = distribute_tensor(x, mesh, [Shard(0)]).requires_grad_()
    y = w.redistribute(placements=[Shard(1)]).sin().redistribute(placements=[Replicate()])
    (y * y).full_tensor().sum().backward()
    assert torch.allclose(w.grad.full_tensor(), 2 * x.sin() * x.cos()) and w.grad.placements == (Shard(0),)
    (g,) = torch.autograd.grad((w ** 3).sum(), w, create_graph=True)
    (second,) = torch.autograd.grad(g.sum(), w)
    assert torch.allclose(second.full_tensor(), 6 * x)
    seen = []
    w.register_hook(lambda g: seen.append(type(g)))
    (w[1:3] * 2).sum().backward()
    assert seen == [DTensor] and isinstance(w.grad, DTensor)


def training(mesh):
    """Optimizers, clipping and the norm of gradients, against whole tensors."""
    from tritorch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

    torch.manual_seed(3)
    start, grads = [torch.randn(5, 4), torch.randn(7), torch.randn(1, 3)], [torch.randn(5, 4), torch.randn(7), torch.randn(1, 3)]
    for make in (lambda p: torch.optim.AdamW(p, 0.1), lambda p: torch.optim.SGD(p, 0.1, momentum=0.9), lambda p: torch.optim.Adafactor(p)):
        plain = [nn.Parameter(p.clone()) for p in start]
        spread = [nn.Parameter(distribute_tensor(p, mesh, [place])) for p, place in zip(start, (Shard(0), Shard(0), Replicate()))]
        assert all(isinstance(p, DTensor) and isinstance(p, nn.Parameter) for p in spread)
        steps = make(plain), make(spread)
        for _ in range(2):
            for p, q, g, place in zip(plain, spread, grads, (Shard(1), Partial(), Replicate())):
                p.grad, q.grad = g.clone(), distribute_tensor(g, mesh, [place])
            for kind in (2.0, float("inf")):
                norms = [nn.utils.clip_grad_norm_(params, 0.5, kind) for params in (plain, spread)]
                assert isinstance(norms[1], DTensor) and abs(norms[0].item() - norms[1].full_tensor().item()) < 1e-5
            for step in steps:
                step.step()
        for p, q in zip(plain, spread):
            assert torch.allclose(p, q.full_tensor(), atol=1e-6), type(steps[0])
    state = steps[1].state_dict()
    steps[1].load_state_dict(copy.deepcopy(state))
    params = copy.deepcopy(nn.ParameterList(spread))
    assert isinstance(params[0], DTensor) and isinstance(params[0], nn.Parameter) and params[0].placements == (Shard(0),)
    params.load_state_dict(nn.ParameterList(spread).state_dict())


def factories(mesh, rank):
    from tritorch.distributed.tensor import Replicate, Shard, empty, full, ones, rand, randn, zeros

    assert zeros(3, 2, device_mesh=mesh, placements=[Shard(0)]).to_local().tolist() == [[0.0, 0.0]] * (2 - rank)
    assert ones((2,), device_mesh=mesh).placements == (Replicate(),) and full((2,), 7, device_mesh=mesh).dtype is torch.int64
    assert empty(2, 3, device_mesh=mesh, requires_grad=True).requires_grad
    torch.manual_seed(rank)                                              # the first random numbers on a mesh take the seed of rank 0
    found = [make(5, 3, device_mesh=mesh, placements=[place]).full_tensor() for make in (rand, randn) for place in (Shard(0), Shard(1))]
    torch.manual_seed(0)
    expect = [make(5, 3) for make in (torch.rand, torch.rand, torch.randn, torch.randn)]
    assert all(map(torch.equal, found, expect))
    torch.manual_seed(5)
    x = ones(5, 3, device_mesh=mesh, placements=[Shard(0)])
    y = nn.functional.dropout(x, 0.5), torch.rand_like(x), x.clone().normal_(), torch.bernoulli(x * 0.5)
    torch.manual_seed(5)
    x = torch.ones(5, 3)
    expect = nn.functional.dropout(x, 0.5), torch.rand_like(x), x.clone().normal_(), torch.bernoulli(x * 0.5)
    assert all(torch.equal(a.full_tensor(), b) for a, b in zip(y, expect)) and y[0].placements == y[1].placements == (Shard(0),)


def test_basics(tmp_path):
    world(basics, 2, tmp_path, tmp_path)


# ------------------------------------------------------------------ two mesh dims
def moves(rank, size):
    from tritorch.distributed.tensor import Partial, Replicate, Shard, distribute_tensor, init_device_mesh

    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    places = [Shard(0), Shard(1), Replicate()]
    for rows, olds, news in ((5, [*places, Partial()], places), (1, [Shard(0), Partial("max")], [Shard(0), Replicate()])):
        x = torch.arange(rows * 6.0).view(rows, 6)
        for old in itertools.product(olds, repeat=2):
            d = distribute_tensor(x, mesh, old)
            for new in itertools.product(news, repeat=2):
                moved = d.redistribute(placements=new)
                assert moved.placements == new and torch.equal(moved.full_tensor(), x), (old, new)
    both = distribute_tensor(torch.arange(5.0), mesh, [Shard(0), Shard(0)])
    assert both.to_local().tolist() == [[0.0, 1.0], [2.0], [3.0], [4.0]][rank]
    meshes(mesh, rank)
    return operators(mesh, "add matmul linear mean amax view_as_shape".split(), 4)


def meshes(mesh, rank):
    """Parts, flattened dims, and what they are called."""
    flat = mesh._flatten("all")
    assert mesh["all"] == flat and repr(flat) == "DeviceMesh((all=4), 'cpu', stride=(1,))" and mesh["tp"]._get_root_mesh() is mesh
    assert mesh["dp", "tp"] == mesh and mesh["dp"]["dp"] == mesh["dp"] and mesh["tp"].get_local_rank() == rank % 2
    assert "names among ['dp', 'tp', 'all']" in refusal(lambda: mesh["x"], KeyError)
    assert "names of different dims" in refusal(lambda: mesh["all", "tp"])
    assert "a name that none of" in refusal(lambda: mesh._flatten("dp"), ValueError)
    three = dist.init_device_mesh("cpu", (2, 1, 2), mesh_dim_names=("pp", "dp", "tp"))
    three["dp", "tp"]._flatten("dptp")
    assert repr(three["pp", "dptp"]) == "DeviceMesh((pp=2, dptp=2), 'cpu', stride=(2, 1))"
    x = torch.tensor([1.0 + rank])
    dist.all_reduce(x, group=three["dptp"].get_group())
    assert x.item() == (3 if rank < 2 else 7)
    parts = flat._unflatten(0, (2, 2), ("a", "b"))
    assert repr(parts) == "DeviceMesh((a=2, b=2), 'cpu', stride=(2, 1))" and parts["b"].get_group().ranks == mesh["tp"].get_group().ranks
    assert [m.mesh.tolist() for m in mesh._get_all_submeshes("tp")] == [[0, 1], [2, 3]]


def test_two_mesh_dims(tmp_path):
    assert world(moves, 4, tmp_path)[0] > 20


# ------------------------------------------------------------------ operators
def placements(rng, x, mesh):
    from tritorch.distributed.tensor import Partial, Replicate, Shard

    kinds = [*map(Shard, range(x.ndim)), Replicate()] * 2 + ([Partial()] if x.dtype.has_gradients else [])
    return [rng.choice(kinds) for _ in range(mesh.ndim)]


def close(a, b):
    if not a.dtype.has_gradients:
        return torch.equal(a, b)
    return a.shape == b.shape and torch.allclose(a, b, rtol=1e-6, atol=1e-9, equal_nan=True)


def operators(mesh, names, most):
    """The first samples of operators' cards, placed anyhow, and their gradients, against whole tensors. Returns how many there were."""
    count = 0
    for name in names:
        for k, args in enumerate(itertools.islice(samples_of(registry[name], torch.float64), most)):
            count += operator(registry[name], args, mesh, random.Random(f"{name}{k}"))
    return count


def operator(op, args, mesh, rng):
    from tritorch.distributed.tensor import DTensor, distribute_tensor

    def spread(x):
        return distribute_tensor(x.detach(), mesh, placements(rng, x, mesh), src_data_rank=None).requires_grad_(x.requires_grad)

    whole, mine = results(op(*args)), each_tensor(spread, args)
    found = results(op(*mine))
    what = op.__name__, [(tuple(x.shape), x.placements) for x in tensors_in(mine)]
    assert all(isinstance(x, DTensor) for x in found), what
    assert all(close(a.detach(), b.detach().full_tensor()) for a, b in zip(whole, found)), what
    ways = [(a, b) for a, b in zip(whole, found) if a.requires_grad]
    assert len(ways) == sum(b.requires_grad for b in found), what
    if ways:
        gs = [torch.tensor([rng.gauss(0, 1) for _ in range(a.numel())], dtype=a.dtype).reshape(a.shape) for a, _ in ways]
        there = torch.autograd.grad([a for a, _ in ways], [x for x in tensors_in(args) if x.requires_grad], gs, allow_unused=True)
        here = torch.autograd.grad([b for _, b in ways], [x for x in tensors_in(mine) if x.requires_grad], list(map(spread, gs)),
                                   allow_unused=True)
        for a, b in zip(there, here):
            assert a is b is None or isinstance(b, DTensor) and close(a, b.full_tensor()), what
    return 1


NAMES = """addmm amax attention attention_backward batch_norm_train choose concatenated constant_pad convolution copy_to
    cross_entropy_rows cross_entropy_backward diagonal div_true expand_to feed_forward_layers gather group_norm_rows index_select
    layer_norm_backward layer_norm_rows linear linear_gradients loss_of_all matmul max_pool mean mul nll_rows permute_dims random_dropout
    relu_backward residual_norm rotary_embedding scatter_add select slice_dim softmax sorted_first squeeze_dims sub sum table_rows unfold
    any vector_norm view_as_shape weighted_mean""".split()


def all_operators(rank, size):
    return operators(dist.init_device_mesh("cpu", (size,)), NAMES, 2)


def test_operators(tmp_path):
    assert world(all_operators, 2, tmp_path)[0] > 80


def stream_that_nobody_reads(rank, size):
    """The last residual norm: no gradient comes for the sum of its inputs."""
    from tritorch.distributed.tensor import Replicate, Shard, distribute_tensor

    mesh, op, found = dist.init_device_mesh("cpu", (size,)), registry["residual_norm"], []

    def spread(x):
        made = distribute_tensor(x.detach(), mesh, [Shard(0) if x.ndim > 1 else Replicate()], src_data_rank=None)
        return made.requires_grad_(x.requires_grad)

    args = next(samples_of(op, torch.float64))
    for mine in (args, each_tensor(spread, args)):
        loss = op(*mine)[0].square().sum()
        found.append(torch.autograd.grad(loss, [x for x in tensors_in(mine) if x.requires_grad]))
    return [close(a, b.full_tensor()) for a, b in zip(*found)]


def test_stream_that_nobody_reads(tmp_path):
    assert world(stream_that_nobody_reads, 2, tmp_path)[0] == [True] * 4
