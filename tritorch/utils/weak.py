"""References and dictionaries that keep no tensor alive, and tell tensors apart by what they are, not by their elements.

`==` of tensors compares elements, so that they are no keys of a `weakref.WeakKeyDictionary`; here two keys are one if they are one object.

>>> import tritorch as torch
>>> x, names = torch.ones(2), WeakTensorKeyDictionary()
>>> names[x] = "ones"
>>> names[x], torch.ones(2) in names
('ones', False)
>>> del x
>>> len(names)
0
"""
import copy
import weakref
from collections.abc import Mapping, MutableMapping

from tritorch.errors import check
from tritorch.tensor import Tensor

__all__ = ["TensorWeakRef", "WeakIdKeyDictionary", "WeakIdRef", "WeakTensorKeyDictionary"]


class WeakIdRef(weakref.ref):
    """A weak reference whose hash is the address of the object: equal to another while both objects are there and one, or if they are the
    same reference.

    >>> import tritorch as torch; x = torch.ones(2)
    >>> WeakIdRef(x) == WeakIdRef(x), WeakIdRef(x) == WeakIdRef(torch.ones(2)), WeakIdRef(x)() is x
    (True, False, True)
    """

    __slots__ = ("_id",)

    def __init__(self, key, callback=None):
        super().__init__(key, callback)
        self._id = id(key)

    def __hash__(self):
        return self._id

    def __eq__(self, other):
        mine, its = self(), other()
        return self is other if mine is None or its is None else mine is its     # a new object may have got the old one's address

    def __ne__(self, other):
        return not self == other


class WeakIdKeyDictionary(MutableMapping):
    """A dictionary with weak keys, by identity. An entry goes when its key does; loops are over what there was when they began.

    `ref_type` makes the references that stand for the keys in `data`.
    """

    def __init__(self, dict=None, ref_type=WeakIdRef):
        self.data, self.ref_type, weak_self = {}, ref_type, weakref.ref(self)

        def remove(key):
            owner = weak_self()
            if owner is not None:
                owner.data.pop(key, None)

        self._remove = remove
        self.update(dict or {})

    def __getitem__(self, key):
        return self.data[self.ref_type(key)]

    def __setitem__(self, key, value):
        self.data[self.ref_type(key, self._remove)] = value

    def __delitem__(self, key):
        del self.data[self.ref_type(key)]

    def __contains__(self, key):
        try:
            return self.ref_type(key) in self.data
        except TypeError:                                                # what no weak reference is made to
            return False

    def __iter__(self):
        for ref in list(self.data):
            key = ref()
            if key is not None:
                yield key

    def __len__(self):
        return len(self.data)

    def __repr__(self):
        return f"<{type(self).__name__} at {id(self):#x}>"

    def keys(self):
        """The keys that are still there."""
        return iter(self)

    def values(self):
        """The values of keys that are still there."""
        return (value for _, value in self.items())

    def items(self):
        """(key, value) of keys that are still there."""
        for ref, value in list(self.data.items()):
            key = ref()
            if key is not None:
                yield key, value

    def keyrefs(self):
        """References to the keys, which may go at any time.

        >>> import tritorch as torch; x = torch.ones(2)
        >>> [ref() is x for ref in WeakIdKeyDictionary({x: 1}).keyrefs()]
        [True]
        """
        return list(self.data)

    def copy(self):
        """Another dictionary of the same keys and values."""
        made = type(self)(ref_type=self.ref_type)
        made.data.update((self.ref_type(key, made._remove), value) for key, value in self.items())
        return made

    __copy__ = copy

    def __deepcopy__(self, memo):
        made = type(self)(ref_type=self.ref_type)
        for key, value in self.items():
            made[key] = copy.deepcopy(value, memo)
        return made

    def update(self, dict=None, **named):
        """The entries of a mapping, or pairs, and those named, are set."""
        super().update(dict or {}, **named)

    def __ior__(self, other):
        self.update(other)
        return self

    def __or__(self, other):
        if not isinstance(other, Mapping):
            return NotImplemented
        made = self.copy()
        made.update(other)
        return made

    def __ror__(self, other):
        if not isinstance(other, Mapping):
            return NotImplemented
        made = type(self)(other, self.ref_type)
        made.update(self)
        return made

    def __eq__(self, other):
        if not isinstance(other, Mapping):
            return NotImplemented
        return {id(k): v for k, v in self.items()} == {id(k): v for k, v in other.items()}

    __hash__ = None


WeakTensorKeyDictionary = WeakIdKeyDictionary


class TensorWeakRef:
    """A weak reference to a tensor: called, it gives the tensor, or None once it is gone. AssertionError for another object.

    >>> import tritorch as torch; x = torch.ones(2)
    >>> found = TensorWeakRef(x)
    >>> found() is x
    True
    >>> del x
    >>> print(found())
    None
    """

    def __init__(self, tensor):
        check(isinstance(tensor, Tensor), "TensorWeakRef", "a tensor", type(tensor).__name__, error=AssertionError)
        self.ref = weakref.ref(tensor)

    def __call__(self):
        return self.ref()
