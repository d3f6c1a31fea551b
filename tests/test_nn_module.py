"""Module: registration, attributes, modes, conversion, copies."""
import copy
import gc
import pickle
import weakref

import pytest

import tritorch as torch
from tritorch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(3, 4)
        self.layers = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
        self.scale = nn.Parameter(torch.ones(2))
        self.register_buffer("count", torch.zeros(1))
        self.register_buffer("cache", torch.zeros(2), persistent=False)

    def forward(self, x):
        return self.layers(self.first(x).relu()) * self.scale


KEYS = ["scale", "count", "first.weight", "first.bias", "layers.0.weight", "layers.0.bias", "layers.2.weight", "layers.2.bias"]


# ------------------------------------------------------------------ registration
def test_members_are_listed_in_order():
    net = Net()
    assert list(net.state_dict()) == KEYS
    assert [name for name, _ in net.named_parameters()] == [k for k in KEYS if k != "count"]
    assert [name for name, _ in net.named_buffers()] == ["count", "cache"]
    assert [name for name, _ in net.named_modules()] == ["", "first", "layers", "layers.0", "layers.1", "layers.2"]
    assert [name for name, _ in net.named_children()] == ["first", "layers"]
    assert [name for name, _ in net.named_parameters(prefix="net", recurse=False)] == ["net.scale"]
    assert len(list(net.modules())) == 6 and len(list(net.buffers())) == 2 and len(list(net.children())) == 2


def test_shared_members_are_listed_once():
    net = nn.ModuleList([nn.Linear(2, 2)] * 3)
    assert len(list(net.parameters())) == 2
    assert len(list(net.named_parameters(remove_duplicate=False))) == 6
    assert len(list(net.modules())) == 2 and len(list(net.named_modules(remove_duplicate=False))) == 4
    tied = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)])
    tied[1].weight = tied[0].weight
    assert [name for name, _ in tied.named_parameters()] == ["0.weight", "0.bias", "1.bias"]
    assert list(tied.state_dict()) == ["0.weight", "0.bias", "1.weight", "1.bias"]


def test_the_dictionaries_are_authoritative():
    net = nn.Linear(2, 2)
    other = nn.Parameter(torch.ones(2, 2))
    net._parameters["weight"] = other
    assert net.weight is other
    del net._parameters["weight"]
    assert not hasattr(net, "weight")
    net._parameters.update(weight=other)
    assert net.weight is other and net._parameters.pop("weight") is other and not hasattr(net, "weight")
    assert net._parameters.setdefault("weight", other) is other and net.weight is other
    net._parameters |= {"extra": other}
    assert net.extra is other
    assert net._parameters.popitem() == ("extra", other) and not hasattr(net, "extra")
    net._parameters.clear()
    assert not hasattr(net, "bias") and list(net.parameters()) == []
    net._parameters = {"weight": other}
    assert net.weight is other and list(net.parameters()) == [other]
    net.__dict__["weight"] = "shadow"
    assert net.weight == "shadow"
    del net.__dict__["weight"]
    assert net.weight is other


def test_attributes_change_their_kind():
    net = nn.Module()
    net.x = 3
    net.x = nn.Parameter(torch.ones(2))
    assert list(net._parameters) == ["x"]
    net.x = None
    assert net.x is None and list(net._parameters) == ["x"] and list(net.parameters()) == []
    net.x = nn.Linear(1, 1)
    assert not net._parameters and list(net._modules) == ["x"]
    net.x = None
    assert net._modules == {"x": None}
    net.x = nn.Parameter(torch.ones(2))
    assert not net._modules and list(net._parameters) == ["x"]
    del net.x
    assert not hasattr(net, "x") and not net._parameters
    net.x = nn.Buffer(torch.ones(2), persistent=False)
    assert list(net._buffers) == ["x"] and net._non_persistent_buffers_set == {"x"} and not net.state_dict()
    net.x = torch.zeros(2)
    assert list(net._buffers) == ["x"] and net._non_persistent_buffers_set == {"x"}
    del net.x
    assert not net._buffers and not net._non_persistent_buffers_set
    with pytest.raises(AttributeError, match="'Module' object has no attribute 'x'"):
        _ = net.x
    with pytest.raises(AttributeError):
        del net.x


def test_wrong_assignments_are_refused():
    net = Net()
    with pytest.raises(TypeError, match="expected a Parameter or None, got int"):
        net.scale = 3
    with pytest.raises(TypeError, match="parameter 'scale': expected a Parameter or None, got tritorch"):
        net.scale = torch.ones(2)
    with pytest.raises(TypeError, match="expected a Module or None, got int"):
        net.first = 3
    with pytest.raises(TypeError, match="buffer 'count': expected a Tensor or None, got str"):
        net.count = "3"
    with pytest.raises(KeyError, match="which Net has already"):
        net.register_parameter("forward", nn.Parameter(torch.ones(1)))
    with pytest.raises(KeyError, match="name of a buffer: expected one without"):
        net.register_buffer("a.b", torch.ones(1))
    with pytest.raises(KeyError, match="expected one, got ''"):
        net.add_module("", nn.Linear(1, 1))
    with pytest.raises(TypeError, match="name of a buffer: expected a str, got int"):
        net.register_buffer(3, torch.ones(1))
    with pytest.raises(TypeError, match="expected a Module or None, got int"):
        net.add_module("child", 3)
    with pytest.raises(TypeError, match="parameter 'p': expected a Parameter or None, got tritorch"):
        net.register_parameter("p", torch.ones(1))
    with pytest.raises(ValueError, match="expected a leaf, got a tensor computed from others"):
        late = nn.Parameter(torch.ones(1))
        late.node = (torch.ones(1, requires_grad=True) * 2).node
        net.register_parameter("p", late)


def test_members_before_init_are_refused():
    class Late(nn.Module):
        def __init__(self, value):
            self.member = value
            super().__init__()

    for value, what in ((nn.Parameter(torch.ones(1)), "parameters"), (nn.Linear(1, 1), "module")):
        with pytest.raises(AttributeError, match=rf"cannot assign {what} before Module.__init__\(\) call"):
            Late(value)
    with pytest.raises(AttributeError, match="cannot assign buffer before"):
        nn.Module.__new__(nn.Module).register_buffer("b", torch.ones(1))
    assert Late(3).member == 3
    with pytest.raises(TypeError, match="got an unexpected keyword argument 'x'"):
        nn.Module(x=3)


def test_dotted_names():
    net = Net()
    assert net.get_submodule("layers.0") is net.layers[0] and net.get_submodule("") is net
    assert net.get_parameter("layers.2.bias") is net.layers[2].bias
    assert net.get_buffer("cache") is net.cache
    with pytest.raises(AttributeError, match="Sequential has no attribute `7`"):
        net.get_submodule("layers.7")
    with pytest.raises(AttributeError, match="`scale` is not an nn.Module"):
        net.get_submodule("scale")
    with pytest.raises(AttributeError, match="`first` is not an nn.Parameter"):
        net.get_parameter("first")
    with pytest.raises(AttributeError, match="`scale` is not a buffer"):
        net.get_buffer("scale")
    new = nn.Linear(4, 4)
    net.set_submodule("layers.0", new)
    assert net.layers[0] is new
    with pytest.raises(AttributeError, match="has no attribute"):
        net.set_submodule("layers.other", new, strict=True)


def test_a_users_getattr_falls_back_to_ours():
    class Wrapper(nn.Module):
        def __init__(self, module):
            super().__init__()
            self.module = module

        def __getattr__(self, name):
            try:
                return super().__getattr__(name)
            except AttributeError:
                return getattr(self.module, name)

    wrapper = Wrapper(nn.Linear(2, 3))
    assert wrapper.out_features == 3 and wrapper.weight is wrapper.module.weight
    with pytest.raises(AttributeError, match="nothing"):
        _ = wrapper.nothing


def test_dir_shows_members_but_no_numbers():
    names = dir(Net())
    assert {"first", "scale", "count", "forward", "training"} <= set(names)
    assert "0" not in dir(Net().layers) and names == sorted(set(names))


# ------------------------------------------------------------------ modes, conversion, gradients
def test_train_eval_apply_and_zero_grad():
    net, seen = Net(), []
    assert net.eval() is net and not net.layers[0].training and net.train().layers[0].training
    with pytest.raises(ValueError, match="expected True or False, got"):
        net.train("yes")
    assert net.apply(lambda module: seen.append(type(module).__name__)) is net
    assert seen == ["Linear", "Linear", "ReLU", "Linear", "Sequential", "Net"]
    net(torch.ones(1, 3)).sum().backward()
    net.zero_grad(set_to_none=False)
    assert net.scale.grad.tolist() == [0, 0]
    net.zero_grad()
    assert net.scale.grad is None
    assert not any(p.requires_grad for p in net.requires_grad_(False).parameters())


def test_conversion_keeps_the_parameters():
    net = Net()
    net.register_buffer("steps", torch.zeros(1, dtype=torch.int64))
    net(torch.ones(1, 3)).sum().backward()
    before = list(net.parameters())
    assert net.double() is net and all(p is q and p.dtype is torch.float64 for p, q in zip(net.parameters(), before))
    assert net.scale.grad.dtype is torch.float64 and net.count.dtype is torch.float64 and net.steps.dtype is torch.int64
    for name, dtype in (("half", torch.float16), ("bfloat16", torch.bfloat16), ("float", torch.float32)):
        assert getattr(net, name)().scale.dtype is dtype and net.scale.is_leaf and net.scale.requires_grad
    assert net.to(torch.ones(1, dtype=torch.float64)).scale.dtype is torch.float64
    assert net.to("cpu", torch.float32).scale.dtype is torch.float32 and net.cpu() is net
    assert net.to(dtype=torch.float16, non_blocking=True).scale.dtype is torch.float16
    with pytest.raises(TypeError, match="expected a floating or complex dtype, got tritorch"):
        net.to(torch.int64)
    assert net.to_empty(device="cpu").scale.shape == (2,)


def test_a_conversion_that_fails_loses_nothing():
    net = nn.Linear(3, 2)
    net(torch.ones(1, 3)).sum().backward()
    calls = iter(range(9))

    def moved(x):
        if next(calls) == 1:
            raise torch.OutOfMemoryError("full")
        return x.double()

    with pytest.raises(torch.OutOfMemoryError):
        net._apply(moved)
    for p in net.parameters():
        assert p.dtype is torch.float32 and p.grad.dtype is torch.float32 and p.grad.eq(1).all()


def test_views_of_a_converted_parameter_are_trained():
    net = nn.Linear(2, 1).double()
    net(torch.ones(1, 2, dtype=torch.float64)).sum().backward()
    assert net.weight.grad.tolist() == [[1, 1]] and net.bias.grad.tolist() == [1]


# ------------------------------------------------------------------ copies
def test_deepcopy_and_pickle():
    for clone in (copy.deepcopy, lambda net: pickle.loads(pickle.dumps(net))):
        net = Net()
        net.layers[0].weight = net.first.weight = nn.Parameter(torch.ones(4, 4))
        twin = clone(net)
        assert list(twin.state_dict()) == KEYS and isinstance(twin.scale, nn.Parameter) and twin.scale is not net.scale
        assert twin.first.weight is twin.layers[0].weight
        twin._parameters["scale"] = nn.Parameter(torch.zeros(2))
        assert twin.scale.tolist() == [0, 0] and net.scale.tolist() == [1, 1]
        assert twin._non_persistent_buffers_set == {"cache"} and twin.layers[2].out_features == 2
        twin.register_forward_hook(lambda *a: None)
        assert not net._forward_hooks


def test_a_users_getstate():
    class Stateful(nn.Linear):
        def __getstate__(self):
            state = self.__dict__.copy()
            state["note"] = "kept"
            return state

        def __setstate__(self, state):
            self.__dict__.update(state)

    net = copy.deepcopy(Stateful(2, 2))
    assert net.note == "kept" and net.weight is net._parameters["weight"]
    net.weight = nn.Parameter(torch.zeros(2, 2))
    assert net.weight is net._parameters["weight"] and net.weight.tolist() == [[0, 0], [0, 0]]
    del net.weight
    assert not hasattr(net, "weight")


def test_shallow_copy():
    net = nn.Linear(2, 2)
    twin = copy.copy(net)
    assert twin.weight is net.weight
    twin.weight = nn.Parameter(torch.zeros(2, 2))
    assert net.weight is not twin.weight


def test_hooks_survive_copies():
    net = nn.Linear(2, 2)
    net.register_forward_hook(_negated)
    twin = pickle.loads(pickle.dumps(net))
    twin.register_forward_hook(lambda module, args, out: out)
    x = torch.ones(1, 2)
    assert len(twin._forward_hooks) == 2 and (twin(x) == net(x)).all()


def _negated(module, args, out):
    return -out


def test_a_module_dies_by_reference_count():
    gc.disable()
    try:
        net = Net()
        net.register_full_backward_hook(lambda module, grad_input, grad_output: None)
        net(torch.ones(1, 3, requires_grad=True)).sum().backward()
        net.load_state_dict(copy.deepcopy(net).state_dict())
        refs = [weakref.ref(net), weakref.ref(net.scale), weakref.ref(net.layers)]
        del net
        assert [ref() for ref in refs] == [None] * 3
    finally:
        gc.enable()


def test_parameters_and_buffers():
    p = nn.Parameter(torch.ones(2))
    assert p.requires_grad and p.is_leaf and isinstance(p, torch.Tensor) and type(p * 2) is torch.Tensor
    assert not nn.Parameter(torch.ones(2), requires_grad=False).requires_grad and nn.Parameter().shape == (0,)
    assert repr(p).startswith("Parameter containing:\n")
    for clone in (copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))):
        q = clone(p)
        assert type(q) is nn.Parameter and q.requires_grad and q.data_ptr() != p.data_ptr() and q.tolist() == [1, 1]
    made = (torch.ones(2, requires_grad=True) * 2)
    assert nn.Parameter(made).is_leaf


def test_pytorchs_paths_lead_here():
    from tritorch.nn.modules.batchnorm import _BatchNorm
    from tritorch.nn.modules.utils import _pair, _single, _triple

    assert issubclass(nn.BatchNorm2d, _BatchNorm) and nn.modules.conv.Conv2d is nn.Conv2d and nn.modules.Module is nn.Module
    assert (_single(2), _pair(2), _triple((1, 2, 3))) == ((2,), (2, 2), (1, 2, 3))


def test_a_shared_module_is_named_once_or_wherever_it_is():
    shared = nn.BatchNorm1d(2)
    net = nn.Sequential(shared, nn.Sequential(shared))
    for names in lambda **o: net.named_parameters("net", **o), lambda **o: net.named_buffers("net", **o):
        once, everywhere = [[n for n, _ in names(remove_duplicate=r)] for r in (True, False)]
        assert all(n.startswith("net.0.") for n in once)
        assert everywhere == once + [n.replace("net.0.", "net.1.0.") for n in once]
    assert [n for n, _ in net.named_modules()] == ["", "0", "1"]
    assert [n for n, _ in net.named_modules(remove_duplicate=False)] == ["", "0", "1", "1.0"]
    assert len(list(net.children())) == 2 and len(list(nn.Sequential(shared, shared).children())) == 1
    assert len(list(net.buffers())) == 3 and list(net.buffers(recurse=False)) == []


def test_a_buffer_that_was_not_saved_may_be_registered_anew():
    net = nn.Module()
    net.register_buffer("table", torch.ones(1), persistent=False)
    net.register_buffer("table", torch.zeros(1))
    assert list(net.state_dict()) == ["table"]
    net.register_buffer("table", torch.zeros(1), persistent=False)
    assert list(net.state_dict()) == []
