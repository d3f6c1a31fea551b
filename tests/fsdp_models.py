"""Models for the tests of fully_shard, and the training that ranks with parts of a batch have to do as one process does."""
from dataclasses import dataclass

import numpy as np

import tritorch as torch
from tritorch import distributed as dist
from tritorch import nn
from tritorch.distributed.fsdp import fully_shard
from tritorch.nn import functional as F
from tritorch.utils.checkpoint import checkpoint

WIDTH, HEADS, WORDS, BATCH = 6, 2, 7, 8


@dataclass
class Hidden:
    """What goes from block to block, in a class of the user's."""

    x: torch.Tensor
    depth: int = 0


class Block(nn.Module):
    """A transformer block, of sizes that few numbers divide."""

    def __init__(self, width=WIDTH, inner=13):
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width, bias=False)
        self.mlp = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, inner), nn.GELU(), nn.Linear(inner, width))

    def attend(self, x):
        q, k, v = self.qkv(self.norm(x)).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        return self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))

    def forward(self, x):
        x = x + self.attend(x)
        return x + self.mlp(x)


class Inside(Block):
    """A block that computes its second half again in backward."""

    def forward(self, x):
        x = x + checkpoint(self.attend, x, use_reentrant=False)
        return x + checkpoint(self.mlp, x, use_reentrant=True)


class Wrapped(Block):
    """A block that takes and returns an object."""

    def forward(self, hidden):
        return Hidden(super().forward(hidden.x), hidden.depth + 1)


class Language(nn.Module):
    """An embedding, blocks, and a head. `again`: how blocks are computed again in backward (None: not at all)."""

    def __init__(self, block=Block, depth=3, tied=False, again=None):
        super().__init__()
        self.again = again
        self.embedding, self.norm, self.head = nn.Embedding(WORDS, WIDTH), nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS, bias=False)
        self.blocks = nn.ModuleList([block() for _ in range(depth)])
        if tied:
            self.head.weight = self.embedding.weight

    def forward(self, ids):
        x = self.embedding(ids)
        for block in self.blocks:
            if isinstance(block, Wrapped):
                x = block(Hidden(x)).x
            elif self.again is None:
                x = block(x)
            else:
                x = checkpoint(block, x, use_reentrant=self.again)
        return self.head(self.norm(x))


class Few(nn.Module):
    """Fewer rows than ranks, a parameter of no elements, a frozen one, a buffer, and an embedding whose weight is not read in backward."""

    def __init__(self):
        super().__init__()
        self.embedding, self.narrow, self.wide = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, 2), nn.Linear(2, WORDS)
        self.nothing, self.frozen = nn.Parameter(torch.zeros(0, 3)), nn.Parameter(torch.ones(3, 2), requires_grad=False)
        self.register_buffer("scale", torch.full((2,), 0.5))

    def forward(self, ids):
        x = self.narrow(self.embedding(ids)).tanh()
        return self.wide(x @ self.frozen.mT @ self.frozen * self.scale) + self.nothing.sum()


def filled(model, dtype):
    """The model with the same numbers in every process."""
    rng = np.random.default_rng(0)
    with torch.no_grad():
        for p in model.to(dtype).parameters():
            p.copy_(torch.from_numpy(np.asarray(rng.normal(size=tuple(p.shape)) * 0.4)))
    return model


def batch(step, rank=0, size=1):
    """This rank's part of the words of a step, and of the words that come next."""
    ids = np.random.default_rng(100 + step).integers(0, WORDS, (BATCH, 5))[rank * BATCH // size:(rank + 1) * BATCH // size]
    return torch.from_numpy(ids[:, :-1]), torch.from_numpy(ids[:, 1:])


def loss_of(model, ids, wanted):
    return F.cross_entropy(model(ids).flatten(0, 1), wanted.flatten())


def once(model, step, *place):
    """One pass."""
    loss = loss_of(model, *batch(step, *place))
    loss.backward()
    return loss


def twice(model, step, *place):
    """Two forward passes and one backward pass, and one without gradients before."""
    with torch.no_grad():
        model(batch(9, *place)[0])
    loss = loss_of(model, *batch(step, *place)) + loss_of(model, *batch(step + 50, *place))
    loss.backward()
    return loss


def by_blocks(model, **options):
    """Each block is a group, and what is left of the model."""
    for block in model.blocks:
        fully_shard(block, **options)
    return fully_shard(model, **options)


def whole(model, **options):
    """All of the model is one group."""
    return fully_shard(model, **options)


def adamw(parameters):
    return torch.optim.AdamW(parameters, lr=1e-2, weight_decay=0.1, eps=1e-3)    # some gradients are 0 but for rounding


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def train(make, rank, size, shard=by_blocks, passes=once, optimizer=adamw, clip=None, steps=2, dtype=torch.float64, setup=None, **options):
    """(losses, parameters) after a few steps with this rank's part of each batch."""
    model = filled(make(), dtype)
    if size > 1:
        shard(model, **options)
        if setup:
            setup(model)
    optimizer, losses = optimizer([p for p in model.parameters() if p.requires_grad]), []
    for step in range(steps):
        optimizer.zero_grad(set_to_none=step != 1)
        losses.append(passes(model, step, rank, size).detach())
        if clip:
            losses.append(torch.nn.utils.clip_grad_norm_(model.parameters(), clip))
        optimizer.step()
    if size > 1:
        losses = [x.full_tensor() if hasattr(x, "full_tensor") else average(x) for x in losses]
    return [x.item() for x in losses], [full(p) for p in model.parameters()]


def average(x):
    dist.all_reduce(x, dist.ReduceOp.AVG)
    return x


def full(p):
    """A parameter as one array."""
    return (p.full_tensor() if hasattr(p, "full_tensor") else p).detach().numpy().copy()
