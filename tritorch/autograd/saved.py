"""Hooks on saved tensors: keep something else than the tensor until the backward pass asks for it."""
from tritorch.autograd.modes import state
from tritorch.errors import check


class saved_tensors_hooks:
    """Inside, a tensor saved for the gradient is replaced by `pack_hook(tensor)`, and comes back by `unpack_hook(packed)`.

    >>> import tritorch as torch
    >>> x = torch.ones(2, requires_grad=True)
    >>> unpack = lambda b: torch.frombuffer(bytearray(b), dtype=torch.float32)
    >>> with torch.autograd.graph.saved_tensors_hooks(lambda t: t.numpy().tobytes(), unpack):
    ...     y = (x * x).sum()
    >>> y.backward(); x.grad
    tensor([2., 2.])
    """

    def __init__(self, pack_hook, unpack_hook):
        self.pair = pack_hook, unpack_hook

    def __enter__(self):
        if state.saved_hooks_off is not None:
            raise RuntimeError(state.saved_hooks_off)
        state.saved_hooks = (*state.saved_hooks, self.pair)
        return self

    def __exit__(self, *exception):
        state.saved_hooks = state.saved_hooks[:-1]


class save_on_cpu(saved_tensors_hooks):
    """Inside, saved tensors wait on the CPU and return to their device in the backward pass."""

    def __init__(self, pin_memory=False, device_type="cuda"):
        def pack(x):
            host = x.cpu()
            return x.device, host.pin_memory() if pin_memory and x.is_cuda else host

        super().__init__(pack, lambda packed: packed[1].to(packed[0], non_blocking=pin_memory))


class disable_saved_tensors_hooks:
    """Inside, using saved-tensor hooks is an error with this message."""

    def __init__(self, error_message):
        self.message = error_message

    def __enter__(self):
        check(not state.saved_hooks, "disable_saved_tensors_hooks", "no saved-tensor hooks in use", "some")
        self.was, state.saved_hooks_off = state.saved_hooks_off, self.message

    def __exit__(self, *exception):
        state.saved_hooks_off = self.was
