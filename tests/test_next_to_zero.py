"""Functions of float32 numbers that are subnormal: compiled code must not take them for 0, as libdevice's functions do. And signs of 0."""
import numpy as np
import pytest

import tritorch as torch
from tritorch.cuda.simulated import libdevice, special
from tritorch.testing import ptx

X = np.array([0.0, -0.0, 1e-40, -1e-40, 5e-39, -5e-39, 1.2e-38, 1e-45, -1e-45,
              0.5, -0.5, 1.0, 2.5, -2.5, 1e30, np.inf, -np.inf, np.nan], "f4")
Y = X[[2, 0, 1, 9, 11, 2, 3, 4, 14, 15, 8, 7, 16, 17, 2, 3, 0, 12]]
EXACT = {"ceil": np.ceil, "floor": np.floor, "fmod": np.fmod, "remainder": np.remainder, "floor_divide": np.floor_divide}
CLOSE = {"rsqrt": lambda x: 1 / np.sqrt(x), "pow": np.power, "hypot": np.hypot, "atan2": np.arctan2}


@pytest.mark.parametrize("name", [*EXACT, *CLOSE])
def test_subnormal_numbers_are_not_zero(name):
    function = (EXACT | CLOSE)[name]
    arrays = (X,) if name in ("ceil", "floor", "rsqrt") else (X, Y)
    with np.errstate(all="ignore"):
        want = function(*[a.astype(np.float64) for a in arrays]).astype(np.float32)
    with ptx.simulate(90):
        got = getattr(torch, name)(*[torch.tensor(a).cuda() for a in arrays]).cpu().numpy()
    near = 0 if name in EXACT else 2e-38 if name == "atan2" else 3e-45   # of atan2 angles are right, subnormal ones to what is normal
    np.testing.assert_allclose(got, want, rtol=0 if name in EXACT else 4e-6, atol=near)
    zero = (got == 0) & (want == 0)
    np.testing.assert_array_equal(np.signbit(got[zero]), np.signbit(want[zero]))


def test_sinc_is_one_around_zero():
    with ptx.simulate(90):
        assert (torch.tensor(X[:9]).cuda().sinc() == 1).all().item()


def check_lgamma(device):
    found = torch.tensor([*X[:9], np.inf, -np.inf], device=device).lgamma().cpu().numpy()
    np.testing.assert_allclose(found[2:9], -np.log(np.abs(X[2:9].astype(np.float64))), rtol=1e-6)
    assert np.isposinf(found[[0, 1, 9, 10]]).all()


def test_lgamma(cuda):
    check_lgamma("cpu")
    check_lgamma(cuda)


def test_lgamma_compiled():
    with ptx.simulate(90):
        check_lgamma("cuda")


def test_zeros_of_the_simulated_device_have_the_signs_of_libdevice():
    whole = np.array([0.0, -0.0, 1.0, -1.0, 2.0, -2.0, -1e30])
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(1 / libdevice._sinpi(whole), np.copysign(np.inf, whole))
        assert np.isnan(libdevice._sinpi(np.array([np.inf, -np.inf, np.nan]))).all()
    assert np.signbit(special.erfinv(np.array([-0.0, 0.0]))).tolist() == [True, False]
