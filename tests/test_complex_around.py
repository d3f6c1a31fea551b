"""What surrounds complex numbers: how they are printed, drawn, spaced, stored, exchanged, checked, trained and captured."""
import copy
import io
import pickle
import warnings

import numpy as np
import pytest

import tritorch as torch
from tritorch import nn

PRINTED = (                                                              # as PyTorch writes them, its name aside
    ([1 + 2j, -3j], "tensor([1.+2.j, -0.-3.j])"), ([0.5 + 1j, 2], "tensor([0.5000+1.j, 2.0000+0.j])"),
    (1.25 - 1e-7j, "tensor(1.2500-1.0000e-07j)"),
    ([1e10 + 1j], "tensor([1.0000e+10+1.j])"), ([complex("nan+infj"), 1], "tensor([nan+infj, 1.+0.j])"),
    ([complex("nan-3j")] * 7, "tensor([nan-3.j, nan-3.j, nan-3.j, nan-3.j, nan-3.j, nan-3.j, nan-3.j])"),
    ([[1.5j, 2], [3, 4]], "tensor([[0.+1.5000j, 2.+0.0000j],\n        [3.+0.0000j, 4.+0.0000j]])"))


# ------------------------------------------------------------------ text and numbers
@pytest.mark.parametrize("values, text", PRINTED, ids=range(len(PRINTED)))
def test_printed_as_pytorch_does(values, text):
    assert repr(torch.tensor(values)) == text


def test_printed_with_dtype_and_history():
    x = torch.tensor([1j], dtype=torch.complex128, requires_grad=True)
    assert repr(x) == "tensor([0.+1.j], dtype=tritorch.complex128, requires_grad=True)"
    assert repr(torch.zeros(0, dtype=torch.complex64)) == "tensor([], dtype=tritorch.complex64)"
    assert repr(x * 1) == "tensor([0.+1.j], dtype=tritorch.complex128, grad_fn=<MulBackward0>)"
    assert repr(torch.arange(2000).cfloat()).replace("\n", "").replace(" ", "") == (
        "tensor([0.0000e+00+0.j,1.0000e+00+0.j,2.0000e+00+0.j,...,1.9970e+03+0.j,1.9980e+03+0.j,1.9990e+03+0.j])")
    assert f"{torch.tensor(1 + 2j):.2f}" == "1.00+2.00j" and torch.tensor([1j]).type() == "tritorch.ComplexFloatTensor"
    assert torch.ones(1).type("tritorch.ComplexDoubleTensor").dtype is torch.complex128


def test_spaces():
    assert torch.linspace(0, 1j, 5).tolist() == [0, 0.25j, 0.5j, 0.75j, 1j]
    assert torch.linspace(1 + 1j, 1, 1).tolist() == [1 + 1j] and torch.linspace(0, 2, 3, dtype=torch.complex128).tolist() == [0, 1, 2]
    assert np.allclose(torch.logspace(0, 1j, 3, dtype=torch.complex128), 10 ** np.array([0, 0.5j, 1j]))
    assert torch.full((2,), 1j).dtype is torch.complex64 and torch.eye(2, dtype=torch.complex64)[1, 1].item() == 1
    assert torch.linspace(0, 1j, 3, out=torch.empty(3, dtype=torch.complex64)).tolist() == [0, 0.5j, 1j]


@pytest.mark.parametrize("device", ("cpu", "simulated"))
def test_random_numbers(device, cuda):
    device, n = "cuda" if device == "simulated" else device, 5000
    generator = torch.Generator(device).manual_seed(0)
    z = torch.randn(n, dtype=torch.complex64, device=device, generator=generator).cpu().numpy()
    assert abs(z.real.var() - 0.5) < 0.05 and abs(z.imag.var() - 0.5) < 0.05 and abs((z.real * z.imag).mean()) < 0.04
    z = torch.empty(n, dtype=torch.complex128, device=device).normal_(3, 2, generator=generator).cpu().numpy()
    assert abs(z.mean() - (3 + 3j)) < 0.1 and abs(z.real.var() - 2) < 0.2
    z = torch.rand(n, dtype=torch.complex64, device=device, generator=generator).cpu().numpy()
    assert 0 <= z.real.min() and z.imag.max() < 1 and abs(z.mean() - (0.5 + 0.5j)) < 0.02
    mean = torch.full((n,), 1 - 2j, device=device)
    z = torch.normal(mean, torch.tensor(2.0, device=device), generator=generator).cpu().numpy()
    assert abs(z.mean() - (1 - 2j)) < 0.1 and abs(z.real.var() - 2) < 0.2
    assert torch.rand_like(mean).dtype is torch.complex64 and torch.normal(mean, 0.0).tolist() == mean.tolist()
    with pytest.raises(RuntimeError, match="real std"):
        torch.normal(mean, mean)


# ------------------------------------------------------------------ exchanged and stored
def test_files_keep_complex_tensors_and_shared_memory():
    x, y = torch.tensor([1 + 2j, 3j]), torch.tensor([[1j, 2]], dtype=torch.complex128)
    file = io.BytesIO()
    torch.save({"x": x, "im": x.imag, "y": y[:, 1:], "p": nn.Parameter(y), "n": 1 + 2j, "k": torch.complex64}, file)
    file.seek(0)
    got = torch.load(file)
    assert got["x"].equal(x) and got["y"].equal(y[:, 1:]) and got["p"].requires_grad and got["n"] == 1 + 2j and got["k"] is torch.complex64
    got["im"][0] = 7
    assert got["x"].tolist() == [1 + 7j, 3j]
    assert pickle.loads(pickle.dumps(y)).equal(y) and copy.deepcopy(x).equal(x)


def test_exchanged_with_numpy(cuda):
    for kind in (np.complex64, np.complex128):
        a = np.array([[1 + 2j, 3], [4j, 5]], kind).T
        x = torch.from_numpy(a)
        x[0] *= 2
        assert a[0, 0] == 2 + 4j and x.numpy() is not None and x.numpy().dtype == kind
        assert torch.from_dlpack(a).equal(x) and np.from_dlpack(x).tolist() == a.tolist() and torch.from_dlpack(x).equal(x)
        there = x.cuda()
        assert torch.from_dlpack(there).cpu().equal(x)
        assert there.__cuda_array_interface__["typestr"] == np.dtype(kind).str
        assert torch.as_tensor(there).cpu().equal(x)
    assert torch.utils.data.default_collate([np.complex64(1j), np.complex64(2)]).tolist() == [1j, 2]


# ------------------------------------------------------------------ derivatives
class Unconjugated(torch.autograd.Function):
    """A square whose gradient is the derivative, not its conjugate."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, g):
        x, = ctx.saved_tensors
        return g * 2 * x


def test_gradcheck_sees_what_is_not_conjugated():
    x = torch.tensor([1 + 2j, -0.5 + 0.1j], dtype=torch.complex128, requires_grad=True)
    r = torch.tensor([0.5, 2.0], dtype=torch.float64, requires_grad=True)
    for fast in (False, True):
        assert torch.autograd.gradcheck(lambda x, r: (x * r).conj() + r, (x, r), fast_mode=fast)
        assert torch.autograd.gradcheck(torch.abs, (x,), fast_mode=fast)
        assert torch.autograd.gradcheck(lambda r: r * 1j, (r,), fast_mode=fast)
        assert not torch.autograd.gradcheck(Unconjugated.apply, (x,), fast_mode=fast, raise_exception=False)
    assert torch.autograd.gradgradcheck(lambda x: x * x.conj() * x.abs(), (x,), check_fwd_over_rev=True)


def test_backward_asks_for_the_dtype_of_a_complex_output():
    x = torch.tensor([1 + 2j], requires_grad=True)
    for call in (lambda: (x * 2).backward(), lambda: (x * 2).backward(torch.ones(1)), lambda: x.abs().backward(torch.tensor([1j]))):
        with pytest.raises(RuntimeError, match="expected a gradient"):
            call()
    (x.abs() ** 2).backward()
    assert x.grad.tolist() == [2 + 4j]


def test_hessians_in_forward_mode():
    f, inputs = lambda a, b: (a ** 3 * b).sum(), (torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0]))
    forward = torch.autograd.functional.hessian(f, inputs, vectorize=True, outer_jacobian_strategy="forward-mode")
    backward = torch.autograd.functional.hessian(f, inputs)
    assert all(torch.equal(forward[j][k], backward[j][k]) for j in (0, 1) for k in (0, 1)) and forward[0][0].tolist() == [[18, 0], [0, 48]]
    assert not any(x.requires_grad for x in inputs)


def test_jacobians():
    r, c = torch.tensor([1.0, 2.0]), torch.tensor([1 + 1j, 2 - 1j])
    of = torch.autograd.functional.jacobian
    assert torch.allclose(of(lambda a: (a * a.conj()).real, c), torch.diag(2 * c.real) + 1j * torch.diag(2 * c.imag))
    assert of(lambda a: a * 1j, r, strategy="forward-mode", vectorize=True).tolist() == [[1j, 0], [0, 1j]]
    for call in (lambda: of(lambda a: a * 1j, r), lambda: torch.func.jacrev(lambda a: a * 1j)(r), lambda: torch.func.jacfwd(torch.abs)(c),
                 lambda: torch.func.jacrev(torch.abs)(c), lambda: torch.func.grad(lambda a: (a * 1j).sum())(r)):
        with pytest.raises(RuntimeError, match="real|expected a gradient"):
            call()
    assert torch.func.jvp(lambda a: a * a, (c,), (c,))[1].tolist() == (2 * c * c).tolist()


# ------------------------------------------------------------------ training
OPTIMIZERS = {"SGD": dict(lr=0.1, momentum=0.9, nesterov=True), "Adam": dict(lr=0.1, amsgrad=True, weight_decay=0.1), "AdamW": dict(lr=0.1),
              "NAdam": {}, "RAdam": {}, "Adamax": {}, "Adagrad": dict(lr=0.1), "Adadelta": {}, "RMSprop": dict(centered=True), "Rprop": {},
              "ASGD": {}, "LBFGS": dict(max_iter=3)}


@pytest.mark.parametrize("device", ("cpu", "simulated"))
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers_see_pairs_of_real_numbers(name, device, cuda):
    device = "cuda" if device == "simulated" else device
    start = torch.tensor([[1 + 2j, -1 - 0.5j], [0.3j, 2]], device=device)
    results = []
    for p in (nn.Parameter(start.clone()), nn.Parameter(torch.view_as_real(start).clone())):
        optimizer = getattr(torch.optim, name)([p], **OPTIMIZERS[name])

        def closure(p=p, optimizer=optimizer):
            optimizer.zero_grad()
            z = p if p.is_complex() else torch.view_as_complex(p)
            loss = ((z - (1 - 1j)).abs() ** 2).sum() + z.real.sum()
            loss.backward()
            return loss

        for _ in range(3):
            optimizer.step(closure)
        results.append(p.detach() if p.is_complex() else torch.view_as_complex(p.detach()))
    assert torch.allclose(*results) and not torch.allclose(results[0], start)


def test_optimizers_for_matrices_refuse():
    for name in ("Adafactor", "Muon"):
        p = nn.Parameter(torch.ones(2, 2, dtype=torch.complex64))
        p.grad = torch.ones_like(p)
        with pytest.raises(RuntimeError, match="real parameters"):
            getattr(torch.optim, name)([p]).step()


@pytest.mark.parametrize("order, want", ((2.0, 113 ** 0.5), (1.0, 15.0), (float("inf"), 10.0), (0.5, 39.79768)))
def test_gradients_are_clipped_by_their_moduli(order, want, cuda):
    for device in ("cpu", "cuda"):
        p, q = nn.Parameter(torch.tensor([3 + 4j, 1j], device=device)), nn.Parameter(torch.ones(1, device=device))
        p.grad, q.grad = torch.tensor([6 + 8j, -2j], device=device), torch.full((1,), 3.0, device=device)
        norm = nn.utils.clip_grad_norm_([p, q], 1.0, norm_type=order)
        assert abs(norm.item() - want) < 1e-3 and torch.allclose(p.grad.cpu(), torch.tensor([6 + 8j, -2j]) / want, atol=1e-5)


def test_modules():
    m = nn.Module()
    m.c, m.r = nn.Parameter(torch.ones(2, dtype=torch.complex64)), nn.Parameter(torch.ones(2))
    m.register_buffer("n", torch.ones(1, dtype=torch.int64))

    def kinds():
        return [x.dtype for x in (m.c, m.r, m.n)]

    assert m.double() is m and kinds() == [torch.complex64, torch.float64, torch.int64]
    with pytest.warns(UserWarning, match="complex"):
        m.to(torch.complex128)
    assert kinds() == [torch.complex128, torch.complex128, torch.int64]
    m.to(torch.float32)
    assert kinds() == [torch.float32, torch.float32, torch.int64]
    with pytest.raises(TypeError):
        m.to(torch.int32)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        m.half()


# ------------------------------------------------------------------ on a device
def test_a_compiled_step_trains_complex_parameters(cuda):
    def losses(compiled):
        p = nn.Parameter(torch.tensor([1 + 1j, -0.5 + 2j], device="cuda"))
        optimizer = torch.optim.AdamW([p], lr=0.1, capturable=True)

        def step(x):
            optimizer.zero_grad()
            loss = ((p * x).exp() - 1j).abs().square().sum()
            loss.backward()
            nn.utils.clip_grad_norm_([p], 5.0)
            optimizer.step()
            return loss

        step = torch.compile(step) if compiled else step
        return [step(torch.tensor([0.1 * k, 0.2j], device="cuda")).item() for k in range(5)]

    assert np.allclose(losses(True), losses(False)) and len(set(losses(True))) == 5


def test_a_graph_replays_complex_arithmetic(cuda):
    x = torch.tensor([1 + 2j, 3j], device="cuda")
    (x * 2j).exp()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = (x * 2j).exp() + x.abs()
    x.copy_(torch.tensor([0.5, 1j]))
    graph.replay()
    assert torch.allclose(y.cpu(), (torch.tensor([0.5, 1j]) * 2j).exp() + torch.tensor([0.5, 1.0]))


def test_autocast_leaves_complex_tensors_alone(cuda):
    x = torch.tensor([1 + 2j], device="cuda")
    with torch.autocast("cuda", dtype=torch.float16):
        assert {(x * x).dtype, (x + 1).dtype, x.exp().dtype, (x ** 2).dtype} == {torch.complex64}
    scaler, p = torch.amp.GradScaler("cuda", init_scale=8.0), nn.Parameter(x.clone())
    optimizer = torch.optim.SGD([p], lr=0.5)
    for factor, want, scale in ((1.0, 0, 8.0), (float("inf"), 0, 4.0)):
        optimizer.zero_grad()
        scaler.scale(((p.abs() ** 2) * factor).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        assert p.abs().item() == want and scaler.get_scale() == scale
