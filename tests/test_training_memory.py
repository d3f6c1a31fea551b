"""Memory and streams under tensors and training: what a loop allocates, how it ends when there is no more, copies that overlap."""
import gc

import pytest
from models import GPT, loss_of, seeded, texts, train_step
from test_training_cuda import adamw, train

import tritorch as torch
from tritorch import nn

MIB = 1 << 20


@pytest.fixture
def collected():
    """The cyclic garbage collector stands still: memory must go with the last reference."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


# ------------------------------------------------------------------ what a loop allocates
def test_a_warm_training_loop_asks_the_driver_for_nothing(cuda, collected):
    model = seeded(GPT, cuda)
    optimizer, seen = adamw(model), []
    for x, y in texts(6):
        train_step(model, optimizer, x.to(cuda), y.to(cuda)).item()
        stats = torch.cuda.memory_stats()
        seen.append((stats["num_device_alloc"], torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated()))
    assert len({allocations for allocations, _, _ in seen[2:]}) == 1
    for counts in list(zip(*seen[2:]))[1:]:                              # the tables of gradients' addresses are kept, a few of them
        assert max(counts) - min(counts) < 16 << 10


def test_memory_is_what_it_was_once_all_is_deleted(cuda, collected):
    before = torch.cuda.memory_allocated()
    model = seeded(GPT, cuda)
    optimizer = adamw(model)
    x, y = [t.to(cuda) for t in texts(1)[0]]
    loss = loss_of(model, x, y)
    loss.backward()
    optimizer.step()
    size = sum(p.numel() for p in model.parameters()) * 4
    assert torch.cuda.memory_allocated() - before >= 4 * size            # parameters, gradients, two moments
    del model, optimizer, loss, x, y
    left = torch.cuda.memory_allocated() - before                        # the optimizer's tables of addresses, which are few
    assert left < 64 << 10


def test_peaks_are_what_the_program_holds(cuda, collected):
    n = 4 * MIB
    base = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    x = torch.ones(n // 4, device=cuda)
    for _ in range(5):
        x = x + 1                                                        # the old and the new one
    assert torch.cuda.memory_allocated() - base == n and torch.cuda.max_memory_allocated() - base == 2 * n
    torch.cuda.reset_peak_memory_stats()
    for _ in range(5):
        x += 1
    assert torch.cuda.max_memory_allocated() - base == n
    x.requires_grad_()
    torch.cuda.reset_peak_memory_stats()
    y = x
    for _ in range(3):
        y = y.sigmoid()                                                  # keeps its outputs
    assert torch.cuda.memory_allocated() - base == 4 * n
    y.sum().backward()
    del y
    assert torch.cuda.memory_allocated() - base == 2 * n                 # x and its gradient
    assert torch.cuda.max_memory_allocated() - base < 7.1 * n


# ------------------------------------------------------------------ when there is no more
def test_out_of_memory_is_one_sentence_and_training_goes_on():
    with torch.cuda.simulate(total_memory=64 * MIB):
        model = seeded(GPT, "cuda")
        optimizer = adamw(model)
        batches = [[t.to("cuda") for t in batch] for batch in texts(4)]
        losses = [train_step(model, optimizer, *batches[0]).item()]
        held = torch.cuda.memory_allocated()
        for create in (lambda: torch.empty(100 * MIB, dtype=torch.uint8, device="cuda"), lambda: torch.zeros(100, MIB, device="cuda"),
                       lambda: torch.ones(100, 1, device="cuda").expand(100, MIB).contiguous(),
                       lambda: torch.zeros(1 << 26, device="cpu").to("cuda")):
            with pytest.raises(torch.OutOfMemoryError, match="CUDA out of memory. Tried to allocate .* MiB on cuda:0: ") as caught:
                create()
            assert "\n" not in str(caught.value) and caught.type is torch.cuda.OutOfMemoryError and isinstance(caught.value, RuntimeError)
            del caught
        assert torch.cuda.memory_allocated() == held
        x = torch.ones(MIB, device="cuda", requires_grad=True)
        hog = torch.empty(torch.cuda.mem_get_info()[0] - 20 * MIB, dtype=torch.uint8, device="cuda")
        many = [x]
        with pytest.raises(torch.OutOfMemoryError):
            for _ in range(20):
                many.append(many[-1].sigmoid())
        assert 1 < len(many) < 20 and (x[:9] == 1).all() and x.grad is None
        del many, hog, x
        losses += [train_step(model, optimizer, *batch).item() for batch in batches[1:]]
    with torch.cuda.simulate():
        expected = train_losses(texts(4))
    assert losses == expected


def train_losses(data):
    model = seeded(GPT, "cuda")
    optimizer = adamw(model)
    return [train_step(model, optimizer, x.to("cuda"), y.to("cuda")).item() for x, y in data]


def test_an_in_place_operator_without_memory_for_its_temporary_changes_nothing():
    with torch.cuda.simulate(total_memory=32 * MIB):
        x = torch.ones(5 * MIB, device="cuda")
        version = x._version
        with pytest.raises(torch.OutOfMemoryError):
            x.cumsum_(0)
        assert x._version == version and (x[:10] == 1).all()


def test_no_device_is_one_sentence(monkeypatch):
    from tritorch.cuda import driver

    before = driver.use(None)
    monkeypatch.setenv("TRITORCH_CUDA", "none")
    try:
        for call in (lambda: torch.zeros(2, device="cuda"), lambda: torch.zeros(2).cuda(), lambda: nn.Linear(2, 2).to("cuda"),
                     lambda: torch.tensor([1.0], device="cuda:0"), lambda: torch.zeros(2).to("cuda:1"), torch.cuda.Stream,
                     torch.cuda.get_device_name, torch.cuda.synchronize, lambda: torch.cuda.set_device(0),
                     lambda: torch.ones(2).pin_memory()):
            with pytest.raises(RuntimeError, match="no CUDA device is usable.*; use device='cpu'") as caught:
                call()
            assert "\n" not in str(caught.value)
        assert torch.device("cuda").type == "cuda" and not torch.cuda.is_available()
    finally:
        driver.use(before)


# ------------------------------------------------------------------ streams
@pytest.mark.parametrize("seed", range(4))
def test_training_on_a_side_stream_with_prefetched_batches(seed):
    """One stream copies the next batch from pinned memory while another one trains; any legal order gives the same losses."""
    def run():
        model = seeded(GPT, "cuda")
        optimizer, losses = adamw(model), []
        copying, working = torch.cuda.Stream(), torch.cuda.Stream()
        working.wait_stream(torch.cuda.current_stream())
        pinned = [[t.pin_memory() for t in batch] for batch in texts(3)]
        for batch in pinned:
            with torch.cuda.stream(copying):
                x, y = [t.to("cuda", non_blocking=True) for t in batch]
            working.wait_stream(copying)
            with torch.cuda.stream(working):
                for t in (x, y):
                    t.record_stream(working)
                losses.append(train_step(model, optimizer, x, y))
            del x, y
        torch.cuda.current_stream().wait_stream(working)
        return [loss.item() for loss in losses]

    with torch.cuda.simulate(seed=seed):
        assert run() == train_losses(texts(3))


@pytest.mark.parametrize("seed", range(4))
def test_backward_runs_on_the_streams_of_forward(seed):
    with torch.cuda.simulate(seed=seed):
        side = torch.cuda.Stream()
        w = torch.arange(4.0, device="cuda", requires_grad=True)
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            a = (w * w).sum()
        b = (w * 3).sum()
        torch.cuda.current_stream().wait_stream(side)
        (a + b).backward()
        assert w.grad.tolist() == [3, 5, 7, 9]


# ------------------------------------------------------------------ copies
@pytest.mark.parametrize("seed", range(6))
def test_copies_from_and_to_pinned_memory(seed):
    with torch.cuda.simulate(seed=seed):
        source = torch.arange(1000.0).pin_memory()
        assert source.is_pinned() and not source[:3].clone().is_pinned()
        there = source.to("cuda")
        source.zero_()                                                   # a copy that was waited for
        assert there[999] == 999
        source.copy_(torch.arange(1000.0))
        there.copy_(source, non_blocking=True)
        torch.cuda.current_stream().synchronize()
        source.zero_()
        back = (there * 2).to("cpu", non_blocking=True)
        mine = torch.empty(1000).pin_memory()
        mine.copy_(there * 3, non_blocking=True)
        torch.cuda.synchronize()
        assert back.is_pinned() and back.tolist() == [2.0 * k for k in range(1000)] and mine[7] == 21
        half = torch.arange(6.0).view(2, 3).mT.to("cuda", torch.float16, non_blocking=True)
        assert half.tolist() == [[0, 3], [1, 4], [2, 5]] and half.to("cpu", torch.float64).dtype is torch.float64


def test_gradients_go_through_copies_that_do_not_wait(cuda):
    x = torch.ones(3, requires_grad=True)
    (x.to(cuda, non_blocking=True) * 2).to("cpu", non_blocking=False).sum().backward()
    assert x.grad.tolist() == [2, 2, 2]
    w = torch.ones(3, device=cuda, requires_grad=True)
    y = (w * 3).to("cpu", non_blocking=True)
    torch.cuda.synchronize()
    y.sum().backward()
    assert w.grad.is_cuda and w.grad.tolist() == [3, 3, 3]


def test_losses_do_not_depend_on_the_schedule():
    found = set()
    for seed in range(3):
        with torch.cuda.simulate(seed=seed):
            found.add(tuple(train(GPT, adamw, texts(2), "cuda")[0]))
    assert len(found) == 1


