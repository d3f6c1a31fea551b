"""What programs that define distributions of their own import, under PyTorch's names."""
from tritorch.distributions.parameters import (
    EULER as euler_constant,
)
from tritorch.distributions.parameters import (
    broadcast_all,
    clamp_probs,
    lazy_property,
    logits_to_probs,
    probs_to_logits,
    tril_matrix_to_vec,
    vec_to_tril_matrix,
)
from tritorch.distributions.parameters import (
    sum_rightmost as _sum_rightmost,
)
from tritorch.ops.create import empty as _empty

__all__ = ["broadcast_all", "clamp_probs", "lazy_property", "logits_to_probs", "probs_to_logits", "tril_matrix_to_vec",
           "vec_to_tril_matrix"]


def _standard_normal(shape, dtype, device):
    """Standard normal numbers, as a distribution's `rsample` begins with.

    >>> import tritorch as torch
    >>> _standard_normal((2, 3), torch.float64, "cpu").shape
    tritorch.Size([2, 3])
    """
    return _empty(shape, dtype=dtype, device=device).normal_()
