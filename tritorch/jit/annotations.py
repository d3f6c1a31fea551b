"""Types that annotations for TorchScript name: each takes one number for all of several, or as many numbers."""
from typing import Dict, List, Optional, Tuple, Union  # noqa: F401, UP035  (imported from here by programs)

BroadcastingList1 = BroadcastingList2 = BroadcastingList3 = list
