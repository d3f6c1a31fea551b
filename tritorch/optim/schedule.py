"""LRScheduler: what all learning rate schedules share."""
import functools
import types
import warnings

from tritorch.cuda.watching import host_work
from tritorch.errors import NoTensor, check
from tritorch.optim.optimizer import Optimizer
from tritorch.tensor import Tensor


def group_values(optimizer, key):
    """The values of an option in all groups; tensors as copies."""
    return [g[key].clone() if isinstance(g[key], Tensor) else g[key] for g in optimizer.param_groups]


def set_group(group, key, value):
    """Set an option; a tensor keeps its memory, so that a captured step reads the new value."""
    if isinstance(group[key], Tensor):
        group[key].fill_(value)
    else:
        group[key] = value


def one_each(name, optimizer, values):
    """A list of one value for each group, from such a list or from one number."""
    check_optimizer(name, optimizer)
    count = len(optimizer.param_groups)
    values = list(values) if isinstance(values, (list, tuple)) else [values] * count
    check(len(values) == count, name, f"{count} values, one for each parameter group", len(values), error=ValueError)
    return values


def function_state(function):
    """What a state dict keeps of a user's function: the attributes of a callable object, nothing of a plain function."""
    return None if function is None or isinstance(function, types.FunctionType) else function.__dict__.copy()


class LRScheduler:
    """Base of the schedules: subclasses give `get_lr()`, the rates of all groups at step `last_epoch`.

    The schedule sets the rates when it is made and at each `step()`, to be called after the optimizer's. `last_epoch` is -1, or, to
    go on from a checkpoint, the last step that was made. The rates that groups had at first are in `base_lrs`.

    >>> import tritorch as torch
    >>> w = torch.zeros(1, requires_grad=True)
    >>> optimizer = torch.optim.SGD([w], lr=1.0)
    >>> scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.5)
    >>> for _ in range(3):
    ...     optimizer.step()
    ...     scheduler.step()
    ...     print(scheduler.get_last_lr())
    [1.0]
    [0.5]
    [0.5]
    """

    _is_initial = False

    def __init_subclass__(cls, **options):
        super().__init_subclass__(**options)
        if "__init__" in cls.__dict__:
            cls.__init__ = _whole(cls.__dict__["__init__"])

    def __init__(self, optimizer, last_epoch=-1):
        check_optimizer(type(self).__name__, optimizer)
        self.optimizer = optimizer
        for k, (group, lr) in enumerate(zip(optimizer.param_groups, group_values(optimizer, "lr"))):
            if last_epoch == -1:
                group.setdefault("initial_lr", lr)
            check("initial_lr" in group, type(self).__name__, f"initial_lr in parameter group {k} for last_epoch ≥ 0", "none",
                  use="the optimizer's saved state", error=KeyError)
        self.base_lrs = group_values(optimizer, "initial_lr")
        self.last_epoch = last_epoch
        self._initial_step()

    def _initial_step(self):
        self._step_count = 0
        self._is_initial = True
        try:
            self.step()
        finally:
            self._is_initial = False

    def state_dict(self):
        """All attributes but the optimizer."""
        return {name: value for name, value in self.__dict__.items() if name != "optimizer"}

    def load_state_dict(self, state_dict):
        """Take over what `state_dict` returned."""
        check(isinstance(state_dict, dict), f"{type(self).__name__}.load_state_dict", "a dict", type(state_dict).__name__, error=TypeError)
        self.__dict__.update(state_dict)

    def get_last_lr(self):
        """The rates that were set last, one for each group."""
        return self._last_lr

    def get_lr(self):
        """The rates at step `last_epoch`, given those before."""
        raise NotImplementedError(f"{type(self).__name__}: expected a method get_lr in the subclass")

    def step(self, epoch=None):
        """Go to the next step. (To an `epoch` of your own: deprecated, as in PyTorch.)"""
        if self._step_count == 1 and not self.optimizer._opt_called:
            warnings.warn("lr_scheduler.step() came before optimizer.step(): the first learning rate was never used", UserWarning,
                          stacklevel=2)
        was = self._step_count, self.last_epoch
        self._step_count += 1
        if epoch is not None:
            warnings.warn("The epoch parameter in `scheduler.step()` is deprecated.", UserWarning, stacklevel=2)
        try:
            self._update_lr(epoch)
        except BaseException:                                            # a step that raised an error was none
            self._step_count, self.last_epoch = was
            raise

    def _update_lr(self, epoch=None):
        self.last_epoch = self.last_epoch + 1 if epoch is None else epoch
        closed = None if epoch is None else getattr(self, "_get_closed_form_lr", None)
        self._set_lrs(closed() if closed else self.get_lr())

    def _set_lrs(self, rates):
        host_work("learning rates that the host computes")
        for group, lr in zip(self.optimizer.param_groups, rates):
            set_group(group, "lr", lr)
        self._last_lr = group_values(self.optimizer, "lr")

    def _unchanged(self):
        return group_values(self.optimizer, "lr")

    def _scaled(self, factor):
        return [group["lr"] * factor for group in self.optimizer.param_groups]


def _whole(init):
    """`init`, a schedule's constructor: where it raises an error, the optimizers that it was given have the options that they had."""
    @functools.wraps(init)
    def wrapped(self, *args, **kwargs):
        groups = [g for o in (*args, *kwargs.values()) if isinstance(o, Optimizer) for g in o.param_groups]
        before = [(g, dict(g), {k: v.clone() for k, v in g.items() if isinstance(v, Tensor)}) for g in groups]
        try:
            init(self, *args, **kwargs)
        except BaseException:
            for group, options, tensors in before:
                group.clear()
                group.update(options)
                for name, value in tensors.items():
                    group[name].copy_(value)
            raise

    return wrapped


def check_optimizer(name, optimizer):
    """Raise unless a schedule was given an optimizer."""
    check(isinstance(optimizer, Optimizer), name, "an Optimizer", type(optimizer).__name__, error=NoTensor)


def check_key(scheduler, state_dict, key, count):
    """Raise unless a state dict has, under a key, a list of as many as the schedule has."""
    name = f"{type(scheduler).__name__}.load_state_dict"
    check(isinstance(state_dict, dict), name, "a dict", type(state_dict).__name__, error=NoTensor)
    check(key in state_dict, name, f"{key!r} in a state dict", f"the keys {list(state_dict)}", error=KeyError)
    check(len(state_dict[key]) == count, name, f"{count} {key}", len(state_dict[key]), error=ValueError)
