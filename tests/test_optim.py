"""Optimizers: torch's trajectories, CPU and GPU alike, state dicts, hooks, graph capture."""
import copy
import gc
import pickle
import weakref

import numpy as np
import pytest

import tritorch
from tritorch.ops import multitensor

SHAPES = [(3, 5), (7,), (), (17, 300), (0, 2)]
METHODS = [
    ("SGD", {"lr": 0.1}), ("SGD", {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.1}),
    ("SGD", {"lr": 0.1, "momentum": 0.9, "dampening": 0.3, "maximize": True}),
    ("SGD", {"momentum": 0.9, "nesterov": True, "weight_decay": 0.01}),
    ("Adam", {}), ("Adam", {"lr": 0.1, "weight_decay": 0.1, "amsgrad": True}), ("Adam", {"lr": 0.1, "betas": (0.0, 0.5), "maximize": True}),
    ("AdamW", {"lr": 0.05}), ("AdamW", {"lr": 0.05, "weight_decay": 0.2, "amsgrad": True, "maximize": True}),
    ("Adagrad", {}), ("Adagrad", {"lr": 0.1, "lr_decay": 0.1, "weight_decay": 0.1, "initial_accumulator_value": 0.3}),
    ("RMSprop", {}), ("RMSprop", {"momentum": 0.9}), ("RMSprop", {"momentum": 0.9, "centered": True, "weight_decay": 0.1}),
    ("RMSprop", {"centered": True, "maximize": True}),
    ("Adadelta", {}), ("Adadelta", {"lr": 0.3, "weight_decay": 0.1, "maximize": True}),
    ("Adamax", {}), ("Adamax", {"weight_decay": 0.1}), ("NAdam", {}), ("NAdam", {"weight_decay": 0.1, "decoupled_weight_decay": True}),
    ("RAdam", {}), ("RAdam", {"weight_decay": 0.1, "betas": (0.8, 0.9)}), ("RAdam", {"weight_decay": 0.1, "decoupled_weight_decay": True}),
    ("ASGD", {"t0": 5, "weight_decay": 0.1}), ("Rprop", {"maximize": True}),
    ("Adafactor", {"weight_decay": 0.1}), ("Adafactor", {"d": 2.0, "lr": 1.0}),
    ("Muon", {"lr": 0.1}), ("Muon", {"nesterov": False, "adjust_lr_fn": "match_rms_adamw"}),
]
IDS = [f"{cls} {options}" for cls, options in METHODS]
MULTI = [m for m in METHODS if m[0] not in ("Adafactor", "Muon")]
COUNTING = [m for m in MULTI if m[0] != "SGD"]


def start(module, cls, options, device="cpu", dtype="float32"):
    """Parameters and an optimizer; (parameters, optimizer, function that makes a step)."""
    rng, kind = np.random.default_rng(0), getattr(module, dtype)
    shapes = [s for s in SHAPES if 0 not in s and (len(s) == 2 or cls == "Adafactor")] if cls in ("Muon", "Adafactor") else SHAPES
    params = [module.tensor(rng.standard_normal(s).astype("f4")).to(device).to(kind).requires_grad_() for s in shapes]
    half = len(params) // 2
    optimizer = getattr(module.optim, cls)([{"params": params[:half]}, {"params": params[half:], "lr": 0.02}], **options)

    def step(k):
        for n, p in enumerate(params):
            g = module.tensor(rng.standard_normal(tuple(p.shape)).astype("f4")).to(device).to(kind)
            p.grad = None if k == 3 and n == 1 else g                    # the counts of steps come apart
        optimizer.step()

    return params, optimizer, step


def trajectory(*args, steps=20, **options):
    params, optimizer, step = start(*args, **options)
    for k in range(steps):
        step(k)
    return [p.detach().cpu().double().numpy() for p in params]


def assert_near(got, want, tol):
    for a, b in zip(got, want):
        np.testing.assert_allclose(a, b, rtol=tol, atol=tol)


@pytest.mark.parametrize(("cls", "options"), METHODS, ids=IDS)
def test_trajectory_is_that_of_torch(cls, options):
    torch = pytest.importorskip("torch")
    assert_near(trajectory(tritorch, cls, options), trajectory(torch, cls, options), 0.02 if cls == "Muon" else 3e-6)


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "float16"])
@pytest.mark.parametrize(("cls", "options"), MULTI, ids=IDS[:len(MULTI)])
def test_devices_agree(cuda, cls, options, dtype):
    tol = {"float32": 2e-6, "float64": 1e-14, "bfloat16": 0.02, "float16": 3e-3}[dtype]
    assert_near(trajectory(tritorch, cls, options, device=cuda, dtype=dtype), trajectory(tritorch, cls, options, dtype=dtype), tol)


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
    for k in range(2 * multitensor.KEPT):                                # gradients that move cannot fill the memory
        params[0].grad = tritorch.ones(SHAPES[0], device=cuda)
        keep = params[0].grad, tritorch.ones(k + 1, device=cuda)
        optimizer.step()
    assert len(multitensor._tables) <= multitensor.KEPT and keep


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


def test_one_launch_for_all(cuda, monkeypatch):
    launched = []
    monkeypatch.setattr(multitensor, "launch", lambda kernel, *args, **options: launched.append(kernel.__name__))
    params, optimizer, step = start(tritorch, "AdamW", {}, device=cuda)
    optimizer.param_groups[0]["params"] += optimizer.param_groups.pop()["params"]
    step(0)
    assert launched == ["update_kernel"]


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


# ------------------------------------------------------------------ graph capture
def test_captured_step_replays_as_eager(cuda):
    def build():
        tritorch.manual_seed(0)
        params = [tritorch.randn(n, device=cuda).requires_grad_() for n in (5, 300)]
        return params, tritorch.optim.AdamW(params, lr=tritorch.tensor(0.1, device=cuda), capturable=True, amsgrad=True)

    eager, graphed = build(), build()
    inputs = [tritorch.full((1,), 0.5 * k + 1, device=cuda) for k in range(5)]
    held = inputs[0].clone()

    def step(params, optimizer, x):
        optimizer.zero_grad()
        sum(((p * x) ** 2).sum() for p in params).backward()
        optimizer.step()

    for k in (0, 1):
        step(*eager, inputs[k])
        step(*graphed, inputs[k])
    recorded = tritorch.cuda.CUDAGraph()
    with tritorch.cuda.graph(recorded):
        step(*graphed, held)
    for k in (2, 3, 4):
        if k == 4:
            for _, optimizer in (eager, graphed):
                optimizer.param_groups[0]["lr"].fill_(0.01)
        step(*eager, inputs[k])
        held.copy_(inputs[k])
        recorded.replay()
    for a, b in zip(eager[0], graphed[0]):
        np.testing.assert_array_equal(a.detach().cpu().numpy(), b.detach().cpu().numpy())
    assert graphed[1].state[graphed[0][0]]["step"].item() == 5


@pytest.mark.parametrize(("cls", "options"), MULTI, ids=[f"{cls} {options}" for cls, options in MULTI])
def test_every_optimizer_is_captured(cuda, cls, options):
    """In a graph each one counts, and heeds what GradScaler found."""
    if cls != "SGD":
        options = {**options, "fused" if cls == "Adagrad" else "capturable": True}
    grads = [tritorch.full((5,), 0.3 * k - 1, device=cuda) for k in range(6)]

    def build():
        w = tritorch.linspace(-1, 1, 5, device=cuda).requires_grad_()
        w.grad = tritorch.empty(5, device=cuda)
        return w, getattr(tritorch.optim, cls)([w], **options)

    (eager, one), (graphed, other) = build(), build()
    found = tritorch.zeros((), device=cuda)
    for w, optimizer in ((eager, one), (graphed, other)):
        w.grad.copy_(grads[0])
        optimizer.step()
    recorded = tritorch.cuda.CUDAGraph()
    with tritorch.cuda.graph(recorded):
        other.found_inf = found
        other.step()
    for k in range(1, 6):
        graphed.grad.copy_(grads[k])
        found.fill_(float(k == 3))
        recorded.replay()
        if k != 3:
            eager.grad.copy_(grads[k])
            one.step()
    np.testing.assert_array_equal(graphed.detach().cpu().numpy(), eager.detach().cpu().numpy())
    assert cls == "SGD" or other.state[graphed]["step"].item() == 5


def test_capture_needs_capturable(cuda):
    w = tritorch.ones(3, device=cuda, requires_grad=True)
    w.grad = tritorch.ones(3, device=cuda)
    for optimizer in (tritorch.optim.Adam([w]), tritorch.optim.RAdam([w]), tritorch.optim.Adagrad([w]), tritorch.optim.Rprop([w])):
        optimizer.step()
        with pytest.raises(RuntimeError, match="captur"), tritorch.cuda.graph(tritorch.cuda.CUDAGraph()):
            optimizer.step()


# ------------------------------------------------------------------ the base class
def test_state_dict_round_trip():
    for cls, options in MULTI:
        params, optimizer, step = start(tritorch, cls, options)
        step(0)
        step(1)
        saved = pickle.loads(pickle.dumps(optimizer.state_dict()))
        assert [g["params"] for g in saved["param_groups"]] == [[0, 1], [2, 3, 4]]
        others, again, _ = start(tritorch, cls, options)
        for p, q in zip(others, params):
            p.detach().copy_(q.detach())
        again.load_state_dict(saved)
        for k in range(3):
            for p, q in zip(params, others):
                p.grad = tritorch.full(p.shape, k + 1.0)
                q.grad = p.grad.clone()
            optimizer.step()
            again.step()
        assert_near([p.detach().numpy() for p in others], [p.detach().numpy() for p in params], 0)


def test_state_dict_of_torch():
    torch = pytest.importorskip("torch")
    for cls, options in MULTI:
        theirs, opponent, step = start(torch, cls, options)
        step(0)
        ours, optimizer, _ = start(tritorch, cls, options)
        saved = opponent.state_dict()
        assert optimizer.state_dict()["param_groups"][0].keys() == saved["param_groups"][0].keys()
        saved["state"] = {k: {n: tritorch.from_numpy(v.numpy()) if isinstance(v, torch.Tensor) else v for n, v in s.items()}
                          for k, s in saved["state"].items()}
        optimizer.load_state_dict(saved)
        assert {k: list(s) for k, s in optimizer.state_dict()["state"].items()} == {k: list(s) for k, s in saved["state"].items()}
        for p, q in zip(ours, theirs):
            p.detach().copy_(tritorch.from_numpy(q.detach().numpy()))
            p.grad, q.grad = tritorch.ones(tuple(q.shape)), torch.ones(q.shape)
        optimizer.step()
        opponent.step()
        assert_near([p.detach().numpy() for p in ours], [q.detach().numpy() for q in theirs], 1e-6)
        back = optimizer.state_dict()                                    # and the other way
        back["state"] = {k: {n: torch.from_numpy(v.numpy().copy()) if isinstance(v, tritorch.Tensor) else v for n, v in s.items()}
                         for k, s in back["state"].items()}
        again = getattr(torch.optim, cls)([{"params": theirs[:2]}, {"params": theirs[2:]}], **options)
        again.load_state_dict(back)
        again.step()
        optimizer.step()
        assert_near([p.detach().numpy() for p in ours], [q.detach().numpy() for q in theirs], 2e-6)


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
        (lambda: tritorch.optim.Adam([w], lr=float("nan")), ValueError),
        (lambda: SGD([w]).load_state_dict(SGD([w, b]).state_dict()), ValueError),
        (lambda: SGD([w]).load_state_dict(SGD([{"params": w}, {"params": b}]).state_dict()), ValueError),
        (lambda: tritorch.optim.Optimizer([w], {}).step(), NotImplementedError),
    ]:
        with pytest.raises(error):
            make()
    with pytest.warns(UserWarning, match="duplicate"):
        SGD([w, w])
    named = SGD([("w", w), ("b", b)])
    assert named.param_groups[0]["param_names"] == ["w", "b"] and named.param_groups[0]["params"] == [w, b]
    assert "lr: 0.001" in repr(named) and repr(named).startswith("SGD (\nParameter Group 0\n")


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
