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

__all__ = ["broadcast_all", "clamp_probs", "lazy_property", "logits_to_probs", "probs_to_logits", "tril_matrix_to_vec",
           "vec_to_tril_matrix"]
