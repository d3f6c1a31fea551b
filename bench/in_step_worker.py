"""python -m bench.in_step_worker: the process in which the captured step of GPT-2 tries rivals of its choices; it says what it finds as
JSON lines. bench/in_step.py says how and what for."""
import argparse
import collections
import gc
import json
import math
import statistics

import tritorch
from bench import gpu_gpt2
from bench.gpu_worker import first_line, rehearsal_device
from bench.in_step import SILENCE, TURNS, compare, order
from bench.tune_worker import synchronize
from bench.watch import say

REPLAYS = 4                                                      # timed in a block, after one at the clock that the other step left
HEAT = 8                                                         # replays before a comparison, 0.5 s: until the clock has fallen anew
PATIENCE = 120                                                   # s: to make the model, load its kernels and capture it twice
APART = 1e-2                                                     # of a loss: more is no rounding


class Choices:
    """Answers for the tuner. `uses`: {problem: candidate as JSON has it}; what it does not name the tables decide."""

    def __init__(self, uses):
        self.uses, self.counts = dict(uses), None

    def __call__(self, family, key, candidates, run, table):
        from tritorch.cuda import tuner

        problem = json.dumps([family, tuner.plain(key)])
        if self.counts is not None:
            self.counts[problem] += 1
            return None                                          # and is asked again at the next launch
        return next((c for c in candidates if tuner.plain(c) == self.uses.get(problem)), table or candidates[0])


class Trainer:
    """GPT-2's training step with fused operators. Nothing is learned (lr=0): weights that went far would be other data, and other power."""

    def __init__(self, choices, rehearse):
        size, batch = gpu_gpt2.scale(rehearse)
        self.choices = choices
        self.warm, self.heat, self.turns, self.replays = (5, 0, 1, 1) if rehearse else (gpu_gpt2.WARM, HEAT, TURNS, REPLAYS)
        program, model, optimizer, tokens = gpu_gpt2.parts(tritorch, {**size, "fused": True}, batch, "cuda", capturable=True, lr=0.0)
        self.step = lambda: program.train_step(model, optimizer, tokens, tokens, "cuda", clip=None)

    def counts(self):
        """{problem: launches in a step}. Loops over elements remember what they were told: of them each counts once."""
        from tritorch.cuda import tuner

        self.step()                                              # makes what the optimizer remembers
        tuner.forget()
        self.choices.counts = collections.Counter()
        self.step()
        counts, self.choices.counts = self.choices.counts, None
        return counts

    def capture(self, uses):
        """The step as one graph, made with these choices."""
        from tritorch.cuda import tuner

        self.choices.uses = uses
        tuner.forget()
        step = self.step
        captured = tritorch.compile(lambda: step())
        for _ in range(self.warm):
            captured()
        synchronize()
        return captured

    def compare(self, present, other):
        """As `in_step.compare`."""
        for _ in range(self.heat):
            present()
        return compare(self.block, present, other, self.turns)

    def block(self, step):
        """Median milliseconds of a few replays."""
        step()
        marks = [tritorch.cuda.Event(enable_timing=True) for _ in range(self.replays + 1)]
        marks[0].record()
        for mark in marks[1:]:
            step()
            mark.record()
        marks[-1].synchronize()
        return statistics.median(a.elapsed_time(b) for a, b in zip(marks, marks[1:]))


def try_all(trainer, problems, uses, tried):
    """Every trial that is left, as `bench.in_step` tells."""
    counts = trainer.counts()
    present = trainer.capture(uses)
    loss, (floor, _, step_ms) = present().item(), trainer.compare(present, trainer.capture(uses))
    release()
    largest = order(problems, counts, 1e3 * step_ms)
    trials = [(name, rival) for name, _ in largest for rival in problems[name]["rivals"] if [name, rival] not in tried]
    replays = trainer.heat + (2 * trainer.turns + 1) * (trainer.replays + 1)
    say(plan=f"a step takes {step_ms:.2f} ms, captured once more {1e3 * floor:.0f} µs less; {len(trials)} trials, each "
        f"{replays * step_ms / 1e3:.1f} s and a capture")
    for name, share in largest:
        say(plan=f"  {share:.1%} of it {name}")
    for name, rival in trials:
        say(problem=name, trying=rival, patience=SILENCE)
        try:
            other = trainer.capture({**uses, name: rival})
            apart = abs(other().item() - loss)
            gain, noise, ms = trainer.compare(present, other)
        except RuntimeError as error:                            # of the driver, or out of memory
            other = None
            say(problem=name, use=rival, gain=None, refused=first_line(error))
        else:
            refused = "" if apart <= APART * abs(loss) or math.isnan(loss) else f"the loss is {apart:.3g} off"
            noise = max(noise, abs(floor))
            stays = not refused and gain > noise
            say(problem=name, use=rival, gain=gain, noise=noise, ms=ms, stays=stays, refused=refused)
            if stays:
                present, uses = other, {**uses, name: rival}
            other = None
        release()


def release():
    """The memory of the graph that lost. Raises where the device is broken: the next process goes on."""
    gc.collect()
    synchronize()
    tritorch.cuda.empty_cache()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("state", help="JSON: problems, uses, tried, rehearse")
    args = json.loads(parser.parse_args().state)
    from tritorch.cuda import driver, tuner

    if args["rehearse"]:
        rehearsal_device()
        driver.hardware_tiles = True                             # the simulated device's own tiles leave nothing to choose
    say(plan="GPT-2's step is captured", patience=PATIENCE)
    choices = Choices(args["uses"])
    with tuner.measuring(choices):
        try_all(Trainer(choices, args["rehearse"]), args["problems"], args["uses"], args["tried"])
    say(done=True)


if __name__ == "__main__":
    main()
