"""Images at other sizes and back: against float64, as each other's transpose, and in how many launches."""
import numpy as np
import pytest

import tritorch as torch
from bench import launches
from tritorch.nn import functional as F
from tritorch.ops.resize import resize, resize_back

CASES = [                                                                # sizes of one dim and its result, corners, distance of places
    (5, 13, False, 5 / 13), (13, 5, False, 13 / 5), (5, 13, True, 4 / 12), (9, 18, False, 0.5), (33, 66, False, 0.5), (33, 4, True, 32 / 3),
    (1, 6, False, 1 / 6), (6, 1, True, 0.0), (5, 17, False, 1 / 3.5), (4, 131, True, 3 / 130), (1, 5, True, 0.0), (7, 7, False, 1.0),
    (6, 18, False, 1 / 3), (64, 9, False, 64 / 9),
]
LAYOUTS = {"as is": lambda x: x, "channels last": lambda x: x.to(memory_format=torch.channels_last),
           "transposed": lambda x: x.mT.contiguous().mT, "expanded": lambda x: x[..., :1].expand(x.shape),
           "gapped": lambda x: torch.cat([x, x + 9], -1)[..., :x.shape[-1]], "turned": lambda x: x.flip(-1)}


def cubic(d):
    near, far = 1.25 * d ** 3 - 2.25 * d ** 2 + 1, -0.75 * (d ** 3 - 5 * d ** 2 + 8 * d - 4)
    return near if d <= 1 else far if d < 2 else 0


def matrix(length, size, corners, scale, how):
    """The weights in float64, by the definition."""
    w = np.zeros((size, length))
    for i in range(size):
        if how.startswith("nearest"):                                    # in float32, where a place may round to another pixel
            w[i, min(int(np.float32(i + 0.5 * (how != "nearest")) * np.float32(scale)), length - 1)] = 1
            continue
        place = i * scale if corners else (i + 0.5) * scale - 0.5
        place = max(place, 0) if how == "linear" else place
        low = int(np.floor(place))
        for k in range(-1, 3):
            d = abs(place - low - k)
            w[i, min(max(low + k, 0), length - 1)] += cubic(d) if how == "cubic" else max(1 - d, 0)
    return w


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("how", ["nearest", "nearest-exact", "linear", "cubic"])
def test_against_float64(how, layout, cuda):
    rng = np.random.default_rng(0)
    for k, (length, size, corners, scale) in enumerate(CASES):
        across, many, _, step = [case for case in CASES if case[2] == corners][k % 5]
        rows, columns = matrix(across, many, corners, step, how), matrix(length, size, corners, scale, how)
        for kind, near in ((torch.float32, 2e-5), (torch.bfloat16, 2e-2))[:1 if k % 3 else 2]:
            x = LAYOUTS[layout](torch.tensor(rng.standard_normal((2, 3, across, length))).to(kind).cuda())
            want = np.einsum("ia,jb,ncab->ncij", rows, columns, x.cpu().double().numpy())
            got = resize(x, (many, size), (step, scale), (how, how), corners, kind)
            np.testing.assert_allclose(got.cpu().double().numpy(), want, rtol=near, atol=near, err_msg=f"{CASES[k]}")
            g = LAYOUTS[layout](torch.tensor(rng.standard_normal(want.shape)).to(kind).cuda())
            want = np.einsum("ia,jb,ncij->ncab", rows, columns, g.cpu().double().numpy())
            back = resize_back(g, (across, length), (step, scale), (how, how), corners, kind)
            np.testing.assert_allclose(back.cpu().double().numpy(), want, rtol=near, atol=4 * near * np.abs(want).max())


@pytest.mark.parametrize("kind", [torch.uint8, torch.int64, torch.bool, torch.float64])
def test_nearest_pixels_of_any_dtype(kind, cuda):
    x = torch.tensor(np.random.default_rng(0).integers(0, 2 if kind is torch.bool else 200, (2, 3, 4, 5))).to(kind)
    for where in ("cpu", cuda):
        for image in (x, x.to(memory_format=torch.channels_last)):
            got = F.interpolate(image.to(where), scale_factor=2)
            assert got.dtype is kind and (got.cpu() == x.repeat_interleave(2, 2).repeat_interleave(2, 3)).all()
    got = F.interpolate(x.to(cuda).flatten(2), scale_factor=3)
    assert (got.cpu() == x.flatten(2).repeat_interleave(3, 2)).all()


@pytest.mark.parametrize("mode, last", [("nearest", False), ("trilinear", False), ("trilinear", True), ("nearest", True)])
def test_volumes(mode, last, cuda):
    rng = np.random.default_rng(0)
    x, how = rng.standard_normal((2, 3, 3, 4, 5)), "linear" if mode == "trilinear" else mode
    weights = [matrix(n, m, False, n / m, how) for n, m in zip(x.shape[2:], (5, 7, 4))]
    want = np.einsum("ia,jb,kc,nmabc->nmijk", *weights, x)
    image = torch.tensor(x, dtype=torch.float32, device=cuda)
    image = image.to(memory_format=torch.channels_last_3d) if last else image
    got = F.interpolate(image, (5, 7, 4), mode=mode)
    np.testing.assert_allclose(got.cpu().numpy(), want, rtol=1e-4, atol=1e-5)
    assert got.is_contiguous(memory_format=torch.channels_last_3d if last else torch.contiguous_format)


@pytest.mark.parametrize("mode, count", [("nearest", 1), ("bilinear", 1), ("bicubic", 2)])
def test_few_launches(mode, count):
    with launches.accounting() as account:
        x = torch.empty(2, 8, 14, 14, device="cuda", requires_grad=True)
        y = F.interpolate(x, scale_factor=2, mode=mode)
        assert [launch.kernel for launch in account.launches] == ["resize.resize_kernel"] * count
        account.launches.clear()
        torch.autograd.grad(y, x, torch.empty(y.shape, device="cuda"))
        assert [launch.kernel for launch in account.launches] == ["resize.resize_back_kernel"] * count


def test_half_types_are_rounded_once(cuda):
    x = torch.tensor(np.random.default_rng(0).standard_normal((1, 2, 5, 6))).cuda()
    half = x.to(torch.bfloat16)
    exact = F.interpolate(half.double(), (9, 7), mode="bilinear")
    got = F.interpolate(half, (9, 7), mode="bilinear")
    assert got.dtype is torch.bfloat16
    error = (got.double() - exact).abs()
    assert (error <= exact.abs() * 2.0 ** -8 + 1e-6).all(), "half a unit in the last place"
