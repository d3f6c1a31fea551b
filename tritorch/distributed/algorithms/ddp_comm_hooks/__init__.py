"""Communication hooks of DistributedDataParallel."""
from tritorch.distributed.algorithms.ddp_comm_hooks import default_hooks, post_localSGD_hook

__all__ = ["default_hooks", "post_localSGD_hook"]
