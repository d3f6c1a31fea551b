"""Tables of tritorch.profiler, and the traces that it writes."""
import gzip
import json

import pytest
from profiles import CPU, kernels, names, nothing_left  # noqa: F401

import tritorch as torch
from tritorch.profiler import profile, record_function, tensorboard_trace_handler


def test_tables():
    x = torch.ones(16, 16)
    with profile(activities=CPU) as prof:
        with record_function("a block with a name that is too long for a column of a table, or nearly so"):
            for _ in range(3):
                x @ x
        x + 1
    averages = prof.key_averages()
    for sort_by in ("cpu_time_total", "self_cpu_time_total", "count"):
        order = [line.split()[0] for line in averages.table(sort_by=sort_by).splitlines() if "aten::" in line]
        assert order == [e.key for e in sorted(averages, key=lambda e: -getattr(e, sort_by)) if e.key.startswith("aten::")]
    text = averages.table(sort_by="count", row_limit=1, max_name_column_width=30, header="A header")
    assert "A header" in text and "aten::matmul" in text and "aten::add" not in text and "Self CPU time total: " in text
    assert "a block with a name that is..." in averages.table(max_name_column_width=30)
    assert "aten::matmul" not in averages.table(top_level_events_only=True) and "aten::add" in averages.table(top_level_events_only=True)
    assert all(len(line) == len(text.splitlines()[0]) for line in text.splitlines() if "aten::" in line or line.startswith("-"))
    assert "us" not in averages.table(time_unit="ms").split("# of Calls")[1] and "CUDA" not in text and "Mem" not in text
    assert str(averages) == averages.table() and torch.profiler.events.EventList().table() == ""
    with pytest.raises(AttributeError, match="table: expected sort_by among count, .*, got 'cpu_tme'"):
        averages.table(sort_by="cpu_tme")


def intervals_nest(events):
    lanes = {}
    for e in events:
        if e["ph"] == "X":
            lanes.setdefault((e["pid"], e["tid"]), []).append((e["ts"], e["ts"] + e["dur"]))
    for lane in lanes.values():
        lane.sort(key=lambda interval: (interval[0], -interval[1]))
        around = []
        for start, end in lane:
            while around and around[-1] <= start:
                around.pop()
            assert start <= end and (not around or end <= around[-1] + 1e-3)
            around.append(end)
    return lanes


@pytest.mark.parametrize("zipped", [False, True])
def test_traces(tmp_path, cuda, zipped):
    x = torch.ones(4, 4, device=cuda, requires_grad=True)
    side = torch.cuda.Stream()
    with profile(record_shapes=True) as prof:
        with record_function("block", "a note"):
            (x @ x).sum().backward()
        with torch.cuda.stream(side):
            torch.zeros(3, device=cuda) + 1
    prof.add_metadata("purpose", "a test")
    prof.add_metadata_json("numbers", "[1, 2]")
    path = tmp_path / ("trace.json" + ".gz" * zipped)
    prof.export_chrome_trace(path)
    trace = json.loads((gzip.open(path) if zipped else path.open()).read())
    events = trace["traceEvents"]
    assert trace["purpose"] == "a test" and trace["numbers"] == [1, 2]
    assert len(intervals_nest(events)) == 3
    assert {e["name"] for e in events if e["ph"] == "X"} == set(names(prof.events()))
    assert {e["cat"] for e in events if e["ph"] == "X"} >= {"cpu_op", "user_annotation", "cuda_runtime", "kernel"}
    block = next(e for e in events if e["name"] == "block")
    assert block["args"]["Note"] == "a note" and {"ts", "dur", "pid", "tid"} <= block.keys()
    starts = {e["id"]: e for e in events if e["ph"] == "s"}
    ends = {e["id"]: e for e in events if e["ph"] == "f"}
    assert starts.keys() == ends.keys() and len(starts) == len(kernels(prof))
    assert all(starts[k]["ts"] <= ends[k]["ts"] for k in starts)
    lanes = {e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert "default stream" in lanes and len(lanes) == 2


@pytest.mark.parametrize("zipped", [False, True])
def test_tensorboard_s_folder(tmp_path, zipped):
    for worker in (None, "worker0"):
        with profile(activities=CPU, on_trace_ready=tensorboard_trace_handler(str(tmp_path / "log"), worker, use_gzip=zipped)):
            torch.ones(2)
    files = sorted(p.name for p in (tmp_path / "log").iterdir())
    assert len(files) == 2 and any(name.startswith("worker0.") for name in files)
    assert all(name.endswith(".pt.trace.json" + ".gz" * zipped) for name in files)
