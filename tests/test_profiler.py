"""tritorch.profiler on the host: what it sees and when, how its numbers add up, that it leaves nothing behind."""
import importlib
import os
import threading
import time

import pytest
from profiles import CPU, host, names, nothing_left  # noqa: F401

import tritorch as torch
import tritorch.nn.functional
from tritorch import surface
from tritorch.autograd.modes import state
from tritorch.cuda import allocator, driver, measuring
from tritorch.cuda.dry import DryDriver
from tritorch.profiler import ProfilerAction, operators, profile, record_function, recorder, schedule, session
from tritorch.tensor import empty


# ------------------------------------------------------------------ what is seen
def test_operators_are_counted_under_pytorch_s_names():
    x = torch.ones(4)
    with profile(activities=CPU) as prof:
        for _ in range(3):
            (x + 1).mul_(2)
        x.view(2, 2) @ x.view(2, 2)
    counts = {e.key: e.count for e in prof.key_averages()}
    assert counts == {"aten::add": 3, "aten::mul_": 3, "aten::view": 2, "aten::matmul": 1}
    assert names(prof.events()) == ["aten::add", "aten::mul_"] * 3 + ["aten::view", "aten::view", "aten::matmul"]


def test_every_operator_has_a_name():
    lists = {"cast_all", "clip_by_norm", "norm_parts", "scale_by", "update", "update_scale"}
    for home in {*surface.LAZY.values(), "special", "native", "recurrent", "linalg", "nn"}:     # families load when asked for
        importlib.import_module("tritorch." + home)
    assert not operators.NAMES.keys() - torch.dispatch.registry.keys() - lists
    assert not operators.FLOPS.keys() - torch.dispatch.registry.keys()


def test_blocks_nodes_and_operators_nest():
    x = torch.ones(3, requires_grad=True)
    with profile(activities=CPU) as prof:
        with record_function("forward"), record_function("inner"):
            y = (x * x).sum()
        y.backward()
    top = [e for e in prof.events() if e.cpu_parent is None]
    assert names(top)[0] == "forward" and "MulBackward0" in names(top) and "SumBackward0" in names(top)
    inner, = top[0].cpu_children
    assert inner.is_user_annotation and names(inner.cpu_children) == ["aten::mul", "aten::sum"]
    assert set(names(top[names(top).index("MulBackward0")].cpu_children)) <= {"aten::mul", "aten::add"}
    assert all(e.cpu_parent.start <= e.start <= e.end <= e.cpu_parent.end for e in prof.events() if e.cpu_parent is not None)


def test_self_times_add_up():
    x = torch.ones(8, 8, requires_grad=True)
    with profile(activities=CPU) as prof:
        with record_function("step"):
            time.sleep(0.005)
            (x @ x).relu().sum().backward()
    total = sum(e.cpu_time_total for e in prof.events() if e.cpu_parent is None)
    averages = prof.key_averages()
    assert averages.self_cpu_time_total == pytest.approx(total) == averages.total_average().self_cpu_time_total
    step = next(e for e in averages if e.key == "step")
    assert step.self_cpu_time_total >= 5000 and step.cpu_time_total == step.cpu_time == pytest.approx(total)
    assert all(e.self_cpu_time_total >= 0 for e in prof.events())


def test_a_function_of_one_s_own_is_a_node():
    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, g):
            return g * 2

    x = torch.ones(3, requires_grad=True)
    with profile(activities=CPU) as prof:
        Twice.apply(x).sum().backward()
    node = next(e for e in prof.events() if e.name == "TwiceBackward")
    assert names(node.cpu_children) == ["aten::mul"]


def test_nan_is_hunted_in_a_profile():
    x = torch.zeros(2, requires_grad=True)
    with profile(activities=CPU), torch.autograd.detect_anomaly(), pytest.raises(RuntimeError, match="PowBackward0.*nan"):
        (x ** 0.5 * 0).sum().backward()


def test_steps_of_optimizers_and_loaders_are_events():
    p = torch.nn.Parameter(torch.ones(3))
    p.grad = torch.ones(3)
    optimizer = torch.optim.SGD([p], lr=0.1)
    with profile(activities=CPU) as prof:
        optimizer.step()
        optimizer.zero_grad()
        assert len([*torch.utils.data.DataLoader(torch.ones(6, 2), batch_size=2)]) == 3
    top = [e for e in prof.events() if "#" in e.name]
    assert names(top) == ["Optimizer.step#SGD.step", "Optimizer.zero_grad#SGD.zero_grad"] + [
        "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"] * 4              # the last one finds nothing more
    assert "aten::_fused_update_" in names(top[0].cpu_children) and names(top[2].cpu_children)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
def test_a_forked_process_is_not_profiled():
    with profile(activities=CPU) as prof:
        child = os.fork()
        if not child:
            torch.ones(2)
            left = [recorder.running, session.active, state.interpreter, measuring.meter]
            os._exit(left != [None] * 4 or len(prof.recorder.events))
        assert os.waitpid(child, 0)[1] == 0
        torch.ones(2)
    assert names(prof.events()) == ["aten::fill_"]


def test_shapes_flops_and_stacks(tmp_path):
    layer, x = torch.nn.Linear(8, 16), torch.ones(5, 8)
    with profile(activities=CPU, record_shapes=True, with_flops=True, with_stack=True) as prof:
        layer(x)
        layer(x[:2])
        x.add(x)
        torch.cat([x, x])
        torch.nn.functional.conv2d(torch.ones(1, 4, 6, 6), torch.ones(8, 2, 3, 3), groups=2)
        q = torch.ones(2, 3, 7, 4)
        torch.nn.functional.scaled_dot_product_attention(q, q, q)
    found = {e.key: e for e in prof.key_averages()}
    assert found["aten::linear"].flops == 2 * 7 * 8 * 16 and found["aten::add"].flops == 40
    assert found["aten::convolution"].flops == 2 * (8 * 4 * 4) * (2 * 3 * 3)
    assert found["aten::scaled_dot_product_attention"].flops == 2 * (2 * 3 * 7 * 7) * (4 + 4)
    linear = [e for e in prof.key_averages(group_by_input_shape=True) if e.key == "aten::linear"]
    assert [e.input_shapes for e in linear] == [[[5, 8], [16, 8], [16]], [[2, 8], [16, 8], [16]]]
    assert next(e for e in prof.events() if e.name == "aten::cat").input_shapes[0] == [[5, 8], [5, 8]]
    lines = [e.stack for e in prof.key_averages(group_by_stack_n=1) if e.key == "aten::linear"]
    assert len(lines) == 2 and all(len(stack) == 1 and "test_profiler.py(" in stack[0] for stack in lines)
    text = prof.key_averages(group_by_stack_n=2).table()
    assert "Source Location" in text and "Total KFLOPs" in text
    prof.export_stacks(tmp_path / "stacks", "self_cpu_time_total")
    for line in (tmp_path / "stacks").read_text().splitlines():
        frames, _, value = line.rpartition(" ")
        assert int(value) > 0 and " " not in frames and "test_profiler.py(" in frames.split(";")[-1]
    with pytest.raises(ValueError, match="export_stacks: expected a metric among self_cpu_time_total, .*, got 'nonsense'"):
        prof.export_stacks(tmp_path / "stacks", "nonsense")


def test_flops_are_those_of_the_cards():
    """On a device that computes nothing: their workloads are large. The cards halve the attention to the past alone."""
    def make(*shape, dtype=None, integer=False, **kind):
        return empty(shape, dtype or (torch.int64 if integer else torch.float32), torch.device("cuda:0"))

    with driver.using(DryDriver(90)):
        for name in sorted(operators.FLOPS.keys() - {"attention_backward"}):             # which runs the forward pass first
            op = torch.dispatch.registry[name]
            for label, arguments, _, flops in op.workloads_body(make):
                args = op.complete(tuple(arguments()))
                promise = op.body(*args)
                outs = empty(*promise) if type(promise) is tuple else [empty(*p) for p in promise]
                assert operators.FLOPS[name](outs, *args) == flops * (2 if "causal=True" in label else 1), (name, label)


def test_host_memory_is_counted():
    x = torch.ones(100)
    with profile(activities=CPU, profile_memory=True) as prof:
        y = x + 1
        with record_function("freed"):
            del y
        with record_function("passing"):
            x.view(10, 10).mul(2)
        x.add_(1)
    assert [(e.name, e.cpu_memory_usage, e.self_cpu_memory_usage) for e in prof.events()] == [
        ("aten::add", 400, 400), ("freed", -400, -400), ("passing", 0, -400), ("aten::view", 0, 0), ("aten::mul", 400, 400),
        ("aten::add_", 0, 0)]
    assert "Self CPU Mem" in prof.key_averages().table()


# ------------------------------------------------------------------ when
def actions(**given):
    plan = schedule(**given)
    return "".join({"NONE": ".", "WARMUP": "w", "RECORD": "r", "RECORD_AND_SAVE": "S"}[plan(step).name] for step in range(14))


@pytest.mark.parametrize("given, expected", [                            # what PyTorch 2.13 gives
    (dict(wait=1, warmup=1, active=2), ".wrS.wrS.wrS.w"),
    (dict(wait=1, warmup=1, active=2, repeat=2, skip_first=1), "..wrS.wrS....."),
    (dict(wait=0, warmup=0, active=1), "S" * 14),
    (dict(wait=2, warmup=0, active=1, repeat=1), "..S..........."),
    (dict(wait=2, warmup=1, active=3, skip_first=2, skip_first_wait=1), "..wrrS..wrrS.."),
])
def test_schedules_are_pytorch_s(given, expected):
    assert actions(**given) == expected


def test_schedules_refuse_nonsense():
    with pytest.raises(AssertionError, match="schedule: expected numbers of steps from 0, active from 1"):
        schedule(wait=-1, warmup=0, active=1)
    with pytest.raises(AssertionError, match="active from 1"):
        schedule(wait=0, warmup=0, active=0)


@pytest.mark.parametrize("accumulate", [False, True])
def test_cycles(accumulate):
    x, seen = torch.ones(2), []

    def ready(prof):
        seen.append((prof.step_num, [e.key for e in prof.key_averages()], names(prof.events())))

    with profile(activities=CPU, schedule=schedule(wait=1, warmup=1, active=2, repeat=2), on_trace_ready=ready,
                 acc_events=accumulate) as prof:
        for k in range(10):
            x + k
            prof.step()
            assert prof.current_action is prof.schedule(k + 1) and prof.step_num == k + 1
    first = ["ProfilerStep#2", "aten::add", "ProfilerStep#3", "aten::add"]
    second = ["ProfilerStep#6", "aten::add", "ProfilerStep#7", "aten::add"]
    keys = ["ProfilerStep*", "aten::add"]
    assert seen == [(4, keys, first), (8, keys, first + second if accumulate else second)]


def test_an_end_in_the_middle_of_a_cycle():
    seen = []
    with profile(activities=CPU, schedule=schedule(wait=0, warmup=0, active=5), on_trace_ready=lambda p: seen.append(p.step_num)) as prof:
        torch.ones(2)
        prof.step()
    assert seen == [1] and "aten::fill_" in names(prof.events())
    with profile(activities=CPU, on_trace_ready=lambda p: seen.append(len(p.events()))):
        torch.ones(2) + 1
    assert seen == [1, 2]
    plan = [ProfilerAction.RECORD, ProfilerAction.NONE]                  # a recording that is never saved
    with profile(activities=CPU, schedule=plan.__getitem__, on_trace_ready=seen.append) as prof:
        prof.step()
    assert seen == [1, 2] and names(prof.events()) == ["ProfilerStep#0"]


def test_start_and_stop():
    prof = profile(activities=CPU)
    with pytest.raises(AssertionError, match="profile: expected a profiler that has recorded something and ended, got one that has not"):
        prof.key_averages()
    with pytest.raises(RuntimeError, match=r"profile.step: expected a profiler at work"):
        prof.step()
    prof.stop()
    for count in (1, 2):
        prof.start()
        for _ in range(count):
            torch.ones(1)
        prof.stop()
        assert len(prof.events()) == count


def test_one_at_a_time():
    with profile(activities=CPU) as prof:
        with pytest.raises(RuntimeError, match="profile: expected no other profiler at work, got one that has not stopped; use stop"):
            profile(activities=CPU).start()
        torch.ones(1)
    assert names(prof.events()) == ["aten::fill_"]
    with pytest.raises(AssertionError, match="profile: expected activities among"):
        profile(activities=[])


def test_errors_leave_nothing_behind(monkeypatch):
    x = torch.ones(2)
    with pytest.raises(ZeroDivisionError), profile(profile_memory=True) as prof:
        with record_function("block"):
            x + 1
            raise ZeroDivisionError
    assert names(host(prof))[:2] == ["block", "aten::add"]
    with profile(activities=CPU) as prof:
        with pytest.raises(RuntimeError), record_function("block"):
            x + torch.ones(3)
        x * 2
    assert [e.cpu_parent and e.cpu_parent.name for e in prof.events() if e.name in ("aten::add", "aten::mul")] == ["block", None]

    monkeypatch.setattr(allocator, "watch", lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        profile(activities=CPU, profile_memory=True).start()
    monkeypatch.undo()

    def broken(step):
        raise KeyError(step)

    with pytest.raises(KeyError):
        profile(activities=CPU, schedule=broken).start()

    def refuses(prof):
        raise KeyError("ready")

    with pytest.raises(KeyError), profile(activities=CPU, on_trace_ready=refuses):
        x + 1
    with pytest.raises(KeyError, match="ready"), profile(activities=CPU, schedule=schedule(wait=0, warmup=0, active=1),
                                                         on_trace_ready=refuses) as prof:
        prof.step()


def test_marks_that_cross_the_end():
    x = torch.ones(2)
    prof, mark = profile(activities=CPU), record_function("mark")
    prof.start()
    mark.__enter__()
    x + 1
    prof.stop()
    mark.__exit__(None, None, None)
    assert [(e.name, e.end >= e.start) for e in prof.events()] == [("mark", True), ("aten::add", True)]
    outer, inner = record_function("outer"), record_function("inner")
    with profile(activities=CPU) as prof:
        outer.__enter__()
        inner.__enter__()
        outer.__exit__(None, None, None)
        inner.__exit__(None, None, None)
        x + 1
    assert [e.cpu_parent and e.cpu_parent.name for e in prof.events()] == [None, "outer", None]


def test_record_function_decorates():
    @record_function("named")
    def down(k):
        return torch.ones(1) if k == 0 else down(k - 1)

    down(1)
    with profile(activities=CPU) as prof:
        down(2)
    assert names(prof.events()) == ["named"] * 3 + ["aten::fill_"]
    assert prof.events()[3].cpu_parent.cpu_parent.cpu_parent is prof.events()[0]


def test_other_interpreters_come_and_go():
    x = torch.ones(2, 2)
    prof = profile(activities=CPU)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        prof.start()
        x @ x
    x + 1
    prof.stop()
    assert names(prof.events()) == ["aten::_to_copy", "aten::_to_copy", "aten::matmul", "aten::add"]       # what autocast makes of it
    prof.start()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        prof.stop()
        assert (x @ x).dtype is torch.bfloat16
    with profile(activities=CPU) as prof:
        torch.func.vmap(lambda v: v * 2)(x)
    assert "aten::mul" in names(prof.events())


def test_the_thread_is_as_it_was():
    """Compiled functions compare all of it."""
    def look():
        before = {**vars(state)}
        with profile(activities=CPU):
            torch.ones(2)
        seen.append((before, {**vars(state)}))

    seen = []
    look()
    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert all(before == after for before, after in seen) and seen[1] == ({}, {})


def test_other_threads_are_not_seen():
    def work():
        with record_function("elsewhere"):
            (torch.ones(2, requires_grad=True) * 2).sum().backward()

    with profile(activities=CPU) as prof:
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        torch.ones(2)
    assert names(prof.events()) == ["aten::fill_"]

    prof, errors = profile(activities=CPU), []
    prof.start()

    def stop():
        try:
            prof.stop()
        except RuntimeError as error:
            errors.append(str(error))

    thread = threading.Thread(target=stop)
    thread.start()
    thread.join()
    assert errors == ["profile.stop: expected the thread that started it, got another one"]
    prof.stop()


# ------------------------------------------------------------------ the older names
def test_autograd_profiler():
    x = torch.ones(3)
    with torch.autograd.profiler.profile(record_shapes=True) as prof:
        with torch.autograd.profiler.record_function("block"):
            x + 1
    assert names(prof.function_events) == ["block", "aten::add"] and "aten::add" in prof.table(sort_by="cpu_time_total")
    assert prof.total_average().count == 2 and prof.self_cpu_time_total == pytest.approx(prof.events()[0].cpu_time_total)
    with torch.autograd.profiler.profile(enabled=False) as prof:
        x + 1
    assert prof.found is None
    assert torch.autograd.profiler.record_function is record_function and not torch.autograd._profiler_enabled()
