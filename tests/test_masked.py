"""torch.masked: reductions and normalizations of what a mask leaves, against PyTorch and against the elements that are left."""
import numpy as np
import pytest
from oracle import agree, draw

import tritorch

NAMES = ("sum", "prod", "amax", "amin", "mean", "norm", "var", "std", "logsumexp")
KEPT = np.array([[True, False, True, True], [False] * 4, [True] * 4])


@pytest.mark.parametrize("name", NAMES)
def test_reductions(name, cuda):
    def program(lib, x, m, **kw):
        f = getattr(lib.masked, name)
        front = (x, 2) if name == "norm" else (x,)
        return f(*front, **kw), f(*front, 1, mask=m, **kw), f(*front, (0, 1), keepdim=True, mask=m, **kw), f(*front, 0, mask=m[0], **kw)

    for device in ("cpu", cuda):
        agree(program, draw(3, 4), KEPT, device=device, rtol=1e-5, what=name)
    agree(lambda lib, x, m: getattr(lib.masked, name)(x, *([2] if name == "norm" else ()), dim=1, mask=m), draw(2, 4), KEPT[[0, 2]],
          grad=[0], rtol=1e-5, what=name)
    for dtype in ("bfloat16", "int32", "bool") if name not in ("mean", "norm") else ("bfloat16",):
        if (name, dtype) not in (("logsumexp", "bool"), ("amax", "bool"), ("amin", "bool"), ("var", "bool"), ("std", "bool")):
            agree(lambda lib, x, m: getattr(lib.masked, name)(x, *([2] if name == "norm" else ()), dim=1, mask=m),
                  (draw(2, 4, dtype=dtype, low=1, high=4) if dtype != "bool" else draw(2, 4, dtype=dtype), dtype), KEPT[[0, 2]], rtol=2e-2,
                  what=f"{name} {dtype}")


def test_normalizations(cuda):
    for device in ("cpu", cuda):
        for name in ("softmax", "log_softmax", "softmin", "cumsum", "cumprod"):
            agree(lambda lib, x, m, name=name: (getattr(lib.masked, name)(x, 1), getattr(lib.masked, name)(x, 0, mask=m),
                                                getattr(lib.masked, name)(x, 1, dtype=lib.float64, mask=m[0])), draw(3, 4), KEPT, grad=[0],
                  rtol=1e-5, device=device, what=name)
        agree(lambda lib, x, m: (lib.masked.normalize(x, 2, 1, mask=m), lib.masked.normalize(x, 1, 0, eps=0.5)), draw(3, 4), KEPT,
              device=device)
        agree(lambda lib, x, y, m: lib.masked.logaddexp(x, y, input_mask=m, other_mask=m[0]), draw(3, 4), draw(3, 4, seed=1), KEPT,
              device=device)


def test_places_and_medians():
    for name in ("argmax", "argmin"):
        agree(lambda lib, x, m, name=name: (getattr(lib.masked, name)(x, 1, mask=m), getattr(lib.masked, name)(x, mask=m, dtype=lib.int64)),
              draw(3, 4), KEPT, what=name)
    agree(lambda lib, x, m: (lib.masked.median(x, mask=m), lib.masked.median(x, 0, keepdim=True)), draw(3, 4), KEPT)
    agree(lambda lib, x, m: lib.masked.median(x, 1, mask=m), draw(3, 4, dtype="int64"), KEPT)
    agree(lambda lib, x, m: lib.masked.median(x, 1, mask=m), draw(2, 4, dtype="int64"), KEPT[::2])
    agree(lambda lib, x, m: lib.masked.sum(x[0], 0, mask=m), draw(3, 4), KEPT)
    agree(lambda lib, x, m: lib.masked.mean(x, 0, mask=m), draw(3, 4, dtype="int64"), KEPT)


def test_what_is_left_out_does_not_count():
    x, m = tritorch.tensor([[3.0, 0.5, 2.0]]), tritorch.tensor([True, False, True])
    for order in (-1, -2.5, 3):
        assert tritorch.masked.norm(x, order, 1, mask=m).item() == pytest.approx(tritorch.linalg.vector_norm(x[:, m], order).item())
    chances = tritorch.masked.softmax(tritorch.tensor([5, 0, 1], dtype=tritorch.uint8), 0, dtype=tritorch.float32, mask=m)
    assert chances[1] == 0 and chances.sum().item() == pytest.approx(1)
