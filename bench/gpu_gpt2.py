"""Training GPT-2 124M on a GPU, as a user writes it, beside PyTorch: tokens/s and peak memory eager and as one graph, where the time
of a step goes beside its floor, and 200 steps from the same weights."""
import functools
import gc
import statistics
import time

import tritorch
from bench import gpt2, rows
from bench.models import twin
from tritorch.cuda import driver

STEPS, ROUNDS, WARM = 12, 3, 10                                          # of warming up PyTorch compiles and ours records
LEARN, LEARN_ROWS, SMOOTH = 200, 8, 20                                   # steps, rows of text in a step, steps that are averaged
KINDS = {"mat": "matmul", "attention": "attention", "optimize": "optimizer", "loss": "loss", "linear_cross_entropy": "loss"}   # by prefix


def work(sides, rehearse):
    """(name, function that returns rows) of every part."""
    (size, batch), rates = scale(rehearse), {}
    yield "tokens/s, eager", lambda: throughput("eager", size, batch, sides, rates, eager, {"torch": eager})
    yield "tokens/s, one graph", lambda: throughput("one graph", size, batch, sides, rates, graphed, {"torch.compile": compiled})
    yield "tokens/s, one graph, fused operators", lambda: throughput(
        "one graph, fused operators", {**size, "fused": True}, batch, sides, rates, graphed, {"torch.compile": compiled})
    yield "tokens/s, one graph, max-autotune", lambda: throughput(
        "one graph, max-autotune", size, batch, sides, rates, functools.partial(graphed, mode="max-autotune"), {"torch.compile": compiled})
    yield "step by kernel", lambda: breakdown("step", size, batch)
    yield "step by kernel, fused operators", lambda: breakdown("step by fused operators", {**size, "fused": True}, batch)
    yield "curves", lambda: curves(size or {}, sides, 3 if rehearse else LEARN)


def programs(sides, rehearse=False):
    """What is compiled ahead and tuned: steps of each kind; a recorded one launches nothing after its first few."""
    small, batch = scale(rehearse)

    def steps(make, size, count):
        run = make(tritorch, small | size, batch, "cuda")
        for _ in range(count):
            run()

    fused = eager, {"fused": True}, 2
    kinds = [fused] if rehearse else [(eager, {}, 2), fused, (functools.partial(graphed, mode="max-autotune"), {}, 7)]
    return [functools.partial(steps, *kind) for kind in kinds]


def scale(rehearse):
    """(what differs from GPT-2 124M in the model's configuration, rows of tokens in a step)."""
    return (dict(gpt2.SMALL, context=16, layers=1, heads=2, width=32), 2) if rehearse else ({}, gpt2.BATCH)


# ------------------------------------------------------------------ contestants: a thunk that runs one step
def parts(torch, size, batch, device, **options):
    program = twin.load(gpt2.MODEL, torch.__name__)
    torch.manual_seed(0)
    model = program.GPT2(program.Config(**size)).to(device)
    optimizer = program.optimizer_of(model, fused=True, **options)
    tokens = torch.randint(0, min(50257, model.config.vocabulary), (batch, model.config.context), device=device)
    return program, model, optimizer, tokens


def eager(torch, size, batch, device):
    program, model, optimizer, tokens = parts(torch, size, batch, device)
    return lambda: program.train_step(model, optimizer, tokens, tokens, device, clip=None)


def graphed(torch, size, batch, device, mode="default"):
    """Ours: the whole step recorded once, then replayed; with "max-autotune" what operators do not fuse by themselves is fused, too."""
    program, model, optimizer, tokens = parts(torch, size, batch, device, capturable=True)

    def step():
        return program.train_step(model, optimizer, tokens, tokens, device, clip=None)

    return torch.compile(step, mode=mode)


def compiled(torch, size, batch, device):
    """PyTorch's: the model compiled, the optimizer fused, as in its own recipes."""
    program, model, optimizer, tokens = parts(torch, size, batch, device)
    fast = torch.compile(model) if device == "cuda" else model

    def step():
        with torch.autocast(device, torch.bfloat16):
            loss = fast(tokens, tokens)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


# ------------------------------------------------------------------ speed and memory
def measured(torch, make, size, batch, device):
    """(tokens/s, GiB at the peak beyond what was there before, calls of the driver for memory after warm-up)."""
    cuda = torch.cuda if device == "cuda" else tritorch.cuda
    gc.collect()
    cuda.synchronize()
    cuda.empty_cache()
    cuda.reset_peak_memory_stats()
    before = cuda.memory_allocated()
    step = make(torch, size, batch, device)
    for _ in range(WARM):
        step()
    cuda.synchronize()
    peak = cuda.max_memory_allocated() - before                          # the warm-up's too: what a user must have
    times, asked = [], cuda.memory_stats().get("num_device_alloc", 0)
    for _ in range(ROUNDS):
        start = time.perf_counter()
        for _ in range(STEPS):
            step()
        cuda.synchronize()
        times.append((time.perf_counter() - start) / STEPS)
    asked = cuda.memory_stats().get("num_device_alloc", 0) - asked
    return batch * (size.get("context") or 1024) / statistics.median(times), peak / 2**30, asked


def throughput(how, size, batch, sides, rates, make, opponents):
    """Rows of tokens/s and of peak memory; PyTorch's numbers are kept for the cases that follow."""
    speed, peak, asked = measured(tritorch, make, size, batch, "cuda")
    plain = {name: value for name, value in size.items() if name != "fused"}
    best = None
    for name, build in opponents.items() if sides.torch else ():
        if name not in rates:
            try:
                rates[name] = measured(sides.torch, build, plain, batch, sides.theirs)
            except Exception as problem:                                 # it may lack a compiler: ours counts all the same
                print(f"{name}: {type(problem).__name__}: {str(problem)[:300]}", flush=True)
                rates[name] = None, None, None
        best = name if rates[name][0] else None
    theirs = rates.get(best, (None, None, None))
    return [rows.row(f"tokens/s, {how}", "tokens/s", speed, theirs[0], best),
            rows.row(f"peak memory, {how} (budget {gpt2.PEAK_WANTED} GiB)", "GiB", peak, theirs[1], best, limit=gpt2.PEAK_WANTED),
            rows.row(f"driver allocations in {ROUNDS * STEPS} steps after warm-up, {how}", "calls", asked, theirs[2], best)]


# ------------------------------------------------------------------ where the time goes
class Timed:
    """While it is entered, every kernel that starts is timed by events; `seconds()` sums them up by module and kernel."""

    def __enter__(self):
        self.device, self.marks = driver.current(), []
        self.load = self.device.load
        self.device.load = self.loading
        self.forget()
        return self

    def __exit__(self, *exception):
        del self.device.load
        self.forget()

    def forget(self):
        driver.functions.clear()
        driver.forget_calls()

    def loading(self, kernel, *rest):
        function, device, name = self.load(kernel, *rest), self.device, (kernel.__module__.rpartition(".")[2], kernel.__name__)

        class Wrapped:
            info = getattr(function, "info", {})

            @staticmethod
            def launch(x, y, z, stream, values):
                start, end = device.event_create(True), device.event_create(True)
                device.event_record(start, stream)
                function.launch(x, y, z, stream, values)
                device.event_record(end, stream)
                self.marks.append((name, start, end))

        return Wrapped()

    def seconds(self):
        found = {}
        for name, start, end in self.marks:
            self.device.event_synchronize(end)
            count, spent = found.get(name, (0, 0.0))
            found[name] = count + 1, spent + self.device.event_elapsed(start, end) / 1e3
            self.device.event_destroy(start)
            self.device.event_destroy(end)
        self.marks = []
        return found


def limits():
    """Measured here: operations/s of a bfloat16 product and bytes/s of a copy."""
    n = 8192 if driver.current().name == "nvidia" else 64
    x, y = [tritorch.empty(n * n, device="cuda") for _ in range(2)]
    a = tritorch.randn(n, n, device="cuda", dtype=tritorch.bfloat16)
    copy, product = seconds(lambda: y.copy_(x)), seconds(lambda: a @ a)
    return {**gpt2.RATES, "matmul": 2 * n**3 / product, "bytes": 8 * n * n / copy}


def seconds(call, count=20):
    """Of one call among several, queued together."""
    call()
    start, end = [tritorch.cuda.Event(enable_timing=True) for _ in range(2)]
    start.record()
    for _ in range(count):
        call()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / 1e3 / count


def breakdown(how, size, batch):
    """Rows: milliseconds of each kind of kernel in an eager step, beside the floor of that work at the rates of this GPU. The step is
    queued behind other work, so that the device never waits for the host between two events."""
    rates, tiny = limits(), "width" in size
    step = eager(tritorch, size, batch, "cuda")
    step()
    with Timed() as timed:
        step()
        step()                                                           # loads and remembers what the first one met
        timed.seconds()
        side = 64 if tiny else 8192
        ahead = tritorch.randn(side, side, device="cuda", dtype=tritorch.bfloat16)
        tritorch.cuda.synchronize()
        start = time.perf_counter()
        step()
        host = time.perf_counter() - start
        tritorch.cuda.synchronize()
        timed.seconds()
        for _ in range(1 if tiny else int(host / 1e-3) + 1):
            ahead @ ahead
        count = len(timed.marks)
        step()
        timed.marks = timed.marks[count:]
        found = timed.seconds()
    return list(rows_of(how, found, twin.load(gpt2.MODEL).Config(**size), batch, rates))


def rows_of(how, found, config, batch, rates):
    table, floor = gpt2.floor_table(config, batch, rates)
    print(table)
    spent = {}
    for (module, kernel), (count, seconds) in sorted(found.items(), key=lambda item: -item[1][1]):
        print(f"{1e3 * seconds:9.3f} ms {count:5} × {module}.{kernel}")
        part = next((part for prefix, part in KINDS.items() if module.startswith(prefix)), "memory-bound")
        spent[part] = spent.get(part, 0.0) + 1e3 * seconds
    floors = {}
    for name, (amount, rate) in gpt2.work(config, batch).items():
        part = next((p for p in ("matmul", "attention", "loss", "optimizer") if name.startswith(p)), "memory-bound")
        floors[part] = floors.get(part, 0.0) + 1e3 * amount / rates[rate]
    for part, ms in spent.items():
        yield rows.row(f"{how}: {part} (floor {floors[part]:.2f} ms)", "ms", ms, limit=floors[part])
    yield rows.row(f"{how}: all kernels (floor {floor:.2f} ms)", "ms", sum(spent.values()), limit=floor)


# ------------------------------------------------------------------ learning
def curves(size, sides, steps):
    """Rows: how far 200 steps in bfloat16 stray from PyTorch's in float32, ours and PyTorch's, on the same text from the same weights."""
    config = {"vocabulary": 50304, "context": 1024, **size}

    def run(library, device, low, start=None):
        learner = gpt2.Learner(library, config, device)
        if start is not None:
            learner.start_from(start)
        begin = learner.weights()
        for batch in gpt2.batches(config["context"], steps, LEARN_ROWS):
            learner.step(batch, low)
        return smooth(learner.curve()), begin

    ours, begin = run("tritorch", "cuda", True)
    found = [rows.row(f"loss after {steps} steps, bf16", "nats", ours[-1])]
    if sides.torch:
        exact, theirs = [run("torch", sides.theirs, low, begin)[0] for low in (False, True)]
        apart = [max(abs(a - b) for a, b in zip(curve, exact)) for curve in (ours, theirs)]
        found = [rows.row(f"loss after {steps} steps, bf16", "nats", ours[-1], theirs[-1], "torch"),
                 rows.row(f"largest distance of the bf16 curve from PyTorch's float32 curve, {steps} steps", "nats", *apart, "torch")]
    return found


def smooth(losses):
    """Means of SMOOTH steps."""
    return [statistics.fmean(losses[at:at + SMOOTH]) for at in range(0, len(losses), SMOOTH)]
