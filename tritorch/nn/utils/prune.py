"""Pruning: elements or channels of a parameter are set to 0 by a mask, before every forward pass.

A pruned `weight` is the product of the parameter `weight_orig`, which trains on, and the buffer `weight_mask` of zeros and ones.
"""
import numbers
from abc import ABC, abstractmethod
from collections.abc import Iterable

from tritorch.errors import check
from tritorch.nn.utils.convert_parameters import parameters_to_vector
from tritorch.ops import create, random, statistics

__all__ = ["BasePruningMethod", "CustomFromMask", "Identity", "L1Unstructured", "LnStructured", "PruningContainer", "RandomStructured",
           "RandomUnstructured", "custom_from_mask", "global_unstructured", "identity", "is_pruned", "l1_unstructured", "ln_structured",
           "random_structured", "random_unstructured", "remove"]


class BasePruningMethod(ABC):
    """A way to prune, which is also the hook that does it. Subclasses say by `PRUNING_TYPE` what `compute_mask` sees of a tensor that has
    been pruned before: the elements left ("unstructured"), the channels left along `self.dim` ("structured"), or all of it ("global")."""

    _tensor_name: str
    PRUNING_TYPE = "unstructured"

    def __call__(self, module, inputs):
        setattr(module, self._tensor_name, self.apply_mask(module))

    @abstractmethod
    def compute_mask(self, t, default_mask):
        """A mask of zeros and ones in the shape of t: 0 where `default_mask` is 0 and where this way prunes."""

    def apply_mask(self, module):
        """The parameter, with 0 where it is pruned."""
        name = getattr(self, "_tensor_name", None)
        check(name is not None, type(self).__name__, "a module that it has been applied to", module, error=AssertionError)
        original = getattr(module, name + "_orig")
        return getattr(module, name + "_mask").to(original.dtype) * original

    @classmethod
    def apply(cls, module, name, *args, importance_scores=None, **kwargs):
        """Prune `module.name` this way, beyond what it has been pruned before. `importance_scores`, a tensor of the parameter's shape,
        stands for the parameter where the least important is looked for. Nothing has changed if it fails."""
        before = _pruning_of(module, name)
        method = cls(*args, **kwargs)
        method._tensor_name = name
        now = getattr(module, name)
        scores = now if importance_scores is None else importance_scores
        check(scores.shape == now.shape, cls.__name__, f"importance_scores of the parameter's shape {now.shape}", scores.shape,
              error=AssertionError)
        if before is None:
            mask = method.compute_mask(scores, default_mask=create.ones_like(now))
            del module._parameters[name]
            module.register_parameter(name + "_orig", now)
        else:
            hook = module._forward_pre_hooks[before]
            both = PruningContainer(*(hook if isinstance(hook, PruningContainer) else (hook,)), method)
            mask, method = both.compute_mask(scores, getattr(module, name + "_mask").detach().clone()), both
            del module._forward_pre_hooks[before]
        module.register_buffer(name + "_mask", mask)
        setattr(module, name, method.apply_mask(module))
        module.register_forward_pre_hook(method)
        return method

    def prune(self, t, default_mask=None, importance_scores=None):
        """t with 0 where this way prunes it; t itself does not change."""
        scores = t if importance_scores is None else importance_scores
        check(scores.shape == t.shape, "prune", f"importance_scores of shape {t.shape}", scores.shape, error=AssertionError)
        return t * self.compute_mask(scores, default_mask=create.ones_like(t) if default_mask is None else default_mask)

    def remove(self, module):
        """Make the pruned values the parameter, and drop what was pruned."""
        name = self._tensor_name
        weight = self.apply_mask(module)
        if hasattr(module, name):
            delattr(module, name)
        original = module._parameters.pop(name + "_orig")
        original.data = weight.data
        del module._buffers[name + "_mask"]
        setattr(module, name, original)


def _pruning_of(module, name):
    """The key of the hook that prunes `module.name`, None if there is none."""
    found = [k for k, hook in module._forward_pre_hooks.items() if isinstance(hook, BasePruningMethod) and hook._tensor_name == name]
    check(len(found) < 2, "prune", f"one pruning hook on {name!r}", f"{len(found)} hooks", error=AssertionError)
    return found[0] if found else None


class PruningContainer(BasePruningMethod):
    """Several ways, one after another; only the last one's mask is still to be computed."""

    def __init__(self, *args):
        self._pruning_methods = ()
        if len(args) == 1 and not isinstance(args[0], BasePruningMethod) and isinstance(args[0], Iterable):
            args = tuple(args[0])
        for method in args:
            self.add_pruning_method(method)

    def add_pruning_method(self, method):
        """Add a way for the same parameter; None adds nothing."""
        check(method is None or isinstance(method, BasePruningMethod), "PruningContainer", "a BasePruningMethod", type(method).__name__,
              error=TypeError)
        if method is None:
            return
        name = getattr(self, "_tensor_name", method._tensor_name)
        check(method._tensor_name == name, "PruningContainer", f"a way to prune {name!r}", method._tensor_name, error=ValueError)
        self._tensor_name, self._pruning_methods = name, (*self._pruning_methods, method)

    def __len__(self):
        return len(self._pruning_methods)

    def __iter__(self):
        return iter(self._pruning_methods)

    def __getitem__(self, idx):
        return self._pruning_methods[idx]

    def compute_mask(self, t, default_mask):
        method, mask = self._pruning_methods[-1], default_mask.to(t.dtype)
        seen = _left(method, default_mask)
        mask[seen] = method.compute_mask(t[seen], default_mask=default_mask[seen]).to(mask.dtype)
        return mask


def _left(method, mask):
    """The index of what a way sees of a tensor that has been pruned by the mask."""
    kind = method.PRUNING_TYPE
    if kind == "unstructured":
        return mask == 1
    everything = [slice(None)] * mask.ndim
    if kind == "structured":
        check(hasattr(method, "dim"), type(method).__name__, "an attribute `dim` of a structured way", "none", error=AttributeError)
        check(-mask.ndim <= method.dim < mask.ndim, type(method).__name__, f"a dim of {mask.ndim}", method.dim, error=IndexError)
        dim = method.dim % mask.ndim
        everything[dim] = mask.sum([d for d in range(mask.ndim) if d != dim]) != 0
    else:
        check(kind == "global", type(method).__name__, "a PRUNING_TYPE 'unstructured', 'structured' or 'global'", kind, error=ValueError)
    return tuple(everything)


# ------------------------------------------------------------------ how much
def _check_amount(amount):
    check(isinstance(amount, numbers.Real), "prune", "an int or a float as amount", repr(amount), error=TypeError)
    whole = isinstance(amount, numbers.Integral)
    check(amount >= 0 and (whole or amount <= 1), "prune", "an amount that is a whole number ≥ 0 or a fraction in [0, 1]", amount,
          error=ValueError)


def _count(amount, among):
    """How many of so many: a whole amount itself, else the fraction."""
    if not isinstance(amount, numbers.Integral):
        return round(amount * among)
    check(amount <= among, "prune", f"at most the {among} that there are", amount, error=ValueError)
    return int(amount)


def _channels(t, dim, amount):
    """How many channels there are along a dim, and how many to prune."""
    check(t.ndim > 1, "prune", "a tensor of at least 2 dims for structured pruning", t.shape, error=ValueError)
    check(-t.ndim <= dim < t.ndim, "prune", f"a dim of {t.ndim}", dim, error=IndexError)
    return t.shape[dim], _count(amount, t.shape[dim])


def _along(t, dim, kept):
    """A mask in t's shape of one of channels."""
    shape = [1] * t.ndim
    shape[dim] = -1
    return kept.to(t.dtype).reshape(shape).expand(t.shape)


# ------------------------------------------------------------------ ways
class Identity(BasePruningMethod):
    """Prunes nothing, but makes the mask."""

    def compute_mask(self, t, default_mask):
        return default_mask


class RandomUnstructured(BasePruningMethod):
    """Elements by chance."""

    def __init__(self, amount):
        _check_amount(amount)
        self.amount = amount

    def compute_mask(self, t, default_mask):
        return _without_least(random.rand(t.shape, device=t.device), default_mask, self.amount)


class L1Unstructured(BasePruningMethod):
    """The elements nearest to 0."""

    def __init__(self, amount):
        _check_amount(amount)
        self.amount = amount

    def compute_mask(self, t, default_mask):
        return _without_least(t.detach().abs(), default_mask, self.amount)


def _without_least(scores, default_mask, amount):
    """A copy of the mask with 0 where the scores are least."""
    mask, count = default_mask.clone(), _count(amount, scores.numel())
    if count:
        flat = mask.reshape(-1)
        flat[scores.reshape(-1).topk(count, largest=False).indices] = 0
        mask = flat.reshape(mask.shape)
    return mask


class RandomStructured(BasePruningMethod):
    """Channels along a dim by chance."""

    PRUNING_TYPE = "structured"

    def __init__(self, amount, dim=-1):
        _check_amount(amount)
        self.amount, self.dim = amount, dim

    def compute_mask(self, t, default_mask):
        channels, count = _channels(t, self.dim, self.amount)
        order = random.rand(channels, device=t.device).argsort()
        return default_mask * _along(t, self.dim, create.zeros(channels, device=t.device).index_fill(0, order[count:], 1))


class LnStructured(BasePruningMethod):
    """The channels along a dim whose norm of order n is least."""

    PRUNING_TYPE = "structured"

    def __init__(self, amount, n, dim=-1):
        _check_amount(amount)
        self.amount, self.n, self.dim = amount, n, dim

    def compute_mask(self, t, default_mask):
        channels, count = _channels(t, self.dim, self.amount)
        norms = statistics.norm(t.detach(), p=self.n, dim=[d for d in range(t.ndim) if d != self.dim % t.ndim])
        kept = create.zeros(channels, device=t.device).index_fill(0, norms.topk(channels - count).indices, 1)
        return default_mask * _along(t, self.dim, kept)


class CustomFromMask(BasePruningMethod):
    """Where a given mask is 0."""

    PRUNING_TYPE = "global"

    def __init__(self, mask):
        self.mask = mask

    def compute_mask(self, t, default_mask):
        check(default_mask.shape == self.mask.shape, "CustomFromMask", f"a mask of shape {default_mask.shape}", self.mask.shape,
              error=AssertionError)
        return default_mask * self.mask.to(default_mask.dtype)


# ------------------------------------------------------------------ functions
def identity(module, name):
    """Make `name` of the module pruned by a mask of ones. Returns the module, as all of these."""
    Identity.apply(module, name)
    return module


def random_unstructured(module, name, amount):
    """Prune `amount` elements (a fraction if it is a float) of `module.name` by chance.

    >>> import tritorch as torch; from tritorch.nn.utils import prune
    >>> layer = prune.random_unstructured(torch.nn.Linear(2, 3), "weight", amount=1); int(layer.weight_mask.sum())
    5
    """
    RandomUnstructured.apply(module, name, amount)
    return module


def l1_unstructured(module, name, amount, importance_scores=None):
    """Prune the `amount` elements (a fraction if it is a float) of `module.name` that are nearest to 0.

    >>> import tritorch as torch; from tritorch.nn.utils import prune
    >>> layer = prune.l1_unstructured(torch.nn.Linear(2, 3), "weight", amount=0.5); sorted(layer.state_dict())
    ['bias', 'weight_mask', 'weight_orig']
    """
    L1Unstructured.apply(module, name, amount=amount, importance_scores=importance_scores)
    return module


def random_structured(module, name, amount, dim):
    """Prune `amount` channels of `module.name` along `dim` by chance."""
    RandomStructured.apply(module, name, amount, dim)
    return module


def ln_structured(module, name, amount, n, dim, importance_scores=None):
    """Prune the `amount` channels of `module.name` along `dim` whose norm of order n is least."""
    LnStructured.apply(module, name, amount, n, dim, importance_scores=importance_scores)
    return module


def custom_from_mask(module, name, mask):
    """Prune `module.name` where the mask is 0."""
    CustomFromMask.apply(module, name, mask)
    return module


def global_unstructured(parameters, pruning_method, importance_scores=None, **kwargs):
    """Prune several parameters, pairs (module, name), as if they were one: `pruning_method` is a class of an unstructured way, such as
    L1Unstructured, `kwargs` its arguments, `importance_scores` tensors by such pairs.

    >>> import tritorch as torch; from tritorch.nn.utils import prune
    >>> net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 1))
    >>> prune.global_unstructured([(net[0], "weight"), (net[1], "weight")], prune.L1Unstructured, amount=10)
    >>> int(net[0].weight_mask.sum() + net[1].weight_mask.sum())
    10
    """
    check(isinstance(parameters, Iterable), "global_unstructured", "pairs (module, name)", type(parameters).__name__, error=TypeError)
    scores = {} if importance_scores is None else importance_scores
    check(isinstance(scores, dict), "global_unstructured", "a dict as importance_scores", type(scores).__name__, error=TypeError)
    pairs, method = list(parameters), pruning_method(**kwargs)
    check(method.PRUNING_TYPE == "unstructured", "global_unstructured", "an unstructured way", method.PRUNING_TYPE, error=TypeError)
    method._tensor_name = "all"
    now = [getattr(module, name) for module, name in pairs]
    masks = [getattr(module, name + "_mask", create.ones_like(x)) for (module, name), x in zip(pairs, now)]
    mask = PruningContainer(method).compute_mask(parameters_to_vector([scores.get(p, x) for p, x in zip(pairs, now)]).detach(),
                                                 parameters_to_vector(masks))
    for (module, name), x, part in zip(pairs, now, mask.split([x.numel() for x in now])):
        custom_from_mask(module, name, part.reshape(x.shape))


def remove(module, name):
    """Make the pruned values of `module.name` its parameter: what was pruned stays 0, but trains again."""
    key = _pruning_of(module, name)
    check(key is not None, "remove", f"a module whose {name!r} is pruned", module, error=ValueError)
    module._forward_pre_hooks.pop(key).remove(module)
    return module


def is_pruned(module):
    """Whether a parameter of the module, or of one in it, is pruned."""
    return any(isinstance(hook, BasePruningMethod) for m in module.modules() for hook in m._forward_pre_hooks.values())
