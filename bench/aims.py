"""What `bench gpu` is meant to show, line by line: the aim, which row is the furthest from it, and how many do not meet it."""
import collections
import math
from collections.abc import Callable
from dataclasses import dataclass

from bench import rows


@dataclass
class Aim:
    """`find(rows, raw)` gives (name of a row, its number or None where it failed) of all that the aim speaks of. Each number is to be at
    least, or at most, `bound`."""

    what: str
    bound: float
    find: Callable
    least: bool = True
    unit: str = ""

    def line(self, table, raw):
        """A row of Markdown."""
        found = self.find(table, raw)
        if not found:
            return self.cells("", "not measured")
        number = lambda pair: -math.inf if pair[1] is None else pair[1] if self.least else -pair[1]
        bad = [pair for pair in found if number(pair) < (self.bound if self.least else -self.bound)]
        name, worst = min(found, key=number)
        shown = "failed" if worst is None else f"{rows.number(worst) or 0}{self.unit}"
        verdict = "met" if not bad else f"NOT MET by {len(bad)} of {len(found)}" if len(found) > 1 else "NOT MET"
        return self.cells(f"{shown}{f' ({name})' if len(found) > 1 else ''}", verdict)

    def cells(self, worst, verdict):
        return f"| {self.what} | {'≥' if self.least else '≤'} {self.bound:g}{self.unit} | {worst} | {verdict} |"


def of(field, *prefixes, but=()):
    """A number of every row whose name begins so and that has it, or failed, but for those in which one of the words of `but` stands."""
    def find(table, raw):
        return [(r.name, getattr(r, field)) for r in table if r.name.startswith(prefixes) and not any(word in r.name for word in but)
                and (r.ours is None or getattr(r, field) is not None)]

    return find


def mean(find):
    """The geometric mean of what is found."""
    def found(table, raw):
        numbers = [number for _, number in find(table, raw) if number]
        return [(f"{len(numbers)} rows", math.exp(sum(map(math.log, numbers)) / len(numbers)))] if numbers else []

    return found


def over(ours, theirs, better):
    """How many times better ours is, of a row, than PyTorch in another row."""
    def find(table, raw):
        first, second = (next((r for r in table if r.name.startswith(name)), None) for name in (ours, theirs))
        if first is None or second is None:
            return []
        a, b = first.ours, second.opponent
        return [(first.name, better(a, b) if a and b else None)]

    return find


def fastest(find):
    """The best of what is found."""
    def found(table, raw):
        numbers = [pair for pair in find(table, raw) if pair[1] is not None]
        return [max(numbers, key=lambda pair: pair[1])] if numbers else []

    return found


def errors(table, raw):
    """Of products that are compared with float64: how many times further ours is from it than PyTorch's."""
    found = [(r["name"], r.get("exact")) for r in raw if r["name"].startswith("matmul: ")]
    return [(name, exact[0] / exact[1]) for name, exact in found if exact and exact[1]]


def times_fewer(a, b):
    return b / a


def times_more(a, b):
    return a / b


SORTS = "sort", "topk"
BOUND_BY_MEMORY = "memory: ", "rows: ", "index: "
SMALL = " 512^3", " 1024^3", "bf16 64x", "bf16 1x"
HALF = "matmul: matmul bf16", "matmul: matmul fp16", "matmul: linear bf16", "matmul: bmm bf16"
GRAPHS = "gpt2: tokens/s, one graph"
TITLES = {
    "Memory and the host": [
        Aim("memory-bound operators, of the copy's bandwidth in this run", 0.9, of("share_of_limit", *BOUND_BY_MEMORY, but=SORTS)),
        Aim("memory-bound operators, times PyTorch", 1.0, of("ratio", *BOUND_BY_MEMORY, but=SORTS), unit=" ×"),
        Aim("their geometric mean, times PyTorch", 1.6, mean(of("ratio", *BOUND_BY_MEMORY, but=SORTS)), unit=" ×"),
        Aim("sort of rows, times PyTorch", 1.0, of("ratio", "index: sort rows"), unit=" ×"),
        Aim("top-k, times PyTorch", 3.0, of("ratio", "index: topk"), unit=" ×"),
        Aim("sort of 64 M, times PyTorch", 0.7, of("ratio", "index: sort 1-D"), unit=" ×"),
        Aim("AdamW over 124 M parameters, gradient clip, of the copy's bandwidth", 0.9,
            of("share_of_limit", "optim: AdamW", "optim: clip_grad_norm")),
        Aim("host: add, relu, layer_norm, linear, times PyTorch", 1.0,
            of("ratio", "host: add", "host: relu", "host: layer_norm", "host: linear", but=(", ",)), unit=" ×"),
        Aim("host: MLP step with SGD and AdamW, times PyTorch", 1.0, of("ratio", "host: step of a 64-64-64-10 MLP"), unit=" ×"),
        Aim("captured kernel", 1.0, of("ours", "host: x + 1, captured"), least=False, unit=" µs"),
        *[Aim(f"captured MLP step, {name}, times PyTorch's eager one", 10.0, over(
            f"host: captured step of a 64-64-64-10 MLP, {name}", f"host: step of a 64-64-64-10 MLP, {name}", times_fewer), unit=" ×")
          for name in ("SGD", "AdamW")],
        Aim("allocator: take and give back", 1.0, of("ours", "host: 4 KiB from the allocator"), least=False, unit=" µs"),
        Aim("allocator: calls of the driver after warm-up, GPT-2", 0.0, of("ours", "gpt2: driver allocations"), least=False),
        Aim("allocator: PyTorch's peak over ours, GPT-2 eager (ResNet-50: python -m bench allocator)", 1 / 1.02,
            of("ratio", "gpt2: peak memory, eager"), unit=" ×"),
        Aim("start-up: second process to its first GPT-2 step", 5.0, of("ours", "host: second process, to the"), least=False, unit=" s"),
        Aim("start-up: first process ever", 60.0, of("ours", "host: first process ever"), least=False, unit=" s")],
    "Products, attention, GPT-2": [
        Aim("16-bit products, times cuBLAS", 0.95, of("ratio", *HALF, but=SMALL), unit=" ×"),
        Aim("16-bit products, geometric mean", 1.0, mean(of("ratio", *HALF)), unit=" ×"),
        Aim("small and skinny products, replayed, times cuBLAS", 1.0,
            lambda table, raw: [pair for pair in of("ratio", *HALF)(table, raw) if any(word in pair[0] for word in SMALL)], unit=" ×"),
        Aim("float32 products, times cuBLAS", 2.0, of("ratio", "matmul: matmul fp32"), unit=" ×"),
        Aim("their error against float64, times PyTorch's", 1.0, errors, least=False, unit=" ×"),
        Aim("TF32 products, times cuBLAS", 0.95, of("ratio", "matmul: matmul tf32"), unit=" ×"),
        Aim("attention, times PyTorch's best backend", 1.0, of("ratio", "attention: ", but=("beyond: ",)), unit=" ×"),
        Aim("attention beyond the anchors, times the backend that PyTorch chooses", 1.0, of("ratio", "attention: beyond: "), unit=" ×"),
        Aim("GPT-2 124M, best of ours", 604e3, fastest(of("ours", GRAPHS)), unit=" tokens/s"),
        Aim("GPT-2 124M, best of ours over torch.compile", 1.2, fastest(of("ratio", GRAPHS)), unit=" ×"),
        Aim("GPT-2 124M, best of ours over PyTorch eager", 1.5, fastest(lambda table, raw: [
            pair for r in table if r.name.startswith(GRAPHS) for pair in over(r.name, "gpt2: tokens/s, eager", times_more)(table, raw)]),
            unit=" ×"),
        Aim("GPT-2 124M, peak memory of the leanest", 15.1, lambda table, raw: sorted(
            of("ours", "gpt2: peak memory, one graph")(table, raw), key=lambda pair: pair[1] or math.inf)[:1], least=False, unit=" GiB"),
        Aim("loss curve: PyTorch's own distance in bfloat16 from its float32, over ours", 0.67, of("ratio", "gpt2: largest distance"),
            unit=" ×")],
}


def report(table, raw):
    """The lines of Markdown: all aims, what is furthest from each, and whether it is met."""
    lines = []
    for title, aims in TITLES.items():
        lines += [f"## {title}", "", "| what | aim | the furthest from it | |", "|---|---|---|---|"]
        lines += [*[aim.line(table, raw) for aim in aims], ""]
    return lines


def runs(table):
    """Lines that say when and on what the rows were measured, where not all are of one run."""
    found = collections.Counter((r.date, r.commit, r.machine, r.command) for r in table)
    lines = [f"{count} rows: {date}, commit {commit}, `{command}`, {machine}." for (date, commit, machine, command), count in found.items()]
    return ["Each row of gpu.json says which run it is of.", "", *[f"- {line}" for line in sorted(lines)], ""]
