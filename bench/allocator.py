"""The caching allocator beside PyTorch's rules: both serve the same requests, those of real training steps and random ones.

The requests of a step are recorded on a dry device, where real shapes cost nothing.
"""
import contextlib

import numpy as np

from bench import rows
from bench.caching import TorchRules
from bench.models import twin

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


def resnet50(batch):
    """He et al. 2016, with the options of its training under autocast; the layers' shapes are all that counts here."""
    def build(torch):
        nn, F = torch.nn, torch.nn.functional

        class Layer(nn.Sequential):
            def __init__(self, inside, out, size, stride=1):
                super().__init__(nn.Conv2d(inside, out, size, stride, size // 2, bias=False), nn.BatchNorm2d(out))

        class Bottleneck(nn.Module):
            def __init__(self, inside, width, stride):
                super().__init__()
                self.layers = nn.ModuleList([Layer(inside, width, 1), Layer(width, width, 3, stride), Layer(width, 4 * width, 1)])
                self.short = Layer(inside, 4 * width, 1, stride) if inside != 4 * width else nn.Identity()

            def forward(self, x):
                first, second, third = self.layers
                return F.relu(third(F.relu(second(F.relu(first(x), inplace=True)), inplace=True)) + self.short(x), inplace=True)

        sizes = [(64, 3), (128, 4), (256, 6), (512, 3)]
        blocks = [Bottleneck(64 if width == 64 and k == 0 else 2 * width if k == 0 else 4 * width, width, 2 if width > 64 and k == 0 else 1)
                  for width, count in sizes for k in range(count)]
        model = nn.Sequential(Layer(3, 64, 7, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1), *blocks, nn.AdaptiveAvgPool2d(1),
                              nn.Flatten(), nn.Linear(2048, 1000)).to("cuda")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        x, target = torch.empty(batch, 3, 224, 224, device="cuda"), torch.empty(batch, dtype=torch.int64, device="cuda")

        def step():
            with torch.autocast("cuda", torch.bfloat16):
                loss = F.cross_entropy(model(x), target)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()

        return step

    return build


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
    for batch in (32, 128):
        yield f"ResNet-50, B{batch} 224² bf16 autocast", steps_of(resnet50(batch))
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
