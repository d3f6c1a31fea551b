"""Every operator's samples, forward and backward, as tests run them: what they launch can be compiled before the tests begin."""


def programs(sides):
    """Each operator with all samples of two dtypes."""
    import tritorch as torch
    import tritorch.nn
    import tritorch.optim
    from tritorch.testing import cards

    where = torch.device("cuda:0")
    for name, operator in sorted(torch.dispatch.registry.items()):
        def program(operator=operator):
            for kind in (torch.float32, torch.bfloat16):
                for args in cards.samples_of(operator, kind):
                    outs, ins = cards.differentiable(operator, cards.leaves(args, where))
                    if outs:
                        torch.autograd.grad(outs, ins, [torch.ones_like(o) for o in outs], allow_unused=True)

        program.__name__ = name
        yield program
