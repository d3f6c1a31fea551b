"""Every launch of a program, counted on a dry device: the bytes it must read and write, the operations it must do, and the time that takes
at given rates. What a tensor argument holds is moved once, however often a kernel comes back to it."""
import contextlib
import types
from collections import Counter
from math import prod
from threading import get_ident
from typing import NamedTuple

import numpy as np

from tritorch.cuda import driver
from tritorch.cuda.dry import DryDriver
from tritorch.cuda.launch import TensorDescriptor, sm_count
from tritorch.cuda.trace import traces
from tritorch.dispatch import Interpreter
from tritorch.shape import cdiv
from tritorch.tensor import Tensor


class Launch(NamedTuple):
    """One launch: the operator that made it, the kernel, the bytes it moves, the operations of its products, their rate's name, and the
    share of the multiprocessors that have a tile, over all waves of them. `listed`: what there is to do was read from lists."""

    operator: str
    kernel: str
    sizes: str
    nbytes: int
    flops: int
    rate: str
    busy: float = 1.0
    listed: bool = False

    def seconds(self, rates):
        """The time that it takes at least."""
        return max(self.nbytes / rates["bytes"], self.flops / rates[self.rate] if self.flops else 0.0)

    def in_waves(self, rates):
        """The same with the multiprocessors that have nothing to do in the last wave of tiles."""
        return max(self.nbytes / rates["bytes"], self.flops / rates[self.rate] / self.busy if self.flops else 0.0)


class Account(Interpreter):
    """While it is entered, `launches` fills. It stands where the record of a repeated call would: so every operator runs its
    implementation, and every launch is met with its tensors."""

    whole = reports = False
    looks_on = True

    def __init__(self):
        self.launches, self.last, self.operator = [], None, ""
        self.casts, self.copies = {}, False                              # bytes of weights' casts, by id; whether a step wrote them too

    def __call__(self, op, args, out):
        self.operator, before, first, self.copies = op.__name__, self.operator, len(self.launches), False
        try:
            return self.proceed(op, args, out)
        finally:
            self.operator = before
            if hasattr(op, "writes") and len(self.launches) > first:     # kernels got tables of addresses: the tensors are met here
                columns = [args[k] for k in op.columns if args[k] is not None] + [args[k] or () for k in op.writes]
                largest = max(range(first, len(self.launches)), key=lambda k: self.launches[k].nbytes)
                copies = sum(self.casts.get(id(p), 0) for p in args[0]) if self.copies else 0
                moved = copies + sum(footprint(x) for column in columns for x in column)
                self.launches[largest] = self.launches[largest]._replace(nbytes=moved)
            if op.__name__ == "cast_all":
                self.casts.update((id(x), footprint(low)) for low, x in zip(*args))

    def made(self, storage):
        """Temporary memory of a call, which does not matter here."""

    counts = made

    def launched(self, start, grid, leaves, values):
        name, places, settled = self.last
        given = dict(zip(places, leaves))
        tensors = {place: leaf for place, leaf in given.items() if isinstance(leaf, (Tensor, TensorDescriptor))}
        sizes = {place: n for place, n in given.items() if place not in tensors}
        self.copies |= "low_like_ptr" in tensors
        nbytes = sum(map(footprint, tensors.values()))
        flops, rate = operations(name, tensors, sizes, settled)
        share, steps = busy(name, grid, sizes, settled), self.steps(tensors, {**settled, **sizes})
        if steps is not None:
            flops, share = int(steps.sum()) * in_step(tensors, settled), float(steps.mean() / steps.max())
        largest = sorted(tensors.values(), key=footprint, reverse=True)[:2]
        shown = ", ".join(f"{x.dtype.name.replace('float', 'f')}{list(x.shape)}" for x in largest)
        self.launches.append(Launch(self.operator, name, shown, nbytes, flops, rate, share, steps is not None))

    def steps(self, tensors, numbers):
        """How many blocks each program of an attention kernel meets that goes by lists; None where there is none to be read."""

    def load(self, kernel, signature, constexprs, *rest):
        """What the driver is asked for. A name for each value of a launch, those in tuples with their place."""
        places = []
        for name, kind in signature.items():
            if isinstance(kind, tuple):
                places += [(name, k) for k, part in enumerate(kind) if part != "constexpr"]
            elif kind != "constexpr":
                places.append(name)
        names = list(signature)
        settled = {name: constexprs.get((k,)) for k, name in enumerate(names)}
        settled |= {(names[path[0]], path[1]): value for path, value in constexprs.items() if len(path) == 2}
        module, name = kernel.__module__.rpartition(".")[2], kernel.__name__

        def launch(*args):
            self.last = f"{module}.{name}", places, settled

        return types.SimpleNamespace(launch=launch, info={})


class Beside(Account):
    """An Account of a driver that does run its kernels; one made before any of them is loaded knows all of them. `then`, if there is one,
    is called with each Launch and its arguments by their names, while its tensors are there."""

    then = None

    def __init__(self, device):
        super().__init__()
        self.real, device.load = device.load, self.load

    def load(self, *args):
        """The real function, whose launches leave the names of their arguments here."""
        function, named = self.real(*args), super().load(*args)

        def launch(*values):
            named.launch(*values)
            function.launch(*values)

        return types.SimpleNamespace(launch=launch, info=function.info)

    def launched(self, start, grid, leaves, values):
        leaves = list(leaves)
        super().launched(start, grid, leaves, values)
        if self.then:
            _, places, settled = self.last
            self.then(self.launches[-1], {**settled, **dict(zip(places, leaves))})

    def steps(self, tensors, numbers):
        if "lists_ptr" not in tensors or "PROGRAMS" not in numbers:      # the kernel that makes lists has no programs that stay
            return None
        lists = tensors["lists_ptr"]
        held = np.empty(lists.shape, np.int32)
        driver.current().copy(held.ctypes.data, lists.data_ptr(), held.nbytes, "d2h", 0)
        driver.current().synchronize(0)
        return dealt_out(held[..., 1], numbers, "gk_desc" in tensors) if held.any() else None


def footprint(x):
    """Bytes of a tensor's elements that have memory of their own."""
    x = x if isinstance(x, Tensor) else x.tensor
    return prod(n for n, s in zip(x.shape, x.strides) if s) * x.dtype.itemsize


def operations(name, tensors, sizes, settled):
    """(operations of a kernel's products, the rate at which they go). A window on one side leaves half of an attention's scores."""
    if name.startswith("matmul") and "K" in sizes:
        return 2 * prod(sizes.get(n, 1) for n in ("BATCH", "M", "N", "K")) * sizes.get(("batches", 0), 1), "matmul"
    operands = {place.partition("_")[0]: x for place, x in tensors.items() if isinstance(place, str)}
    if name.startswith("attention") and {"q", "k"} <= operands.keys():
        queries, keys = operands["q"].shape, operands["k"].shape
        backward = {"gq", "gk"} & operands.keys()
        products = 2 if not backward else 3 if "gk" not in backward else 5 if {"sum", "sums"} & operands.keys() else 4
        scores = prod(queries) * keys[-2] // (2 if settled.get("RIGHT") else 1)
        return 2 * products * scores, "attention backward" if backward else "attention forward"
    return 0, "bytes"


def in_step(tensors, settled):
    """Operations of the products of a block of rows and one of keys, in an attention kernel that goes by lists."""
    gradients = {"gq_desc", "gk_desc"} & tensors.keys()
    products = 2 if not gradients else 3 if "gq_desc" in gradients else 4
    return 2 * products * 2 * settled["ROWS"] * settled.get("BLOCK_N", settled.get("BLOCK_M")) * settled["BLOCK_D"]


def dealt_out(steps, numbers, of_keys):
    """The blocks that each program meets, of so many `steps` of each block that has a list (matrices, blocks): programs take pairs of
    these in turn, as pairs_of and item_of in triton_kernels/attention_gluon.py deal them out."""
    batches, heads, group, programs = [numbers[name] for name in ("BATCH", "H", "GROUP", "PROGRAMS")]
    together = group if of_keys else 1                           # heads that share keys are one matrix, and all of them are met
    head, batch = np.arange(0, heads, together), np.arange(batches)[:, None]
    steps = together * steps[batch * numbers["stride_lists", 0] + head * numbers["stride_lists", 1]].reshape(-1, steps.shape[1])
    pairs = cdiv(steps.shape[1], 2)
    steps[:, :steps.shape[1] - pairs] += steps[:, :pairs - 1:-1]
    item = np.arange(len(steps) * pairs)
    return np.bincount((item % programs - item // programs) % programs, steps[:, :pairs].ravel(), programs)


def busy(name, grid, sizes, settled):
    """The share of the multiprocessors that have a tile of a product, over all waves; 1 for kernels that are no products."""
    if not name.startswith("matmul") or "K" not in sizes or settled.get("STREAM"):
        return 1.0
    tiles = prod(grid)
    if "PROGRAMS" in settled:
        tall = settled["BLOCK_M"] * settled.get("PARTS", 1)
        tiles = cdiv(sizes.get("M", 1), tall) * cdiv(sizes.get("N", 1), settled["BLOCK_N"]) * sizes.get("BATCH", 1)
    return tiles / (cdiv(tiles, sm_count()) * sm_count())


@contextlib.contextmanager
def accounting(account=None):
    """An Account of what this thread launches inside, on a dry device."""
    device, account = DryDriver(), account or Account()
    device.load = account.load
    with driver.using(device), watching(account):
        yield account


@contextlib.contextmanager
def watching(account):
    """`account` sees every operator and launch of this thread inside."""
    with account:
        traces[get_ident()] = account
        try:
            yield
        finally:
            del traces[get_ident()]


def table(launches, rates):
    """Markdown: equal launches on one line, the longest first; products and attention apart from the rest."""
    lines = []
    for title, wanted in (("products and attention", True), ("everything else", False)):
        some = [launch for launch in launches if bool(launch.flops) is wanted]
        lines += ["", f"| {title} | launches | operator | largest operands | GB | TFLOP | ms at least | in waves |"]
        lines.append("|---|---:|---|---|---:|---:|---:|---:|")
        for launch, count in sorted(Counter(some).items(), key=lambda item: -item[1] * item[0].seconds(rates)):
            lines.append(line(launch.kernel, launch.operator, launch.sizes, [launch] * count, rates))
        lines.append(line("sum", "", "", some, rates))
    return "\n".join([*lines[1:], "", line("all launches", "", "", launches, rates)])


def line(title, operator, sizes, some, rates):
    nbytes, flops = sum(x.nbytes for x in some), sum(x.flops for x in some)
    ms, waves = 1e3 * sum(x.seconds(rates) for x in some), 1e3 * sum(x.in_waves(rates) for x in some)
    return f"| {title} | {len(some)} | {operator} | {sizes} | {nbytes / 1e9:.3f} | {flops / 1e12:.2f} | {ms:.3f} | {waves:.3f} |"
