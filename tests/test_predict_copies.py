"""Loops that ptxas unrolls stand in machine code several times; a prediction counts what is executed."""
import pytest

pytest.importorskip("triton")

import triton  # noqa: E402
import triton.language as tl  # noqa: E402

import tritorch as torch  # noqa: E402
from bench import cost, sass  # noqa: E402
from tritorch.cuda.launch import launch  # noqa: E402
from tritorch.testing.ptx import device, trace  # noqa: E402


@triton.jit
def sum_rows(y_ptr, x_ptr, M, N, BLOCK: tl.constexpr):
    n = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    for i in range(M):
        total += tl.load(x_ptr + i * N + n, mask=n < N, other=0)
    tl.store(y_ptr + n, total, mask=n < N)


def test_what_is_unrolled_is_counted_once():
    """Only in its loop, each line as often as its load."""
    with device.simulate(90) as gpu:
        x, y = torch.zeros(64, 1000, device="cuda"), torch.zeros(1000, device="cuda")
        with trace.tracing(gpu) as found:
            launch(sum_rows, (8,), y, x, 64, 1000, BLOCK=128, num_warps=4)
        program, cubin = found[0].kernel.program, found[0].kernel.cubin
    copied = sass.copies(program, cubin)
    lines = {line for file, line in copied if file == "test_predict_copies.py"}
    load, store = [sum_rows.starting_line_number + k for k in (5, 6)]
    loads = sum(count for opcode, count in sass.opcodes(cubin).items() if opcode.startswith("LDG"))
    assert loads >= 4 and load in lines and store not in lines and set(copied.values()) == {loads}
    whole, once = sass.busy(cubin), sass.busy(cubin, copied)
    assert whole[1]["lsu"] - once[1]["lsu"] == pytest.approx(loads - 1) and 4 < once[0] < whole[0] - 2 * (loads - 1)
    ops = cost.operations(program, cubin)
    assert sum(op.slots for op in ops if op.kind != "free") == pytest.approx(once[0])
    assert sass.busy(cubin, {}) == whole == (sum(sass.opcodes(cubin).values()), whole[1])
