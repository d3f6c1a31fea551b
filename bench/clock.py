"""Time on a GPU: events on the default stream, where both libraries queue their work; every measured call finds a cold L2 cache, but for
all but the first of those that are captured together."""
import math
import statistics
import time

from tritorch.cuda import driver, timing

SMALL = 60.0                                                     # µs: below it a call is captured, so that only the device is measured
MOST_FLUSHES, SLACK = 64, 1.5                                    # of 4 times the L2 cache; of the host's time for a call
CALLS = 20                                                       # of it in one graph
SECONDS, LEAST, MOST = 0.25, 5, 30                               # of measuring a case, which `bench gpu --seconds` sets; rounds


def race(calls, share=1.0):
    """{name: median µs} of thunks that take turns on the default stream, for a share of SECONDS. Before each the cache is cleared as often
    as the host takes to queue the call, so that the device does not wait for it between the two events."""
    device = driver.current()
    marks = {name: [device.event_create(True) for _ in range(3)] for name in calls}
    times, host = {name: [] for name in calls}, dict.fromkeys(calls, math.inf)
    flushes = dict.fromkeys(calls, timing.FLUSHES)
    end = time.perf_counter() + share * SECONDS
    for turn in range(MOST):
        for name, call in calls.items():
            before, start, stop = marks[name]
            device.event_record(before, 0)
            for _ in range(flushes[name]):
                timing.flush(device, 0)
            device.event_record(start, 0)
            begin = time.perf_counter()
            call()
            host[name] = min(host[name], time.perf_counter() - begin)
            device.event_record(stop, 0)
        for name, (before, start, stop) in marks.items():
            device.event_synchronize(stop)
            times[name].append(1e3 * device.event_elapsed(start, stop))
            one = device.event_elapsed(before, start) / 1e3 / flushes[name]
            flushes[name] = min(max(timing.FLUSHES, 1 + math.ceil(SLACK * host[name] / max(one, 1e-6))), MOST_FLUSHES)
        if turn + 1 >= LEAST and time.perf_counter() > end:
            break
    for event in (e for three in marks.values() for e in three):
        device.event_destroy(event)
    return {name: statistics.median(found[1:]) for name, found in times.items()}


def microseconds(calls, libraries, capture=True):
    """{name: median µs} of thunks, and whether graphs were replayed; `libraries` says whose each is. A backward pass runs on the stream of
    its forward pass, the default one, so it is not to be captured: PyTorch's random numbers would be lost to the process."""
    found = race(calls, 0.2)
    if capture and max(found.values()) < SMALL:
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
