"""The generators of CUDA devices: tritorch.cuda.manual_seed and its like, which lie above the CUDA layer because generators do."""
from __future__ import annotations

import secrets

from tritorch import cuda
from tritorch.cuda import driver
from tritorch.device import as_device, device
from tritorch.generator import default_generator

__all__ = ["get_rng_state", "get_rng_state_all", "initial_seed", "manual_seed", "manual_seed_all", "seed", "seed_all", "set_rng_state",
           "set_rng_state_all"]


def cuda_device(index):
    """The CUDA device of an index, a name or a device."""
    return device("cuda", index) if isinstance(index, int) else as_device(index)


def cuda_devices():
    """All CUDA devices."""
    return [device("cuda", i) for i in range(driver.count())]


def manual_seed(seed):
    """Seed the default generator of the current CUDA device."""
    default_generator("cuda").manual_seed(seed)


def manual_seed_all(seed):
    """Seed the default generators of all CUDA devices."""
    for place in cuda_devices():
        default_generator(place).manual_seed(seed)


def seed():
    """Seed the default generator of the current CUDA device with a number from the operating system."""
    default_generator("cuda").seed()


def seed_all():
    """Seed the default generators of all CUDA devices with one number from the operating system."""
    manual_seed_all(secrets.randbits(53))


def initial_seed():
    """The seed of the current CUDA device's default generator."""
    return default_generator("cuda").initial_seed()


def get_rng_state(device="cuda"):
    """The state of a CUDA device's default generator: 16 bytes on the CPU."""
    return default_generator(cuda_device(device)).get_state()


def set_rng_state(new_state, device="cuda"):
    """Put a CUDA device's default generator in a state that `get_rng_state` returned."""
    default_generator(cuda_device(device)).set_state(new_state)


def get_rng_state_all():
    """The states of all CUDA devices' default generators."""
    return [get_rng_state(place) for place in cuda_devices()]


def set_rng_state_all(new_states):
    """Put all CUDA devices' default generators in the states that `get_rng_state_all` returned."""
    for place, state in zip(cuda_devices(), new_states):
        set_rng_state(state, place)


for name in __all__:
    setattr(cuda, name, globals()[name])
