"""GradScaler: the loss times a large number, so that small gradients survive float16; the number finds its size by itself."""
import enum
import warnings
from collections import defaultdict

from tritorch.autograd.modes import no_grad
from tritorch.cuda.device import is_available
from tritorch.dtype import float16, float32, int32
from tritorch.errors import check, real_numbers
from tritorch.layout import others, strided
from tritorch.ops import optimize
from tritorch.ops.create import full, zeros
from tritorch.tensor import Tensor


class OptState(enum.Enum):
    """What has happened to an optimizer since the last `update`."""

    READY = 0
    UNSCALED = 1
    STEPPED = 2


class GradScaler:
    """Scales losses; unscales gradients before the step and skips it when one of them is infinite or NaN.

    The scale is multiplied by `backoff_factor` after a step that was skipped and by `growth_factor` after `growth_interval` steps
    that were not. The check is one kernel a dtype; the host waits for its result in `step`, unless the optimizer heeds it on the
    device itself (Adam and AdamW with `fused` or `capturable`). Micikevicius et al., "Mixed precision training", ICLR 2018.

    >>> import tritorch as torch
    >>> w = torch.tensor([1.0], requires_grad=True)
    >>> optimizer, scaler = torch.optim.SGD([w], lr=0.5), torch.amp.GradScaler("cpu", init_scale=1024.0)
    >>> scaler.scale((w * w).sum()).backward()
    >>> w.grad
    tensor([2048.])
    >>> _ = scaler.step(optimizer); scaler.update(); w.detach()
    tensor([0.])
    """

    def __init__(self, device="cuda", init_scale=2.0 ** 16, growth_factor=2.0, backoff_factor=0.5, growth_interval=2000, enabled=True):
        self._device, self._enabled = device, enabled
        if enabled and device == "cuda" and not is_available():
            warnings.warn("GradScaler: expected a CUDA device, got none; scaling is disabled", stacklevel=2)
            self._enabled = False
        if self._enabled:
            real_numbers("GradScaler", init_scale=init_scale, growth_factor=growth_factor, backoff_factor=backoff_factor,
                         growth_interval=growth_interval)
        check(not self._enabled or growth_factor > 1.0, "GradScaler", "growth_factor > 1", growth_factor, error=AssertionError)
        check(not self._enabled or backoff_factor < 1.0, "GradScaler", "backoff_factor < 1", backoff_factor, error=AssertionError)
        self._init_scale, self._init_growth_tracker = init_scale, 0
        self._growth_factor, self._backoff_factor, self._growth_interval = growth_factor, backoff_factor, growth_interval
        self._scale = self._growth_tracker = None
        self._optimizers = defaultdict(_fresh)

    def _start(self, device):
        self._scale = full((), self._init_scale, dtype=float32, device=device)
        self._growth_tracker = full((), self._init_growth_tracker, dtype=int32, device=device)

    def scale(self, outputs):
        """A loss, or a list or tuple of them, times the scale."""
        if not self._enabled:
            return outputs
        if isinstance(outputs, Tensor):
            if self._scale is None:
                self._start(outputs.device)
            return outputs * self._scale.to(outputs.device)
        check(isinstance(outputs, (list, tuple)), "GradScaler.scale", "a tensor, or a list or tuple of tensors", type(outputs).__name__,
              error=ValueError)
        return type(outputs)([self.scale(x) for x in outputs])

    @no_grad()
    def unscale_(self, optimizer):
        """Divide the gradients of the optimizer's parameters by the scale, in place: before they are clipped, or else `step` does it."""
        if not self._enabled:
            return
        self._check_started("unscale_")
        state = self._optimizers[id(optimizer)]
        check(state["stage"] is OptState.READY, "GradScaler.unscale_", "one call for each optimizer since the last update(), before step()",
              f"an optimizer that is {state['stage'].name.lower()}")
        grads = self._gradients(optimizer)
        inverse = self._scale.reciprocal()
        for device in dict.fromkeys(g.device for g in grads):
            found = state["found"][device] = zeros((), dtype=float32, device=device)
            optimize.scale_by([g for g in grads if g.device is device], inverse.to(device), found)
        state["stage"] = OptState.UNSCALED

    def _gradients(self, optimizer):
        """The tensors that are to be unscaled."""
        grads = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        grads = [g if g.layout is strided else g._values() for g in grads] if others else grads
        check(all(g.dtype is not float16 for g in grads), "GradScaler.unscale_", "gradients of float32 (or bfloat16) parameters", "float16",
              use="float32 parameters under autocast", error=ValueError)
        return grads

    def step(self, optimizer, *args, **kwargs):
        """Unscale the gradients if that is not done, and call `optimizer.step(*args, **kwargs)` if all are finite; returns its result."""
        if not self._enabled:
            return optimizer.step(*args, **kwargs)
        check("closure" not in kwargs, "GradScaler.step", "no closure", "one")
        self._check_started("step")
        state = self._optimizers[id(optimizer)]
        check(state["stage"] is not OptState.STEPPED, "GradScaler.step", "one call since the last update()", "a second")
        if state["stage"] is OptState.READY:
            self.unscale_(optimizer)
        found = list(state["found"].values())
        check(found, "GradScaler.step", "gradients", "none", error=AssertionError)
        out = None
        if len(found) == 1 and getattr(optimizer, "_step_supports_amp_scaling", False):
            optimizer.found_inf = found[0]
            try:
                out = optimizer.step(*args, **kwargs)
            finally:
                del optimizer.found_inf
        elif not any(x.item() for x in found):
            out = optimizer.step(*args, **kwargs)
        state["stage"] = OptState.STEPPED
        return out

    @no_grad()
    def update(self, new_scale=None):
        """Adapt the scale after the steps of all optimizers, or set it to a number or 0-dim tensor."""
        if not self._enabled:
            return
        self._check_started("update")
        if new_scale is not None:
            real_numbers("GradScaler.update", new_scale=new_scale)
            self._scale.fill_(new_scale)
        else:
            found = [x.to(self._scale.device) for state in self._optimizers.values() for x in state["found"].values()]
            check(found, "GradScaler.update", "a step() or unscale_() before", "none", error=AssertionError)
            total = found[0]
            for x in found[1:]:
                total = total + x
            optimize.update_scale([self._scale], [self._growth_tracker], total, self._growth_factor, self._backoff_factor,
                                  self._growth_interval)
        self._optimizers.clear()

    def _check_started(self, name):
        check(self._scale is not None, f"GradScaler.{name}", "a loss that was scaled", "none yet", use="scale(loss).backward()",
              error=AssertionError)

    # -------------------------------------------------------------- settings
    def get_scale(self):
        """The scale as a number; waits for the device."""
        if not self._enabled:
            return 1.0
        return self._init_scale if self._scale is None else self._scale.item()

    def get_growth_factor(self):
        """What the scale is multiplied with after `growth_interval` steps without infinities."""
        return self._growth_factor

    def set_growth_factor(self, new_factor):
        """Set the growth factor."""
        self._growth_factor = new_factor

    def get_backoff_factor(self):
        """What the scale is multiplied with after a step with infinities."""
        return self._backoff_factor

    def set_backoff_factor(self, new_factor):
        """Set the backoff factor."""
        self._backoff_factor = new_factor

    def get_growth_interval(self):
        """How many steps without infinities in a row let the scale grow."""
        return self._growth_interval

    def set_growth_interval(self, new_interval):
        """Set the growth interval."""
        self._growth_interval = new_interval

    def is_enabled(self):
        """Whether anything is scaled at all."""
        return self._enabled

    def state_dict(self):
        """What a checkpoint needs, as numbers; empty if disabled."""
        if not self._enabled:
            return {}
        tracker = self._init_growth_tracker if self._growth_tracker is None else self._growth_tracker.item()
        return {"scale": self.get_scale(), "growth_factor": self._growth_factor, "backoff_factor": self._backoff_factor,
                "growth_interval": self._growth_interval, "_growth_tracker": tracker}

    def load_state_dict(self, state_dict):
        """Take over what `state_dict` returned."""
        if not self._enabled:
            return
        check(isinstance(state_dict, dict), "GradScaler.load_state_dict", "a dict", type(state_dict).__name__, error=TypeError)
        check(state_dict, "GradScaler.load_state_dict", "the state of an enabled GradScaler", "an empty dict")
        names = "scale", "_growth_tracker", "growth_factor", "backoff_factor", "growth_interval"
        for name in names:
            check(name in state_dict, "GradScaler.load_state_dict", f"{name!r} in a state dict", f"the keys {list(state_dict)}",
                  error=KeyError)
        values = [state_dict[name] for name in names]
        real_numbers("GradScaler.load_state_dict", **dict(zip(names, values)))
        self._init_scale, self._init_growth_tracker, self._growth_factor, self._backoff_factor, self._growth_interval = values
        if self._scale is not None:
            self._start(self._scale.device)


def _fresh():
    return {"stage": OptState.READY, "found": {}}
