"""tritorch.compile beside grad modes: results that are views of arguments, tensors of inference mode, threads."""

import tritorch as torch

INFERENCE = "expected a normal tensor to write outside of inference mode"


def test_gradients_of_results_that_are_views_of_arguments(cuda):
    """They have no memory of the graph, but a place among the results."""
    def function(x):
        return x[1:], x * 3, x.t()

    step = torch.compile(function)
    for factors in [(10, 1, 100), (0, 1, 0), (1, 0, 0), (0, 0, 1), (1, 2, 3)] * 2:
        gradients = []
        for call in (function, step):
            x = torch.arange(4.0, device="cuda").view(2, 2).requires_grad_()
            sum(out.sum() * factor for out, factor in zip(call(x), factors) if factor).backward()
            gradients.append(x.grad.tolist())
        assert gradients[0] == gradients[1], factors
    assert any(kind.recordings for kind in step.kinds.values())


def test_inference_tensors_as_arguments_and_results(cuda):
    def written(x):
        x.add_(1)
        return x[1:], x * 2

    def inside(x):
        with torch.inference_mode():
            y = x * 2
        return y, x * 3

    for function in (written, inside):
        step = torch.compile(function)
        for mode, made in [(False, False), (True, False), (True, True), (False, True)] * 6:
            found = []
            for call in (function, step):
                with torch.inference_mode(made):
                    x = torch.ones(3, device="cuda") * 2
                with torch.inference_mode(mode):
                    try:
                        found.append([(out.tolist(), out.is_inference()) for out in call(x)])
                    except RuntimeError as error:
                        assert INFERENCE in str(error)
                        found.append("refused")
            assert found[0] == found[1], (function, mode, made)
            assert (found[0] == "refused") == (function is written and made and not mode)
        assert sum(len(kind.recordings) for kind in step.kinds.values()) >= 3
