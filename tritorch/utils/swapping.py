"""Two tensors that exchange all they are."""
import copyreg
import sys
import weakref

import numpy as np

from tritorch.errors import check, tensors
from tritorch.tensor import Leaf, Tensor, from_array, swaps

_OWN = [Tensor.__dict__[name] for name in Tensor.__slots__ if name not in ("__dict__", "__weakref__")]
_NAMES, _alone = {*copyreg._slotnames(Tensor)}, Leaf(from_array(np.zeros(1)))
_ALONE = sys.getrefcount(_alone.ref)                                     # what it says of a reference that one attribute holds


def swap_tensors(t1, t2):
    """Exchange the values, classes, attributes and places in the gradient graph of two tensors; who holds one of the objects holds the
    other tensor then.

    A gradient that a graph from before brings goes to the object that has the values now. Raises RuntimeError where somebody holds one
    weakly, or where their classes have other slots.

    >>> import tritorch as torch
    >>> a, b = torch.ones(2), torch.zeros(3); torch.utils.swap_tensors(a, b); a, b
    (tensor([0., 0., 0.]), tensor([1., 1.]))
    """
    tensors("swap_tensors", t1=t1, t2=t2)
    if t1 is t2:
        return
    for name, t in (("t1", t1), ("t2", t2)):
        count = weakref.getweakrefcount(t)
        for leaf in (t.node, t._hooked):                                 # whose reference others share: Python makes one for all
            if type(leaf) is Leaf and sys.getrefcount(leaf.ref) == _ALONE:
                count -= 1
        check(not count, "swap_tensors", f"{name} that nobody holds weakly", f"{count} of its weakrefs")
    slots, others = [{*copyreg._slotnames(type(t))} - _NAMES for t in (t1, t2)]
    check(slots == others, "swap_tensors", "classes of the same slots", type(t1).__name__, type(t2).__name__)
    t1.__class__, t2.__class__ = type(t2), type(t1)
    t1.__dict__, t2.__dict__ = t2.__dict__, t1.__dict__
    for slot in _OWN:
        one, other = slot.__get__(t1), slot.__get__(t2)
        slot.__set__(t1, other)
        slot.__set__(t2, one)
    for name in slots:
        _exchange(t1, t2, name)
    for t in (t1, t2):
        for leaf in (t.node, t._hooked):
            if type(leaf) is Leaf:
                leaf.ref = weakref.ref(t)
    swaps[0] += 1
    swaps[1] += 1


def _exchange(a, b, name):
    """The values of a slot, either of which may be missing."""
    values = [getattr(t, name, swap_tensors) for t in (a, b)]
    for t, value in zip((b, a), values):
        if value is not swap_tensors:
            setattr(t, name, value)
        elif hasattr(t, name):
            delattr(t, name)
