"""Learning rate schedules. Each works on the current rates, so that several can be chained, in the float arithmetic of torch.optim's."""
import math
from bisect import bisect_right
from collections import Counter

from tritorch.errors import check, real_numbers
from tritorch.optim.compound import ChainedScheduler, ReduceLROnPlateau, SequentialLR
from tritorch.optim.cyclic import CyclicLR, OneCycleLR
from tritorch.optim.schedule import LRScheduler, check_key, function_state, one_each

__all__ = [
    "ChainedScheduler", "ConstantLR", "CosineAnnealingLR", "CosineAnnealingWarmRestarts", "CyclicLR", "ExponentialLR", "LRScheduler",
    "LambdaLR", "LinearLR", "MultiStepLR", "MultiplicativeLR", "OneCycleLR", "PolynomialLR", "ReduceLROnPlateau", "SequentialLR", "StepLR",
]

_LRScheduler = LRScheduler                                               # its name until PyTorch 2.0


class LambdaLR(LRScheduler):
    """The first rate times `lr_lambda(epoch)`; a list gives each group its own function.

    >>> import tritorch as torch
    >>> optimizer = torch.optim.SGD([torch.zeros(1)], lr=1.0)
    >>> schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 3))
    >>> [optimizer.step() or schedule.step() or round(schedule.get_last_lr()[0], 4) for _ in range(4)]
    [0.6667, 1.0, 1.0, 1.0]
    """

    def __init__(self, optimizer, lr_lambda, last_epoch=-1):
        self.lr_lambdas = one_each(type(self).__name__, optimizer, lr_lambda)
        for f in self.lr_lambdas:
            check(callable(f), type(self).__name__, "functions as lr_lambda", type(f).__name__, error=TypeError)
        super().__init__(optimizer, last_epoch)

    def state_dict(self):
        """All attributes but the optimizer; functions only if they are objects with attributes."""
        return {**super().state_dict(), "lr_lambdas": [function_state(f) for f in self.lr_lambdas]}

    def load_state_dict(self, state_dict):
        check_key(self, state_dict, "lr_lambdas", len(self.lr_lambdas))
        super().load_state_dict({k: v for k, v in state_dict.items() if k != "lr_lambdas"})
        for function, state in zip(self.lr_lambdas, state_dict["lr_lambdas"]):
            if state is not None:
                function.__dict__.update(state)

    def get_lr(self):
        return [lr * f(self.last_epoch) for f, lr in zip(self.lr_lambdas, self.base_lrs)]


class MultiplicativeLR(LambdaLR):
    """The last rate times `lr_lambda(epoch)`.

    >>> import tritorch as torch
    >>> optimizer = torch.optim.SGD([torch.zeros(1)], lr=1.0)
    >>> schedule = torch.optim.lr_scheduler.MultiplicativeLR(optimizer, lambda step: 0.9)
    >>> [optimizer.step() or schedule.step() or round(schedule.get_last_lr()[0], 4) for _ in range(4)]
    [0.9, 0.81, 0.729, 0.6561]
    """

    def get_lr(self):
        if self._is_initial:
            return self._unchanged()
        return [group["lr"] * f(self.last_epoch) for f, group in zip(self.lr_lambdas, self.optimizer.param_groups)]


class StepLR(LRScheduler):
    """Times `gamma` every `step_size` steps.

    >>> import tritorch as torch
    >>> optimizer = torch.optim.SGD([torch.zeros(1)], lr=1.0)
    >>> schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2)
    >>> [optimizer.step() or schedule.step() or round(schedule.get_last_lr()[0], 4) for _ in range(4)]
    [1.0, 0.1, 0.1, 0.01]
    """

    def __init__(self, optimizer, step_size, gamma=0.1, last_epoch=-1):
        real_numbers(type(self).__name__, step_size=step_size, gamma=gamma)
        self.step_size, self.gamma = step_size, gamma
        super().__init__(optimizer, last_epoch)

    def get_lr(self):
        return self._unchanged() if self.last_epoch == 0 or self.last_epoch % self.step_size else self._scaled(self.gamma)

    def _get_closed_form_lr(self):
        return [lr * self.gamma ** (self.last_epoch // self.step_size) for lr in self.base_lrs]


class MultiStepLR(LRScheduler):
    """Times `gamma` at each of the `milestones`.

    >>> import tritorch as torch
    >>> optimizer = torch.optim.SGD([torch.zeros(1)], lr=1.0)
    >>> schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, milestones=[1, 3])
    >>> [optimizer.step() or schedule.step() or round(schedule.get_last_lr()[0], 4) for _ in range(4)]
    [0.1, 0.1, 0.01, 0.01]
    """

    def __init__(self, optimizer, milestones, gamma=0.1, last_epoch=-1):
        real_numbers(type(self).__name__, gamma=gamma)
        self.milestones, self.gamma = Counter(milestones), gamma
        super().__init__(optimizer, last_epoch)

    def get_lr(self):
        if self.last_epoch not in self.milestones:
            return self._unchanged()
        return self._scaled(self.gamma ** self.milestones[self.last_epoch])

    def _get_closed_form_lr(self):
        return [lr * self.gamma ** bisect_right(sorted(self.milestones.elements()), self.last_epoch) for lr in self.base_lrs]


class ConstantLR(LRScheduler):
    """Times `factor` for the first `total_iters` steps.

    >>> import tritorch as torch
    >>> optimizer = torch.optim.SGD([torch.zeros(1)], lr=1.0)
    >>> schedule = torch.optim.lr_scheduler.ConstantLR(optimizer, factor=0.5, total_iters=2)
    >>> [optimizer.step() or schedule.step() or round(schedule.get_last_lr()[0], 4) for _ in range(4)]
    [0.5, 1.0, 1.0, 1.0]
    """

    def __init__(self, optimizer, factor=1.0 / 3, total_iters=5, last_epoch=-1):
        real_numbers(type(self).__name__, factor=factor, total_iters=total_iters)
        check(0 <= factor <= 1, "ConstantLR", "0 ≤ factor ≤ 1", factor, error=ValueError)
        self.factor, self.total_iters = factor, total_iters
        super().__init__(optimizer, last_epoch)

    def get_lr(self):
        if self.last_epoch == 0:
            return self._scaled(self.factor)
        return self._scaled(1.0 / self.factor) if self.last_epoch == self.total_iters else self._unchanged()

    def _get_closed_form_lr(self):
        return [lr * (self.factor + (self.last_epoch >= self.total_iters) * (1 - self.factor)) for lr in self.base_lrs]


class LinearLR(LRScheduler):
    """Times a factor that goes from `start_factor` to `end_factor` in equal steps, `total_iters` of them.

    >>> import tritorch as torch
    >>> optimizer = torch.optim.SGD([torch.zeros(1)], lr=1.0)
    >>> schedule = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=0.25, total_iters=3)
    >>> [optimizer.step() or schedule.step() or round(schedule.get_last_lr()[0], 4) for _ in range(4)]
    [0.5, 0.75, 1.0, 1.0]
    """

    def __init__(self, optimizer, start_factor=1.0 / 3, end_factor=1.0, total_iters=5, last_epoch=-1):
        real_numbers(type(self).__name__, start_factor=start_factor, end_factor=end_factor, total_iters=total_iters)
        check(0 < start_factor <= 1, "LinearLR", "0 < start_factor ≤ 1", start_factor, error=ValueError)
        check(0 <= end_factor <= 1, "LinearLR", "0 ≤ end_factor ≤ 1", end_factor, error=ValueError)
        self.start_factor, self.end_factor, self.total_iters = start_factor, end_factor, total_iters
        super().__init__(optimizer, last_epoch)

    def get_lr(self):
        if self.last_epoch == 0:
            return self._scaled(self.start_factor)
        if self._is_initial or self.last_epoch > self.total_iters:
            return self._unchanged()
        rise = self.end_factor - self.start_factor
        return self._scaled(1.0 + rise / (self.total_iters * self.start_factor + (self.last_epoch - 1) * rise))

    def _get_closed_form_lr(self):
        rise, done = self.end_factor - self.start_factor, min(self.total_iters, self.last_epoch)
        return [lr * (self.start_factor + rise * done / self.total_iters) for lr in self.base_lrs]


class ExponentialLR(LRScheduler):
    """Times `gamma` at every step.

    >>> import tritorch as torch
    >>> optimizer = torch.optim.SGD([torch.zeros(1)], lr=1.0)
    >>> schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.9)
    >>> [optimizer.step() or schedule.step() or round(schedule.get_last_lr()[0], 4) for _ in range(4)]
    [0.9, 0.81, 0.729, 0.6561]
    """

    def __init__(self, optimizer, gamma, last_epoch=-1):
        real_numbers(type(self).__name__, gamma=gamma)
        self.gamma = gamma
        super().__init__(optimizer, last_epoch)

    def get_lr(self):
        return self._unchanged() if self._is_initial else self._scaled(self.gamma)

    def _get_closed_form_lr(self):
        return [lr * self.gamma ** self.last_epoch for lr in self.base_lrs]


class PolynomialLR(LRScheduler):
    """The first rate times (1 − t / total_iters)^power, 0 from `total_iters` on.

    >>> import tritorch as torch
    >>> optimizer = torch.optim.SGD([torch.zeros(1)], lr=1.0)
    >>> schedule = torch.optim.lr_scheduler.PolynomialLR(optimizer, total_iters=4)
    >>> [optimizer.step() or schedule.step() or round(schedule.get_last_lr()[0], 4) for _ in range(4)]
    [0.75, 0.5, 0.25, 0.0]
    """

    def __init__(self, optimizer, total_iters=5, power=1.0, last_epoch=-1):
        real_numbers(type(self).__name__, total_iters=total_iters, power=power)
        self.total_iters, self.power = total_iters, power
        super().__init__(optimizer, last_epoch)

    def get_lr(self):
        if self._is_initial or self.last_epoch > self.total_iters:
            return self._unchanged()
        now, before = [1.0 - t / self.total_iters for t in (self.last_epoch, self.last_epoch - 1)]
        return self._scaled((now / before) ** self.power)

    def _get_closed_form_lr(self):
        left = 1.0 - min(self.total_iters, self.last_epoch) / self.total_iters
        return [lr * left ** self.power for lr in self.base_lrs]


class CosineAnnealingLR(LRScheduler):
    """η ← η_min + (η₀ − η_min) · (1 + cos(π t / T_max)) / 2. Loshchilov and Hutter, SGDR, 2017, without the restarts.

    >>> import tritorch as torch
    >>> optimizer = torch.optim.SGD([torch.zeros(1)], lr=1.0)
    >>> schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=4)
    >>> [optimizer.step() or schedule.step() or round(schedule.get_last_lr()[0], 4) for _ in range(4)]
    [0.8536, 0.5, 0.1464, 0.0]
    """

    def __init__(self, optimizer, T_max, eta_min=0.0, last_epoch=-1):
        real_numbers(type(self).__name__, T_max=T_max, eta_min=eta_min)
        self.T_max, self.eta_min = T_max, eta_min
        super().__init__(optimizer, last_epoch)

    def get_lr(self):
        t, low = self.last_epoch, self.eta_min
        groups = self.optimizer.param_groups
        if self._is_initial:
            return self._unchanged()
        if self._step_count == 1 and t > 0:
            return [low + (lr - low) * (1 + math.cos(t * math.pi / self.T_max)) / 2 for lr in self.base_lrs]
        if (t - 1 - self.T_max) % (2 * self.T_max) == 0:
            return [group["lr"] + (lr - low) * (1 - math.cos(math.pi / self.T_max)) / 2 for lr, group in zip(self.base_lrs, groups)]
        change = (1 + math.cos(math.pi * t / self.T_max)) / (1 + math.cos(math.pi * (t - 1) / self.T_max))
        return [change * (group["lr"] - low) + low for group in groups]

    def _get_closed_form_lr(self):
        return [self.eta_min + (lr - self.eta_min) * (1 + math.cos(math.pi * self.last_epoch / self.T_max)) / 2 for lr in self.base_lrs]


class CosineAnnealingWarmRestarts(LRScheduler):
    """Half a cosine from the first rate to `eta_min` in T_0 steps, then again from the start, each `T_mult` times as long. SGDR, 2017.

    >>> import tritorch as torch
    >>> optimizer = torch.optim.SGD([torch.zeros(1)], lr=1.0)
    >>> schedule = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, T_0=2)
    >>> [optimizer.step() or schedule.step() or round(schedule.get_last_lr()[0], 4) for _ in range(4)]
    [0.5, 1.0, 0.5, 1.0]
    """

    def __init__(self, optimizer, T_0, T_mult=1, eta_min=0.0, last_epoch=-1):
        name = type(self).__name__
        check(isinstance(T_0, int) and T_0 > 0, name, "a positive integer T_0", T_0, error=ValueError)
        check(isinstance(T_mult, int) and T_mult >= 1, name, "an integer T_mult ≥ 1", T_mult, error=ValueError)
        check(isinstance(eta_min, (int, float)), name, "a number as eta_min", type(eta_min).__name__, error=ValueError)
        self.T_0, self.T_i, self.T_mult, self.eta_min, self.T_cur = T_0, T_0, T_mult, eta_min, last_epoch
        super().__init__(optimizer, last_epoch)

    def get_lr(self):
        phase = 1 + math.cos(math.pi * self.T_cur / self.T_i)
        return [self.eta_min + (lr - self.eta_min) * phase / 2 for lr in self.base_lrs]

    def step(self, epoch=None):
        """Go to the next step, or to any `epoch`, which may be a fraction."""
        if epoch is None and self.last_epoch >= 0:
            epoch, self.T_cur = self.last_epoch + 1, self.T_cur + 1
            if self.T_cur >= self.T_i:
                self.T_cur, self.T_i = self.T_cur % self.T_i, self.T_i * self.T_mult
        else:
            epoch = 0 if epoch is None else epoch
            check(epoch >= 0, type(self).__name__, "epoch ≥ 0", epoch, error=ValueError)
            self._go_to(epoch)
        self.last_epoch = math.floor(epoch)
        self._set_lrs(self.get_lr())

    def _go_to(self, epoch):
        if epoch < self.T_0:
            self.T_i, self.T_cur = self.T_0, epoch
        elif self.T_mult == 1:
            self.T_cur = epoch % self.T_0
        else:
            n = int(math.log(epoch / self.T_0 * (self.T_mult - 1) + 1, self.T_mult))
            self.T_cur = epoch - self.T_0 * (self.T_mult ** n - 1) / (self.T_mult - 1)
            self.T_i = self.T_0 * self.T_mult ** n
