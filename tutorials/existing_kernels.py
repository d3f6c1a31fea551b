"""Your Triton kernels, without torch: `kernel[grid](...)` takes tritorch's tensors, so a file of kernels runs when its import changes.

    TRITORCH_CUDA=simulated python tutorials/existing_kernels.py   # every load and store checked, no GPU needed
    TRITORCH_CUDA=native python tutorials/existing_kernels.py      # compiled for the processors of this machine, no GPU needed
    python tutorials/existing_kernels.py                           # on a GPU: autotuned, and the step replayed as a CUDA graph

Root mean square normalization, y = w · x / √(mean(x²) + ε), as such files have it: two kernels, an autograd.Function, a model.
"""
import triton
import triton.language as tl

import tritorch as torch  # was: import torch
from tritorch import nn


@triton.autotune([triton.Config({}, num_warps=n) for n in (1, 4, 8)], key=["N"])
@triton.jit
def forward_kernel(y_ptr, r_ptr, x_ptr, w_ptr, N, eps, BLOCK: tl.constexpr):
    row, i = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * N + i, mask=i < N, other=0.0).to(tl.float32)
    r = tl.rsqrt(tl.sum(x * x) / N + eps)
    tl.store(r_ptr + row, r)
    tl.store(y_ptr + row * N + i, x * r * tl.load(w_ptr + i, mask=i < N), mask=i < N)


@triton.jit
def backward_kernel(dx_ptr, dw_ptr, g_ptr, x_ptr, w_ptr, r_ptr, M, N, BLOCK: tl.constexpr):
    """Each program takes every num_programs-th row and keeps its part of the gradient of w to itself: no atomics, the same sums always."""
    start, i = tl.program_id(0), tl.arange(0, BLOCK)
    w, dw = tl.load(w_ptr + i, mask=i < N, other=0.0), tl.zeros((BLOCK,), tl.float32)
    for row in range(start, M, tl.num_programs(0)):
        x = tl.load(x_ptr + row * N + i, mask=i < N, other=0.0).to(tl.float32)
        g = tl.load(g_ptr + row * N + i, mask=i < N, other=0.0).to(tl.float32)
        r = tl.load(r_ptr + row)
        tl.store(dx_ptr + row * N + i, r * (g * w - x * r * r * tl.sum(g * w * x) / N), mask=i < N)
        dw += g * x * r
    tl.store(dw_ptr + start * N + i, dw, mask=i < N)


class RMSNormFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w, eps):
        x = x.contiguous()
        y, N = torch.empty_like(x), x.shape[-1]
        r = torch.empty(x.numel() // N, device=x.device)
        forward_kernel[r.shape](y, r, x, w, N, eps, BLOCK=triton.next_power_of_2(N))
        ctx.save_for_backward(x, w, r)
        return y

    @staticmethod
    def backward(ctx, g):
        (x, w, r), (M, N) = ctx.saved_tensors, (g.numel() // g.shape[-1], g.shape[-1])
        dx, dw = torch.empty_like(x), torch.empty(min(M, 256), N, device=x.device)
        backward_kernel[(len(dw),)](dx, dw, g.contiguous(), x, w, r, M, N, BLOCK=triton.next_power_of_2(N), num_warps=4)
        return dx, dw.sum(0), None


class RMSNorm(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(features))

    def forward(self, x):
        return RMSNormFunction.apply(x, self.weight, 1e-6)


def check():
    """Values and gradients against the formula in float64, at a size that fills no block."""
    x, w, g = torch.randn(5, 7, 37), torch.randn(37), torch.randn(5, 7, 37)
    ours, exact = [[t.to(**kind).requires_grad_() for t in (x, w)] for kind in ({"device": "cuda"}, {"dtype": torch.float64})]
    y = RMSNormFunction.apply(*ours, 1e-6)
    want = exact[1] * exact[0] * torch.rsqrt(exact[0].square().mean(-1, keepdim=True) + 1e-6)
    torch.autograd.backward([y, want], [g.cuda(), g.double()])
    for got, right in ((y, want), *[(a.grad, b.grad) for a, b in zip(ours, exact)]):
        torch.testing.assert_close(got.cpu().double(), right, rtol=1e-5, atol=1e-5)


def train():
    """A step that is compiled: recorded once, with the configuration that the autotuner chose, then replayed."""
    model = nn.Sequential(nn.Linear(16, 37), RMSNorm(37), nn.Linear(37, 1)).to("cuda")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

    @torch.compile
    def step(x, y):
        loss = (model(x) - y).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    x = torch.randn(64, 16, device="cuda")
    losses = [step(x, x[:, :1].sin()).item() for _ in range(6)]
    print(f"{step.report()}\nloss {losses[0]:.3f} -> {losses[-1]:.3f}")


if __name__ == "__main__":
    if not torch.cuda.is_available():
        torch.cuda.simulate()
    torch.manual_seed(0)
    check()
    train()
