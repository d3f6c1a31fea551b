"""Which modules are at work, in the forward pass and in the backward pass: `ModuleTracker`."""
import logging
import weakref

from tritorch.autograd.engine import queue_callback
from tritorch.autograd.hooks import register_multi_grad_hook
from tritorch.autograd.modes import state
from tritorch.nn.hooks import register_module_forward_hook, register_module_forward_pre_hook
from tritorch.tensor import Tensor
from tritorch.utils._pytree import tree_flatten

__all__ = ["ModuleTracker"]

logger = logging.getLogger(__name__)
EVERYTHING = "Global"


class ModuleTracker:
    """A context in which `parents` is the set of the names of all modules whose forward pass runs, or whose backward pass does.

    The name of the outermost module is that of its class, of the others that and their place in it: "Sequential.0". "Global" is always
    there. `is_bw` tells whether a backward pass runs. A module counts as at work in it from when the gradients of all its outputs are
    there until those of all its inputs are: those without inputs that require gradients, until the end of the pass.

    >>> import tritorch as torch
    >>> model, seen = torch.nn.Sequential(torch.nn.Linear(2, 2)), []
    >>> hook = model[0].register_forward_pre_hook(lambda *_: seen.append(sorted(tracker.parents)))
    >>> with ModuleTracker() as tracker:
    ...     y = model(torch.ones(2))
    >>> seen, tracker.parents
    ([['Global', 'Sequential', 'Sequential.0']], {'Global'})
    """

    def __init__(self):
        self.parents = {EVERYTHING}
        self._names, self._seen = weakref.WeakKeyDictionary(), weakref.WeakSet()
        self._asked, self._hooks, self._watching = False, [], ()

    def __enter__(self):
        self._watching = register_module_forward_pre_hook(self._enter), register_module_forward_hook(self._leave)
        return self

    def __exit__(self, *exception):
        for hook in (*self._watching, *self._hooks):
            hook.remove()
        self._hooks.clear()

    @property
    def is_bw(self):
        """Whether a backward pass runs on this thread."""
        return state.run is not None

    def _name_of(self, module):
        name = self._names.setdefault(module, type(module).__name__)
        if module not in self._seen:
            for place, child in module.named_children():
                self._names[child] = f"{name}.{place}"
                self._name_of(child)
            self._seen.add(module)
        return name

    def _enter(self, module, inputs):
        name = self._name_of(module)
        self._add(name)
        self._when_there(inputs, lambda *_: self._drop(name))

    def _leave(self, module, inputs, output):
        name = self._name_of(module)
        self._drop(name)
        self._when_there(output, lambda *_: self._add_backward(name))

    def _when_there(self, values, then):
        tensors = [x for x in tree_flatten(values)[0] if isinstance(x, Tensor) and x.requires_grad]
        if tensors:
            self._hooks.append(register_multi_grad_hook(tensors, then))

    def _add(self, name):
        if name in self.parents:
            logger.info("ModuleTracker: %s is entered, which has not been left", name)
        self.parents.add(name)

    def _drop(self, name):
        if name not in self.parents:
            logger.info("ModuleTracker: %s is left, which has not been entered", name)
        self.parents.discard(name)

    def _add_backward(self, name):
        if not self._asked:                                              # at the end of the pass nothing is at work
            queue_callback(self._over)
            self._asked = True
        self._add(name)

    def _over(self):
        self.parents, self._asked = {EVERYTHING}, False
