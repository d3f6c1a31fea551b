"""Mixed precision on CUDA, under the older names of torch.cuda.amp; see `tritorch.amp`."""
from tritorch import amp
from tritorch.dtype import float16


class autocast(amp.autocast):
    """`tritorch.amp.autocast("cuda", …)`."""

    def __init__(self, enabled=True, dtype=float16, cache_enabled=True):
        super().__init__("cuda", dtype, enabled, cache_enabled)


class GradScaler(amp.GradScaler):
    """`tritorch.amp.GradScaler("cuda", …)`."""

    def __init__(self, init_scale=2.0 ** 16, growth_factor=2.0, backoff_factor=0.5, growth_interval=2000, enabled=True):
        super().__init__("cuda", init_scale, growth_factor, backoff_factor, growth_interval, enabled)


def custom_fwd(fwd=None, *, cast_inputs=None):
    """`tritorch.amp.custom_fwd` for CUDA."""
    return amp.custom_fwd(fwd, device_type="cuda", cast_inputs=cast_inputs)


def custom_bwd(bwd):
    """`tritorch.amp.custom_bwd` for CUDA."""
    return amp.custom_bwd(bwd, device_type="cuda")
