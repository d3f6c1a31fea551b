"""Calls that repeat launch again without running their implementation: only where nothing but pointers differs."""
import gc
import threading

import numpy as np
import pytest

import tritorch as torch
from tritorch import repeat
from tritorch.cuda import ahead, driver
from tritorch.cuda import launch as starting
from tritorch.cuda.launch import kernels, launch
from tritorch.cuda.trace import traces
from tritorch.dispatch import op, registry

K = kernels("pointwise")


@pytest.fixture(autouse=True)
def patience(monkeypatch):
    """Tests before these may have called an operator in so many ways that it remembers no more. And nothing is remembered of a call
    while its kernels compile, which takes several calls when their machine code is not there yet."""
    monkeypatch.setattr(repeat, "PATIENCE", 1 << 30)
    with ahead.staying():
        yield


@pytest.fixture
def scaled():
    """An operator whose implementation counts its runs."""
    runs = []

    @op
    def repeat_scaled(x, y, factor=1.0):
        """factor · x + y through a temporary."""
        return x.shape, x.dtype, x.device

    @repeat_scaled.impl("cuda")
    def on_cuda(out, x, y, factor):
        runs.append(factor)
        torch.add.into(out, torch.mul(x, factor), y)

    @repeat_scaled.impl("cpu")
    def on_cpu(out, x, y, factor):
        out[...] = factor * x + y

    yield repeat_scaled, runs
    del registry["repeat_scaled"]


def draw(*shape, device="cuda"):
    return torch.tensor(np.random.default_rng().standard_normal(shape), dtype=torch.float32, device=device)


def agrees(call, *args):
    want = call(*[a.cpu() if isinstance(a, torch.Tensor) else a for a in args])
    return torch.allclose(call(*args).cpu(), want, atol=1e-6)


def test_a_repeated_call_runs_no_implementation_and_reads_its_own_arguments(cuda, scaled):
    call, runs = scaled
    for _ in range(4):
        assert agrees(call, draw(3, 5), draw(3, 5))
    assert len(runs) == 1
    assert agrees(call, draw(3, 6), draw(3, 6)) and len(runs) == 2       # another shape
    assert agrees(call, draw(5, 3).t(), draw(3, 5)) and len(runs) == 3   # other strides


def test_memory_that_two_arguments_share_under_different_versions(cuda, scaled):
    call, runs = scaled
    for _ in range(3):
        x = draw(9)
        y = x.data                                                       # the same memory with a version of its own
        assert torch.allclose(call(x, y, 2.0), 3 * x) and torch.allclose(call(x[1:], y[:-1], 2.0), 2 * x[1:] + x[:-1])
        assert torch.allclose(call(x, draw(9) * 0, 2.0), 2 * x)          # apart: a call of another kind, whatever was learned of the first
    assert len(runs) == 3


def test_numbers_that_are_equal_but_not_the_same(cuda, scaled):
    call, runs = scaled
    x, y = draw(4), draw(4)
    for factor in (1, 1.0, True, 0.0, -0.0, 0.0, 1):
        call(x, y, factor)
    assert [str(f) for f in runs] == ["1", "1.0", "True", "0.0", "-0.0"]
    assert torch.signbit(torch.mul(torch.ones(3, device="cuda"), -0.0)).all() and not torch.signbit(
        torch.mul(torch.ones(3, device="cuda"), 0.0)).any()


def test_arguments_that_share_memory(cuda, scaled):
    call, runs = scaled
    for _ in range(2):                                                   # alone, first, and after calls with distinct memory
        x = draw(8)
        assert agrees(call, x, x)
        assert agrees(call, x[:4], x[4:]) and agrees(call, x[4:], x[:4]) and agrees(call, x[:4], x[:4])
        assert agrees(call, draw(4), draw(4)) and agrees(call, draw(8), draw(8))
        whole = draw(4, 4)
        assert agrees(call, whole[0], whole[2]) and agrees(call, whole[1], whole[3]) and agrees(call, whole[2], whole[0])
        assert agrees(torch.add, x, x) and agrees(torch.add, x, x.data) and agrees(torch.mul, draw(8), draw(8))
    assert len(runs) <= 9                                                # of 18 calls


def test_in_place_and_out_of_place_do_not_mix(cuda):
    for _ in range(3):
        x, y = draw(6), draw(6)
        want = x.cpu() * y.cpu() + y.cpu()
        z = x * y
        z += y
        x *= y
        x.add_(y)
        assert torch.allclose(z.cpu(), want) and torch.allclose(x.cpu(), want)


def test_misaligned_memory_is_another_kind(cuda, scaled):
    call, runs = scaled
    base, other = draw(64), draw(64)
    for start in (0, 1, 2, 4, 8, 1):
        assert agrees(call, base[start:start + 9], other[:9])
    assert len(runs) == 3                                                # 0, 16 and 32 bytes; 4 bytes; 8 bytes


def test_what_is_read_from_the_device_is_read_each_time(cuda):
    runs = []

    @op
    def repeat_reader(x):
        """x times its first element."""
        return x.shape, x.dtype, x.device

    @repeat_reader.impl("cuda")
    def on_cuda(out, x):
        runs.append(1)
        torch.mul.into(out, x, x[0].item())

    try:
        for value in (2.0, 3.0):
            x = torch.full((3,), value, device="cuda")
            assert repeat_reader(x).tolist() == [value**2] * 3
        assert len(runs) == 2
    finally:
        del registry["repeat_reader"]


def test_memory_that_is_kept_between_calls_is_not_taken_for_a_temporary(cuda):
    table = torch.full((3,), 5.0, device="cuda")

    @op
    def repeat_keeper(x):
        """x plus a table."""
        return x.shape, x.dtype, x.device

    repeat_keeper.impl("cuda")(lambda out, x: torch.add.into(out, x, table))
    try:
        for k in range(3):
            table.fill_(float(k))
            assert repeat_keeper(torch.zeros(3, device="cuda")).tolist() == [k] * 3
    finally:
        del registry["repeat_keeper"]


def test_the_precision_of_products_is_looked_at_again(cuda):
    x, y = draw(32, 32), draw(32, 32)
    exact = x.cpu().double() @ y.cpu().double()
    errors = []
    try:
        for precision in ("highest", "medium", "highest"):
            torch.set_float32_matmul_precision(precision)
            errors.append([((x @ y).cpu().double() - exact).abs().max().item() for _ in range(2)])
    finally:
        torch.set_float32_matmul_precision("highest")
    assert max(errors[0] + errors[2]) < 1e-4 < min(errors[1])


def test_bad_indices_are_reported_by_repeated_calls(cuda):
    table = draw(4, 3)
    for _ in range(3):
        table[torch.tensor([1, 3], device="cuda")].cpu()
    wrong = table[torch.tensor([1, 9], device="cuda")]
    with pytest.raises(IndexError, match="9"):
        wrong.cpu()


def test_temporaries_are_fresh_and_given_back(cuda, scaled):
    call, _ = scaled
    gc.disable()
    try:
        x, y = draw(1000), draw(1000)
        call(x, y)
        before = torch.cuda.memory_allocated()
        for _ in range(5):
            call(x, y)
        assert torch.cuda.memory_allocated() == before
        torch.cuda.reset_peak_memory_stats()
        kept = call(x, y)
        assert torch.cuda.max_memory_allocated() == before + 2 * 4096
        del kept
    finally:
        gc.enable()


def test_streams_and_threads(cuda, scaled):
    call, runs = scaled
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    results = []

    def work():
        with torch.cuda.stream(side):
            for _ in range(3):
                results.append(agrees(call, draw(7), draw(7)))

    thread = threading.Thread(target=work)
    thread.start()
    for _ in range(3):
        results.append(agrees(call, draw(7), draw(7)))
    thread.join()
    assert all(results) and len(results) == 6 and not traces


def test_a_failing_launch_names_its_arguments(cuda, scaled, monkeypatch):
    call, runs = scaled
    call(draw(3), draw(3))

    def broken(*_):
        raise driver.DriverError("the device is gone")

    for functions in (driver.functions, *driver.call_tables):
        for key, value in list(functions.items()):
            if functions is driver.functions:
                monkeypatch.setitem(functions, key, broken)
            elif type(value) is tuple and type(value[2]) is list:
                monkeypatch.setitem(functions, key, (*value[:2], [(broken, *step[1:]) for step in value[2]], *value[3:]))
    with pytest.raises(RuntimeError, match=r"kernel binary_flat .*float32\[3\].*the device is gone"):
        call(draw(3), draw(3))


def test_an_operator_whose_numbers_always_differ_stops_remembering(cuda, scaled, monkeypatch):
    call, runs = scaled
    monkeypatch.setattr(repeat, "KEPT", 4)
    monkeypatch.setattr(repeat, "PATIENCE", 4)
    x, y = draw(2), draw(2)
    for k in range(40):
        call(x, y, float(k + 2))
    tables = [t for t in driver.call_tables if any(39.0 in key for key in t if type(key) is tuple)]
    assert len(runs) == 40 and not tables
    assert agrees(call, draw(2), draw(2), 7.5)


def test_launches_with_other_values_are_not_confused(cuda):
    """A kernel of one's own, with the number of elements in the launch only."""
    out = torch.zeros(8, device="cuda")
    for n in (8, 4, 8):
        x = draw(8)
        out.zero_()
        launch(K.binary_flat, (1,), out, x, x, n, FN=kernels("scalar").plus, ATTRS=0, COMPUTE="fp32", X_SCALAR=False, Y_SCALAR=False,
               a=None, b=None, ODD=False, BLOCK=16)
        assert torch.allclose(out.cpu()[:n], 2 * x.cpu()[:n]) and not out.cpu()[n:].any()


def launches(call):
    """How many launches operators did not find among what they remember."""
    seen, found = [], driver.functions

    class Watched(dict):
        def get(self, key, default=None):
            seen.append(key)
            return found.get(key, default)

    was, starting._functions = starting._functions, Watched()
    try:
        call()
    finally:
        starting._functions = was
    return len(seen)


def test_numbers_that_are_only_passed_on_may_differ(cuda):
    x = draw(5, 7)
    for number in (0.1, 3):
        assert agrees(torch.mul, x, number) and agrees(torch.sub, x, number)
    numbers = [0.7, -2.5, 0.0, 1, 11, float("inf"), True]
    assert launches(lambda: torch.mul(draw(2, 9), 0.3)) and not launches(lambda: [torch.mul(x, n) for n in numbers[:-1]])
    assert all(agrees(torch.mul, x, n) and agrees(torch.pow, x.abs(), n) for n in numbers)
    whole = torch.arange(6, device="cuda")
    assert [(whole * n).tolist() for n in (3, 5, 2)] == [[n * k for k in range(6)] for n in (3, 5, 2)]


DRAWS = {
    "dropout": lambda x, g: torch.nn.functional.dropout(x, 0.5, generator=g),
    "rand": lambda x, g: torch.rand(3, 3, device=x.device, generator=g),
    "randint": lambda x, g: torch.randint(2, 99, (9,), device=x.device, generator=g),
    "bernoulli": lambda x, g: torch.bernoulli(x.abs(), generator=g),
    "normal": lambda x, g: torch.normal(x, x.abs(), generator=g),
    "poisson": lambda x, g: torch.poisson(x.abs(), generator=g),
    "attention": lambda x, g: torch.nn.functional.scaled_dot_product_attention(*[x[None, None]] * 3, dropout_p=0.5, generator=g)[0, 0],
}


@pytest.mark.parametrize("name", DRAWS)
def test_random_numbers_of_repeated_calls_are_drawn_at_their_own_places(cuda, name):
    """Each call takes an odd number of counters, so that 17 meet every kind of offset: 0, multiples of 16, others."""
    x, want, call = draw(3, 9).clamp(-1, 1), [], DRAWS[name]
    for device in ("cpu", "cuda"):
        generator = torch.Generator(device).manual_seed(5)
        here = x.detach().to(device).requires_grad_()
        made = [call(here, generator) for _ in range(6)]
        made += torch.autograd.grad(made[5].sum(), here) if made[0].requires_grad else ()
        want.append([m.cpu() for m in made])
    assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(*want)) and not torch.equal(want[0][4], want[0][5])
    for seed in (3, 0):                                                  # 0 stands in the key
        generator = torch.Generator("cuda").manual_seed(seed)
        rows = [call(x, generator) for _ in range(17)]
        assert not launches(lambda: rows.extend(call(x, generator) for _ in range(16)))


def test_calls_without_tensors_repeat(cuda):
    made = [torch.arange(2, 9, device="cuda"), torch.arange(2, 9)]
    assert not launches(lambda: made.append(torch.arange(2, 9, device="cuda"))) and all(m.tolist() == [*range(2, 9)] for m in made)


def test_the_default_dtype_is_looked_at_again(cuda):
    x = torch.arange(4, device="cuda")
    try:
        for kind in (torch.float32, torch.float64, torch.float32):
            torch.set_default_dtype(kind)
            assert [torch.exp(x).dtype, torch.exp(x).dtype] == [kind] * 2
    finally:
        torch.set_default_dtype(torch.float32)


def test_a_repeated_call_has_a_history_only_where_it_wants_one(cuda):
    x, w = draw(3, 4), draw(3, 4).requires_grad_()
    for _ in range(2):
        assert torch.mul(x, x).grad_fn is None
        assert torch.mul(x, w).grad_fn is not None and torch.mul(w, x).grad_fn is not None
        with torch.no_grad():
            assert torch.mul(x, w).grad_fn is None
        with torch.inference_mode():
            assert torch.mul(x, x).is_inference()
        base = draw(3, 4)
        view = base[1:]
        base.mul_(w)
        assert torch.mul(view, view).grad_fn is not None                 # got its history through its base


def test_a_tensor_that_changed_is_looked_at_again(cuda, scaled):
    call, runs = scaled
    x, y = draw(4, 6), draw(6, 4)
    assert agrees(call, x, x)
    x.t_()
    assert agrees(call, x, y)
    x.data = draw(6, 4)
    assert agrees(call, x, y)
    x.data = draw(12)[1:9].view(4, 2)                                    # misaligned
    assert agrees(call, x, x)
    out = torch.empty(0, device="cuda")
    out.add_(out)
    torch.add(x, x, out=out)                                             # takes the shape of the result
    assert agrees(call, out, out) and out.shape == (4, 2)
    seen = len(runs)
    p = torch.nn.Parameter(y, requires_grad=False)
    assert agrees(call, y, draw(6, 4)) and agrees(call, p, draw(6, 4)) and agrees(call, p, draw(6, 4)) and len(runs) <= seen + 1 <= 6


def test_arguments_left_to_their_defaults_and_too_many(cuda, scaled):
    call, runs = scaled
    for _ in range(2):
        assert agrees(call, draw(3), draw(3)) and agrees(call, draw(3), draw(3), 1.0)
        assert agrees(lambda x, y: call(x, y=y), draw(3), draw(3))
    assert len(runs) == 2                                                # as given, and with the default spelled out
    for wrong in ((), (draw(3),), (draw(3), draw(3), 1.0, 2.0), (draw(3), draw(3), 1.0, draw(3), None)):
        with pytest.raises(TypeError, match="argument"):
            call(*wrong)


def test_a_history_through_a_repeated_call(cuda):
    x, w = draw(3, 4), draw(3, 4).requires_grad_()
    for _ in range(3):
        y = torch.add(x, w) + torch.sub(w, x, alpha=3)
        assert torch.equal(torch.autograd.grad(y.sum(), w)[0].cpu(), torch.full((3, 4), 2.0))


def test_tensors_behind_each_other(cuda):
    for _ in range(3):
        x, y, whole = draw(3, 4), draw(2, 4), draw(6, 8)
        assert agrees(lambda a, b: torch.cat((a, b)), x, y) and agrees(lambda a: torch.cat((a, a), 1), x)
        assert agrees(lambda a: torch.cat((a[:3, 4:], a[3:, :4]), 1), whole) and agrees(lambda a: torch.stack((a[0], a[2])), whole)
        assert torch.equal(torch.cat((torch.empty(0), x)).cpu(), x.cpu())    # an empty 1-d tensor passes, from anywhere
        assert torch.equal(torch.cat((x.half(), y)).cpu(), torch.cat((x.cpu().half(), y.cpu())))


def test_copies(cuda):
    for _ in range(3):
        x = draw(4, 6)
        on_host = x.cpu()
        for copy in (lambda a: a.clone(), lambda a: a.t().contiguous(), lambda a: a[1:, 2:].contiguous(), lambda a: a.half().float(),
                     lambda a: a[:, ::2].clone(), lambda a: a.cpu(), lambda a: a.cuda(), lambda a: a.t().to("cpu", torch.float64)):
            assert torch.equal(copy(x).cpu(), copy(on_host).cpu())
        leaf = x.clone().requires_grad_()
        leaf.half().sum().backward()
        assert torch.equal(leaf.grad, torch.ones_like(x))
