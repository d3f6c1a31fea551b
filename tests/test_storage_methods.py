"""The memory of a tensor itself: `set_`, and copies of storages. Compared with PyTorch where it is installed."""
import pytest
from both import agree, outcome, pytorch

import tritorch as torch

PROGRAMS = {
    "a tensor": lambda t: t.zeros(2).set_(t.arange(6.0).reshape(2, 3).t()),
    "one on a layout of its own": lambda t: t.zeros(2).set_(t.arange(6.0), 1, (2, 2), (3, 1)),
    "nothing": lambda t: list(t.zeros(2).set_().shape),
    "a storage": lambda t: t.zeros(2).set_(t.arange(6.0).untyped_storage()),
    "a storage from some place on": lambda t: t.zeros(2).set_(t.arange(6.0).untyped_storage(), 4),
    "a storage on a layout": lambda t: t.zeros(0).set_(t.arange(6.0).untyped_storage(), 1, (2, 2), (3, 1)),
    "rows all alike": lambda t: t.zeros(0).set_(t.arange(6.0).untyped_storage(), 2, (3, 2), (0, 1)),
    "shared": lambda t: shared(t),
    "it returns itself": lambda t: (lambda x: [x.set_(t.ones(3)) is x])(t.zeros(2)),
    "another dtype": lambda t: t.zeros(2).set_(t.arange(3)),
    "a gradient to follow": lambda t: t.zeros(2, requires_grad=True).set_(t.ones(2)),
    "a gradient, but not now": lambda t: without(t),
    "negative strides": lambda t: t.zeros(2).set_(t.arange(6.0).untyped_storage(), 4, (2,), (-1,)),
    "a negative place": lambda t: t.zeros(2).set_(t.arange(6.0).untyped_storage(), -1, (2,)),
    "a storage elsewhere": lambda t: t.arange(3.0).untyped_storage().cpu().nbytes(),
    "a copy": lambda t: copied(t),
    "a byte": lambda t: [t.tensor([1.5]).untyped_storage()[i] for i in (2, -1)],
    "bytes": lambda t: [t.tensor([1.5]).untyped_storage()[s].tolist() for s in (slice(1, 3), slice(-2, None), slice(2, 9), slice(3, 1))],
    "a byte that is not there": lambda t: t.zeros(2).untyped_storage()[8],
    "every other byte": lambda t: t.zeros(2).untyped_storage()[::2],
    "bytes as numbers": lambda t: t.asarray(t.arange(6.0).untyped_storage()[4:16], dtype=t.float32),
    "written bytes": lambda t: written(t),
    "its size": lambda t: (lambda s: [s.element_size(), len(s), s.untyped() is s])(t.zeros(2).untyped_storage()),
}


def written(t):
    x = t.zeros(2, dtype=t.int16)
    s = x.untyped_storage()
    s[1] = 1
    part = s[2:]
    part[0:2] = 3
    return x


def shared(t):
    x, y = t.zeros(2), t.arange(4.0)
    x.set_(y.untyped_storage(), 1, (2,), (2,))
    y += 10
    x *= 2
    return x, y, [x.storage_offset(), list(x.stride()), x.untyped_storage().data_ptr() == y.untyped_storage().data_ptr()]


def without(t):
    x = t.zeros(2, requires_grad=True)
    with t.no_grad():
        x.set_(t.ones(3))
    (x * 2).sum().backward()
    return x, x.grad


def copied(t):
    x, y = t.arange(4.0), t.zeros(4)
    z = t.zeros(0).set_(x.untyped_storage().clone())
    y.untyped_storage().copy_(x.untyped_storage())
    x += 1
    return x, y, z, [x.untyped_storage().cpu().data_ptr() == x.data_ptr()]


@pytest.mark.parametrize("name", PROGRAMS)
def test_as_pytorch(name):
    got = outcome(PROGRAMS[name], torch)
    if pytorch is None:
        assert not isinstance(got, Exception) or str(got).startswith(("set_: expected", "storage: expected"))
    else:
        want = outcome(PROGRAMS[name], pytorch)
        assert isinstance(got, Exception) == isinstance(want, Exception), f"{got!r} and {want!r}"
        if not isinstance(want, Exception):
            agree(got, want)


def test_memory_that_is_too_small_is_not_made_larger():
    """PyTorch resizes the storage, under whoever else shows it."""
    x = torch.zeros(2)
    with pytest.raises(RuntimeError, match="a storage of 32 bytes, got 24"):
        x.set_(torch.arange(6.0).untyped_storage(), 0, (2, 4))
    with pytest.raises(TypeError, match="a tensor or a storage, got list"):
        x.set_([1.0])
    assert x.tolist() == [0, 0]


def test_on_a_device(cuda):
    x = torch.arange(6.0, device=cuda)
    y = torch.zeros(0, device=cuda).set_(x.untyped_storage(), 1, (2, 2), (3, 1))
    assert y.tolist() == [[1, 2], [4, 5]] and y.device == x.device
    host = x.untyped_storage().cpu()
    back = torch.zeros(0, device=cuda).set_(host.cuda())
    x.zero_()
    assert torch.zeros(0).set_(host).tolist() == back.tolist() == [0, 1, 2, 3, 4, 5] and y.sum() == 0
    with pytest.raises(RuntimeError, match="memory on cuda:0, got cpu"):
        y.set_(host)


def test_a_compiled_step_sees_other_memory(cuda):
    weight = torch.ones(3, device=cuda)
    step = torch.compile(lambda x: x * weight)
    x = torch.ones(3, device=cuda)
    assert all(step(x).tolist() == [1, 1, 1] for _ in range(4))
    weight.set_(torch.full((3,), 5.0, device=cuda))
    assert all(step(x).tolist() == [5, 5, 5] for _ in range(4))


@pytest.mark.parametrize("shared", [False, True])
def test_storages_of_files(tmp_path, shared):
    path = tmp_path / "bytes"
    path.write_bytes(bytes(range(8)))
    memory = torch.UntypedStorage.from_file(str(path), shared, 8)
    memory[2] = 99
    x = torch.asarray(memory[2:4], dtype=torch.uint8)
    assert x.tolist() == [99, 3] and x.data_ptr() == memory.data_ptr() + 2 and path.read_bytes()[2] == (99 if shared else 2)
    del memory
    assert x.tolist() == [99, 3]                                         # the part keeps the whole
    with pytest.raises(RuntimeError, match="a file of at least 9 bytes"):
        torch.UntypedStorage.from_file(str(path), nbytes=9)


@pytest.mark.parametrize("device", ["cuda", "meta"])
def test_parts_of_storages_elsewhere(cuda, device):
    x = torch.arange(6.0, device=device)
    part = x.untyped_storage()[8:16]
    assert part.nbytes() == 8 and torch.asarray(part, dtype=torch.float32).shape == (2,)
    if device == "cuda":
        assert torch.asarray(part, dtype=torch.float32).tolist() == [2, 3]
