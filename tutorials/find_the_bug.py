"""Four kernels with a mistake that a GPU forgives, most days, and what the two simulated GPUs say of them.

    python tutorials/find_the_bug.py

`torch.cuda.simulate()` runs kernels in Triton's interpreter, on memory of which every byte has an owner: quick to start, names the line
of the source. `tritorch.testing.ptx.simulate(90)` runs what the compiler made of them, all threads of all programs, behind the real
driver's calls: it also sees what happens between programs. Neither needs a GPU, nor to be told what to look for.
"""
import triton
import triton.language as tl

import tritorch as torch
from tritorch.testing import ptx


@triton.jit
def double(y_ptr, x_ptr, N, BLOCK: tl.constexpr):
    """1. The load forgot its mask. A GPU reads what lies behind x, and mostly something does."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i)
    tl.store(y_ptr + i, 2 * x, mask=i < N)


@triton.jit
def differences(y_ptr, x_ptr, N, BLOCK: tl.constexpr):
    """2. The last element is never written. A GPU leaves there what was in that memory before, which may well be the right number."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i, mask=i < N)
    following = tl.load(x_ptr + i + 1, mask=i < N - 1)
    tl.store(y_ptr + i, following - x, mask=i < N - 1)


@triton.jit
def histogram(count_ptr, x_ptr, N, BLOCK: tl.constexpr):
    """3. Programs add to the same counters, each to what it has read. On a GPU some are lost, on some days."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    bin = tl.load(x_ptr + i, mask=i < N, other=0)
    for b in range(4):
        found = tl.sum((bin == b) & (i < N))
        tl.store(count_ptr + b, tl.load(count_ptr + b) + found)


@triton.jit
def atomic_histogram(count_ptr, x_ptr, N, BLOCK: tl.constexpr):
    """The same as it should be: integers that are added atomically have one sum, whatever the order."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    bin = tl.load(x_ptr + i, mask=i < N, other=0)
    for b in range(4):
        tl.atomic_add(count_ptr + b, tl.sum((bin == b) & (i < N)), sem="relaxed")


def two_streams(ordered):
    """4. A stream reads what another one writes, and nobody told it to wait. No kernel is wrong here, so the interpreter's GPU is the one
    to ask: it runs what is queued on different streams in any order that the events allow."""
    x, side = torch.zeros(1000, device="cuda"), torch.cuda.Stream()
    x += 1
    if ordered:
        side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        y = x * 2
        x.record_stream(side)                                      # x's memory is not given to others before this is done
    side.synchronize()
    return y.sum().item()


def says(run):
    """What the run returns, or what it raises when it is waited for: work is queued, as on a GPU."""
    try:
        found = run()
        torch.cuda.synchronize()
        return f"{found}"
    except RuntimeError as error:
        return f"{type(error).__name__}: {error}"


def main():
    x = torch.arange(100.0)
    bins = torch.arange(100, dtype=torch.int32) % 4

    torch.cuda.simulate(seed=1)                                    # the seed decides between orders that are allowed
    y = torch.empty(100, device="cuda")
    print("1.", says(lambda: double[(1,)](y, x.cuda(), 100, BLOCK=128)))

    y = torch.empty(100, device="cuda")
    differences[(1,)](y, x.cuda(), 100, BLOCK=128)
    print("2.", f"fresh memory is poisoned, so the last of {y[-3:].tolist()} is what nobody has written")

    count = torch.zeros(4, dtype=torch.int32, device="cuda")
    histogram[(4,)](count, bins.cuda(), 100, BLOCK=32)
    print("3.", f"one program after the other, nothing is lost: {count.tolist()}; so ask the machine that runs them at once:")
    with ptx.simulate(90):
        count, bins = torch.zeros(4, dtype=torch.int32, device="cuda"), bins.cuda()
        print("  ", says(lambda: histogram[(4,)](count, bins, 100, BLOCK=32)))
        count = torch.zeros(4, dtype=torch.int32, device="cuda")
        atomic_histogram[(4,)](count, bins, 100, BLOCK=32)
        print("  ", f"with atomic_add: {count.tolist()}")

    print("4.", f"without a wait: {says(lambda: two_streams(False))}, with it: {two_streams(True)}")


if __name__ == "__main__":
    main()
