"""PyTorch's names for the files of this package, from which programs import `collate.default_collate`."""
import sys

from tritorch.utils.data import collate, worker
from tritorch.utils.data._utils import pin_memory

sys.modules.update({f"{__name__}.collate": collate, f"{__name__}.worker": worker})
MP_STATUS_CHECK_INTERVAL = 5.0                                           # seconds
