"""ShardedGradScaler: a GradScaler whose ranks agree on whether a step is skipped."""
from tritorch import distributed as dist
from tritorch.amp.grad_scaler import GradScaler
from tritorch.autograd.modes import no_grad
from tritorch.distributed.tensor import DTensor
from tritorch.dtype import float32
from tritorch.ops.create import zeros
from tritorch.tensor import Tensor


class ShardedGradScaler(GradScaler):
    """A GradScaler for gradients that are in parts: an infinity in the part of one rank makes all ranks of `process_group` (None: all)
    skip the step. Scaled losses keep their dtype, and gradients may be float16.

    >>> import tritorch as torch
    >>> from tritorch import distributed as dist
    >>> dist.init_process_group("gloo", rank=0, world_size=1)
    >>> w = torch.tensor([1.0], requires_grad=True)
    >>> optimizer, scaler = torch.optim.SGD([w], lr=0.5), ShardedGradScaler("cpu", init_scale=1024.0)
    >>> scaler.scale((w * w).sum()).backward()
    >>> _ = scaler.step(optimizer); scaler.update(); w.detach()
    tensor([0.])
    >>> dist.destroy_process_group()
    """

    def __init__(self, device="cuda", init_scale=2.0 ** 16, backoff_factor=0.5, growth_factor=2.0, growth_interval=2000, enabled=True,
                 process_group=None):
        super().__init__(device, init_scale, growth_factor, backoff_factor, growth_interval, enabled)
        self.process_group = process_group

    def scale(self, outputs):
        """A loss, or a list or tuple of them, times the scale, in their dtypes."""
        scaled = super().scale(outputs)
        return scaled.to(outputs.dtype) if isinstance(outputs, Tensor) else scaled

    @no_grad()
    def unscale_(self, optimizer):
        """Divide the gradients by the scale, in place, and tell all ranks whether they are finite."""
        super().unscale_(optimizer)
        if not self._enabled:
            return
        found, home = self._optimizers[id(optimizer)]["found"], self._scale.device
        total = zeros((), dtype=float32, device=home)
        for x in found.values():
            total += x.to(home)
        dist.all_reduce(total, group=self.process_group)
        for x in found.values():
            x.copy_(total)
        if not found:                                                    # this rank has no gradients, others may
            found[home] = total

    def _gradients(self, optimizer):
        grads = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        return [g.storage.local if isinstance(g, DTensor) else g for g in grads]
