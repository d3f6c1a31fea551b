"""Batch norm, a residual and the rectifier as one: the bits of three functions, the formula in float64, and compiled programs."""
import numpy as np
import pytest
from test_compile_fusion import replaced

import tritorch as torch
from tritorch import nn
from tritorch.nn import functional as F

RNG = np.random.default_rng()


def drawn(*shape, dtype=torch.float32, device="cpu", last=False):
    x = torch.tensor(RNG.standard_normal(shape).astype(np.float32)).to(device, dtype)
    return x.contiguous(memory_format=torch.channels_last) if last else x


def arrays(tensors):
    return [None if t is None else t.detach().cpu().float().numpy() for t in tensors]


def in_turn(x, mean, var, w, b, training, momentum=0.1, eps=1e-5, *, residual=None):
    y = F.batch_norm(x, mean, var, w, b, training, momentum, eps)
    return F.relu(y if residual is None else y + residual)


def outcome(function, x, residual, w, b, mean, var, training, g):
    """The result, the gradients of all that has one, and the running statistics."""
    x, residual, w, b = [None if t is None else t.detach().requires_grad_() for t in (x, residual, w, b)]
    mean, var = [None if t is None else t.clone() for t in (mean, var)]
    out = function(x, mean, var, w, b, training, 0.3, 1e-3, residual=residual)
    leaves = [t for t in (x, residual, w, b) if t is not None]
    return arrays([out, *torch.autograd.grad(out, leaves, g), mean, var])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("shape, last", [((5, 3), False), ((3, 5, 7), False), ((3, 5, 7, 9), False), ((3, 5, 7, 9), True)])
@pytest.mark.parametrize("training", [True, False])
def test_the_same_bits_as_three_functions(dtype, shape, last, training, cuda):
    c = shape[1]
    for joins in (False, True):
        for affine in (True, False):
            x, g, r = [drawn(*shape, dtype=dtype, device=cuda, last=last) for _ in range(3)]
            w, b = [drawn(c, device=cuda) if affine else None for _ in range(2)]
            mean, var = (drawn(c, device=cuda), drawn(c, device=cuda).abs() + 0.5) if affine or not training else (None, None)
            args = x, r if joins else None, w, b, mean, var, training, g
            for got, want in zip(outcome(F.batch_norm_relu, *args), outcome(in_turn, *args), strict=True):
                np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("joins", [False, True])
def test_the_formula_in_float64(joins, cuda):
    """Layouts of all kinds: gaps, an expanded gradient, a residual in another order."""
    x = drawn(4, 6, 5, 14, device=cuda)[:, ::2, :, 1::2]
    r = drawn(4, 5, 7, 3, device=cuda).permute(0, 3, 1, 2) if joins else None
    w, b, g = drawn(3, device=cuda), drawn(3, device=cuda), drawn(4, 3, 1, 1, device=cuda).expand(4, 3, 5, 7)
    got = outcome(F.batch_norm_relu, x, r, w, b, None, None, True, g)
    want = outcome(in_turn, *[t if t is None else t.cpu().double() for t in (x, r, w, b)], None, None, True, g.cpu().double())
    for a, expect in zip(got[:-2], want):
        np.testing.assert_allclose(a, expect, rtol=1e-4, atol=1e-4)


def test_nan_and_infinity_go_through(cuda):
    x = drawn(4, 2, 3)
    x[1, 0, 2], x[2, 1, 0] = float("nan"), float("inf")
    for place in ("cpu", cuda):
        for r in (None, drawn(4, 2, 3, device=place)):
            args = x.to(place), r, None, None, None, None, True, drawn(4, 2, 3, device=place)
            for got, want in zip(outcome(F.batch_norm_relu, *args), outcome(in_turn, *args)):
                np.testing.assert_array_equal(got, want)


# ------------------------------------------------------------------ compiled programs
class Block(nn.Module):
    """A basic block of torchvision's ResNet, with or without a layer on the shortcut."""

    def __init__(self, channels, out, inplace=True, **norm):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(channels, out, 3, padding=1, bias=False), nn.BatchNorm2d(out, **norm)
        self.conv2, self.bn2 = nn.Conv2d(out, out, 1, bias=False), nn.BatchNorm2d(out, **norm)
        self.relu, self.inplace = nn.ReLU(inplace=inplace), inplace
        self.downsample = None if channels == out else nn.Sequential(nn.Conv2d(channels, out, 1), nn.BatchNorm2d(out, **norm))

    def forward(self, x):
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        shortcut = x if self.downsample is None else self.downsample(x)
        if self.inplace:
            out += shortcut
        else:
            out = shortcut + out
        return self.relu(out)


def net(inplace=True, **norm):
    first = nn.Sequential(nn.Conv2d(1, 3, 1), nn.BatchNorm2d(3, **norm), nn.ReLU(inplace=inplace))
    return nn.Sequential(first, Block(3, 4, inplace, **norm), Block(4, 4, inplace, **norm))


def trained(compile, device, dtype, evaluating=False, inplace=True, **norm):
    torch.manual_seed(0)
    model = net(inplace, **norm).to(device, dtype)
    if evaluating:
        model.eval()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    images = torch.randn(5, 1, 4, 3, device=device).to(dtype)

    @compile
    def step(x):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    losses = [step(images + k) for k in range(6)]
    return step, arrays([*losses, *model.state_dict().values()])


def names(joint=3):
    return {"batch_norm + relu": 3, "batch_norm + add + relu": 2, "gradient of batch_norm + relu": joint,
            "gradient of batch_norm + add + relu": 5 - joint}


@pytest.mark.parametrize("dtype, options", [(torch.bfloat16, dict()), (torch.float32, dict(inplace=False)),
                                            (torch.float32, dict(track_running_stats=False)), (torch.bfloat16, dict(affine=False)),
                                            (torch.bfloat16, dict(evaluating=True, inplace=False))])
def test_a_net_changes_no_bit(dtype, options, cuda):
    step, compiled = trained(torch.compile, cuda, dtype, **options)
    found = {name: n for name, n in replaced(step).items() if "batch_norm" in name}
    assert found == names()
    _, eager = trained(lambda f: f, cuda, dtype, **options)
    for a, b in zip(compiled, eager, strict=True):
        np.testing.assert_array_equal(a, b)


def test_the_average_of_all_batches_stays_eager(cuda):
    """momentum=None reads the count of batches on the host."""
    with pytest.warns(UserWarning, match="runs eagerly"):
        _, compiled = trained(torch.compile, cuda, torch.float32, momentum=None)
    for a, b in zip(compiled, trained(lambda f: f, cuda, torch.float32, momentum=None)[1], strict=True):
        np.testing.assert_array_equal(a, b)


@torch.no_grad()
def test_inference(cuda):
    model = net().to(cuda).eval()
    step, x = torch.compile(model.forward), torch.randn(2, 1, 4, 3, device=cuda)
    for _ in range(5):
        np.testing.assert_array_equal(step(x).cpu(), model(x).cpu())
    assert replaced(step) == {"batch_norm + relu": 3, "batch_norm + add + relu": 2}


@torch.no_grad()
def test_what_somebody_else_reads_is_not_left_out(cuda):
    norm, x = nn.BatchNorm1d(3).to(cuda), torch.randn(5, 3, device=cuda)

    def norm_too(x):
        y = norm(x)
        return F.relu(y), y + 1

    def view_first(x):
        y = norm(x)
        return F.relu(y[1:]), y * 1

    def input_written(x):
        x = x + 0
        y = norm(x)
        x.mul_(2)
        return F.relu(y), x

    def another_dtype(x):
        return [F.relu(norm(x) + x.double())]

    def twice(x):
        y = norm(x)
        return [F.relu(y + y)]

    for function in norm_too, view_first, input_written, another_dtype, twice:
        norm.reset_running_stats()
        step = torch.compile(function)
        got = [arrays(step(x)) for _ in range(5)]
        assert replaced(step) == {}
        norm.reset_running_stats()
        want = [arrays(function(x)) for _ in range(5)]
        for a, b in zip(sum(got, []), sum(want, []), strict=True):
            np.testing.assert_array_equal(a, b)


@torch.no_grad()
@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize("where", ["norm", "sum", "end"])
@pytest.mark.parametrize("other", [3, 4])
def test_a_call_that_goes_otherwise_is_made_up_for(inplace, where, other, cuda):
    """In the call that tries the replacement, or in the one that is captured, a value is read that none before read."""
    norm, calls, seen = nn.BatchNorm1d(3).to(cuda), [], []
    x, r = torch.randn(5, 3, device=cuda), torch.randn(5, 3, device=cuda)

    def function(x, r):
        calls.append(None)

        def look(at, value):
            if at == where and len(calls) == other:
                seen.append(value.tolist())

        y = norm(x)
        look("norm", y)
        s = y.add_(r) if inplace else y + r
        look("sum", s)
        out = F.relu(s, inplace=inplace)
        del y, s
        look("end", out)
        return out

    step = torch.compile(function)
    with pytest.warns(UserWarning, match="tolist at"):
        got = arrays([step(x, r) for _ in range(5)])
    y = F.batch_norm(x, None, None, norm.weight, norm.bias, True)
    for out in got:
        np.testing.assert_array_equal(out, F.relu(y + r).cpu())
    np.testing.assert_array_equal(seen.pop(), {"norm": y, "sum": y + r, "end": F.relu(y + r)}[where].tolist())


@torch.no_grad()
@pytest.mark.parametrize("inplace", [False, True])
def test_a_sum_that_is_kept_for_once_is_made_from_its_beginning(inplace, cuda):
    """Norm and sum are both left out; the call that keeps the sum gets it from the input."""
    norm, x, calls, kept = nn.BatchNorm1d(3).to(cuda).eval(), torch.randn(5, 3, device=cuda), [], {"s": None}

    def function(x):
        calls.append(None)
        s = norm(x).add_(x) if inplace else norm(x) + x
        out = F.relu(s)
        if len(calls) > 3:
            kept["s"] = s
        del s
        return (out + 1) * 2

    step, want = torch.compile(function), norm(x) + x
    for _ in range(5):
        np.testing.assert_array_equal(step(x).cpu(), ((F.relu(want) + 1) * 2).cpu())
    np.testing.assert_array_equal(kept["s"].cpu(), want.cpu())
