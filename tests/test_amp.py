"""autocast: torch's dtypes, weights cast once, gradients in the dtypes of their operators. GradScaler: torch's numbers."""
import numpy as np
import pytest
from calls import Calls

import tritorch
from tritorch import nn
from tritorch.amp import GradScaler, autocast, custom_bwd, custom_fwd

CALLS = dict(line.strip().split(": ", 1) for line in """
    softmax: x.softmax(0)
    log_softmax: x.log_softmax(0)
    cross_entropy: F.cross_entropy(x, k)
    nll: F.nll_loss(x, k)
    mse: F.mse_loss(x, x)
    l1: F.l1_loss(x, x)
    kl: F.kl_div(x, x, reduction="sum")
    smooth: F.smooth_l1_loss(x, target=x)
    huber: F.huber_loss(x, x)
    bce logits: F.binary_cross_entropy_with_logits(x, x)
    triplet: F.triplet_margin_loss(x, x, x)
    margin: F.multi_margin_loss(x, k)
    layer_norm: F.layer_norm(x, (4,))
    exp: x.exp()
    log: x.log()
    pow: x ** 2
    sum: x.sum()
    prod: x.prod()
    cumsum: x.cumsum(0)
    norm: x.norm()
    mean: x.mean()
    matmul: f @ f
    linear: F.linear(f, f, f[0])
    mixed: F.linear(x, f)
    dot: f[0] @ f[0]
    addmm: t.addmm(f, f, f)
    einsum: t.einsum("ij,jk", f, f)
    attention: F.scaled_dot_product_attention(f[None], f[None], f[None])
    conv: F.conv1d(f[None], f[:, :, None])
    cat: t.cat([x, f])
    add: x + f
    atan2: t.atan2(x, f)
    gelu: F.gelu(x)
    double: f.double() @ f.double()
    integers: k.sum()
    in place: f.addmm_(f.clone(), f.clone())
""".strip().splitlines())                                       # of world t: x in bfloat16, f in float32, k integers
ON_CUDA = {"softmax", "log_softmax", "layer_norm", "exp", "log", "pow", "sum", "cumsum", "norm"}       # float32 there, untouched on the CPU


def dtypes(world, F, device="cpu"):
    values = world.tensor(np.random.default_rng(0).random((4, 4)).astype("f4")).to(device)
    x, k = values.to(world.bfloat16), world.arange(4).to(device)
    with world.autocast(device if device == "cpu" else "cuda", world.bfloat16):
        return {name: str(eval(call, {"t": world, "F": F, "x": x, "f": values.clone(), "k": k}).dtype).split(".")[-1]
                for name, call in CALLS.items()}


def test_dtypes_on_the_cpu_are_those_of_torch():
    torch = pytest.importorskip("torch")
    assert dtypes(tritorch, nn.functional) == dtypes(torch, torch.nn.functional)


def test_dtypes_on_cuda(cuda):
    here, there = dtypes(tritorch, nn.functional), dtypes(tritorch, nn.functional, cuda)
    assert there == {**here, **dict.fromkeys(ON_CUDA, "float32")}


def test_weights_are_cast_once():
    weight, x = tritorch.ones(3, 3, requires_grad=True), tritorch.ones(2, 3)
    with Calls() as seen, autocast("cpu"):
        x @ weight @ weight
        with tritorch.no_grad():
            x @ weight                                                   # a cast without history would not do for the others
        loss = (x @ weight).sum()
        with autocast("cpu"):
            x @ weight
        with autocast("cpu", enabled=False):
            pass
        loss = loss + (x @ weight).sum() * 0
        assert seen.names.count("copy_to") == 7                          # five of x, two of the weight
        weight.detach().add_(1.0)
        assert (x @ weight)[0, 0].item() == 6                            # a weight that has changed is cast again
    loss.backward()
    assert weight.grad.dtype is tritorch.float32 and weight.grad.tolist() == [[2.0] * 3] * 3
    for options, casts in [({}, 2), ({}, 2), ({"cache_enabled": False}, 3)]:          # casts are kept until the outermost block ends
        with Calls() as seen, autocast("cpu", **options):
            x @ weight @ weight
        assert seen.names.count("copy_to") == casts


def test_nesting_and_state():
    x = tritorch.ones(2, 2)
    assert not tritorch.is_autocast_enabled("mps")                       # packages ask whatever device there might be
    assert not tritorch.is_autocast_enabled("cpu") and tritorch.get_autocast_dtype("cpu") is tritorch.bfloat16
    with autocast("cpu", tritorch.float16) as outer:
        assert tritorch.is_autocast_enabled("cpu") and not tritorch.is_autocast_enabled("cuda")
        assert tritorch.get_autocast_dtype("cpu") is tritorch.float16
        with autocast("cpu", enabled=False):
            assert (x @ x).dtype is tritorch.float32 and not tritorch.is_autocast_enabled("cpu")
            with autocast("cpu", tritorch.bfloat16):
                assert (x @ x).dtype is tritorch.bfloat16
        with outer, autocast("cpu"):
            assert (x @ x).dtype is tritorch.float16
        assert (x @ x).dtype is tritorch.float16
    assert (x @ x).dtype is tritorch.float32
    with pytest.raises(ValueError), autocast("cpu"):
        raise ValueError
    assert (x @ x).dtype is tritorch.float32


def test_decorator_that_calls_itself():
    @autocast("cpu")
    def power(x, n):
        return x if n == 0 else x @ power(x, n - 1)

    assert power(tritorch.ones(2, 2), 3).dtype is tritorch.bfloat16
    assert (tritorch.ones(2, 2) @ tritorch.ones(2, 2)).dtype is tritorch.float32


def test_backward_inside_runs_in_the_dtypes_of_forward():
    a = tritorch.ones(2, 2, requires_grad=True)
    y = a @ a
    with autocast("cpu"), Calls() as seen:
        y.sum().backward()
    assert "copy_to" not in seen.names and a.grad.dtype is tritorch.float32


def test_devices_apart(cuda):
    with autocast("cuda"):
        assert (tritorch.ones(2, 2) @ tritorch.ones(2, 2)).dtype is tritorch.float32
        assert (tritorch.ones(2, 2, device=cuda) @ tritorch.ones(2, 2, device=cuda)).dtype is tritorch.float16


def test_options_and_their_errors():
    with pytest.raises(ValueError):
        autocast(tritorch.device("cpu"))
    with pytest.raises(RuntimeError):
        autocast("tpu")
    with pytest.warns(UserWarning, match="disabled"), autocast("cpu", tritorch.float64):
        assert (tritorch.ones(2, 2) @ tritorch.ones(2, 2)).dtype is tritorch.float32
    tritorch.amp.set_autocast_dtype("cpu", tritorch.float16)
    try:
        with autocast("cpu"):
            assert (tritorch.ones(2, 2) @ tritorch.ones(2, 2)).dtype is tritorch.float16
    finally:
        tritorch.amp.set_autocast_dtype("cpu", tritorch.bfloat16)


def test_custom_function():
    seen, kinds = [], {}

    class Product(tritorch.autograd.Function):
        @staticmethod
        @custom_fwd(device_type="cpu")
        def forward(ctx, a, b):
            ctx.save_for_backward(a, b)
            return a @ b

        @staticmethod
        @custom_bwd(device_type="cpu")
        def backward(ctx, g):
            a, b = ctx.saved_tensors
            product = g @ b.t()
            seen.append(product.dtype)
            return product, a.t() @ g

    class Wide(tritorch.autograd.Function):
        @staticmethod
        @custom_fwd(device_type="cpu", cast_inputs=tritorch.float32)
        def forward(ctx, a, more=None):
            kinds.update((k, v.dtype) for k, v in (more or {}).items())
            return a @ a

        @staticmethod
        @custom_bwd(device_type="cpu")
        def backward(ctx, g):
            return g

    a = tritorch.ones(2, 2, requires_grad=True)
    with autocast("cpu"):
        y = Product.apply(a, a)
        more = {"k": tritorch.arange(2), "x": a.bfloat16(), "y": a.double()}
        assert Wide.apply(a.bfloat16(), more).dtype is tritorch.float32
        assert kinds == {"k": tritorch.int64, "x": tritorch.float32, "y": tritorch.float64}
    assert y.dtype is tritorch.bfloat16 and Wide.apply(a.bfloat16()).dtype is tritorch.bfloat16
    y.float().sum().backward()
    Product.apply(a, a).sum().backward()
    assert seen == [tritorch.bfloat16, tritorch.float32]


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_model_learns(cuda, device):
    place = cuda if device == "cuda" else "cpu"
    tritorch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 3)).to(place)
    x, target = tritorch.randn(16, 4).to(place), tritorch.arange(16).remainder(3).to(place)
    optimizer, scaler, losses = tritorch.optim.AdamW(model.parameters(), lr=0.05, fused=True), GradScaler(device), []
    for _ in range(8):
        with autocast(device):
            loss = nn.functional.cross_entropy(model(x), target)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
    assert losses[-1] < 0.8 * losses[0] and all(p.dtype is tritorch.float32 for p in model.parameters())


# ------------------------------------------------------------------ GradScaler
def scaled_run(world, device, fused=False):
    """20 steps whose gradients are sometimes infinite: (scales, trackers, weights)."""
    w = world.tensor([1.0, -2.0], device=device, requires_grad=True)
    optimizer = world.optim.Adam([w], lr=0.1, **({"fused": True} if fused else {}))
    scaler = world.amp.GradScaler("cuda" if device != "cpu" else "cpu", init_scale=1024.0, growth_interval=3)
    out = []
    for k in range(20):
        optimizer.zero_grad()
        bad = float("inf") if k in (4, 5) else float("nan") if k == 11 else 1.0
        scaler.scale((w * w * bad).sum()).backward()
        if k % 2:
            scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        out.append((scaler.get_scale(), scaler.state_dict()["_growth_tracker"], *w.detach().cpu().tolist()))
    return np.array(out)


@pytest.mark.parametrize("fused", [False, True])
def test_scaler_is_that_of_torch(cuda, fused):
    torch = pytest.importorskip("torch")
    want = scaled_run(torch, "cpu")
    for device in ("cpu", cuda):
        np.testing.assert_allclose(scaled_run(tritorch, device, fused), want, rtol=1e-6, atol=1e-6)


def test_fused_step_does_not_wait(cuda, monkeypatch):
    w = tritorch.ones(3, device=cuda, requires_grad=True)
    optimizer, scaler = tritorch.optim.AdamW([w], fused=True), GradScaler()
    scaler.scale((w * w).sum()).backward()
    optimizer.step()
    monkeypatch.setattr(tritorch.Tensor, "item", lambda self: pytest.fail("the host waits"))
    scaler.step(optimizer)
    scaler.update()


def test_scaler_saves_its_state():
    scaler, other = GradScaler("cpu", init_scale=8.0, growth_interval=2), GradScaler("cpu")
    w = tritorch.ones(1, requires_grad=True)
    optimizer = tritorch.optim.SGD([w], lr=0.1)
    scaler.scale(w.sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    assert scaler.state_dict()["_growth_tracker"] == 1
    other.load_state_dict(scaler.state_dict())
    assert other.state_dict() == scaler.state_dict()
    scaler.update(new_scale=4.0)
    assert scaler.get_scale() == 4


def test_scaler_errors_and_disabled():
    w = tritorch.ones(1, requires_grad=True)
    optimizer, scaler = tritorch.optim.SGD([w], lr=1.0), GradScaler("cpu")
    with pytest.raises(AssertionError):
        scaler.step(optimizer)
    scaler.scale(w.sum()).backward()
    with pytest.raises(AssertionError):
        scaler.update()
    with pytest.raises(RuntimeError):
        scaler.step(optimizer, closure=lambda: 0)
    scaler.unscale_(optimizer)
    with pytest.raises(RuntimeError):
        scaler.unscale_(optimizer)
    scaler.step(optimizer)
    with pytest.raises(RuntimeError):
        scaler.step(optimizer)
    half = tritorch.ones(1, dtype=tritorch.float16, requires_grad=True)
    half.grad = tritorch.ones(1, dtype=tritorch.float16)
    with pytest.raises(ValueError):
        scaler.unscale_(tritorch.optim.SGD([half]))
    idle = GradScaler("cpu", enabled=False)
    loss = w.sum()
    assert idle.scale(loss) is loss and idle.state_dict() == {} and idle.get_scale() == 1.0
    idle.unscale_(optimizer)
    idle.step(optimizer)
    idle.update()
    assert [x.item() for x in GradScaler("cpu", init_scale=2.0).scale([loss, loss])] == [2 * loss.item()] * 2


def test_older_names(cuda):
    from tritorch.cpu import amp as on_cpu
    from tritorch.cuda import amp as on_cuda

    x = tritorch.ones(2, 2)
    with on_cpu.autocast():
        assert (x @ x).dtype is tritorch.bfloat16
    with on_cuda.autocast(dtype=tritorch.bfloat16):
        assert (x.to(cuda) @ x.to(cuda)).dtype is tritorch.bfloat16
    assert on_cuda.GradScaler(8.0).get_scale() == on_cpu.GradScaler(8.0).get_scale() == 8.0
    assert tritorch.cuda.amp.custom_fwd is on_cuda.custom_fwd


LAYERS = {
    "linear": lambda F, x, w, b: F.linear(x, w, b).float(),
    "feed_forward": lambda F, x, w, b: F.feed_forward(x, w, b, w.T, b[:3], "relu").float(),
    "linear_activation": lambda F, x, w, b: tritorch.ops.feed_forward.linear_activation(x, w, b, "silu")[0].float(),
}


@pytest.mark.parametrize("name", LAYERS)
def test_biases_of_layers_stay_in_float32(name, cuda):
    """They are neither cast nor rounded, and their gradients are sums in float32 of gradients in bfloat16."""
    found = []
    for device in ("cpu", cuda):
        rng = np.random.default_rng(0)
        x, w, b = [tritorch.tensor(rng.standard_normal(s).astype("f4"), device=device).bfloat16().float() for s in ((64, 3), (5, 3), (5,))]
        b = b + 2**-12                                                   # gone in bfloat16
        for t in (w, b):
            t.requires_grad_()
        with Calls() as calls, autocast(x.device.type, tritorch.bfloat16):
            out = LAYERS[name](tritorch.nn.functional, x, w, b)
        assert calls.names.count("copy_to") == (4 if name == "feed_forward" else 3)         # x, w (and its transpose), the result
        with Calls() as calls:
            out.sum().backward()
        assert b.grad.dtype is tritorch.float32
        found.append([t.detach().cpu().numpy() for t in (out, w.grad, b.grad)])
        if name == "linear":
            assert (found[-1][2] == 64).all() and calls.names.count("copy_to") == 1         # the result's
            exact = x.cpu().numpy() @ w.detach().cpu().numpy().T + b.detach().cpu().numpy()
            np.testing.assert_array_equal(found[-1][0], tritorch.tensor(exact).bfloat16().float().numpy())
    for one, other in zip(*found):
        np.testing.assert_allclose(one, other, rtol=2e-2, atol=2e-2)


def test_biases_of_half_types_are_cast(cuda):
    for device in ("cpu", cuda):
        x, w = tritorch.ones(2, 3, device=device), tritorch.ones(4, 3, device=device)
        with autocast(x.device.type, tritorch.bfloat16):
            out = nn.functional.linear(x, w, tritorch.ones(4, device=device, dtype=tritorch.float16))
        assert out.dtype is tritorch.bfloat16 and (out == 4).all()
    with pytest.raises(RuntimeError, match="one dtype"):
        nn.functional.linear(x, w, tritorch.ones(4, device=x.device, dtype=tritorch.float16))
