"""Tensors of more than 2³¹ elements, rows or pixels, without their memory: a few CTAs of every launch run at the real size, the first, one
in the middle and the last, over a terabyte of addresses of which only what they touch exists. The machine lets none of them leave its
tensors."""
import numpy as np
import pytest

import tritorch as torch
import tritorch.nn.functional as F
from tritorch.ops.attention import attention_backward, attention_keep
from tritorch.testing import ptx
from tritorch.testing.ptx import memory, trace

G, SPACE, STEPS = 1 << 30, 1 << 40, 6000


def full(*shape, dtype=torch.bfloat16):
    return torch.empty(*shape, dtype=dtype, device="cuda", requires_grad=dtype.is_floating_point)


def places(*shape):
    return torch.empty(*shape, dtype=torch.int64, device="cuda")


def floats(*shape):
    return full(*shape, dtype=torch.float32).detach()


def eights(*shape):
    return torch.empty(*shape, dtype=torch.float8_e4m3fn, device="cuda")


def gradient_of_rows(total, q, k):
    """Into `total`, which is the first in memory: what would be stored below it hits nothing else."""
    rest = None, None, None, (None, None), 0.1, (0.0, 0, 0), None
    grads, lse = (total, torch.empty_like(k), torch.empty_like(k)), torch.empty(q.shape[:3], device="cuda")
    return attention_backward.into(grads, q, q, k, k, None, None, q, lse, *rest)[0]


def conv(images, channels, size, *weight, **options):
    return F.conv2d, full(images, channels, size, size), full(*weight), full(weight[0]), 1, 1, 1, *options.values()


def sequences(times, samples, classes):
    """The loss of labels, and its gradient, whose lengths only the device knows."""
    steps, labels = [torch.full((samples,), n, dtype=torch.int64, device="cuda") for n in (times, 5)]
    x = full(times, samples, classes, dtype=torch.float32)
    return lambda x: F.ctc_loss(x, places(samples, 5), steps, labels, reduction="none"), x


CASES = {
    "pointwise": lambda: (torch.relu, full(4 * G + 4096)),
    "strided": lambda: (lambda x, y: x.mT + y, full(65538, 65536), full(65536, 65538)),
    "sum of all": lambda: (torch.sum, full(4 * G + 4096)),
    "sum of short rows": lambda: (torch.sum, full(G + 7, 4), 1),
    "sum of long columns": lambda: (torch.sum, full(4, G + 7), 0),
    "softmax": lambda: (torch.softmax, full(32 * (1 << 20) + 5, 128), 1),
    "softmax of long rows": lambda: (torch.softmax, full(3, 3 * G // 2), 1),
    "almost 2³¹ rows": lambda: (torch.softmax, full(2 * G - 1, 2), 1),
    "more than 2³¹ rows": lambda: (torch.softmax, full(2 * G + 9, 2), 1),
    "layer norm": lambda: (F.layer_norm, full(4 * (1 << 20) + 5, 1024), (1024,), full(1024), full(1024)),
    "layer norm of columns apart": lambda: (lambda x, w: F.layer_norm(x.mT, (4096,), w), full(4096, 600000), full(4096)),
    "stream of columns apart": lambda: (lambda x, y: F.dropout_add_rms_norm(x.mT, y.mT, (4096,), None, 0.1)[0], full(4096, 600000),
                                        full(4096, 600000)),
    "flip of rows apart": lambda: (lambda x: x[:, 0].flip(0), full(1 << 20, 4096)),
    "cross entropy": lambda: (F.cross_entropy, full(85000, 50304), places(85000)),
    "classes": lambda: (F.cross_entropy, full(3, 3 * G // 2), places(3)),
    "product": lambda: (torch.mm, full(65540, 64), full(64, 65540)),
    "product of sums apart": lambda: (lambda a, b: a.detach().mT @ b.detach(), full(128, (1 << 26) + 3), full(128, 64)),
    "vector of numbers apart": lambda: (lambda a, b: a.detach() @ b.detach()[:, 0], full(4096, 2048), full(2048, (1 << 22) + 3)),
    "groups of sums apart": lambda: (lambda a, b, ends: F.grouped_mm(a.detach().mT, b.detach(), offs=ends), full(128, (1 << 26) + 3),
                                     full(8, 128, 64), torch.full((8,), 1 << 26, dtype=torch.int32, device="cuda")),
    "scales apart": lambda: (lambda a, b, x, y: torch._scaled_mm(a, b.mT, x[:, :1], y, out_dtype=torch.bfloat16), eights(65536, 40),
                             eights(64, 40), floats(65536, 65536), floats(1, 64)),
    "rotary of features apart": lambda: (lambda x, *tables: F.rotary_embedding(x.mT, *tables), full(128, (1 << 25) + 8),
                                         floats((1 << 25) + 8, 64), floats((1 << 25) + 8, 64)),
    "images": lambda: conv(16400, 64, 64, 64, 64, 3, 3),
    "pixels": lambda: conv(2 * G // 4096 + 3, 1, 64, 2, 1, 3, 3),
    "pixels, channels last": lambda: conv(2 * G // 4096 + 3, 32, 64, 32, 32, 3, 3),
    "pixels of channels apart": lambda: conv(2 * G // 4096 + 3, 2, 64, 2, 1, 3, 3, groups=2),
    "one large image": lambda: conv(1, 1, 46400, 2, 1, 3, 3),
    "max pool": lambda: (F.max_pool2d, full(16400, 64, 64, 64), 2),
    "embedding": lambda: (lambda i, x: F.embedding(i, x.detach()), places(4 * (1 << 20) + 3), full(50304, 1024)),
    "bags": lambda: (lambda i, x: F.embedding_bag(i, x.detach(), mode="sum"), places(4 * (1 << 20) + 3, 2), full(50304, 1024)),
    "largest of bags": lambda: (lambda i, x: F.embedding_bag(i, x.detach(), mode="max"), places(4 * (1 << 20) + 3, 2), full(50304, 1024)),
    "bags of columns apart": lambda: (lambda i, x, w: F.embedding_bag(i, x.mT, mode="sum", per_sample_weights=w), places(64, 2),
                                      full(64, (1 << 26) + 3).detach(), full(64, 2)),
    "sequences": lambda: sequences(40, 64, 1 << 20),
    "sequences of many times": lambda: sequences(1 << 20, 4, 600),
    "scatter": lambda: (lambda x, i, y: x.detach().scatter(1, i, y.detach()), full(65540, 65536), places(65540, 65536),
                        full(65540, 65536)),
    "gather": lambda: (lambda x, i: torch.gather(x.detach(), 1, i), full(65540, 65536), places(65540, 65536)),
    "index of one dim": lambda: (lambda x, i: x.detach()[i], full(4 * G + 4096), places(2 * G + 4096)),
    "rows that lie apart": lambda: (lambda x, i, y: torch.index_add(x.detach(), 0, i, y.detach()), full(500, 1024), places(4 * (1 << 20)),
                                    full(1024, 4 * (1 << 20)).mT),
    "joined": lambda: (lambda *x: torch.cat(x), full(3 * G), full(3 * G)),
    "dot": lambda: (torch.dot, full(4 * G + 4096), full(4 * G + 4096)),
    "transpose": lambda: (lambda x: x.mT.contiguous(), full(65540, 65536)),
    "cumsum": lambda: (torch.cumsum, full(65540, 65536), 1),
    "sort": lambda: (lambda x: torch.sort(x.detach(), 1)[0], full(32 * (1 << 20) + 5, 128)),
    "attention": lambda: (F.scaled_dot_product_attention, *[full(64, 128, 8200, 64) for _ in range(3)], None, 0.1),
    "attention, rows of many heads": lambda: (gradient_of_rows, *[full(1, 80, 1 << 19, 64).transpose(1, 2).detach() for _ in range(2)],
                                              full(1, 1 << 19, 128, 64).detach()),
    "dropout of many keys": lambda: (lambda s: attention_keep(s.detach(), 0.1, 0, 0, None), full(1, 8, 64, 5 * (1 << 20))),
}


def reach(traced, memory):
    """How far into each of the tensors of more than 2 GiB a launch comes, as shares."""
    touched = [int(sectors.max()) * trace.SECTOR for warp in traced.warps for _, sectors in warp
               if isinstance(sectors, np.ndarray) and sectors.size]
    large = [(start, end) for start, end in zip(memory.starts, memory.ends) if end - start > 2 * G]
    return [(max(inside) - start) / (end - start) for start, end in large if (inside := [a for a in touched if start <= a < end])]


@pytest.fixture
def device(monkeypatch):
    monkeypatch.setattr(memory, "_POISON_LIMIT", 1 << 12)
    with ptx.simulate(90) as fake:
        fake.memory = memory.Memory(SPACE)
        yield fake


@pytest.mark.parametrize("case", CASES)
def test_every_address_is_inside_its_tensor(case, device):
    seen = []

    def some(kernel, launch):
        total = int(np.prod(launch.grid))
        traced = trace.trace(kernel, launch, device.memory, np.unique([0, total // 2, total - 1]), STEPS)
        seen.append((kernel.program.name, traced.whole, reach(traced, device.memory)))

    with trace.running(device, some):
        function, *args = CASES[case]()
        out = function(*args)
        wanted = [x for x in args if isinstance(x, torch.Tensor) and x.requires_grad]
        if out.requires_grad:
            torch.autograd.grad(out, wanted, torch.empty_like(out))
    assert any(shares for _, _, shares in seen)
    for name, whole, shares in seen:                                     # what ended came to the end of something large, if it used that
        assert not whole or not shares or max(shares) > 0.9, (name, shares)
        assert shares or not name.startswith(("convolution_weight", "depthwise_weight")), name
