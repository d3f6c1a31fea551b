"""The watch on waiting warps, on the GPU of PTX, whose clock counts steps of the machine."""
import numpy as np
import pytest

pytest.importorskip("triton")

import tritorch as torch  # noqa: E402
from bench import stopwatch  # noqa: E402
from tritorch.cuda import tuner  # noqa: E402
from tritorch.testing.ptx import device  # noqa: E402

TILE = dict(kernel="gluon", BLOCK_M=128, BLOCK_N=128, BLOCK_K=64, num_warps=4, STAGES=3, PIECES=2, CONSUMERS=1, PARTS=1, STREAM=False)


def test_waits_of_a_product():
    """Of 300 numbers in steps of 64: five waits for a slot that is full, five for one that is empty; and the product is as without."""
    with device.simulate(90), tuner.forcing("matmul", TILE):
        a, b = torch.randn(200, 300, device="cuda").bfloat16(), torch.randn(300, 120, device="cuda").bfloat16()
        with stopwatch.watching("matmul_gluon") as found:
            watched = a @ b
        (timed,) = found
        counts = timed.counts.cpu().numpy()
        np.testing.assert_allclose(watched.cpu().float(), a.cpu().float() @ b.cpu().float(), rtol=1e-2, atol=1e-2)
    assert counts[:2].any() and not counts[2:].any()                                     # two tiles, a CTA each
    visits = {place: counts[0, :, i, 1] for i, place in enumerate(timed.places)}
    assert (visits["whole", ""][:4] == 2).all() and 0 < counts[0, 0, 1:, 0].sum() < counts[0, 0, 0, 0]
    waits = [v for (kind, where), v in visits.items() if kind == "mbarrier" and v.any()]
    assert sorted((v.max(), np.count_nonzero(v)) for v in waits) == [(5, 1), (5, 4)]     # the loading warp, and four that multiply
    first, *said = stopwatch.report(timed, counts)
    assert first.startswith("matmul_gluon_kernel: 2 rows")
    assert any("5.0 x" in line and "mbarrier  matmul_gluon.py:" in line for line in said)


def test_lines_of_a_place():
    assert stopwatch.lines_of(" a.py:1:2 @[ a.py:30:4 @[ b.py:5:6 ] ]") == "a.py:1 < 30 < b.py:5"


def test_places_beyond_the_room():
    timed = stopwatch.Timed("k", torch.zeros(1))
    with pytest.raises(AssertionError, match="k waits at more than"):
        for i in range(stopwatch.MOST):
            timed.add(("barrier", str(i)), "%x")
