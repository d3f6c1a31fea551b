"""bench predict gpt2: every launch of a training step of GPT-2 124M through the timetable of predict.py, beside the least it could take."""
import collections
import contextlib
from dataclasses import replace

import numpy as np

from bench import gpt2, launches, predict, rows
from bench.models import twin
from tritorch.cuda import ahead, driver
from tritorch.cuda.launch import LaunchError
from tritorch.testing.ptx import trace
from tritorch.testing.ptx.machine import Fault

_BLOCKS = 8                                                      # CTAs of each launch that are traced
_Function = collections.namedtuple("Function", "launch info")


class Predicting(launches.Account):
    """An Account on the machine made of PTX, which runs nothing: once `wanted`, of every kind of launch one is traced and predicted right
    behind the launch, while its tensors are there. `predictions` has one for each of `launches`, None where the kernel goes by what CTAs
    left out would have written."""

    def __init__(self, fake):
        super().__init__()
        self.fake, self.known, self.predictions, self.wanted, self.real = fake, {}, [], False, driver.current().load

    def load(self, *args):
        """What the driver is asked for: the real function, whose launches leave the names of their arguments here."""
        function, named = self.real(*args), super().load(*args)

        def launch(*values):
            named.launch(*values)
            function.launch(*values)

        return _Function(launch, {})

    def seen(self, kernel, launch):
        """Called in the place of running it."""
        self.latest = kernel, launch

    def launched(self, start, grid, leaves, values):
        if self.wanted:
            super().launched(start, grid, leaves, values)
            kernel, launch = self.latest
            key = self.launches[-1], id(kernel), launch.grid
            if key not in self.known:
                self.known[key] = self.predict(kernel, launch, self.launches[-1].flops)
            self.predictions.append(self.known[key])

    def predict(self, kernel, launch, operations):
        blocks = trace.sample(int(np.prod(launch.grid)), _BLOCKS)
        try:
            traced = trace.trace(kernel, launch, self.fake.memory, blocks, predict.STEPS if operations else 0)
            found = predict.predict(traced, predict.resident(self.fake, traced), operations)
        except (Fault, LaunchError, predict.TooLong) as error:
            print(f"  gpt2: {kernel.program.name}: {str(error.__cause__ or error)[:160]}")
            return None
        print(f"  gpt2: {kernel.program.name}: {found.us:.1f} µs", flush=True)
        return found


@contextlib.contextmanager
def predicting(fake):
    account, run, poison = Predicting(fake), fake._run, fake.memory.poison
    driver.current().load, fake._run, fake.memory.poison = account.load, account.seen, 0
    try:
        with ahead.staying(), launches.watching(account):
            yield account
    finally:
        driver.current().load, fake._run, fake.memory.poison = account.real, run, poison


def step(fake, config, batch):
    """[(Launch, Prediction or None)] of an eager training step without clipping, as `compile` captures it."""
    program = twin.load(gpt2.MODEL)
    torch = program.torch
    with predicting(fake) as account:
        model = program.GPT2(config).to("cuda")
        optimizer = program.optimizer_of(model, fused=True, capturable=True)
        tokens = torch.empty(batch, config.context, dtype=torch.int64, device="cuda")
        for account.wanted in (False, True):                     # what comes once, such as Adam's moments, is no part of it
            program.train_step(model, optimizer, tokens, tokens, "cuda", None)
    return list(zip(account.launches, account.predictions))


def floor(launch):
    """µs that it takes at least, in waves of tiles at the rates of PyTorch's libraries."""
    return 1e6 * launch.in_waves(gpt2.RATES)


def taken(launch, found):
    """µs: the prediction, or the floor where there is none."""
    return found.us if found else floor(launch)


def show(pairs):
    """Equal launches on one line, those first that are farthest above their floors."""
    alike = collections.defaultdict(list)
    for launch, found in pairs:
        alike[launch, found and found.us].append((launch, found))
    for some in sorted(alike.values(), key=lambda some: sum(floor(a) - taken(a, b) for a, b in some)):
        launch, found = some[0]
        print(f"  {len(some):3} × {launch.kernel.partition('.')[2]:36} {taken(launch, found):7.1f} µs, floor {floor(launch):6.1f}, "
              f"{launch.operator}, {launch.sizes}: {found.binds if found else 'not predicted'}")


def table(fake):
    """Rows of a step as 604 thousand tokens a second want it: with fused operators, as one graph."""
    config = replace(twin.load(gpt2.MODEL).Config(), fused=True)
    pairs = step(fake, config, gpt2.BATCH)
    show(pairs)
    parts = {"products": [], "attention": [], "everything else": []}
    for pair in pairs:
        rate = pair[0].rate if pair[0].flops else ""
        parts["products" if rate == "matmul" else "attention" if rate else "everything else"].append(pair)
    gaps = predict.GAP * len(pairs)
    ms = (sum(taken(*pair) for pair in pairs) + gaps) / 1e3
    name = f"gpt2: B{gpt2.BATCH} T{config.context} bf16, fused operators"
    found = [rows.row(f"{name}: a step", "ms", ms, limit=gpt2.FAST),
             rows.row(f"{name}: thousands of tokens", "1/s", gpt2.BATCH * config.context / ms)]
    for part, some in parts.items():
        us = sum(taken(*pair) for pair in some)
        found.append(rows.row(f"{name}: of that, {part}, {len(some)} launches, to their floor", "ms", us / 1e3,
                              limit=sum(floor(launch) for launch, _ in some) / 1e3))
    return [*found, rows.row(f"{name}: of that, between launches", "ms", gaps / 1e3)]
