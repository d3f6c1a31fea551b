"""visualize_sharding: a table of which processes have which part of a tensor."""
import numpy as np

from tritorch.distributed.tensor.spec import pieces
from tritorch.errors import check


def visualize_sharding(dtensor, header="", use_rich=False):
    """Print, on the mesh's first process, the ranges of rows (and columns) of a DTensor of one or two dims and the ranks that have them."""
    check(0 < dtensor.ndim <= 2 or not dtensor.numel(), "visualize_sharding", "a DTensor of one or two dims", dtensor.ndim)
    mesh = dtensor.device_mesh
    if dtensor.numel() == 0 or mesh.get_coordinate() != (0,) * mesh.ndim:
        return
    cells = {}
    for place in np.ndindex(*mesh.shape):
        sizes, offsets = pieces(dtensor.shape, mesh, dtensor.placements, place)
        key = tuple(f"{first}-{first + n - 1}" for n, first in zip(sizes, offsets))
        if all(sizes):
            cells.setdefault(key if len(key) == 2 else ("", *key), []).append(int(mesh._ranks[place]))
    rows, columns = [list(dict.fromkeys(key[k] for key in cells)) for k in (0, 1)]
    named = {key: ", ".join(f"{mesh.device_type}:{rank}" for rank in ranks) for key, ranks in cells.items()}
    table = [["", *columns], *[[r, *[named.get((r, c), "") for c in columns]] for r in rows]]
    widths = [max(len(row[k]) for row in table) for k in range(len(columns) + 1)]
    if header:
        print(header)
    for row in table:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip())
