"""The names of backends, what devices they serve, and who makes them."""
import importlib.util
import warnings
from collections import namedtuple

from tritorch.cuda import driver
from tritorch.errors import check, sentence


class Backend(str):
    """The name of a backend, in lower case: "gloo", "nccl", "mpi", or one of `register_backend`.

    >>> from tritorch import distributed as dist
    >>> dist.Backend("GLOO"), dist.Backend.NCCL
    ('gloo', 'nccl')
    """

    UNDEFINED, GLOO, NCCL, UCC, MPI, XCCL = "undefined", "gloo", "nccl", "ucc", "mpi", "xccl"
    _BackendPlugin = namedtuple("_BackendPlugin", ["creator_fn", "extended_api"])
    _plugins = {}
    backend_list = [UNDEFINED, GLOO, NCCL, MPI]
    default_device_backend_map = {"cpu": GLOO, "cuda": NCCL}
    backend_capability = {GLOO: ["cpu", "cuda"], NCCL: ["cuda"], MPI: ["cpu", "cuda"]}

    def __new__(cls, name):
        """The name in lower case."""
        check(isinstance(name, str), "Backend", "a str", type(name).__name__, error=ValueError)
        return name.lower()

    @classmethod
    def register_backend(cls, name, func, extended_api=False, devices=None):
        """Make a backend known: `func(store, rank, world_size, timeout)` returns a ProcessGroup of one's own.

        With `extended_api` it is called with two objects, the first of which has `store`, `group_rank`, `group_size`, `timeout`, `group_id`
        and `global_ranks_in_group`, the second is `pg_options`. `devices` are the types of devices whose tensors it takes ("cpu", "cuda").
        """
        key = name.lower()
        if not hasattr(cls, name.upper()):
            setattr(cls, name.upper(), key)
        if key not in cls.backend_list:
            cls.backend_list.append(key)
        if devices is None:
            warnings.warn(f"register_backend: {name} did not say which devices it serves; taken to be cpu and cuda", stacklevel=2)
        devices = ["cpu", "cuda"] if devices is None else [devices] if isinstance(devices, str) else list(devices)
        for device in devices:
            cls.default_device_backend_map.setdefault(device, key)
        cls.backend_capability[key] = devices
        cls._plugins[name.upper()] = cls._BackendPlugin(func, extended_api)


class BackendConfig:
    """Which backend serves which type of device: of "gloo", or "cpu:gloo,cuda:nccl", or None for what there is."""

    def __init__(self, backend):
        self.device_backend_map = dict(_pairs(backend))

    def get_device_backend_map(self):
        """The backends by device."""
        return self.device_backend_map

    def __repr__(self):
        return ",".join(f"{device}:{name}" for device, name in self.device_backend_map.items())


def _pairs(backend):
    if backend is None or backend == Backend.UNDEFINED:
        yield "cpu", Backend.GLOO
        yield "cuda", Backend.default_device_backend_map["cuda"] if is_nccl_available() else Backend.GLOO
    elif ":" in backend:
        for pair in backend.lower().split(","):
            device, _, name = pair.partition(":")
            check(device in ("cpu", "cuda") and name in Backend.backend_list, "init_process_group",
                  "backends by device, like cpu:gloo,cuda:nccl", repr(backend), error=ValueError)
            yield device, name
    else:
        for device in Backend.backend_capability[backend.lower()]:
            yield device, backend.lower()


def known(name, backend):
    """ValueError for a backend that nobody made known."""
    if backend is not None and ":" not in backend and (backend.lower() not in Backend.backend_list):
        raise ValueError(sentence(name, f"a backend among {', '.join(Backend.backend_list[1:])}", repr(backend),
                                  use="Backend.register_backend for one of your own"))


def is_backend_available(backend):
    """Whether a backend can be used here.

    >>> from tritorch import distributed as dist
    >>> dist.is_backend_available("gloo"), dist.is_backend_available("pigeons")
    (True, False)
    """
    found = {"gloo": is_gloo_available, "nccl": is_nccl_available, "mpi": is_mpi_available}.get(backend.lower())
    return found() if found else backend.upper() in Backend._plugins


def is_gloo_available():
    """Always True: it is part of tritorch."""
    return True


def is_nccl_available():
    """Whether nccl4py is installed (`pip install tritorch[nccl]`)."""
    return _installed("nccl.core")


def is_mpi_available():
    """Whether mpi4py is installed (`pip install tritorch[mpi]`; it needs the MPI library of the system, too)."""
    return _installed("mpi4py")


def is_ucc_available():
    """Always False."""
    return False


def is_xccl_available():
    """Always False."""
    return False


def _installed(name):
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False


def get_default_backend_for_device(device):
    """The backend that a device's tensors get: "gloo" for the CPU, "nccl" for CUDA.

    >>> from tritorch import distributed as dist
    >>> dist.get_default_backend_for_device("cpu")
    'gloo'
    """
    kind = str(getattr(device, "type", device)).partition(":")[0]
    check(kind in Backend.default_device_backend_map, "get_default_backend_for_device", "a device with a backend", repr(device),
          error=ValueError)
    return Backend.default_device_backend_map[kind]


class BackendOptions:
    """What a backend with the extended interface is told."""

    def __init__(self, store, rank, size, timeout, name, ranks):
        self.store, self.group_rank, self.group_size, self.timeout = store, rank, size, timeout
        self.group_id, self.global_ranks_in_group = name, ranks


def make(name, store, rank, size, timeout, group_name, ranks, options):
    """The backend of that name for a group."""
    plugin = Backend._plugins.get(name.upper())
    if plugin is not None:
        if plugin.extended_api:
            return plugin.creator_fn(BackendOptions(store, rank, size, timeout, group_name, ranks), options)
        return plugin.creator_fn(store, rank, size, timeout)
    if name == Backend.GLOO:
        from tritorch.distributed.gloo.group import ProcessGroupGloo

        return ProcessGroupGloo(store, rank, size, timeout)
    check(is_backend_available(name), "init_process_group", f"the backend {name}", "none installed", use=f"pip install tritorch[{name}]")
    if name == Backend.MPI:
        from tritorch.distributed.mpi import ProcessGroupMPI

        return ProcessGroupMPI(ranks, timeout)
    check(driver.available(), "init_process_group", "a CUDA device for nccl", "none")
    from tritorch.distributed.nccl import ProcessGroupNCCL

    return ProcessGroupNCCL(store, rank, size, timeout)
