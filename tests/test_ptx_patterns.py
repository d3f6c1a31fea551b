"""Patterns that claim to change no bit, in steps of small models on the GPU made of PTX. In machine code a product and a sum can become
one fma, and sums can be taken in another order, of which interpreted kernels know nothing."""
import os

import numpy as np
import pytest

pytest.importorskip("triton")

from test_batch_norm_relu import net  # noqa: E402
from test_compile_fusion import replaced  # noqa: E402
from test_compile_norms import Block  # noqa: E402

import tritorch as torch  # noqa: E402
from tritorch import nn  # noqa: E402
from tritorch.compiler.clipping import CLIP  # noqa: E402
from tritorch.compiler.patterns import PATTERNS  # noqa: E402
from tritorch.testing.ptx.device import simulate  # noqa: E402


@pytest.fixture(scope="module")
def gpu():
    """Its warps in lockstep, which is twice as fast: bits do not depend on who comes first, and other tests look for races."""
    if os.environ.get("TRITORCH_PTX"):
        pytest.skip("the whole suite runs on it")
    with simulate(90, seed=None) as gpu:
        yield gpu


class Joined(nn.Module):
    """A layer, dropout, and perhaps its input."""

    def __init__(self, layer, p, adds):
        super().__init__()
        self.layer, self.dropout, self.adds = layer, nn.Dropout(p) if p else nn.Identity(), adds

    def forward(self, x):
        y = self.dropout(self.layer(x))
        return x + y if self.adds else y


class Rows(nn.Module):
    """Of a table, and positions."""

    def __init__(self):
        super().__init__()
        self.table, self.positions = nn.Embedding(11, 18), nn.Parameter(torch.randn(5, 18))

    def forward(self, x):
        return self.table(x.abs().mul(4).long().clamp(max=10)) + self.positions


def hidden():
    layers = [[nn.Linear(18, 37), activation, nn.Linear(37, 18, bias=False)] for activation in FORWARD.values()]
    return nn.Sequential(*[layer for three in layers for layer in three])


def joined():
    return nn.Sequential(nn.Linear(18, 18), *[Joined(nn.Linear(18, 18), p, adds) for p, adds in ((0.25, True), (0.25, False), (0.0, True))])


def blocks(norm):
    return nn.Sequential(Block(norm), Block(norm))


def convolutions():
    layers = nn.Conv2d(1, 5, 1), nn.Conv2d(5, 6, 1), Joined(nn.Conv2d(6, 6, 1), 0.0, True), nn.Tanh()
    return nn.Sequential(*layers).to(memory_format=torch.channels_last)


def norms():
    """The net's first layers: its second block has no other kernels."""
    return net()[:2]


FORWARD = {"relu": nn.ReLU(), "silu": nn.SiLU(), "gelu": nn.GELU(), "gelu_tanh": nn.GELU("tanh")}
BATCH_NORM = "batch_norm + relu", "batch_norm + add + relu", "gradient of batch_norm + relu", "gradient of batch_norm + add + relu"
CASES = {                                                                # patterns, a model, the shape of its input
    "hidden": ([f"linear + {of}{name}" for of in ("", "gradient of ") for name in FORWARD], hidden, (2, 19, 18)),
    "joined": (["linear + dropout + add", "linear + dropout", "linear + add"], joined, (2, 19, 18)),
    "layer norm": (["layer_norm + cast", "gradient of a residual norm + cast"], lambda: blocks(nn.LayerNorm), (19, 8)),
    "rms norm": (["rms_norm + cast"], lambda: blocks(nn.RMSNorm), (19, 8)),
    "convolutions": (["gradient of a 1×1 convolution + add"], convolutions, (5, 1, 7, 3)),
    "batch norm": (BATCH_NORM, norms, (5, 1, 7, 3)),
    "embedding": (["embedding + add"], Rows, (3, 5)),
}


def trained(compile, make, shape, autocast):
    """A step, and the bits of all that five calls of it leave behind: moments keep those of gradients that parameters lose. It is in
    float32, as rounding to a half type hides much."""
    torch.manual_seed(0)
    model = make().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, capturable=True)

    @compile
    def step(x):
        with torch.autocast("cuda", torch.bfloat16, enabled=autocast):
            out = model(x)
        loss = (out * (out + 0.3)).sum()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach(), out.detach()

    results = [t for _ in range(5) for t in step(torch.randn(*shape).cuda())]
    moments = [state[name] for state in optimizer.state.values() for name in ("exp_avg", "exp_avg_sq")]
    return step, [t.detach().cpu().float().numpy() for t in (*results, *model.state_dict().values(), *moments)]


@pytest.mark.parametrize("case", CASES)
def test_no_bit_changes(gpu, case):
    names, make, shape = CASES[case]
    autocast = any("cast" in name for name in names)
    step, compiled = trained(torch.compile, make, shape, autocast)
    assert set(replaced(step)) >= {*names, CLIP.name}
    _, eager = trained(lambda f: f, make, shape, autocast)
    for a, b in zip(compiled, eager, strict=True):
        np.testing.assert_array_equal(a, b)


def test_every_such_pattern_is_met():
    met = {CLIP.name, *[name for names, *_ in CASES.values() for name in names]}
    assert met == {pattern.name for pattern in (*PATTERNS, CLIP) if pattern.exact}
