"""What the tests of torch.export share: a program held against its module, in its outputs, gradients, buffers, inputs and chance."""
import copy
import io

import numpy as np

import tritorch as torch
from tritorch import nn
from tritorch.utils._pytree import tree_leaves


class Of(nn.Module):
    """A function of (module, arguments) as a module with these parameters, modules and buffers."""

    def __init__(self, f, **members):
        super().__init__()
        self.f = f
        for name, x in members.items():
            if isinstance(x, torch.Tensor) and not isinstance(x, nn.Parameter):
                self.register_buffer(name, x)
            else:
                setattr(self, name, x)

    def forward(self, *args, **kwargs):
        return self.f(self, *args, **kwargs)


def drawn(*shape, seed=0, dtype=np.float32):
    """Numbers of N(0, 1)."""
    return torch.from_numpy(np.random.default_rng([seed, *shape]).standard_normal(shape).astype(dtype))


def tensors(tree):
    return [x for x in tree_leaves(tree) if isinstance(x, torch.Tensor)]


def alike(got, want, what, tolerance=1e-5):
    if not isinstance(want, torch.Tensor):
        assert got is None and want is None or type(got) is type(want) and got == want, (what, got, want)
        return
    assert got.shape == want.shape and got.dtype is want.dtype, (what, got.shape, want.shape, got.dtype, want.dtype)
    kind = np.complex128 if want.dtype.is_complex else np.float64
    np.testing.assert_allclose(got.detach().cpu().to(want.dtype).numpy().astype(kind), want.detach().cpu().numpy().astype(kind),
                               rtol=tolerance, atol=tolerance, err_msg=what)


def outcome(module, args, kwargs, follow):
    """(results, gradients by parameter, buffers, inputs afterwards, their gradients) of a call with copies of the arguments."""
    torch.manual_seed(7)
    args, kwargs = copy.deepcopy((args, kwargs))
    inputs = tensors((args, kwargs))
    for x in inputs:
        if x.dtype.is_floating_point:
            x.requires_grad_(follow)
    module.zero_grad()
    results = module(*args, **kwargs)
    totals = [(y * y).sum() + y.sum() for y in tensors(results) if y.requires_grad]
    if totals:
        sum(y.abs() if y.is_complex() else y.double() for y in totals).backward()
    grads = {name: p.grad for name, p in module.named_parameters(remove_duplicate=False)}
    return results, grads, dict(module.named_buffers()), inputs, [x.grad for x in inputs]


def hold(module, model, args, kwargs, follow, what):
    """That a module does what a model does, to all that can be seen."""
    got, want = outcome(module, args, kwargs, follow), outcome(model, args, kwargs, follow)
    mine, theirs = tree_leaves(got[0]), tree_leaves(want[0])
    assert type(got[0]) is type(want[0]) and len(mine) == len(theirs), what
    for k, (x, y) in enumerate(zip(mine, theirs)):
        alike(x, y, f"{what}: result {k}")
        assert not isinstance(y, torch.Tensor) or x.requires_grad == y.requires_grad, (what, k, x.requires_grad, y.requires_grad)
    for place, name in ((1, "gradient"), (2, "buffer")):
        for key, y in want[place].items():
            alike(got[place][key], y, f"{what}: {name} {key}")
    for place, name in ((3, "input"), (4, "gradient of input")):
        for k, (x, y) in enumerate(zip(got[place], want[place])):
            alike(x, y, f"{what}: {name} {k}")


def proved(model, args, kwargs=None, shapes=None, others=(), follow=(False, True), saved=True):
    """The program of a model: itself, without writes in place, and read from a file, it does twice what the model does."""
    kwargs, before = kwargs or {}, copy.deepcopy(model)
    program = torch.export.export(model, args, kwargs, dynamic_shapes=shapes)
    for name, x in before.state_dict().items():
        alike(model.state_dict()[name], x, f"{name} before and after export", 0)
    forms = {"program": copy.deepcopy(program).module(), "functional": copy.deepcopy(program).run_decompositions().module()}
    if saved:
        forms["file"] = again(program).module()
    for what, module in forms.items():
        model = copy.deepcopy(before)
        for given in ((args, kwargs), *others, (args, kwargs)):
            for flag in follow:
                hold(module, model, *given, flag, what)
    return program


def again(program):
    """A program written to a file and read."""
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    return torch.export.load(file)


def called(program):
    """What the nodes call."""
    return [str(node.target) for node in program.graph.nodes if node.op == "call_function"]
