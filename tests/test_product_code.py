"""Machine code of matrix products and attention: what large problems launch compiles for three architectures and spills no registers."""
import re
from types import SimpleNamespace

import pytest

triton = pytest.importorskip("triton")

import machine_code  # noqa: E402
from launch_kernels import sum_of_products  # noqa: E402
from recording_driver import RecordingDriver  # noqa: E402

import tritorch as T  # noqa: E402
from bench import sass  # noqa: E402
from tritorch.cuda import driver, tuner  # noqa: E402
from tritorch.cuda.compiler import compile_kernel, recording  # noqa: E402
from tritorch.cuda.driver import DeviceProperties  # noqa: E402
from tritorch.ops import gemm_choice as choice  # noqa: E402
from tritorch.ops.attention import attention, attention_backward  # noqa: E402
from tritorch.ops.attention_bias import attention_backward_mask, attention_backward_slopes  # noqa: E402
from tritorch.ops.feed_forward import ACTIVATIONS, linear_activation, linear_slope  # noqa: E402
from tritorch.ops.gemm import gemm  # noqa: E402
from tritorch.ops.grouped import grouped_mm  # noqa: E402
from tritorch.ops.linear import linear  # noqa: E402
from tritorch.ops.linear_residual import linear_residual  # noqa: E402
from tritorch.precision import set_float32_matmul_precision  # noqa: E402
from tritorch.testing.ptx.cubin import runs_ahead  # noqa: E402

pytestmark = pytest.mark.records
ARCHS = (80, 90, 100)
WAIT, ONE_BEHIND = "wgmma.wait_group", "wgmma.wait_group.sync.aligned 1"


class GPU(RecordingDriver):
    """An H200 that runs nothing."""

    def device_properties(self, index):
        return DeviceProperties("H200", 9, 0, self.total, 132, 32, 232448, 60 << 20, 2048, 65536)

    def load(self, kernel, signature, constexprs, attrs, options):
        return SimpleNamespace(launch=lambda *values: None, info={})


def launched(call):
    """What `call(empty)` launches; empty(*shape, dtype) makes a tensor."""
    with driver.using(GPU()):
        with recording() as record, T.no_grad():
            call(lambda *shape, dtype=T.float32: T.empty(*shape, dtype=dtype, device="cuda"))
    return list(record.values())


def check(specs, may_spill=False):
    """Every specialisation compiles where its instructions are known, TMA from sm_90 on, and no wgmma waits for the one before; the kernels
    of common calls keep everything in registers, but for 16 words outside of their loops, 40 where they scatter results."""
    assert specs
    for arch in ARCHS:
        known = [machine_code.elsewhere(s, arch) for s in specs
                 if arch == 90 or not s.kernel.is_gluon() and (arch > 90 or "tensordesc" not in str(s.signature))]
        for spec, code in zip(known, machine_code.used(known, arch)):
            scatters = isinstance(spec.signature.get("out_desc"), tuple)
            assert may_spill or code["spills"] <= (160 if scatters else 64), (spec, arch, code)
            assert arch != 90 or code["ahead"], f"{spec}: ptxas waits for single products"


BF16 = {"dtype": T.bfloat16}
PRODUCTS = {
    "half": lambda e: [e(*a, **BF16) @ e(*b, **BF16) for a, b in (
        ((4095, 4096), (4096, 4095)), ((1024, 512), (512, 1024)), ((128, 4096), (4096, 512)), ((64, 4096), (4096, 4096)),
        ((16, 4096), (4096, 8192)), ((8192, 4096), (4096, 16)))],
    "large": lambda e: [T.addmm(e(4096, **BF16), e(4096, 4096, **BF16), b) for b in (e(4096, 4096, **BF16), e(4096, 4096, **BF16).mT)]
    + [e(768, 16384, **BF16) @ e(16384, 50304, **BF16), e(128, 1024, 1024, **BF16) @ e(128, 1024, 1024, **BF16)],
    "fused": lambda e: [linear_activation(e(16384, 768, **BF16), e(3072, 768, **BF16), e(3072, **BF16), "gelu_tanh"),
                        linear_slope(e(16384, 768, **BF16), e(768, 3072, **BF16), e(16384, 3072, **BF16), "gelu_tanh")],
    "grouped": lambda e: [grouped_mm(e(4096, 512, **BF16), e(8, 512, 1024, **BF16), offs=e(8, dtype=T.int32)),
                          grouped_mm(e(512, 4096, **BF16), e(4096, 1024, **BF16), offs=e(8, dtype=T.int32)),
                          grouped_mm(e(4096, 500), e(1, 500, 1000), offs=e(1, dtype=T.int32))],
    "ieee": lambda e: [e(4096, 4096) @ e(4096, 4096), e(512, 512) @ e(512, 512), e(64, 4096) @ e(4096, 64), e(16, 512) @ e(512, 4096)],
    "fp64": lambda e: [e(m, n, dtype=T.float64) @ e(n, m, dtype=T.float64) for m, n in ((4096, 512), (64, 64))],
    "whole": lambda e: [e(4096, 512, dtype=t) @ e(512, 4096, dtype=t) for t in (T.int8, T.int16, T.int32, T.int64, T.uint8)],
    "vectors": lambda e: [e(1, 4096, **BF16) @ e(4096, 4096, **BF16).mT, e(1, 4096) @ e(4096, 4096), e(4096, 4096) @ e(4096),
                          e(1 << 20) @ e(1 << 20)],
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_products(name):
    check(launched(PRODUCTS[name]))


@pytest.mark.parametrize("precision", ["high", "medium"])
def test_products_of_less_precision(precision):
    set_float32_matmul_precision(precision)
    try:
        specs = launched(lambda e: [e(4096, 4096) @ e(4096, 4096), e(1000, 512) @ e(512, 1001), e(16, 4096) @ e(4096, 4096)])
    finally:
        set_float32_matmul_precision("highest")
    check(specs)


H200 = (132, 232448, 9)
BY_TMA = [c for _, c in choice.gluon(8192, 8192, 8192, 1, H200) + choice.persistent(8192, 8192, 8192, 1, H200)]
BY_TMA += [c for _, c in choice.gluon(768, 3072, 32768, 1, H200) if c["STREAM"]]


def streams(c):
    return c.get("STREAM", False)


def named(c):
    tile, groups = [c["BLOCK_M"], c["BLOCK_N"], c["BLOCK_K"]], [c.get("CONSUMERS", 1), c.get("PARTS", 1)]
    return "-".join(map(str, [c["kernel"], *tile, *groups])) + "-stream" * streams(c) + "-whole" * c.get("WHOLE", False)


@pytest.mark.parametrize("columns, ahead", [(128, True), (256, False)])
def test_products_that_ptxas_waits_for_one_by_one_are_found(columns, ahead):
    """By opcodes as by the text of the machine code: 128 × 256 sums do not fit into the registers of four warps."""
    signature = {"out_ptr": "*fp32", "a_ptr": "*bf16", "b_ptr": "*bf16", "steps": "i32", "N": "constexpr"}
    whole = {(i,): [["tt.divisibility", 16]] for i in range(3)}
    compiled = compile_kernel(sum_of_products, signature, {(4,): columns}, whole, {"num_warps": 4, "num_stages": 3}, 90)
    groups = len(re.findall(r"GMMA\.[^;]*gsb0", sass.text(compiled.cubin)))
    assert runs_ahead(compiled) == (groups == compiled.ptx.count("wgmma.commit_group")) == ahead


def sums_above_zero(compiled):
    """Instructions for max(a + b, 0)."""
    return len(re.findall(r"VIADDMNMX [^;-]*, RZ, !PT", sass.text(compiled.cubin)))


@pytest.mark.parametrize("candidate", BY_TMA, ids=named)
def test_every_candidate_by_tma_keeps_its_sums_in_registers(candidate):
    """In every layout of the operands, with a bias and with an activation behind it; the Hopper kernels use wgmma and nothing waits for all
    of it inside the loop. ptxas of CUDA 12.8 adds where it should subtract if it makes one instruction of max(i - later, 0) with both in
    uniform registers, as block_at (matmul_stream.py) has them: an H100 then loaded other blocks of K."""
    def call(e):
        for a, b in ((e(4096, 4096, **BF16), e(4096, 4096, **BF16)), (e(4096, 4096, **BF16).mT, e(4096, 4096, **BF16)),
                     (e(4096, 4096, **BF16), e(4096, 4096, **BF16).mT)):
            a @ b
        linear(e(4096, 4096, **BF16), e(4096, 4096, **BF16), e(4096, **BF16))

    with tuner.forcing("matmul", candidate):
        specs = launched(call)
    sums = [spec for spec in specs if spec.kernel.__name__ == "stream_sum_kernel"]
    specs = [spec for spec in specs if spec not in sums]
    assert len(sums) == 2 * streams(candidate) and len(specs) == 4 - streams(candidate)      # with a bias and without; it is in the sum
    for code in machine_code.used(sums, 90):
        assert code["spills"] == 0 and code["load"] == 128
    for code in machine_code.used(specs, 90, texts=[ONE_BEHIND], joined=sums_above_zero):
        assert code["joined"] == 0, code
        assert code["spills"] == 0 and code["shared"] <= H200[1] and code["wgmma"] and code[ONE_BEHIND] and code["ahead"], code


@pytest.mark.parametrize("candidate", [c for n in (8192, 1024) for _, c in choice.gluon(n, n, n, 1, H200, 4, 4, across=True)
                                       if c["STREAM"] or n == 8192], ids=named)
def test_every_candidate_of_32_bits_across(candidate):
    """With nothing, a bias, a matrix and an activation behind; the operand in registers is read in pairs while products are under way."""
    def call(e):
        a, b = e(4096, 4096), e(4096, 4096)
        gemm(e(4096, 4096), a, b)
        gemm(e(4096, 4096), a.mT, b, e(4096), beta=0.5)
        gemm(e(4096, 4096), a, b, e(4096, 4096))
        gemm(e(4096, 4096), a, b, e(4096), activation="gelu_tanh", pre=e(4096, 4096))

    set_float32_matmul_precision("high")
    try:
        with tuner.forcing("matmul", candidate):
            specs = [s for s in launched(call) if s.kernel.is_gluon()]
    finally:
        set_float32_matmul_precision("highest")
    assert len(specs) == (1 if candidate["STREAM"] else 4)
    for code in machine_code.used(specs, 90, texts=["ld.shared.v2", ONE_BEHIND]):
        assert code["spills"] <= 8 and code["shared"] <= H200[1], code   # a word or two are put away at the start
        assert code["ld.shared.v2"] and code[ONE_BEHIND] and code["ahead"], code


@pytest.mark.parametrize("candidate", [c for _, c in choice.gluon(768, 3072, 32768, 1, H200, 2, 4) if choice.leaves_room(c, "sums")],
                         ids=named)
def test_sums_of_rows_on_hopper(candidate):
    """A loop of its own reads what it adds up, eight numbers at a time, while the product is under way; what is added to is added then."""
    def call(e):
        out, g, x, sums = e(768, 3072), e(32768, 768, **BF16).mT, e(32768, 3072, **BF16), e(768)
        gemm(out, g, x, row_sums=sums)
        gemm(out, g, x, out, row_sums=sums)

    with tuner.forcing("matmul", candidate):
        specs = launched(call)
    assert len(specs) == 2 + candidate["STREAM"]                         # what is added is added to the sum of the parts
    reads = candidate["BLOCK_M"] * candidate["BLOCK_K"] // (8 * 32 * candidate["num_warps"])
    for code in machine_code.used(specs, 90, texts=["ld.global.v4", "ld.shared.v4", WAIT]):
        assert code["spills"] == 0 and code["shared"] <= H200[1], code
        multiplies = code["ld.shared.v4"] == reads and code[WAIT] == 3 + candidate["STREAM"]
        assert (code["ld.global.v4"] or multiplies) and code["ahead"], code


@pytest.mark.parametrize("candidate", [c for _, c in choice.gluon(4096, 4096, 4096, 1, H200, 4, 4)],
                         ids=named)
def test_tiles_of_32_bits_before_and_after_an_activation_fit_in_shared_memory(candidate):
    set_float32_matmul_precision("high")
    try:
        with tuner.forcing("matmul", candidate):
            specs = launched(lambda e: linear_activation(e(4096, 4096), e(4096, 4096), e(4096), "gelu_tanh"))
    finally:
        set_float32_matmul_precision("highest")
    code, = machine_code.used([s for s in specs if s.kernel.is_gluon()], 90)
    assert code["spills"] == 0 and code["shared"] <= H200[1] and code["ahead"], code


@pytest.mark.parametrize("candidate", [c for c in BY_TMA if choice.leaves_room(c) and not streams(c)],
                         ids=named)
def test_dropout_and_a_residual_behind_the_sums(candidate):
    """Numbers are drawn in registers; at most 16 words of them move out of the loop's way."""
    args = (16384, 3072), (768, 3072), (768,), (16384, 768)
    with tuner.forcing("matmul", candidate):
        specs = launched(lambda e: [linear_residual(*[e(*s, **BF16) for s in args], p, 7, 0) for p in (0.0, 0.1)])
    assert len(specs) == 2
    for code in machine_code.used(specs, 90):
        assert code["spills"] <= 64 and code["shared"] <= H200[1], code


@pytest.mark.parametrize("candidate", [c for c in BY_TMA if c["kernel"] == "gluon" and not c["STREAM"]], ids=named)
def test_what_is_added_by_tma_comes_to_where_results_leave(candidate):
    """It takes no shared memory and no pointers of its own: nothing but the descriptor is read."""
    with tuner.forcing("matmul", candidate):
        specs = launched(lambda e: linear_slope(e(16384, 768, **BF16), e(768, 3072, **BF16), e(16384, 3072, **BF16), "gelu_tanh"))
    code, = machine_code.used(specs, 90, texts=["ld.global"])
    assert code["spills"] == 0 and code["shared"] <= H200[1] and code["ahead"] and not code["ld.global"], code


@pytest.mark.parametrize("activation", list(ACTIVATIONS))
def test_activations_and_their_slopes_on_hopper(activation):
    """Gluon knows less than Triton of what the functions of triton_kernels/activation.py may use."""
    found, specs = [c for _, c in choice.gluon(4096, 4096, 4096, 1, H200)], []
    for candidate, call in ((found[0], linear_activation),
                            (next(c for c in found if choice.leaves_room(c, "_backward")), linear_slope)):
        added = (4096,) if call is linear_activation else (4096, 4096)
        with tuner.forcing("matmul", candidate):
            specs += launched(lambda e, call=call, added=added: call(*[e(*s, **BF16) for s in ((4096, 4096),) * 2 + (added,)], activation))
    assert len(specs) == 2 and all(spec.kernel.is_gluon() for spec in specs)
    assert not any(code["spills"] for code in machine_code.used(specs, 90))


def eight_bits(e, shapes=((4096, 4096, 4096),), fast=False):
    """Products of two kinds of float8 and of int8."""
    for m, n, k in shapes:
        T._scaled_mm(e(m, k, dtype=T.float8_e4m3fn), e(n, k, dtype=T.float8_e5m2).mT, e(m, 1), e(1, n), e(n), None, T.bfloat16, fast)
        T._int_mm(e(m, k, dtype=T.int8), e(n, k, dtype=T.int8).mT)


EIGHT = [(fast, c) for fast, found in ((False, choice.persistent(4096, 4096, 4096, 1, H200, 1, 4, True)),
                                       (True, choice.gluon(4096, 4096, 4096, 1, H200, 1, 4))) for _, c in found]


@pytest.mark.parametrize("fast, candidate", EIGHT, ids=lambda v: v if type(v) is bool else "-".join(str(x) for x in v.values()))
def test_every_candidate_of_8_bits(fast, candidate):
    """wgmma of float8 and int8, and registers for sums that are added up apart."""
    with tuner.forcing("matmul", candidate):
        specs = [s for s in launched(lambda e: eight_bits(e, fast=fast)) if "stream_sum" not in s.kernel.__name__]
    kinds = "k32.f32.e4m3.e5m2", "k32.s32.s8.s8"
    for kind, code in zip(kinds, machine_code.used(specs, 90, texts=kinds), strict=True):
        assert code["spills"] == 0 and code["shared"] <= H200[1] and code[kind], code


@pytest.mark.parametrize("machine", [(108, 166912, 8), H200, (148, 232448, 10)], ids=lambda m: f"sm_{m[2]}0")
def test_products_of_8_bits_elsewhere(machine, monkeypatch):
    """Small, odd and skinny ones, where there is no instruction for e4m3 too."""
    monkeypatch.setattr("tritorch.ops.gemm.hardware", lambda: machine)
    specs = launched(lambda e: eight_bits(e, ((4096, 4096, 4096), (64, 4096, 4096), (1, 4096, 4096), (100, 77, 333))))
    specs = [machine_code.elsewhere(s, 10 * machine[2]) for s in specs if machine[2] == 9 or not s.kernel.is_gluon()]
    assert not any(code["spills"] for code in machine_code.used(specs, 10 * machine[2]))


@pytest.mark.parametrize("arch", [80, 90, 100])
def test_parts_made_in_registers(arch):
    """Of small float32 products: six matrix products a step, the way of float32 units behind them; at most 16 words in memory."""
    for candidate in {c["BLOCK_M"] * 1000 + c["BLOCK_N"]: c for _, c in choice.plain("parts", 512, 512, 512, 1, 4, H200)}.values():
        with tuner.forcing("matmul", {**candidate, "splits": 1}):
            specs = launched(lambda e: [e(512, 512) @ e(512, 512), linear(e(512, 512), e(512, 512), e(512))])
        specs = [machine_code.elsewhere(spec, arch) for spec in specs]
        for code in machine_code.used(specs, arch, texts=["bf16.bf16", "tcgen05.mma"]):
            assert code["spills"] <= 64 and (code["bf16.bf16"] or code["tcgen05.mma"]), candidate


@pytest.mark.parametrize("candidate", [c for _, c in choice.exact(4096, 4096, 4096, 1, H200, True)], ids=lambda c: str(c["BLOCK_K"]))
def test_float32_from_parts_on_hopper(candidate):
    """Six products of a slot in a row, and no part of a tile in local memory."""
    with tuner.forcing("matmul", candidate):
        specs = launched(lambda e: [e(4096, 4096) @ e(4096, 4096), e(4096, 4096).mT @ e(4096, 4096),
                                    linear(e(4096, 4096), e(4096, 4096), e(4096))])
    specs = [s for s in specs if s.kernel.is_gluon()]
    assert len(specs) == 3
    for code in machine_code.used(specs, 90, texts=[WAIT]):
        assert code["spills"] == 0 and code["shared"] <= H200[1]
        assert code["wgmma"] == 2 * 6 * candidate["BLOCK_K"] // 16 and code[WAIT] == 2


def run_attention(empty, dtype, size, heads=8, key_heads=8, causal=True, mask=None, dropout_p=0.0, batch=4):
    q, k, v = empty(batch, heads, 512, size, dtype=dtype), *[empty(batch, key_heads, 512, size, dtype=dtype) for _ in range(2)]
    mask = None if mask is None else empty(512, 512, dtype=mask)
    rest = None, None, None, (None, 0 if causal else None), 0.125, (dropout_p, 5, 7), None
    out, lse = attention(q, k, v, mask, None, *rest)
    attention_backward(out, q, k, v, mask, None, out, lse, *rest)


@pytest.mark.parametrize("size", [64, 128, 256])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "float64"])
def test_attention(dtype, size, monkeypatch):
    monkeypatch.setenv("TRITORCH_AVOID", "gluon,together_gluon")
    for batch in (2, 4):                                                 # few programs, whose keys are cut into pieces, and many
        check(launched(lambda e, batch=batch: run_attention(e, getattr(T, dtype), size, batch=batch)), may_spill=size == 256)


@pytest.mark.parametrize("size, p, mask", [(64, 0.0, None), (128, 0.0, None), (64, 0.1, None), (128, 0.1, "bool"), (64, 0.0, "bfloat16"),
                                           (256, 0.0, None)])
def test_attention_on_hopper(size, p, mask):
    """The kernels in Gluon keep tiles in registers; some words that say where things lie may be in memory."""
    with driver.using(GPU()):
        with tuner.trying_all(), recording() as record:
            q, k, v, g = [T.empty(4, 512, 8, size, dtype=T.bfloat16, device="cuda").transpose(1, 2) for _ in range(4)]
            with T.no_grad():
                rest = None, None, None, None, (None, 0), 0.125, (p, 0, 0), None
                padding = None if mask is None else T.empty(4, 1, 1, 512, dtype=getattr(T, mask), device="cuda")
                out, lse = attention(q, k, v, padding, *rest)
                attention_backward(g, q, k, v, padding, None, out, lse, *rest[1:])
    specs = [spec for spec in record.values() if spec.kernel.is_gluon()]
    names = {"attention_gluon_kernel", *(["attention_together_gluon_kernel"] if size < 256 else ())}
    if mask is None and not p:
        names |= {f"attention_backward_{'wide_' * (size == 256)}{which}_gluon_kernel" for which in ("q", "kv")}
    assert {spec.kernel.__name__ for spec in specs} == names
    facts = dict(warps=lambda c: c.num_warps, hgmma=lambda c: sass.text(c.cubin).count("HGMMA"),
                 depbar=lambda c: sass.text(c.cubin).count("WARPGROUP.DEPBAR"),
                 waits=lambda c: len(behind_waits(c)), powers=lambda c: min(behind_waits(c), default=0))
    for spec, code in zip(specs, machine_code.used(specs, 90, texts=["setmaxnreg.inc"], **facts)):
        fixed = {spec.kernel.arg_names[path[0]]: value for path, value in spec.constexprs.items()}
        groups = max(fixed.get("GROUPS", 2), 2)
        assert code["spills"] <= (200 if p or mask else 120) and code["warps"] == 4 + 4 * groups and code["shared"] <= H200[1], (spec, code)
        assert code["wgmma"] and code["setmaxnreg.inc"] and code["tma"], (spec, code)
        assert 4 * code["depbar"] <= code["hgmma"], f"{spec}: ptxas waits for single products"
        if spec.kernel.__name__ == "attention_gluon_kernel":
            assert code["waits"] == 2 * groups, spec
            assert code["powers"] >= fixed["BLOCK_N"] // 2, f"{spec}: softmax waits for the product with the values"


def behind_waits(compiled):
    """How many powers are taken behind each wait for all products but the last group."""
    after = [part.split("WARPGROUP.DEPBAR")[0] for part in sass.text(compiled.cubin).split("WARPGROUP.DEPBAR.LE gsb0, 0x1")[1:]]
    return [part.count("MUFU.EX2") for part in after]


def test_attention_with_masks_groups_and_odd_sizes():
    check(launched(lambda e: [run_attention(e, T.bfloat16, 64, causal=False, mask=T.bool),
                              run_attention(e, T.float16, 80, 8, 2, False, T.float16)]), may_spill=True)


def test_attention_with_dropout():
    check(launched(lambda e: run_attention(e, T.bfloat16, 64, dropout_p=0.1)), may_spill=True)


@pytest.mark.parametrize("options", [{}, {"causal": False}, {"causal": False, "mask": T.bool}, {"dropout_p": 0.1}], ids=str)
def test_products_of_attention_run_ahead(options, monkeypatch):
    """In the kernels of Triton, whose loops over the keys that all rows meet and over the others may both be empty."""
    monkeypatch.setenv("TRITORCH_AVOID", "gluon,together_gluon")
    specs = [s for size in (64, 128) for s in launched(lambda e: run_attention(e, T.bfloat16, size, **options))]
    found = [(spec, code) for spec, code in zip(specs, machine_code.used(specs, 90)) if code["wgmma"]]
    assert len(found) == 6
    assert not [str(spec) for spec, code in found if not code["ahead"]]


@pytest.mark.parametrize("size", [64, 128])
def test_gradients_of_masks_and_slopes(size):
    def call(e):
        for dtype in (T.bfloat16, T.float32):
            q, lse, rest = e(2, 8, 512, size, dtype=dtype), e(2, 8, 512), (None, None, None, (None, 0), 0.125, (0.0, 0, 0), None)
            for mask in (e(8, 512, 512), e(2, 1, 1, 512)):
                attention_backward_mask(q, q, q, q, mask, None, q, lse, *rest)
            attention_backward_slopes(q, q, q, q, None, e(8), q, lse, *rest)

    check(launched(call))


def test_operands_of_more_than_2_31_elements_use_wide_offsets(monkeypatch):
    monkeypatch.setenv("TRITORCH_AVOID", "gluon,together_gluon,groups")         # TMA counts rows and columns, not elements

    def call(e):
        e(1 << 17, 1 << 15) @ e(1 << 15, 64)
        q = e(1, 1 << 20, 32, 80, dtype=T.bfloat16).transpose(1, 2)      # one head spans 2.7 · 10⁹ elements
        attention(q, q, q, None, None, None, None, None, (None, 0), 0.125, (0.0, 0, 0), None)

    specs = launched(call)
    wide = [spec.constexprs[[p.name for p in spec.kernel.params].index("WIDE"),] for spec in specs]
    assert wide and all(wide)
    check(specs, may_spill=True)
