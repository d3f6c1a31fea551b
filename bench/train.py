"""The main job beside PyTorch: the same file, the same weights and batches, in turns of ten steps; step time and loss curve. Ours runs on
the CPU and, where it can, on the CPU with compiled kernels and on the native device."""
import contextlib
import importlib.util
import statistics
import time

import tritorch
from bench import rows
from bench.models import twin
from bench.timing import PAUSE

TUTORIAL = rows.ROOT / "tutorials" / "train_gpt.py"
TURN = 10                                                        # steps that one side runs before it is the other's turn
FASTEST_WANTED = 2.5                                             # times PyTorch's step, at most


class Side:
    """One library's run of the tutorial's model and recipe: on the CPU, there with `kernels` (`cpu.native`), or on the `native` device."""

    def __init__(self, library, kernels=False, native=False):
        self.name = "tritorch, kernels" if kernels else "tritorch, native" if native else library
        self.surroundings = tritorch.cpu.native if kernels else contextlib.nullcontext
        self.program = twin.load(TUTORIAL, library)
        torch = self.torch = self.program.torch
        self.device = "cuda" if native else "cpu"
        torch.manual_seed(0)
        self.text = self.program.Text()
        self.model = self.program.GPT(len(self.text.vocabulary)).to(self.device)
        self.optimizer = self.program.optimizer_of(self.model)

        program, model, optimizer = self.program, self.model, self.optimizer

        def train_step(tokens, targets):
            return program.train_step(model, optimizer, tokens, targets)

        self.train_step = torch.compile(train_step) if native else train_step            # as the tutorial does
        self.seconds, self.losses, self.held_out = [], [], []

    def start_from(self, weights):
        self.model.load_state_dict({name: self.torch.from_numpy(w.copy()) for name, w in weights.items()})

    def step(self, batch, number):
        tokens, targets = (self.torch.from_numpy(half.copy()).to(self.device) for half in batch)
        with self.surroundings():
            start = time.perf_counter()
            for group in self.optimizer.param_groups:
                group["lr"] = self.program.learning_rate(number)
            loss = self.train_step(tokens, targets).item()
            self.seconds.append(time.perf_counter() - start)
        self.losses.append(loss)

    def evaluate(self):
        self.held_out.append((len(self.losses), self.program.held_out_loss(self.model, self.text, self.device)))


def run(sides, steps):
    ours = sides[0]
    weights = {name: w.numpy().copy() for name, w in ours.model.state_dict().items()}
    for side in sides[1:]:
        side.start_from(weights)
    done = 0
    while done < steps:
        batches = [[half.numpy() for half in ours.text.batch()] for _ in range(min(TURN, steps - done))]
        for side in sides:
            time.sleep(PAUSE)
            for i, batch in enumerate(batches):
                side.step(batch, done + i + 1)
        done += len(batches)
        if done % 100 == 0 or done == steps:
            for side in sides:
                side.evaluate()
            standing = [f"{s.name} {s.held_out[-1][1]:.4f} {1e3 * statistics.median(s.seconds):.1f} ms" for s in sides]
            print(f"step {done}: {', '.join(standing)}", flush=True)


def table(sides):
    """Rows: step time, tokens a second, held-out losses along the curve, the largest distance between the two curves."""
    ours, opponent = sides[0], sides[-1] if sides[-1].name == "torch" else None
    ms = [median(ours), median(opponent)]
    limit = FASTEST_WANTED * ms[1] if opponent else None
    yield rows.row(f"train_gpt: step, median (budget {FASTEST_WANTED} × torch)", "ms", ms[0], ms[1], "torch", limit=limit)
    for side in sides[1:-1] if opponent else sides[1:]:
        where = "on the native device" if side.device == "cuda" else "on the CPU by kernels"
        yield rows.row(f"train_gpt: step {where}, median", "ms", median(side), ms[1], "torch")
        step, loss = side.held_out[-1]
        yield rows.row(f"train_gpt: held-out loss {where} after {step} steps", "nats", loss, opponent.held_out[-1][1] if opponent else None,
                       "torch")
    tokens = ours.program.BATCH * ours.program.CONTEXT
    rates = [tokens / (m / 1e3) if m else None for m in ms]
    yield rows.row("train_gpt: training", "tokens/s", rates[0], rates[1], "torch")
    for i, (step, loss) in enumerate(ours.held_out):
        yield rows.row(f"train_gpt: held-out loss after {step} steps", "nats", loss, opponent.held_out[i][1] if opponent else None, "torch")
    if opponent:
        first = max(abs(a - b) for a, b in zip(ours.losses[:100], opponent.losses))
        yield rows.row("train_gpt: largest difference of the two training losses, steps 1 to 100", "nats", first)


def median(side):
    """Milliseconds of a step; of the first ones kernels are compiled."""
    return 1e3 * statistics.median(side.seconds[TURN:] or side.seconds) if side else None


def main(args):
    sides = [Side("tritorch")]
    try:
        sides[0].torch.cuda.simulate(native=True)
        sides += Side("tritorch", kernels=True), Side("tritorch", native=True)
    except RuntimeError as error:
        print(f"left out: {error}")
    if importlib.util.find_spec("torch"):
        sides.append(Side("torch"))
    steps = 2 * TURN if args.quick else args.steps
    run(sides, steps)
    versions = [f"torch {s.torch.__version__}" for s in sides if s.name == "torch"]
    rows.record("train", list(table(sides)), f"python -m bench train --steps {steps}", *versions, keep=not args.quick)
    if not args.quick:
        lines = ["step," + ",".join(s.name.replace(", ", " ") for s in sides)]
        lines += [",".join([str(i + 1), *(f"{loss:.5f}" for loss in losses)]) for i, losses in enumerate(zip(*(s.losses for s in sides)))]
        rows.write(rows.RESULTS / "train_curve.csv", "\n".join(lines) + "\n")
