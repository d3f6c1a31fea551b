"""State dicts: saving, loading, what is refused, and their hooks."""
import copy
from collections import OrderedDict

import pytest
from test_nn_module import Net

import tritorch as torch
from tritorch import nn


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


def test_the_version_of_what_is_loaded_is_known():
    net = nn.Sequential(nn.Sequential(nn.BatchNorm1d(2)))
    state = net.state_dict()
    del state["0.0.num_batches_tracked"]
    with pytest.raises(RuntimeError, match='Missing key.*"0.0.num_batches_tracked"'):
        net.load_state_dict(state)
    del state._metadata                                                  # as before version 2, which brought that buffer
    assert repr(net.load_state_dict(state)) == "<All keys matched successfully>"


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
        "size mismatch for layers.0.weight: expected (4, 4), got (3, 3)\n\tlayers.2.bias: expected a tensor, got str")
    assert all((v == before[k]).all() for k, v in net.state_dict().items())
    with pytest.raises(RuntimeError, match="size mismatch"):
        net.load_state_dict(state, strict=False)
    assert all((v == before[k]).all() for k, v in net.state_dict().items())
    with pytest.raises(TypeError, match="load_state_dict: expected a mapping, got list"):
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
    assert saved["0._extra_state"] == {"state": "new"} and nn.modules.module._EXTRA_STATE_KEY_SUFFIX == "_extra_state"
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
    with pytest.raises(AssertionError, match="change the lists of incompatible_keys in place"):
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


def test_what_is_missing_and_what_is_left_over():
    net = nn.Sequential(nn.Linear(1, 1))
    state = net.state_dict()
    assert repr(net.load_state_dict(state)) == "<All keys matched successfully>"
    for changed, missing, unexpected in (({"0.weight": state["0.weight"]}, ["0.bias"], []), ({**state, "1.x": 1}, [], ["1.x"])):
        found = net.load_state_dict(changed, strict=False)
        assert (found.missing_keys, found.unexpected_keys) == (missing, unexpected) and str(missing) in repr(found)
    with pytest.raises(RuntimeError, match="_extra_state"):
        net[0].load_state_dict({**net[0].state_dict(), "_extra_state": 1})


def test_assigned_values_keep_whether_they_are_trained():
    net, bias = nn.Linear(1, 1), torch.ones(1)
    net.weight.requires_grad_(False)
    net.load_state_dict({"weight": torch.zeros(1, 1), "bias": bias}, assign=True)
    assert not net.weight.requires_grad and net.bias.requires_grad and net.bias.data_ptr() == bias.data_ptr()


def test_a_state_dict_by_positional_arguments():
    found = OrderedDict()
    with pytest.warns(FutureWarning, match="use keywords"):
        assert nn.Linear(1, 1).state_dict(found, "net.") is found
    assert list(found) == ["net.weight", "net.bias"]


def test_prefixes_are_taken_off():
    from tritorch.nn.modules.utils import consume_prefix_in_state_dict_if_present as consume

    net = Net()
    state, want = nn.ModuleDict({"module": net}).state_dict(), net.state_dict()
    consume(state, "module.")
    assert list(state) == list(want) and state._metadata.keys() == want._metadata.keys() | {""}
    net.load_state_dict(state)
    consume(state, "first.")
    assert "weight" in state and "layers.0.weight" in state
