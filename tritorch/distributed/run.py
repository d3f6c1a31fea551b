"""python -m tritorch.distributed.run [options] program.py [arguments]: a program in several processes, as torchrun starts it.

    python -m tritorch.distributed.run --nproc-per-node 4 train.py --epochs 3
    python -m tritorch.distributed.run --nnodes 2 --node-rank 0 --master-addr 10.0.0.1 --master-port 29500 --nproc-per-node 8 train.py

Each process finds in the environment who it is (RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, GROUP_RANK, …) and where all meet
(MASTER_ADDR, MASTER_PORT), which is what `init_process_group()` looks for. When one fails the others are ended, and it is told which; with
--max-restarts all begin anew. SIGINT and SIGTERM are passed on.
"""
import argparse
import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import uuid

from tritorch.errors import check

GRACE = 30.0                                                             # seconds to end after a signal, then they are killed
PASSED_ON = ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT")


def parser(prog="python -m tritorch.distributed.run"):
    """The options, which are those of torchrun for nodes that are known beforehand; words are joined by - or _."""
    made = argparse.ArgumentParser(prog=prog, description="Start a program in several processes.")
    option = lambda name, **rest: made.add_argument(f"--{name}", *{f"--{name.replace('-', '_')}"} - {f"--{name}"}, **rest)
    option("nnodes", default="1", help="hosts on which this command is given")
    option("nproc-per-node", default="1", help="processes on this host: a number, gpu (one for each), cpu (one for each core) or auto")
    option("node-rank", type=int, help="which of the hosts this is (0)")
    option("master-addr", help="the host on which rank 0 is; 127.0.0.1 for one host")
    option("master-port", type=int, help="a free port there; for one host, one is found")
    option("rdzv-endpoint", default="", help="host:port, the same in one word")
    option("rdzv-backend", default="static", choices=("static", "c10d"), help="of c10d, too, several hosts are told their --node-rank")
    option("rdzv-id", default="", help="a name for the run")
    option("standalone", action="store_true", help="one host, whatever the other options say of where to meet")
    option("max-restarts", type=int, default=0, help="how often all processes begin anew after a failure")
    option("monitor-interval", type=float, default=0.1, help="seconds between two looks at the processes")
    option("log-dir", help="a folder for what the processes write: RANK/stdout.log and RANK/stderr.log, instead of the terminal")
    option("role", default="default", help="a name for what the processes do")
    made.add_argument("-m", "--module", action="store_true", help="the program is a module, as in python -m")
    option("no-python", action="store_true", help="the program is not one of Python's")
    made.add_argument("program")
    made.add_argument("arguments", nargs=argparse.REMAINDER)
    return made


def processes(text):
    """How many processes an option means.

    >>> processes("3")
    3
    """
    if text.isdigit():
        count = int(text)
    else:
        from tritorch import cuda

        check(text in ("gpu", "cpu", "auto"), "run", "a number, gpu, cpu or auto as --nproc-per-node", repr(text), error=ValueError)
        gpus = cuda.device_count() if text != "cpu" and cuda.is_available() else 0
        check(text != "gpu" or gpus > 0, "run", "a GPU for --nproc-per-node gpu", "none", error=ValueError)
        count = gpus or len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else gpus or os.cpu_count()
    check(count > 0, "run", "--nproc-per-node > 0", count, error=ValueError)
    return count


def meeting_point(options, nodes):
    """(address, port) at which the processes meet."""
    address, port = options.master_addr, options.master_port
    if options.rdzv_endpoint and not options.standalone:
        host, _, text = options.rdzv_endpoint.rpartition(":")
        check(bool(host) and text.isdigit(), "run", "host:port as --rdzv-endpoint", repr(options.rdzv_endpoint), error=ValueError)
        address, port = address or host, port or int(text)
    if options.standalone or nodes == 1:
        address = "127.0.0.1" if options.standalone else address or "127.0.0.1"
        port = free_port() if options.standalone or not port else port
    check(bool(address), "run", "--master-addr for several hosts", "none", error=ValueError)
    return address, port or 29500


def free_port():
    """A port that nobody listens at now."""
    with socket.socket() as sock:
        sock.bind(("", 0))
        return sock.getsockname()[1]


def environments(options, nodes, count, address, port, run, restart):
    """What each process of this host finds in its environment."""
    world = nodes * count
    for local in range(count):
        rank = options.node_rank * count + local
        yield {**os.environ, **({"OMP_NUM_THREADS": "1"} if count > 1 and "OMP_NUM_THREADS" not in os.environ else {}),
               "RANK": str(rank), "WORLD_SIZE": str(world), "LOCAL_RANK": str(local), "LOCAL_WORLD_SIZE": str(count),
               "GROUP_RANK": str(options.node_rank), "GROUP_WORLD_SIZE": str(nodes), "ROLE_RANK": str(rank), "ROLE_WORLD_SIZE": str(world),
               "ROLE_NAME": options.role, "MASTER_ADDR": address, "MASTER_PORT": str(port), "TORCHELASTIC_RUN_ID": run,
               "TORCHELASTIC_RESTART_COUNT": str(restart), "TORCHELASTIC_MAX_RESTARTS": str(options.max_restarts)}


def command(options):
    """The words with which a process begins."""
    if options.no_python:
        check(not options.module, "run", "--no-python or --module", "both", error=ValueError)
        return [shutil.which(options.program) or options.program, *options.arguments]
    return [sys.executable, "-u", *(["-m"] if options.module else []), options.program, *options.arguments]


def _end_with_parent():
    """In the new process: have it ended should this one be killed (Linux)."""
    import ctypes

    ctypes.CDLL(None).prctl(1, signal.SIGTERM)                           # PR_SET_PDEATHSIG


class Workers:
    """The processes of this host."""

    def __init__(self, words, worlds, log_dir):
        self.began, self.running = [], {}
        for environment in worlds:
            with contextlib.ExitStack() as files:
                out = {}
                if log_dir:
                    folder = os.path.join(log_dir, environment["RANK"])
                    os.makedirs(folder, exist_ok=True)
                    out = {name: files.enter_context(open(os.path.join(folder, f"{name}.log"), "ab")) for name in ("stdout", "stderr")}
                prepare = _end_with_parent if sys.platform == "linux" else None
                try:
                    process = subprocess.Popen(words(environment), env=environment, preexec_fn=prepare, **out)
                except OSError:
                    self.end(signal.SIGTERM)
                    raise
            self.running[environment["RANK"]] = process

    def failed(self):
        """(rank, process) of those that have failed since the last look; all that have ended are dropped."""
        ended = [(rank, process) for rank, process in self.running.items() if process.poll() is not None]
        for rank, _ in ended:
            del self.running[rank]
        return [(rank, process) for rank, process in ended if process.returncode]

    def end(self, number, grace=GRACE):
        """Send a signal to those that still run, and wait; who does not end in time is killed."""
        for process in self.running.values():
            with contextlib.suppress(OSError):
                process.send_signal(number)
        until = time.monotonic() + grace
        for process in self.running.values():
            try:
                process.wait(max(until - time.monotonic(), 0))
            except (subprocess.TimeoutExpired, _Signal):                 # a second signal is one of impatience
                until = 0
                process.kill()
                process.wait()
        self.running.clear()


class _Signal(Exception):
    """A signal has come."""


def _raise(number, frame):
    raise _Signal(number)


def told(rank, process):
    """How a process has failed, in words."""
    code = process.returncode
    how = f"exit code {code}" if code > 0 else f"signal {signal.Signals(-code).name}"
    return f"run: rank {rank} (process {process.pid} on {socket.gethostname()}) has failed with {how}"


def watch(words, worlds, options):
    """Start the processes and wait for them; the exit code of the first that fails, 0 if none does."""
    workers = Workers(words, worlds, options.log_dir)
    try:
        while workers.running:
            failures = workers.failed()
            if failures:
                print("".join(f"{told(*failure)}\n" for failure in failures) + "run: the others are ended", file=sys.stderr, flush=True)
                workers.end(signal.SIGTERM)
                code = failures[0][1].returncode
                return code if code > 0 else 128 - code
            time.sleep(options.monitor_interval if workers.running else 0)
        return 0
    except _Signal as error:
        workers.end(error.args[0])
        raise


def main(words=None, made=None, local_rank=False):
    """Do what the command says; returns the exit code."""
    options = (made or parser()).parse_args(words)
    least, _, most = options.nnodes.partition(":")
    check(least.isdigit() and int(least) > 0 and most in ("", least), "run", "a number of hosts as --nnodes", options.nnodes,
          error=ValueError)
    nodes = 1 if options.standalone else int(least)
    check(nodes == 1 or options.node_rank is not None or options.rdzv_backend == "static", "run", "--node-rank for several hosts", "none",
          error=ValueError)
    options.node_rank = options.node_rank or 0
    check(0 <= options.node_rank < nodes, "run", f"--node-rank from 0 to {nodes - 1}", options.node_rank, error=ValueError)
    count, run = processes(options.nproc_per_node), options.rdzv_id or ("none" if nodes > 1 else str(uuid.uuid4()))
    before = {name: signal.signal(getattr(signal, name), _raise) for name in PASSED_ON if hasattr(signal, name)}
    line = lambda environment: command(options)
    if local_rank:                                                       # programs of before found theirs among their arguments
        options.arguments = list(options.arguments)
        line = lambda environment: [*_before(options), f"--local-rank={environment['LOCAL_RANK']}", *options.arguments]
    try:
        for restart in range(options.max_restarts + 1):
            address, port = meeting_point(options, nodes)
            code = watch(line, environments(options, nodes, count, address, port, run, restart), options)
            if not code:
                break
        return code
    except _Signal as error:
        return 128 + error.args[0]
    finally:
        for name, handler in before.items():
            signal.signal(getattr(signal, name), handler)


def _before(options):
    words = command(options)
    return words[:len(words) - len(options.arguments)]


if __name__ == "__main__":
    sys.exit(main())
