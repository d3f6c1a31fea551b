"""Random arrays and tensors for the tests."""
import numpy as np

import tritorch
from tritorch.tensor import from_array


def draw(*shape, dtype=np.float32, seed=0):
    """Normal numbers, others for each shape and seed."""
    return np.asarray(np.random.default_rng([seed, *shape]).standard_normal(shape)).astype(dtype)


def draw_tensor(*shape, dtype=tritorch.float32, seed=0):
    """The same as a tensor of the CPU, rounded to its dtype."""
    return from_array(draw(*shape, dtype=np.float64, seed=seed)).to(dtype)


def same_numbers(x, y):
    """Raise unless two tensors, on whatever devices and of whatever dtypes, hold the same numbers."""
    np.testing.assert_array_equal(*[v.detach().cpu().to(tritorch.float64).array for v in (x, y)])
