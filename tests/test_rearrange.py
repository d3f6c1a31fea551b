"""func.rearrange: what einops makes of its own examples, views and gradients, and patterns that say nothing."""
import numpy as np
import pytest

import tritorch as torch
from tritorch.func import rearrange

X = np.arange(2 * 6 * 4 * 3).reshape(2, 6, 4, 3)
PATTERNS = {
    "b h w c -> b c h w": ({}, X.transpose(0, 3, 1, 2)),
    "b h w c -> (b h) w c": ({}, X.reshape(12, 4, 3)),
    "b h w c -> h (b w) c": ({}, X.transpose(1, 0, 2, 3).reshape(6, 8, 3)),
    "b (h1 h) (w1 w) c -> (b h1 w1) h w c": (dict(h1=2, w1=2), X.reshape(2, 2, 3, 2, 2, 3).transpose(0, 1, 3, 2, 4, 5).reshape(8, 3, 2, 3)),
    "b (h h1) (w w1) c -> b h w (c h1 w1)": (dict(h1=2, w=2), X.reshape(2, 3, 2, 2, 2, 3).transpose(0, 1, 3, 5, 2, 4).reshape(2, 3, 2, 12)),
    "b ... -> ... b": ({}, X.transpose(1, 2, 3, 0)),
    "b ... c -> b (...) c": ({}, X.reshape(2, 24, 3)),
    "b h w c -> b 1 (h w) () c": ({}, X.reshape(2, 1, 24, 1, 3)),
    "... -> ... 1": ({}, X[..., None]),
}


@pytest.mark.parametrize("pattern", PATTERNS)
def test_patterns(pattern):
    lengths, want = PATTERNS[pattern]
    x = torch.tensor(X, dtype=torch.float64, requires_grad=True)
    made = rearrange(x, pattern, **lengths)
    np.testing.assert_array_equal(made.detach().numpy(), want)
    made.backward(made.detach())
    np.testing.assert_array_equal(x.grad.numpy(), X)


def test_lists_numbers_and_views():
    parts = [torch.ones(2, 3) * k for k in range(4)]
    assert rearrange(parts, "n b c -> b (n c)").shape == (2, 12) and rearrange(torch.tensor(5), "-> 1").tolist() == [5]
    assert rearrange(torch.ones(1, 3), "1 c -> c").shape == (3,) and rearrange(torch.ones(0, 4), "a (b c) -> b a c", b=2).shape == (2, 0, 2)
    x = torch.zeros(2, 3)
    rearrange(x, "a b -> b a").fill_(1)
    assert x.tolist() == [[1.0] * 3] * 2


def test_what_says_nothing():
    x = torch.ones(2, 6)
    for pattern, lengths in (("a b", {}), ("a b -> a", {}), ("a a -> a", {}), ("a b c -> a b c", {}), ("a (b c) -> a b c", {}),
                             ("a (b c) -> a b c", dict(b=4)), ("a b -> b a", dict(c=2)), ("a b -> (a (b))", {}), ("a b -> (a b", {}),
                             ("a b -> a b -> b a", {}), ("a 2b -> 2b a", {}), ("(... a) b -> a b ...", dict(a=2)), ("1 b -> b", {}),
                             ("a ... b c -> a ... b c", {}), (3, {})):
        with pytest.raises(ValueError, match="rearrange: expected"):
            rearrange(x, pattern, **lengths)
    with pytest.raises(TypeError):
        rearrange(3, "a -> a")
