"""What `import torch` finds with this folder's parent on the path: it hands its name over to tritorch, once and for all."""
import sys

del sys.modules["torch"]

import tritorch  # noqa: E402

tritorch.as_torch()
