"""The older place of `tritorch.func.functional_call`."""
import warnings

from tritorch.func.functional_call import functional_call as called


def functional_call(module, parameters_and_buffers, args=None, kwargs=None, *, tie_weights=True, strict=False):
    """`tritorch.func.functional_call`, as it was called before.

    >>> import tritorch as torch, warnings; warnings.simplefilter("ignore")
    >>> layer = torch.nn.Linear(2, 1, bias=False)
    >>> torch.nn.utils.stateless.functional_call(layer, {"weight": torch.ones(1, 2)}, torch.tensor([1.0, 2.0])).item()
    3.0
    """
    warnings.warn("nn.utils.stateless.functional_call is now called func.functional_call", FutureWarning, stacklevel=2)
    return called(module, parameters_and_buffers, args, kwargs, tie_weights=tie_weights, strict=strict)
