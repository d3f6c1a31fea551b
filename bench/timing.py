"""Time of a call: contestants take turns, medians count."""
import gc
import statistics
import time


def clock(call, count):
    start = time.perf_counter()
    for _ in range(count):
        call()
    return (time.perf_counter() - start) / count


PAUSE = 0.15                                    # s; the idle threads of a BLAS spin for up to 0.1 s after a product and slow down others
SLOW, PATIENCE = 1.2, 6                         # times the best pace; rounds that may be run for one that counts
_paces = []                                     # seconds of the same few additions, over the life of this process


def _slow():
    """Whether the machine now is slower than it has been: shared processors are, by up to 1.8 times, for seconds."""
    _paces.append(min(clock(lambda: sum(range(2000)), 5) for _ in range(3)))
    return _paces[-1] > SLOW * min(_paces)


def race(contestants, rounds=11, seconds=0.02, pause=0.0):
    """{name: median seconds a call}. Every round each contestant runs for about `seconds`; they take turns, so that a busy machine
    slows all of them, and rounds while it is slow do not count unless there are no others. The first two rounds warm up; garbage
    collection is off while a clock runs."""
    counts = {}
    for name, call in contestants.items():
        call()
        counts[name] = max(1, min(100_000, int(seconds / max(clock(call, 3), 1e-9))))
    times, slow = ({name: [] for name in contestants} for _ in range(2))
    enabled = gc.isenabled()
    gc.disable()
    try:
        for turn in range(PATIENCE * rounds + 2):
            held_up, spent = _slow(), {}
            for name, call in contestants.items():
                time.sleep(pause)
                spent[name] = clock(call, counts[name])
            if turn >= 2:
                kept = slow if _slow() or held_up else times
                for name in spent:
                    kept[name].append(spent[name])
            if all(len(found) == rounds for found in times.values()):
                break
    finally:
        if enabled:
            gc.enable()
    return {name: statistics.median(found or slow[name]) for name, found in times.items()}
