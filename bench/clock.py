"""Time on a GPU: events on the default stream, where both libraries queue their work; every measured call finds a cold L2 cache."""
import statistics
import time

from tritorch.cuda import driver, timing

SMALL = 60.0                                                     # µs: below it a call is captured, so that only the device is measured
FLUSHES = 2                                                      # of 4 times the L2 cache, in which the host queues the call
CALLS = 20                                                       # of it in one graph
SECONDS, LEAST, MOST = 0.25, 5, 30                               # of measuring a case, rounds


def race(calls, seconds=SECONDS):
    """{name: median µs} of thunks that take turns on the default stream."""
    device = driver.current()
    marks = {name: (device.event_create(True), device.event_create(True)) for name in calls}
    times = {name: [] for name in calls}
    end = time.perf_counter() + seconds
    for turn in range(MOST):
        for name, call in calls.items():
            start, stop = marks[name]
            for _ in range(FLUSHES):
                timing.flush(device, 0)
            device.event_record(start, 0)
            call()
            device.event_record(stop, 0)
        for name, (start, stop) in marks.items():
            device.event_synchronize(stop)
            times[name].append(1e3 * device.event_elapsed(start, stop))
        if turn + 1 >= LEAST and time.perf_counter() > end:
            break
    for event in (e for pair in marks.values() for e in pair):
        device.event_destroy(event)
    return {name: statistics.median(found[1:]) for name, found in times.items()}


def microseconds(calls, libraries):
    """{name: median µs} of thunks, and whether graphs were replayed; `libraries` says whose each is."""
    found = race(calls, SECONDS / 5)
    if max(found.values()) < SMALL:
        try:
            graphs = {name: captured(libraries[name], call) for name, call in calls.items()}
        except Exception as error:                               # one of the two cannot be captured: neither is
            print(f"not captured: {type(error).__name__}: {str(error)[:200]}", flush=True)
        else:
            return {name: us / CALLS for name, us in race(graphs).items()}, True
    return race(calls), False


def captured(torch, call):
    """A thunk that replays CALLS calls as one graph."""
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        kept = [call() for _ in range(CALLS)]
    return lambda kept=kept: graph.replay()
