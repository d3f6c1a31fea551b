"""The state of random numbers: generators, seeds, saving and restoring. Numbers themselves come from `tritorch.rand` and its like."""
from __future__ import annotations

import contextlib
import secrets

from tritorch.cuda.random import cuda_device, cuda_devices
from tritorch.device import cpu
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


__all__ = ["Generator", "default_generator", "fork_rng", "get_rng_state", "initial_seed", "manual_seed", "seed", "set_rng_state"]
