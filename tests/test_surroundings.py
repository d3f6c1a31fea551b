"""What programs import beside operators: torch.jit's marks, a world of one process, old types, lists of tensors, special functions."""
import warnings
from collections import deque

import numpy as np
import pytest
from oracle import torch as pytorch

import tritorch as torch
from tritorch import distributed as dist
from tritorch import nn
from tritorch.nn.parallel import DistributedDataParallel


@pytest.fixture
def world():
    dist.init_process_group("gloo", world_size=1, rank=0)
    yield
    dist.destroy_process_group()


def test_marks_of_jit():
    @torch.jit.ignore
    def f(x):
        return x + 1

    @torch.jit.ignore(drop=True)
    def g(x):
        return x + 2

    @torch.jit.script
    class Pair:
        kept: torch.jit.Final[int] = 3

    assert (f(1), g(1), Pair.kept, torch.jit.annotate(int, 4)) == (2, 3, 3, 4)
    assert not torch.jit.is_scripting() and not torch.jit.is_tracing()
    assert torch.jit.unused(f) is torch.jit.export(f) is torch.jit.script_if_tracing(f) is f


def test_every_collective_of_one_process(world):
    x, zeros = torch.tensor([1.0, 2.0], requires_grad=True), lambda: torch.zeros(2)
    assert (dist.get_rank(), dist.get_world_size(), dist.get_backend(), dist.group.WORLD.size()) == (0, 1, "gloo", 1)
    y = x.detach().clone()
    assert dist.all_reduce(y) is None and dist.broadcast(y, src=0, async_op=True).wait() and dist.reduce(y, 0) is None
    assert y.tolist() == [1.0, 2.0]
    makes = [lambda out: dist.all_gather([out], x), lambda out: dist.gather(x, [out]), lambda out: dist.scatter(out, [x]),
             lambda out: dist.all_gather_into_tensor(out.view(1, 2), x), lambda out: dist.reduce_scatter(out, [x]),
             lambda out: dist.reduce_scatter_tensor(out, x, dist.ReduceOp.AVG), lambda out: dist.all_to_all([out], [x]),
             lambda out: dist.all_to_all_single(out, x, async_op=True).get_future().wait()]
    for make in makes:
        out = zeros()
        make(out)
        assert out.tolist() == [1.0, 2.0] and not out.requires_grad
    found = [None]
    dist.all_gather_object(found, {"loss": 1})
    assert found == [{"loss": 1}] and dist.new_group([0]).rank() == 0
    with pytest.raises(ValueError, match="1 tensor"):
        dist.all_gather([zeros(), zeros()], x)
    with pytest.raises(ValueError, match="rank 0"):
        dist.broadcast(y, src=1)
    with pytest.raises(ValueError, match="as many elements"):
        dist.all_gather_into_tensor(torch.zeros(3), x)
    with pytest.raises(ValueError, match="a second call"):
        dist.init_process_group()


def test_no_world_and_larger_worlds(monkeypatch):
    assert dist.is_available() and not dist.is_initialized() and dist.group.WORLD is None
    for call in (dist.get_rank, dist.barrier, lambda: dist.all_reduce(torch.ones(1)), lambda: DistributedDataParallel(nn.Linear(1, 1))):
        with pytest.raises(ValueError, match="init_process_group"):
            call()
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ValueError, match="RANK"):
        dist.init_process_group()


def test_no_tensor_is_spread_over_devices():
    assert not isinstance(torch.zeros(2), dist.tensor.DTensor)
    with pytest.raises(NotImplementedError, match="several processes"):
        dist.tensor.DTensor(torch.zeros(2))


def test_parallel_modules(world):
    inner = nn.Linear(3, 2)
    x = torch.ones(4, 3)
    for model in (nn.DataParallel(inner), DistributedDataParallel(inner, device_ids=None)):
        assert list(model.state_dict()) == ["module.weight", "module.bias"] and torch.equal(model(x), inner(x))
    with model.no_sync():
        assert not model.require_backward_grad_sync
    assert model.require_backward_grad_sync
    assert torch.equal(nn.parallel.data_parallel(inner, x), inner(x))
    with pytest.raises(RuntimeError, match="one device"):
        nn.DataParallel(inner, device_ids=[0, 1])


def test_old_types_on_cuda(cuda):
    x = torch.cuda.FloatTensor([1.0, 2.0])
    assert x.device.type == "cuda" and x.dtype is torch.float32 and torch.cuda.LongTensor(2, 3).shape == (2, 3)
    assert isinstance(x, torch.cuda.FloatTensor) and not isinstance(x, torch.FloatTensor)
    assert x.type() == "tritorch.cuda.FloatTensor" and x.type(torch.LongTensor).type() == "tritorch.LongTensor"
    assert x.cpu().type("torch.cuda.HalfTensor").type() == "tritorch.cuda.HalfTensor"
    assert x.type(torch.float64).type() == "tritorch.cuda.DoubleTensor"
    with pytest.raises(ValueError, match="tensor type"):
        x.type("torch.cuda.OddTensor")


A, B, C = ([np.float32([[1.5, -2.0], [0.5, 3.0]]) * s, np.float32([4.0, -0.25]) * s] for s in (1.0, 0.5, 2.0))
CALLS = [("add", (B,)), ("add", (2.0,)), ("add", ([1.0, 2.0],)), ("sub", (B,)), ("mul", (B,)), ("mul", (0.5,)), ("div", (B,)),
         ("maximum", (B,)), ("maximum", (1.0,)), ("minimum", (0.25,)), ("clamp_min", (0.1,)), ("pow", (2,)), ("lerp", (B, 0.25)),
         ("addcmul", (B, C, 0.5)), ("addcdiv", (B, C, [0.5, 2.0])), ("neg", ()), ("abs", ()), ("sign", ()), ("exp", ())]


@pytest.mark.parametrize("name, args", CALLS, ids=lambda c: c if isinstance(c, str) else "")
def test_lists_of_tensors(name, args):
    def made(lib):
        def lists(a):
            return [lib.from_numpy(x.copy()) for x in a] if isinstance(a, list) and isinstance(a[0], np.ndarray) else a

        fresh, written = getattr(lib, "_foreach_" + name)(lists(A), *map(lists, args)), lists(A)
        assert getattr(lib, f"_foreach_{name}_")(written, *map(lists, args)) is None or lib is pytorch
        return [x.numpy() for x in (*fresh, *written)]

    for ours, theirs in zip(made(torch), made(pytorch), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-6)


def test_the_other_lists_of_tensors():
    x, y = [torch.ones(2), torch.ones(3)], [torch.full((2,), 3.0), torch.full((3,), 4.0)]
    torch._foreach_copy_(x, y)
    assert [n.item() for n in torch._foreach_norm(x, 1)] == [6.0, 12.0] and torch._foreach_pow(2.0, x)[1].tolist() == [16.0] * 3
    torch._foreach_zero_(x)
    assert not any(t.any() for t in x)
    with pytest.raises(ValueError):
        torch._foreach_add(x, y[:1])


@pytest.mark.parametrize("name", ["entr", "ndtr", "expit", "gammaln", "psi", "expm1", "erf", "exp2", "log1p", "sinc", "digamma"])
def test_special_functions(name):
    x = np.float32([0.0, 0.25, 1.0, 2.5, 7.0, np.nan, np.inf] + [-1.5] * (name not in ("gammaln", "psi", "digamma")))
    ours, theirs = [getattr(lib.special, name)(lib.from_numpy(x)).numpy() for lib in (torch, pytorch)]
    np.testing.assert_allclose(ours, theirs, rtol=3e-6, atol=3e-7)


def test_functions_that_write_into_their_argument():
    x = torch.tensor([-1.0, 2.0])
    for write, want in ((torch.zero_, [0, 0]), (lambda y: torch.fill_(y, 2), [2, 2]), (lambda y: torch.threshold_(y, 3.0, 5.0), [5, 5]),
                        (lambda y: torch.index_put_(y, (torch.tensor([1]),), torch.tensor(7.0)), [1, 7])):
        y = torch.ones(2)
        assert write(y) is y and y.tolist() == want
    assert torch.relu_(x) is x and torch.exp_(x).tolist() == pytest.approx([1.0, 7.389056])


MAKES = ["torch.zeros(size=(2, 3))", "torch.ones(size=[2, 3], dtype=torch.int32)", "torch.empty(size=(2, 3)).fill_(1)",
         "torch.rand(size=(2,)) * 0", "torch.randn(size=(2,)) * 0", "x.new_zeros(size=(3,))", "x.new_ones(size=(3,))",
         "x.view(size=(6, 4))", "x.new_empty(size=(2,)).zero_()", "x.reshape(shape=(4, 6))", "x.permute(dims=(2, 0, 1))",
         "y.expand(size=(5, 2, 3))", "x.flip(dims=(0, 2))", "y.repeat(repeats=(2, 1))", "x.split(split_size=2, dim=1)[1]",
         "x.split(split_size=[1, 2], dim=1)[1]", "torch.cat((x, x), axis=1)", "torch.stack((y, y), axis=-1)",
         "x.sum(axis=1, keepdims=True)", "x.mean(axis=-1)", "x.max(axis=1, keepdims=True)[0]", "x.min(axis=2)[1]", "x.argmax(axis=1)",
         "torch.softmax(x, axis=1)", "x.cumsum(axis=0)", "x.unbind(axis=1)[2]", "x.std(axis=1, keepdims=True)", "x.var(axis=(0, 1))",
         "x.chunk(2, axis=-1)[1]", "torch.topk(x, 2, axis=1)[0]", "x.squeeze(axis=0)", "x.sort(axis=-1)[0]",
         "x.narrow(axis=1, start=1, length=2)", "x.median(axis=1, keepdims=True)[0]", "y.scatter_(axis=0, index=y.long() * 0, value=5)",
         "torch.addcmul(y, 0.5, y, y)", "y.clone().addcdiv_(-0.5, y, y + 9)", "torch.spmm(y, y.t())", "torch.Tensor([1, 2])",
         "torch.tensor(deque([1.5, y[0, 0]]))",
         "torch.Tensor(y)", "torch.Tensor(2, 3).zero_()", "torch.Tensor()", "torch.Tensor(torch.Size((2, 1))).zero_()",
         "y.new(torch.Size(())).fill_(3)", "y.new([1, 2])", "y.long().new(2, 3).zero_()",
         "torch.autograd.Variable(y)", "torch.nn.Parameter(torch.Tensor(2).fill_(3))"]


@pytest.mark.parametrize("program", MAKES)
def test_other_ways_to_say_it(program):
    values = np.arange(24, dtype=np.float32).reshape(2, 3, 4) ** 2 % 7
    ours, theirs = [eval(program, {"torch": lib, "deque": deque, "x": lib.from_numpy(values.copy()),
                                 "y": lib.from_numpy(values[..., 1].copy())})
                    for lib in (torch, pytorch)]
    np.testing.assert_allclose(ours.detach().numpy(), theirs.detach().numpy(), rtol=1e-6)
    assert str(ours.dtype) == "tri" + str(theirs.dtype)


def test_calling_the_class_tensor():
    x = torch.ones(2)
    torch.Tensor(x)[0] = 5                                               # the same memory
    assert x.tolist() == [5.0, 1.0] and type(torch.Tensor(3)) is torch.Tensor

    class Named(torch.Tensor):
        pass

    assert type(Named([1.0])) is Named and isinstance(Named(2, 2), torch.Tensor)
    for wrong in ((1.5,), ([1.0], [2.0]), ("text",)):
        with pytest.raises(TypeError):
            torch.Tensor(*wrong)
    with pytest.raises(TypeError, match="unexpected"):
        torch.ones(2).sum(axes=0)


def test_ranks_of_the_only_process(world):
    assert (dist.get_process_group_ranks(), dist.get_global_rank(dist.group.WORLD, 0), dist.get_group_rank(None, 0)) == ([0], 0, 0)
    with pytest.raises(ValueError, match="a rank from 0 to 0"):
        dist.get_global_rank(None, 1)


def test_safe_globals_are_noted():
    from tritorch.serialization import add_safe_globals, clear_safe_globals, get_safe_globals, safe_globals

    add_safe_globals([deque])
    with safe_globals([deque, nn.Linear]):
        assert get_safe_globals() == [deque, nn.Linear]
    assert get_safe_globals() == [deque]
    clear_safe_globals()
    assert get_safe_globals() == []


def test_older_names_of_autocast():
    assert torch.get_autocast_cpu_dtype() is torch.bfloat16 and torch.get_autocast_gpu_dtype() is torch.float16
    with torch.autocast("cpu", dtype=torch.float16):
        assert torch.is_autocast_cpu_enabled() and torch.get_autocast_cpu_dtype() is torch.float16
    assert not torch.is_autocast_cpu_enabled()


def test_lazy_layers_load_what_is_not_known_yet():
    from tritorch.nn.parameter import UninitializedParameter

    for make, x in ((lambda: torch.nn.LazyConv2d(4, 2), torch.ones(1, 3, 4, 4)), (torch.nn.LazyBatchNorm1d, torch.randn(5, 3)),
                    (lambda: torch.nn.Sequential(torch.nn.LazyLinear(2), torch.nn.ReLU()), torch.ones(2, 3))):
        saved, layer = make().state_dict(), make()
        assert any(isinstance(value, UninitializedParameter) for value in saved.values())
        layer.load_state_dict(saved)
        out = layer(x)
        later = make()
        later.load_state_dict(layer.state_dict())
        assert torch.equal(later.eval()(x), layer.eval()(x)) and out.shape == layer(x).shape
    with pytest.raises(RuntimeError, match="size mismatch for weight"):
        torch.nn.Linear(3, 2).load_state_dict(torch.nn.LazyLinear(2).state_dict())


def test_parameters_of_lazy_layers_are_known():
    from tritorch.nn.parameter import UninitializedParameter, is_lazy

    lazy = nn.LazyLinear(3)
    assert isinstance(lazy.weight, UninitializedParameter) and is_lazy(lazy.weight) and not is_lazy(nn.Linear(2, 3).weight)
    for norm in (nn.utils.weight_norm, nn.utils.spectral_norm):
        with warnings.catch_warnings(), pytest.raises(ValueError, match="uninitialized"):
            warnings.simplefilter("ignore", FutureWarning)
            norm(lazy)


@pytest.mark.parametrize("make", [
    lambda n: torch.zeros(n), lambda n: torch.ones((1, n)), lambda n: torch.randn((1, n, 2)), lambda n: torch.rand(n, 2),
    lambda n: torch.randint(0, n, (n,)), lambda n: torch.randperm(n), lambda n: torch.linspace(0, 1, n), lambda n: torch.ones(1).repeat(n),
    lambda n: torch.ones(2).new_zeros(n), lambda n: torch.arange(n), lambda n: torch.ones(9)[:n], lambda n: torch.ones(1).expand(n),
])
def test_a_tensor_of_one_number_is_a_size(cuda, make):
    for device in ("cpu", cuda):
        assert make(torch.tensor([4, 3], device=device)[1]).shape == make(3).shape
