"""A convolutional network that reads handwritten digits: 97 % of those it has never seen, in a few seconds on a CPU.

    pip install scikit-learn                                       # for its 1797 digits of 8x8 pixels
    python tutorials/digits_cnn.py
    TRITORCH_CUDA=simulated python tutorials/digits_cnn.py --device cuda --steps 3       # the Triton kernels, on a simulated GPU

Change the import below to `import torch` and the same file runs on PyTorch.
"""
import argparse

from sklearn.datasets import load_digits

import tritorch as torch
from tritorch import nn
from tritorch.nn import functional as F
from tritorch.utils.data import DataLoader, TensorDataset


def datasets():
    """Five sixths of the 1797 digits to learn from, every sixth to be tested on; pixels from 0 to 1."""
    digits = load_digits()
    images = torch.from_numpy(digits.images).float()[:, None] / 16
    labels = torch.from_numpy(digits.target).long()
    test = torch.arange(len(labels)) % 6 == 0
    return TensorDataset(images[~test], labels[~test]), TensorDataset(images[test], labels[test])


class Net(nn.Module):
    """Two convolutions find strokes, a pool forgets where exactly they were, two linear layers name the digit."""

    def __init__(self):
        super().__init__()
        self.find = nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2))
        self.name = nn.Sequential(nn.Flatten(), nn.Linear(32 * 4 * 4, 64), nn.ReLU(), nn.Dropout(0.3), nn.Linear(64, 10))

    def forward(self, images):
        return self.name(self.find(images))


def train(model, dataset, device, epochs, steps=None, seed=0):
    """AdamW on shuffled batches of 64; yields the loss of every step."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    loader = DataLoader(dataset, batch_size=64, shuffle=True, generator=torch.Generator().manual_seed(seed))
    done = 0
    model.train()
    for _ in range(epochs):
        for images, labels in loader:
            loss = F.cross_entropy(model(images.to(device)), labels.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            yield loss.item()
            done += 1
            if done == steps:
                return


@torch.no_grad()
def accuracy(model, dataset, device):
    model.eval()
    images, labels = dataset.tensors
    return (model(images.to(device)).argmax(1).cpu() == labels).float().mean().item()


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--steps", type=int, help="stop after so many steps")
    args = parser.parse_args(arguments)
    torch.manual_seed(0)
    model = Net().to(args.device)
    learn, test = datasets()
    for step, loss in enumerate(train(model, learn, args.device, args.epochs, args.steps), 1):
        if step % 50 == 0 or step == args.steps:
            print(f"step {step} loss {loss:.4f}", flush=True)
    print(f"accuracy on {len(test)} digits never seen: {100 * accuracy(model, test, args.device):.1f} %")


if __name__ == "__main__":
    main()
