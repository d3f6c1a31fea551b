"""Do all candidates of a kernel give the same result? What a launch writes is found by poisoning what it was given."""
from threading import get_ident

import numpy as np

from tritorch.cuda import allocator, driver
from tritorch.cuda.device import current_device
from tritorch.cuda.stream import current_handle
from tritorch.cuda.trace import traces

SAMPLE = 1 << 20                                                 # bytes at the start, in the middle and at the end that are compared
TOLERANCES = {"bfloat16": 3e-2, "float16": 1e-2, "float32": 2e-3, "float64": 1e-9}      # of ‖a - b‖ / ‖b‖; float32 may be TF32


class Witness:
    """Stands where a trace would, and sees the tensors that launches are given."""

    def __init__(self):
        self.storages, self.temporaries = {}, []

    def launched(self, start, grid, leaves, values):
        for leaf in leaves:
            tensor = getattr(leaf, "tensor", leaf)
            if hasattr(tensor, "storage"):
                self.storages[tensor.storage.ptr] = (tensor.storage, tensor.dtype)

    def made(self, storage):
        self.temporaries.append(storage)

    counts = made                                                # who counts leaves what it found

    def given(self):
        """(pointer, bytes, dtype) of what was there before the launches."""
        made = {s.ptr for s in self.temporaries}
        return [(s.ptr, s.nbytes, dtype) for pointer, (s, dtype) in self.storages.items() if pointer not in made and s.nbytes]


class Agreement:
    """The result of the first candidate, to hold the others against. `close()` puts what was only read back as it was."""

    def __init__(self, run, first):
        self.run, self.kept, self.outputs = run, [], []
        self.device, self.stream = driver.current(), current_handle(current_device())
        given = self.watch(first)
        for pointer, nbytes, _ in given:
            copy = allocator.allocate(nbytes, current_device(), self.stream)
            self.device.copy(copy.ptr, pointer, nbytes, "d2d", self.stream)
            self.kept.append((pointer, nbytes, copy))
        for place, (pointer, nbytes, dtype) in enumerate(given):
            if dtype.is_floating_point:                          # whole numbers may be indices: poison there could lead anywhere
                self.poison(pointer, nbytes)
                run(first)
                if all((sample == 0xFF).all() for sample in self.samples(pointer, nbytes)):
                    self.restore(place)                          # nothing was written there
                else:
                    self.outputs.append((pointer, nbytes, dtype))
            else:
                self.outputs.append((pointer, nbytes, dtype))
        self.want = self.results(first)

    def watch(self, candidate):
        witness = Witness()
        traces[get_ident()] = witness
        try:
            self.run(candidate)
        finally:
            del traces[get_ident()]
        return witness.given()

    def poison(self, pointer, nbytes):
        self.device.fill(pointer, 0xFF, 1, nbytes, self.stream)  # NaN in every floating dtype

    def restore(self, place):
        pointer, nbytes, copy = self.kept[place]
        self.device.copy(pointer, copy.ptr, nbytes, "d2d", self.stream)

    def results(self, candidate):
        for pointer, nbytes, dtype in self.outputs:
            if dtype.is_floating_point:
                self.poison(pointer, nbytes)
        self.run(candidate)
        return [[sample.view(dtype.numpy) for sample in self.samples(pointer, nbytes)] for pointer, nbytes, dtype in self.outputs]

    def samples(self, pointer, nbytes):
        """Up to three runs of bytes, on the host."""
        size = min(SAMPLE, nbytes)
        for start in sorted({0, (nbytes - size) // 2 // 16 * 16, (nbytes - size) // 16 * 16}):
            host = np.empty(size, np.uint8)
            self.device.copy(host.__array_interface__["data"][0], pointer + start, size, "d2h", self.stream)
            self.device.stream_synchronize(self.stream)
            yield host

    def refused(self, candidate):
        """The sentence that refuses a candidate, or ""."""
        for (_, _, dtype), got, want in zip(self.outputs, self.results(candidate), self.want):
            for a, b in zip(got, want):
                if not dtype.is_floating_point:
                    if (a != b).any():
                        return f"{(a != b).mean():.2%} of the {dtype.name} differ"
                    continue
                a, b = a.astype(np.float64), b.astype(np.float64)
                if (np.isfinite(a) != np.isfinite(b)).any():
                    return f"{(np.isfinite(a) != np.isfinite(b)).mean():.2%} of the {dtype.name} are finite in one result alone"
                finite = np.isfinite(b)
                error = np.linalg.norm((a - b)[finite]) / max(np.linalg.norm(b[finite]), 1e-30)
                if error > TOLERANCES.get(dtype.name, 1e-1):
                    return f"relative error {error:.3g} in {dtype.name}"
        return ""

    def close(self):
        for place in range(len(self.kept)):
            self.restore(place)
        self.kept.clear()
