"""Compiled matrix kernels on the GPU made of PTX, against float64: every kind of product and attention that the tuner may choose, on sm_80
and on sm_90 with wgmma, TMA, mbarriers and warps of their own. The GPU has few multiprocessors, so that programs take several tiles in turn
and rings go around more than once."""
import contextlib
import os

import numpy as np
import pytest

pytest.importorskip("triton")

import tritorch as torch  # noqa: E402
import tritorch.nn  # noqa: E402,F401
from tritorch.cuda import ahead, tuner  # noqa: E402
from tritorch.nn import functional as F  # noqa: E402
from tritorch.ops.gemm import gemm  # noqa: E402
from tritorch.testing.ptx import bindings  # noqa: E402
from tritorch.testing.ptx.device import simulate  # noqa: E402

EPSILON = {"bfloat16": 2 ** -8, "float16": 2 ** -11, "float32": 2 ** -24, "float64": 2 ** -53}
RNG = np.random.default_rng(0)


@pytest.fixture(scope="module")
def gpu(request):
    if os.environ.get("TRITORCH_PTX"):
        pytest.skip("the whole suite runs on it")
    arch = getattr(request, "param", 90)
    few = bindings._GPUS | {arch: bindings._GPUS[arch] | {"MULTIPROCESSOR_COUNT": 3}}
    with pytest.MonkeyPatch.context() as patch, simulate(arch) as gpu:
        patch.setattr(bindings, "_GPUS", few)
        yield gpu


@contextlib.contextmanager
def lockstep(gpu):
    """Inside, all warps run together, twice as fast: for what comes of kernels that other tests run in other orders."""
    torch.cuda.synchronize()                                             # what waits for its kernel does not run in here
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gpu, "seed", None)
        yield
        torch.cuda.synchronize()


def draw(dtype, *shape):
    """A tensor of the device, and its numbers."""
    x = torch.tensor(RNG.standard_normal(shape).astype(np.float64)).to(getattr(torch, dtype))
    return x.cuda(), numbers(x)


def numbers(x):
    return x.detach().cpu().to(torch.float64).numpy()


def close(found, expected, size, epsilon):
    """`size`: what the sums behind each number amount to without their signs."""
    error = np.abs(numbers(found) - expected) / (epsilon * (np.abs(expected) + size))
    assert error.max() <= 1, f"{error.max():.2f} times what is allowed, at {np.unravel_index(error.argmax(), error.shape)}"


def product(dtype, candidate, m, n, k, turned_a=False, turned_b=False, epsilon=None):
    a, left = draw(dtype, *((k, m) if turned_a else (m, k)))
    b, right = draw(dtype, *((n, k) if turned_b else (k, n)))
    a, left = (a.mT, left.T) if turned_a else (a, left)
    b, right = (b.mT, right.T) if turned_b else (b, right)
    with tuner.forcing("matmul", candidate):
        out = a @ b
    close(out, left @ right, np.abs(left) @ np.abs(right) / np.sqrt(k), epsilon or 2 * EPSILON[dtype])


def tiles(kernel, *blocks, **rest):
    return dict(kernel=kernel, **dict(zip(("BLOCK_M", "BLOCK_N", "BLOCK_K", "num_warps"), blocks)), **rest)


HALF = {
    "plain": tiles("plain", 64, 64, 64, 4, num_stages=4, splits=1),
    "in parts": tiles("plain", 64, 128, 64, 4, num_stages=3, splits=2),
    "by mma.sync": tiles("plain", 16, 64, 128, 4, num_stages=4, splits=1),
    "persistent": tiles("persistent", 128, 64, 64, 4, num_stages=5, PIECES=1),
    "persistent in halves": tiles("persistent", 128, 256, 64, 8, num_stages=3, PIECES=2),
    "one consumer": tiles("gluon", 128, 128, 64, 8, STAGES=3, PIECES=2, CONSUMERS=1, PARTS=1, STREAM=False),
    "one consumer, stream": tiles("gluon", 128, 128, 64, 8, STAGES=3, PIECES=2, CONSUMERS=1, PARTS=1, STREAM=True),
    "one consumer, joined": tiles("gluon", 128, 128, 64, 8, STAGES=3, PIECES=2, CONSUMERS=1, PARTS=1, STREAM=True, JOINED=True),
    "one consumer, high": tiles("gluon", 256, 128, 64, 8, STAGES=3, PIECES=2, CONSUMERS=1, PARTS=1, STREAM=False),
    "one consumer, stream, small steps": tiles("gluon", 128, 128, 32, 8, STAGES=6, PIECES=2, CONSUMERS=1, PARTS=1, STREAM=True),
    "joined, small steps": tiles("gluon", 128, 128, 32, 8, STAGES=6, PIECES=2, CONSUMERS=1, PARTS=1, STREAM=True, JOINED=True),
    "three consumers": tiles("gluon", 64, 256, 64, 4, STAGES=3, PIECES=4, CONSUMERS=1, PARTS=3, STREAM=False),
    "three consumers, small steps": tiles("gluon", 64, 256, 32, 4, STAGES=6, PIECES=4, CONSUMERS=1, PARTS=3, STREAM=False),
    "room for whole tiles": tiles("gluon", 128, 128, 64, 8, STAGES=2, PIECES=4, CONSUMERS=1, PARTS=1, STREAM=False, WHOLE=True),
    "two consumers": tiles("gluon", 128, 128, 64, 4, STAGES=3, PIECES=2, CONSUMERS=2, PARTS=1, STREAM=False),
    "small": tiles("small", 64, 32, 64, 4, STAGES=2, splits=1),
    "small, in parts": tiles("small", 64, 64, 64, 4, STAGES=3, splits=2),
}


@pytest.mark.parametrize("kind", HALF)
def test_products_of_16_bits(gpu, kind):
    product("bfloat16", HALF[kind], 200, 264, 328)


@pytest.mark.parametrize("kind", ["one consumer, stream", "one consumer, joined"])
@pytest.mark.parametrize("columns", [100, 264])
def test_tiles_with_a_program_of_their_own_and_help(gpu, kind, columns):
    """Two tiles or three for three programs."""
    product("bfloat16", HALF[kind], 200 if columns == 100 else 100, columns, 328)


@pytest.mark.parametrize("dtype, kind, rows, columns", [
    ("bfloat16", "one consumer", 200, 100), ("bfloat16", "one consumer, stream", 200, 100), ("bfloat16", "one consumer, stream", 200, 264),
    ("bfloat16", "one consumer, joined", 200, 264), ("float16", "joined, small steps", 72, 40),
    ("float16", "one consumer, stream, small steps", 72, 40), ("bfloat16", "one consumer, high", 200, 264)])
def test_sums_of_rows_beside_the_product(gpu, dtype, kind, rows, columns):
    """Of all of K by the first tile of a row, or of a share of it by each; of an operand that lies along its rows, and along K."""
    (a, left), (b, right) = draw(dtype, 328, rows), draw(dtype, 328, columns)
    out, sums = torch.empty(rows, columns, dtype=a.dtype, device="cuda"), torch.full((2, rows), float("nan"), device="cuda")
    with tuner.forcing("matmul", HALF[kind]):
        for k, x in enumerate((a.mT, a.mT.contiguous())[: 1 + ("small" in kind)]):
            gemm(out, x, b, row_sums=sums[k])
            close(out, left.T @ right, np.abs(left.T) @ np.abs(right) / np.sqrt(328), 8 * EPSILON[dtype])
            close(sums[k], left.sum(0), np.abs(left).sum(0), 2 ** -20)


def test_the_last_of_a_tile_adds_up_what_two_kernels_do(gpu):
    """Bit for bit, into more digits than the operands have, added to what is there; in a graph, which is replayed twice."""
    (a, left), (b, right), (before, added) = draw("bfloat16", 328, 200), draw("bfloat16", 328, 264), draw("float32", 200, 264)
    outs = [before.clone() for _ in range(2)]
    sums = [torch.full((200,), 7.0, device="cuda") for _ in range(2)]
    with lockstep(gpu), tuner.forcing("matmul", HALF["one consumer, stream"]):
        gemm(outs[0], a.mT, b, outs[0], row_sums=sums[0])
    with tuner.forcing("matmul", HALF["one consumer, joined"]):
        gemm(outs[1], a.mT, b, outs[1], row_sums=sums[1])
        once, graph = outs[1].clone(), torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            gemm(outs[1], a.mT, b, before, row_sums=sums[1])
    assert (numbers(outs[0]) == numbers(once)).all()
    close(once, left.T @ right + added, np.abs(left.T) @ np.abs(right) / np.sqrt(328), 32 * EPSILON["float32"])
    for expected in (7 + 2 * left.sum(0), 7 + 3 * left.sum(0)):
        outs[1].fill_(float("nan"))
        graph.replay()
        assert (numbers(outs[1]) == numbers(once)).all()
        close(sums[1], expected, np.abs(left).sum(0), 2 ** -20)


@pytest.mark.parametrize("kind, turned_a, turned_b", [("one consumer", True, False), ("one consumer, stream", False, True),
                                                      ("one consumer, joined", False, True), ("two consumers", False, False)])
def test_rows_that_tma_cannot_step_over(gpu, kind, turned_a, turned_b):
    product("bfloat16", HALF[kind], 131, 133, 199, turned_a, turned_b)


@pytest.mark.parametrize("dtype", EPSILON)
def test_products_smaller_than_a_tile(gpu, dtype):
    """A thread for each element, or one warp for a small tile."""
    small = [tiles("plain", *blocks, 1, num_stages=2, splits=1) for blocks in ((16, 16, 16), (32, 32, 32), (32, 64, 16), (64, 16, 32))]
    for candidate in (dict(kernel="each", BLOCK=128, num_warps=1), *(small[:1] if dtype == "float64" else small)):
        a, left = draw(dtype, 5, 17, 19)
        b, right = draw(dtype, 5, 19, 3)
        with tuner.forcing("matmul", candidate):
            close(a @ b, left @ right, np.abs(left) @ np.abs(right) / np.sqrt(19), 8 * EPSILON[dtype])


@pytest.mark.parametrize("kind, turned_a, turned_b", [("plain", True, True), ("persistent", True, False), ("two consumers", False, True),
                                                      ("two consumers", True, False)])
def test_transposed_operands(gpu, kind, turned_a, turned_b):
    product("float16", HALF[kind], 136, 200, 328, turned_a, turned_b)


def test_what_comes_behind_tiles_computed_as_their_transposes(gpu):
    """Of whole numbers that TF32 holds: factors, a tile, an activation and what was before it, a column, one b for all of a batch."""
    (a, b, c, column), (left, right, added, more) = zip(*[exactly(*s) for s in ((3, 136, 100), (3, 100, 264), (3, 136, 264), (136, 1))])
    out, pre = [torch.full((3, 136, 264), float("nan"), device="cuda") for _ in range(2)]
    candidate = tiles("gluon", 256, 128, 32, 8, STAGES=4, PIECES=8, CONSUMERS=1, PARTS=1, STREAM=False, ACROSS=True)
    torch.set_float32_matmul_precision("high")
    try:
        with tuner.forcing("matmul", candidate):
            gemm(out, a, b, c, alpha=0.5, beta=-2.0, activation="relu", pre=pre)
            want = 0.5 * (left @ right) - 2 * added
            np.testing.assert_array_equal(numbers(pre), want)
            np.testing.assert_array_equal(numbers(out), np.maximum(want, 0))
            gemm(out, a, b[0].expand(3, 100, 264), column)
            np.testing.assert_array_equal(numbers(out), left @ right[0] + more)
            gemm(out[0], a[0], b[0], behind=(c[0],))
            np.testing.assert_array_equal(numbers(out[0]), left[0] @ right[0] + added[0])
    finally:
        torch.set_float32_matmul_precision("highest")


def exactly(*shape):
    """Whole numbers up to 100 on the device, and the same as they are."""
    x = RNG.integers(-100, 101, shape).astype(np.float64)
    return torch.tensor(x).to(torch.float32).cuda(), x


def test_products_in_tf32(gpu):
    """Operands are rounded to 10 bits. The errors of a sum are random, 0.45 · 2^-10 of `size`, and the largest of 36 or 70 thousand are
    four or five times that; of operands that are cut it would be twice as much."""
    torch.set_float32_matmul_precision("high")
    try:
        for candidate in (tiles("plain", 64, 64, 32, 4, num_stages=4, splits=1),
                          tiles("gluon", 128, 128, 32, 4, STAGES=3, PIECES=2, CONSUMERS=2, PARTS=1, STREAM=False),
                          tiles("gluon", 64, 256, 32, 4, STAGES=3, PIECES=8, CONSUMERS=1, PARTS=3, STREAM=False)):
            product("float32", candidate, 136, 264, 232, turned_b=True, epsilon=2 ** -9)
        for tile in ((256, 128, 32, 8), (128, 256, 32, 8), (64, 128, 32, 4)):
            candidate = tiles("gluon", *tile, STAGES=3, PIECES=8, CONSUMERS=1, PARTS=1, STREAM=tile[0] == 128, ACROSS=True)
            product("float32", candidate, 136 if tile[0] == 64 else 264, 264, 232, turned_a=tile[0] == 64, epsilon=2.5 * 2 ** -10)
    finally:
        torch.set_float32_matmul_precision("highest")


@pytest.mark.parametrize("candidate", [tiles("exact", 64, 128, 32, 4, num_stages=3), tiles("exact_gluon", 128, 128, 32, 4, STAGES=4)],
                         ids=["exact", "exact_gluon"])
def test_float32_of_16_bit_parts(gpu, candidate):
    product("float32", candidate, 136, 264, 200, epsilon=16 * EPSILON["float32"])


@pytest.mark.parametrize("gpu", [80], indirect=True)
@pytest.mark.parametrize("dtype, candidate", [
    ("bfloat16", tiles("plain", 64, 64, 64, 4, num_stages=4, splits=1)),
    ("float16", tiles("plain", 64, 128, 64, 4, num_stages=3, splits=2)),
    ("float64", tiles("plain", 32, 32, 16, 4, num_stages=3, splits=1))], ids=["bfloat16", "float16", "float64"])
def test_products_before_hopper(gpu, dtype, candidate):
    product(dtype, candidate, 136, 72, 200, turned_b=dtype == "float16", epsilon=64 * EPSILON[dtype] if dtype == "float64" else None)


# ------------------------------------------------------------------ attention, convolution, groups, the last layer of a language model
def same_as_float64(function, *shapes, epsilon=8 * EPSILON["bfloat16"], forward=contextlib.nullcontext):
    """A function of tensors in bfloat16 on the device, inside of `forward()`, and its gradients, against the CPU's in float64."""
    there = [draw("bfloat16", *shape)[0].requires_grad_() for shape in shapes]
    here = [x.detach().cpu().to(torch.float64).requires_grad_() for x in there]
    with forward():
        out = function(*there)
    reference = function(*here)
    g = draw("bfloat16", *out.shape)[0]
    found = [out, *torch.autograd.grad([out], there, [g])]
    expected = [reference, *torch.autograd.grad([reference], here, [g.cpu().to(torch.float64)])]
    for x, y in zip(found, map(numbers, expected)):
        close(x, y, np.abs(y).max(), epsilon)


WAYS = {
    "plain": [{"kernel": "plain", "TMA": True, "BLOCK_M": 64, "BLOCK_N": 64, "num_warps": 4, "num_stages": 2}] * 3,
    "gluon": [{"kernel": "gluon", "GROUPS": 2, "ROWS": 64, "BLOCK_N": 128, "STAGES": 2, "num_warps": 4},
              {"kernel": "gluon", "ROWS": 64, "BLOCK_N": 64, "STAGES": 3, "num_warps": 4},
              {"kernel": "gluon", "ROWS": 64, "BLOCK_M": 64, "STAGES": 3, "num_warps": 4}],
}
WAYS["held"] = [WAYS["plain"][0], {**WAYS["gluon"][1], "KEPT": 2}, {**WAYS["gluon"][2], "HELD": 1}]
WAYS["halves"] = [{**WAYS["gluon"][0], "HALVES": 1}, *WAYS["plain"][1:]]


@pytest.mark.parametrize("way, size", [("plain", 64), ("gluon", 64), ("gluon", 40), ("held", 64), ("halves", 64)])
def test_attention_and_its_gradients(gpu, way, size):
    """What a head has less than a tile is filled with zeros by TMA."""
    with contextlib.ExitStack() as stack:
        families = "attention_forward", "attention_backward_q", "attention_backward_kv", "attention_backward"
        for family, candidate in zip(families, [*WAYS[way], {"kernel": "apart"}]):
            stack.enter_context(tuner.forcing(family, candidate))
        same_as_float64(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True),
                        (1, 2, 264, size), (1, 1, 264, size), (1, 1, 264, size))


BEFORE = {"kernel": "gluon", "GROUPS": 2, "ROWS": 64, "BLOCK_N": 128, "STAGES": 3, "num_warps": 4}
LEAN = {"two groups": (BEFORE, {**BEFORE, "LEAN": 1}), "halves": (BEFORE, {**BEFORE, "HALVES": 1, "LEAN": 1}),
        "four groups": ({**BEFORE, "BLOCK_N": 64}, {**BEFORE, "GROUPS": 4, "BLOCK_N": 64, "STAGES": 6, "LEAN": 1})}


@pytest.mark.parametrize("way, dtype, rows, asked", [
    ("halves", "float16", 140, "causal"), ("four groups", "bfloat16", 200, "causal"), ("four groups", "float16", 65, "all"),
    ("two groups", "float16", 75, "padding and dropout"), ("four groups", "bfloat16", 150, "window")])
def test_lean_attention_is_the_same_to_the_bit(gpu, way, dtype, rows, asked):
    """Some scores are in the hundreds; of one sequence no key is seen under the padding, of the other a few. What is free is poisoned."""
    q, k, v = [draw(dtype, 2, heads, n, 64)[0] * factor for heads, n, factor in ((2, rows, 20), (1, 200, 1), (1, 200, 1))]
    options = {"causal": {"is_causal": True}, "all": {}, "window": {"window_size": (70, 5)}}.get(asked)
    if asked == "window":
        options["alibi_slopes"] = torch.tensor([0.1, 0.02], device="cuda")
    if options is None:
        mask = torch.zeros(2, 1, 1, 200, dtype=torch.bool)
        mask[0, ..., :70] = True
        options = {"attn_mask": mask.cuda(), "dropout_p": 0.2}
    found = []
    for candidate, order in zip(LEAN[way], (lockstep(gpu), contextlib.nullcontext())):
        torch.manual_seed(3)
        with order, tuner.forcing("attention_forward", candidate), torch.no_grad():
            found.append(numbers(F.scaled_dot_product_attention(q, k, v, enable_gqa=True, **options)))
    if way == "halves":                                                  # sums of other threads
        np.testing.assert_allclose(*found, atol=2 * EPSILON[dtype] * np.abs(found[0]).max())
    else:
        np.testing.assert_array_equal(*found)
    if "dropout" not in asked:
        options = {name: x.cpu().double() if name == "alibi_slopes" else x for name, x in options.items()}
        expected = numbers(F.scaled_dot_product_attention(*[x.cpu().double() for x in (q, k, v)], enable_gqa=True, **options))
        close(torch.tensor(found[1]), expected, np.abs(expected).max(), 4 * EPSILON[dtype])
    assert np.isfinite(found[1]).all()


TOGETHER = [({"kernel": "together_gluon", "BLOCK_M": 128, "BLOCK_N": 128, "KEPT": 2, "STAGES": 2, "num_warps": 4}, 64),
            ({"kernel": "together_gluon", "BLOCK_M": 64, "BLOCK_N": 128, "KEPT": 1, "STAGES": 3, "num_warps": 4}, 128),
            ({"kernel": "together", "TMA": True, "BLOCK_M": 64, "BLOCK_N": 64, "num_warps": 4, "num_stages": 2}, 64)]


BEHIND = [({**way, "BESIDE": 1, "BEHIND": 1}, size) for way, size in TOGETHER[:2]]


@pytest.mark.parametrize("way, size, causal", [
    pytest.param(way, size, causal, id=f"{way['kernel']}-{size}-{causal}{'-behind' * way.get('BEHIND', 0)}")
    for way, size in [*TOGETHER, (TOGETHER[0][0], 32), (TOGETHER[1][0], 72), *BEHIND] for causal in (False, True) if causal or size == 64])
def test_gradients_of_attention_together(gpu, way, size, causal):
    """Three blocks of keys take turns, whatever the order of the programs."""
    with tuner.forcing("attention_forward", WAYS["plain"][0]), tuner.forcing("attention_backward", way):
        same_as_float64(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=True),
                        (1, 2, 264, size), (1, 1, 264, size), (1, 1, 264, size), forward=lambda: lockstep(gpu))


def test_attention_in_a_window_with_slopes(gpu):
    three = {"kernel": "gluon", "GROUPS": 3, "ROWS": 64, "BLOCK_N": 64, "STAGES": 4, "num_warps": 4}
    with tuner.forcing("attention_forward", three), tuner.forcing("attention_backward", TOGETHER[0][0]):
        same_as_float64(lambda q, k, v: F.scaled_dot_product_attention(
            q, k, v, enable_gqa=True, window_size=(150, 5), alibi_slopes=torch.tensor([0.1, 0.02], device=q.device)),
            (1, 2, 300, 64), (1, 1, 330, 64), (1, 1, 330, 64))


@pytest.mark.parametrize("way, size", TOGETHER[::2], ids=["gluon", "plain"])
@pytest.mark.parametrize("order", ["acquire", "release"])
def test_an_order_taken_out_of_a_compiled_kernel_is_noticed(gpu, way, size, order):
    """Programs that take turns tell each other by acquire and release alone."""
    q, k, v = (draw("bfloat16", 1, 1, 264, size)[0].requires_grad_() for _ in range(3))
    with lockstep(gpu):
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    kernels, run = [], gpu._run
    with tuner.forcing("attention_backward", way), pytest.MonkeyPatch.context() as patch, ahead.staying():
        patch.setattr(gpu, "_run", lambda kernel, launch: (kernels.append(kernel), run(kernel, launch)))
        torch.autograd.grad(out, [q, k, v], out, retain_graph=True)
        found = [ins for ins in kernels[-1].program.code if order in ins.modifiers]
        assert found
        for ins in found:
            patch.setattr(ins, "modifiers", tuple("relaxed" if word == order else word for word in ins.modifiers))
        with pytest.raises(RuntimeError, match="a race: (reads|writes) what .* has written"):
            for _ in range(8):
                torch.autograd.grad(out, [q, k, v], out, retain_graph=True)


def test_convolution(gpu):
    same_as_float64(lambda x, w: F.conv2d(x, w, padding=1, stride=2), (2, 16, 15, 13), (24, 16, 3, 3))


def test_products_of_groups(gpu):
    same_as_float64(lambda a, b: F.grouped_mm(a, b, offs=torch.tensor([40, 40, 168], dtype=torch.int32, device=a.device)),
                    (168, 72), (3, 72, 136))


def test_linear_cross_entropy(gpu):
    def loss(x, w):
        return F.linear_cross_entropy(x, w, torch.arange(70, device=x.device) % 200, reduction="none")

    same_as_float64(loss, (70, 64), (200, 64))
