"""Schedules that move the momentum against the learning rate: CyclicLR and OneCycleLR."""
import math

from tritorch.errors import check, real_numbers
from tritorch.optim.schedule import LRScheduler, check_optimizer, function_state, one_each, set_group


class _MomentumSchedule(LRScheduler):
    """What both share: the momentum lies in `betas` for optimizers such as Adam."""

    def _start_momentum(self, optimizer, base, largest, last_epoch):
        name, defaults = type(self).__name__, optimizer.defaults
        check("momentum" in defaults or "betas" in defaults, name, "an optimizer with momentum or betas for cycle_momentum",
              type(optimizer).__name__, error=ValueError)
        self.use_beta1 = "betas" in defaults
        self.base_momentums, self.max_momentums = one_each(name, optimizer, base), one_each(name, optimizer, largest)
        for group, low, high in zip(optimizer.param_groups, self.base_momentums, self.max_momentums) if last_epoch == -1 else ():
            self._set_momentum(group, high)
            group["max_momentum"], group["base_momentum"] = high, low

    def _set_momentum(self, group, value):
        if self.use_beta1:
            group["betas"] = (value, *group["betas"][1:])
        else:
            group["momentum"] = value


class CyclicLR(_MomentumSchedule):
    """Up from `base_lr` to `max_lr` in `step_size_up` steps and down again, over and over; momentum the other way. Smith 2017.

    mode "triangular": all cycles alike; "triangular2": each half as high as the one before; "exp_range": times gamma^steps; or
    `scale_fn` of the cycle, or of the steps if `scale_mode` is "iterations".

    >>> import tritorch as torch
    >>> optimizer = torch.optim.SGD([torch.zeros(1)], lr=1.0)
    >>> schedule = torch.optim.lr_scheduler.CyclicLR(optimizer, base_lr=0.1, max_lr=0.5, step_size_up=2, cycle_momentum=False)
    >>> [optimizer.step() or schedule.step() or round(schedule.get_last_lr()[0], 4) for _ in range(4)]
    [0.3, 0.5, 0.3, 0.1]
    """

    def __init__(self, optimizer, base_lr, max_lr, step_size_up=2000, step_size_down=None, mode="triangular", gamma=1.0, scale_fn=None,
                 scale_mode="cycle", cycle_momentum=True, base_momentum=0.8, max_momentum=0.9, last_epoch=-1):
        check_optimizer(type(self).__name__, optimizer)
        check(scale_fn is not None or mode in ("triangular", "triangular2", "exp_range"), "CyclicLR",
              "mode 'triangular', 'triangular2' or 'exp_range', or a scale_fn", repr(mode), error=ValueError)
        check(scale_fn is None or callable(scale_fn), "CyclicLR", "a function as scale_fn", type(scale_fn).__name__, error=TypeError)
        real_numbers("CyclicLR", step_size_up=step_size_up, step_size_down=0 if step_size_down is None else step_size_down, gamma=gamma)
        base_lrs, self.max_lrs = one_each("CyclicLR", optimizer, base_lr), one_each("CyclicLR", optimizer, max_lr)
        for group, lr in zip(optimizer.param_groups, base_lrs) if last_epoch == -1 else ():
            set_group(group, "lr", lr)
        up = float(step_size_up)
        self.total_size = up + (up if step_size_down is None else float(step_size_down))
        self.step_ratio, self.mode, self.gamma, self._scale_fn_custom = up / self.total_size, mode, gamma, scale_fn
        self.scale_mode = scale_mode if scale_fn is not None else "iterations" if mode == "exp_range" else "cycle"
        self.cycle_momentum = cycle_momentum
        if cycle_momentum:
            self._start_momentum(optimizer, base_momentum, max_momentum, last_epoch)
        super().__init__(optimizer, last_epoch)
        self.base_lrs = base_lrs

    def scale_fn(self, x):
        """The height of the cycles at cycle or step x."""
        if self._scale_fn_custom is not None:
            return self._scale_fn_custom(x)
        return 1.0 if self.mode == "triangular" else 1 / (2.0 ** (x - 1)) if self.mode == "triangular2" else self.gamma ** x

    def get_lr(self):
        """The rates; sets the momentum too."""
        cycle = math.floor(1 + self.last_epoch / self.total_size)
        x = 1.0 + self.last_epoch / self.total_size - cycle
        part = x / self.step_ratio if x <= self.step_ratio else (x - 1) / (self.step_ratio - 1)
        height = self.scale_fn(cycle if self.scale_mode == "cycle" else self.last_epoch)
        if self.cycle_momentum:
            for group, low, high in zip(self.optimizer.param_groups, self.base_momentums, self.max_momentums):
                self._set_momentum(group, high - (high - low) * part * height)
        return [low + (high - low) * part * height for low, high in zip(self.base_lrs, self.max_lrs)]

    def state_dict(self):
        """All attributes but the optimizer; `scale_fn` only if it is an object with attributes."""
        return {**super().state_dict(), "_scale_fn_custom": function_state(self._scale_fn_custom)}

    def load_state_dict(self, state_dict):
        super().load_state_dict({k: v for k, v in state_dict.items() if k != "_scale_fn_custom"})
        if state_dict["_scale_fn_custom"] is not None:
            self._scale_fn_custom.__dict__.update(state_dict["_scale_fn_custom"])


class OneCycleLR(_MomentumSchedule):
    """One rise from max_lr / div_factor to `max_lr` and a fall to a final_div_factor-th of the start; momentum the other way.

    `total_steps`, or `epochs` · `steps_per_epoch`, says how long, `pct_start` which part of it rises, `anneal_strategy` ("cos" or
    "linear") how; `three_phase` first falls back to the start as slowly as it rose. Smith and Topin, "Super-convergence", 2018.

    >>> import tritorch as torch
    >>> optimizer = torch.optim.SGD([torch.zeros(1)], lr=1.0)
    >>> schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1.0, total_steps=5)
    >>> [optimizer.step() or schedule.step() or round(schedule.get_last_lr()[0], 4) for _ in range(4)]
    [0.9505, 0.6113, 0.1883, 0.0]
    """

    def __init__(self, optimizer, max_lr, total_steps=None, epochs=None, steps_per_epoch=None, pct_start=0.3, anneal_strategy="cos",
                 cycle_momentum=True, base_momentum=0.85, max_momentum=0.95, div_factor=25.0, final_div_factor=1e4, three_phase=False,
                 last_epoch=-1):
        check_optimizer(type(self).__name__, optimizer)
        name, given = "OneCycleLR", (epochs, steps_per_epoch) if total_steps is None else (total_steps,)
        check(None not in given, name, "total_steps, or epochs and steps_per_epoch", given, error=ValueError)
        check(all(isinstance(n, int) and n > 0 for n in given), name, "positive integers as numbers of steps", given, error=ValueError)
        check(isinstance(pct_start, float) and 0 <= pct_start <= 1, name, "a float pct_start in [0, 1]", pct_start, error=ValueError)
        check(anneal_strategy in ("cos", "linear"), name, "anneal_strategy 'cos' or 'linear'", repr(anneal_strategy), error=ValueError)
        real_numbers(name, div_factor=div_factor, final_div_factor=final_div_factor)
        self.total_steps, self._anneal_func_type = math.prod(given), anneal_strategy
        self._schedule_phases = self._phases(pct_start, three_phase)
        for group, lr in zip(optimizer.param_groups, one_each(name, optimizer, max_lr)) if last_epoch == -1 else ():
            group["initial_lr"], group["max_lr"] = lr / div_factor, lr
            group["min_lr"] = group["initial_lr"] / final_div_factor
        self.cycle_momentum = cycle_momentum
        if cycle_momentum:
            self._start_momentum(optimizer, base_momentum, max_momentum, last_epoch)
        super().__init__(optimizer, last_epoch)

    def _phases(self, rise, three_phase):
        """The last step of each phase, and where the group keeps the rate and the momentum of its start and its end: as PyTorch's
        checkpoints have them."""
        total = self.total_steps
        phases = [(float(rise * total) - 1, "initial_lr", "max_lr", "max_momentum", "base_momentum")]
        if three_phase:
            phases += [(float(2 * rise * total) - 2, "max_lr", "initial_lr", "base_momentum", "max_momentum"),
                       (total - 1, "initial_lr", "min_lr", "max_momentum", "max_momentum")]
        else:
            phases.append((total - 1, "max_lr", "min_lr", "base_momentum", "max_momentum"))
        return [dict(zip(("end_step", "start_lr", "end_lr", "start_momentum", "end_momentum"), phase)) for phase in phases]

    def _between(self, start, end, part):
        if self._anneal_func_type == "linear":
            return (end - start) * part + start
        return end + (start - end) / 2.0 * (math.cos(math.pi * part) + 1)

    def get_lr(self):
        """The rates; sets the momentum too."""
        t = self.last_epoch
        check(t <= self.total_steps, "OneCycleLR", f"at most {self.total_steps} steps", t, error=ValueError)
        start, k = 0.0, 0
        while t > self._schedule_phases[k]["end_step"] and k < len(self._schedule_phases) - 1:
            start, k = self._schedule_phases[k]["end_step"], k + 1
        end, *names = self._schedule_phases[k].values()
        part, rates = (t - start) / (end - start), []
        for group in self.optimizer.param_groups:
            rates.append(self._between(group[names[0]], group[names[1]], part))
            if self.cycle_momentum:
                self._set_momentum(group, self._between(group[names[2]], group[names[3]], part))
        return rates
