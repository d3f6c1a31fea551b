"""The names of torch.distributed in the module in which PyTorch keeps them, from which many programs import them."""
from tritorch import distributed as _dist
from tritorch.distributed import *  # noqa: F403
from tritorch.distributed.world import _of

__all__ = list(_dist.__all__)


def _get_default_group():
    """The group of all processes. ValueError before init_process_group."""
    return _of(None, "_get_default_group")


def _rank_not_in_group(group):
    """Whether this process is not in a group."""
    return _of(group, "_rank_not_in_group") is _dist.GroupMember.NON_GROUP_MEMBER
