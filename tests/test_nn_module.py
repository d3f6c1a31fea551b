"""Module: registration, state dicts, hooks, copies, conversion, containers."""
import copy
import gc
import pickle
import timeit
import weakref
from collections import OrderedDict

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
    with pytest.raises(TypeError, match=r"cannot assign 'int' as parameter 'scale' \(torch.nn.Parameter or None expected\)"):
        net.scale = 3
    with pytest.raises(TypeError, match="as parameter 'scale'"):
        net.scale = torch.ones(2)
    with pytest.raises(TypeError, match="cannot assign 'int' as child module 'first'"):
        net.first = 3
    with pytest.raises(TypeError, match="cannot assign 'str' as buffer 'count'"):
        net.count = "3"
    with pytest.raises(KeyError, match="attribute 'forward' already exists"):
        net.register_parameter("forward", nn.Parameter(torch.ones(1)))
    with pytest.raises(KeyError, match="buffer name can"):
        net.register_buffer("a.b", torch.ones(1))
    with pytest.raises(KeyError, match="empty string"):
        net.add_module("", nn.Linear(1, 1))
    with pytest.raises(TypeError, match="buffer name should be a string. Got int"):
        net.register_buffer(3, torch.ones(1))
    with pytest.raises(TypeError, match="is not a Module subclass"):
        net.add_module("child", 3)
    with pytest.raises(TypeError, match=r"\(torch.nn.Parameter or None required\)"):
        net.register_parameter("p", torch.ones(1))
    with pytest.raises(ValueError, match="Cannot assign non-leaf Tensor to parameter 'p'"):
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


# ------------------------------------------------------------------ state dicts
def test_state_dict_shares_memory_and_is_detached():
    net = Net()
    state = net.state_dict()
    assert not state["scale"].requires_grad and type(state["scale"]) is torch.Tensor
    state["scale"].fill_(5)
    assert net.scale.tolist() == [5, 5]
    assert net.state_dict(keep_vars=True)["scale"] is net.scale
    assert list(net.first.state_dict(prefix="a.")) == ["a.weight", "a.bias"]
    assert state._metadata[""] == {"version": 1} and "layers.2" in state._metadata


def test_load_copies_values():
    a, b = Net(), Net()
    before = b.scale
    result = b.load_state_dict(a.state_dict())
    assert repr(result) == "<All keys matched successfully>" and result.missing_keys == [] and result.unexpected_keys == []
    assert b.scale is before and all((x == y).all() for x, y in zip(a.parameters(), b.parameters()))
    state = a.state_dict()
    state["extra"] = state.pop("scale")
    result = b.load_state_dict(state, strict=False)
    assert result.missing_keys == ["scale"] and result.unexpected_keys == ["extra"]
    assert repr(result) == "IncompatibleKeys(missing_keys=['scale'], unexpected_keys=['extra'])"


def test_load_says_all_that_is_wrong_and_changes_nothing():
    net, state = Net(), Net().state_dict()
    before = {k: v.clone() for k, v in net.state_dict().items()}
    state["extra"] = state.pop("scale")
    state["layers.0.weight"] = torch.ones(3, 3)
    state["layers.9.weight"] = torch.ones(1)
    state["layers.2.bias"] = "no tensor"
    with pytest.raises(RuntimeError) as error:
        net.load_state_dict(state)
    assert str(error.value) == (
        'Error(s) in loading state_dict for Net:\n\tMissing key(s) in state_dict: "scale". \n\t'
        'Unexpected key(s) in state_dict: "extra", "layers.9.weight". \n\t'
        "size mismatch for layers.0.weight: copying a param with shape tritorch.Size([3, 3]) from checkpoint, the shape in current model "
        "is tritorch.Size([4, 4]).\n\t"
        'While copying the parameter named "layers.2.bias", expected torch.Tensor or Tensor-like object from checkpoint but received '
        "<class 'str'>")
    assert all((v == before[k]).all() for k, v in net.state_dict().items())
    with pytest.raises(RuntimeError, match="size mismatch"):
        net.load_state_dict(state, strict=False)
    assert all((v == before[k]).all() for k, v in net.state_dict().items())
    with pytest.raises(TypeError, match="Expected state_dict to be dict-like"):
        net.load_state_dict([])


def test_load_with_assign():
    net, state = Net(), {k: torch.full(v.shape, 2.0) for k, v in Net().state_dict().items()}
    net.first.weight.requires_grad_(False)
    net.load_state_dict(state, assign=True)
    assert isinstance(net.scale, nn.Parameter) and net.scale.data_ptr() == state["scale"].data_ptr()
    assert net.count is state["count"] and not net.first.weight.requires_grad and net.scale.requires_grad


def test_scalars_saved_with_one_dim_load():
    net = nn.Module()
    net.x = nn.Parameter(torch.tensor(1.0))
    net.load_state_dict({"x": torch.tensor([3.0])})
    assert net.x.item() == 3


def test_extra_state():
    class Extra(nn.Module):
        state = "old"

        def get_extra_state(self):
            return {"state": self.state}

        def set_extra_state(self, state):
            self.state = state["state"]

    net, other = nn.Sequential(Extra()), nn.Sequential(Extra())
    net[0].state = "new"
    saved = net.state_dict()
    assert saved["0._extra_state"] == {"state": "new"}
    other.load_state_dict(saved)
    assert other[0].state == "new"
    with pytest.raises(RuntimeError, match='Missing key.*"0._extra_state"'):
        other.load_state_dict({})
    with pytest.raises(RuntimeError, match='Unexpected key.*"_extra_state"'):
        nn.Linear(1, 1).load_state_dict({**nn.Linear(1, 1).state_dict(), "_extra_state": 3})
    with pytest.raises(RuntimeError, match="Unexpected key"):
        other.load_state_dict({**saved, "x": torch.ones(1)})
    assert other[0].state == "new"


def test_state_dict_hooks():
    net, calls = Net(), []
    net.register_state_dict_pre_hook(lambda module, prefix, keep_vars: calls.append((module, prefix, keep_vars)))
    handle = net.register_state_dict_post_hook(lambda module, state, prefix, meta: state.update(extra=meta["version"]))
    assert net.state_dict()["extra"] == 1 and calls == [(net, "", False)]
    handle.remove()
    assert "extra" not in net.state_dict()
    net._register_state_dict_hook(lambda module, state, prefix, meta: OrderedDict(only=1))
    assert net.state_dict() == {"only": 1}


def test_load_hooks():
    net, calls = nn.Linear(2, 2), []

    def rename(module, state, prefix, meta, strict, missing, unexpected, errors):
        calls.append(module)
        state[prefix + "weight"] = state.pop(prefix + "old")

    net.register_load_state_dict_pre_hook(rename)
    net.register_load_state_dict_post_hook(lambda module, keys: keys.missing_keys.clear())
    state = {"old": torch.ones(2, 2)}
    assert net.load_state_dict(state).missing_keys == [] and calls == [net]
    assert list(state) == ["old"] and net.weight.tolist() == [[1, 1], [1, 1]]
    twin = copy.deepcopy(net)
    twin.load_state_dict(state)
    assert calls[-1] is twin
    net.register_load_state_dict_post_hook(lambda module, keys: "something")
    with pytest.raises(AssertionError, match="not expected to return new values"):
        net.load_state_dict(state)


def test_post_hooks_and_overriding_modules_see_loaded_values():
    class Doubled(nn.Linear):
        def _load_from_state_dict(self, state_dict, prefix, *rest):
            super()._load_from_state_dict(state_dict, prefix, *rest)
            self.seen = self.weight.tolist()

    net, seen = nn.Sequential(Doubled(1, 1), nn.Linear(1, 1)), []
    net.register_load_state_dict_post_hook(lambda module, keys: seen.append(module[1].bias.tolist()))
    net.load_state_dict({"0.weight": torch.tensor([[2.0]]), "0.bias": torch.zeros(1), "1.weight": torch.ones(1, 1),
                         "1.bias": torch.tensor([7.0])})
    assert net[0].seen == [[2.0]] and seen == [[7.0]]
    errors = []
    net[1]._load_from_state_dict({"weight": torch.ones(2, 2), "bias": torch.zeros(1)}, "", {}, True, [], [], errors)
    assert len(errors) == 1 and "size mismatch for weight" in errors[0] and net[1].bias.tolist() == [7.0]


# ------------------------------------------------------------------ modes, conversion, gradients
def test_train_eval_apply_and_zero_grad():
    net, seen = Net(), []
    assert net.eval() is net and not net.layers[0].training and net.train().layers[0].training
    with pytest.raises(ValueError, match="training mode is expected to be boolean"):
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
    with pytest.raises(TypeError, match="only accepts floating point"):
        net.to(torch.int64)
    assert net.to_empty(device="cpu").scale.shape == (2,)


def test_views_of_a_converted_parameter_are_trained():
    net = nn.Linear(2, 1).double()
    net(torch.ones(1, 2, dtype=torch.float64)).sum().backward()
    assert net.weight.grad.tolist() == [[1, 1]] and net.bias.grad.tolist() == [1]


# ------------------------------------------------------------------ hooks
def test_forward_hooks_change_what_passes():
    net, seen = nn.Linear(2, 2), []
    x = torch.ones(1, 2)
    plain = net(x)
    net.register_forward_pre_hook(lambda module, args: (args[0] * 2,))
    handle = net.register_forward_hook(lambda module, args, out: seen.append((args[0].tolist(), out.shape)))
    net(x)
    assert seen == [([[2, 2]], (1, 2))]
    handle.remove()
    with net.register_forward_hook(lambda module, args, out: out * 0):
        assert net(x).tolist() == [[0, 0]]
    assert net(x).shape == plain.shape and len(seen) == 1
    first = net.register_forward_pre_hook(lambda module, args: torch.zeros(1, 2), prepend=True)
    assert (net(x) == net.bias).all()
    first.remove()


def test_hooks_with_kwargs_and_always_call():
    class Scaled(nn.Module):
        def forward(self, x, factor=1):
            if factor is None:
                raise ArithmeticError("no factor")
            return x * factor

    net, seen = Scaled(), []
    pre = net.register_forward_pre_hook(lambda module, args, kwargs: (args, {**kwargs, "factor": 3}), with_kwargs=True)
    net.register_forward_hook(lambda module, args, kwargs, out: seen.append(kwargs), with_kwargs=True)
    assert net(torch.ones(1)).tolist() == [3] and seen == [{"factor": 3}]
    pre.remove()
    net.register_forward_hook(lambda module, args, out: seen.append(out), always_call=True)
    with pytest.raises(ArithmeticError):
        net(torch.ones(1), factor=None)
    assert seen[-1] is None and len(seen) == 2
    net.register_forward_pre_hook(lambda module, args, kwargs: 3, with_kwargs=True)
    with pytest.raises(RuntimeError, match="must return None or a tuple"):
        net(torch.ones(1))


def test_global_hooks():
    from tritorch.nn import hooks

    net, seen = nn.Sequential(nn.Identity(), nn.Identity()), []
    with hooks.register_module_forward_hook(lambda module, args, out: seen.append(type(module).__name__)):
        net(torch.ones(1))
    assert seen == ["Identity", "Identity", "Sequential"]
    with hooks.register_module_forward_pre_hook(lambda module, args: (args[0] + 1,)):
        assert net(torch.ones(1)).tolist() == [4]
    with hooks.register_module_parameter_registration_hook(lambda module, name, p: seen.append(name)):
        nn.Linear(1, 1)
    assert seen[-2:] == ["weight", "bias"] and net(torch.ones(1)).tolist() == [1]


def test_full_backward_hooks():
    net, seen = nn.Linear(2, 1, bias=False), []
    net.register_full_backward_pre_hook(lambda module, grad_output: (grad_output[0] * 10,))
    net.register_full_backward_hook(lambda module, grad_input, grad_output: seen.append((grad_input, grad_output)))
    x = torch.ones(1, 2, requires_grad=True)
    net(x).sum().backward()
    (grad_input, grad_output), = seen
    assert grad_output[0].tolist() == [[10]] and grad_input[0].tolist() == (net.weight * 10).tolist()
    assert net.weight.grad.tolist() == [[10, 10]] and x.grad.tolist() == (net.weight * 10).tolist()
    net.register_full_backward_hook(lambda module, grad_input, grad_output: (grad_input[0] * 0,))
    x.grad = None
    net(x).sum().backward()
    assert x.grad.tolist() == [[0, 0]]
    with pytest.raises(RuntimeError, match="Cannot use both regular backward hooks and full backward hooks"):
        net.register_backward_hook(lambda *a: None)


def test_backward_hooks_without_input_gradients_and_with_several_outputs():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.ones(1))

        def forward(self, x, flag):
            return x * self.w, flag, x * self.w * 2

    net, seen = Two(), []
    net.register_full_backward_hook(lambda module, grad_input, grad_output: seen.append((grad_input, grad_output)))
    a, flag, b = net(torch.ones(1), True)
    b.sum().backward()
    (grad_input, grad_output), = seen
    assert flag is True and grad_input == (None, None) and grad_output[1] is None and grad_output[2].tolist() == [1]
    assert net.w.grad.tolist() == [2]
    net.register_full_backward_hook(lambda module, grad_input, grad_output: (grad_output[0], None))
    with pytest.raises(RuntimeError, match="should always return None"):
        net(torch.ones(1), True)[0].sum().backward()


def test_no_gradients_no_backward_hooks():
    net, seen = nn.Linear(2, 1), []
    net.register_full_backward_hook(lambda *a: seen.append(a))
    with torch.no_grad():
        net(torch.ones(1, 2))
    assert seen == []


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


# ------------------------------------------------------------------ containers
def test_sequential():
    a, b, c = nn.Linear(1, 1), nn.ReLU(), nn.Linear(1, 1)
    net = nn.Sequential(a, b, c)
    assert len(net) == 3 and net[0] is a and net[-1] is c and list(net) == [a, b, c] and list(net[1:]) == [b, c]
    assert isinstance(net[:2], nn.Sequential)
    net[1] = nn.Tanh()
    assert isinstance(net[1], nn.Tanh)
    del net[0]
    assert list(net._modules) == ["0", "1"] and net[1] is c
    net.append(b).extend([a]).insert(0, b)
    assert list(net) == [b, net[1], c, b, a] and list(net._modules) == list("01234")
    assert net.pop(-1) is a and len(net) == 4
    assert len(net + net) == 8 and len(net * 2) == 8 and len(2 * net) == 8
    net *= 2
    net += nn.Sequential(a)
    assert len(net) == 9
    named = nn.Sequential(OrderedDict([("x", a), ("y", b)]))
    assert named.x is a and list(named[1:]._modules) == ["y"] and list(named.state_dict()) == ["x.weight", "x.bias"]
    with pytest.raises(IndexError, match="index 9 is out of range"):
        named[9]
    with pytest.raises(ValueError, match="Non-positive multiplication"):
        net * 0
    with pytest.raises(TypeError, match="unsupported operand"):
        net * 1.5
    with pytest.raises(ValueError, match="Sequential class"):
        net + [a]
    with pytest.raises(TypeError, match="not a Module subclass"):
        nn.Sequential(3)


def test_module_list_and_dict():
    a, b = nn.Linear(1, 1), nn.ReLU()
    layers = nn.ModuleList([a])
    layers.append(b)
    layers.insert(1, nn.Tanh())
    layers += [a]
    assert [type(m).__name__ for m in layers] == ["Linear", "Tanh", "ReLU", "Linear"] and layers[-1] is a
    assert isinstance(layers[1:], nn.ModuleList) and len(layers + [b]) == 5
    del layers[1:3]
    assert list(layers._modules) == ["0", "1"]
    with pytest.raises(TypeError, match="ModuleList.extend should be called with an iterable, but got int"):
        layers.extend(3)
    with pytest.raises(NotImplementedError, match="missing the required \"forward\" function"):
        layers(1)
    table = nn.ModuleDict({"a": a, "b": b})
    assert list(table) == list(table.keys()) == ["a", "b"] and table["a"] is a and "b" in table and len(table) == 2
    table.update([("c", nn.Tanh())])
    table["d"] = b
    assert table.pop("a") is a and list(table) == ["b", "c", "d"] and not hasattr(table, "a")
    del table["b"]
    assert [type(m).__name__ for m in table.values()] == ["Tanh", "ReLU"] and dict(table.items())["d"] is b
    table.clear()
    assert len(table) == 0
    with pytest.raises(ValueError, match="has length 3; 2 is required"):
        table.update([("a", a, b)])
    with pytest.raises(KeyError, match="attribute 'items' already exists"):
        table["items"] = a


def test_parameter_list_and_dict():
    w = nn.ParameterList([torch.ones(2), nn.Parameter(torch.zeros(1))])
    w.append(3).extend([torch.ones(1)])
    assert len(w) == 4 and len(list(w.parameters())) == 3 and w[2] == 3 and list(w[:2]) == [w[0], w[1]] and w[-1] is w[3]
    w[0] = torch.zeros(5)
    assert isinstance(w[0], nn.Parameter) and w[0].shape == (5,)
    with pytest.raises(RuntimeError, match="should not be called"):
        w(1)
    d = nn.ParameterDict({"b": torch.ones(2), "a": torch.zeros(1)})
    assert list(d) == ["a", "b"] and list(reversed(d)) == ["b", "a"] and "a" in d and d.get("c") is None
    assert isinstance(d["a"], nn.Parameter) and len(d) == 2 and dict(d.items())["b"] is d["b"] and d.copy()["a"] is d["a"]
    d.update(OrderedDict(z=torch.ones(1), y=torch.ones(1)))
    assert list(d) == ["a", "b", "z", "y"] and d.popitem()[0] == "y" and d.pop("z").shape == (1,)
    assert list(d | nn.ParameterDict({"q": torch.ones(1)})) == ["a", "b", "q"]
    assert list(d.fromkeys(["k"], torch.ones(1))) == ["k"] and d.setdefault("a") is d["a"]
    assert list(d.state_dict()) == ["a", "b"]
    del d["a"]
    d.clear()
    assert len(d) == 0 and not list(d.parameters())


def test_repr():
    net = nn.Sequential(nn.Linear(2, 3), nn.Sequential(nn.ReLU(), nn.Dropout()), nn.ModuleList([nn.Tanh(), nn.Tanh(), nn.ReLU()]))
    assert repr(net) == """Sequential(
  (0): Linear(in_features=2, out_features=3, bias=True)
  (1): Sequential(
    (0): ReLU()
    (1): Dropout(p=0.5, inplace=False)
  )
  (2): ModuleList(
    (0-1): 2 x Tanh()
    (2): ReLU()
  )
)"""
    assert repr(nn.Module()) == "Module()" and repr(nn.ModuleList()) == "ModuleList()"


def test_a_call_without_hooks_is_cheap():
    net = nn.Identity()
    loops = 20_000

    def cost(fn):
        return min(timeit.repeat(lambda: fn(None), number=loops, repeat=7)) / loops

    assert cost(net) - cost(net.forward) < 1e-6                          # 0.2 µs on an idle machine
