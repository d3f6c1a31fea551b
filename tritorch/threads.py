"""How many threads numpy's matrix products use on the CPU, and kernels on the native device."""
import os
import warnings

from tritorch.cuda import driver


def _pools():
    try:
        from threadpoolctl import ThreadpoolController
    except ImportError:
        return None
    return ThreadpoolController().select(user_api="blas")


def get_num_threads():
    """The threads of a matrix product on the CPU; the number of processors where threadpoolctl is not installed.

    >>> import tritorch; tritorch.get_num_threads() >= 1
    True
    """
    pools = _pools()
    return max((library.num_threads for library in pools.lib_controllers), default=1) if pools else os.cpu_count() or 1


def set_num_threads(n):
    """Have matrix products on the CPU use n threads; it takes the package threadpoolctl, and warns without it. The kernels of the native
    device (`cuda.simulate(native=True)`), if it is in use, do so too."""
    if driver.chosen() and driver.current().name == "native":
        driver.current().threads = max(int(n), 1)
    pools = _pools()
    if pools is None:
        warnings.warn("set_num_threads: numpy's threads can be set by the package threadpoolctl, which is not installed; use "
                      "OPENBLAS_NUM_THREADS", stacklevel=2)
        return
    for library in pools.lib_controllers:
        library.set_num_threads(n)
