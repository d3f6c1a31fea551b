"""Layers on a CUDA device: the same numbers and gradients as on the CPU, before and after a move."""
import copy

import numpy as np
import pytest

import tritorch as torch
from tritorch import nn


class Words(nn.Module):
    """A little of everything that a language model uses."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(11, 8)
        self.block = nn.TransformerEncoderLayer(8, 2, 16, 0.0, "gelu", batch_first=True, norm_first=True)
        self.norm = nn.RMSNorm(8)
        self.head = nn.Linear(8, 11)

    def forward(self, x):
        return self.head(self.norm(self.block(self.embed(x))))


def _words():
    rng = np.random.default_rng(0)
    return Words(), torch.tensor(rng.integers(0, 11, (2, 5))), torch.tensor(rng.integers(0, 11, (2, 5)).reshape(-1))


def _image():
    rng = np.random.default_rng(0)
    net = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 4, 3, groups=2),
                        nn.GroupNorm(2, 4),
                        nn.SiLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 5))
    return net, torch.tensor(rng.standard_normal((2, 3, 8, 8)).astype(np.float32)), torch.tensor(rng.integers(0, 5, 2))


def _series():
    rng = np.random.default_rng(0)

    class Last(nn.Module):
        def __init__(self):
            super().__init__()
            self.lstm = nn.LSTM(3, 4, bidirectional=True)

        def forward(self, x):
            return self.lstm(x)[0][-1]

    return Last(), torch.tensor(rng.standard_normal((4, 2, 3)).astype(np.float32)), torch.tensor(rng.integers(0, 8, 2))


@pytest.mark.parametrize("make", [_words, _image, _series])
def test_networks_agree_with_the_cpu(cuda, make):
    torch.manual_seed(0)
    net, x, y = make()
    moved = copy.deepcopy(net)
    before = list(moved.parameters())
    assert moved.to(cuda) is moved and all(p is q and p.is_cuda for p, q in zip(moved.parameters(), before))
    losses = []
    for module, device in ((net, "cpu"), (moved, cuda)):
        logits = module(x.to(device))
        losses.append(nn.CrossEntropyLoss()(logits.view(-1, logits.shape[-1]), y.to(device)))
        losses[-1].backward()
    np.testing.assert_allclose(losses[1].item(), losses[0].item(), rtol=1e-5)
    for (name, p), q in zip(net.named_parameters(), moved.parameters()):
        np.testing.assert_allclose(q.grad.cpu().numpy(), p.grad.numpy(), rtol=1e-4, atol=1e-5, err_msg=name)
    moved.load_state_dict(net.state_dict())
    assert all((p.cpu() == q).all() for p, q in zip(moved.parameters(), net.parameters()))
    assert moved.cpu() is moved and not any(p.is_cuda for p in moved.parameters())


def test_layers_are_made_where_they_are_wanted(cuda):
    layer = nn.Linear(3, 2, device=cuda, dtype=torch.float16)
    assert layer.weight.is_cuda and layer.bias.dtype is torch.float16 and nn.BatchNorm1d(2, device=cuda).num_batches_tracked.is_cuda
    assert nn.Linear(3, 2).cuda().weight.is_cuda
    total = nn.utils.clip_grad_norm_(layer.parameters(), 1.0)
    assert total.item() == 0
