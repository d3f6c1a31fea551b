"""Saved tensors that may be written: who writes one has its old values copied first."""
import contextlib
import weakref

from tritorch.autograd.modes import no_grad
from tritorch.autograd.saved import saved_tensors_hooks
from tritorch.dispatch import Interpreter
from tritorch.errors import check

_context = []                                                            # the one that is entered, if any


class _Saved:
    """A saved tensor, as it is or, once its memory was to be written, a copy of it."""

    __slots__ = ("tensor", "copied", "__weakref__")

    def __init__(self, tensor):
        self.tensor, self.copied = tensor, False

    def copy(self):
        if not self.copied:
            with no_grad():
                self.tensor, self.copied = self.tensor.clone(), True


class _Saves(Interpreter):
    """What was saved, by memory; sees all writes."""

    views = False

    def __init__(self):
        self.by_memory, self.by_place = {}, weakref.WeakValueDictionary()

    def pack(self, x):
        memory = x.storage
        place = id(memory.owner), memory.version, x.offset, tuple(x.shape), tuple(x.strides), x.dtype
        found = self.by_place.get(place)
        if found is None:
            found = self.by_place[place] = _Saved(x)
            self.by_memory.setdefault(id(memory.owner), weakref.WeakSet()).add(found)
        return found

    def unpack(self, found):
        if self not in _context:
            raise AssertionError("allow_mutation_on_saved_tensors: expected the backward pass inside of the context in which the graph was "
                                 "recorded, got one outside of it")
        return found.tensor

    def __call__(self, op, args, out):
        written = out if isinstance(out, (tuple, list)) else () if out is None else (out,)
        for k in getattr(op, "writes", ()):                              # of an operator on lists of tensors
            written = (*written, *(args[k] or ()))
        for x in written:
            for found in self.by_memory.pop(id(x.storage.owner), ()):
                found.copy()
        return self.proceed(op, args, out)


@contextlib.contextmanager
def allow_mutation_on_saved_tensors():
    """Inside, tensors that were saved for the gradient may be written in place: the old values are copied first, and the backward pass,
    which has to be inside, too, finds them. Elsewhere it raises AssertionError. Contexts cannot be nested (RuntimeError).

    >>> import tritorch as torch
    >>> with torch.autograd.graph.allow_mutation_on_saved_tensors():
    ...     a = torch.ones(2, requires_grad=True)
    ...     b = a.clone()
    ...     out = (b ** 2).sum()
    ...     _ = b.sin_()
    ...     out.backward()
    >>> a.grad
    tensor([2., 2.])
    """
    check(not _context, "allow_mutation_on_saved_tensors", "contexts that are not nested", "one inside another")
    saves = _Saves()
    with saved_tensors_hooks(saves.pack, saves.unpack), saves:
        _context.append(saves)
        try:
            yield saves
        finally:
            _context.clear()
            saves.by_memory.clear()
            saves.by_place.clear()
