"""Optimizers in CUDA graphs, and their state dicts, which PyTorch reads and writes too."""
import pickle

import numpy as np
import pytest
from optimizers import MULTI, assert_near, start
from test_compile import captured

import tritorch


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


@pytest.mark.parametrize("make", [lambda p: tritorch.optim.SGD(p, lr=1.0, momentum=0.5), lambda p: tritorch.optim.RMSprop(p, lr=0.1)])
def test_grad_scaler_with_every_optimizer_is_captured(cuda, make):
    def train(compile):
        weight = tritorch.nn.Parameter(tritorch.ones(2, device=cuda))
        optimizer, scaler = make([weight]), tritorch.amp.GradScaler("cuda", init_scale=4.0)

        @compile
        def step(x):
            optimizer.zero_grad()
            scaler.scale((weight * x).sum()).backward()
            scaler.step(optimizer)
            scaler.update()

        weight.grad = tritorch.zeros(2, device=cuda)
        optimizer.step()                                                 # what the host counted goes on on the device
        for k in range(7):
            step(tritorch.full((2,), float("inf") if k in (0, 5) else 1.0, device=cuda))
        if compile is tritorch.compile:
            assert captured(step) == 1
        return weight.tolist(), scaler.get_scale()

    assert train(tritorch.compile) == train(lambda f: f)


# ------------------------------------------------------------------ state dicts
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
