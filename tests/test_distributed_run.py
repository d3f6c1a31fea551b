"""`python -m tritorch.distributed.run`: processes that know who they are, end together, and meet in one world."""
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from tritorch.distributed import launch, run

ROOT = Path(__file__).parent.parent
TRAIN = """
    import sys
    import tritorch as torch
    from tritorch import distributed as dist
    dist.init_process_group()
    x = torch.tensor([float(dist.get_rank() + 1)])
    dist.all_reduce(x)
    print(f"{dist.get_rank()} of {dist.get_world_size()}: {x.item()} {sys.argv[1:]} {dist.get_node_local_rank()}\\n", end="")
    dist.destroy_process_group()
"""


def start(tmp_path, program, *options, words=(), module="run", **rest):
    path = tmp_path / "program.py"
    path.write_text(textwrap.dedent(program))
    line = [sys.executable, "-m", f"tritorch.distributed.{module}", "--monitor-interval", "0.02", *options, str(path), *words]
    environment = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE")} | {"PYTHONPATH": str(ROOT)}
    return subprocess.Popen(line, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **rest)


def ended(process, seconds=60):
    try:
        out, err = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    return process.returncode, out, err


def here(tmp_path, monkeypatch, program, *options, words=()):
    """The same in this process, which saves the time to start one."""
    path = tmp_path / "program.py"
    path.write_text(textwrap.dedent(program))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    return run.main(["--monitor-interval", "0.02", *options, str(path), *words])


def test_a_world_of_two(tmp_path, monkeypatch, capfd):
    code = here(tmp_path, monkeypatch, TRAIN, "--nproc-per-node=2", words=("--lr", "0.1"))
    out, err = capfd.readouterr()
    assert code == 0, err
    assert sorted(out.splitlines()) == [f"{r} of 2: 3.0 ['--lr', '0.1'] {r}" for r in range(2)]


def test_two_hosts_and_logs(tmp_path, monkeypatch):
    options = ["--nnodes", "2", "--master_addr", "127.0.0.1", "--master_port", str(run.free_port()), "--log_dir", str(tmp_path / "log")]
    program = """
        import os
        print(*(os.environ[name] for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "GROUP_RANK", "MASTER_ADDR")))
    """
    other = start(tmp_path, program, *options, "--node_rank", "1", "--nproc-per-node", "2")
    code = here(tmp_path, monkeypatch, program, *options, "--nproc-per-node", "2")
    assert (*ended(other)[:2], code) == (0, "", 0)
    for rank in range(4):
        text = (tmp_path / "log" / str(rank) / "stdout.log").read_text()
        assert text == f"{rank} 4 {rank % 2} {rank // 2} 127.0.0.1\n"


FAILS = """
    import os, time
    if os.environ["RANK"] == "1" and os.environ["TORCHELASTIC_RESTART_COUNT"] != "1":
        raise ValueError("rank 1 has had enough")
    if os.environ["TORCHELASTIC_RESTART_COUNT"] != "1":
        time.sleep(60)
"""


def test_a_failure_ends_all(tmp_path, monkeypatch, capfd):
    began = time.monotonic()
    code = here(tmp_path, monkeypatch, FAILS, "--nproc-per-node=3", "--standalone")
    err = capfd.readouterr().err
    assert code == 1 and "ValueError: rank 1 has had enough" in err and "rank 1 (process" in err and "has failed with exit code 1" in err
    assert time.monotonic() - began < 30
    code = here(tmp_path, monkeypatch, FAILS, "--nproc-per-node=2", "--max-restarts=1")
    assert code == 0 and capfd.readouterr().err.count("has failed") == 1


def test_a_signal_reaches_all(tmp_path):
    program = """
        import os, signal, sys, time
        def leave(number, frame):
            os.write(1, b"told %d\\n" % number)
            sys.exit(0)
        signal.signal(signal.SIGTERM, leave)
        open(os.environ["RANK"], "w").close()
        time.sleep(60)
    """
    process = start(tmp_path, program, "--nproc-per-node=2")
    until = time.monotonic() + 30
    while not all((tmp_path / r).exists() for r in "01") and time.monotonic() < until:
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    code, out, err = ended(process)
    assert code == 128 + signal.SIGTERM and out == "told 15\n" * 2, err


def test_arguments_of_before(tmp_path, capfd):
    program = "import sys; print(sys.argv[1:], end='\\n')"
    code, out, err = ended(start(tmp_path, program, module="launch", words=("--a",)))
    assert (code, out) == (0, "['--local-rank=0', '--a']\n") and "deprecated" in err
    with pytest.warns(FutureWarning, match="deprecated"):
        assert launch.main(["--use-env", str(tmp_path / "program.py"), "--a"]) == 0
    assert capfd.readouterr().out == "['--a']\n"


def test_options():
    options = run.parser().parse_args(["--nproc_per_node", "2", "--rdzv-endpoint", "host:123", "--nnodes=2", "-m", "package", "--x", "1"])
    assert run.meeting_point(options, 2) == ("host", 123) and run.command(options)[1:] == ["-u", "-m", "package", "--x", "1"]
    options.node_rank = 0
    (first, second) = run.environments(options, 2, 2, "host", 123, "id", 0)
    assert (second["RANK"], second["WORLD_SIZE"], second["LOCAL_RANK"], second["MASTER_PORT"]) == ("1", "4", "1", "123")
    options = run.parser().parse_args(["--no-python", "ls", "-l"])
    assert run.command(options)[0].endswith("/ls") and run.command(options)[1] == "-l"
    for text in ("many", "0"):
        with pytest.raises(ValueError):
            run.processes(text)
    with pytest.raises(ValueError, match="--master-addr"):
        run.meeting_point(run.parser().parse_args(["x.py"]), 2)
    for words, text in ((["--node-rank", "3"], "--node-rank from 0 to 0"), (["--nnodes=1:4"], "--nnodes"),
                        (["--nnodes=2", "--rdzv-backend=c10d"], "--node-rank for several")):
        with pytest.raises(ValueError, match=text):
            run.main([*words, "x.py"])
    options = run.parser().parse_args(["--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0", "x.py"])
    assert run.meeting_point(options, 1)[0] == "localhost" and run.meeting_point(options, 1)[1] > 0
