"""Containers, and how modules are shown."""
from collections import OrderedDict

import pytest

import tritorch as torch
from tritorch import nn


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
    with pytest.raises(IndexError, match="expected an index from -2 to 1, got 9"):
        named[9]
    with pytest.raises(ValueError, match="expected n > 0, got 0"):
        net * 0
    with pytest.raises(TypeError, match="expected an int, got float"):
        net * 1.5
    with pytest.raises(ValueError, match="Sequential class"):
        net + [a]
    with pytest.raises(TypeError, match="expected a Module or None, got int"):
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
    with pytest.raises(TypeError, match="expected modules, got int"):
        layers.extend(3)
    with pytest.raises(NotImplementedError, match="expected a method forward, got none"):
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
    with pytest.raises(KeyError, match="which ModuleDict has already"):
        table["items"] = a


def test_parameter_list_and_dict():
    w = nn.ParameterList([torch.ones(2), nn.Parameter(torch.zeros(1))])
    w.append(3).extend([torch.ones(1)])
    assert len(w) == 4 and len(list(w.parameters())) == 3 and w[2] == 3 and list(w[:2]) == [w[0], w[1]] and w[-1] is w[3]
    w[0] = torch.zeros(5)
    assert isinstance(w[0], nn.Parameter) and w[0].shape == (5,)
    with pytest.raises(RuntimeError, match="should not be called"):
        w(1)
    w += [torch.ones(1)]
    assert len(w) == 5 and isinstance(w[-1], nn.Parameter)
    with pytest.raises(TypeError, match="expected several values, got int"):
        w += 3
    d = nn.ParameterDict({"b": torch.ones(2), "a": torch.zeros(1)})
    assert list(d) == ["a", "b"] and list(reversed(d)) == ["b", "a"] and "a" in d and d.get("c") is None
    assert isinstance(d["a"], nn.Parameter) and len(d) == 2 and dict(d.items())["b"] is d["b"] and d.copy()["a"] is d["a"]
    d.update(OrderedDict(z=torch.ones(1), y=torch.ones(1)))
    assert list(d) == ["a", "b", "z", "y"] and d.popitem()[0] == "y" and d.pop("z").shape == (1,)
    assert list(d | nn.ParameterDict({"q": torch.ones(1)})) == ["a", "b", "q"]
    assert list(d.fromkeys(["k"], torch.ones(1))) == ["k"] and d.setdefault("a") is d["a"]
    assert list(d.state_dict()) == ["a", "b"]
    d |= {"c": torch.ones(3)}
    assert isinstance(d["c"], nn.Parameter) and d.setdefault("e", 5) == 5 and list(d.keys()) == ["a", "b", "c", "e"]
    joined = {"z": 1, "b": 2} | d
    assert type(joined) is dict and list(joined) == ["z", "b", "a", "c", "e"] and list(joined.values())[1:] == [d["b"], d["a"], d["c"], 5]
    assert "(c): Parameter containing: [tritorch.float32 of size 3]" in repr(d) and "(e): Object of type: int" in repr(d)
    with pytest.raises(TypeError, match="a str as key, got int"):
        d[3] = torch.ones(1)
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
