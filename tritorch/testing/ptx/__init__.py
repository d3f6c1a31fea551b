"""A GPU made of numpy: it executes the PTX that Triton made of our kernels, so that compiled code can be tested without hardware.

    >>> import tritorch as torch
    >>> from tritorch.testing import ptx
    >>> with ptx.simulate(90):                                     # 80 for sm_80; the kernels are compiled as for an H200
    ...     torch.arange(4, device="cuda").sum().item()
    6

    parse.py       PTX text -> a Program: instructions, registers, labels, parameters, memory declarations
    operands.py    what stands behind an opcode: registers, numbers, addresses, {vectors}
    registry.py    opcode -> the Python function that executes it
    machine.py     lanes, divergence, barriers: which instruction is next, and for whom
    batches.py     a launch: as many CTAs together as memory allows, in an order by chance
    memory.py      global memory: one arena whose live ranges are known; a batch's shared and local memory is the machine's
    races.py       what CTAs tell each other through global memory has to be in order
    clusters.py    what CTAs of a cluster do to each other's shared memory, and their barrier (sm_90)
    floats.py      IEEE arithmetic that numpy lacks: fused multiply-add, directed rounding, bfloat16, flushing to zero
    bindings.py    a stand-in for cuda.bindings.driver over all this, with its rules; streams.py has its streams, events and graphs,
                   codes.py what it answers; cubin.py is what it asks of the machine code itself
    device.py      the real tritorch.cuda.nvidia over the stand-in: `with device.simulate(90):`
    trace.py       what a few CTAs of a launch did, instruction by instruction: `python -m bench predict` makes times of it
the instruction families
    integers.py, arithmetic.py, convert.py, access.py, control.py, warp.py         what every GPU has
    matrices.py, mma.py, copies.py                                                 mma.sync, ldmatrix, cp.async (sm_80)
    mbarrier.py, tensor_map.py, swizzle.py, tma.py, wgmma.py, proxies.py           TMA and wgmma (sm_90)

It is stricter than a GPU where PTX leaves room: fresh memory is poison, every access lies inside one live block, CTAs run in a random
order, so do warps between barriers, approximations err as much as they may, two threads that store to one address agree about the value.

How an instruction is written. A register is one array over all lanes of the CTAs that run together (`machine.lanes` of them: CTA after
CTA, each a multiple of 32 threads, so `.reshape(-1, 32)` is one warp a row). It holds unsigned bits, or bools for .pred; reading
reinterprets them:

    @instruction("add")                                 # the longest prefix wins: "mma.sync.aligned.m16n8k16" beats "mma"
    def add(machine, ins):
        a, b = (machine.read(o, np.dtype("f4")) for o in ins.operands[1:])
        machine.write(ins.operands[0], a + b)           # only lanes of machine.mask change; arrays are never changed in place

- `ins.opcode` is the whole word, `ins.name` the part before its first dot, `ins.types` its types in order ("f32"), `ins.modifiers` others.
- `machine.mask` says which lanes execute (`machine.full`: all of them). What the others compute is thrown away.
- `machine.read(operand, dtype)` is an array of all lanes, or one number (0-dim) that stands for all; `machine.spread(value)` makes
  it an array. A register wider than `dtype` is cut to its low bits.
- `machine.write(operand, value)`: a value of another width than the register has to be an integer; it is extended by its own sign, or cut.
- `machine.address(operand)` is base + offset of `[...]` as uint64 lanes.
- `machine.load_shared(addresses, dtype)` and `machine.store_shared(addresses, values)` reach a CTA's own shared memory, bounds and
  alignment checked. Both take one entry for each active lane: `lanes = machine.active()` are their numbers, `a[lanes]` picks them.
- `machine.shared` is [CTAs, bytes] of np.uint8, `machine.cta` the row of each lane; address SHARED_BASE (parse.py) is its byte 0.
- `machine.memory` is global memory (memory.py): `problem(addresses, nbytes)`, then `load(addresses, dtype)`, `store(addresses, values)`.
- `machine.converged(members)` raises where a warp arrives in parts; call it in whatever ends in .sync.
- `@instruction(name, control=True)`: the function may change `machine.pc`, `machine.waiting`, `machine.alive` of lanes of its mask; before
  it is called pc points behind the instruction for all of them. There `machine.retry()` sets lanes back to the instruction itself and
  lets other warps go first, which is how a wait that fails is written; `machine.progress()` says that something changed which a
  waiting thread may look at (stores say so themselves).
- `machine.state` is a dict of the batch for what a family must remember (asynchronous copies in flight, phases of mbarriers).
- `machine.launch.parameters` are the packed parameters as np.uint8; a parameter's symbol is its offset there.
- `machine.fault("misaligned address ...", lane)` makes the exception, which names the kernel, the PTX line, the source line and the thread.
"""
from tritorch.testing.ptx.device import simulate
