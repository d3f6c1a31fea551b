"""bench gpu_day [STEP …]: what a GPU is needed for, step by step; each ends within --minutes and leaves its output in --out.

`python -m bench --help` says what the steps are. Without any, all of them run in order; `--rehearse` runs them without a GPU.
"""
import os
import shutil
import time
import traceback
from pathlib import Path

from bench import rows, shards, watch

STEPS = ("smoke", "build", "test", "bench", "tune", "again")
SECONDS = 90                                                     # without a word, in which a kernel compiles: it hangs
PARTS = 12                                                       # processes of tests: they compile on the host and share the GPU
SMOKE = """
import tritorch as torch
from tritorch.cuda import driver
torch.manual_seed(0)
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
        print(f"{str(dtype):16} {name:10} largest difference {(got - want).abs().max().item():.3g}", flush=True)
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
assert losses[-1] < losses[0]
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
            code = globals()[step](args, folder, start + 60 * args.minutes)
        except Exception:                                        # the other steps go on
            traceback.print_exc()
            code = "an error of the step itself"
        failed += bool(code)
        print(f"== {step}: {'failed, code ' + str(code) if code else 'done'} after {time.monotonic() - start:.0f} s", flush=True)
    return int(bool(failed))


def logged(command, log, deadline, silence=float("inf"), **environment):
    """Run `python …`, its output on the screen and in a file, until the deadline or its silence; its exit code, or why it was ended."""
    process = watch.Heard(command, silence, deadline, rows.ROOT, **environment)
    with open(log, "w", encoding="utf-8") as file:
        for line in process:
            print(line, end="", flush=True)
            file.write(line)
            file.flush()
        if process.why:
            print(process.why, file=file)
            print(process.why, flush=True)
    return process.why or process.code


def words(args, deadline):
    """The options that a step hands on. What it has to write at its end takes a while."""
    left = max((deadline - time.monotonic()) / 60 - 0.5, 0.1)
    return ["--minutes", f"{left:.2f}", *(["--only", args.only] if args.only else []), *(["--rehearse"] if args.rehearse else [])]


def smoke(args, folder, deadline):
    """What hangs or is wrong is avoided by the later steps; what there was no time to try is not."""
    device = {"TRITORCH_CUDA": "simulated"} if args.rehearse else {}
    code = logged(["-c", SMOKE], folder / "smoke.log", deadline, SECONDS, **device)
    program = KIND.replace("SIZE", "50" if args.rehearse else "2000").replace("SHAPE", "(1, 2, 50)" if args.rehearse else "(4, 8, 700)")
    found = {}
    for kind in KINDS:
        if time.monotonic() >= deadline:
            found[kind] = "not tried, out of time"
        else:
            others = ",".join(k for k in KINDS if k != kind)
            ended = logged(["-c", program], folder / f"smoke_{kind}.log", deadline, SECONDS, TRITORCH_AVOID=others, **device)
            found[kind] = "right" if not ended else "not tried to the end, out of time" if ended == "out of time" else "WRONG, or hanging"
        print(f"{kind} kernels: {found[kind]}", flush=True)
    bad = [kind for kind in KINDS if found[kind].startswith("WRONG")]
    (folder / "smoke.txt").write_text("".join(f"{kind} kernels: {what}\n" for kind, what in found.items()), encoding="utf-8")
    if bad:
        os.environ["TRITORCH_AVOID"] = ",".join(bad)
        print(f"from here on: TRITORCH_AVOID={','.join(bad)}", flush=True)
    return code or int(bool(bad))


def build(args, folder, deadline):
    more = ["--arch", "sm_90"] if args.rehearse else []
    options = [w for w in words(args, deadline) if w != "--rehearse"]
    return logged(["-m", "bench", "tune", "all", "host", "samples", "--compile-only", *more, *options], folder / "build.log", deadline)


def test(args, folder, deadline):
    """Every test that needs a GPU; what is not well is listed, whole logs are in the folder."""
    wanted, bad = ["-k", args.only] if args.only else [], []

    def report(outcomes):
        bad[:] = sorted((test, outcome) for test, outcome in outcomes.items() if outcome not in ("PASSED", "SKIPPED", "XFAIL"))
        passed, skipped = (sum(outcome == kind for outcome in outcomes.values()) for kind in ("PASSED", "SKIPPED"))
        lines = [f"{passed} of {len(outcomes)} tests passed, {skipped} skipped, {len(bad)} not well",
                 *[f"{outcome} {test}" for test, outcome in bad]]
        (folder / "tests.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
        return lines

    outcomes, parts = shards.run(wanted, folder / "tests", 2 if args.rehearse else PARTS, deadline, report)
    lines = report(outcomes)
    (folder / "tests.log").write_text("".join(line for part in parts for line in part.output), encoding="utf-8")
    print("\n".join(lines[:100]), flush=True)
    return bool(bad) or not outcomes


def bench(args, folder, deadline, name="bench"):
    return logged(["-m", "bench", "gpu", "--out", str(folder / name), *words(args, deadline)], folder / f"{name}.log", deadline)


def tune(args, folder, deadline):
    code = logged(["-m", "bench", "tune", *words(args, deadline)], folder / "tune.log", deadline)
    for table in (rows.ROOT / "tritorch" / "cuda" / "tables").glob("*.json"):
        shutil.copy(table, folder)
    return code


def again(args, folder, deadline):
    return bench(args, folder, deadline, "again")
