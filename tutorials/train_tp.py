"""Several processes share every layer of one network: tensor and sequence parallelism by DTensors.

    python -m tritorch.distributed.run --nproc-per-node 2 tutorials/train_tp.py
    python tutorials/train_tp.py                                   # one process, the same losses

A transformer learns to count: after "7 8 9 10" comes "11". Of each Linear every process has some rows or columns (the heads of attention,
the features inside of the MLP); between the layers each has a part of the sequence. `plan` says so, layer by layer, and the network below
knows nothing of it. What travels: before a pair of layers the parts of the sequence are gathered, and after it sums are formed of which
each process gets its part. Change the imports below to `torch`, the command to torchrun, and the same file runs on PyTorch.
"""
import argparse

import tritorch as torch
import tritorch.distributed as dist
from tritorch import nn
from tritorch.distributed.tensor import Replicate, Shard
from tritorch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)
from tritorch.nn import functional as F

SYMBOLS, WIDTH, HEADS, LAYERS, CONTEXT, BATCH = 50, 32, 4, 2, 16, 8


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.query, self.key, self.value, self.out = [nn.Linear(WIDTH, WIDTH) for _ in range(4)]

    def forward(self, x):
        heads = [layer(x).unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2) for layer in (self.query, self.key, self.value)]
        return self.out(F.scaled_dot_product_attention(*heads, is_causal=True).transpose(1, 2).flatten(2))


class MLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        return self.down(F.gelu(self.up(x)))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.attention, self.norm2, self.mlp = nn.LayerNorm(WIDTH), Attention(), nn.LayerNorm(WIDTH), MLP()

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Transformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.symbols, self.places = nn.Embedding(SYMBOLS, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks, self.norm, self.head = nn.Sequential(*[Block() for _ in range(LAYERS)]), nn.LayerNorm(WIDTH), nn.Linear(WIDTH, SYMBOLS)

    def forward(self, tokens):
        x = self.symbols(tokens) + self.places(torch.arange(tokens.shape[1]))
        return self.head(self.norm(self.blocks(x)))


def plan():
    """Which layer is cut how. * stands for the number of a block."""
    gathered = PrepareModuleInput(input_layouts=Shard(1), desired_input_layouts=Replicate())
    return {
        "symbols": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),                  # each process some symbols
        "places": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(0)),
        "blocks.*.norm1": SequenceParallel(),                                                            # a part of the sequence
        "blocks.*.attention": gathered,
        **{f"blocks.*.attention.{name}": ColwiseParallel() for name in ("query", "key", "value")},       # some heads
        "blocks.*.attention.out": RowwiseParallel(output_layouts=Shard(1)),                              # back to parts of the sequence
        "blocks.*.norm2": SequenceParallel(),
        "blocks.*.mlp": gathered,
        "blocks.*.mlp.up": ColwiseParallel(),
        "blocks.*.mlp.down": RowwiseParallel(output_layouts=Shard(1)),
        "norm": SequenceParallel(),
        "head": ColwiseParallel(input_layouts=Shard(1), use_local_output=False),                         # logits cut along the symbols
    }


def train(steps, mesh=None):
    """The losses of so many steps, on a mesh of processes or on this one alone."""
    torch.manual_seed(0)                                                 # the same in all processes: weights and batches
    model = Transformer()
    if mesh is not None:
        parallelize_module(model, mesh, plan())
    optimizer, losses = torch.optim.AdamW(model.parameters(), lr=3e-3), []
    for _ in range(steps):
        text = (torch.randint(SYMBOLS, (BATCH, 1)) + torch.arange(CONTEXT + 1)) % SYMBOLS
        with loss_parallel():                                            # the logits stay where they are
            logits = model(text[:, :-1])
            loss = F.cross_entropy(logits.flatten(0, 1), text[:, 1:].flatten())
            optimizer.zero_grad()
            loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    return losses


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=100)
    args = parser.parse_args(arguments)
    torch.set_num_threads(1)                                             # the processes are the parallelism
    mesh = dist.init_device_mesh("cpu", (dist.get_world_size(),)) if start() else None
    losses = train(args.steps, mesh)
    if mesh is None or mesh.get_rank() == 0:
        size = 1 if mesh is None else mesh.size()
        print(f"{size} processes, loss {losses[0]:.4f} at the start, {losses[-1]:.4f} after {args.steps} steps")
    if mesh is not None:
        dist.destroy_process_group()


def start():
    """Meet the processes that the launcher has started; False if it was not there."""
    if dist.is_torchelastic_launched():
        dist.init_process_group("gloo")
    return dist.is_torchelastic_launched()


if __name__ == "__main__":
    main()
