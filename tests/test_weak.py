"""Weak references and dictionaries of tensors, and which modules are at work."""
import copy
import gc

import pytest

import tritorch as T
from tritorch.utils.module_tracker import ModuleTracker
from tritorch.utils.weak import TensorWeakRef, WeakIdKeyDictionary, WeakIdRef, WeakTensorKeyDictionary


def test_entries_go_with_their_keys():
    gc.disable()                                                         # reference counts alone have to do it
    try:
        a, b = T.ones(2), T.ones(2)
        found = WeakTensorKeyDictionary({a: "a"})
        found[b] = "b"
        assert found[a] == "a" and found[b] == "b" and len(found) == 2 and 5 not in found and T.ones(2) not in found
        assert [k is x for k, x in zip(found, (a, b))] == [True, True] and list(found.values()) == ["a", "b"]
        for key, _ in found.items():
            del key                                                      # while a loop runs entries may go
            b = None
        assert len(found) == 1 and found.pop(a) == "a" and found.pop(a, None) is None and not found
        with pytest.raises(KeyError):
            found[a]
        dead = WeakIdRef(T.ones(2))
        assert dead() is None and dead == dead and dead != WeakIdRef(a) and hash(WeakIdRef(a)) == id(a)
        seen = TensorWeakRef(a)
        assert seen() is a
        del a
        assert seen() is None
    finally:
        gc.enable()


def test_dictionaries_are_mappings():
    a, b = T.ones(2), T.zeros(2)
    found = WeakIdKeyDictionary({a: [1]})
    other = found | {b: [2]}
    assert len(found) == 1 and len(other) == 2 and other == {a: [1], b: [2]} and {b: [2]} | found == other
    shallow, deep = found.copy(), copy.deepcopy(found)
    assert shallow[a] is found[a] and deep[a] == [1] and deep[a] is not found[a]
    found |= {b: [3]}
    assert found.setdefault(b, 0) == [3] and found.get(T.ones(1)) is None
    assert [r() is x for r, x in zip(found.keyrefs(), (a, b))] == [True, True]
    key, value = other.popitem()
    assert (key is a or key is b) and len(other) == 1
    with pytest.raises(AssertionError, match="a tensor"):
        TensorWeakRef(3)


class Two(T.nn.Module):
    def __init__(self, tell):
        super().__init__()
        self.first, self.then, self.tell = T.nn.Linear(2, 2), T.nn.Sequential(T.nn.Linear(2, 2), T.nn.ReLU()), tell

    def forward(self, x):
        y = self.first(x)
        self.tell("between", y)
        return self.then(y)


def test_modules_at_work_in_both_passes():
    """As PyTorch 2.13 tells it."""
    told, tracker = [], ModuleTracker()

    def tell(name, y):
        told.append((name, sorted(tracker.parents), tracker.is_bw))
        y.register_hook(lambda g: told.append((f"gradient {name}", sorted(tracker.parents), tracker.is_bw)))

    model = Two(tell)
    model.then[0].weight.register_hook(lambda g: told.append(("weight", sorted(tracker.parents), tracker.is_bw)))
    for _ in range(2):
        told.clear()
        with tracker:
            model(T.ones(3, 2, requires_grad=True)).sum().backward()
        assert told == [("between", ["Global", "Two"], False),
                        ("weight", ["Global", "Two", "Two.then", "Two.then.0"], True),
                        ("gradient between", ["Global", "Two", "Two.first", "Two.then", "Two.then.0"], True)]
        assert tracker.parents == {"Global"} and not tracker.is_bw
    assert not tracker._hooks
