"""How a tensor is filled, element by element in logical order: by a kernel, or in pieces by the threads of the host."""
import numpy as np

from tritorch.cuda import tuner
from tritorch.cuda.launch import launch, tile
from tritorch.philox import in_pieces
from tritorch.shape import cdiv
from tritorch.tensor import empty, put_off


def filled(out, kernel, *args, block=None, most=None, ways=None, **constexprs):
    """Launch a kernel that writes `out` in logical order, through a contiguous tensor if `out` has gaps. At most `most` programs, if it
    goes on to further blocks. `ways`: candidates of the kernel's own instead of sizes of blocks."""
    block = block or (2048 if out.dtype.itemsize == 2 else 1024)         # two accesses of 16 bytes for each thread
    target = out if out.is_contiguous() else empty(out.shape, out.dtype, out.device)
    count = out.numel()

    def run(block):
        programs = cdiv(count, block["BLOCK"])
        launch(kernel, (min(programs, most or programs),), target, *args, **constexprs, **block)

    if count:
        draw = getattr(constexprs.get("DRAW"), "__name__", None)
        in_place = any(getattr(a, "storage", None) is target.storage for a in args)       # a second run would read what the first one wrote
        key = kernel.__name__, draw, out.dtype.itemsize
        run(tuner.choose("draws", key, ways or _blocks(block), kernel, None if in_place else run))
    if target is not out:
        out.detach().copy_(target)


def _blocks(block):
    """Elements of a program, around the usual number."""
    sizes = (block, 4), (2 * block, 4), (2 * block, 8), (block // 2, 4), (block, 8)
    return [{"BLOCK": tile(size, 4096), "num_warps": warps} for size, warps in sizes]


def fill_later(out, piece, there=None):
    """Fill a tensor of the CPU: `piece(dtype, count, start)` gives `count` values from the start-th on. A large one when somebody looks,
    and where it only moves to a device, there: `there(target)` writes the same values into a contiguous tensor of the device."""
    def fill(array):
        flat = array.reshape(-1) if array.flags.c_contiguous else np.empty(array.size, array.dtype)

        def work(start, stop):
            flat[start:stop] = piece(flat.dtype, stop - start, start)

        in_pieces(array.size, work)
        if not array.flags.c_contiguous:
            array[...] = flat.reshape(array.shape)

    fill.there = there
    if not put_off(out, fill):
        fill(out.array)
