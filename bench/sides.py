"""The two libraries on one device: the same inputs for both, and how far apart their results are."""
import importlib.util

import tritorch
from tritorch.cuda import driver

TOLERANCES = {"bfloat16": 2e-2, "float16": 4e-3, "float32": 1e-4, "float64": 1e-10}


class Sides:
    """tritorch, and PyTorch where it is installed. PyTorch draws the inputs and tritorch looks at the same memory; without a GPU
    (a rehearsal) PyTorch stays on the CPU and tritorch gets copies; on a dry device there is tritorch alone."""

    def __init__(self, alone=False):
        self.torch = None
        if not alone and importlib.util.find_spec("torch"):
            import torch

            torch.manual_seed(0)
            torch.backends.cudnn.benchmark = True
            self.torch = torch
        self.on_gpu = driver.current().name == "nvidia" and self.torch is not None and self.torch.cuda.is_available()
        self.theirs = "cuda" if self.on_gpu else "cpu"

    def library(self, name):
        return tritorch if name == "tritorch" else self.torch

    def inputs(self, case):
        """Our tensors and PyTorch's (None without it) for the inputs of a case."""
        drawn = [self.draw(i) for i in case.inputs]
        ours = [finished(x, i, share=self.torch is None) for i, (x, _) in zip(case.inputs, drawn)]
        return ours, None if self.torch is None else [finished(y, i, share=True) for i, (_, y) in zip(case.inputs, drawn)]

    def draw(self, wanted):
        shape = [wanted.shape[i] for i in (0, 2, 3, 1)] if wanted.nhwc else wanted.shape
        if self.torch is None:
            return random(tritorch, shape, wanted, "cuda"), None
        y = random(self.torch, shape, wanted, self.theirs)
        x = tritorch.from_dlpack(y)
        return x if self.on_gpu else x.to("cuda"), y


def random(torch, shape, wanted, device):
    if wanted.values is not None:
        return torch.from_numpy(wanted.values(tuple(shape))).to(getattr(torch, wanted.dtype)).to(device)
    if wanted.high is not None:
        return torch.randint(0, wanted.high, tuple(shape), device=device)
    return torch.randn(*shape, device=device, dtype=getattr(torch, wanted.dtype)) if shape else torch.ones(
        (), device=device, dtype=getattr(torch, wanted.dtype))


def finished(x, wanted, share):
    x = x.permute(0, 3, 1, 2) if wanted.nhwc else x
    x = x.clone() if wanted.own and not share else x
    return x.detach().requires_grad_() if wanted.grad else x


def apart(case, ours, theirs, torch):
    """The largest relative error ‖ours - theirs‖ / ‖theirs‖ of the compared results, and the sentence that refuses it, or ""."""
    if case.compare is None:
        return None, ""
    worst = 0.0
    for x, y in zip(*(compared(case, out) for out in (ours, theirs))):
        if tuple(x.shape) != tuple(y.shape):
            return None, f"expected shape {tuple(y.shape)}, got {tuple(x.shape)}"
        x = torch.from_dlpack(x.detach() if y.is_cuda else x.detach().cpu())
        x, y = (t.detach().to(torch.float64 if t.numel() < 1 << 26 else torch.float32) for t in (x, y))
        error = float((x - y).norm() / y.norm().clamp_min(1e-30))
        if not error <= limit(case):
            return error, f"wrong result: relative error {error:.3g}, expected at most {limit(case):g}"
        worst = max(worst, error)
    return worst, ""


def limit(case):
    return case.tolerance or TOLERANCES.get(case.inputs[0].dtype, 1e-4)


def compared(case, out):
    out = list(out) if isinstance(out, (tuple, list)) else [out]
    return out[case.compare] if isinstance(case.compare, slice) else [out[case.compare]]
