"""python -m bench.tune_worker: the process in which `bench tune` measures candidates; it says what it finds as JSON lines."""
import argparse
import json

from bench import anchors, rows
from bench.agree import Agreement
from bench.ahead import programs
from bench.gpu_worker import first_line, rehearsal_device
from bench.sides import Sides
from bench.watch import say


class Measurer:
    """Answers for the tuner: times the candidates that agree with the first, once for every problem.

    `known`: what earlier processes chose, by problem. `broken`: {problem: places of candidates that ended a process}; `unchecked`:
    problems whose check ended one.
    """

    def __init__(self, families, known, broken, unchecked, warm=False):
        self.families, self.known, self.broken, self.unchecked, self.warm, self.busy = families, known, broken, unchecked, warm, False

    def __call__(self, family, key, candidates, run, table):
        from tritorch.cuda import tuner

        problem = json.dumps([family, tuner.plain(key)])
        if self.busy:                                            # launches that the check and the clock make
            return None
        if self.families and family not in self.families:
            return table or candidates[0]
        if problem in self.known:
            return next((c for c in candidates if tuner.plain(c) == self.known[problem]), candidates[0])
        self.busy = True
        try:
            place = self.measure(problem, candidates, run)
        finally:
            self.busy = False
        return candidates[place]

    def measure(self, problem, candidates, run):
        from tritorch.cuda import timing, tuner
        from tritorch.cuda.device import current_device
        from tritorch.cuda.stream import current_handle

        good = [i for i in range(len(candidates)) if i not in self.broken.get(problem, ())]
        refused = self.check(problem, candidates, run, good)
        good = [i for i in good if i not in refused]
        times = timing.milliseconds(problem, [candidates[i] for i in good], run, current_handle(current_device()), self.warm)
        best = timing.pick([candidates[i] for i in good], times) if good else candidates[0]
        place = candidates.index(best)
        say(problem=problem, chosen=place, use=tuner.plain(best), candidates=tuner.plain(candidates), refused=refused,
            us={i: 1e3 * t for i, t in zip(good, times) if t < float("inf")})
        return place

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
    parser.add_argument("state", help="JSON: workloads, families, only, known, broken, unchecked, rehearse, start")
    args = json.loads(parser.parse_args().state)
    from tritorch.cuda import driver, tuner

    if args["rehearse"]:
        rehearsal_device()
        driver.hardware_tiles = True                             # the simulated device's own tiles leave nothing to choose

    size = anchors.tiny if args["rehearse"] else anchors.real
    with tuner.measuring(Measurer(args["families"], args["known"], args["broken"], args["unchecked"], args["warm"])):
        for number, (family, name, program) in enumerate(programs(args["workloads"], Sides(alone=True), size)):
            if number < args["start"] or not rows.asked(args["only"], name):
                continue
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
