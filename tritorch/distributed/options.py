"""What collectives are told beside their tensors: the operation that makes one value of many, roots and timeouts."""
import enum
from dataclasses import dataclass, field
from datetime import timedelta

from tritorch.distributed.failures import default_pg_timeout


class ReduceOp(enum.Enum):
    """How values of the ranks become one: SUM, AVG (the sum divided by their number, towards zero for whole numbers), PRODUCT, MIN, MAX
    and, for whole numbers and truth values, BAND, BOR, BXOR, bit by bit. Truth values have SUM = MAX = BOR and PRODUCT = MIN = BAND."""

    SUM, AVG, PRODUCT, MIN, MAX, BAND, BOR, BXOR, PREMUL_SUM = range(9)


ReduceOp.RedOpType = ReduceOp                                            # type: ignore[attr-defined]  # PyTorch's, of the numbers alone


@dataclass
class Options:
    """What all collectives have: how long to wait, and whether the caller goes on meanwhile."""

    timeout: timedelta | None = None                                     # None: that of the group
    asyncOp: bool = True                                                 # noqa: N815 PyTorch's name


@dataclass
class AllreduceOptions(Options):
    """Of all_reduce."""

    reduceOp: ReduceOp = ReduceOp.SUM                                    # noqa: N815


@dataclass
class AllreduceCoalescedOptions(AllreduceOptions):
    """Of all_reduce_coalesced."""


@dataclass
class ReduceOptions(Options):
    """Of reduce."""

    reduceOp: ReduceOp = ReduceOp.SUM                                    # noqa: N815
    rootRank: int = 0                                                    # noqa: N815
    rootTensor: int = 0                                                  # noqa: N815


@dataclass
class BroadcastOptions(Options):
    """Of broadcast."""

    rootRank: int = 0                                                    # noqa: N815
    rootTensor: int = 0                                                  # noqa: N815


@dataclass
class GatherOptions(Options):
    """Of gather."""

    rootRank: int = 0                                                    # noqa: N815


@dataclass
class ScatterOptions(GatherOptions):
    """Of scatter."""


@dataclass
class ReduceScatterOptions(AllreduceOptions):
    """Of reduce_scatter."""


@dataclass
class AllgatherOptions(Options):
    """Of all_gather."""


@dataclass
class AllToAllOptions(Options):
    """Of all_to_all."""


@dataclass
class BarrierOptions(Options):
    """Of barrier."""

    device_ids: list = field(default_factory=list)


__all__ = ["AllToAllOptions", "AllgatherOptions", "AllreduceCoalescedOptions", "AllreduceOptions", "BarrierOptions", "BroadcastOptions",
           "GatherOptions", "Options", "ReduceOp", "ReduceOptions", "ReduceScatterOptions", "ScatterOptions", "default_pg_timeout"]
