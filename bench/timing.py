"""Time of a call: contestants take turns, medians count."""
import gc
import statistics
import time


def clock(call, count):
    start = time.perf_counter()
    for _ in range(count):
        call()
    return (time.perf_counter() - start) / count


PAUSE = 0.15           # s; the idle threads of a BLAS spin for up to 0.1 s after a product and would slow down whoever comes next


def race(contestants, rounds=11, seconds=0.02, pause=0.0):
    """{name: median seconds a call}. Every round each contestant runs for about `seconds`; they take turns, so that a busy machine
    slows all of them. The first two rounds warm up; garbage collection is off while a clock runs."""
    counts = {}
    for name, call in contestants.items():
        call()
        counts[name] = max(1, min(100_000, int(seconds / max(clock(call, 3), 1e-9))))
    times = {name: [] for name in contestants}
    enabled = gc.isenabled()
    gc.disable()
    try:
        for turn in range(rounds + 2):
            for name, call in contestants.items():
                time.sleep(pause)
                spent = clock(call, counts[name])
                if turn >= 2:
                    times[name].append(spent)
    finally:
        if enabled:
            gc.enable()
    return {name: statistics.median(found) for name, found in times.items()}
