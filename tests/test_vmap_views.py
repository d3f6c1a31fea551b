"""Views inside of vmap belong to the graph around: gradients of all samples go through them."""
import pytest

import tritorch as torch

VIEWS = {
    "select": lambda x: x.select(-1, 2), "slice": lambda x: x[..., 1:4:2], "diagonal": lambda x: x.diagonal(1, -1, 0),
    "unfold": lambda x: x.unfold(1, 2, 1), "permute": lambda x: x.permute(1, 0), "transpose": lambda x: x.transpose(-1, -2),
    "unsqueeze": lambda x: x.unsqueeze(-2), "squeeze": lambda x: x[:, :1].squeeze(-1).squeeze(), "view": lambda x: x.view(2, -1, 5),
    "flattened": lambda x: x.view(-1), "expand": lambda x: x[0].expand(3, 2, 5), "kept": lambda x: x[:, :1].expand(-1, 4),
    "complex": lambda x: torch.view_as_complex(x.reshape(2, 5, 2)).abs(), "parts": lambda x: torch.complex(x, x * 2).imag,
    "real": lambda x: torch.view_as_real(torch.complex(x, x * 2)), "strided": lambda x: x.as_strided((2, 2), (5, 2)),
    "twice": lambda x: x.t()[1:].unsqueeze(0).expand(2, -1, -1)[1], "number": lambda x: x[0, 0].unsqueeze(0),
    "nothing": lambda x: x[2:, 5:], "number unfolded": lambda x: x[0, 0].unfold(0, 1, 1),
}


@pytest.mark.parametrize("dim", [0, -1])
@pytest.mark.parametrize("name", VIEWS)
def test_gradients_go_through_views(name, dim):
    generator = torch.Generator().manual_seed(3)
    shape = (4, 5, 3) if dim else (3, 4, 5)
    x = torch.randn(shape, generator=generator, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(5, generator=generator, dtype=torch.float64, requires_grad=True)
    calls = []

    def of_sample(row):
        calls.append(row)
        return VIEWS[name]((row * weight).sin()) ** 2

    made = torch.func.vmap(of_sample, in_dims=dim)(x)
    assert len(calls) == 1
    want = torch.stack([of_sample(row) for row in x.unbind(dim)])
    torch.testing.assert_close(made, want)
    first, again = [torch.autograd.grad((y * y.cos()).sum(), (x, weight), create_graph=True) for y in (made, want)]
    torch.testing.assert_close(first, again)
    second, twice = [torch.autograd.grad(sum((g ** 2).sum() for g in gs), (x, weight), allow_unused=True) for gs in (first, again)]
    for a, b in zip(second, twice):
        torch.testing.assert_close(torch.zeros(()) if a is None else a, torch.zeros(()) if b is None else b)


@pytest.mark.parametrize("name", ["select", "slice", "transpose", "view", "diagonal"])
def test_writes_through_views(name):
    x = torch.randn(3, 4, 5, dtype=torch.float64, requires_grad=True)

    def of_sample(row):
        own = row * 1
        VIEWS[name](own).mul_(row.sum())
        return own.cos()

    made, want = torch.func.vmap(of_sample)(x), torch.stack([of_sample(row) for row in x])
    torch.testing.assert_close(made, want)
    torch.testing.assert_close(*[torch.autograd.grad(y.sum(), x)[0] for y in (made, want)])


def test_writes_to_what_vmap_was_given():
    for dim in (0, 1):
        x = torch.arange(6.0).view(2, 3)
        torch.func.vmap(lambda row: row.mul_(2).sum(), in_dims=dim)(x)
        assert torch.equal(x, 2 * torch.arange(6.0).view(2, 3))
