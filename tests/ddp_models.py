"""Models for the tests of DistributedDataParallel, and the training that ranks with parts of a batch have to do as one process does."""
import contextlib

import numpy as np

import tritorch as torch
from tritorch import nn
from tritorch.nn import functional as F
from tritorch.nn.parallel import DistributedDataParallel as DDP
from tritorch.utils.checkpoint import checkpoint

BATCH = 8


class Images(nn.Module):
    """Convolutions, with a batch norm of all ranks' batches where that is asked for."""

    def __init__(self, norm=None):
        super().__init__()
        self.first, self.norm = nn.Conv2d(2, 4, 3, padding=1), nn.SyncBatchNorm(4) if norm else nn.Identity()
        self.second, self.head = nn.Conv2d(4, 4, 3, groups=2, bias=False), nn.Linear(4, 3)
        self.second.to(memory_format=torch.channels_last)

    def forward(self, x):
        return self.head(self.second(self.norm(self.first(x)).relu()).mean((2, 3)))


class Tied(nn.Module):
    """An embedding whose weight is the last layer's, too."""

    def __init__(self):
        super().__init__()
        self.embedding, self.hidden, self.head = nn.Embedding(7, 6), nn.Linear(6, 6), nn.Linear(6, 7, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, x):
        return self.head(F.gelu(self.hidden(self.embedding(x)))).mean(1)


class Branches(nn.Module):
    """One of two heads, one layer that is never used, and a number."""

    def __init__(self):
        super().__init__()
        self.hidden, self.left, self.right, self.never = nn.Linear(5, 6), nn.Linear(6, 3), nn.Linear(6, 3), nn.Linear(2, 2)
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x, right=False):
        return (self.right if right else self.left)(self.hidden(x).tanh()) * self.scale


class Checkpointed(nn.Module):
    """A layer that is computed again in backward, more than once if `times` is."""

    def __init__(self, use_reentrant=False, times=1):
        super().__init__()
        self.use_reentrant, self.times = use_reentrant, times
        self.first, self.again, self.head = nn.Linear(5, 5), nn.Linear(5, 5), nn.Linear(5, 3)

    def forward(self, x):
        h = self.first(x)
        for _ in range(self.times):
            h = checkpoint(lambda v: self.again(v).tanh(), h, use_reentrant=self.use_reentrant)
        return self.head(h)


class Layers(nn.Module):
    """Layers one after the other."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(5, 5), nn.Tanh(), nn.Linear(5, 5), nn.Tanh(), nn.Linear(5, 3))

    def forward(self, x):
        return self.layers(x)


def filled(model, dtype):
    """The model with the same numbers in every process."""
    rng = np.random.default_rng(0)
    with torch.no_grad():
        for p in model.to(dtype).parameters():
            p.copy_(torch.from_numpy(np.asarray(rng.normal(size=tuple(p.shape)) * 0.4)))
    return model


def batch(model, step, dtype):
    """Inputs and classes of one step."""
    rng = np.random.default_rng(100 + step)
    if isinstance(model, Tied):
        return torch.from_numpy(rng.integers(0, 7, (BATCH, 4))), torch.from_numpy(rng.integers(0, 7, BATCH))
    x = rng.normal(size=(BATCH, 2, 6, 6) if isinstance(model, Images) else (BATCH, 5))
    return torch.from_numpy(x).to(dtype), torch.from_numpy(rng.integers(0, 3, BATCH))


def once(model, x, y, loss):
    """One forward pass and one backward pass."""
    loss(model(x), y).backward()


def two_forwards(model, x, y, loss):
    """Two forward passes and one backward pass."""
    (loss(model(x), y) + loss(model(x * 0.5), y)).backward()


def accumulated(model, x, y, loss):
    """Two of both, of which the first is not reduced."""
    with model.no_sync() if isinstance(model, DDP) else contextlib.nullcontext():
        loss(model(2 * x), y).backward()
    loss(model(x), y).backward()


def train(make, rank, size, dtype=torch.float64, passes=once, clip=None, optimizer=None, steps=2, cuts=None, **options):
    """What is in the parameters after a few steps with this rank's part of each batch, `cuts[rank]:cuts[rank + 1]`."""
    inner = filled(make(), dtype)
    model = DDP(inner, **options) if size > 1 else inner
    optimizer = optimizer(model.parameters()) if optimizer else torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    cuts = cuts or [k * BATCH // size for k in range(size + 1)]
    for step in range(steps):
        x, y = [part[cuts[rank]:cuts[rank + 1]] for part in batch(inner, step, dtype)]
        optimizer.zero_grad(set_to_none=step % 2 == 0)
        passes(model, x.requires_grad_() if x.is_floating_point() else x, y, F.cross_entropy)
        if clip:
            torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
    return [p.detach().numpy() for p in inner.parameters()]
