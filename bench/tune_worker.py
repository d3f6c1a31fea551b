"""python -m bench.tune_worker: the process in which `bench tune` measures candidates; it says what it finds as JSON lines."""
import argparse
import json

from bench import anchors, hot, rows
from bench.agree import Agreement
from bench.ahead import programs
from bench.gpu_worker import first_line, rehearsal_device
from bench.sides import Sides
from bench.watch import say


class Measurer:
    """Answers for the tuner: times the candidates that agree with the first, once for every problem.

    `known`: what was chosen, by problem; `kept`: what the table says by the hot clock, which no other clock changes. `broken`: {problem:
    places of candidates that ended a process}; `unchecked`: problems whose check ended one. `heat`: of the hot clock, or None.
    """

    def __init__(self, families, known, broken, unchecked, warm=False, kept=()):
        self.families, self.known, self.broken, self.unchecked, self.warm = families, known, broken, unchecked, warm
        self.kept, self.heat, self.busy, self.inside = dict(kept), None, False, False

    def __call__(self, family, key, candidates, run, table):
        from tritorch.cuda import tuner

        problem = json.dumps([family, tuner.plain(key)])
        found = self.settled(problem, candidates)
        if self.busy:                                            # launches that the check and the clock make: by the best that is known
            self.inside = True
            return found or table or candidates[0]
        if found or self.families and family not in self.families:
            return found or table or candidates[0]
        self.busy = True
        try:
            place = self.measure(problem, candidates, run)
        finally:
            self.busy = False
            if self.inside:                                      # what was answered meanwhile is still to be measured
                self.inside = False
                tuner.forget()
        self.known[problem] = tuner.plain(candidates[place])
        return candidates[place]

    def settled(self, problem, candidates):
        """What need not be measured, or None. What the table kept is measured anew if it is no candidate any more."""
        from tritorch.cuda import tuner

        alike = lambda use: next((c for c in candidates if tuner.plain(c) == use), None)
        if problem in self.known:
            return alike(self.known[problem]) or candidates[0]
        return alike(self.kept[problem]) if problem in self.kept and self.heat is None else None

    def measure(self, problem, candidates, run):
        from tritorch.cuda import tuner

        good = [i for i in range(len(candidates)) if i not in self.broken.get(problem, ())]
        refused = self.check(problem, candidates, run, good)
        good = [i for i in good if i not in refused]
        place, ms, heated = self.race(problem, candidates, run, good)
        say(problem=problem, chosen=place, use=tuner.plain(candidates[place]), candidates=tuner.plain(candidates), refused=refused,
            us={i: 1e3 * t for i, t in ms.items() if t < float("inf")}, hot=heated)
        return place

    def race(self, problem, candidates, run, good):
        """(the best place, {place: milliseconds}, places that the hot clock timed) of the good ones."""
        from tritorch.cuda import timing
        from tritorch.cuda.device import current_device
        from tritorch.cuda.stream import current_handle

        stream, at = current_handle(current_device()), lambda places: [candidates[i] for i in places]
        rounds = timing.ROUNDS if self.heat is None else hot.SCREEN
        ms = dict(zip(good, timing.milliseconds(problem, at(good), run, stream, self.warm, rounds)))
        last, tie = (good, timing.TIE) if self.heat is None else ([good[i] for i in hot.finalists([*ms.values()])], hot.TIE)
        if self.heat is not None and last:
            self.heat.bring(stream)
            rounds, seconds = hot.plan([ms[i] for i in last], self.heat)
            say(plan=f"{len(last)} of {len(candidates)} candidates {rounds} times by the hot clock, about {seconds:.1f} s; "
                     f"a heavy product takes {self.heat.ms:.2f} ms, at first {self.heat.first:.2f}")
            ms.update(zip(last, hot.milliseconds(at(last), run, stream, self.heat, rounds)))
        best = timing.pick(last, [ms[i] for i in last], tie) if last else 0
        return best, ms, last if self.heat is not None else []

    def check(self, problem, candidates, run, good):
        """{place: why} of the candidates that do not run or do not agree with the first."""
        refused, agreement = {}, None
        if problem not in self.unchecked and good:
            say(problem=problem, checking=True)
            try:
                agreement = Agreement(run, candidates[good[0]])
            except RuntimeError as error:                        # of the driver, or out of memory
                refused["check"] = first_line(error)
                synchronize()
        for i in good[1:] if agreement else good:
            say(problem=problem, trying=i)
            try:
                run(candidates[i])
                wrong = agreement.refused(candidates[i]) if agreement else ""
            except RuntimeError as error:
                wrong = first_line(error)
            synchronize()
            if wrong:
                refused[i] = wrong
        if agreement:
            agreement.close()
        return refused


def synchronize():
    """Raises where the device is broken: the next process leaves out what did it."""
    from tritorch.cuda import driver
    from tritorch.cuda.device import current_device

    driver.current().synchronize(current_device())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("state", help="JSON: workloads, families, only, known, kept, broken, unchecked, rehearse, start, warm, hot")
    args = json.loads(parser.parse_args().state)
    from tritorch.cuda import driver, tuner

    if args["rehearse"]:
        rehearsal_device()
        driver.hardware_tiles = True                             # the simulated device's own tiles leave nothing to choose

    size = anchors.tiny if args["rehearse"] else anchors.real
    by_nature = not args["warm"] and args["hot"] is None         # GPT-2's step is what runs at the power limit
    heat = None
    if args["hot"] or by_nature and "gpt2" in args["workloads"]:
        heat = hot.Heat(32, 0.0) if args["rehearse"] else hot.Heat()         # before the tuner is measured, of which it is no problem
    measurer = Measurer(args["families"], args["known"], args["broken"], args["unchecked"], args["warm"], args["kept"])
    with tuner.measuring(measurer):
        for number, (family, name, program) in enumerate(programs(args["workloads"], Sides(alone=True), size)):
            if number < args["start"] or not rows.asked(args["only"], name):
                continue
            measurer.heat = heat if args["hot"] or by_nature and family == "gpt2" else None
            say(begin=number, name=f"{family}: {name}")
            try:
                program()
            except Exception as error:
                say(failed=f"{family}: {name}: {first_line(error)}")
            release()
    say(done=True)


def release():
    """Raises where the device is broken: the next process goes on."""
    import tritorch

    tritorch.cuda.synchronize()
    tritorch.cuda.empty_cache()


if __name__ == "__main__":
    main()
