"""Mixed precision on the CPU, under the older names of torch.cpu.amp; see `tritorch.amp`."""
from tritorch import amp
from tritorch.dtype import bfloat16


class autocast(amp.autocast):
    """`tritorch.amp.autocast("cpu", …)`."""

    def __init__(self, enabled=True, dtype=bfloat16, cache_enabled=True):
        super().__init__("cpu", dtype, enabled, cache_enabled)


class GradScaler(amp.GradScaler):
    """`tritorch.amp.GradScaler("cpu", …)`."""

    def __init__(self, init_scale=2.0 ** 16, growth_factor=2.0, backoff_factor=0.5, growth_interval=2000, enabled=True):
        super().__init__("cpu", init_scale, growth_factor, backoff_factor, growth_interval, enabled)
