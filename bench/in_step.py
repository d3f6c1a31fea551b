"""bench tune gpt2 --in-step: the captured step of GPT-2 decides about the problems that have the largest shares of its time.

After the hot clock has timed the candidates of every problem (times that --out/tune.csv has from it already are taken from there), the
step is captured once with the present choices and once for every rival of a problem, the problem with the largest share (launches × µs of
the hot clock) first. The two take turns: blocks of replays, those of the present choice between and around those of the rival.

A rival stays, and is what the next ones are held against, if the step gains more by it than the noise: the median over its blocks of (the
mean of the two present blocks beside it - its own) must be larger than any difference between two successive blocks of the present choice,
and than what a second capture of the present choices seems to gain or lose beside the first. Where chance moves each block by σ, normally,
1 in 60 of the rivals stays that gain nothing, and 4 in 5 of those that gain 3 σ (by a simulation of the rule, without that capture).

What stays is written to the table at once, marked as hot, and every trial to --out/in_step.csv. A rival that hangs, breaks the device or
changes the loss is left out by the next process. The learning rate is 0, so that all steps compute the same. Memory must have room for two
graphs, and for what a third step takes before it is captured: three times the peak that `bench gpu gpt2` tells.
"""
import contextlib
import csv
import itertools
import json
import shutil
import statistics
import time

from bench import hot, watch

SILENCE = 60                                                     # s without a word: a capture and its replays take five
RIVALS = 3                                                       # of the best by the hot clock
SHARE = 0.01                                                     # of the step: of a smaller one even 10 % are lost in the noise
TURNS = 5                                                        # blocks of a rival; of the present choice one more
CSV = "family", "key", "candidate", "step_milliseconds", "gain_microseconds", "noise_microseconds", "kept", "refused"


# ------------------------------------------------------------------ what is tried, and what stays
def rivals(times, present):
    """The best candidates of [(µs, candidate)] and, where it is near, the best of each other kind of kernel, without the present choice:
    kinds differ in power more than tiles do."""
    ranked = sorted(times, key=lambda found: found[0])
    chosen = [candidate for _, candidate in ranked[:RIVALS]]
    for us, candidate in ranked[RIVALS:]:
        if us <= hot.WITHIN * ranked[0][0] and candidate.get("kernel") not in [c.get("kernel") for c in chosen]:
            chosen.append(candidate)
    return [candidate for candidate in chosen if candidate != present]


def order(problems, counts, step_us):
    """[(problem, share)] of those that have enough of the step, the largest first; `counts` are launches in a step."""
    shares = {name: counts.get(name, 0) * problem["us"] / step_us for name, problem in problems.items() if problem["rivals"]}
    return sorted(((name, share) for name, share in shares.items() if share >= SHARE), key=lambda found: -found[1])


def compare(block, present, other, turns=TURNS):
    """(milliseconds that the step gains by `other`, the noise, milliseconds of the present step); `block(step)` measures."""
    ours, theirs = [block(present)], []
    for _ in range(turns):
        theirs.append(block(other))
        ours.append(block(present))
    pairs = list(itertools.pairwise(ours))
    gain = statistics.median((before + after) / 2 - between for (before, after), between in zip(pairs, theirs))
    return gain, max(abs(before - after) for before, after in pairs), statistics.median(ours)


# ------------------------------------------------------------------ over as many processes as it takes
def judge(session, deadline):
    """After a `tune.Session`; the exit code."""
    judging = Judging(session)
    if not judging.state["problems"]:
        print("in step: expected problems that were timed hot, got none")
        return 1
    while time.monotonic() < deadline and judging.go(deadline):
        pass
    return judging.close()


class Judging:
    def __init__(self, session):
        self.path, self.out, self.rows, self.said = session.path, session.out, [], ""
        uses, problems = session.state["known"], {}
        for name, times in session.heated.items():
            us = next((us for us, candidate in times if candidate == uses[name]), min(us for us, _ in times))
            problems[name] = dict(us=us, rivals=rivals(times, uses[name]))
        self.state = dict(problems=problems, uses={name: uses[name] for name in problems}, tried=[], rehearse=session.state["rehearse"])

    def go(self, deadline):
        """Run one process; whether another is to follow."""
        trying, before = None, len(self.state["tried"])
        for message in watch.watch(["bench.in_step_worker", json.dumps(self.state)], SILENCE, deadline):
            if "plan" in message:
                print(message["plan"], flush=True)
            elif "trying" in message:
                trying = message["problem"], message["trying"]
            elif "gain" in message:
                trying = None
                self.take(message)
            elif "end" in message:
                self.said = message["end"]
                if trying and self.said and self.said != "out of time":
                    self.take(dict(problem=trying[0], use=trying[1], gain=None, refused=self.said))
                return bool(self.said) and self.said != "out of time" and len(self.state["tried"]) > before
        return False

    def take(self, message):
        from tritorch.cuda import tuner

        (family, key), use, refused = json.loads(message["problem"]), message["use"], message.get("refused", "")
        self.state["tried"].append([message["problem"], use])
        stays, numbers = message.get("stays", False), ["", "", ""]
        if message["gain"] is not None:
            numbers = [f"{message['ms']:.3f}", f"{1e3 * message['gain']:.1f}", f"{1e3 * message['noise']:.1f}"]
        what = f"REFUSED {refused}" if refused else f"{numbers[1]} µs of {numbers[0]} ms gained, noise {numbers[2]}"
        print(f"  {family} {key}: {use}: {what}{': STAYS' if stays else ''}", flush=True)
        self.rows.append((family, json.dumps(key), json.dumps(use), *numbers, int(stays), refused))
        if stays:
            self.state["uses"][message["problem"]] = use
            tuner.ship(self.path, {family: [{"key": key, "use": use, "hot": True}]})
        self.save()

    def save(self):
        with contextlib.suppress(OSError):                       # no room there: what stays is in its own place all the same
            if self.out:
                self.out.mkdir(parents=True, exist_ok=True)
                with (self.out / "in_step.csv").open("w", newline="", encoding="utf-8") as file:
                    csv.writer(file, lineterminator="\n").writerows([CSV, *self.rows])
                if self.out != self.path.parent and self.path.exists():
                    shutil.copy(self.path, self.out / self.path.name)

    def close(self):
        kept = sum(row[-2] for row in self.rows)
        print(f"\n{len(self.rows)} trials in the step, {kept} stay{': ' + self.said if self.said else ''}", flush=True)
        return int(bool(self.said) and self.said != "out of time")
