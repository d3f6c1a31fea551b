"""bench predict gpt2: every launch of a training step of GPT-2 124M through the timetable of predict.py, beside the least it could take."""
import collections
from dataclasses import replace

import numpy as np

from bench import gpt2, launches, predict, rows
from bench.models import twin
from tritorch.cuda.launch import LaunchError
from tritorch.testing.ptx import trace
from tritorch.testing.ptx.machine import Fault

_BLOCKS = 8                                                      # CTAs of each launch that are traced


def predicted(fake, account, program):
    """[(Launch, Prediction or None)] of what the program launches, which is not run: of every kind of launch one is traced and predicted
    right behind the launch. None where a kernel goes by what CTAs left out would have written."""
    known, found, latest, first = {}, [], [], len(account.launches)

    def seen(kernel, launch):
        latest[:] = kernel, launch

    def then(launch, given):
        kernel, started = latest
        key = launch, id(kernel), started.grid
        if key not in known:
            known[key] = one(fake, kernel, started, launch)
        found.append(known[key])

    with trace.running(fake, seen), launches.watching(account):
        account.then = then
        try:
            program()
        finally:
            account.then = None
    return list(zip(account.launches[first:], found))            # by now it knows what the tables of optimizers stand for


def one(fake, kernel, started, launch):
    blocks = trace.sample(int(np.prod(started.grid)), _BLOCKS)
    try:
        traced = trace.trace(kernel, started, fake.memory, blocks, predict.STEPS if launch.flops else 0)
        found = predict.predict(traced, predict.resident(fake, traced), launch.flops, launch.busy)
    except (Fault, LaunchError, predict.TooLong) as error:
        print(f"  gpt2: {kernel.program.name}: {str(error.__cause__ or error)[:160]}")
        return None
    print(f"  gpt2: {kernel.program.name}: {found.us:.1f} µs", flush=True)
    return found


def step(fake, account, config, batch):
    """The same of an eager training step without clipping, as `compile` captures it."""
    program = twin.load(gpt2.MODEL)
    torch = program.torch
    with trace.skipping(fake):
        model = program.GPT2(config).to("cuda")
        optimizer = program.optimizer_of(model, fused=True, capturable=True)
        tokens = torch.empty(batch, config.context, dtype=torch.int64, device="cuda")
        program.train_step(model, optimizer, tokens, tokens, "cuda", None)           # Adam's moments come once
    return predicted(fake, account, lambda: program.train_step(model, optimizer, tokens, tokens, "cuda", None))


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


def table(fake, account):
    """Rows of a step as 604 thousand tokens a second want it: with fused operators, as one graph."""
    config = replace(twin.load(gpt2.MODEL).Config(), fused=True)
    pairs = step(fake, account, config, gpt2.BATCH)
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
