"""Schedules made of schedules, and the one that watches a metric."""
import math
import warnings
from bisect import bisect_right

from tritorch.errors import check, real_numbers
from tritorch.optim.schedule import LRScheduler, check_key, check_optimizer, group_values, one_each, set_group


class _Compound(LRScheduler):
    """What SequentialLR and ChainedScheduler share: their parts are saved with them."""

    def _check_parts(self, optimizer, schedulers):
        name = type(self).__name__
        check(hasattr(schedulers, "__len__"), name, "a list of schedulers", type(schedulers).__name__, error=TypeError)
        check(len(schedulers) > 0, name, "at least one scheduler", "none", error=ValueError)
        for k, s in enumerate(schedulers):
            check(hasattr(s, "optimizer"), name, f"a scheduler at {k}", type(s).__name__, error=TypeError)
            check(not isinstance(s, ReduceLROnPlateau), name, "schedulers that step without a metric", f"ReduceLROnPlateau at {k}",
                  error=ValueError)
            optimizer = optimizer or s.optimizer
            check(s.optimizer is optimizer, name, "schedulers of one optimizer", f"another at {k}", error=ValueError)
        return optimizer

    def state_dict(self):
        """All attributes but the optimizer, and the states of the schedulers."""
        return {**super().state_dict(), "_schedulers": [s.state_dict() for s in self._schedulers]}

    def load_state_dict(self, state_dict):
        check_key(self, state_dict, "_schedulers", len(self._schedulers))
        super().load_state_dict({k: v for k, v in state_dict.items() if k != "_schedulers"})
        for scheduler, state in zip(self._schedulers, state_dict["_schedulers"]):
            scheduler.load_state_dict(state)


class SequentialLR(_Compound):
    """One schedule after the other: number k + 1 takes over, from its start, at step milestones[k].

    >>> import tritorch as torch
    >>> optimizer = torch.optim.SGD([torch.zeros(1)], lr=1.0)
    >>> warm = torch.optim.lr_scheduler.LinearLR(optimizer, 0.5, total_iters=2)
    >>> fall = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    >>> schedule = torch.optim.lr_scheduler.SequentialLR(optimizer, [warm, fall], milestones=[2])
    >>> [optimizer.step() or schedule.step() or round(schedule.get_last_lr()[0], 4) for _ in range(4)]
    [0.75, 1.0, 0.9, 0.81]
    """

    def __init__(self, optimizer, schedulers, milestones, last_epoch=-1):
        self._check_parts(optimizer, schedulers)
        wanted = len(schedulers) - 1
        check(hasattr(milestones, "__len__"), "SequentialLR", "a list of milestones", type(milestones).__name__, error=TypeError)
        check(len(milestones) == wanted, "SequentialLR", f"{wanted} milestones", len(milestones), error=ValueError)
        self._schedulers, self._milestones, self.last_epoch, self.optimizer = schedulers, milestones, last_epoch + 1, optimizer
        for group in optimizer.param_groups:
            set_group(group, "lr", group["initial_lr"])
        _undo(self)
        first = schedulers[bisect_right(milestones, 0)]
        first._initial_step()
        self._last_lr = first.get_last_lr()

    def step(self):
        """Go to the next step."""
        self.last_epoch += 1
        k = bisect_right(self._milestones, self.last_epoch)
        scheduler = self._schedulers[k]
        if k > 0 and self._milestones[k - 1] == self.last_epoch:
            scheduler._update_lr(0)
        else:
            scheduler.step()
        self._last_lr = scheduler.get_last_lr()


def _undo(scheduler):
    """Take back the step that each schedule made when it was made."""
    if hasattr(scheduler, "_schedulers"):
        for s in scheduler._schedulers:
            _undo(s)
    elif hasattr(scheduler, "last_epoch"):
        scheduler.last_epoch -= 1


class ChainedScheduler(_Compound):
    """All schedules at every step, each on the rates of the one before.

    >>> import tritorch as torch
    >>> optimizer = torch.optim.SGD([torch.zeros(1)], lr=1.0)
    >>> warm = torch.optim.lr_scheduler.ConstantLR(optimizer, 0.5, total_iters=2)
    >>> fall = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    >>> schedule = torch.optim.lr_scheduler.ChainedScheduler([warm, fall])
    >>> [optimizer.step() or schedule.step() or round(schedule.get_last_lr()[0], 4) for _ in range(3)]
    [0.45, 0.81, 0.729]
    """

    def __init__(self, schedulers, optimizer=None):
        self.optimizer = self._check_parts(optimizer, schedulers)
        self._schedulers = schedulers
        self._last_lr = group_values(self.optimizer, "lr")

    def step(self):
        """Go to the next step."""
        for scheduler in self._schedulers:
            scheduler.step()
        self._last_lr = group_values(self.optimizer, "lr")


class ReduceLROnPlateau(LRScheduler):
    """Times `factor` when the metric given to `step` has not improved for more than `patience` steps.

    It has improved if it is less ("min") or greater ("max") than the best by `threshold`, relative ("rel") or absolute ("abs"). After
    a cut, `cooldown` steps do not count. No rate falls below `min_lr`; cuts smaller than `eps` are not made.

    >>> import tritorch as torch
    >>> optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    >>> scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=0)
    >>> for loss in (3.0, 2.0, 2.0):
    ...     scheduler.step(loss)
    >>> scheduler.get_last_lr()
    [0.5]
    """

    def __init__(self, optimizer, mode="min", factor=0.1, patience=10, threshold=1e-4, threshold_mode="rel", cooldown=0, min_lr=0,
                 eps=1e-8):
        name = "ReduceLROnPlateau"
        real_numbers(name, factor=factor, patience=patience, threshold=threshold, cooldown=cooldown, eps=eps)
        check(factor < 1.0, name, "factor < 1", factor, error=ValueError)
        check_optimizer(type(self).__name__, optimizer)
        check(mode in ("min", "max"), name, "mode 'min' or 'max'", repr(mode), error=ValueError)
        check(threshold_mode in ("rel", "abs"), name, "threshold_mode 'rel' or 'abs'", repr(threshold_mode), error=ValueError)
        self.optimizer, self.mode, self.factor, self.patience, self.threshold = optimizer, mode, factor, patience, threshold
        self.threshold_mode, self.cooldown, self.eps, self.last_epoch = threshold_mode, cooldown, eps, 0
        self.default_min_lr = None if isinstance(min_lr, (list, tuple)) else min_lr
        self.min_lrs = one_each(name, optimizer, min_lr)
        self._last_lr = group_values(optimizer, "lr")
        self._reset()

    @property
    def mode_worse(self):
        """What every metric is better than."""
        return math.inf if self.mode == "min" else -math.inf

    def _reset(self):
        self.best, self.cooldown_counter, self.num_bad_epochs = self.mode_worse, 0, 0

    @property
    def in_cooldown(self):
        """Whether steps are still left in which no reduction follows the last one."""
        return self.cooldown_counter > 0

    def step(self, metrics, epoch=None):
        """Look at the metric, and cut the rates if it is time."""
        real_numbers("ReduceLROnPlateau", metrics=metrics)
        current = float(metrics)
        if epoch is not None:
            warnings.warn("The epoch parameter in `scheduler.step()` is deprecated.", UserWarning, stacklevel=2)
        self.last_epoch = self.last_epoch + 1 if epoch is None else epoch
        if self._is_better(current, self.best):
            self.best, self.num_bad_epochs = current, 0
        else:
            self.num_bad_epochs += 1
        if self.in_cooldown:
            self.cooldown_counter -= 1
            self.num_bad_epochs = 0
        if self.num_bad_epochs > self.patience:
            self._reduce_lr()
            self.cooldown_counter, self.num_bad_epochs = self.cooldown, 0
        self._last_lr = group_values(self.optimizer, "lr")

    def _reduce_lr(self):
        groups = self.optimizer.param_groups
        if len(groups) != len(self.min_lrs):
            check(self.default_min_lr is not None, "ReduceLROnPlateau", f"min_lrs for {len(groups)} parameter groups", len(self.min_lrs))
            self.min_lrs = [self.default_min_lr] * len(groups)
        for group, least in zip(groups, self.min_lrs):
            old = float(group["lr"])
            new = max(old * self.factor, least)
            if old - new > self.eps:
                set_group(group, "lr", new)

    def _is_better(self, value, best):
        if self.threshold_mode == "rel":
            return value < best * (1.0 - self.threshold) if self.mode == "min" else value > best * (self.threshold + 1.0)
        return value < best - self.threshold if self.mode == "min" else value > best + self.threshold
