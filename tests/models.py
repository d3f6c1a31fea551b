"""Small models with a little of everything, their data and one training step, for the tests that train."""
import numpy as np

import tritorch as torch
from tritorch import nn
from tritorch.nn import functional as F

VOCABULARY, WIDTH, HEADS, CONTEXT, BATCH = 17, 32, 2, 12, 3


class Block(nn.Module):
    """A transformer block of GPT-2's arrangement, with dropout in all three places."""

    def __init__(self, dropout):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.project = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down, self.dropout = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH), dropout

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(B, T, 3, HEADS, C // HEADS).permute(2, 0, 3, 1, 4).unbind(0)
        dropout = self.dropout if self.training else 0.0
        read = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=True).transpose(1, 2).reshape(B, T, C)
        x = x + F.dropout(self.project(read), self.dropout, self.training)
        return x + F.dropout(self.down(F.gelu(self.up(self.norm2(x)))), self.dropout, self.training)


class GPT(nn.Module):
    def __init__(self, layers=2, dropout=0.1):
        super().__init__()
        self.token, self.position = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks, self.dropout = nn.Sequential(*[Block(dropout) for _ in range(layers)]), nn.Dropout(dropout)
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens):
        x = self.dropout(self.token(tokens) + self.position.weight[: tokens.shape[1]])
        return self.head(self.norm(self.blocks(x)))


class CNN(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm, self.second = nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.Conv2d(4, 8, 3)
        self.head = nn.Linear(8, 5)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.norm(self.first(x))), 2)
        return self.head(F.adaptive_avg_pool2d(F.relu(self.second(x)), 1).flatten(1))


def texts(steps):
    """Tokens and the tokens one further on, for every step, on the CPU."""
    rng = np.random.default_rng(0)
    tokens = torch.tensor(rng.integers(0, VOCABULARY, (steps, BATCH, CONTEXT + 1)))
    return [(row[:, :-1].contiguous(), row[:, 1:].contiguous()) for row in tokens]


def images(steps):
    """Images and their classes, for every step, on the CPU."""
    rng = np.random.default_rng(0)
    pixels, classes = rng.standard_normal((steps, 6, 1, 10, 10)).astype(np.float32), rng.integers(0, 5, (steps, 6))
    return list(zip(torch.tensor(pixels), torch.tensor(classes)))


def loss_of(model, x, y):
    return F.cross_entropy(model(x).flatten(0, -2), y.flatten())


def train_step(model, optimizer, x, y):
    """Forward, backward, clip, update; the loss as a tensor without history."""
    optimizer.zero_grad()
    loss = loss_of(model, x, y)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return loss.detach()


def seeded(make, device):
    """A model of the same weights every time, and all generators at the same place after it."""
    torch.manual_seed(0)
    model = make().to(device)
    torch.manual_seed(1)
    return model
