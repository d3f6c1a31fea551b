"""A training step of ResNet-50 without a GPU: its launches, the bytes that they move, those of copies, and the peak of memory, with
contiguous images and in channels-last order, eager and compiled."""
from collections import Counter
from itertools import product
from pathlib import Path

from bench import rows
from bench.gpt2 import counting
from bench.launches import Account, accounting, footprint, table
from bench.models import twin
from tritorch.cuda.launch import TensorDescriptor
from tritorch.tensor import Tensor

MODEL = Path(__file__).parent / "models" / "resnet.py"
BATCH, SIZE = 128, 224
RATES = {"matmul": 700e12, "attention forward": 1.0, "attention backward": 1.0, "bytes": 4.18e12}


class Copies(Account):
    """An Account that also keeps the launches that only copy: {(operator, from, to): [launches, bytes]}."""

    def __init__(self):
        super().__init__()
        self.moved = {}

    def launched(self, start, grid, leaves, values):
        function, before, leaves = self.last[2].get("FN"), len(self.launches), list(leaves)
        super().launched(start, grid, leaves, values)
        tensors = [x for x in leaves if isinstance(x, (Tensor, TensorDescriptor))]
        if (str(function).endswith(":identity)") or self.last[0].endswith("four_channels_kernel")) and len(tensors) > 1:
            out, x = tensors[:2]
            found = self.moved.setdefault((self.launches[before].operator, described(x), described(out)), [0, 0])
            found[0] += 1
            found[1] += footprint(x) + footprint(out)


def described(x):
    return f"{x.dtype.name.replace('float', 'f')}{list(x.shape)} by {list(x.strides)}"


def stepping(batch, size, last, blocks=(3, 4, 6, 3), compiled=False):
    """(torch, a step of training with bfloat16 autocast) on the current device."""
    program = twin.load(MODEL)
    torch = program.torch
    layout = torch.channels_last if last else torch.contiguous_format
    model = program.ResNet(blocks).to("cuda", memory_format=layout)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    images = torch.empty(batch, 3, size, size, device="cuda").to(memory_format=layout)
    labels = torch.empty(batch, dtype=torch.int64, device="cuda")
    def step():
        return program.train_step(model, optimizer, images, labels, "cuda")

    return torch, torch.compile(step) if compiled else step


def counted(batch=BATCH, size=SIZE, last=True, blocks=(3, 4, 6, 3), compiled=False):
    """(launches of a step, its copies, peak bytes). A compiled step is captured in the fifth call."""
    before = 4 if compiled else 2
    with counting():
        torch, step = stepping(batch, size, last, blocks, compiled)
        for _ in range(before):
            step()
        torch.cuda.reset_peak_memory_stats()
        step()
        peak = torch.cuda.max_memory_allocated()
    with accounting(account=Copies()) as account:
        _, step = stepping(batch, size, last, blocks, compiled)
        for _ in range(before):
            step()
        account.launches.clear(), account.moved.clear()
        step()
    return account.launches, account.moved, peak


def main(args):
    found = []
    for last, compiled in product((False, True), repeat=2):
        launches, copies, peak = counted(last=last, compiled=compiled)
        name = f"ResNet-50, B{BATCH} {SIZE}px bf16 autocast, {'channels last' if last else 'contiguous'}{', compiled' * compiled}: "
        print(f"\n{name}{len(launches)} launches\n{table(launches, RATES)}\n")
        for (operator, x, out), (count, nbytes) in sorted(copies.items(), key=lambda item: -item[1][1]):
            print(f"{nbytes / 1e9:8.4f} GB  {count:4}  {operator:24} {x} -> {out}")
        print(Counter(launch.kernel for launch in launches).most_common())
        found += [rows.row(name + "peak memory", "GiB", peak / 2**30), rows.row(name + "kernels a step", "launches", len(launches)),
                  rows.row(name + "moved by all kernels", "GB", sum(x.nbytes for x in launches) / 1e9),
                  rows.row(name + "moved by copies", "GB", sum(nbytes for _, nbytes in copies.values()) / 1e9)]
    rows.record("resnet", found, "python -m bench resnet", keep=not args.quick)
