"""Keys behind the last one that a mask shows to all rows are not even read: what lies there may be NaN."""
import numpy as np
import pytest
import triton.language as tl
from arrays import draw
from test_error_ratio import settled, ways

import tritorch as T
from tritorch.ops.attention import attention, attention_backward
from tritorch.tensor import from_array

S, SEEN, READ = 300, (70, 0), 128                                        # keys, those that are seen of each sequence, most in a tile
APART = {"attention_backward": {"kernel": "apart"},
         **{f"attention_backward_{which}": next(iter(ways(f"backward_{which}", "ieee", 64))) for which in ("q", "kv")}}
TOGETHER = {"attention_backward": next(iter(ways("backward", "ieee", 64)))}


def attended(device, L, mask, hidden, window, chosen, forward=()):
    """(result, lse, gradients) with `hidden` where nobody looks; gradients from the results given."""
    def operand(seed, heads, rows):
        x = draw(2, heads, rows, 16, dtype=np.float32, seed=seed)
        if rows == S:
            x[:, :, READ:] = hidden
        return from_array(x).to(device)

    q, k, v, g = operand(0, 4, L), operand(1, 2, S), operand(2, 2, S), operand(3, 4, L)
    rest = None, None, None, window, 0.25, (0.0, 0, 0), None
    with settled("highest", **chosen):
        found = attention(q, k, v, mask.to(device), None, *rest)
        out, lse = [from_array(x).to(device) for x in forward] or found
        return [x.cpu().array for x in (*found, *attention_backward(g, q, k, v, mask.to(device), None, out, lse, *rest))]


@pytest.mark.parametrize("kind, L, window, chosen", [
    ("bool", 140, (None, None), TOGETHER), ("added to heads", 140, (None, 0), TOGETHER), ("added", 140, (None, 0), APART),
    ("added to heads", 140, (40, 0), APART), ("bool", 3, (None, None), APART), ("added", 3, (90, 250), APART)])
def test_hidden_keys_are_passed_by(kind, L, window, chosen, cuda, monkeypatch):
    """One sequence has no key at all. With a mask of its own for each head, a forward pass of few programs reads all keys: there, heads are
    rows of one tile."""
    monkeypatch.setattr(T.cuda.driver, "hardware_tiles", True)
    monkeypatch.setattr("triton_kernels.attention.SPAN", tl.constexpr(64))                   # so that it takes more than one look
    mask = np.arange(S) < np.array(SEEN)[:, None, None, None]
    mask[..., 3] = False
    if kind != "bool":
        mask = np.where(mask, draw(2, 4 if kind == "added to heads" else 1, 1, S, dtype=np.float32), -np.inf).astype(np.float32)
    mask = from_array(mask)
    want = attended("cpu", L, mask, 0.0, window, {})
    found = attended(cuda, L, mask, np.nan, window, chosen, want[:2])
    for mine, other in list(zip(found, want))[2 * (kind == "added to heads"):]:
        np.testing.assert_allclose(mine, other, rtol=1e-5, atol=2e-6)
