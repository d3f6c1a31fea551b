"""Linear interpolation along one dim and back: against float64, as each other's transpose, and in how many launches."""
import numpy as np
import pytest

import tritorch as torch
from tritorch.cuda import compiler, driver
from tritorch.cuda.dry import DryDriver
from tritorch.nn import functional as F
from tritorch.ops.resize import resize_linear, resize_linear_back

CASES = [                                                                # shape, dim, size, corners, input places for each of the result
    ((3, 5, 2), 1, 13, False, 5 / 13), ((3, 13, 2), 1, 5, False, 13 / 5), ((3, 5, 2), 1, 13, True, 4 / 12), ((2, 9, 37), 1, 18, False, 0.5),
    ((7, 33), 1, 66, False, 0.5), ((7, 33), 1, 4, True, 32 / 3), ((7, 1), 1, 6, False, 1 / 6), ((6, 35), 0, 1, True, 0.0),
    ((5, 3), 0, 17, False, 1 / 3.5), ((4, 33), 0, 131, True, 3 / 130),
]
LAYOUTS = {"as is": lambda x: x, "transposed": lambda x: x.transpose(0, -1).contiguous().transpose(0, -1),
           "expanded": lambda x: x[..., :1].expand(x.shape),
           "gapped": lambda x: torch.cat([x, x + 9], -1)[..., :x.shape[-1]], "turned": lambda x: x.flip(-1)}


def matrix(length, size, corners, scale):
    """The weights in float64, by the definition."""
    i = np.arange(size)
    place = i * scale if corners else np.maximum((i + 0.5) * scale - 0.5, 0)
    low = np.floor(place).astype(int)
    w = np.zeros((size, length))
    np.add.at(w, (i, np.minimum(low, length - 1)), 1 - (place - low))
    np.add.at(w, (i, np.minimum(low + 1, length - 1)), place - low)
    return w


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape, dim, size, corners, scale", CASES)
def test_against_float64(shape, dim, size, corners, scale, layout, cuda):
    rng = np.random.default_rng(0)
    for kind, tolerance in ((torch.float64, 1e-12), (torch.float32, 3e-6), (torch.bfloat16, 1e-2)):
        w = matrix(shape[dim], size, corners, scale)
        x = LAYOUTS[layout](torch.tensor(rng.standard_normal(shape)).to(kind).cuda())
        want = np.moveaxis(np.tensordot(w, x.cpu().double().numpy(), (1, dim)), 0, dim)
        got = resize_linear(x, dim, size, scale, corners, kind)
        np.testing.assert_allclose(got.cpu().double().numpy(), want, rtol=tolerance, atol=tolerance)
        g = LAYOUTS[layout](torch.tensor(rng.standard_normal(want.shape)).to(kind).cuda())
        back = resize_linear_back(g, dim, shape[dim], scale, corners, kind)
        want = np.moveaxis(np.tensordot(w.T, g.cpu().double().numpy(), (1, dim)), 0, dim)
        np.testing.assert_allclose(back.cpu().double().numpy(), want, rtol=tolerance, atol=4 * tolerance)


def test_two_launches_forward_and_two_back():
    with driver.using(DryDriver(90)), compiler.recording() as record:
        x = torch.empty(2, 8, 14, 14, device="cuda", requires_grad=True)
        y = F.interpolate(x, scale_factor=2, mode="bilinear")
        assert {spec.kernel.__name__ for spec in record.values()} == {"resize_kernel"}
        y.backward(torch.empty(y.shape, device="cuda"))
    assert {spec.kernel.__name__ for spec in record.values()} == {"resize_kernel", "resize_back_kernel"}


def test_half_types_are_rounded_once(cuda):
    x = torch.tensor(np.random.default_rng(0).standard_normal((1, 2, 5, 6))).cuda()
    half = x.to(torch.bfloat16)
    exact = F.interpolate(half.double(), (9, 7), mode="bilinear")
    got = F.interpolate(half, (9, 7), mode="bilinear")
    assert got.dtype is torch.bfloat16
    error = (got.double() - exact).abs()
    assert (error <= exact.abs() * 2.0 ** -8 + 1e-6).all(), "half a unit in the last place"
