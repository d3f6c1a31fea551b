"""Operators on tensors of the CPU as compiled kernels: those of the device "cuda", made for the host by the native device.

numpy computes elementwise operators, reductions and norms by one thread, each in a loop of its own. Where this is on, the implementation
for CUDA runs in their place: it is given the same memory, as tensors of the native device. What is small stays with numpy, because a
launch costs more; so do products and factorizations, which its libraries do well.
"""
import os
import threading
from functools import cache
from math import prod

from tritorch import dispatch
from tritorch.cuda import driver, faults
from tritorch.device import cpu, device
from tritorch.storage import Storage
from tritorch.tensor import Tensor, _new

SMALL, PLAIN = 1 << 16, 1 << 20     # bytes of the largest tensor below which numpy is quicker: in most operators, in plain ones
PLAIN_ONES = frozenset({            # which it does as quickly as memory goes
    "assign", "fill", "copy_to", "add", "sub", "mul", "div_true", "neg", "abs", "sign", "sqrt", "square", "reciprocal", "relu",
    "relu_backward", "maximum", "minimum", "clamp_numbers", "at_least", "at_most", "eq", "ne", "lt", "le", "gt", "ge", "isnan", "isinf",
    "isfinite", "logical_not", "logical_and", "logical_or", "logical_xor", "bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_not",
    "concatenated", "index_select", "gather", "sum", "nansum", "mean", "amax", "amin"})
NUMPY = frozenset({                 # does these, of any size
    # by BLAS and LAPACK
    "matmul", "addmm", "linear", "linear_gradients", "precise_product", "scaled_product", "int_product", "feed_forward",
    "convolution", "convolution_input", "convolution_weight", "cholesky_factor", "lu_factors", "solve_square", "determinant",
    "log_determinant", "geqrf_factors", "reflected", "qr_factors", "symmetric_eigen", "symmetric_eigenvalues", "svd_factors",
    "singular_values", "pseudo_inverse",
    # in less time, as it was measured by one thread each
    "argmax", "argmin", "any", "all", "nonzero_places", "joint_places", "pick", "flip_dims", "roll_dims", "lgamma",
    # when somebody looks, if ever
    "random_uniform", "random_normal", "random_log_normal", "random_exponential", "random_geometric", "random_cauchy", "random_coin",
    "random_integers",
    # where it looks at all indices before it writes
    "put", "scatter_write", "scatter_add", "scatter_join", "index_add"})
_HOME = device("cuda", 0)


class _Within(threading.local):
    kernel = False                  # whether this thread is in an implementation for CUDA, whose parts may be the CPU's


_within = _Within()


class Shown(Storage):
    """Memory of the host as one of the native device."""

    __slots__ = ()


class native:
    """Run operators on large tensors of the CPU as Triton kernels compiled for its processors, from here on; as a context manager, inside
    only. TRITORCH_CPU=native does it for a whole program.

    They are the kernels of the native device (`cuda.simulate(native=True)`), and run on all processors or TRITORCH_NATIVE_THREADS of them.
    Results are rounded as on a GPU: they may differ from numpy's in the last digits. A kernel is compiled when it is first needed, which
    takes a fraction of a second, and kept on disk. Products, convolutions, factorizations, complex numbers and small tensors stay with
    numpy. What `cuda.is_available()` says does not change. Raises RuntimeError elsewhere than on Linux on x86-64, and where a GPU is in
    use, which TRITORCH_CUDA=none prevents, or the native device in its place:

    >>> import tritorch as torch
    >>> with torch.cuda.simulate(native=True), torch.cpu.native():
    ...     y = torch.nn.functional.gelu(torch.ones(256, 256))
    >>> round(y[0, 0].item(), 4)
    0.8413
    """

    def __init__(self):
        from tritorch.cuda.native.driver import NativeDriver

        used = driver.current() if driver.available() or driver.hidden() else None
        if used is not None and used.name != "native":
            raise RuntimeError(f"cpu.native: expected no GPU in use, got the {used.name} device; use TRITORCH_CUDA=none")
        self.came = used is None
        if used is None:
            used = NativeDriver()
            used.hidden = True
            driver.use(used)
        driver.share()                                                   # numpy must not meet memory whose kernel still compiles
        _open_all()
        self.before, _serving[0] = _serving[0], used

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        _serving[0] = self.before
        if self.came:
            driver.use(None)
        return False


def from_environment() -> None:
    """What TRITORCH_CPU asks for, at the end of `import tritorch`. Raises ValueError for anything but native and numpy."""
    wanted = os.environ["TRITORCH_CPU"]
    if wanted != "native":
        raise ValueError(f"TRITORCH_CPU: expected native or numpy, got {wanted}")
    native()


_serving: list = [None]             # the driver whose kernels are run, while it is the one in use


@cache
def _open_all():
    """Have every operator choose, those as well that are still to come."""
    from tritorch.ops.optimize import update

    for door in (*dispatch.registry.values(), update):
        _open(door)
    dispatch.watchers.append(_open)


def _open(door):
    """Replace an operator's implementation for the CPU, if it has one for CUDA, by one that chooses."""
    arrays, kernels = door.impls.get("cpu"), door.impls.get("cuda")
    if arrays is not None and kernels is not None and door.__name__ not in NUMPY:
        door.impls["cpu"] = _choosing(getattr(arrays, "arrays", arrays), kernels, PLAIN if door.__name__ in PLAIN_ONES else SMALL)


def _choosing(arrays, kernels, least):
    """The implementation that runs the kernels for what has at least so many bytes."""

    def run(*values):
        found = _serving[0]
        if found is None or _within.kernel or not _is_large(values, least) or driver.current() is not found or found.recording:
            return arrays(*values)
        shown = [_shown(v) for v in values]
        if faults.unread:
            faults.read(0)                                               # of who uses the native device himself
        _within.kernel = True
        try:
            kernels(*shown)
        except NotImplementedError:
            return arrays(*values)
        finally:
            _within.kernel = False
        if faults.unread:
            try:
                faults.read(0)
            except Exception:
                return arrays(*values)                                   # which raises it in the CPU's words
        return None

    run.arrays = arrays
    return run


def _is_large(values, least):
    """Whether one of the tensors has at least so many bytes. False as well where one is not in the CPU's memory, or complex."""
    large = False
    for v in values:
        if isinstance(v, Tensor):
            storage, dtype = v.storage, v.dtype
            if storage.device is not cpu or dtype.is_complex:
                return False
            large = large or storage.nbytes >= least and prod(v.shape) * dtype.itemsize >= least
        elif type(v) is tuple or type(v) is list:
            if any(isinstance(x, Tensor) and (x.storage.device is not cpu or x.dtype.is_complex) for x in v):
                return False
            large = large or sum([x.storage.nbytes for x in v if isinstance(x, Tensor)]) >= least
    return large


def _shown(v):
    """An argument as the kernels' implementation takes it: tensors in the same memory, on the native device."""
    if isinstance(v, Tensor):
        memory = v.storage
        storage = Shown()
        storage.device, storage.nbytes, storage.ptr, storage.owner = _HOME, memory.nbytes, memory.ptr, memory.owner
        storage.version, storage._bytes = 0, None
        out = _new(Tensor)
        out.storage, out.shape, out.strides, out.dtype, out.offset, out.index = storage, v.shape, v.strides, v.dtype, v.offset, 0
        out.node = out.base = out.base_node = out._array = out.form = None
        return out
    if type(v) is tuple or type(v) is list:
        return type(v)(map(_shown, v))
    return _HOME if v is cpu else v
