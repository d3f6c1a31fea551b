"""Microseconds of the host per operator: tensors so small, or a device so idle, that Python is all there is to see."""
import contextlib
import importlib.util
import types

from bench import clock, rows
from bench.gpt2 import counting
from bench.timing import race

DOOR, LAUNCH, NODE, ALLOCATOR, STEP, KERNEL = 3.0, 1.5, 1.0, 1.0, 20.0, 1.0   # budgets, µs

OPERATORS = {                                                    # the same source on both libraries; x wants a gradient or not
    "x + y": lambda torch, x, y: x + y,
    "x * 2": lambda torch, x, y: x * 2,
    "relu": lambda torch, x, y: torch.relu(x),
    "exp": lambda torch, x, y: torch.exp(x),
    "sum": lambda torch, x, y: x.sum(),
    "sum(-1)": lambda torch, x, y: x.sum(-1),
    "view": lambda torch, x, y: x.view(4, 16),
    "transpose": lambda torch, x, y: x.t(),
    "x[0]": lambda torch, x, y: x[0],
    "softmax": lambda torch, x, y: torch.softmax(x, -1),
    "layer_norm": lambda torch, x, y: torch.nn.functional.layer_norm(x, (8,)),
    "x @ y": lambda torch, x, y: x @ y,
    "linear": lambda torch, x, y: torch.nn.functional.linear(x, y),
}


def microseconds(calls, args):
    return {name: 1e6 * seconds for name, seconds in race(calls, rounds=3 if args.quick else 11).items()}


def libraries():
    """{name: module}: ours, and PyTorch where it is installed."""
    import tritorch

    found = {"tritorch": tritorch}
    if importlib.util.find_spec("torch"):
        import torch

        torch.set_num_threads(1)                                     # 8×8 elements: other threads would only be woken for nothing
        found["torch"] = torch
    return found


def eager(where, args, opponents):
    """Every operator without a graph, with one, and its backward pass alone."""
    device = "cpu" if where == "cpu" else "cuda"
    for name, call in OPERATORS.items():
        kinds = {"forward": {}, "with graph": {}, "backward": {}}
        for library, torch in opponents.items():
            x, y = torch.ones(8, 8, device=device), torch.ones(8, 8, device=device)
            leaf = torch.ones(8, 8, device=device).requires_grad_()
            out = call(torch, leaf, y)
            g = torch.ones_like(out)
            kinds["forward"][library] = lambda call=call, torch=torch, x=x, y=y: call(torch, x, y)
            kinds["with graph"][library] = lambda call=call, torch=torch, x=leaf, y=y: call(torch, x, y)
            kinds["backward"][library] = lambda out=out, g=g: out.backward(g, retain_graph=True)       # accumulates into leaf.grad
        for kind, calls in kinds.items():
            us = microseconds(calls, args)
            yield rows.row(f"{where}: {name}, {kind}", "µs", us["tritorch"], us.get("torch"), "torch")


def steps(where, args, opponents):
    """A training step of a small MLP, where Python is most of the time."""
    for optimizer in ("SGD", "AdamW"):
        calls = {library: mlp_step(torch, optimizer, "cpu" if where == "cpu" else "cuda") for library, torch in opponents.items()}
        us = microseconds(calls, args)
        yield rows.row(f"{where}: step of a 64-64-64-10 MLP, {optimizer}", "µs", us["tritorch"], us.get("torch"), "torch")


def launches(torch):
    """How often such a step starts a kernel: each start costs the driver 3.6 µs on an H200's host."""
    for optimizer in ("SGD", "AdamW"):
        with counting() as device:
            step = mlp_step(torch, optimizer, "cuda")
            for _ in range(3):
                device.launched.clear()
                step()
        yield rows.row(f"idle device: step of a 64-64-64-10 MLP, {optimizer}, launches", "", device.launched.total())


def mlp_step(torch, optimizer, device="cpu", **options):
    nn = torch.nn
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)).to(device)
    optimizer = getattr(torch.optim, optimizer)(model.parameters(), lr=1e-3, **options)
    x, target = torch.randn(64, 64, device=device), torch.randint(0, 10, (64,), device=device)

    def step():
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), target).backward()
        optimizer.step()

    return step


def parts(args):
    """The stages of an operator call, each with its budget."""
    import tritorch
    from tritorch.dispatch import op, registry

    @op
    def bench_nothing(x, other):
        """An operator that computes nothing."""
        return x.shape, x.dtype, x.storage.device

    for kind in ("cpu", "cuda"):
        bench_nothing.impl(kind, raw=True)(lambda out, x, other: None)
    bench_nothing.grad("x")(lambda g: g)
    try:
        x = tritorch.ones(8, 8)
        leaf = tritorch.ones(8, 8, requires_grad=True)
        us = microseconds({"plain": lambda: bench_nothing(x, x), "graph": lambda: bench_nothing(leaf, x)}, args)
        yield rows.row("cpu: door, shape rule and allocation", "µs", us["plain"], limit=DOOR)
        yield rows.row(f"cpu: the same and a graph node (budget {DOOR} µs)", "µs", us["graph"], limit=DOOR)
        engine = list(backward_per_node(args, tritorch, bench_nothing))
        yield from engine
        with idle_device():
            yield from device_parts(args, tritorch, bench_nothing)
            stages = anatomy(args, tritorch, engine[0].ours)
        yield from stages
        if not args.quick:
            rows.renew("stages", shown(stages))
    finally:
        del registry["bench_nothing"]


def backward_per_node(args, tritorch, nothing, length=1000):
    out = leaf = tritorch.ones(8, 8, requires_grad=True)
    for _ in range(length):
        out = nothing(out, out.detach())
    g = tritorch.ones(8, 8)
    us = microseconds({"backward": lambda: out.backward(g, retain_graph=True),
                       "grad": lambda: tritorch.autograd.grad(out, leaf, g, retain_graph=True)}, args)
    yield rows.row(f"backward(), per node of a chain of {length} (budget {NODE} µs)", "µs", us["backward"] / length, limit=NODE)
    yield rows.row(f"autograd.grad(), per node of a chain of {length}", "µs", us["grad"] / length)


def memory_of_tensors():
    """A thunk that takes 4 KiB on the default stream and gives them back, as a tensor does."""
    from tritorch.cuda.allocator import Owner, take

    class Piece(Owner):
        __slots__ = ("span",)

    def call():
        piece = Piece()
        piece.span = take(4096, 0)

    return call


def device_parts(args, tritorch, nothing):
    x = tritorch.empty(1024, device="cuda")
    leaf = tritorch.empty(1024, device="cuda").requires_grad_()
    us = microseconds({"door": lambda: nothing(x, x), "graph": lambda: nothing(leaf, x), "allocator": memory_of_tensors()}, args)
    yield rows.row("idle device: door, shape rule and allocation", "µs", us["door"], limit=DOOR)
    yield rows.row(f"idle device: the same and a graph node (budget {DOOR} µs)", "µs", us["graph"], limit=DOOR)
    yield rows.row("idle device: allocate and free 4 KiB", "µs", us["allocator"], limit=ALLOCATOR)
    yield from launch_path(args, x)
    yield from compiled_step(args, tritorch)
    yield from compiled_places(args, tritorch)


def anatomy(args, tritorch, per_node):
    """Where the microseconds of `x + y` go, the kernel left out: what each stage adds, measured alone or as a difference."""
    from tritorch.dispatch import registry
    from tritorch.tensor import empty

    x, y = (tritorch.empty(1024, device="cuda") for _ in range(2))
    leaf, add = tritorch.empty(1024, device="cuda").requires_grad_(), registry["add"]
    ways, made = (add.again, add.rewrite), x + y
    add.repeat(lambda args: made, None)
    try:
        bare = microseconds({"door": lambda: x + y}, args)["door"]
    finally:
        add.repeat(*ways)
    us = microseconds({"memory": memory_of_tensors(), "empty": lambda: empty(x.shape, x.dtype, x.storage.device),
                       "all": lambda: x + y, "graph": lambda: leaf + y}, args)
    parts = {"the door: arguments, interpreter slot": bare,
             "memory from the pool, and back": us["memory"],
             "tensor and storage objects": us["empty"] - us["memory"],
             "finding the launch, pointers": us["all"] - bare - us["empty"],
             "graph node": us["graph"] - us["all"],
             "its part of the backward engine": per_node}
    limits = {"finding the launch, pointers": LAUNCH}
    return [rows.row(f"idle device: x + y, {name}", "µs", spent, limit=limits.get(name)) for name, spent in parts.items()]


def shown(found):
    """The stages as the README has them."""
    lines = [f"| {r.name.partition(', ')[2]} | {rows.number(r.ours)} |\n" for r in found]
    return "".join(["| `x + y`, all but the kernel | µs |\n|---|---:|\n", *lines, f"| together | {sum(r.ours for r in found):.1f} |\n"])


def launch_path(args, x):
    """`launch` as `x + x` calls it, and `kernel[grid](...)`, with a kernel that does nothing."""
    from bench.nothing_kernel import nothing_kernel
    from tritorch.cuda.launch import launch

    us = microseconds({"launch": lambda: launch(nothing_kernel, (1,), x, x, x, 1024, BLOCK=1024),
                       "bracket": lambda: nothing_kernel[(1,)](x, x, x, 1024, BLOCK=1024)}, args)
    yield rows.row(f"idle device: launch with four arguments (budget {LAUNCH} µs)", "µs", us["launch"], limit=LAUNCH)
    yield rows.row("idle device: the same as Triton programs write it, kernel[grid](...)", "µs", us["bracket"])


def compiled_step(args, torch):
    """A replayed training step of two arguments, for models of few parameters and of many."""
    nn, calls = torch.nn, {}
    for layers in (2, 74, 500):
        model = nn.Sequential(*[nn.Linear(8, 8) for _ in range(layers)]).cuda()
        optimizer = torch.optim.AdamW(model.parameters())

        @torch.compile
        def step(x, target, model=model, optimizer=optimizer):
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(x), target)
            loss.backward()
            optimizer.step()
            return loss

        x, target = torch.empty(8, 8, device="cuda"), torch.empty(8, 8, device="cuda")
        for _ in range(6):                                           # until it is replayed
            step(x, target)
        calls[2 * layers] = lambda step=step, x=x, target=target: step(x, target)
    for count, us in microseconds(calls, args).items():
        yield rows.row(f"idle device: compiled step, {count} parameters (budget {STEP} µs)", "µs", us, limit=STEP)


def compiled_places(args, torch):
    """A replay of one kernel that leaves its result in four attributes: as they were left, and put back since others are there."""
    kept, x = types.SimpleNamespace(), torch.empty(8, 8, device="cuda")

    @torch.compile
    def step(x):
        kept.a = kept.b = kept.c = kept.d = y = x * 2
        return y

    def elsewhere():
        kept.a = kept.b = kept.c = kept.d = None
        step(x)

    for _ in range(6):                                               # until it is replayed
        step(x)
    us = microseconds({"left": lambda: step(x), "put": elsewhere}, args)
    yield rows.row("idle device: replay that left a tensor in four attributes, which are as it left them", "µs", us["left"])
    yield rows.row("idle device: the same where they were assigned since, and are put back", "µs", us["put"])


def captured(opponents, where="", length=100):
    """A row: what a kernel of a CUDA graph takes on the device, in a chain of additions."""
    us = clock.race({library: captured_chain(torch, length) for library, torch in opponents.items()})
    per_kernel = {library: spent / length for library, spent in us.items()}
    name = f"{where}x + 1, captured {length} times, per kernel (budget {KERNEL} µs)"
    found = [rows.row(name, "µs", per_kernel["tritorch"], per_kernel.get("torch"), "torch", limit=KERNEL)]
    with each_after_the_other():
        late = clock.race({"tritorch": captured_chain(opponents["tritorch"], length)})["tritorch"] / length
    return [*found, rows.row(f"{where}the same where none begins before the one in front of it has ended", "µs", late)]


@contextlib.contextmanager
def each_after_the_other():
    """Inside, kernels of graphs begin as all others do."""
    from tritorch.cuda import driver, nvidia_function

    def forget():                                                        # how each is launched
        driver.functions.clear()
        driver.forget_calls()

    nvidia_function.EARLY = False
    forget()
    try:
        yield
    finally:
        nvidia_function.EARLY = True
        forget()


def captured_chain(torch, length):
    """A thunk that replays additions of 8×8 elements."""
    first, graph = torch.ones(8, 8, device="cuda"), torch.cuda.CUDAGraph()
    first + 1
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        x = first
        for _ in range(length):
            x = x + 1
    return lambda kept=first: graph.replay()                         # which reads it


def idle_device():
    from tritorch.cuda import driver
    from tritorch.cuda.dry import DryDriver

    return driver.using(DryDriver(90))


def main(args):
    from tritorch.cuda import driver

    opponents = libraries()
    found = [*parts(args), *eager("cpu", args, opponents), *steps("cpu", args, opponents)]
    ours = opponents["tritorch"]
    on_gpu = ours.cuda.is_available() and driver.current().name == "nvidia"
    with contextlib.nullcontext() if on_gpu else idle_device():      # a GPU's own work hides behind the host's at these sizes
        gpu_opponents = opponents if on_gpu else {"tritorch": ours}
        where = "cuda" if on_gpu else "idle device"
        found += [*eager(where, args, gpu_opponents), *steps(where, args, gpu_opponents)]
        found += captured(gpu_opponents, "cuda: ") if on_gpu else []
    found += launches(ours)
    versions = [f"torch {opponents['torch'].__version__} on one thread"] if "torch" in opponents else []
    rows.record("host", found, "python -m bench host", *versions, keep=not args.quick)
