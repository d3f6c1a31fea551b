"""Instructions of the GPU made of PTX that no kernel of ours has, but what users write compiles to: tl.clamp(x, -limit, limit), x % y."""
import numpy as np
import pytest

pytest.importorskip("triton")

from test_ptx_instructions import run  # noqa: E402


def test_extremes_of_magnitudes():
    a, b = np.float32([-5, 5, 0.5, -0.5, -np.inf, np.nan]), np.float32([1, 1, 1, 1, -1, 1])
    result = run("min.xorsign.abs.f32 %r2, %r0, %r1; max.xorsign.abs.f32 %r3, %r0, %r1;", r0=a, r1=b)
    assert result("r2", np.float32)[:6].tolist() == [-1, 1, 0.5, -0.5, 1, 1]
    assert result("r3", np.float32)[:6].tolist() == [-5, 5, 1, -1, np.inf, 1]


@pytest.mark.parametrize("kind, found", [
    ("finite", [0, 0, 0, 1, 1, 1]), ("infinite", [0, 1, 1, 0, 0, 0]), ("number", [0, 1, 1, 1, 1, 1]),
    ("notanumber", [1, 0, 0, 0, 0, 0]), ("normal", [0, 0, 0, 1, 0, 0]), ("subnormal", [0, 0, 0, 0, 1, 0])])
def test_kinds_of_numbers(kind, found):
    result = run(f"testp.{kind}.f32 %p0, %r0;", r0=np.float32([np.nan, np.inf, -np.inf, -1.5, 1e-40, 0]))
    assert result("p0")[:6].tolist() == [bool(x) for x in found]
