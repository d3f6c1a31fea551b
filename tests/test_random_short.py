"""Normal numbers of 16 bits: two share a word of 32 bits, and are as good as those of more digits rounded."""
import numpy as np
import pytest

import tritorch as T
from tritorch.cuda import tuner
from tritorch.generator import Generator
from tritorch.ops import draws
from tritorch.ops import random as R
from tritorch.philox import words


def box_muller(word):
    """Two normals a word in float64: the law of normal numbers of 16 bits."""
    word = word.astype(np.uint64)
    radius = np.sqrt(-2 * np.log((word + 0.5) / 2**32))
    angle = 2 * np.pi * (word * np.uint64(0x9E3779B9) % np.uint64(2**32)) / 2**32
    return np.stack((radius * np.cos(angle), radius * np.sin(angle)), 1).reshape(-1)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("n", [1, 7, 2049, 9001])
def test_two_normals_of_16_bits_share_a_word(cuda, dtype, n, monkeypatch):
    monkeypatch.setattr(draws, "MOST", 2)                                         # programs go on to further blocks
    kind, expected = getattr(T, dtype), box_muller(words(11, 0, 4501, rounds=7))[:n]
    digits = 2.0**-8 if dtype == "bfloat16" else 2.0**-11
    for d in ("cpu", cuda):
        g = Generator(d)
        plain, moved = (T.empty(n, dtype=kind, device=d).normal_(*args, generator=g.manual_seed(11)) for args in ((), (0.5, 2.0)))
        np.testing.assert_allclose(plain.cpu().double().array, expected, rtol=digits, atol=5e-6)
        np.testing.assert_allclose(moved.cpu().double().array, 0.5 + 2 * expected, rtol=digits, atol=1e-5)


@pytest.mark.parametrize("way", draws.SHORT, ids=str)
def test_all_ways_to_draw_them_give_the_same(cuda, way):
    block, words_turned, inverse = way
    expected = box_muller(words(11, 0, 4096, rounds=7))[:8191]
    with tuner.forcing("draws", {"BLOCK": block, "SHORT": words_turned, "INVERSE": inverse, "num_warps": 4}):
        got = T.empty(8191, dtype=T.float16, device=cuda).normal_(generator=Generator(cuda).manual_seed(11))
    np.testing.assert_allclose(got.cpu().double().array, expected, rtol=2.0**-11, atol=5e-6)


@pytest.mark.parametrize(("dtype", "bits"), [("float16", 0x4700), ("bfloat16", 0x40E0)])
def test_normals_of_16_bits_are_as_likely_as_rounded_ones(dtype, bits):
    """Chi-square of every value under 7, those that are expected less than fifty times together with their neighbours."""
    stats = pytest.importorskip("scipy.stats")
    T.random.manual_seed(3)
    n = 2_000_000
    got = R.randn(n, dtype=getattr(T, dtype))
    values = T.from_numpy(np.arange(bits, dtype=np.int16)).view(got.dtype).double().array
    ends = np.concatenate([[0], (values[1:] + values[:-1]) / 2, [np.inf]])
    chance = 2 * (stats.norm.sf(ends[:-1]) - stats.norm.sf(ends[1:]))
    group = np.minimum((np.cumsum(chance) * n / 50).astype(int), n // 50 - 1)
    found = np.bincount(got.view(T.int16).array & 0x7FFF, minlength=bits)
    assert found.size == bits                                                     # none is 7 or more, or not finite
    found, expected = np.bincount(group, found), np.bincount(group, chance) * n
    expected[-1] += n - expected.sum()
    assert stats.chisquare(found[expected > 0], expected[expected > 0]).pvalue > 1e-3


def test_the_tail_of_normals_of_16_bits():
    """Of all words there are: as many normals beyond 5 … 6 as there should be, on all four sides."""
    stats = pytest.importorskip("scipy.stats")
    z = draws.standard_normal(draws.normal_pairs(np.arange(1 << 14, dtype=np.uint32))).reshape(-1, 2)       # all pairs with radius over 5
    for least in (5, 5.5, 6):
        expected = 2**32 * stats.norm.sf(least)
        for side in (z[:, 0], -z[:, 0], z[:, 1], -z[:, 1]):
            assert abs((side >= least).sum() - expected) < 2 + 0.02 * expected
    assert 6.5 < np.abs(z).max() < 7
