"""GPT-2 124M without a GPU: what a training step must compute and move, what ours launches, keeps and costs the host; the loss curve
of a small one beside PyTorch's on the CPU."""
import collections
import contextlib
import gc
import importlib
import importlib.util
import json
import statistics
import subprocess
import sys
import time
import types
from dataclasses import replace
from pathlib import Path

from bench import imports, launches, rows
from bench.models import twin

MODEL = Path(__file__).parent / "models" / "gpt2.py"
BATCH, STEPS = 32, 200
PEAK_WANTED = 15.1                                                       # GiB at a batch of 32 × 1024 tokens
SMALL = dict(vocabulary=128, context=64, layers=2, heads=4, width=64)
RATES = {"matmul": 700e12, "attention forward": 400e12, "attention backward": 330e12, "bytes": 4.18e12}
"""FLOP/s and bytes/s of an H200 as PyTorch and its libraries reach them; a GPU's own are measured by `bench gpu`."""


# ------------------------------------------------------------------ arithmetic
def parameters(c):
    """Elements of all parameters, and of the matrices in the blocks."""
    blocks = c.layers * 12 * c.width**2
    vectors = (c.layers * 13 + 2) * c.width if c.bias else (2 * c.layers + 1) * c.width
    return blocks + (c.vocabulary + c.context) * c.width + vectors, blocks


def work(c, batch):
    """{part: (amount, rate's name)}: what one step cannot do without. Attention is causal; its backward pass takes 2.5 times the products.

    Elementwise work counts the passes over memory that are left when every chain of operators between two products is one kernel."""
    tokens, (count, blocks) = batch * c.context, parameters(c)
    scores = 4 * tokens * c.context * c.width / 2 * c.layers
    stream = tokens * c.width
    forward = c.layers * (2 * (4 + 2 + 4 + 2) + 2 * (4 + 4)) * stream    # norm with residual (f32 in, bf16 in, f32 out, bf16 out), GELU
    backward = c.layers * (2 * (4 + 2 + 4 + 4 + 2) + 3 * 2 * 4) * stream
    return {
        "matmul, blocks": (6 * tokens * blocks, "matmul"),
        "matmul, head": (6 * tokens * c.vocabulary * c.width, "matmul"),
        "attention forward": (scores, "attention forward"),
        "attention backward": (2.5 * scores, "attention backward"),
        "elementwise forward": (forward, "bytes"),
        "elementwise backward": (backward, "bytes"),
        "loss": (3 * 2 * tokens * c.vocabulary, "bytes"),
        "optimizer": ((28 + 12) * count, "bytes"),                       # AdamW reads 16 bytes and writes 12; the norm and the clipping 12
        "weights to bfloat16": (6 * count, "bytes"),
    }


def memory_plan(c, batch, fused):
    """{what: bytes} that live at the peak, when the backward pass begins: activations as the operators save them under autocast."""
    tokens, count = batch * c.context, parameters(c)[0]
    stream = tokens * c.width
    layer = (2 * 4 + 2 * 2 + 3 * 2 + 2 + 2 * 8) * stream                 # stream twice in f32; norms, q k v, heads, twice 4 × width in bf16
    logits = tokens * c.vocabulary * 2
    return {
        "parameters": 4 * count,
        "moments of Adam": 8 * count,
        "weights in bfloat16": 2 * count,
        "saved by the blocks": c.layers * layer,
        "saved by the last norm": (4 + 2) * stream,
        "logits": min(logits, 1 << 31) + (2 * 2 + 4) * c.vocabulary * c.width if fused else logits,
        "gradient of the head": 2 * c.vocabulary * c.width,
    }


# ------------------------------------------------------------------ counted on a dry device
class Counting:
    """A dry H200 that counts the launches of every kernel, and how often memory was asked for."""

    def __init__(self):
        from tritorch.cuda.dry import DryDriver

        self.launched, self.allocations, self.loaded = collections.Counter(), 0, []
        self.driver = DryDriver(90)
        self.plain = self.driver.alloc
        self.driver.load, self.driver.alloc = self.load, self.alloc

    def load(self, kernel, *rest):
        name = f"{kernel.__module__.rpartition('.')[2]}.{kernel.__name__}"
        self.loaded.append((name, kernel, *rest))

        def launch(*args):
            self.launched[name] += 1

        return types.SimpleNamespace(launch=launch, info={})

    def alloc(self, nbytes):
        self.allocations += 1
        return self.plain(nbytes)


@contextlib.contextmanager
def counting():
    from tritorch.cuda import driver

    ours = Counting()
    with driver.using(ours.driver):
        yield ours


def counted(config, batch, steps=5, clip=1.0):
    """What training steps ask of the device: launches of every kernel, peak bytes, the driver's allocations after warm-up, host seconds."""
    program = twin.load(MODEL)
    torch = program.torch
    with counting() as device:
        model = program.GPT2(config).to("cuda")
        optimizer = program.optimizer_of(model, fused=True)
        tokens = torch.empty(batch, config.context, dtype=torch.int64, device="cuda")

        def step():
            program.train_step(model, optimizer, tokens, tokens, "cuda", clip)

        for _ in range(3):
            step()
        torch.cuda.reset_peak_memory_stats()
        device.launched.clear()
        asked, seconds = device.allocations, []
        gc.disable()
        for _ in range(steps):
            start = time.perf_counter()
            step()
            seconds.append(time.perf_counter() - start)
        gc.enable()
        return dict(launches={name: n / steps for name, n in device.launched.items()}, peak=torch.cuda.max_memory_allocated(),
                    kept=torch.cuda.memory_allocated(), allocations=device.allocations - asked, seconds=statistics.median(seconds))


def counts(config, batch):
    """Rows of what was counted, with the logits and without; prints the plan beside the count."""
    for fused in (False, True):
        c, how = replace(config, fused=fused), "fused operators" if fused else "plain"
        found, plan = counted(c, batch), memory_plan(c, batch, fused)
        print(f"\nmemory plan, {how}, batch {batch} × {c.context}:")
        for name, nbytes in [*plan.items(), ("sum", sum(plan.values())), ("counted peak", found["peak"])]:
            print(f"  {name:26} {nbytes / 2**30:7.2f} GiB")
        print(f"kernels a step: {', '.join(f'{n:g} {name}' for name, n in sorted(found['launches'].items(), key=lambda x: -x[1]))}")
        name = f"GPT-2 124M, B{batch} T{c.context} bf16 autocast, {how}: "
        yield rows.row(name + f"peak memory (budget {PEAK_WANTED} GiB)", "GiB", found["peak"] / 2**30, limit=PEAK_WANTED)
        yield rows.row(name + "kernels a step", "launches", sum(found["launches"].values()))
        yield rows.row(name + "host time of a step, dry device", "ms", 1e3 * found["seconds"])
        yield rows.row(name + "driver allocations in five steps after warm-up", "calls", found["allocations"])


# ------------------------------------------------------------------ every launch of a step
STEPS_OF = {"eager": None, "one graph": {}, "one graph, max-autotune": {"mode": "max-autotune"}}      # options of compile
FAST = 54.0                                                              # ms a step for 604 thousand tokens/s at 32 × 1024


def launched(config, batch, options=None):
    """The launches of a training step on a dry H200, without clipping, and the bytes that are there at its peak: of an eager one, or as
    `compile` with `options` captures it."""
    program = twin.load(MODEL)
    torch, last = program.torch, ([], 0)
    with launches.accounting() as account:
        model = program.GPT2(config).to("cuda")
        optimizer = program.optimizer_of(model, fused=True, capturable=True)
        tokens = torch.empty(batch, config.context, dtype=torch.int64, device="cuda")

        def step():
            return program.train_step(model, optimizer, tokens, tokens, "cuda", None)

        step = step if options is None else torch.compile(step, **options)
        for _ in range(3 if options is None else 7):
            account.launches.clear()
            torch.cuda.reset_peak_memory_stats()
            step()
            if account.launches:                                         # a replay launches the graph alone
                found = [x for x in account.launches if x.operator]      # the others prepare the first replay
                last = found, torch.cuda.max_memory_allocated()
        if options is not None:
            print(step.report())
    return last


def breakdown(config, batch):
    """Rows: launches and floors of a step as it is written for PyTorch and with fused operators; prints every launch beside its floor."""
    for fused in (False, True):
        for how, options in STEPS_OF.items():
            if fused and options:
                continue
            found, peak = launched(replace(config, fused=fused), batch, options)
            name = f"GPT-2 124M, B{batch} T{config.context} bf16 autocast, {'fused operators' if fused else 'plain'}, {how}: "
            print(f"\n{name}\n{launches.table(found, RATES)}")
            rest = [launch for launch in found if not launch.flops]
            yield rows.row(name + "kernels a step, without clipping", "launches", len(found))
            yield rows.row(name + "bytes of what is no product or attention", "GB", sum(launch.nbytes for launch in rest) / 1e9)
            yield rows.row(name + "peak memory, without clipping", "GiB", peak / 2**30)
            yield rows.row(name + f"floor of all launches at the rates of an H200, in waves of tiles (aim {FAST:.0f} ms)", "ms",
                           1e3 * sum(launch.in_waves(RATES) for launch in found), limit=FAST)


def first_steps():
    """Rows: seconds of a new process up to its first step, on a dry device, kernels in the disk cache, and without a cache."""
    for fused in (False, True):
        command = [sys.executable, "-m", "bench.first_step", *(["fused"] if fused else [])]
        cold, _, warm = [json.loads(subprocess.run([*command, *more], cwd=rows.ROOT, env=imports.environment(), capture_output=True,
                                                   text=True, check=True).stdout) for more in (["cold"], [], [])]
        how = "fused operators" if fused else "plain"
        yield rows.row(f"GPT-2 124M, {how}: a new process up to its first step, kernels cached, dry device (budget 5 s)", "s",
                       warm["all"], limit=5.0)
        for part in ("import", "model", "step"):
            yield rows.row(f"GPT-2 124M, {how}: of that, {part}", "s", warm[part])
        how += f": the first process ever, {cold['compiled']} kernels compiled"
        yield rows.row(f"GPT-2 124M, {how} by {cold['cores']} cores (budget 60 s)", "s", cold["all"], limit=60.0)
        yield rows.row(f"GPT-2 124M, {how}, seconds of all cores together", "s", cold["seconds of all cores"])


def floor_table(config, batch, rates=RATES):
    """Markdown: every part's amount and the time it takes at the rates; the sum is a floor of the step's time."""
    lines, total = ["| part | amount | at | ms |", "|---|---:|---:|---:|"], 0.0
    for name, (amount, rate) in work(config, batch).items():
        unit, scale = ("TFLOP", 1e12) if rate != "bytes" else ("GB", 1e9)
        ms = 1e3 * amount / rates[rate]
        total += ms
        lines.append(f"| {name} | {amount / scale:.2f} {unit} | {rates[rate] / scale:.0f} {unit}/s | {ms:.2f} |")
    lines.append(f"| sum | | {batch * config.context / total:.0f} thousand tokens/s | {total:.2f} |")
    return "\n".join(lines), total


# ------------------------------------------------------------------ learning
class Learner:
    """A small GPT-2 on the tutorial's text, in one of the libraries."""

    def __init__(self, library, config, device="cpu", lr=3e-4):
        self.program = twin.load(MODEL, library)
        torch = self.torch = self.program.torch
        torch.manual_seed(0)
        self.device, self.losses = device, []
        self.model = self.program.GPT2(self.program.Config(**config)).to(device)
        self.optimizer = self.program.optimizer_of(self.model, lr=lr, **({"fused": True} if device != "cpu" else {}))

    def start_from(self, weights):
        self.model.load_state_dict({name: self.torch.from_numpy(w.copy()) for name, w in weights.items()})

    def weights(self):
        return {name: w.detach().cpu().numpy().copy() for name, w in self.model.state_dict().items()}

    def step(self, batch, low):
        x, y = [self.torch.from_numpy(half).to(self.device) for half in batch]
        self.losses.append(self.program.train_step(self.model, self.optimizer, x, y, self.device if low else None))

    def curve(self):
        return [float(loss) for loss in self.losses]


def batches(context, count, rows_of_text):
    """Windows of the tutorial's text and the same one character on, as numpy arrays; the same every time."""
    import numpy as np

    text = "".join(twin.load(rows.ROOT / "tutorials" / "train_gpt.py").topics.values())
    codes = np.frombuffer(text.encode("ascii", "replace"), np.uint8).astype(np.int64)
    draw = np.random.default_rng(0)
    for _ in range(count):
        window = draw.integers(0, len(codes) - context - 1, (rows_of_text, 1)) + np.arange(context + 1)
        yield np.ascontiguousarray(codes[window[:, :-1]]), np.ascontiguousarray(codes[window[:, 1:]])


def learn(learners, config, steps, rows_of_text, low):
    """Train all from the first one's weights on the same batches."""
    start = learners[0].weights()
    for other in learners[1:]:
        other.start_from(start)
    for batch in batches(config["context"], steps, rows_of_text):
        for learner in learners:
            learner.step(batch, low)
    return [learner.curve() for learner in learners]


def curves(steps):
    """Rows: how far our losses are from PyTorch's, in float32 and under autocast, on the CPU."""
    libraries = ["tritorch"] + (["torch"] if importlib.util.find_spec("torch") else [])
    for low in (False, True):
        found = learn([Learner(library, SMALL) for library in libraries], SMALL, steps, 8, low)
        how = "bfloat16 autocast" if low else "float32"
        yield rows.row(f"small GPT-2 on the CPU, {how}: loss after {steps} steps", "nats", found[0][-1], *(
            (found[1][-1], "torch") if len(found) > 1 else ()))
        if len(found) > 1:
            yield rows.row(f"small GPT-2 on the CPU, {how}: largest difference of the losses, steps 1 to {steps}", "nats",
                           max(abs(a - b) for a, b in zip(*found)))


def main(args):
    config = twin.load(MODEL).Config()
    if args.breakdown:
        print(rows.markdown(list(breakdown(config, BATCH))))
        return
    table, _ = floor_table(config, BATCH)
    print(f"floor of a step at the rates of an H200, batch {BATCH} × {config.context}:\n{table}")
    found = [*counts(config, BATCH), *breakdown(config, BATCH), *first_steps(), *curves(20 if args.quick else STEPS)]
    version = importlib.util.find_spec("torch") and f"torch {importlib.import_module('torch').__version__}"
    rows.record("gpt2", found, "python -m bench gpt2", version, keep=not args.quick)
