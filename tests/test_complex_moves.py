"""Complex tensors where elements are moved, written through views, summed, multiplied and measured."""
import math

import numpy as np
import pytest

import tritorch as torch
from tritorch.autograd import gradcheck
from tritorch.cuda import compiler, driver
from tritorch.cuda.dry import DryDriver

KINDS = [torch.complex64, torch.complex128]
F = torch.nn.functional


def numbers(*shape, seed=0):
    rng = np.random.default_rng(seed)
    return rng.standard_normal(shape) + 1j * rng.standard_normal(shape)


def tensor(*shape, seed=0, kind=torch.complex128, device="cpu"):
    return torch.tensor(numbers(*shape, seed=seed), dtype=kind, device=device)


def same_bits(got, want):
    got, want = [x.detach().cpu().contiguous().numpy() for x in (got, want)]
    assert got.dtype == want.dtype and got.shape == want.shape and got.tobytes() == want.tobytes()


# ------------------------------------------------------------------ moved
@pytest.mark.parametrize("kind", KINDS)
def test_every_bit_arrives(cuda, kind):
    """Zeros with a sign, infinities and NaN in one part do not change the other."""
    parts = [0.0, -0.0, math.inf, -math.inf, math.nan, 1.5]
    x = torch.view_as_complex(torch.tensor([[a, b] for a in parts for b in parts], dtype=kind.to_real())).reshape(3, 4, 3, 1)
    index, mask = torch.tensor([2, 0, 2, 1]), torch.tensor([True, False, True])
    moves = (lambda x, i, m: torch.cat([x, x.flip(0)], 1), lambda x, i, m: x.roll((1, 2), (0, 1)), lambda x, i, m: x.roll((1, 3), (1, 0)),
             lambda x, i, m: x[i[:3]], lambda x, i, m: x[:, i % 3, i % 3], lambda x, i, m: x[m], lambda x, i, m: x.index_select(1, i),
             lambda x, i, m: x.gather(0, i[:3].view(3, 1, 1, 1).expand(3, 4, 3, 1)), lambda x, i, m: F.pad(x, (2, 1, 0, 3)),
             lambda x, i, m: F.pad(x[..., 0], (1, 2), mode="reflect"), lambda x, i, m: F.pad(x[..., 0], (1, 2), mode="circular"),
             lambda x, i, m: x[..., 0].tril(), lambda x, i, m: x.clone().index_put_((i[:2],), x[:2]), lambda x, i, m: x.mT.contiguous(),
             lambda x, i, m: x.scatter(1, i.view(1, 4, 1, 1).expand(3, 4, 3, 1), x), lambda x, i, m: x.masked_fill(m.view(3, 1, 1, 1), 2j),
             lambda x, i, m: x.repeat(1, 2, 1, 1), lambda x, i, m: F.unfold(x, (2, 1)), lambda x, i, m: x.index_fill(0, i[:1], 1 - 1j),
             lambda x, i, m: torch.constant_pad_nd(x.reshape(4, 9), (9, 90), 3 - 4j))
    for move in moves:
        for turn in (lambda t: t, lambda t: t.transpose(0, 2).contiguous().transpose(0, 2)):
            same_bits(move(turn(x.to(cuda)), index.to(cuda), mask.to(cuda)), move(x, index, mask))
    there = torch.view_as_real(x.to(cuda).to(torch.complex128).to(kind)).cpu().numpy()           # where a GPU makes all NaN one
    assert np.array_equal(there, torch.view_as_real(x).numpy(), equal_nan=True)
    assert np.array_equal(np.signbit(there) & ~np.isnan(there), np.signbit(torch.view_as_real(x).numpy()) & ~np.isnan(there))


def test_a_complex64_is_moved_in_one_launch():
    with driver.using(DryDriver(90)), compiler.recording() as record:
        x = torch.empty(64, 64, dtype=torch.complex64, device="cuda")
        index = torch.empty(64, 64, dtype=torch.int64, device="cuda")
        for move, kernel in ((lambda: x.gather(1, index), "gather_kernel"), (lambda: x.tril(), "triangle_kernel"),
                             (lambda: torch.cat([x, x]), "join_kernel"), (lambda: x.index_select(0, index[0]), "take_rows_kernel"),
                             (lambda: F.pad(x, (1, 1)), "pad_kernel"), (lambda: x.scatter_(1, index, 1j), "put_number_kernel"),
                             (lambda: x.sum(1), "reduce_kernel"), (lambda: x.prod(1), "reduce_kernel"),
                             (lambda: x.norm(), "reduce_kernel")):
            before = set(record)
            move()
            assert [record[key].kernel.__name__ for key in record if key not in before][-1:] == [kernel]
            assert len(set(record) - before) <= (2 if kernel == "reduce_kernel" else 1)


def test_sums_at_places(cuda):
    index = torch.tensor([0, 2, 0, 0, 1])
    for kind in KINDS:
        x, source = tensor(3, 4, kind=kind), tensor(5, 4, seed=1, kind=kind)
        for make in (lambda x, i, s: x.index_add(0, i, s, alpha=2), lambda x, i, s: x.index_add(0, i, s, alpha=1 - 2j),
                     lambda x, i, s: x.index_put((i,), s, accumulate=True), lambda x, i, s: x.mT.index_add(1, i, s.mT),
                     lambda x, i, s: x.scatter_add(0, i.unsqueeze(1).expand(5, 4), s), lambda x, i, s: x[0].index_add(0, i[:3], s[0, :3]),
                     lambda x, i, s: x.scatter_reduce(0, i.unsqueeze(1).expand(5, 4), s, "mean", include_self=False)):
            torch.testing.assert_close(make(x.to(cuda), index.to(cuda), source.to(cuda)).cpu(), make(x, index, source))
    x, source = tensor(3, 4).requires_grad_(), tensor(5, 4, seed=1).requires_grad_()
    assert gradcheck(lambda x, s: x.index_add(0, index, s, alpha=1 - 2j), (x, source), fast_mode=True)
    for reduce in "sum", "prod", "mean":
        assert gradcheck(lambda x, s: x.scatter_reduce(0, index.unsqueeze(1).expand(5, 4), s, reduce), (x, source), fast_mode=True)
    with pytest.raises(RuntimeError, match=r"real tensors for reductions other than sums on a GPU.*use x.cpu\(\)"):
        x.detach().to(cuda).scatter_reduce(0, index.unsqueeze(1).expand(5, 4).to(cuda), source.detach().to(cuda), "prod")


def test_a_number_is_zero_where_both_parts_are(cuda):
    for where in torch.device("cpu"), cuda:
        x = torch.tensor([[0, 1j, 0], [2, 0, complex(0, math.nan)]], device=where)
        assert x.nonzero().tolist() == [[0, 1], [1, 0], [1, 2]] and x.count_nonzero(1).tolist() == [1, 2]
        assert x.any(0).tolist() == [True, True, True] and x.all(0).tolist() == [False, False, False]
        assert x[:, 1].any().item() and not x[:1, ::2].any().item() and x.bool().sum().item() == 3
        assert x.norm(0).item() == 3


def test_what_is_refused():
    x, real, index = tensor(3, 4), torch.ones(3, 4), torch.zeros(3, 4, dtype=torch.int64)
    mask = real > 0
    for call in (lambda: real.index_fill(0, index[0], 1j), lambda: real.masked_fill(mask, 1j), lambda: real.scatter(0, index, 1j),
                 lambda: real.index_fill(0, index[0], torch.tensor(1j)), lambda: real.index_add(0, index[0, :3], real, alpha=1j),
                 lambda: real.__setitem__(0, 1j), lambda: real.__setitem__(mask, 1j), lambda: real.__setitem__(index[0], 1j),
                 lambda: x.scatter(0, index, real), lambda: x.index_put((index[0],), real[0]), lambda: x.masked_scatter(mask, real),
                 lambda: real.masked_fill(mask, torch.tensor(1j))):
        with pytest.raises(RuntimeError):
            call()
    assert real.sum() == 12                                              # and nothing was written
    for call in (x.sort, x.unique, x.unique_consecutive, x.argsort, x.max, x.amax, x.median, lambda: x.cummax(0), lambda: x.topk(1),
                 lambda: torch.searchsorted(x[0], x[0]), x.nansum, lambda: x.scatter_reduce(0, index, x, "amax"), x.argmax):
        with pytest.raises(NotImplementedError, match="expected real tensors, got tritorch.complex128"):
            call()
    with pytest.raises(RuntimeError, match="cdist"):
        torch.cdist(x, x)
    with pytest.raises(RuntimeError, match="pdist"):
        F.pdist(x)


# ------------------------------------------------------------------ written through views
def test_parts_are_written_in_the_memory_of_the_whole(cuda):
    for where in torch.device("cpu"), cuda:
        x = tensor(2, 3, kind=torch.complex64, device=where)
        want = x.cpu().numpy().copy()
        x.real[0] = 5
        want.real[0] = 5
        x.imag[:, 1] += x.real[:, 1]
        want.imag[:, 1] += want.real[:, 1]
        torch.view_as_real(x)[1, 2, 0] = 7
        want[1, 2] = 7 + 1j * want[1, 2].imag
        x.real.copy_(x.imag)                                             # the two views share memory and no element
        want.real[...] = want.imag
        x.mT[0].imag.zero_()
        want[:, 0].imag[...] = 0
        np.testing.assert_array_equal(x.cpu().numpy(), want)
        with pytest.raises(RuntimeError):
            x.real.expand(4, 2, 3).add_(1)
        with pytest.raises(RuntimeError):
            x.imag = torch.ones(5)


def test_writes_through_parts_have_gradients():
    x, r = tensor(2, 3).requires_grad_(), torch.tensor(numbers(2, 3, seed=1).real, requires_grad=True)

    def written(x, r):
        y = x * 1
        y.real[0] = r[0]                                                 # those of x end here
        y.imag.mul_(r)
        torch.view_as_real(y)[1, :, 0].add_(y.imag[1].detach())
        y[1].real.mul_(2)
        y.mT[2] *= 1j
        return y

    y = written(x, r)
    gx, gr = torch.autograd.grad((y * y).sum().real, (x, r))
    assert not gx[0].real.any() and gr.dtype is torch.float64
    assert gradcheck(lambda x, r: (x * 1).imag.mul_(r), (x, r))
    assert gradcheck(lambda x, r: torch.view_as_complex(torch.view_as_real(x * 1).mul_(r.unsqueeze(-1))), (x, r))
    assert gradcheck(lambda x: (x * 1).real.copy_(x.imag) + x.abs(), (x,))


def test_a_saved_tensor_written_through_a_part_is_noticed():
    x = tensor(3).requires_grad_()
    y = x * 1
    z = y * y
    y.imag[0] = 3
    with pytest.raises(RuntimeError, match="(?i)in-?place|wrote|written|version"):
        z.sum().real.backward()
    leaf = tensor(3).requires_grad_()
    with pytest.raises(RuntimeError):
        leaf.real.add_(1)
    base = tensor(2, 2)
    base.real.add_(torch.ones(2, 2, dtype=torch.float64, requires_grad=True))         # a base that needed no gradient
    assert base.requires_grad and base.imag.requires_grad


# ------------------------------------------------------------------ sums, products, spreads, norms
@pytest.mark.parametrize("kind", KINDS)
def test_reductions_are_numpy_s(cuda, kind):
    x = numbers(3, 41, 5).astype(kind.numpy)
    for where in torch.device("cpu"), cuda:
        t = torch.tensor(x, device=where)
        for dim in (None, 0, 1, 2, (0, 2)):
            norm = torch.linalg.vector_norm(t, 3, dim), (abs(x) ** 3).sum(dim) ** (1 / 3)
            for got, want in ((t.sum(dim), x.sum(dim)), (t.mean(dim), x.mean(dim)), (t.var(dim, correction=0), x.var(dim)),
                              (t.std(dim, correction=1), x.std(dim, ddof=1)), norm):
                np.testing.assert_allclose(got.cpu().numpy(), want, rtol=2e-4 if kind is KINDS[0] else 1e-10, atol=1e-5)
                assert got.dtype is (kind if got.is_complex() else kind.to_real())
        np.testing.assert_allclose(t.prod(2).cpu().numpy(), x.prod(2), rtol=1e-4)
        np.testing.assert_allclose(t.cumprod(2).cpu().numpy(), x.cumprod(2), rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(t.cumsum(1).cpu().numpy(), x.cumsum(1), rtol=1e-4, atol=1e-5)
        for order, f in ((math.inf, np.max), (-math.inf, np.min), (1, np.sum)):
            np.testing.assert_allclose(t.norm(order, 1).cpu().numpy(), f(abs(x), 1), rtol=1e-5)


def test_dtypes_of_sums(cuda):
    for where in torch.device("cpu"), cuda:
        real, x = torch.ones(2, 3, device=where), torch.full((2, 3), 1 + 2j, device=where)
        for f in torch.sum, torch.mean, torch.prod, lambda t, dtype: t.cumsum(0, dtype=dtype), lambda t, dtype: t.cumprod(0, dtype=dtype):
            assert f(real, dtype=torch.complex64).dtype is torch.complex64 and f(x, dtype=torch.complex128).dtype is torch.complex128
            made = f(x, dtype=torch.float32)                             # of the real parts
            assert made.dtype is torch.float32 and torch.equal(made, f(real, dtype=torch.float32))
        assert (torch.arange(3, device=where).sum(dtype=torch.complex64)).item() == 3 + 0j
        assert torch.linalg.vector_norm(x, dtype=torch.complex128).dtype is torch.float64
        for kind in torch.float32, torch.float64:
            with pytest.raises(RuntimeError, match="complex where x is"):
                x.norm(dtype=kind)
        empty = x[:0]
        assert empty.sum().item() == 0 and empty.prod().item() == 1 and empty.mean().isnan().item()
        assert x[0, 0].var().isnan().item() and x[0, 0].var(correction=0).item() == 0


def test_gradients_where_there_is_none_by_division():
    x = tensor(2, 4)
    x[0, 1] = x[1, 2] = x[1, 0] = 0
    x.requires_grad_()
    for f in (lambda x: x.prod(1), lambda x: x.prod(), lambda x: x.cumprod(1), lambda x: x.var(1), lambda x: torch.std_mean(x, 0),
              lambda x: x.real.cumsum(0, dtype=torch.complex128), lambda x: x.prod(1, dtype=torch.float64)):
        assert gradcheck(f, (x,), fast_mode=True)
    zeros = torch.zeros(3, dtype=torch.complex128, requires_grad=True)
    for f in (torch.Tensor.std, torch.Tensor.norm, lambda x: x.norm(1), lambda x: x.norm(3), lambda x: x.norm(math.inf)):
        assert torch.autograd.grad(f(zeros), zeros)[0].tolist() == [0, 0, 0]


def test_logarithms_of_sums_of_exponentials(cuda):
    inf = math.inf
    x = np.array([[1000 + 1j, 1000 - 2j, 3j], [-inf, 2j, 1], [-inf, -inf, -inf], [inf, 5, 1j], [-1000 + 0.5j, -1001, complex(-1000, 3)]])
    size = np.where(np.isfinite(x.real), x.real, 0).max(1, keepdims=True)
    with np.errstate(all="ignore"):
        want = np.log(np.exp(np.where(x.real == -inf, -inf, x - size)).sum(1)) + size[:, 0]
    for where in torch.device("cpu"), cuda:
        t = torch.tensor(x, device=where)
        made = t.logsumexp(1).cpu().numpy()
        np.testing.assert_allclose(made[[0, 1, 4]], want[[0, 1, 4]], rtol=1e-10)
        assert made[2].real == -inf and made[3].real == inf
        running = t[[0, 1, 4]].logcumsumexp(1).cpu().numpy()
        np.testing.assert_allclose(running[:, -1], want[[0, 1, 4]], rtol=1e-10)
        np.testing.assert_allclose(running[:, 0], x[[0, 1, 4], 0])


def test_over_a_batch_of_functions():
    x, w = tensor(3, 2, 4), tensor(4, 5, seed=1)
    made = torch.func.vmap(lambda x: (x @ w).sum(0).conj().cumprod(0))(x)
    torch.testing.assert_close(made, torch.stack([(a @ w).sum(0).conj().cumprod(0) for a in x]))
