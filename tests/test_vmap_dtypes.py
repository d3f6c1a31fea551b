"""Inside of vmap dtypes are promoted as those of one sample: a number of each sample is a 0-dim tensor, though all of them are not."""
import itertools

import pytest

import tritorch as torch

KINDS = [torch.float32, torch.float64, torch.int64, torch.float16, torch.bool, torch.complex64]
SHAPES = [((3, 2), (3,)), ((3,), (3, 2)), ((3,), (3,))]
FUNCTIONS = {"add": torch.add, "eq": torch.eq, "where": lambda p, q: torch.where(p == 1, p, q), "joined": lambda p, q: torch.stack(
    torch.broadcast_tensors(p, q)), "scaled": lambda p, q: torch.add(p, q, alpha=2)}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_dtypes_of_samples(name):
    function = FUNCTIONS[name]
    for (a, b), (one, other), dims in itertools.product(itertools.product(KINDS, KINDS), SHAPES, [(0, 0), (0, None), (None, 0)]):
        x, y = torch.ones(one).to(a), torch.ones(other).to(b)
        x, y = x if dims[0] == 0 else x[0], y if dims[1] == 0 else y[0]
        try:
            want = torch.stack([function(x[k] if dims[0] == 0 else x, y[k] if dims[1] == 0 else y) for k in range(3)])
        except RuntimeError as error:
            with pytest.raises(RuntimeError, match=str(error).partition(":")[0]):
                torch.func.vmap(function, dims)(x, y)
            continue
        made = torch.func.vmap(function, dims)(x, y)
        assert made.dtype is want.dtype and torch.equal(made, want), (a, b, one, other, dims, made.dtype)
