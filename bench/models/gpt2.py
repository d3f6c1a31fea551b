"""GPT-2 (Radford et al., "Language models are unsupervised multitask learners", 2019): the model that `bench gpu gpt2` trains.

Written for any of the two libraries: bench.models.twin loads it with PyTorch under the name `torch` too. Modules, parameter names
and layouts are the same on both, so a state_dict of one loads into the other.
"""
import math
from dataclasses import dataclass

import tritorch as torch
from tritorch import nn
from tritorch.nn import functional as F


@dataclass(frozen=True)
class Config:
    """GPT-2 124M; its 50257 tokens are padded to a multiple of 128."""

    vocabulary: int = 50304
    context: int = 1024
    layers: int = 12
    heads: int = 12
    width: int = 768
    dropout: float = 0.0
    bias: bool = True
    fused: bool = False
    """Whether to use what tritorch has beyond PyTorch: two layers or the joint of two blocks as one operator, a loss without logits."""


TINY = Config(vocabulary=61, context=16, layers=2, heads=2, width=32)


class Attention(nn.Module):
    """Every position reads those before it, with several heads at once."""

    def __init__(self, config):
        super().__init__()
        self.heads, self.dropout, self.fused = config.heads, config.dropout, config.fused
        self.c_attn = nn.Linear(config.width, 3 * config.width, bias=config.bias)
        self.c_proj = nn.Linear(config.width, config.width, bias=config.bias)

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = [part.view(B, T, self.heads, C // self.heads).transpose(1, 2) for part in self.c_attn(x).split(C, dim=2)]
        read = F.scaled_dot_product_attention(q, k, v, dropout_p=self.dropout if self.training else 0.0, is_causal=True)
        read = read.transpose(1, 2).reshape(B, T, C)
        return F.linear(read, self.c_proj.weight) if self.fused else self.c_proj(read)       # the joint adds the bias


class MLP(nn.Module):
    """Two layers at every position by itself."""

    def __init__(self, config):
        super().__init__()
        self.c_fc = nn.Linear(config.width, 4 * config.width, bias=config.bias)
        self.c_proj, self.fused = nn.Linear(4 * config.width, config.width, bias=config.bias), config.fused

    def forward(self, x):
        if self.fused:
            return F.feed_forward(x, self.c_fc.weight, self.c_fc.bias, self.c_proj.weight, None, "gelu_tanh")
        return self.c_proj(F.gelu(self.c_fc(x), approximate="tanh"))


class Block(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.ln_1, self.ln_2 = [nn.LayerNorm(config.width, bias=config.bias) for _ in range(2)]
        self.attn, self.mlp, self.dropout = Attention(config), MLP(config), config.dropout

    def forward(self, x):
        x = x + F.dropout(self.attn(self.ln_1(x)), self.dropout, self.training)
        return x + F.dropout(self.mlp(self.ln_2(x)), self.dropout, self.training)


class GPT2(nn.Module):
    """(batch, time) tokens to (batch, time, vocabulary) logits of the token that follows each, or to the loss if targets are given."""

    def __init__(self, config=Config()):
        super().__init__()
        self.config = config
        self.transformer = nn.ModuleDict(dict(
            wte=nn.Embedding(config.vocabulary, config.width), wpe=nn.Embedding(config.context, config.width),
            drop=nn.Dropout(config.dropout), h=nn.Sequential(*[Block(config) for _ in range(config.layers)]),
            ln_f=nn.LayerNorm(config.width, bias=config.bias)))
        self.lm_head = nn.Linear(config.width, config.vocabulary, bias=False)
        self.transformer.wte.weight = self.lm_head.weight                 # one matrix reads tokens and writes them
        for name, parameter in self.named_parameters():
            if name.endswith("c_proj.weight"):                            # what is added to the stream, twice a layer
                nn.init.normal_(parameter, std=0.02 / math.sqrt(2 * config.layers))
            elif parameter.ndim == 2:
                nn.init.normal_(parameter, std=0.02)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)

    def forward(self, tokens, targets=None):
        parts = self.transformer
        x = parts.drop(parts.wte(tokens) + parts.wpe.weight[: tokens.shape[1]])
        x = self.joined(x) if self.config.fused else parts.ln_f(parts.h(x))
        if targets is None:
            return self.lm_head(x)
        if self.config.fused:
            return F.linear_cross_entropy(x.flatten(0, 1), self.lm_head.weight, targets.flatten())
        return F.cross_entropy(self.lm_head(x).flatten(0, 1), targets.flatten())

    def joined(self, x):
        """The normalized stream behind the blocks; each joint, bias, dropout, addition and norm, is one operator."""
        blocks, last = self.transformer.h, self.transformer.ln_f
        read = blocks[0].ln_1(x)
        for block, following in zip(blocks, [*[b.ln_1 for b in blocks[1:]], last]):
            for part, norm in ((block.attn, block.ln_2), (block.mlp, following)):
                read, x = F.dropout_add_layer_norm(part(read), x, (self.config.width,), norm.weight, norm.bias, self.config.dropout,
                                                   self.training, norm.eps, input_bias=part.c_proj.bias)
        return read

    @torch.no_grad()
    def generate(self, tokens, count, temperature=1.0, top_k=None, generator=None):
        """`count` tokens drawn after each row of `tokens`; a temperature of 0 takes the likeliest."""
        for _ in range(count):
            logits = self(tokens[:, -self.config.context:])[:, -1]
            if top_k is not None:
                least = logits.topk(top_k).values[:, -1:]
                logits = logits.masked_fill(logits < least, -math.inf)
            if temperature == 0:
                following = logits.argmax(-1, keepdim=True)
            else:
                following = torch.multinomial(F.softmax(logits.float() / temperature, -1), 1, generator=generator)
            tokens = torch.cat([tokens, following], 1)
        return tokens


def optimizer_of(model, lr=6e-4, weight_decay=0.1, **options):
    """AdamW that decays matrices but not biases and norms."""
    parameters = list(model.parameters())
    groups = [{"params": [p for p in parameters if p.ndim >= 2], "weight_decay": weight_decay},
              {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=lr, betas=(0.9, 0.95), **options)


def train_step(model, optimizer, tokens, targets, kind=None, clip=1.0):
    """Forward, backward, clip, update; the loss as a tensor without history. `kind`: the device type to cast to bfloat16 on, or None."""
    with torch.autocast(kind or "cpu", torch.bfloat16, enabled=kind is not None):
        loss = model(tokens, targets)
    loss.backward()
    if clip:
        nn.utils.clip_grad_norm_(model.parameters(), clip)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return loss.detach()
