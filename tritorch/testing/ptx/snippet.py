"""A few lines of PTX with chosen values in registers and shared memory, executed by one CTA: for tests of single instructions."""
import numpy as np

from tritorch.testing.ptx import access, arithmetic, control, convert, copies, integers, mbarrier, mma, tma, warp, wgmma  # noqa: F401
from tritorch.testing.ptx.machine import Launch, Machine
from tritorch.testing.ptx.parse import parse

HEAD = """.version 8.7
.target sm_90a
.address_size 64
.extern .shared .align 16 .b8 global_smem[];
.visible .entry kernel(
	.param .align 64 .b8 kernel_param_0[128]
)
.reqntid {threads}
.maxnreg {maxnreg}
{{
"""
DECLARED = ".reg .pred %p<8>;\n.reg .b32 %r<160>;\n.reg .b64 %rd<40>;\n"
LANE = np.arange(32)


class Run:
    """A kernel of one CTA: `registers` by name at the start, `shared` bytes, and both after it."""

    def __init__(self, body, threads=32, memory=None, shared=1 << 15, maxnreg=128, parameter=b"", content=None, **registers):
        text = HEAD.format(threads=threads, maxnreg=maxnreg) + DECLARED + body + "\nret;\n}\n"
        program = parse(text)
        parameters = np.frombuffer(parameter.ljust(128, b"\0"), np.uint8)
        self.machine = Machine(program, Launch((1, 1, 1), threads, shared, parameters), memory, np.zeros(1, np.int64))
        self.index = {f"{letter}{i}": at for letter, first, count in (("p", 0, 8), ("r", 8, 160), ("rd", 168, 40))
                      for i, at in enumerate(range(first, first + count))}
        for name, value in registers.items():
            old = self.machine.registers[self.index[name]]
            self.machine.registers[self.index[name]] = np.broadcast_to(value, old.shape).astype(old.dtype)
        if content is not None:
            self.machine.shared[0, :content.size] = content
        self.machine.run()

    def __getitem__(self, name):
        return self.machine.registers[self.index[name]]

    @property
    def shared(self):
        return self.machine.shared[0]


def laid_out(matrix, span):
    """(rows, contiguous) of 16 bits in shared memory: blocks of `span` bytes of all rows one after the other. The known patterns: the chunk
    of 16 bytes is XORed with the row mod 8 for 128 bytes, with row // 2 mod 4 for 64, with row // 4 mod 2 for 32; without a swizzle (16),
    atoms of 8 rows are dense."""
    rows, columns = matrix.shape
    out, wide = np.zeros(matrix.size, np.uint16), span // 2
    for r in range(rows):
        for c in range(columns):
            chunk = c % wide // 8 ^ {128: r % 8, 64: r // 2 % 4, 32: r // 4 % 2, 16: 0}[span]
            out[c // wide * rows * wide + r * wide + chunk * 8 + c % 8] = matrix[r, c]
    return out.view(np.uint8)
