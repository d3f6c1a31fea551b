"""For which GPUs there is code, and what they are to each other."""
from tritorch.cuda import driver
from tritorch.cuda.device import device_count, get_device_capability, get_device_properties, index_of, is_available


def get_arch_list() -> list[str]:
    """The architectures of this machine's GPUs, "sm_90" for example: kernels are compiled for them when first used. Empty without one."""
    return sorted({f"sm_{major}{minor}" for major, minor in map(get_device_capability, range(device_count()))}) if is_available() else []


def get_gencode_flags() -> str:
    """The flags by which nvcc would compile for `get_arch_list`."""
    return " ".join(f"-gencode compute=compute_{arch[3:]},code={arch}" for arch in get_arch_list())


def can_device_access_peer(device, peer_device) -> bool:
    """Whether kernels on one GPU can read the memory of another; not, as in PyTorch, of itself. Raises AssertionError for a device that is
    not there."""
    here, there = index_of(device), index_of(peer_device)
    for index in (here, there):
        get_device_properties(index)
    return here != there and driver.current().can_access_peer(here, there)
