"""bench gpu_day [STEP …]: what a GPU is needed for, step by step; each ends within --minutes and leaves its output in --out.

`python -m bench --help` says what the steps are. Without any, all of them run in order; `--rehearse` runs them without a GPU.
"""
import contextlib
import os
import threading
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from bench import rows, shards, watch

STEPS = ("smoke", "build", "test", "bench", "tune", "judge", "again")
SECONDS = 90                                                     # without a word, in which a kernel compiles: it hangs
PARTS = 16                                                       # processes of tests: they work on the host and share the GPU
SMOKE = """
import tritorch as torch
from tritorch.cuda import driver
torch.manual_seed(0)
wrong = 0
print(driver.current().name, torch.cuda.get_device_name(), driver.current().device_properties(0))
for dtype in (torch.float32, torch.bfloat16):
    host = torch.randn(300, 200).to(dtype), torch.randn(200, 100).to(dtype)
    x, y = (t.cuda() for t in host)
    for name, call in {
        "add": lambda a, b: a + 1, "sum": lambda a, b: a.sum(1), "softmax": lambda a, b: torch.softmax(a, -1),
        "product": lambda a, b: a @ b,
        "transpose": lambda a, b: a.t().contiguous(), "sort": lambda a, b: torch.sort(a, 1)[0], "cumsum": lambda a, b: a.cumsum(0),
        "layer_norm": lambda a, b: torch.nn.functional.layer_norm(a, (200,)),
    }.items():
        got, want = call(x, y).cpu().float(), call(*host).float()
        apart, right = (got - want).abs().max().item(), (1e-5 if dtype == torch.float32 else 1e-2) * want.abs().max().item()
        print(f"{str(dtype):16} {name:10} largest difference {apart:.3g}{'' if apart <= right else '   WRONG'}", flush=True)
        wrong += not apart <= right
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU(), torch.nn.Linear(64, 8)).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
x, target = torch.randn(256, 64, device="cuda"), torch.randint(0, 8, (256,), device="cuda")
losses = []
for _ in range(20):
    loss = torch.nn.functional.cross_entropy(model(x), target)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
print("losses of 20 steps", [round(v, 3) for v in losses])
assert losses[-1] < losses[0] and not wrong
"""

KINDS = "plain", "persistent", "gluon", "exact", "exact_gluon", "together", "together_gluon"                    # of products, attention
KIND = """
import tritorch as torch
torch.manual_seed(0)
F, size, sizes = torch.nn.functional, SIZE, SHAPE
for transposed in range(8):
    x, y = (torch.randn(size, size).to(torch.float32 if transposed & 4 else torch.bfloat16) for _ in range(2))
    x, y = x.t() if transposed & 1 else x, y.t() if transposed & 2 else y
    got, want = (x.cuda() @ y.cuda()).cpu().float(), x.float() @ y.float()
    print(f"product {transposed} {x.dtype}", flush=True)
    assert (got - want).abs().max() <= (1e-5 if transposed & 4 else 0.02) * want.abs().max(), f"product {transposed} {x.dtype}"
for width, causal in ((64, True), (128, True), (64, False), (128, False)):
    q, k, v = (torch.randn(*sizes, width).bfloat16().requires_grad_() for _ in range(3))
    there = [t.detach().cuda().requires_grad_() for t in (q, k, v)]
    want = F.scaled_dot_product_attention(*(t.float() for t in (q, k, v)), is_causal=causal)
    got = F.scaled_dot_product_attention(*there, is_causal=causal)
    weight = torch.randn(*want.shape)
    (want * weight).sum().backward()
    (got * weight.cuda().bfloat16()).sum().backward()
    print(f"attention {width} {causal}", flush=True)
    for ours, theirs in zip((got, *(t.grad for t in there)), (want, *(t.grad for t in (q, k, v)))):
        ours, theirs = ours.detach().cpu().float(), theirs.float()
        assert (ours - theirs).abs().max() <= 0.05 * theirs.abs().max(), f"attention {width} {causal}"
"""


def main(args):
    steps = args.families or STEPS
    unknown = set(steps) - set(STEPS)
    if unknown:
        print(f"gpu_day: expected steps among {', '.join(STEPS)}, got {', '.join(sorted(unknown))}")
        return 2
    folder = Path(args.out or rows.ROOT / "runs" / "gpu_day").resolve()
    folder.mkdir(parents=True, exist_ok=True)
    failed = 0
    for step in steps:
        start = time.monotonic()
        print(f"\n== {step}", flush=True)
        try:
            if step != "smoke":
                avoid(kept_kinds(args))
            code = globals()[step](args, folder, start + 60 * args.minutes)
        except Exception:                                        # the other steps go on
            traceback.print_exc()
            code = "an error of the step itself"
        failed += bool(code)
        print(f"== {step}: {'failed, code ' + str(code) if code else 'done'} after {time.monotonic() - start:.0f} s", flush=True)
    return int(bool(failed))


class Log:
    """A file of lines, each on the disk at once: nobody knows how long all of this may live. Without room for it the step goes on."""

    def __init__(self, path):
        self.path, self.lock = path, threading.Lock()
        keep(path, "")

    def __call__(self, line):
        with self.lock, contextlib.suppress(OSError), open(self.path, "a", encoding="utf-8") as file:
            file.write(line)


def keep(path, text):
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        print(f"{path} is not written: {error}", flush=True)


def logged(command, log, deadline, silence=float("inf"), mark="", **environment):
    """Run `python …`, its output on the screen and in a Log, each line after `mark`, until the deadline or its silence; its exit code,
    or why it was ended."""
    process = watch.Heard(command, silence, deadline, rows.ROOT, **environment)
    for line in process:
        print(mark + line, end="", flush=True)
        log(mark + line)
    if process.why:
        log(f"{mark}{process.why}\n")
        print(mark + process.why, flush=True)
    return process.why or process.code


def words(args, deadline):
    """The options that a step hands on. What it has to write at its end takes a while."""
    left = max((deadline - time.monotonic()) / 60 - 0.5, 0.1)
    flags = [f"--{name}" for name in ("rehearse", "ready") if getattr(args, name)]
    return ["--minutes", f"{left:.2f}", *(["--only", args.only] if args.only else []), *flags]


def smoke(args, folder, deadline):
    """Each kind of kernel in a process of its own, all at once; then, without those that hang or are wrong, a little of everything.
    What there was no time to try is not avoided."""
    device = {"TRITORCH_CUDA": "simulated"} if args.rehearse else {}
    program = KIND.replace("SIZE", "50" if args.rehearse else "1000").replace("SHAPE", "(1, 2, 50)" if args.rehearse else "(2, 8, 700)")
    log, found = Log(folder / "smoke.log"), dict.fromkeys(KINDS, "not tried to the end")

    def attempt(kind):
        others = ",".join(k for k in KINDS if k != kind)
        ended = logged(["-c", program], log, deadline, SECONDS, f"{kind}| ", TRITORCH_AVOID=others, OPENBLAS_NUM_THREADS="2", **device)
        found[kind] = "right" if not ended else "not tried to the end, out of time" if ended == "out of time" else f"WRONG: {ended}"
        keep(folder / "smoke.txt", "".join(f"{kind} kernels: {what}\n" for kind, what in found.items()))

    with ThreadPoolExecutor(len(KINDS)) as pool:
        list(pool.map(attempt, KINDS))
    print("".join(f"{kind} kernels: {what}\n" for kind, what in found.items()), end="", flush=True)
    bad = [kind for kind in KINDS if found[kind].startswith("WRONG")]
    if len(bad) == len(KINDS):
        print("nothing is avoided: what is wrong is not the kind of kernel", flush=True)
    keep(avoided_in(args), ",".join(bad) if len(bad) < len(KINDS) else "")
    avoid(kept_kinds(args))
    return logged(["-c", SMOKE], log, deadline, SECONDS, **device) or int(bool(bad))


def avoided_in(args):
    """Where smoke notes for the next commands which kinds of kernels they leave out. Programs other than this one do not look there."""
    return (Path(args.out) if args.rehearse and args.out else rows.ROOT / "runs") / "avoided.txt"


def kept_kinds(args):
    try:
        return [kind for kind in avoided_in(args).read_text(encoding="utf-8").split(",") if kind]
    except OSError:
        return []


def avoid(kinds):
    """For all processes that are started from here on."""
    before = [kind for kind in os.environ.get("TRITORCH_AVOID", "").split(",") if kind]
    os.environ["TRITORCH_AVOID"] = ",".join(dict.fromkeys([*before, *kinds]))
    if os.environ["TRITORCH_AVOID"]:
        print(f"avoided: {os.environ['TRITORCH_AVOID']} kernels, as smoke or TRITORCH_AVOID says", flush=True)


def build(args, folder, deadline):
    more = ["--arch", "sm_90"] if args.rehearse else []
    options = [w for w in words(args, deadline) if w not in ("--rehearse", "--ready")]
    command = ["-m", "bench", "tune", "all", "host", "samples", "tests", "--compile-only", *more, *options]
    return logged(command, Log(folder / "build.log"), deadline)


def test(args, folder, deadline):
    """Every test that needs a GPU, in a rehearsal on the one that is made of numpy. tests.txt says what is not well and why, tests.log all;
    both are written as it goes."""
    if args.rehearse:
        os.environ.setdefault("TRITORCH_PTX", "90")
    wanted = ["-k", args.only.replace("|", " or ")] if args.only else []
    tell = lambda outcomes: keep(folder / "tests.txt", "\n".join(shards.summary(outcomes)) + "\n")
    outcomes = shards.run(wanted, Log(folder / "tests.log"), 2 if args.rehearse else PARTS, deadline, tell)
    tell(outcomes)
    print("\n".join(shards.summary(outcomes)[:100]), flush=True)
    return any(outcome not in shards.WELL for outcome, _ in outcomes.values()) or "PASSED" not in {o for o, _ in outcomes.values()}


def bench(args, folder, deadline, name="bench"):
    return logged(["-m", "bench", "gpu", "--out", str(folder / name), *words(args, deadline)], Log(folder / f"{name}.log"), deadline)


def tune(args, folder, deadline):
    return logged(["-m", "bench", "tune", "--out", str(folder), *words(args, deadline)], Log(folder / "tune.log"), deadline)


def judge(args, folder, deadline):
    command = ["-m", "bench", "tune", "gpt2", "--in-step", "--out", str(folder), *words(args, deadline)]
    return logged(command, Log(folder / "judge.log"), deadline)


def again(args, folder, deadline):
    return bench(args, folder, deadline, "again")
