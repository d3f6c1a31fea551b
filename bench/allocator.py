"""The caching allocator beside PyTorch's rules: both serve the same requests, those of real training steps and random ones.

The requests of a step are recorded on a dry device, where real shapes cost nothing.
"""
import contextlib

import numpy as np

from bench import rows
from bench.caching import TorchRules
from bench.models import twin
from bench.resnet import stepping

GPT2 = rows.ROOT / "bench" / "models" / "gpt2.py"
WARM, STEPS = 3, 5
MARK = -1                                                        # in a tape: warm-up is over


class Tape:
    """Requests and returns of memory in order: (number, bytes, stream), (number, None, None) when it comes back."""

    def __init__(self):
        self.events, self.numbers = [], {}

    @contextlib.contextmanager
    def recording(self):
        from tritorch.cuda import allocator

        allocator.memory_of(0)                                   # whose making decides anew who observes
        before, allocator.observe = allocator.observe, self.see
        try:
            yield self
        finally:
            allocator.observe = before

    def see(self, span, live):
        if live and span.size:
            self.numbers[span.ptr] = len(self.events)
            self.events.append((len(self.events), span.nbytes, span.pool.stream))
        elif span.ptr in self.numbers:
            self.events.append((self.numbers.pop(span.ptr), None, None))

    def mark(self):
        self.events.append((MARK, None, None))


class Ours:
    """Our allocator on a dry device, with the interface of TorchRules."""

    def __init__(self):
        from tritorch import cuda
        from tritorch.cuda import allocator, driver

        self.cuda, self.take, self.driver = cuda, allocator.allocate, driver.current()
        self.driver_calls, self.plain = 0, (self.driver.alloc, self.driver.free)
        self.driver.alloc, self.driver.free = [self.counted(call) for call in self.plain]

    def counted(self, call):
        def counting(argument):
            self.driver_calls += 1
            return call(argument)

        return counting

    def allocate(self, nbytes, stream=0):
        return self.take(nbytes, 0, stream)

    def give_back(self, block):
        pass                                                     # it dies with its last reference

    def reset_peaks(self):
        self.cuda.reset_peak_memory_stats()

    peak_allocated = property(lambda self: self.cuda.max_memory_allocated())
    peak_reserved = property(lambda self: self.cuda.max_memory_reserved())


def played(events, allocator):
    """Serve a tape: (peak bytes allocated, peak bytes reserved, driver calls until the mark, driver calls after it)."""
    blocks, warm = {}, None
    for number, nbytes, stream in events:
        if number == MARK:
            warm = allocator.driver_calls
            allocator.reset_peaks()
        elif nbytes is None:
            allocator.give_back(blocks.pop(number))
        else:
            blocks[number] = allocator.allocate(nbytes, stream)
    calls = allocator.driver_calls
    return allocator.peak_allocated, allocator.peak_reserved, calls if warm is None else warm, 0 if warm is None else calls - warm


def both(events):
    from tritorch.cuda import driver
    from tritorch.cuda.dry import DryDriver

    with driver.using(DryDriver(90)):
        ours = played(events, Ours())
    return ours, played(events, TorchRules())


# ------------------------------------------------------------------ what is served
def steps_of(build):
    """The tape of training steps: `build(torch)` gives the step."""
    import tritorch
    from tritorch.cuda import driver
    from tritorch.cuda.dry import DryDriver

    tape = Tape()
    with driver.using(DryDriver(90)), tape.recording():
        step = build(tritorch)
        for k in range(WARM + STEPS):
            if k == WARM:
                tape.mark()
            step()
    return tape.events


def gpt2(batch, fused):
    def build(torch):
        program = twin.load(GPT2)
        model = program.GPT2(program.Config(fused=fused)).to("cuda")
        optimizer = program.optimizer_of(model, fused=True)
        tokens = torch.empty(batch, model.config.context, dtype=torch.int64, device="cuda")
        return lambda: program.train_step(model, optimizer, tokens, tokens, "cuda")

    return build


def resnet50(batch, last):
    return lambda torch: stepping(batch, 224, last)[1]


def random_tape(seed, count=4000, live=300):
    """Sizes from 512 bytes to 64 MiB, even by their logarithm; lifetimes short and long: what no model does."""
    draw, events, alive = np.random.default_rng(seed), [], []
    for number in range(count):
        events.append((number, int(2 ** draw.uniform(9, 26)), 0))
        alive.append(number)
        while len(alive) > live * (0.5 + 0.5 * np.sin(number / 300)) + 1:
            events.append((alive.pop(int(draw.integers(len(alive)) ** draw.uniform(0.5, 1))), None, None))
    return events


def cases():
    for batch in (8, 32):
        for fused in (False, True):
            yield f"GPT-2 124M, B{batch} T1024 bf16 autocast{', fused operators' if fused else ''}", steps_of(gpt2(batch, fused))
    for batch, last in ((32, False), (128, False), (128, True)):
        yield f"ResNet-50, B{batch} 224px bf16 autocast, {'channels last' if last else 'contiguous'}", steps_of(resnet50(batch, last))
    for seed in range(3):
        yield f"random sizes and lifetimes, seed {seed}", random_tape(seed)


def found(cases):
    for name, events in cases:
        ours, theirs = both(events)
        for what, unit, scale, a, b in zip(("peak allocated", "peak reserved", "driver calls until warm", "driver calls after warm-up"),
                                           ("GiB", "GiB", "calls", "calls"), (2**30, 2**30, 1, 1), ours, theirs):
            yield rows.row(f"{name}: {what}", unit, a / scale, b / scale, "PyTorch's rules")


def main(args):
    rows.record("allocator", list(found(cases())), "python -m bench allocator", keep=not args.quick)
