"""Gradients of several backward passes: products add to `.grad` as they are stored, wherever nobody can tell that from an addition."""
import numpy as np
import pytest
from calls import Calls
from test_compile import captured

import tritorch as torch
from tritorch import nn
from tritorch.nn import functional as F
from tritorch.ops.linear import linear_gradients


@pytest.fixture(params=["cpu", "cuda"])
def device(request, cuda):
    return "cpu" if request.param == "cpu" else cuda


def draw(*shape, seed=0):
    return torch.from_numpy(np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32))


def parameters(device, *shapes, dtype=torch.float32):
    return [draw(*shape, seed=k).to(device, dtype).requires_grad_() for k, shape in enumerate(shapes)]


LAYERS = {
    "matmul": (lambda x, w: x @ w, [(5, 7)]),
    "batches": (lambda x, w: x.view(2, 3, 5) @ w, [(2, 5, 4)]),
    "addmm": (lambda x, b, w: torch.addmm(b, x, w, alpha=0.5), [(7,), (5, 7)]),
    "linear": (lambda x, w: F.linear(x, w), [(7, 5)]),
    "linear with bias": (lambda x, w, b: F.linear(x, w, b), [(7, 5), (7,)]),
    "feed_forward": (lambda x, *ws: F.feed_forward(x, *ws, "gelu"), [(9, 5), (9,), (4, 9), (4,)]),
    "the same twice": (lambda x, w: F.linear(F.linear(x, w), w), [(5, 5)]),
    "embedding": (lambda x, w: F.embedding(torch.tensor([[4, 0], [0, 0], [3, 4]], device=x.device), w), [(6, 5)]),
}


def passes(function, ws, count, dtype=torch.float32, device="cpu"):
    """Backward passes through the function at other inputs; what the last one ran, and the gradients of each by itself."""
    alone = []
    for k in range(count):
        x = draw(6, 5, seed=10 + k).to(device, dtype)
        out = function(x, *ws)
        weight = draw(*out.shape, seed=20 + k).to(device, out.dtype)
        alone.append(torch.autograd.grad(function(x, *ws), ws, weight))
        with Calls() as calls:
            out.backward(weight)
    return alone, calls.names


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_sum_of_all_passes(layer, dtype, device):
    function, shapes = LAYERS[layer]
    ws = parameters(device, *shapes, dtype=dtype)
    alone, names = passes(function, ws, 3, dtype, device)
    for w, parts in zip(ws, zip(*alone)):
        want = sum(p.cpu().double().numpy() for p in parts)
        size = sum(np.abs(p.cpu().double().numpy()) for p in parts) + 1
        error = np.abs(w.grad.cpu().double().numpy() - want) / size
        assert error.max() <= (1e-6 if dtype is torch.float32 else 2 ** -7)
    assert layer == "addmm" or not {"add", "copy_to"} & set(names), names        # the bias of addmm is no product


@pytest.mark.parametrize("layer", [name for name in LAYERS if name != "the same twice"])
def test_float32_has_the_bits_of_an_addition(layer, device):
    function, shapes = LAYERS[layer]
    ws = parameters(device, *shapes)
    alone, _ = passes(function, ws, 3, device=device)
    for w, (first, second, third) in zip(ws, zip(*alone)):
        np.testing.assert_array_equal(w.grad.cpu(), (first + second + third).cpu())


def test_half_types_are_rounded_once(device):
    """The sum with what was there before, in float32, to bfloat16: not a bfloat16 product and then the sum."""
    (w, b), x = parameters(device, (7, 5), (7,), dtype=torch.bfloat16), draw(6, 5, seed=3).to(device, torch.bfloat16)
    g = draw(6, 7, seed=4).to(device, torch.bfloat16)
    w.grad, b.grad = [draw(*p.shape, seed=5).to(device, torch.bfloat16) for p in (w, b)]
    want = [w.grad.cpu().double().numpy() + g.cpu().double().numpy().T @ x.cpu().double().numpy(),
            b.grad.cpu().double().numpy() + g.cpu().double().numpy().sum(0)]
    F.linear(x, w, b).backward(g)
    for p, exact in zip((w, b), want):
        np.testing.assert_array_equal(p.grad.cpu().float(), torch.tensor(exact).bfloat16().float())


def test_it_is_the_same_gradient_written_once(device):
    w, b = parameters(device, (7, 5), (7,))
    passes(F.linear, (w, b), 1, device=device)
    before = [(p.grad, p.grad.data_ptr(), p.grad._version) for p in (w, b)]
    _, names = passes(F.linear, (w, b), 1, device=device)
    assert names == ["linear_gradients"]
    for p, (grad, address, version) in zip((w, b), before):
        assert p.grad is grad and grad.data_ptr() == address and grad._version == version + 1
    square = (w.grad * w.detach().clone().requires_grad_()).sum()        # saved, and written by the next pass
    passes(F.linear, (w, b), 1, device=device)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        square.backward()


def test_autocast_and_tied_weights(device):
    """One matrix that reads tokens and writes them: whoever comes second adds to what the first one left, in float32."""
    kind = torch.device(device).type
    (table,), tokens = parameters(device, (11, 5)), torch.tensor([[1, 2, 2, 9]], device=device)

    def loss():
        with torch.autocast(kind, torch.bfloat16):
            return F.cross_entropy(F.linear(F.embedding(tokens, table) * 1.5, table).flatten(0, 1), tokens.flatten())

    want = 3 * torch.autograd.grad(loss(), table)[0]
    for _ in range(3):
        with Calls() as calls:
            loss().backward()
        on_the_way_back = calls.names[calls.names.index("cross_entropy_backward"):]
        assert ("index_add" in on_the_way_back) and "add" not in on_the_way_back and ("addmm" in on_the_way_back)
    assert table.grad.dtype is torch.float32
    np.testing.assert_allclose(table.grad.cpu(), want.cpu(), rtol=2e-2, atol=2e-3)


# ------------------------------------------------------------------ where the engine has to do more than add
def plain_sum(w, b, x):
    """What two equal passes leave."""
    first = torch.autograd.grad(F.linear(x, w, b).square().sum(), (w, b))
    return [(2 * g).cpu().numpy() for g in first]


@pytest.mark.parametrize("who", ["hook", "after", "on the node", "anomaly", "asked for", "graph", "expanded", "no bias yet"])
def test_those_who_look_see_what_they_saw(who, device):
    (w, b), x, seen = parameters(device, (7, 5), (7,)), draw(6, 5, seed=3).to(device), []
    want = plain_sum(w, b, x)
    F.linear(x, w, b).square().sum().backward()
    if who == "hook":
        w.register_hook(lambda g: seen.append(g.cpu().numpy()))
    elif who == "after":
        b.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.cpu().numpy() / 2))
    elif who == "no bias yet":
        b.grad, want[1] = None, want[1] / 2
    out = F.linear(x, w, b)
    if who == "on the node":
        out.grad_fn.register_hook(lambda inputs, outputs: seen.extend(g.cpu().numpy() for g in inputs[1:]))
    if who == "asked for":
        out.square().sum().backward(inputs=[w])
        want[1] = want[1] / 2
    elif who == "anomaly":
        with torch.autograd.set_detect_anomaly(True):
            out.square().sum().backward()
    elif who == "expanded":
        kept, w.grad = w.grad, torch.zeros(1, device=device).expand(7, 5)
        with pytest.raises(RuntimeError, match="memory of their own"):
            out.square().sum().backward()
        w.grad = kept
        want = [g / 2 for g in want]
    else:
        with torch.enable_grad():
            out.square().sum().backward(create_graph=who == "graph")
    for p, g in zip((w, b), want):
        np.testing.assert_allclose(p.grad.detach().cpu(), g, rtol=1e-5, atol=1e-5)
    halves = {"hook": want[:1], "after": want[1:], "on the node": want}.get(who, [])
    assert len(seen) == len(halves)
    for got, g in zip(seen, halves):
        np.testing.assert_allclose(got, g / 2, rtol=1e-5, atol=1e-5)


def test_a_gradient_that_is_read_is_not_written_early(device):
    """Where `.grad` is itself what a gradient is made of: the input, the gradient of the output, what other rules read."""
    (w, v), x = parameters(device, (5, 5), (5, 5)), draw(5, 5, seed=3).to(device)
    start = draw(5, 5, seed=4).to(device)
    w.grad, v.grad = start.clone(), start.clone()
    s, one, two = [t.detach().cpu().double().numpy() for t in (start, w, v)]
    F.linear(w.grad, w).backward(x)
    np.testing.assert_allclose(w.grad.cpu(), s + x.cpu().double().numpy().T @ s, rtol=1e-5, atol=1e-5)
    w.grad = start.clone()
    F.linear(x, w).backward(w.grad)
    np.testing.assert_allclose(w.grad.cpu(), s + s.T @ x.cpu().double().numpy(), rtol=1e-5, atol=1e-5)
    w.grad = start.clone()
    F.feed_forward(v.grad, w, None, v, None, "relu").backward(x)
    hidden, g = np.maximum(s @ one.T, 0), x.cpu().double().numpy()
    np.testing.assert_allclose(w.grad.cpu(), s + ((g @ two) * (hidden > 0)).T @ s, rtol=1e-5, atol=1e-4)
    np.testing.assert_allclose(v.grad.cpu(), s + g.T @ hidden, rtol=1e-5, atol=1e-4)


def test_sums_in_any_layout(device):
    """`.grad` may lie in any way: turned, with gaps, beside others in one memory."""
    (w, b), x = parameters(device, (7, 5), (7,)), draw(6, 5, seed=3).to(device)
    want = plain_sum(w, b, x)
    both = torch.zeros(7, 12, device=device)
    for grads in ([torch.zeros(5, 7, device=device).mT, torch.zeros(14, device=device)[::2]], [both[:, 1:6], both[:, 7]]):
        w.grad, b.grad = grads
        for _ in range(2):
            F.linear(x, w, b).square().sum().backward()
        for p, g in zip((w, b), want):
            np.testing.assert_allclose(p.grad.cpu(), g, rtol=1e-5, atol=1e-5)
    assert both[:, 0].abs().max() == both[:, 8:].abs().max() == 0


# ------------------------------------------------------------------ on a device
def test_no_memory_for_a_second_gradient(cuda):
    layer, x = nn.Linear(512, 512, device=cuda), torch.randn(2, 512, device=cuda)
    layer(x).sum().backward()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    layer(x).sum().backward()
    assert torch.cuda.max_memory_allocated() - before < layer.weight.nbytes


def test_streams_that_meet(cuda):
    (w, b), x = parameters(cuda, (7, 5), (7,)), draw(6, 5, seed=3).to(cuda)
    want, side = plain_sum(w, b, x), torch.cuda.Stream()
    F.linear(x, w, b).square().sum().backward()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        loss = F.linear(x, w, b).square().sum()
    torch.cuda.current_stream().wait_stream(side)
    loss.backward()
    for p, g in zip((w, b), want):
        np.testing.assert_allclose(p.grad.cpu(), g, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("scaled", [False, True])
def test_captured_steps_that_accumulate_are_the_eager_ones(scaled, cuda):
    def train(compile):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Embedding(7, 8), nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 7, bias=False)).to(cuda)
        model[0].weight = nn.Parameter(torch.randn(7, 16, device=cuda))
        model[3].weight, model[1] = model[0].weight, nn.Linear(16, 16, device=cuda)
        optimizer, scaler = torch.optim.AdamW(model.parameters(), lr=0.01, capturable=True), torch.amp.GradScaler(enabled=scaled)

        def step(tokens):
            for piece in tokens.chunk(3):
                with torch.autocast("cuda", torch.float16):
                    loss = F.cross_entropy(model(piece), piece) / 3
                scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            return loss

        step = compile(step)
        losses = [step(torch.arange(k, k + 12, device=cuda) % 7).item() for k in range(7)]
        return step, losses, [p.detach().cpu().numpy() for p in model.parameters()]

    _, eager_losses, eager = train(lambda f: f)
    step, losses, weights = train(torch.compile)
    assert losses == eager_losses and captured(step) == 1
    for a, b in zip(weights, eager):
        np.testing.assert_array_equal(a, b)


def test_linear_gradients_of_sums_elsewhere(device):
    """Called by itself it leaves the sums so far as they are, and may write into one of them alone."""
    g, x, total, sums = [draw(*s, seed=k).to(device) for k, s in enumerate(((6, 7), (6, 5), (7, 5), (7,)))]
    want = [(total + g.mT @ x).cpu().numpy(), (sums + g.sum(0)).cpu().numpy()]
    kept = [t.clone() for t in (total, sums)]
    for k, outs in enumerate(([torch.empty_like(total), torch.empty_like(sums)], [total.clone(), sums], [total, sums])):
        given = (total, sums) if k != 1 else (kept[0], sums)
        linear_gradients.into(tuple(outs), g, x, None, *given)
        for out, expected in zip(outs, want):
            np.testing.assert_allclose(out.cpu(), expected, rtol=1e-6, atol=1e-5)
        sums.copy_(kept[1])
