"""What was to be drawn on the CPU and only moves to a device is drawn there, to the last bit as it would have been here."""
import re

import numpy as np
import pytest

pytest.importorskip("triton")

import tritorch as T  # noqa: E402
from tritorch import nn  # noqa: E402
from tritorch.cuda import compiler  # noqa: E402
from tritorch.cuda.device import simulate  # noqa: E402
from tritorch.ops import draws  # noqa: E402
from tritorch.testing.ptx.device import simulate as simulate_ptx  # noqa: E402

FILLS = {
    "normal": lambda x: x.normal_(), "normal of a mean": lambda x: x.normal_(-1.3, 0.02), "uniform": lambda x: x.uniform_(),
    "uniform between": lambda x: x.uniform_(-0.0360843, 0.0360844), "uniform up to a rounded end": lambda x: x.uniform_(1, 1 + 2.0**-22),
}


@pytest.fixture
def drawn(monkeypatch):
    """How many elements were drawn on the CPU so far, as a list of counts."""
    counts, bits_of = [], draws.bits_of
    monkeypatch.setattr(draws, "bits_of", lambda dtype, count, *place: counts.append(count) or bits_of(dtype, count, *place))
    return counts


def filled(fill, *shape, dtype=T.float32, seed=5):
    T.manual_seed(seed)
    return fill(T.empty(shape, dtype=dtype))


def same(moved, here):
    """Bit for bit, the sign of a zero too."""
    np.testing.assert_array_equal(moved.cpu().numpy().view(np.int32), here.numpy().view(np.int32))


@pytest.mark.parametrize("count", [16384, 16387, 70001])
@pytest.mark.parametrize("fill", FILLS.values(), ids=FILLS)
def test_the_same_bits(cuda, drawn, fill, count):
    x = filled(fill, count)
    moved = x.to(cuda)
    assert not drawn
    same(moved, x)
    assert drawn


@pytest.mark.parametrize("arch", [80, 90])
@pytest.mark.parametrize("fill", FILLS.values(), ids=FILLS)
def test_the_same_bits_by_compiled_code(fill, arch):
    with simulate_ptx(arch):
        x = filled(fill, 16385)
        same(x.to("cuda"), x)


def test_every_way_to_a_device(cuda, drawn):
    fill, want = FILLS["normal"], filled(FILLS["normal"], 128, 160).numpy().copy()
    drawn.clear()
    moved = {"to": filled(fill, 128, 160).to(cuda), "transposed": filled(fill, 128, 160).t().to(cuda).t(),
             "view": filled(fill, 128 * 160).view(128, 160).cuda()}
    assert not drawn
    gapped = T.zeros(128, 200, device=cuda)[:, 3:163]
    gapped.copy_(filled(fill, 128, 160))
    moved |= {"gapped": gapped, "expanded": T.zeros(3, 128, 160, device=cuda).copy_(filled(fill, 128, 160))[1],
              "transposed target": T.zeros(160, 128, device=cuda).t().copy_(filled(fill, 128, 160))}
    for name, x in moved.items():
        np.testing.assert_array_equal(x.cpu().numpy(), want, err_msg=name)
    for dtype in (T.bfloat16, T.float64):
        assert T.equal(filled(fill, 128, 160).to(cuda, dtype).cpu(), T.from_numpy(want).to(dtype))


def test_what_no_device_draws_alike_moves(cuda, drawn):
    for dtype in (T.bfloat16, T.float64):
        x = filled(FILLS["normal"], 40000, dtype=dtype)
        assert T.equal(x.to(cuda).cpu(), x)
    x = filled(lambda x: x.exponential_(), 40000)
    assert T.equal(x.to(cuda).cpu(), x) and drawn
    whole = filled(FILLS["normal"], 400, 100)
    assert T.equal(whole[7:].to(cuda).cpu(), whole[7:])                  # a part of it
    assert T.equal(whole.to(cuda).cpu(), whole)                          # which has been looked at


def test_one_after_the_other(cuda):
    """A call that is like an earlier one does not repeat what that one launched."""
    for seed in (5, 6, -1, (1 << 64) - 7, 1 << 63, 1 << 31):
        for fill in FILLS.values():
            x = filled(fill, 130, 128, seed=seed)
            same(x.to(cuda), x)


def test_a_module(cuda, drawn):
    T.manual_seed(3)
    layer = nn.Linear(200, 300)
    T.manual_seed(3)
    moved = nn.Linear(200, 300).to(cuda)
    assert max(drawn, default=0) < 1000                                  # the bias is too small to be put off
    same(moved.weight.detach(), layer.weight.detach())
    same(moved.bias.detach(), layer.bias.detach())


def test_later_writes_and_draws_do_not_reach_it(cuda):
    x = filled(FILLS["normal"], 20000)
    want, moved = filled(FILLS["normal"], 20000).numpy(), x.to(cuda)
    x.fill_(1)
    np.testing.assert_array_equal(moved.cpu().numpy(), want)


@pytest.mark.parametrize("arch", [80, 90, 100])
def test_nothing_is_fused(arch):
    with simulate(), compiler.recording() as record:
        for fill in FILLS.values():
            filled(fill, 20000).to("cuda")
    specs = [spec for spec in record.values() if spec.options.get("enable_fp_fusion") is False]
    assert {spec.kernel.__name__ for spec in specs} == {"same_normal_kernel", "fill_kernel"}
    for found in compiler.compile_many(specs, [arch], workers=1):
        assert not re.search(r"\bfma\.", found.ptx) and re.search(r"\bsqrt\.rn\.f32|\.rn\.f32\.f64", found.ptx)
        assert not re.search(r"\b(mul|add|sub)\.f(32|64)", found.ptx)     # without .rn ptxas may fuse them


def test_normal_numbers_are_right():
    bits = draws.bits_of(np.dtype("f4"), 1 << 18, 5, 0)
    x, y = bits[0::2].astype("f8"), bits[1::2].view("i4").astype("f8")
    radius, angle = np.sqrt(-2 * np.log(x * 2.0**-32 + 2.0**-33)), y * 2 * np.pi * 2.0**-32
    error = np.abs(draws.standard_normal(bits).reshape(-1, 2) - np.stack((radius * np.cos(angle), radius * np.sin(angle)), 1))
    assert error.max() < 1e-5 and np.sqrt((error**2).mean()) < 2e-7
    edge = np.array([0, 0, 0, 2**31, 2**32 - 1, 5, 2**31, 2**30, 1, 2**32 - 1], np.uint32)
    found = draws.standard_normal(edge)
    assert np.isfinite(found).all() and abs(found[0] - np.sqrt(66 * np.log(2))) < 1e-5 and not found[4] and not found[5]
