"""The state of random numbers: generators, seeds, saving and restoring. Numbers themselves come from `tritorch.rand` and its like."""
from __future__ import annotations

import contextlib
import secrets

from tritorch import cuda
from tritorch.cuda import driver
from tritorch.device import as_device, cpu, device
from tritorch.errors import explained
from tritorch.generator import Generator, seed_all
from tritorch.generator import default_generator as generator_of

default_generator = generator_of(cpu)


@explained
def manual_seed(seed):
    """Seed the default generators of the CPU and of all CUDA devices; the CPU's is returned.

    >>> import tritorch as torch
    >>> a = torch.manual_seed(5) and torch.rand(3); bool((a == (torch.manual_seed(5) and torch.rand(3))).all())
    True
    """
    return seed_all(int(seed))


def seed():
    """Seed all default generators with a number from the operating system, and return it."""
    return seed_all(secrets.randbits(53)).initial_seed()


def initial_seed():
    """The seed of the CPU's default generator."""
    return generator_of(cpu).initial_seed()


def get_rng_state():
    """The state of the CPU's default generator: 16 bytes.

    >>> import tritorch as torch
    >>> state = torch.get_rng_state(); a = torch.rand(2); torch.set_rng_state(state); bool((torch.rand(2) == a).all())
    True
    """
    return generator_of(cpu).get_state()


def set_rng_state(new_state):
    """Put the CPU's default generator in a state that `get_rng_state` returned."""
    generator_of(cpu).set_state(new_state)


@contextlib.contextmanager
def fork_rng(devices=None, enabled=True):
    """Restore the default generators of the CPU and of `devices` (default: all CUDA devices) at the end of a with block.

    >>> import tritorch as torch
    >>> with torch.random.fork_rng():
    ...     a = torch.rand(2)
    >>> bool((torch.rand(2) == a).all())
    True
    """
    if not enabled:
        yield
        return
    places = [cpu, *(cuda_devices() if devices is None else map(cuda_device, devices))]
    before = [(g, g.get_state()) for g in map(generator_of, places)]
    try:
        yield
    finally:
        for generator, state in before:
            generator.set_state(state)


# ------------------------------------------------------------------ tritorch.cuda.manual_seed and its like
def cuda_device(index):
    """The CUDA device of an index, a name or a device."""
    return device("cuda", index) if isinstance(index, int) else as_device(index)


def cuda_devices():
    """All CUDA devices."""
    return [device("cuda", i) for i in range(driver.count())]


def cuda_manual_seed(seed):
    """Seed the default generator of the current CUDA device."""
    generator_of("cuda").manual_seed(seed)


def cuda_manual_seed_all(seed):
    """Seed the default generators of all CUDA devices."""
    for place in cuda_devices():
        generator_of(place).manual_seed(seed)


def cuda_seed():
    """Seed the default generator of the current CUDA device with a number from the operating system."""
    generator_of("cuda").seed()


def cuda_seed_all():
    """Seed the default generators of all CUDA devices with one number from the operating system."""
    cuda_manual_seed_all(secrets.randbits(53))


def cuda_initial_seed():
    """The seed of the current CUDA device's default generator."""
    return generator_of("cuda").initial_seed()


def cuda_get_rng_state(device="cuda"):
    """The state of a CUDA device's default generator: 16 bytes on the CPU."""
    return generator_of(cuda_device(device)).get_state()


def cuda_set_rng_state(new_state, device="cuda"):
    """Put a CUDA device's default generator in a state that `get_rng_state` returned."""
    generator_of(cuda_device(device)).set_state(new_state)


def cuda_get_rng_state_all():
    """The states of all CUDA devices' default generators."""
    return [cuda_get_rng_state(place) for place in cuda_devices()]


def cuda_set_rng_state_all(new_states):
    """Put all CUDA devices' default generators in the states that `get_rng_state_all` returned."""
    for place, state in zip(cuda_devices(), new_states):
        cuda_set_rng_state(state, place)


for f in (cuda_manual_seed, cuda_manual_seed_all, cuda_seed, cuda_seed_all, cuda_initial_seed, cuda_get_rng_state, cuda_set_rng_state,
          cuda_get_rng_state_all, cuda_set_rng_state_all):
    setattr(cuda, f.__name__.removeprefix("cuda_"), f)       # they live here because the CUDA layer lies under the generators

__all__ = ["Generator", "default_generator", "fork_rng", "get_rng_state", "initial_seed", "manual_seed", "seed", "set_rng_state"]
