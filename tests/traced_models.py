"""Models for tests of traces, in a file whose assert statements nobody rewrites."""
import tritorch as torch
from tritorch import nn


class Net(nn.Module):
    """A layer, a parameter and a buffer."""

    def __init__(self):
        super().__init__()
        self.layer, self.weight = nn.Linear(3, 3), nn.Parameter(torch.randn(3))
        self.register_buffer("shift", torch.ones(3))

    def forward(self, x):
        return (self.layer(x) * self.weight + self.shift).relu()


class Checked(Net):
    """What it computes depends on no value, but an assert statement does."""

    def forward(self, x):
        assert x.sum() > 0, "positive"
        y = x + self.shift
        return y
