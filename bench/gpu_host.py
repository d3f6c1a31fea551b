"""What the host costs on a GPU's machine: eager operators, training steps eager and captured, the allocator, start-up."""
import gc
import json
import statistics
import subprocess
import sys
import time

from bench import imports, rows
from bench.host import ALLOCATOR, captured, memory_of_tensors, mlp_step
from bench.timing import clock

ROUNDS, CALLS = 7, 300
STARTUP = """
import time; start = time.perf_counter()
import {0} as torch
x = torch.randn(512, 512, device="cuda")
w = torch.randn(512, 512, device="cuda", requires_grad=True)
torch.nn.functional.softmax(x @ w, -1).sum().backward()
w.grad.sum().item()
print(time.perf_counter() - start)
"""

EAGER = {
    "add": lambda torch, x, y: x + y,
    "relu": lambda torch, x, y: torch.relu(x),
    "mm": lambda torch, x, y: x @ y,
    "sum": lambda torch, x, y: x.sum(),
    "view": lambda torch, x, y: x.view(16, -1),
    "transpose": lambda torch, x, y: x.t(),
    "softmax": lambda torch, x, y: torch.softmax(x, -1),
    "layer_norm": lambda torch, x, y: torch.nn.functional.layer_norm(x, (64,)),
    "linear": lambda torch, x, y: torch.nn.functional.linear(x, y, y[0]),
}


def work(sides, rehearse):
    """(name, function that returns rows) of every part."""
    scale = 100 if rehearse else 1
    libraries = {"tritorch": sides.library("tritorch")} | ({"torch": sides.torch} if sides.torch else {})
    places = {"tritorch": "cuda", "torch": sides.theirs}
    for name, call in EAGER.items():
        yield name, lambda name=name, call=call: eager(name, call, libraries, places, scale)
    for optimizer in ("SGD", "AdamW"):
        yield f"MLP step {optimizer}", lambda optimizer=optimizer: steps(optimizer, libraries, places, scale)
        yield f"captured MLP step {optimizer}", lambda optimizer=optimizer: captured_steps(optimizer, libraries, places, scale)
    yield "captured kernel", lambda: captured({name: torch for name, torch in libraries.items() if places[name] == "cuda"})
    yield "allocator", lambda: allocator(libraries, places, scale)
    if not rehearse:
        yield "start-up", lambda: startup(libraries)
        yield "start-up of GPT-2", first_steps


def programs(sides):
    """What is compiled ahead: every part once, with little patience."""
    return [measure for _, measure in work(sides, rehearse=True)]


def microseconds(calls, libraries, scale):
    """{name: median µs of the host} of calls that take turns; each turn begins and ends with an idle device."""
    times = {name: [] for name in calls}
    count = max(CALLS // scale, 1)
    if scale == 1:                                                       # in a rehearsal nothing is measured
        gc.collect()
    for _ in range(max(ROUNDS // scale, 1) + 1):
        for name, call in calls.items():
            wait(libraries[name])
            times[name].append(1e6 * clock(call, count))
            wait(libraries[name])
    return {name: statistics.median(found[1:]) for name, found in times.items()}


def wait(torch):
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def compared(name, calls, libraries, scale, unit="µs"):
    us = microseconds(calls, libraries, scale)
    return rows.row(name, unit, us["tritorch"], us.get("torch"), "torch")


def eager(name, call, libraries, places, scale):
    """Forward without and with a graph, and backward, on 64×64 elements."""
    kinds = {"": {}, ", with graph": {}, ", backward": {}}
    for library, torch in libraries.items():
        x, y = (torch.randn(64, 64, device=places[library]) for _ in range(2))
        leaf = x.clone().requires_grad_()
        out = call(torch, leaf, y)
        g = torch.ones_like(out)
        kinds[""][library] = lambda torch=torch, x=x, y=y: call(torch, x, y)
        kinds[", with graph"][library] = lambda torch=torch, x=leaf, y=y: call(torch, x, y)
        kinds[", backward"][library] = lambda out=out, g=g: out.backward(g, retain_graph=True)
    return [compared(f"{name}{kind}", calls, libraries, scale) for kind, calls in kinds.items()]


def steps(optimizer, libraries, places, scale):
    calls = {library: mlp_step(torch, optimizer, places[library]) for library, torch in libraries.items()}
    return [compared(f"step of a 64-64-64-10 MLP, {optimizer}", calls, libraries, scale)]


def captured_steps(optimizer, libraries, places, scale):
    """The same step as a CUDA graph: what the device takes for it, host and all."""
    options = {"capturable": True} if optimizer == "AdamW" else {}
    calls = {}
    for library, torch in libraries.items():
        if places[library] != "cuda":
            continue
        step = mlp_step(torch, optimizer, "cuda", **options)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                step()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            step()
        calls[library] = lambda graph=graph, torch=torch: (graph.replay(), torch.cuda.synchronize())
    return [compared(f"captured step of a 64-64-64-10 MLP, {optimizer}", calls, libraries, scale)]


def allocator(libraries, places, scale):
    us = microseconds({"tritorch": memory_of_tensors()}, libraries, scale)["tritorch"]
    found = [rows.row(f"4 KiB from the allocator and back (budget {ALLOCATOR} µs)", "µs", us, limit=ALLOCATOR)]
    for size in (1 << 12, 1 << 20, 1 << 26):
        calls = {library: lambda torch=torch, device=places[library], size=size: torch.empty(size, device=device)
                 for library, torch in libraries.items()}
        found.append(compared(f"empty({size}) and its end", calls, libraries, scale))
    return found


def startup(libraries):
    """Seconds from the start of a second process to its first gradient, kernels in the cache."""
    seconds = {}
    for library in libraries:
        spent = []
        for _ in range(3):
            done = subprocess.run([sys.executable, "-c", STARTUP.format(library)], capture_output=True, text=True, check=True,
                                  cwd=rows.ROOT, env=imports.environment())
            spent.append(float(done.stdout.split()[-1]))
            time.sleep(0.1)
        seconds[library] = statistics.median(spent[1:])
    name = "second process: import, first product, softmax and gradient"
    return [rows.row(name, "s", seconds["tritorch"], seconds.get("torch"), "torch")]


def first_steps():
    """Seconds of a process up to the end of its first GPT-2 step: with an empty cache of kernels, then as every later one."""
    command = [sys.executable, "-m", "bench.first_step", "gpu"]
    cold, _, warm = [json.loads(subprocess.run([*command, *more], capture_output=True, text=True, check=True, cwd=rows.ROOT,
                                               env=imports.environment()).stdout.splitlines()[-1]) for more in (["cold"], [], [])]
    return [rows.row("second process, to the end of its first GPT-2 124M step (budget 5 s)", "s", warm["all"], limit=5.0),
            rows.row(f"first process ever, {cold['compiled']} kernels compiled by {cold['cores']} cores (budget 60 s)", "s", cold["all"],
                     limit=60.0)]
