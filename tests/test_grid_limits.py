"""No launch passes what CUDA takes as a grid, 2³¹ - 1 × 65535 × 65535 programs, however many matrices, rows or columns there are."""
import pytest

pytest.importorskip("triton")

import tritorch as torch  # noqa: E402
import tritorch.nn.functional as F  # noqa: E402
from tritorch.cuda import driver  # noqa: E402
from tritorch.cuda.dry import DryDriver, DryFunction  # noqa: E402

MANY, LIMITS = 70_000, (2 ** 31 - 1, 65535, 65535)


class Watching(DryDriver):
    """Takes launches of any size, and remembers their grids."""

    def __init__(self):
        super().__init__(90)
        self.grids = []

    def load(self, kernel, signature, constexprs, attrs, options):
        function = DryFunction()
        function.launch = lambda gx, gy, gz, stream, values: self.grids.append((kernel.__name__, (gx, gy, gz)))
        return function


def full(*shape, dtype=torch.float32):
    return torch.empty(*shape, dtype=dtype, device="cuda", requires_grad=dtype.is_floating_point)


def half(*shape):
    return full(*shape, dtype=torch.bfloat16)


def places(*shape, dtype=torch.int64):
    return full(*shape, dtype=dtype)


def attend(*args, **options):
    return lambda: (F.scaled_dot_product_attention, *[half(MANY, 2, 16, 64) for _ in range(3)], *args, options)


CASES = {
    "bmm": lambda: (torch.bmm, full(MANY, 8, 8), full(MANY, 8, 8)),
    "batched vectors": lambda: (torch.matmul, full(MANY, 8, 8), full(MANY, 8, 1)),
    "tall matrix": lambda: (torch.mm, full(10 ** 8, 4), full(4, 4)),
    "long sums": lambda: (torch.mm, full(4, 10 ** 8), full(10 ** 8, 4)),
    "attention": attend(), "causal attention": attend(is_causal=True), "attention with dropout": attend(dropout_p=0.1),
    "attention of one dim less": lambda: (F.scaled_dot_product_attention, *[full(MANY, 16, 8) for _ in range(3)]),
    "attention with a mask": lambda: (F.scaled_dot_product_attention, *[half(MANY, 2, 16, 64) for _ in range(3)], half(MANY, 2, 16, 16)),
    "long attention": lambda: (F.scaled_dot_product_attention, *[half(1, 1, n, 64) for n in (10 ** 7, 16, 16)]),
    "images": lambda: (F.conv2d, half(MANY, 16, 9, 9), half(16, 16, 3, 3), half(16)),
    "groups": lambda: (F.conv2d, full(1, 2 * MANY, 8, 8), full(2 * MANY, 2, 3, 3), {"groups": MANY}),
    "channels": lambda: (F.conv2d, full(1, MANY, 8, 8), full(MANY, 1, 3, 3), {"groups": MANY}),
    "taps": lambda: (F.conv2d, full(1, 4, 300, 300), full(4, 1, 257, 257), {"groups": 4}),
    "patches": lambda: (F.conv2d, full(2, 3, 3000, 3000), full(8, 3, 300, 300), None, 300),
    "triu": lambda: (torch.triu, full(MANY, 8, 8)),
    "index_select": lambda: (torch.index_select, full(MANY, 50), 1, places(5)),
    "columns": lambda: (lambda x, index: x[:, index], full(MANY, 50, 3), places(5)),
    "index_add": lambda: (torch.index_add, half(2, 10 ** 8), 0, places(300), half(1, 10 ** 8).expand(300, -1)),
    "interpolate": lambda: (lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"), full(MANY, 4, 8, 8)),
    "embedding": lambda: (F.embedding, places(MANY, 50), full(MANY, 64)),
    "gather": lambda: (torch.gather, full(MANY, 50), 1, places(MANY, 5)),
    "sort": lambda: (torch.sort, full(MANY, 10_000)),
    "sort along dim 0": lambda: (torch.sort, half(10_000, MANY), 0),
    "topk of rows": lambda: (torch.topk, half(MANY, 10_000), 5),
    "topk of all": lambda: (torch.topk, half(1 << 30), 5),
    "kthvalue": lambda: (torch.kthvalue, half(1 << 30), 5),
    "cumsum": lambda: (torch.cumsum, full(MANY, 500), 1),
    "cumsum of all": lambda: (torch.cumsum, full(1 << 30), 0),
    "sum": lambda: (torch.sum, full(MANY, 500), 0),
    "sum of all": lambda: (torch.sum, half(1 << 32)),
    "softmax": lambda: (torch.softmax, full(500, MANY), 0),
    "cross entropy": lambda: (F.cross_entropy, full(4, 1 << 28), places(4)),
    "layer norm": lambda: (F.layer_norm, full(10 ** 7, 64), (64,), full(64), full(64)),
    "batch norm": lambda: (F.batch_norm, full(3, 10 * MANY, 4, 4), None, None, full(10 * MANY), full(10 * MANY), True),
    "group norm": lambda: (F.group_norm, full(MANY, 64, 4, 4), 8, full(64), full(64)),
    "max pool": lambda: (F.max_pool2d, full(MANY, 64, 8, 8), 2),
    "cat": lambda: (lambda *x: torch.cat(x, 1), *[full(MANY, 4) for _ in range(300)]),
    "grouped": lambda: (F.grouped_mm, half(MANY, 16), half(MANY, 16, 16), {"offs": places(MANY, dtype=torch.int32)}),
    "transpose": lambda: (lambda x: x.permute(4, 2, 0, 1, 3).contiguous(), full(3, MANY, 5, 6, 7)),
}


@pytest.mark.parametrize("case", CASES)
def test_grids_are_such_as_cuda_takes(case):
    with driver.using(Watching()) as device:
        function, *args = CASES[case]()
        options = args.pop() if isinstance(args[-1], dict) else {}
        result = function(*args, **options)
        result = result[0] if isinstance(result, tuple) else result
        wanted = [x for x in args if isinstance(x, torch.Tensor) and x.requires_grad]
        torch.autograd.grad(result, wanted, torch.empty_like(result))
    assert device.grids and [launch for launch in device.grids if any(n > most for n, most in zip(launch[1], LIMITS))] == []
