"""Optimizers: torch's trajectories, CPU and GPU alike, state dicts, hooks, graph capture."""
import copy
import gc
import weakref

import numpy as np
import pytest
from optimizers import COUNTING, IDS, METHODS, MULTI, SHAPES, assert_near, start, trajectory

import tritorch
from tritorch.cuda import driver, launch
from tritorch.ops import multitensor


@pytest.mark.parametrize(("cls", "options"), METHODS, ids=IDS)
def test_trajectory_is_that_of_torch(cls, options):
    torch = pytest.importorskip("torch")
    assert_near(trajectory(tritorch, cls, options), trajectory(torch, cls, options), 0.02 if cls == "Muon" else 3e-6)


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "float16"])
@pytest.mark.parametrize(("cls", "options"), MULTI, ids=IDS[:len(MULTI)])
def test_devices_agree(cuda, cls, options, dtype):
    tol = {"float32": 2e-6, "float64": 1e-14, "bfloat16": 0.02, "float16": 3e-3}[dtype]
    steps = 20 if dtype == "float32" else 8                              # RAdam corrects its rate from the sixth on
    assert_near(*[trajectory(tritorch, cls, options, device=device, dtype=dtype, steps=steps) for device in (cuda, "cpu")], tol)


@pytest.mark.parametrize(("cls", "options"), METHODS[len(MULTI):], ids=IDS[len(MULTI):])
def test_others_run_on_the_device(cuda, cls, options):
    ours = trajectory(tritorch, cls, options, device=cuda, steps=4)
    assert_near(ours, trajectory(tritorch, cls, options, steps=4), 0.02 if cls == "Muon" else 1e-5)


@pytest.mark.parametrize(("cls", "options"), [*COUNTING, ("Adam", {"betas": (0.0, 0.0)})],
                         ids=[f"{cls} {options}" for cls, options in COUNTING] + ["zero betas"])
def test_steps_counted_on_the_device(cuda, cls, options):
    want = trajectory(tritorch, cls, options)
    for switch in {"Adagrad": ["fused"], "Adam": ["capturable", "fused"]}.get(cls, ["capturable"]):
        assert_near(trajectory(tritorch, cls, {**options, switch: True}, device=cuda), want, 3e-6)
        assert_near(trajectory(tritorch, cls, {**options, switch: True}), want, 3e-6)


def test_float32_master_is_no_worse_than_torch_in_bfloat16():
    torch = pytest.importorskip("torch")
    exact = trajectory(torch, "AdamW", {"lr": 0.01}, dtype="float64")
    ours, theirs = [trajectory(m, "AdamW", {"lr": 0.01}, dtype="bfloat16") for m in (tritorch, torch)]
    error = [sum(np.abs(a - b).sum() for a, b in zip(got, exact)) for got in (ours, theirs)]
    assert error[0] <= 1.1 * error[1]


# ------------------------------------------------------------------ layouts and memory
@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("arrange", ["transposed", "gapped", "expanded gradient", "other order"])
def test_any_layout(cuda, device, arrange):
    place = cuda if device == "cuda" else "cpu"
    values, slope = [tritorch.arange(12.0).reshape(3, 4).to(place) for _ in range(2)]
    p, g = values.clone(), slope
    if arrange == "transposed":
        p, g = values.t().clone().t(), slope.t().clone().t()
    elif arrange == "gapped":
        p = tritorch.zeros(3, 8, device=place)[:, ::2]
        p.copy_(values)
    elif arrange == "expanded gradient":
        g = slope[:1].expand(3, 4)
    else:
        g = slope.t().clone().t()
    got, want = p.detach().requires_grad_(), values.clone().requires_grad_()
    got.grad, want.grad = g, g.clone()
    for cls in ("AdamW", "SGD"):
        for w in (got, want):
            before = w._version
            getattr(tritorch.optim, cls)([w], lr=0.1, **({"momentum": 0.9} if cls == "SGD" else {"amsgrad": True})).step()
            assert w._version > before
    np.testing.assert_allclose(got.detach().cpu().numpy(), want.detach().cpu().numpy(), rtol=1e-6)


def test_step_is_noticed_by_backward():
    w = tritorch.ones(2, requires_grad=True)
    loss = (w * w).sum()
    w.grad = tritorch.ones(2)
    tritorch.optim.SGD([w], lr=0.1).step()
    with pytest.raises(RuntimeError):
        loss.backward()


def test_tables_are_made_once(cuda):
    params, optimizer, step = start(tritorch, "AdamW", {}, device=cuda)
    step(0)
    grads = [p.grad for p in params]
    optimizer.step()
    before = dict(multitensor._tables)
    for p, g in zip(params, grads):
        p.grad = g
    optimizer.step()
    assert multitensor._tables.keys() == before.keys()
    known = None
    for k in range(2 * multitensor.KEPT):                                # gradients that move cannot fill the memory
        params[0].grad = tritorch.ones(SHAPES[0], device=cuda)
        keep = params[0].grad, tritorch.ones(k + 1, device=cuda)
        optimizer.step()
        known = known if k > multitensor.KEPT else len(driver.functions)
    assert len(multitensor._tables) <= multitensor.KEPT and keep
    assert len(driver.functions) == known                                # and prepare no kernel again


@pytest.mark.parametrize("name", ["SGD", "AdamW"])
def test_parameters_and_gradients_of_other_layouts_are_noticed(name, cuda):
    """What was known of the lists in the step before does not hold for tensors that are turned, or of another dtype, since."""
    results = []
    for device in ("cpu", cuda):
        w = tritorch.arange(12.0, device=device).view(3, 4).requires_grad_()
        optimizer = getattr(tritorch.optim, name)([w], lr=0.1)
        for turned in (False, False, True, True, False):
            gradient = tritorch.arange(12.0, device=device).view(3, 4) + 1
            w.grad = gradient.t().contiguous().t() if turned else gradient
            optimizer.step()
        results.append(w.detach().cpu().array)
        w.data = w.data.half()
        w.grad = tritorch.ones(3, 4, device=device).half()
        for state in optimizer.state.values():
            state.update({k: v.half() for k, v in state.items() if getattr(v, "shape", ()) == w.shape})
        optimizer.step()
        results.append(w.detach().cpu().float().array)
    np.testing.assert_allclose(results[2], results[0], rtol=1e-6)
    np.testing.assert_allclose(results[3], results[1], rtol=2e-3)


@pytest.mark.parametrize("options", [{}, {"lr": 0.1, "initial_accumulator_value": 0.3, "weight_decay": 0.1}])
def test_adagrad_takes_complex_numbers_for_pairs(options):
    z = tritorch.randn(4, dtype=tritorch.complex64).requires_grad_()
    pairs = tritorch.view_as_real(z).detach().clone().requires_grad_()
    both = [tritorch.optim.Adagrad([p], **options) for p in (z, pairs)]
    for _ in range(3):
        z.grad = tritorch.randn(4, dtype=tritorch.complex64)
        pairs.grad = tritorch.view_as_real(z.grad).clone()
        for optimizer in both:
            optimizer.step()
    np.testing.assert_allclose(tritorch.view_as_real(z).detach().numpy(), pairs.detach().numpy(), rtol=1e-6)


def test_one_launch_for_all(cuda, monkeypatch):
    launched = []
    monkeypatch.setattr(launch.Prepared, "__call__", lambda self, programs, args: launched.append(self.kernel))
    params, optimizer, step = start(tritorch, "AdamW", {}, device=cuda)
    optimizer.param_groups[0]["params"] += optimizer.param_groups.pop()["params"]
    step(0)
    assert [kernel.__name__ for kernel in launched if kernel.__module__ == "triton_kernels.optimize"] == ["update_kernel"]


@pytest.mark.parametrize(("name", "place"), [("AdamW", "listwise.zeros_like"), ("Adafactor", "factored.new_zeros")])
def test_a_step_without_memory_for_its_state_can_be_made_later(name, place, monkeypatch):
    module, function = place.split(".")
    module = getattr(tritorch.optim, module)
    make = getattr(module, function)

    def trained(left):
        def first_ones(*args):
            if next(left, None) is None:
                raise tritorch.OutOfMemoryError("full")
            return make(*args)

        w = tritorch.ones(2, 3, requires_grad=True)
        w.grad = tritorch.full((2, 3), 0.5)
        optimizer = getattr(tritorch.optim, name)([w], lr=0.1)
        if left is not None:
            with monkeypatch.context() as patch, pytest.raises(tritorch.OutOfMemoryError):
                patch.setattr(module, function, first_ones)
                optimizer.step()
        optimizer.step()
        return w.tolist()

    assert trained(iter([1])) == trained(None)


def test_state_is_freed():
    gc.disable()
    try:
        w = tritorch.ones(10, requires_grad=True)
        optimizer = tritorch.optim.AdamW([w])
        w.grad = tritorch.ones(10)
        optimizer.step()
        moment = weakref.ref(optimizer.state[w]["exp_avg"])
        del optimizer
        assert moment() is None
    finally:
        gc.enable()


# ------------------------------------------------------------------ the base class
def test_state_moves_to_the_parameters(cuda):
    w = tritorch.ones(3, requires_grad=True)
    w.grad = tritorch.ones(3)
    source = tritorch.optim.Adam([w])
    source.step()
    there = tritorch.ones(3, device=cuda, dtype=tritorch.bfloat16, requires_grad=True)
    for options, place in (({}, "cpu"), ({"capturable": True}, "cuda")):
        source.param_groups[0].update(options)
        target = tritorch.optim.Adam([there], **options)
        target.load_state_dict(source.state_dict())
        state = target.state[there]
        assert state["exp_avg"].device is cuda and state["exp_avg"].dtype is tritorch.bfloat16
        assert state["step"].device.type == place and state["step"].dtype is tritorch.float32 and state["step"].item() == 1


@pytest.mark.parametrize(("cls", "options"), METHODS, ids=IDS)
def test_state_goes_to_torch_and_back(cls, options):
    torch = pytest.importorskip("torch")

    def converted(x, module):
        if isinstance(x, (tritorch.Tensor, torch.Tensor)):
            return module.tensor(x.detach().numpy().copy())
        if isinstance(x, dict):
            return {key: converted(value, module) for key, value in x.items()}
        return type(x)([converted(value, module) for value in x]) if isinstance(x, (list, tuple)) else x

    sides = [start(module, cls, options) for module in (tritorch, torch)]
    for k in range(12):
        for _, _, step in sides:
            step(k)
        if k in (2, 6):
            ours, theirs = [optimizer.state_dict() for _, optimizer, _ in sides]
            assert {n: set(s) for n, s in ours["state"].items()} == {n: set(s) for n, s in theirs["state"].items()}
            assert [set(g) for g in ours["param_groups"]] == [set(g) for g in theirs["param_groups"]]
            sides[0][1].load_state_dict(converted(theirs, tritorch))
            sides[1][1].load_state_dict(converted(ours, torch))
    assert_near(*[[p.detach().double().numpy() for p in params] for params, _, _ in sides], 0.02 if cls == "Muon" else 3e-6)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_state_of_another_dtype_is_refused_and_can_be_converted(cuda, device):
    """A model that changes its dtype after some steps leaves the optimizer's state as it was; a kernel would take it for the new dtype."""
    p = tritorch.nn.Parameter(tritorch.linspace(1, 2, 8, device=device))
    optimizer = tritorch.optim.Adam([p], lr=0.25)
    p.grad = tritorch.ones(8, device=device)
    optimizer.step()
    p.data, p.grad = p.data.half(), None
    p.grad = tritorch.ones(8, device=device).half()
    before = p.tolist()
    with pytest.raises(RuntimeError, match=r"with its dtype and shape, got tritorch.float16.* and tritorch.float32"):
        optimizer.step()
    assert p.tolist() == before
    optimizer.load_state_dict(optimizer.state_dict())
    optimizer.step()
    np.testing.assert_allclose(p.tolist(), np.linspace(1, 2, 8) - 0.5, rtol=1e-2)


def test_checkpoints_that_count_in_numbers(cuda):
    """As those of PyTorch before 1.12 did."""
    for options, place in ((dict(), "cpu"), (dict(capturable=True), cuda)):
        p = tritorch.nn.Parameter(tritorch.ones(3, device=place))
        optimizer = tritorch.optim.Adam([p], **options)
        p.grad = tritorch.ones(3, device=place)
        optimizer.step()
        saved = optimizer.state_dict()
        optimizer.load_state_dict({**saved, "state": {0: {**saved["state"][0], "step": 5}}})
        optimizer.step()
        assert optimizer.state[p]["step"].item() == 6 and optimizer.state[p]["step"].device == tritorch.device(place)


def test_construction_and_its_errors():
    w, b = tritorch.ones(2, requires_grad=True), tritorch.ones(1, requires_grad=True)
    SGD = tritorch.optim.SGD
    for make, error in [
        (lambda: SGD(w), TypeError), (lambda: SGD([]), ValueError), (lambda: SGD([1.0]), TypeError), (lambda: SGD([w * 2]), ValueError),
        (lambda: SGD([{"params": w}, {"params": w}]), ValueError), (lambda: SGD([{"params": {w, b}}]), TypeError),
        (lambda: SGD([w], lr=-1.0), ValueError), (lambda: SGD([w], nesterov=True), ValueError),
        (lambda: SGD([("w", w), b]), ValueError), (lambda: SGD([{"params": [("w", w)]}, {"params": [b]}]), ValueError),
        (lambda: SGD([w]).add_param_group([b]), TypeError), (lambda: tritorch.optim.Adam([w], betas=(1.0, 0.9)), ValueError),
        (lambda: tritorch.optim.Adam([w], foreach=True, fused=True), RuntimeError), (lambda: tritorch.optim.Muon([b]), ValueError),
        (lambda: tritorch.optim.Adam([w], lr=float("nan")), ValueError), (lambda: SGD([w], lr=tritorch.ones(2)), ValueError),
        (lambda: tritorch.optim.Adadelta([w], rho=1.1), ValueError),
        (lambda: SGD([w]).load_state_dict(SGD([w, b]).state_dict()), ValueError),
        (lambda: SGD([w]).load_state_dict(SGD([{"params": w}, {"params": b}]).state_dict()), ValueError),
        (lambda: tritorch.optim.Optimizer([w], {}).step(), NotImplementedError),
    ]:
        with pytest.raises(error):
            make()
    with pytest.warns(UserWarning, match="a parameter stands twice in one group of the optimizer"):
        SGD([w, w])
    assert tritorch.optim.Adadelta([w], rho=1.0).defaults["rho"] == 1.0
    named = SGD([("w", w), ("b", b)])
    assert named.param_groups[0]["param_names"] == ["w", "b"] and named.param_groups[0]["params"] == [w, b]
    assert "lr: 0.001" in repr(named) and repr(named).startswith("SGD (\nParameter Group 0\n")
    assert list(named.state_dict()["param_groups"][0])[::len(named.param_groups[0]) - 1] == ["param_names", "params"]      # PyTorch's order
    grouped = repr(SGD([{"params": w}, {"params": b, "lr": 1.0}]))
    assert "\n    weight_decay: 0\n\nParameter Group 1\n" in grouped and grouped.endswith("    weight_decay: 0\n)")


def test_zero_grad():
    w = tritorch.ones(2, requires_grad=True)
    optimizer = tritorch.optim.SGD([w])
    (w * w).sum().backward()
    held = w.grad
    optimizer.zero_grad(set_to_none=False)
    assert w.grad.tolist() == [0, 0] and held.tolist() == [0, 0]
    optimizer.zero_grad()
    assert w.grad is None


def test_closure_and_hooks():
    w, seen = tritorch.ones(2, requires_grad=True), []
    optimizer = tritorch.optim.SGD([w], lr=0.5)
    handles = [optimizer.register_step_pre_hook(lambda o, a, k: seen.append("pre")),
               optimizer.register_step_post_hook(lambda o, a, k: seen.append("post")),
               optimizer.register_state_dict_post_hook(lambda o, d: {**d, "more": 1}),
               optimizer.register_load_state_dict_pre_hook(lambda o, d: seen.append("load"))]

    def closure():
        optimizer.zero_grad()
        loss = (w * w).sum()
        loss.backward()
        seen.append("closure")
        return loss

    assert optimizer.step(closure).item() == 2 and w.tolist() == [0, 0]
    state = optimizer.state_dict()
    assert state.pop("more") == 1
    optimizer.load_state_dict(state)
    assert seen == ["pre", "closure", "post", "load"]
    for handle in handles:
        handle.remove()
    optimizer.step()
    assert len(seen) == 4


def test_copies_and_user_optimizers():
    w = tritorch.ones(2, requires_grad=True)
    w.grad = tritorch.ones(2)

    class Sign(tritorch.optim.Optimizer):
        def __init__(self, params, lr):
            super().__init__(params, {"lr": lr})

        @tritorch.no_grad()
        def step(self, closure=None):
            for group in self.param_groups:
                for p in group["params"]:
                    p.add_(p.grad.sign(), alpha=-group["lr"])

    Sign([w], 0.25).step()
    assert w.tolist() == [0.75, 0.75]
    twin = copy.deepcopy(tritorch.optim.AdamW([w], lr=0.1))
    p = twin.param_groups[0]["params"][0]
    assert p is not w
    p.grad = tritorch.ones(2)
    twin.step()
    assert w.tolist() == [0.75, 0.75] and p.tolist() != [0.75, 0.75]


@pytest.mark.parametrize(("search", "options"), [(None, {}), ("strong_wolfe", {}), ("strong_wolfe", {"history_size": 3, "max_iter": 7})])
def test_lbfgs_is_that_of_torch(search, options):
    torch = pytest.importorskip("torch")
    found = []
    for module in (tritorch, torch):
        w = module.tensor([-1.2, 1.0, 0.3], dtype=module.float64, requires_grad=True)
        optimizer = module.optim.LBFGS([w], lr=1 if search else 0.1, line_search_fn=search, **options)
        evaluations = []

        def closure(module=module, w=w, optimizer=optimizer, evaluations=evaluations):
            optimizer.zero_grad()
            loss = (100 * (w[1:] - w[:-1] ** 2) ** 2).sum() + ((1 - w) ** 2).sum()
            loss.backward()
            evaluations.append(loss.item())
            return loss

        for _ in range(4):
            optimizer.step(closure)
        found.append((w.detach().numpy(), evaluations))
    (ours, mine), (theirs, yours) = found
    assert len(mine) == len(yours)
    np.testing.assert_allclose(ours, theirs, rtol=1e-4)


def test_step_hooks_find_the_optimizer_among_the_arguments():
    """As in PyTorch, and what a hook returns has it there, too."""
    weight, seen = tritorch.zeros(2, requires_grad=True), []
    optimizer = tritorch.optim.SGD([weight], lr=0.1)
    optimizer.register_step_pre_hook(lambda o, args, kwargs: (args, {"closure": lambda: seen.append("closure")}))
    optimizer.register_step_post_hook(lambda o, args, kwargs: seen.append((args == (o,), sorted(kwargs))))
    optimizer.step()
    assert seen == ["closure", (True, ["closure"])]


def test_an_optimizer_around_another_may_skip_init():
    """As in PyTorch: what looks ahead, accumulates or shards takes over the groups of the optimizer that it wraps."""
    class Wrapped(tritorch.optim.Optimizer):
        def __init__(self, base):
            self.base, self.param_groups, self.defaults, self.state = base, base.param_groups, base.defaults, base.state

        def step(self, closure=None):
            return self.base.step(closure)

    weight, seen = tritorch.ones(2, requires_grad=True), []
    optimizer = Wrapped(tritorch.optim.SGD([weight], lr=0.5))
    optimizer.register_step_post_hook(lambda o, args, kwargs: seen.append(o))
    weight.sum().backward()
    optimizer.step()
    optimizer.load_state_dict(optimizer.state_dict())
    assert weight.tolist() == [0.5, 0.5] and seen == [optimizer]
