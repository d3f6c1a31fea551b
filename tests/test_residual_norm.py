"""dropout_add_layer_norm and dropout_add_rms_norm against the chain of operators that they replace."""
import numpy as np
import pytest
from arrays import draw
from calls import Calls

import tritorch
from tritorch.nn import functional as F


def leaves(place, shape, kind=tritorch.float32, stream=None):
    """input, residual, weight and bias."""
    kinds = kind, stream or kind, kind, kind
    shapes = shape, shape, shape[-1:], shape[-1:]
    return [tritorch.tensor(draw(*s, seed=k)).to(k_).to(place).requires_grad_() for k, (s, k_) in enumerate(zip(shapes, kinds))]


def fused(center, x, residual, w, b, p, generator):
    if center:
        return F.dropout_add_layer_norm(x, residual, w.shape, w, b, p, generator=generator)
    return F.dropout_add_rms_norm(x, residual, w.shape, w, p, generator=generator)


def chained(center, x, residual, w, b, p, generator):
    stream = residual + F.dropout(x, p, generator=generator)
    return (F.layer_norm(stream, w.shape, w, b) if center else F.rms_norm(stream, w.shape, w)), stream


def run(function, center, tensors, p):
    """Both results and the gradients of all tensors, as arrays."""
    generator = tritorch.Generator(tensors[0].device).manual_seed(11)
    outs = function(center, *tensors, p, generator)
    tensors = tensors if center else tensors[:3]
    weights = [tritorch.tensor(draw(*o.shape, seed=9 + k)).to(o) for k, o in enumerate(outs)]
    return [t.detach().cpu().float().array for t in (*outs, *tritorch.autograd.grad(outs, tensors, weights))]


@pytest.mark.parametrize("center", [True, False])
@pytest.mark.parametrize("p", [0.0, 0.3])
@pytest.mark.parametrize("shape", [(5, 7), (2, 3, 8), (70, 33), (3, 4100)])
def test_is_the_chain(shape, p, center, cuda, tiles):
    for place in ("cpu", cuda):
        got, want = [run(function, center, leaves(place, shape), p) for function in (fused, chained)]
        for g, h in zip(got, want):
            np.testing.assert_allclose(g, h, rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("width", [16388, 20001])
def test_rows_that_do_not_fit_in_registers(width, cuda, tiles):
    for center in (True, False):
        got, want = [run(function, center, leaves(cuda, (2, width)), 0.2) for function in (fused, chained)]
        for g, h in zip(got, want):
            np.testing.assert_allclose(g, h, rtol=1e-3, atol=2e-3)


@pytest.mark.parametrize("gaps", [(), (0,), (1,), (2,), (3,)])
def test_half_types_beside_float32_in_any_layout(gaps, cuda, tiles):
    """Input, stream and both gradients, one of them with gaps between its columns: nothing is taken to be side by side that is not."""
    found = []
    for place in ("cpu", cuda):
        kinds = tritorch.bfloat16, tritorch.float32, tritorch.bfloat16, tritorch.float32
        wide = [tritorch.tensor(draw(5, 96, seed=k)).to(kind).to(place) for k, kind in enumerate(kinds)]
        x, residual, g, g_sum = [t[:, ::2] if k in gaps else t[:, :48].contiguous() for k, t in enumerate(wide)]
        w = tritorch.tensor(draw(48, seed=7)).to(place).requires_grad_()
        x, residual = x.requires_grad_(), residual.requires_grad_()
        outs = F.dropout_add_layer_norm(x, residual, (48,), w, w, input_bias=w)
        grads = tritorch.autograd.grad(outs, (x, residual, w), (g, g_sum))
        found.append([t.detach().cpu().float().array for t in (*outs, *grads)])
    for got, want in zip(found[1], found[0]):
        np.testing.assert_allclose(got, want, rtol=1e-2, atol=1e-2)


def test_a_wide_stream_beside_half_inputs(cuda):
    for place in ("cpu", cuda):
        x, residual, w, b = leaves(place, (4, 64), tritorch.bfloat16, tritorch.float32)
        y, stream = F.dropout_add_layer_norm(x, residual, (64,), w, b)
        assert y.dtype is tritorch.bfloat16 and stream.dtype is tritorch.float32
        np.testing.assert_array_equal(stream.detach().cpu().array, (residual.detach() + x.detach().float()).cpu().array)
        gx, gr = tritorch.autograd.grad([y, stream], [x, residual], [tritorch.ones_like(y), tritorch.ones_like(stream)])
        assert gx.dtype is tritorch.bfloat16 and gr.dtype is tritorch.float32
        assert tritorch.equal(gx, gr.bfloat16())                             # without dropout the same number, rounded


def test_layouts_of_the_operands(cuda):
    x, residual, w, b = leaves(cuda, (6, 5, 12))
    want = F.dropout_add_layer_norm(x, residual, (12,), w, b)
    turned = residual.detach().permute(1, 2, 0).contiguous().permute(2, 0, 1)
    gapped = tritorch.tensor(np.repeat(x.detach().cpu().array, 2, 1)).to(cuda)[:, ::2]
    for got, expect in zip(F.dropout_add_layer_norm(gapped, turned, (12,), w, b), want):
        np.testing.assert_allclose(got.detach().cpu().array, expect.detach().cpu().array, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("center", [True, False])
@pytest.mark.parametrize("kinds", [("float32", "float32"), ("bfloat16", "float32")])
@pytest.mark.parametrize("p", [0.0, 0.3])
@pytest.mark.parametrize("shape", [(70, 33), (2, 3, 8), (2, 8200)])
def test_the_bias_of_the_layer_in_front(shape, p, kinds, center, cuda, tiles):
    """As if it had been added to the input; its gradient is the sum of the input's over the rows, before that is rounded."""
    norm = F.dropout_add_layer_norm if center else F.dropout_add_rms_norm
    kinds = [getattr(tritorch, kind) for kind in kinds]
    for place in ("cpu", cuda):
        x, residual, w, v = leaves(place, shape, *kinds)
        v = v.detach().float().requires_grad_()
        found = []
        for added, bias in ((x, v), (x.float() + v, None)):
            generator = tritorch.Generator(place).manual_seed(11)
            outs = norm(added, residual, shape[-1:], w, p=p, generator=generator, input_bias=bias)
            seeds = [tritorch.tensor(draw(*o.shape, seed=9 + k)).to(place).to(o.dtype) for k, o in enumerate(outs)]
            found.append([outs[1], *tritorch.autograd.grad(outs, [v, x, residual, w], seeds)])
        rounded = kinds[0] is tritorch.bfloat16
        for k, (got, want) in enumerate(zip(*found)):
            error = 3e-2 * shape[0] ** 0.5 if rounded and k else 5e-4
            assert got.dtype is want.dtype
            got, want = [t.detach().cpu().float().array for t in (got, want)]
            np.testing.assert_allclose(got, want, rtol=error, atol=error)


def test_one_gradient_serves_input_and_residual_where_nothing_lies_between():
    """Without dropout or a bias, of one dtype: no second one is stored."""
    for bias, name in ((None, "residual_norm_backward"), (tritorch.ones(8), "residual_norm_dropped_backward")):
        x, residual, w, b = leaves("cpu", (3, 8))
        y, stream = F.dropout_add_layer_norm(x, residual, (8,), w, b, input_bias=bias)
        with Calls() as calls:
            (y.sum() + stream.sum()).backward()
        assert set(calls.names) & {"residual_norm_backward", "residual_norm_dropped_backward"} == {name}


def test_no_numbers_are_drawn_without_dropout():
    x, residual, w, b = leaves("cpu", (3, 8))
    generator = tritorch.Generator().manual_seed(1)
    F.dropout_add_layer_norm(x, residual, (8,), w, b, 0.5, False, generator=generator)
    F.dropout_add_rms_norm(x, residual, (8,), w, 0.0, generator=generator)
    assert generator.get_offset() == 0
    assert (F.dropout_add_rms_norm(x, residual, (8,), w, 1.0, generator=generator)[1] == residual).all()


def test_gradients_when_only_one_result_is_used(cuda):
    for place in ("cpu", cuda):
        x, residual, w, b = leaves(place, (3, 8))
        y, stream = F.dropout_add_layer_norm(x, residual, (8,), w, b, 0.5)
        (g,) = tritorch.autograd.grad(stream.sum(), [residual], retain_graph=True)
        assert (g == 1).all()
        (g,) = tritorch.autograd.grad(y.sum(), [b])
        assert (g == 3).all()


def test_second_derivatives(cuda):
    found = []
    for place in ("cpu", cuda):
        for function in (fused, chained):
            x, residual, w, b = leaves(place, (5, 4))
            y, stream = function(True, x, residual, w, b, 0.3, tritorch.Generator(x.device).manual_seed(3))
            (g,) = tritorch.autograd.grad((y ** 3).sum() + (stream ** 2).sum(), [x], create_graph=True)
            found.append([t.cpu().array for t in tritorch.autograd.grad((g * g).sum(), [x, w])])
    for other in found[1:]:
        for g, h in zip(other, found[0]):
            np.testing.assert_allclose(g, h, rtol=2e-3, atol=2e-3)


def test_long_rows_far_from_zero(cuda, monkeypatch):
    """Squares are summed in the pass that stores the sums, relative to the mean of a row's beginning."""
    monkeypatch.setattr(tritorch.cuda.driver, "hardware_tiles", True)
    random, n = np.random.default_rng(0), 34000
    x = (random.standard_normal((2, n)) + 300 + np.linspace(-2, 2, n)).astype(np.float32)
    x[1, -1] = np.nan
    out, total = F.dropout_add_layer_norm(tritorch.tensor(x).to(cuda), tritorch.tensor(np.ones_like(x)).to(cuda), (n,), p=0.0)
    total = total.cpu().array.astype(np.float64)
    want = (total - total.mean(1, keepdims=True)) / np.sqrt(total.var(1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(out.cpu().array, want, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("used", [0, 1])
@pytest.mark.parametrize("kinds", [(tritorch.float32, tritorch.float32), (tritorch.bfloat16, tritorch.float32)])
def test_one_result_alone(used, kinds, cuda):
    """The last norm's stream is read by nobody: no zeros are written for its gradient, and the numbers are those with zeros."""
    for place in ("cpu", cuda):
        tensors, found = leaves(place, (9, 40), *kinds), []
        for spared in (True, False):
            outs = fused(True, *tensors, 0.0, None)
            weights = [tritorch.ones_like(o) if k == used else tritorch.zeros_like(o) for k, o in enumerate(outs)]
            some = slice(used, used + 1) if spared else slice(None)
            with Calls() as calls:
                found.append(tritorch.autograd.grad(outs[some], tensors, weights[some]))
            assert used == 1 or not {"fill", "zero_", "zeros"}.intersection(calls.names)
        for a, b in zip(*found):
            np.testing.assert_array_equal(a.cpu().float().array, b.cpu().float().array)
