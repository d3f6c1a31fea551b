"""Several processes train one network, without locks: Hogwild (Recht, Ré, Wright, Niu, 2011, https://arxiv.org/abs/1106.5730).

    pip install scikit-learn                                       # for its 1797 digits of 8x8 pixels
    python tutorials/hogwild.py --processes 2

The parameters lie in memory that all processes see. Each computes gradients of its own batches and adds them to what is there at that
moment, maybe while another does so; that this now and then loses a part of a step does no harm. The network is that of digits_cnn.py.
Change the import below (and there) to `import torch` and the same file runs on PyTorch.
"""
import argparse

from digits_cnn import Net, accuracy, datasets

import tritorch as torch
from tritorch import multiprocessing as mp
from tritorch.nn import functional as F
from tritorch.utils.data import DataLoader


def train(number, model, counts, epochs):
    """One process: SGD on the shared parameters, in an order of its own. Gradients are this process's: `.grad` is not shared."""
    torch.set_num_threads(1)                                             # the processes are the parallelism
    torch.manual_seed(number)
    learn, _ = datasets()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    model.train()
    for _ in range(epochs):
        for images, labels in DataLoader(learn, batch_size=32, shuffle=True):
            loss = F.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            counts[number] += len(images)                                # seen by the parent as it happens


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=8, help="of all processes together")
    args = parser.parse_args(arguments)
    torch.manual_seed(0)
    model, (_, test) = Net().share_memory(), datasets()
    counts = torch.zeros(args.processes, dtype=torch.int64).share_memory_()
    workers = mp.spawn(train, (model, counts, -(-args.epochs // args.processes)), nprocs=args.processes, join=False)
    tell = lambda: print(f"images seen {counts.tolist()}, accuracy on others {100 * accuracy(model, test, 'cpu'):.1f} %", flush=True)
    while not workers.join(timeout=1.0):
        tell()
    tell()


if __name__ == "__main__":
    main()
