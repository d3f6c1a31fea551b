"""Several processes train one network of which each holds a part: fully_shard, and checkpoints that do not depend on how many there are.

    pip install scikit-learn                                       # for its 1797 digits of 8x8 pixels
    python -m tritorch.distributed.run --nproc-per-node 2 tutorials/train_fsdp.py --folder /tmp/digits
    python -m tritorch.distributed.run --nproc-per-node 4 tutorials/train_fsdp.py --folder /tmp/digits --epochs 16      # goes on
    python tutorials/train_fsdp.py                                 # one process with whole batches

DistributedDataParallel (train_ddp.py) has a copy of the network, of its gradients and of the optimizer's moments in every process. Here
each process has its share of all three. Before a block computes, its parameters are gathered from all; after that the copies are given
back. After its backward pass the gradients are averaged, and each process keeps those of its share. What the n processes learn is what
one would, to the last rounding. Change the imports below (and in digits_cnn.py) to `torch`, the command to torchrun, and the same file
runs on PyTorch.
"""
import argparse
import os

from digits_cnn import accuracy, datasets

import tritorch as torch
import tritorch.distributed as dist
import tritorch.distributed.checkpoint as dcp
from tritorch import nn
from tritorch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from tritorch.distributed.fsdp import fully_shard
from tritorch.nn import functional as F
from tritorch.utils.data import DataLoader, DistributedSampler

BATCH, WIDTH, HEADS = 64, 48, 4                                          # BATCH: of all processes together


class Block(nn.Module):
    """A transformer block: rows of the image look at each other, then each is thought about alone."""

    def __init__(self):
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x):
        q, k, v = self.qkv(self.norm(x)).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return x + self.mlp(x)


class Reader(nn.Module):
    """A digit is a sequence of 8 rows of 8 pixels."""

    def __init__(self, depth=3):
        super().__init__()
        self.rows, self.places = nn.Linear(8, WIDTH), nn.Parameter(0.1 * torch.randn(8, WIDTH))
        self.blocks, self.head = nn.ModuleList([Block() for _ in range(depth)]), nn.Linear(WIDTH, 10)

    def forward(self, images):
        x = self.rows(images.squeeze(1)) + self.places
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean(1))


def sharded(model):
    """Every block is gathered by itself, and what is left of the model as one more group."""
    mesh = dist.init_device_mesh("cpu", (dist.get_world_size(),))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh)


class Training:
    """What a checkpoint has. `dcp.save` asks for its state dict, `dcp.load` fills it, in any number of processes."""

    def __init__(self, model, optimizer):
        self.model, self.optimizer, self.epoch = model, optimizer, 0

    def state_dict(self):
        of_model, of_optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": of_model, "optimizer": of_optimizer, "epoch": self.epoch}

    def load_state_dict(self, state):
        set_state_dict(self.model, self.optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
        self.epoch = state["epoch"]


def train_epoch(training, dataset, steps=None):
    """AdamW on this process's part of the batches; yields the average loss of every step, the same in all processes."""
    model, optimizer, sampler = training.model, training.optimizer, DistributedSampler(dataset)
    sampler.set_epoch(training.epoch)
    model.train()
    for k, (images, labels) in enumerate(DataLoader(dataset, batch_size=BATCH // dist.get_world_size(), sampler=sampler), 1):
        loss = F.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)          # the norm is that of all shards together
        optimizer.step()
        total = loss.detach().clone()
        dist.all_reduce(total)
        yield total.item() / dist.get_world_size()
        if k == steps:
            return
    training.epoch += 1


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--steps", type=int, help="stop after so many steps of an epoch")
    parser.add_argument("--folder", help="save here after every epoch, and go on from what is here")
    args = parser.parse_args(arguments)
    torch.set_num_threads(1)                                             # the processes are the parallelism
    if dist.is_torchelastic_launched():
        dist.init_process_group("gloo")
    else:
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    torch.manual_seed(0)                                                 # all processes make the same network, and each keeps its share
    model, (learn, test) = sharded(Reader()), datasets()
    training = Training(model, torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.05))
    first = dist.get_rank() == 0
    if args.folder and os.path.isdir(args.folder) and os.listdir(args.folder):
        dcp.load({"training": training}, checkpoint_id=args.folder)
    held, numbers = sum(p.to_local().numel() for p in model.parameters()), sum(p.numel() for p in model.parameters())
    if first:
        print(f"processes: {dist.get_world_size()}; this one holds {held} of {numbers} numbers; epochs done: {training.epoch}", flush=True)
    for epoch in range(training.epoch, args.epochs):
        losses = list(train_epoch(training, learn, args.steps))
        if first:
            print(f"epoch {epoch + 1} loss {losses[0]:.4f} to {losses[-1]:.4f}", flush=True)
        if args.folder:
            dcp.save({"training": training}, checkpoint_id=args.folder)
        if args.steps:
            break
    right = accuracy(model, test, "cpu")                                 # by all processes: each has a share of what it takes
    if first:
        print(f"accuracy on {len(test)} digits never seen: {100 * right:.1f} %")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
