"""Places, histograms, ranges, segments, finite differences and held norms: against numpy, on both devices, with gradients."""
import warnings

import numpy as np
import pytest

import tritorch as torch

RNG = np.random.default_rng(0)
on_both = pytest.mark.parametrize("where", ["cpu", "simulated"])


def device_of(where, cuda):
    return torch.device("cpu") if where == "cpu" else cuda


@on_both
def test_nonzero_static(cuda, where):
    device = device_of(where, cuda)
    for values in (RNG.integers(0, 2, (4, 5)), RNG.integers(0, 2, 7), np.zeros((0, 3)), np.array([0.0, np.nan, 2.0])):
        x, places = torch.tensor(values, device=device), np.argwhere(values)
        for size in (0, 2, 30):
            want = np.concatenate([places, np.full((size, values.ndim), 9)])[:size] if size > len(places) else places[:size]
            assert torch.nonzero_static(x, size=size, fill_value=9).tolist() == want.tolist()
    assert torch.tensor(1, device=device).nonzero_static(size=2).shape == (2, 0)
    with pytest.raises(RuntimeError):
        torch.nonzero_static(x, size=-1)
    with pytest.raises(TypeError):
        torch.nonzero_static(x, size=1.5)


@on_both
@pytest.mark.parametrize("density", [False, True])
def test_histogramdd(cuda, where, density):
    device = device_of(where, cuda)
    points, weight = RNG.standard_normal((40, 3)), RNG.uniform(0, 2, 40)
    x, w = torch.tensor(points, device=device), torch.tensor(weight, device=device)
    for bins, span in ((3, None), ([2, 3, 4], None), ([2, 3, 4], [-1.0, 1.0, 0.0, 2.0, -2.0, 0.5])):
        hist, edges = torch.histogramdd(x, bins, range=span, weight=w, density=density)
        want, wanted = np.histogramdd(points, bins, None if span is None else np.reshape(span, (3, 2)), weights=weight, density=density)
        np.testing.assert_allclose(hist.cpu().numpy(), want, rtol=1e-12)
        for a, b in zip(edges, wanted, strict=True):
            np.testing.assert_allclose(a.cpu().numpy(), b, rtol=1e-12, atol=1e-14)
    cuts = [torch.tensor([-1.0, 0.0, 0.3, 1.0], device=device).double()] * 3
    want = np.histogramdd(points, [c.cpu().numpy() for c in cuts])[0]
    assert torch.histogramdd(x.reshape(4, 10, 3), cuts).hist.cpu().numpy().tolist() == want.tolist()
    for bad, kind in ((lambda: torch.histogramdd(x[:, 0], 2), RuntimeError), (lambda: torch.histogramdd(x.long(), 2), NotImplementedError),
                      (lambda: torch.histogramdd(x, [2, 2]), RuntimeError), (lambda: torch.histogramdd(x, [2, 0, 1]), RuntimeError),
                      (lambda: torch.histogramdd(x, 2, range=[0.0, 1.0]), RuntimeError),
                      (lambda: torch.histogramdd(x, 2, weight=w.float()), RuntimeError)):
        with pytest.raises(kind):
            bad()


def test_range():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert torch.range(1, 4).tolist() == [1, 2, 3, 4] and torch.range(4, 1, -1.5).tolist() == [4, 2.5, 1]
        assert torch.range(1, 4.9, dtype=torch.int32).tolist() == [1, 2, 3, 4] and torch.range(0, 1).dtype is torch.float32
        for bad in ((4, 1), (1, 4, 0), (0, float("inf"))):
            with pytest.raises(RuntimeError):
                torch.range(*bad)
    with pytest.warns(UserWarning, match="arange"):
        torch.range(0, 1)


def segments(data, reduce, lengths, initial):
    out, first = [], 0
    for n in lengths:
        part = [*data[first:first + n], *([] if initial is None or reduce == "mean" else [np.full(data.shape[1:], initial)])]
        first += n
        if reduce == "mean":
            total = np.sum(part, 0) + (initial or 0.0)
            out.append(total / n if n else np.full(data.shape[1:], np.nan if initial is None else initial))
        else:
            empty = {"sum": 0.0, "prod": 1.0, "max": -np.inf, "min": np.inf}[reduce]
            join = {"sum": np.sum, "prod": np.prod, "max": np.max, "min": np.min}[reduce]
            out.append(join(part, 0) if part else np.full(data.shape[1:], empty))
    return np.array(out)


@on_both
@pytest.mark.parametrize("initial", [None, 0.5])
@pytest.mark.parametrize("reduce", ["sum", "mean", "prod", "max", "min"])
def test_segment_reduce(cuda, where, reduce, initial):
    device, lengths, data = device_of(where, cuda), [2, 0, 3, 1], RNG.standard_normal((6, 3))
    leaf = torch.tensor(data, device=device).requires_grad_()
    got = torch.segment_reduce(leaf, reduce, lengths=torch.tensor(lengths, device=device), initial=initial)
    np.testing.assert_allclose(got.detach().cpu().numpy(), segments(data, reduce, lengths, initial), rtol=1e-12)
    offsets = torch.tensor([0, 2, 2, 5, 6], device=device)
    assert torch.equal(torch.segment_reduce(leaf, reduce, offsets=offsets, initial=initial)[[0, 2, 3]], got[[0, 2, 3]])
    g, = torch.autograd.grad(got[[0, 2, 3]].sum(), leaf)
    step = 1e-6 * RNG.standard_normal(data.shape)
    high, low = [segments(data + s * step, reduce, lengths, initial)[[0, 2, 3]].sum() for s in (1, -1)]
    assert (g.cpu().numpy() * step).sum() == pytest.approx((high - low) / 2, rel=1e-6, abs=1e-12)
    rows = torch.tensor(data.T.copy(), device=device)                    # along the last dim, each row in its own way
    cut = torch.tensor([[2, 4], [6, 0], [1, 5]], device=device)
    want = np.stack([segments(row[:, None], reduce, n, initial)[:, 0] for row, n in zip(data.T, cut.tolist())])
    np.testing.assert_allclose(torch.segment_reduce(rows, reduce, lengths=cut, axis=-1, initial=initial).cpu().numpy(), want, rtol=1e-12)


def test_segment_reduce_errors():
    x, seven = torch.ones(7, 2), torch.tensor([7])
    for options, kind in (({}, RuntimeError), (dict(lengths=seven - 1), RuntimeError), (dict(lengths=torch.tensor([8, -1])), RuntimeError),
                          (dict(lengths=seven.float()), NotImplementedError), (dict(indices=seven), RuntimeError),
                          (dict(lengths=seven[None]), RuntimeError)):
        with pytest.raises(kind):
            torch.segment_reduce(x, "sum", **options)
    with pytest.raises(RuntimeError, match="a reduction among"):
        torch.segment_reduce(x, "median", lengths=seven)
    assert torch.segment_reduce(x, "sum", lengths=seven - 1, unsafe=True).tolist() == [[6, 6]]
    with pytest.raises(NotImplementedError):
        torch.segment_reduce(x.long(), "sum", lengths=seven)


@on_both
def test_gradient(cuda, where):
    values, places = RNG.standard_normal((4, 5)), np.array([0.0, 1.0, 1.5, 4.0])
    x = torch.tensor(values, device=device_of(where, cuda))
    other = torch.tensor(np.arange(5) * 0.5, device=x.device)
    for edge in (1, 2):
        for options, spacing in (({}, (1, 1)), ({"spacing": 2.0}, (2, 2)), ({"spacing": (0.5, 3.0)}, (0.5, 3)),
                                 ({"spacing": (torch.tensor(places, device=x.device), other)}, (places, other.cpu().numpy()))):
            got, want = torch.gradient(x, **options, edge_order=edge), np.gradient(values, *spacing, edge_order=edge)
            for a, b in zip(got, want, strict=True):
                np.testing.assert_allclose(a.cpu().numpy(), b, rtol=1e-10, atol=1e-12)
    assert torch.equal(torch.gradient(x, dim=-1)[0], torch.gradient(x, dim=(1, 0))[0])
    for bad, kind in ((dict(edge_order=3), RuntimeError), (dict(dim=2), IndexError), (dict(dim=(0, 0)), RuntimeError),
                      (dict(spacing=[1.0]), RuntimeError), (dict(spacing=other), TypeError), (dict(spacing=(other, 1.0)), TypeError)):
        with pytest.raises(kind):
            torch.gradient(x, **bad)
    assert torch.gradient(torch.tensor([1, 2, 4]))[0].tolist() == [1, 1.5, 2] and torch.gradient(torch.tensor(1.0)) == ()


@on_both
@pytest.mark.parametrize("p", [1, 2.5, float("inf")])
def test_renorm(cuda, where, p):
    values = RNG.standard_normal((3, 4, 2)) * [[[0.1]], [[1.0]], [[9.0]]]
    leaf = torch.tensor(values, device=device_of(where, cuda)).requires_grad_()
    out = torch.renorm(leaf, p, 0, 2.0)
    norms = np.linalg.norm(values.reshape(3, -1), p, 1)
    np.testing.assert_allclose(out.detach().cpu().numpy(), values * np.where(norms > 2, 2 / (norms + 1e-7), 1)[:, None, None], rtol=1e-12)
    g, = torch.autograd.grad(out.square().sum(), leaf)
    step = torch.tensor(1e-6 * RNG.standard_normal(values.shape), device=leaf.device)
    high, low = [torch.renorm(leaf.detach() + s * step, p, 0, 2.0).square().sum().item() for s in (1, -1)]
    assert (g * step).sum().item() == pytest.approx((high - low) / 2, rel=1e-4, abs=1e-9)
    moved = leaf * 1
    assert moved.renorm_(p, 0, 2.0) is moved and torch.equal(moved, out)
    assert torch.equal(torch.autograd.grad(moved.square().sum(), leaf)[0], g)
    for bad in ((leaf, 0, 0, 1.0), (leaf, 2, 0, -1.0), (leaf[0, 0], 2, 0, 1.0)):
        with pytest.raises(RuntimeError):
            torch.renorm(*bad)


@on_both
@pytest.mark.parametrize("kind", [np.float32, np.float64, np.float16])
def test_frexp(cuda, where, kind):
    info = np.finfo(kind)
    values = np.array([0.0, -0.0, 1.0, -6.5, info.max, -info.tiny, info.smallest_subnormal, info.tiny - info.smallest_subnormal, 0.3], kind)
    leaf = torch.tensor(values, device=device_of(where, cuda)).requires_grad_()
    mantissa, exponent = torch.frexp(leaf)
    want, wanted = np.frexp(values)
    assert mantissa.detach().cpu().numpy().tobytes() == want.tobytes() and exponent.tolist() == wanted.tolist()
    assert mantissa.dtype is leaf.dtype and exponent.dtype is torch.int32
    g, = torch.autograd.grad(mantissa[2:5].sum(), leaf)
    assert g.tolist()[2:4] == [0.5, 0.125] and g.tolist()[5:] == [0] * 4
    special = torch.frexp(torch.tensor([np.inf, -np.inf, np.nan]))
    assert special.exponent.tolist() == [0] * 3 and special.mantissa.tolist()[:2] == [np.inf, -np.inf]


def test_angle_and_imag():
    x = torch.tensor([2.0, -1.0, -0.0, float("nan"), float("-inf")])
    assert torch.angle(x).tolist()[:3] == [0, pytest.approx(np.pi), 0] and torch.angle(x)[3].isnan() and x.angle()[4] > 3
    assert torch.angle(torch.tensor([-3, 4])).dtype is torch.float32 and torch.real(x) is x
    for ask in (lambda: torch.imag(x), lambda: x.imag):
        with pytest.raises(RuntimeError, match="complex"):
            ask()
    with pytest.raises(RuntimeError, match="floating"):
        torch.frexp(torch.tensor([1]))
