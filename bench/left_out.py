"""What the CTAs that a trace leaves out would have written, made by numpy, where that decides where others write.

A radix pass sends numbers to places that the counts of all tiles tell. Without most of these, tiles that are traced would write different
numbers to one place, and each its own in one piece, not in pieces all over the row.
"""
import numpy as np


def complete(given, memory):
    """For `launches.Beside.then`: all that a launch with arguments of these names should have written to the device's memory, if it is of a
    radix pass of float32 numbers without NaN."""
    if {"x_ptr", "first_ptr", "digit_shift", "BITS", "LOG"} <= given.keys() and given["x_ptr"].dtype.name == "float32":
        arrays = {name: _array(x, memory) for name, x in given.items() if str(name).endswith("_ptr") and x is not None}
        digits = _digits(arrays["x_ptr"].reshape(-1, given["N"]), given["digit_shift"], given["BITS"], given["FALLING"])
        (_send if "values_ptr" in arrays else _count)(arrays, digits, given["BITS"], 1 << given["LOG"])


def _array(x, memory):
    """The memory of a contiguous tensor."""
    return memory.host(x.data_ptr(), x.numel() * x.dtype.itemsize).view(x.dtype.name).reshape(x.shape)


def _digits(x, shift, bits, falling):
    """Those of ordered_bits in triton_kernels/sorting.py."""
    key = (x + np.float32(0)).view(np.uint32)                    # -0 is 0
    key = np.where(key >> 31 == 1, ~key, key | np.uint32(1 << 31))
    return (((~key if falling else key) >> np.uint32(shift)) & np.uint32((1 << bits) - 1)).astype(np.uint16)


def _count(arrays, digits, bits, size):
    """Where each digit begins and ends in the order of each tile, and where that has its numbers from if somebody asks for it."""
    for row, some in enumerate(digits):
        tiles = [some[start:start + size] for start in range(0, some.size, size)]
        lasts = np.cumsum([np.bincount(tile, minlength=1 << bits) for tile in tiles], axis=1)
        here = slice(row * len(tiles), (row + 1) * len(tiles))
        arrays["last_ptr"].reshape(-1, 1 << bits)[here] = lasts
        arrays["first_ptr"].reshape(-1, 1 << bits)[here] = np.hstack([np.zeros_like(lasts[:, :1]), lasts[:, :-1]])
        if "place_ptr" in arrays:
            for place, tile in zip(arrays["place_ptr"].reshape(-1, size)[here], tiles):
                place[:tile.size] = np.argsort(tile, kind="stable")


def _send(arrays, digits, bits, size):
    """The rows in the order of their digits."""
    values, indices, x, origin = [arrays.get(f"{name}_ptr") for name in ("values", "indices", "x", "from")]
    for row, some in enumerate(digits):
        order = np.argsort(some, kind="stable")[:values.shape[-1]]
        values.reshape(len(digits), -1)[row] = x.reshape(digits.shape)[row][order]
        indices.reshape(len(digits), -1)[row] = order if origin is None else origin.reshape(digits.shape)[row][order]
