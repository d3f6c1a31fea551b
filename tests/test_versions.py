"""Versions: saved values that were written since are an error, which names both lines."""
import pytest
from both import both, leaf

import tritorch


@both
def test_versions(torch):
    x = torch.zeros(3, dtype=torch.float64)
    seen = [x._version]
    v, d, alias = x[1:], x.detach(), x.data
    v.add_(1)
    seen += [x._version, v._version, d._version, alias._version]
    d.mul_(2)
    alias.add_(1)
    seen += [x._version, v._version, alias._version]
    x.zero_()
    x[0] = 5
    torch.add(x, 1, out=x)
    torch.autograd.graph.increment_version(x)
    return seen + [x._version, v._version, x]


def input_of_a_product(torch, x):
    y = x * 1
    z = y * y
    y.add_(1)
    return z


def output_of_exp(torch, x):
    z = x.exp()
    z.mul_(2)
    return z


def through_a_view(torch, x):
    y = x * 1
    z = y.sin()
    y[0] = 5.0
    return z


def through_detach(torch, x):
    z = x.exp()
    z.detach().zero_()
    return z


def without_grad_mode(torch, x):
    y = x * 1
    z = y * y
    with torch.no_grad():
        y.add_(1)
    return z


def saved_view(torch, x):
    y = x * 1
    z = y[:1] * x[:1]
    y.add_(1)
    return z


def a_weight_after_its_step(torch, x):
    z = (x * x).sin()
    with torch.no_grad():
        x.sub_(0.1)
    return z


@pytest.mark.parametrize("program", [input_of_a_product, output_of_exp, through_a_view, through_detach, without_grad_mode, saved_view,
                                     a_weight_after_its_step])
@both
def test_overwritten_values_are_an_error(torch, program):
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        program(torch, leaf(torch, 1.0, 2.0)).sum().backward()


@both
def test_values_that_nobody_needs_may_be_overwritten(torch):
    x = leaf(torch, 1.0, 2.0)
    y = x * 1                                                            # the values of a sum are not needed
    z = y + y
    y.add_(1)
    z.sum().backward()
    y = x * 1                                                            # .data is not counted
    z = y.sin()
    y.data.add_(1)
    z.sum().backward()
    return x.grad


def lines_of(error, *marks):
    """The error names the lines of this file that carry the marks."""
    text = open(__file__).read().splitlines()
    for mark in marks:
        (number,) = [k for k, line in enumerate(text, 1) if line.rstrip().endswith("# " + mark)]
        assert f"{__file__}:{number}" in str(error), f"{mark} at {number}: {error}"


def test_the_error_names_both_lines():
    torch = tritorch
    x = torch.ones(3, requires_grad=True)
    y = x * 1
    z = y * y                                                            # saved here
    y.add_(1)                                                            # written here
    with pytest.raises(RuntimeError, match="modified by an inplace operation") as error:
        z.sum().backward()
    lines_of(error.value, "saved here", "written here")
    assert "'other'" in str(error.value) and "(3,)" in str(error.value) and "clone()" in str(error.value)


def test_the_error_names_the_users_lines_across_layers():
    torch = tritorch
    net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    loss = net(torch.ones(5, 3)).sum()                                   # saved by a layer here
    loss.backward(retain_graph=True)
    optimizer.step()                                                     # written by an optimizer here
    with pytest.raises(RuntimeError, match="modified by an inplace operation") as error:
        loss.backward()
    lines_of(error.value, "saved by a layer here", "written by an optimizer here")


def test_the_error_names_the_lines_of_a_function():
    torch = tritorch

    class Square(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx, g):
            return 2 * g * ctx.saved_tensors[0]

    x = torch.ones(3, requires_grad=True)
    y = x * 1
    z = Square.apply(y)                                                  # saved by a Function here
    y[0] = 2                                                             # written by an assignment here
    with pytest.raises(RuntimeError, match="modified by an inplace operation") as error:
        z.sum().backward()
    lines_of(error.value, "saved by a Function here", "written by an assignment here")


def test_nothing_is_written_by_a_call_that_fails():
    torch = tritorch
    x, c = torch.ones(3, requires_grad=True), torch.ones(3)
    y = x * 1
    for call in (lambda: y.add_(torch.ones(4)), lambda: x.add_(1), lambda: torch.add(x, 1, out=c), lambda: y.copy_(torch.ones(2, 3)),
                 lambda: c.add_("word")):
        with pytest.raises((RuntimeError, TypeError)):
            call()
    assert (x._version, y._version, c._version) == (0, 0, 0) and y.tolist() == c.tolist() == [1.0] * 3
    y.sum().backward()
    assert x.grad.tolist() == [1.0] * 3
