"""Random numbers: the published Philox vectors, one stream on all devices, statistics, generator states, captured graphs."""
import math
import pickle
import subprocess
import sys

import numpy as np
import pytest

import tritorch as T
import tritorch.random
from tritorch import cuda
from tritorch.generator import Generator, default_generator
from tritorch.ops import draws
from tritorch.ops import dropout as D
from tritorch.ops import random as R
from tritorch.ops.chances import draw_one
from tritorch.philox import long_words, multiply_high, philox, words

CPU = T.device("cpu")
CUDA = T.device("cuda", 0)


@pytest.fixture
def simulated():
    with cuda.simulate(seed=0) as device:
        yield device


def seeded(device="cpu", seed=11):
    return Generator(device).manual_seed(seed)


# ------------------------------------------------------------------ bits
@pytest.mark.parametrize(("key", "counter", "expected"), [
    (0, (0, 0, 0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    (2**64 - 1, (2**32 - 1,) * 4, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (0x299F31D0A4093822, (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344), (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1)),
])
def test_the_known_answers_of_random123(key, counter, expected):
    assert tuple(int(w) for w in philox(key, *counter)) == expected


def test_words_do_not_depend_on_where_a_call_starts():
    whole = words(5, 0, 200_000)
    assert (words(5, 30_000, 60_000) == whole[120_000:180_000]).all()
    assert (words(5, (1 << 32) - 2, 16)[8:] == words(5, 1 << 32, 8)).all()
    assert (long_words(5, 0, 4) >> np.uint64(32) == whole[:4]).all() and (long_words(5, 0, 4) & np.uint64(2**32 - 1) != whole[:4]).all()
    assert (words(-1, 3, 8) == words((1 << 64) - 1, 3, 8)).all()


@pytest.mark.parametrize("span", [1, 2, 10, 2**32 - 1, 2**32, 2**32 + 1, 10**15, 2**63, 2**64 - 1])
def test_multiply_high_is_exact(span):
    bits = np.concatenate([long_words(1, 0, 200), np.array([0, 2**64 - 1, 2**32, 2**32 - 1], np.uint64)])
    assert [int(v) for v in multiply_high(bits, span)] == [int(b) * span >> 64 for b in bits]


# ------------------------------------------------------------------ one stream on all devices
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
@pytest.mark.parametrize("bounds", [(0.0, 1.0), (-3.0, 0.1)])
def test_uniforms_are_the_same_bits_on_cuda(simulated, dtype, bounds):
    kind = getattr(T, dtype)
    cpu, gpu = (T.empty(3, 1001, dtype=kind, device=d).uniform_(*bounds, generator=seeded(d)) for d in ("cpu", "cuda"))
    assert (cpu == gpu.cpu()).all()


def test_wider_types_have_the_same_numbers_with_more_digits():
    for make in (R.rand, R.randn):
        wide, plain = (make(5000, dtype=kind, generator=seeded()).array for kind in (T.float64, T.float32))
        assert np.abs(wide - plain).max() < 3e-6 and len(np.unique(wide)) == 5000
    half = R.rand(5000, dtype=T.float16, generator=seeded()).array
    assert np.abs(half.astype(np.float64) - R.rand(5000, generator=seeded()).array).max() < 1e-3


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("fill", ["normal_", "exponential_", "cauchy_", "log_normal_"])
def test_other_distributions_agree_to_rounding(simulated, fill, dtype):
    kind = getattr(T, dtype)
    cpu, gpu = (getattr(T.empty(3001, dtype=kind, device=d), fill)(generator=seeded(d)).cpu().array for d in ("cpu", "cuda"))
    np.testing.assert_allclose(gpu, cpu, rtol=1e-4 if dtype == "float32" else 1e-11, atol=4e-6 if dtype == "float32" else 1e-14)


def test_integers_and_coins_are_the_same_on_cuda(simulated):
    for make in (lambda d, g: R.randint(-5, 1 << 40, (7, 143), device=d, generator=g), lambda d, g: R.randperm(1000, device=d, generator=g),
                 lambda d, g: T.empty(999, dtype=T.uint8, device=d).random_(generator=g),
                 lambda d, g: T.empty(999, dtype=T.bool, device=d).bernoulli_(0.3, generator=g),
                 lambda d, g: R.poisson(T.full((500,), 3.5, device=d), generator=g),
                 lambda d, g: R.poisson(T.full((500,), 77.0, device=d), generator=g),
                 lambda d, g: T.empty(999, device=d).geometric_(0.2, generator=g)):
        cpu, gpu = (make(d, seeded(d)) for d in ("cpu", "cuda"))
        assert gpu.is_cuda and (cpu == gpu.cpu()).all()


def test_many_programs_and_hardware_blocks(simulated, monkeypatch):
    expected = R.rand(300_001, generator=seeded())
    assert (R.rand(300_001, device="cuda", generator=seeded("cuda")).cpu() == expected).all()
    monkeypatch.setattr(cuda.driver, "hardware_tiles", True)
    for n in (1, 1023, 1024, 1025, 5000):
        assert (R.rand(n, device="cuda", generator=seeded("cuda")).cpu() == R.rand(n, generator=seeded())).all()


def test_values_follow_the_logical_order(simulated):
    for d in ("cpu", "cuda"):
        plain = R.randn(4, 6, generator=seeded(d), device=d)
        turned = T.empty(6, 4, device=d).t().normal_(generator=seeded(d))
        gaps = T.zeros(4, 12, device=d)
        gaps[:, ::2].normal_(generator=seeded(d))
        assert (turned == plain).all() and (gaps[:, ::2] == plain).all() and not gaps[:, 1::2].any()
        like = R.randn_like(turned, generator=seeded(d))
        assert (like == plain).all() and like.stride() == turned.stride()


# ------------------------------------------------------------------ statistics
def moments(x):
    a = x.array.astype(np.float64)
    return a.mean(), a.var()


N = 200_000


@pytest.mark.parametrize(("draw", "mean", "var"), [
    (lambda: R.rand(N), 1 / 2, 1 / 12),
    (lambda: R.rand(N, dtype=T.float64), 1 / 2, 1 / 12),
    (lambda: R.rand(N, dtype=T.bfloat16), 1 / 2, 1 / 12),
    (lambda: R.randn(N), 0, 1),
    (lambda: R.randn(N, dtype=T.float64), 0, 1),
    (lambda: R.normal(3.0, 2.0, (N,)), 3, 4),
    (lambda: R.normal(T.full((N,), -1.0), 0.5), -1, 0.25),
    (lambda: R.randint(0, 10, (N,)), 4.5, 99 / 12),
    (lambda: T.empty(N).exponential_(2.0), 1 / 2, 1 / 4),
    (lambda: T.empty(N).geometric_(0.25), 4, 12),
    (lambda: T.empty(N).log_normal_(0.0, 0.5), math.exp(1 / 8), (math.exp(1 / 4) - 1) * math.exp(1 / 4)),
    (lambda: R.bernoulli(T.full((N,), 0.3)), 0.3, 0.21),
    (lambda: T.empty(N).bernoulli_(0.3), 0.3, 0.21),
    (lambda: R.poisson(T.full((N,), 0.7)), 0.7, 0.7),
    (lambda: R.poisson(T.full((N,), 9.9)), 9.9, 9.9),
    (lambda: R.poisson(T.full((N,), 10.1)), 10.1, 10.1),
    (lambda: R.poisson(T.full((N,), 1000.0)), 1000, 1000),
])
def test_moments(draw, mean, var):
    T.random.manual_seed(1)
    got_mean, got_var = moments(draw())
    assert abs(got_mean - mean) < 5 * math.sqrt(var / N) + 1e-3 * (mean == 0.5)
    assert abs(got_var / var - 1) < 0.05


def test_distribution_functions():
    stats = pytest.importorskip("scipy.stats")
    T.random.manual_seed(2)
    for sample, cdf in ((R.rand(50_000), "uniform"), (R.randn(50_000), "norm"), (T.empty(50_000).cauchy_(), "cauchy"),
                        (T.empty(50_000).exponential_(), "expon"), (R.randn(50_000, dtype=T.float64), "norm")):
        assert stats.kstest(sample.array, cdf).pvalue > 1e-4, cdf
    for rate in (0.5, 8.0, 12.0, 200.0):
        got = R.poisson(T.full((50_000,), rate)).array.astype(int)
        low, high = stats.poisson.ppf([0.001, 0.999], rate).astype(int)
        edges = np.clip(got, low, high)
        expected = np.diff(np.concatenate([[0], stats.poisson.cdf(np.arange(low, high), rate), [1]])) * got.size
        assert stats.chisquare(np.bincount(edges - low, minlength=high - low + 1), expected).pvalue > 1e-4, rate
    x, y = R.randn(2, 100_000).array
    assert abs(np.corrcoef(x, y)[0, 1]) < 0.02 and abs(np.corrcoef(x[::2], x[1::2])[0, 1]) < 0.02


def test_ends_of_intervals():
    for kind in (T.float16, T.bfloat16, T.float32, T.float64):
        x = R.rand(300_000, dtype=kind)
        assert x.min() >= 0 and x.max() < 1
        y = T.empty(300_000, dtype=kind).uniform_(1, 2)
        assert y.min() >= 1 and y.max() < 2
    assert T.empty(200_000).exponential_().min() > 0
    assert (T.empty(3).uniform_(4, 4) == 4).all() and (T.empty(3).uniform_(T.tensor(4), T.tensor(4.0)) == 4).all()
    assert (T.empty(3).normal_(T.tensor(2.0), T.tensor(0)) == 2).all()
    assert set(R.randint(3, (1000,)).tolist()) == {0, 1, 2}
    assert R.randint(-2, 1, (500,)).min() == -2
    whole = R.randint(-(1 << 63), (1 << 63) - 1, (1000,))
    assert whole.min() < -(1 << 62) and whole.max() > 1 << 62
    assert T.empty(1000, dtype=T.int8).random_().min() >= 0
    assert T.empty(4000, dtype=T.float16).random_().max() <= 2048


# ------------------------------------------------------------------ surface
def test_sizes_dtypes_and_flags():
    assert R.rand(2, 3).shape == R.rand((2, 3)).shape == R.rand([2, 3]).shape == (2, 3)
    assert R.rand(()).shape == R.rand(size=()).shape == ()
    assert R.rand(0, 3).shape == (0, 3)
    assert R.randn(2, requires_grad=True).requires_grad
    assert R.randint(5, (2,), dtype=T.int32).dtype is T.int32
    assert R.randint(low=2, high=3, size=(2,)).tolist() == [2, 2]
    out = T.empty(4)
    assert R.rand(4, out=out) is out
    assert R.rand_like(T.zeros(3, dtype=T.float64)).dtype is T.float64
    assert R.randint_like(T.zeros(3), 5).dtype is T.float32
    assert R.randint_like(T.zeros(3), 4, 5, dtype=T.int64).tolist() == [4, 4, 4]
    assert sorted(R.randperm(100).tolist()) == list(range(100)) and R.randperm(100).tolist() != list(range(100))
    assert R.randperm(0).shape == (0,)


def test_normal_gives_zero_gradients_as_pytorch_does():
    mean, std = T.zeros(3, requires_grad=True), T.ones(2, 3, requires_grad=True)
    y = R.normal(mean, std)
    assert y.shape == (2, 3)
    y.sum().backward()
    assert mean.grad.tolist() == [0, 0, 0] and not std.grad.any()


@pytest.mark.parametrize(("call", "error", "words"), [
    (lambda: R.randint(5, 5, (2,)), RuntimeError, "low < high"),
    (lambda: R.randint(5), TypeError, "randint"),
    (lambda: R.rand(2, dtype=T.int64), RuntimeError, "floating dtype"),
    (lambda: T.empty(2).uniform_(2, 1), RuntimeError, "from ≤ to"),
    (lambda: T.empty(2).normal_(0, -1), RuntimeError, "std ≥ 0"),
    (lambda: T.empty(2).exponential_(0), RuntimeError, "lambd > 0"),
    (lambda: T.empty(2).bernoulli_(1.5), RuntimeError, "0 ≤ p ≤ 1"),
    (lambda: T.empty(2).geometric_(1), RuntimeError, "0 < p < 1"),
    (lambda: R.bernoulli(T.full((2,), 2.0)), RuntimeError, "probabilities"),
    (lambda: R.poisson(T.full((2,), -1.0)), RuntimeError, "rates ≥ 0"),
    (lambda: R.multinomial(T.ones(3), 4), RuntimeError, "replacement=True"),
    (lambda: R.multinomial(T.zeros(3), 1), RuntimeError, "positive sum"),
    (lambda: R.multinomial(T.tensor([1.0, -1.0]), 1), RuntimeError, "probabilities"),
    (lambda: R.multinomial(T.tensor([1.0, float("nan")]), 1), RuntimeError, "probabilities"),
    (lambda: R.rand(2, generator=Generator("cuda:0")), RuntimeError, "a generator on cpu"),
    (lambda: T.ones(2, requires_grad=True).normal_(), RuntimeError, "leaf"),
])
def test_errors(call, error, words):
    with pytest.raises(error, match=words):
        call()


def test_multinomial():
    T.random.manual_seed(0)
    p = T.tensor([[0.0, 1.0, 3.0, 0.0], [2.0, 0.0, 0.0, 2.0]])
    for replacement in (False, True):
        counts = np.zeros((2, 4))
        for _ in range(200):
            order = R.multinomial(p, 2, replacement)
            assert order.shape == (2, 2) and order.dtype is T.int64
            if not replacement:
                assert all(len(set(row)) == 2 for row in order.tolist())
            for row, picks in enumerate(order.tolist()):
                counts[row, picks[0]] += 1
        assert counts[0, 0] == counts[0, 3] == counts[1, 1] == counts[1, 2] == 0
        assert abs(counts[0, 2] / 200 - 0.75) < 0.12 and abs(counts[1, 0] / 200 - 0.5) < 0.14
    one = R.multinomial(T.tensor([1.0, 2.0, 7.0]).expand(20_000, 3), 1)
    assert np.allclose(np.bincount(one.array[:, 0]) / 20_000, [0.1, 0.2, 0.7], atol=0.02)
    many = R.multinomial(T.tensor([1.0, 2.0, 7.0], dtype=T.float16), 20_000, replacement=True)
    assert np.allclose(np.bincount(many.array) / 20_000, [0.1, 0.2, 0.7], atol=0.02)


# ------------------------------------------------------------------ generators
def test_a_seed_repeats_and_states_restore():
    T.random.manual_seed(3)
    a, state = R.rand(5), T.random.get_rng_state()
    b = R.randn(5)
    T.random.set_rng_state(state)
    assert (R.randn(5) == b).all()
    T.random.manual_seed(3)
    assert (R.rand(5) == a).all() and (R.rand(5) != a).any()
    assert T.random.initial_seed() == 3 and state.dtype is T.uint8
    with T.random.fork_rng():
        inside = R.rand(3)
    assert (R.rand(3) == inside).all()
    first, second = T.random.seed(), T.random.seed()
    assert first != second


def test_generators_are_separate_streams():
    g, h = seeded(seed=1), seeded(seed=1)
    R.rand(5)
    assert (R.rand(9, generator=g) == R.rand(9, generator=h)).all()
    assert (R.rand(3, generator=pickle.loads(pickle.dumps(g))) == R.rand(3, generator=h)).all()
    clone = h.clone_state()
    assert (R.rand(3, generator=clone) == R.rand(3, generator=h)).all()
    assert Generator().initial_seed() == Generator().initial_seed()
    assert Generator().manual_seed(-1).initial_seed() == 2**64 - 1
    assert h.get_offset() == 3 + 1 + 1
    for bad in (1 << 64, "a"):
        with pytest.raises((RuntimeError, TypeError)):
            Generator().manual_seed(bad)
    for bad in ([1], T.ones(16)):
        with pytest.raises(TypeError):
            Generator().set_state(bad)
    with pytest.raises(RuntimeError, match="expected 16 uint8 elements"):
        Generator().set_state(T.ones(3, dtype=T.uint8))


def test_no_two_draws_share_a_counter():
    g = seeded()

    def poisson():
        return R.poisson(T.ones(5), generator=g)

    for call in (lambda: R.rand(5, generator=g), lambda: R.rand(5, generator=g, dtype=T.float64), lambda: R.randint(9, (5,), generator=g),
                 poisson, lambda: D.dropout(T.ones(5), 0.5, generator=g)):
        before = g.get_offset()
        call()
        assert g.get_offset() - before == (5 if call is poisson else 2)


def test_cuda_seeds(simulated):
    T.random.manual_seed(4)
    a = R.rand(5, device="cuda")
    cuda.manual_seed_all(4)
    assert (R.rand(5, device="cuda") == a).all() and cuda.initial_seed() == 4
    state = cuda.get_rng_state()
    b = R.rand(5, device="cuda")
    cuda.set_rng_state(state)
    assert (R.rand(5, device="cuda") == b).all()
    assert len(cuda.get_rng_state_all()) == 1
    T.random.manual_seed(4)
    assert (R.rand(5).array == a.cpu().array).all()


# ------------------------------------------------------------------ captured graphs
def test_every_replay_of_a_graph_draws_new_numbers(simulated):
    T.random.manual_seed(9)
    x = T.ones(64, device="cuda", requires_grad=True)
    recorded = cuda.CUDAGraph()
    with cuda.graph(recorded):
        noise = R.rand(10, device="cuda")
        dropped = D.dropout(x, 0.5)
        (g,) = T.autograd.grad(dropped.sum(), x)
    results = []
    for _ in range(3):
        recorded.replay()
        results.append((noise.tolist(), dropped.tolist()))
        assert dropped.tolist() == g.tolist()
    assert results[0] != results[1] != results[2] and results[0] != results[2]
    T.random.manual_seed(9)
    eager = R.rand(10, device="cuda").tolist(), D.dropout(x, 0.5).tolist()
    assert eager == results[0]
    T.random.manual_seed(9)
    recorded.replay()
    assert (noise.tolist(), dropped.tolist()) == results[0]
    after = R.rand(10, device="cuda").tolist()
    recorded.replay()
    assert after not in (results[0][0], noise.tolist())


def test_capture_that_is_thrown_away_leaves_the_generator(simulated):
    T.random.manual_seed(9)
    before = default_generator(CUDA).get_offset()
    with pytest.raises(ZeroDivisionError), cuda.graph(cuda.CUDAGraph()):
        R.rand(10, device="cuda")
        raise ZeroDivisionError
    assert default_generator(CUDA).get_offset() == before


def test_operators_are_functions_of_seed_and_offset(simulated):
    for device in (CPU, CUDA):
        one, two = (draws.random_normal((9,), T.float32, device, 0.0, 1.0, 5, 100).tolist() for _ in range(2))
        assert one == two


def test_cuda_seeds_are_there_from_the_start():
    code = "import tritorch as torch; torch.cuda.manual_seed_all(3); torch.cuda.manual_seed(4); print(torch.manual_seed(5).initial_seed())"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "5"


@pytest.mark.parametrize("dtype", [T.float32, T.float64, T.bfloat16])
def test_pieces_that_threads_draw_are_the_whole(dtype, monkeypatch):
    from tritorch import philox

    def drawn(shape):
        T.manual_seed(3)
        wide = T.zeros(2 * shape[0], shape[1], dtype=dtype)
        made = [T.empty(shape, dtype=dtype) for _ in range(2)]
        return [made[0].normal_(1, 2), made[1].uniform_(-1, 3), wide[::2].exponential_(), wide]

    for shape in ((7, 9), (64, 3), (1, 1)):
        whole = drawn(shape)
        monkeypatch.setattr(philox, "PIECE", 16)
        for a, b in zip(whole, drawn(shape)):
            assert T.equal(a, b)
        monkeypatch.undo()


@pytest.mark.parametrize("k", [3, 2048, 5000])
def test_one_index_of_each_row(k, cuda):
    """Elements of chance 0 are never drawn, whatever rounding does, the others as often as their chance says; both devices agree."""
    p = np.zeros((1, k))
    p[0, ::max(k // 7, 1)] = np.arange(1, len(p[0, ::max(k // 7, 1)]) + 1)
    edges = np.array([0.0, 2.0 ** -60, 0.5, 1 - 2.0 ** -53])
    spread = np.concatenate([edges, (np.arange(396) + 0.5) / 396])[:, None]
    found = []
    for device in ("cpu", cuda):
        for kind in (T.float32, T.bfloat16):
            rows = T.tensor(np.repeat(p, 400, 0), dtype=kind, device=device)
            found.append(draw_one(rows, T.tensor(spread, device=device)).cpu().numpy())
    for other in found:
        assert (other == found[0]).all() and (p[0, other] > 0).all()
    counts = np.bincount(found[0][4:, 0], minlength=k) / 396
    assert np.abs(counts - p[0] / p.sum()).max() <= 2 / 396              # one uniform number each: no luck in it
