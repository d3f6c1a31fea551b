"""Errors against float64 of every configuration of products and attention that the tuner may choose: at most 1.1 times PyTorch's.

Sizes are odd, rows of operands and results lie further apart than they are long, and NaN lies in between and where results go. What the
simulated GPU cannot run is left to -m gpu, which also is for the GPU made of PTX.
"""
import contextlib
import functools
import itertools

import numpy as np
import pytest
from arrays import draw
from pytorch_numbers import attention, product, rounded, size_of_error

import tritorch as T
from tritorch.cuda import driver, tuner
from tritorch.ops import attention_cuda, gemm, gemm_run
from tritorch.ops import gemm_choice as choice
from tritorch.ops.gemm_pairs import joined, paired
from tritorch.tensor import from_array

H200 = (132, 232448, 9)
MOST = 1.1
# What is multiplied: the dtype, the precision, and the number of elements that memory has between two rows
KINDS = {"half": ("bfloat16", "highest", 16), "odd": ("float16", "highest", 3),
         "tf32": ("float32", "high", 16), "bf16": ("float32", "medium", 16), "ieee": ("float32", "highest", 3),
         "parts": ("float32", "highest", 16), "fp64": ("float64", "highest", 2)}
MULTIPLIED = {"half": "bfloat16", "odd": "float16", "tf32": "tf32", "bf16": "bfloat16", "ieee": "float32", "parts": "float32",
              "fp64": "float64"}
TURNED = [(False, False), (False, True), (True, False), (True, True)]


@pytest.fixture(autouse=True)
def few_large_tiles(monkeypatch):
    """A GPU's tiles on the simulated one too, and so few programs that each takes several."""
    monkeypatch.setattr(T.cuda.driver, "hardware_tiles", True)
    monkeypatch.setattr(gemm_run, "sm_count", lambda: 3)


def number(x):
    return x.detach().cpu().to(T.float64).array


def in_memory(x, between, dtype, device, turned=False):
    """The numbers of a matrix, or with its transposed memory, whose rows lie further apart than they are long; NaN in between. The host
    lays them out: kernels in a GPU's tiles took the most of a test's time."""
    rows, columns = x.shape[::-1] if turned else x.shape
    memory = T.full((rows, columns + -columns % 16 + between), float("nan"), dtype=dtype)
    memory[:, :columns] = from_array(np.ascontiguousarray(x.T if turned else x)).to(dtype)
    memory = memory.to(device)
    return memory[:, :columns].mT if turned else memory[:, :columns]


@functools.cache
def numbers(kind, m, n, k):
    """(a, b, their product, size of PyTorch's error). Their mean is not 0: errors to one side add up."""
    dtype = KINDS[kind][0]
    a, b = [rounded(draw(*s, dtype=np.float64 if kind == "fp64" else np.float32) + 0.25, dtype) for s in ((m, k), (k, n))]
    want = a.astype(np.longdouble) @ b
    return a, b, want, size_of_error(rounded(product(a, b, MULTIPLIED[kind]), dtype), want)


@contextlib.contextmanager
def settled(precision, **candidates):
    with contextlib.ExitStack() as stack:
        stack.callback(T.set_float32_matmul_precision, T.get_float32_matmul_precision())
        T.set_float32_matmul_precision(precision)
        for family, candidate in candidates.items():
            stack.enter_context(tuner.forcing(family, candidate))
        yield


def holds(kind, candidate, shape, turned, device):
    """Multiply and compare; nothing is written beside the result."""
    a, b, want, allowed = numbers(kind, *shape)
    name, precision, between = KINDS[kind]
    dtype = getattr(T, name)
    left, right = [in_memory(x, between, dtype, device, is_turned) for x, is_turned in zip((a, b), turned)]
    out = in_memory(np.full(want.shape, np.nan), between, dtype, device)
    with settled(precision, matmul=candidate):
        gemm.gemm(out, left, right)
    memory = number(T.as_strided(out, (want.shape[0], out.stride(0)), (out.stride(0), 1)))
    assert np.isnan(memory[:, want.shape[1]:]).all()
    error = size_of_error(memory[:, :want.shape[1]], want)
    assert error <= MOST * allowed, f"{error / allowed:.3f} times the error of PyTorch"


def cases(*found, turns=TURNED, marks=()):
    """Parameters of (kind, candidate) pairs; operands are turned this way and that."""
    return [pytest.param(kind, candidate, turned, id="-".join(str(v) for v in (kind, *candidate.values())), marks=marks)
            for (kind, candidate), turned in zip(found, itertools.cycle(turns))]


def tiled(m, n, k):
    """Of each tile, K in one piece and in several."""
    seen = {}
    for kind, (dtype, _, _) in KINDS.items():
        for _, c in choice.plain(kind, m, n, k, 1, getattr(T, dtype).itemsize, H200):
            seen.setdefault((kind, c["BLOCK_M"], c["BLOCK_N"], c["BLOCK_K"], c["splits"] > 1), (kind, c))
    return seen.values()


def by_tma(choices):
    """Resident programs, and blocks of K dealt out evenly, where there is reason to."""
    for kind, itemsize in (("half", 2), ("tf32", 4)):
        for _, c in choices(4096, 4096, 4096, 1, H200, itemsize, itemsize):
            yield kind, c
        for _, c in choices(768, 3072, 32768, 1, H200, itemsize, itemsize):
            if c.get("STREAM"):
                yield kind, c


def in_pairs():
    """Tiles whose programs share b."""
    m, n, k = 32768, 2304, 768
    return [("half", c) for _, c in paired(choice.gluon(m, n, k, 1, H200, 2, 2), m, n, 1, H200)]


def by_the_last():
    """Streams whose parts the last program of a tile adds up, of every tile."""
    return [("half", c) for _, c in joined(choice.gluon(768, 3072, 32768, 1, H200, 2, 2), 768, 3072, 32768, 1, H200)]


def across():
    """Tiles computed as their transposes, where b does not lie along K."""
    for size in ((4096, 4096, 4096), (768, 3072, 32768)):
        for _, c in choice.gluon(*size, 1, H200, 4, 4, across=True):
            if size[0] == 4096 or c["STREAM"]:
                yield "tf32", c


def exact(hopper):
    return [("parts", c) for _, c in choice.exact(4096, 4096, 4096, 1, H200, hopper)]


def vectors(blocks):
    for block_n, block_k, warps in blocks:
        for kind, splits in (("half", 1), ("ieee", 3), ("parts", 1), ("fp64", 2)):
            yield kind, dict(kernel="vector", BLOCK_N=block_n, BLOCK_K=block_k, num_warps=warps, splits=splits)


def short():
    """What is for few elements of K alone."""
    yield from [found for found in tiled(83, 133, 61) if found[1]["num_warps"] == 1]
    for kind in ("half", "odd", "ieee", "fp64"):
        yield kind, choice.each(83, 133, 61, 1, H200)[0][1]


def whole(m, n, k):
    """Of each tile that is for small products on Hopper, K in one piece and in two."""
    for kind in ("half", "parts"):
        for _, c in choice.whole(m, n, k, 1, H200, kind == "parts"):
            if c["splits"] < 3:
                yield kind, c
    for swapped in (False, True):
        for _, c in choice.groups(*((n, m) if swapped else (m, n)), k, 1, H200, False, swapped):
            if c["splits"] == 1 + swapped:
                yield "parts", c


TILED = cases(*tiled(83, 133, 331))
SHORT = cases(*short())
BY_TMA = cases(*by_tma(choice.persistent), *exact(False)) + cases(*by_tma(choice.gluon), *exact(True), marks=pytest.mark.gpu)
BY_TMA += [case for turn in TURNED for case in cases(*in_pairs(), turns=[turn], marks=pytest.mark.gpu)]
BY_TMA += cases(*by_the_last(), marks=pytest.mark.gpu)
BY_TMA += cases(*across(), turns=[t for t in TURNED if not t[1]], marks=pytest.mark.gpu)
WHOLE = cases(*{str(found): found for found in (*whole(70, 75, 523), *whole(70, 75, 67))}.values(), marks=pytest.mark.gpu)
VECTORS = cases(*vectors(choice.VECTORS), *vectors(choice.COLUMNS))


@pytest.mark.parametrize("kind, candidate, turned", TILED)
def test_tiled_kernel(kind, candidate, turned, cuda):
    holds(kind, candidate, (83, 133, 331), turned, cuda)


@pytest.mark.parametrize("kind, candidate, turned", SHORT)
def test_short_sums(kind, candidate, turned, cuda):
    holds(kind, candidate, (83, 133, 61), turned, cuda)


@pytest.mark.parametrize("kind, candidate, turned", BY_TMA)
def test_kernels_by_tma(kind, candidate, turned, cuda):
    if driver.current().device_properties(0).major < 9:
        pytest.skip("TMA came with Hopper")
    holds(kind, candidate, (135, 265, 331), turned, cuda)


@pytest.mark.parametrize("kind, candidate, turned", WHOLE)
def test_small_products(kind, candidate, turned, cuda):
    if driver.current().device_properties(0).major != 9:
        pytest.skip("these multiply as Hopper does alone")
    holds(kind, candidate, (70, 75, 67 if candidate["BLOCK_K"] == 16 else 523), turned, cuda)


@pytest.mark.parametrize("kind, candidate, turned", VECTORS)
def test_vectors(kind, candidate, turned, cuda):
    """A row times a matrix, and a matrix times a column."""
    holds(kind, candidate, (1, 77, 2603), turned, cuda)
    holds(kind, candidate, (77, 1, 2603), turned, cuda)


def test_nothing_was_left_out():
    assert {case.values[1]["kernel"] for case in TILED + SHORT + BY_TMA + WHOLE + VECTORS} == set(gemm_run.RUN)
    assert {case.values[0] for case in BY_TMA if case.values[1].get("STREAM")} == {"half", "tf32"}
    assert {way["kernel"] for case in ATTENTION for way in case.values[3].values()} == {"plain", "gluon", "apart", "together",
                                                                                         "together_gluon"}


# ------------------------------------------------------------------ what is held against them
@pytest.mark.parametrize("kind", ["half", "odd"])
def test_products_have_the_error_of_torch(kind):
    """On the CPU it does with 16-bit numbers what it does on a GPU."""
    torch = pytest.importorskip("torch")
    a, b, want, allowed = numbers(kind, 83, 133, 331)
    left, right = [torch.from_numpy(x).to(getattr(torch, KINDS[kind][0])) for x in (a, b)]
    assert 0.98 < size_of_error((left @ right).double().numpy(), want) / allowed < 1.02


@pytest.mark.parametrize("causal", [False, True])
def test_attention_has_the_error_of_torch(causal):
    """Where the CPU does the same; the gradients of keys and values have 1.4 times the error there."""
    torch = pytest.importorskip("torch")
    arrays, want, theirs = attended("half", 64, causal, heads=1)
    q, k, v, g = [torch.from_numpy(x)[None].bfloat16() for x in arrays]
    out = torch.nn.functional.scaled_dot_product_attention(q.requires_grad_(), k, v, is_causal=causal)
    for place, found in zip((0, 2), (out, *torch.autograd.grad(out, q, g))):
        error, allowed = [size_of_error(x, want[place]) for x in (found.detach().double().numpy()[0], theirs[place])]
        assert 0.95 < error / allowed < 1.05


def test_what_pytorch_rounds_counts():
    """Operands cut to TF32 instead of rounded, or a result that is rounded twice, would not pass."""
    a, b, want, allowed = numbers("tf32", 83, 133, 331)
    cut = [(x.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32) for x in (a, b)]
    assert size_of_error(cut[0] @ cut[1], want) > 3 * allowed
    a, b, want, allowed = numbers("half", 83, 133, 331)
    pieces = sum(rounded(product(a[:, k:k + 64], b[k:k + 64], "bfloat16"), "bfloat16") for k in range(0, 331, 64))
    assert size_of_error(rounded(pieces, "bfloat16"), want) > 1.2 * allowed
    assert rounded(np.float32([1024.5, -1024.5]), "tf32").tolist() == [1025, -1025]


# ------------------------------------------------------------------ attention
L, S = 133, 151
EDGE = {64: 33, 128: 100, 256: 130}                                      # a size of heads for each bound of a table of tiles
HALF = {256: 136}                                                        # what TMA and Gluon know are their own bounds and multiples of 8


@functools.cache
def attended(kind, size, causal, heads=2):
    """(operands, results in float64, those of PyTorch) as `attention` has them."""
    dtype, number = KINDS[kind][0], np.float64 if kind == "fp64" else np.float32
    shapes = (heads, L, size), (1, S, size), (1, S, size), (heads, L, size)
    arrays = [rounded(draw(*shape, dtype=number, seed=seed), dtype) for seed, shape in enumerate(shapes)]
    hidden = causal & (np.arange(S) > np.arange(L)[:, None])
    want = attention(*[x.astype(np.longdouble) for x in arrays], hidden, size ** -0.5, np.matmul, "longdouble")
    by = functools.partial(product, kind=MULTIPLIED[kind])
    return arrays, want, attention(*arrays, hidden, size ** -0.5, by, dtype)


def heads_in_memory(x, dtype, device):
    """(1, heads, rows, size), row by row in memory, and NaN between two heads."""
    memory = T.full((x.shape[1], x.shape[0], x.shape[2] + 16), float("nan"), dtype=dtype)
    memory[..., :x.shape[2]] = from_array(np.ascontiguousarray(x.swapaxes(0, 1))).to(dtype)
    return memory.to(device)[..., :x.shape[2]].transpose(0, 1).unsqueeze(0)


def attends(kind, size, causal, device, **candidates):
    """Forward where its candidate is given, else backward, from the numbers that PyTorch has."""
    arrays, want, theirs = attended(kind, size, causal)
    dtype, settings = getattr(T, KINDS[kind][0]), ((None, 0 if causal else None), size ** -0.5, (0.0, 0, 0), None)
    q, k, v, g, out = [heads_in_memory(x, dtype, device) for x in (*arrays, theirs[0])]
    lse = from_array(theirs[1].astype(np.float64)[None]).to(device).to(dtype.compute)
    with settled(KINDS[kind][1], **candidates):
        if "attention_forward" in candidates:
            found = out, lse = T.full_like(out, float("nan")), T.full_like(lse, float("nan"))
            attention_cuda.forward(out, lse, q, k, v, None, None, None, None, None, *settings)
            places = 0, 1
        else:
            found = [heads_in_memory(np.full(x.shape, np.nan), dtype, device) for x in (arrays[0], *arrays[1:3])]
            attention_cuda.backward(*found, g, q, k, v, None, None, out, lse, None, None, None, *settings)
            places = 2, 3, 4
    for place, got in zip(places, found):
        error, allowed = [size_of_error(x, want[place]) for x in (number(got)[0], theirs[place])]
        last = np.finfo(dtype.compute.numpy).eps * np.abs(want[1]).max() if place == 1 else 0    # nobody sees lse: a last bit more is well
        assert error <= MOST * allowed + last, f"result {place}: {error / allowed:.3f} times the error of PyTorch"


def ways(which, kind, bound):
    """Of the kernels that the simulated GPU runs too."""
    multiplied = kind if kind in ("half", "ieee", "fp64") else "tf32"
    tiles = dict.fromkeys(t for name, table in attention_cuda.TILES[which].items() if name.split()[0] == multiplied
                          for t in table.get(bound, ()))
    for tile, tma in itertools.product(tiles, (True, False) if kind == "half" else (False,)):
        yield attention_cuda.candidate("together" if which == "backward" else "plain", tma, *tile)


def gluon(which, bound):
    return [{"kernel": "together_gluon" if which == "backward" else "gluon", **tile, "num_warps": 4}
            for tile in attention_cuda.GLUON[which].get(bound, ())]


def attention_cases():
    """Gradients of rows and of keys apart go in pairs."""
    def case(kind, bound, causal, marks=(), **ways):
        size = HALF.get(bound, bound) if kind == "half" else EDGE[bound]
        shown = [str(v) for way in ways.values() for v in way.values()]
        return pytest.param(kind, size, causal, {f"attention_{name}": way for name, way in ways.items()}, marks=marks,
                            id="-".join([kind, str(size), *ways, *shown]))

    def cases_of(kind, bound, found, marks=()):
        turn = itertools.cycle([False, True])
        for which in ("forward", "backward"):
            yield from (case(kind, bound, next(turn), marks, **{which: way}) for way in found(which))
        rows, keys = list(found("backward_q")), list(found("backward_kv"))
        for i in range(max(len(rows), len(keys))):
            yield case(kind, bound, next(turn), marks, backward={"kernel": "apart"}, backward_q=rows[i % len(rows)],
                       backward_kv=keys[i % len(keys)])

    for kind, bound in itertools.product(("half", "tf32", "bf16", "ieee", "fp64"), EDGE):
        yield from cases_of(kind, bound, lambda which, kind=kind, bound=bound: ways(which, kind, bound))
    for bound in (64, 128, 256):
        yield from cases_of("half", bound, lambda which, bound=bound: gluon(which, bound), pytest.mark.gpu)


ATTENTION = list(attention_cases())


@pytest.mark.parametrize("kind, size, causal, candidates", ATTENTION)
def test_attention(kind, size, causal, candidates, cuda):
    attends(kind, size, causal, cuda, **candidates)
