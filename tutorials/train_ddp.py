"""Several processes train one network, each on its part of every batch: DistributedDataParallel.

    pip install scikit-learn                                       # for its 1797 digits of 8x8 pixels
    python -m tritorch.distributed.run --nproc-per-node 2 tutorials/train_ddp.py
    python tutorials/train_ddp.py                                  # one process with whole batches

Every process has a copy of the network. In backward the gradients become the averages over all processes, so that equal optimizers keep
the copies equal, bit for bit, and n processes with batches of 64/n digits do, but for dropout, what one does with 64. The network is that
of digits_cnn.py. Change the imports below (and there) to `torch`, the command to torchrun, and the same file runs on PyTorch.
"""
import argparse

from digits_cnn import Net, accuracy, datasets

import tritorch as torch
import tritorch.distributed as dist
from tritorch.nn import functional as F
from tritorch.nn.parallel import DistributedDataParallel
from tritorch.utils.data import DataLoader, DistributedSampler

BATCH = 64                                                               # of all processes together


def train(model, dataset, epochs, steps=None):
    """AdamW on this process's part of the batches; yields the average loss of every step, the same in all processes."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    sampler = DistributedSampler(dataset)                                # every n-th digit, another order in every epoch
    loader = DataLoader(dataset, batch_size=BATCH // dist.get_world_size(), sampler=sampler)
    done = 0
    model.train()
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        for images, labels in loader:
            loss = F.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()                                              # here the gradients travel, while others are still computed
            optimizer.step()
            total = loss.detach().clone()
            dist.all_reduce(total)
            yield total.item() / dist.get_world_size()
            done += 1
            if done == steps:
                return


def checksum(model):
    """The sums of all parameters, of each process: they tell whether the copies are equal."""
    mine = torch.stack([p.detach().double().sum() for p in model.parameters()])
    all_sums = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(all_sums, mine)
    return all_sums


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--steps", type=int, help="stop after so many steps")
    args = parser.parse_args(arguments)
    torch.set_num_threads(1)                                             # the processes are the parallelism
    if dist.is_torchelastic_launched():
        dist.init_process_group("gloo")
    else:
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(rank)                                              # dropout differs; the parameters are those of rank 0
    model, (learn, test) = DistributedDataParallel(Net()), datasets()
    for step, loss in enumerate(train(model, learn, args.epochs, args.steps), 1):
        if rank == 0 and (step % 50 == 0 or step == args.steps):
            print(f"step {step} loss {loss:.4f}", flush=True)
    sums = checksum(model)
    if rank == 0:
        print(f"processes: {size}, with equal parameters: {all(torch.equal(sums[0], other) for other in sums)}")
        print(f"accuracy on {len(test)} digits never seen: {100 * accuracy(model.module, test, 'cpu'):.1f} %")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
