"""hash_tensor: PyTorch's bits, as int64."""
import pytest

import tritorch as torch


@pytest.fixture(params=["cpu", "cuda"])
def device(request, cuda):
    return cuda if request.param == "cuda" else "cpu"


def test_bits_of_every_dtype(device):
    for values, dtype, want in (([1.0, 2.0, -3.0], torch.float32, -4613937818241073152), ([1, 2, 7], torch.int8, 4), ([-1], torch.int8, -1),
                                ([200], torch.uint8, 200), ([True, False], torch.bool, 1), (1.5, torch.bfloat16, 4609434218613702656)):
        made = torch.hash_tensor(torch.tensor(values, dtype=dtype, device=device))
        assert made.item() == want and made.dtype is torch.int64 and made.shape == ()


def test_dims(device):
    x = torch.arange(6.0, device=device).reshape(2, 3)
    columns = [4613937818241073152, 9214364837600034816, 5629499534213120]
    assert x.hash_tensor(0).tolist() == columns and x.t().hash_tensor(1).tolist() == columns
    assert x.hash_tensor(1, keepdim=True).tolist() == [[9218868437227405312], [4615063718147915776]]
    assert x.hash_tensor((0, 1)).item() == x.hash_tensor([]).item() == torch.hash_tensor(x).item() == 4610560118520545280
    long = torch.arange(100_001, device=device)
    assert long.hash_tensor().item() == 100_000 and long[:-1].expand(3, 100_000).hash_tensor(1).tolist() == [0] * 3
    out = torch.empty(0, dtype=torch.int64, device=device)
    assert torch.hash_tensor(x, 0, out=out) is out and out.tolist() == columns
    x.requires_grad_()
    assert not x.hash_tensor().requires_grad


def test_what_is_refused():
    for call, error, words in ((lambda x: x.hash_tensor(mode=1), RuntimeError, "mode 0"), (lambda x: x.hash_tensor(5), IndexError, "dim"),
                               (lambda x: x[:0].hash_tensor(), RuntimeError, "an element, or a dim"),
                               (lambda x: x[:0].hash_tensor(0), IndexError, "at least one element"),
                               (lambda x: (x + 1j).hash_tensor(), NotImplementedError, "real tensors"),
                               (lambda x: x.hash_tensor([0, 0]), RuntimeError, "each dim once")):
        with pytest.raises(error, match=words):
            call(torch.ones(2, 3))
