"""Barriers of slots that warp groups give back to the loading warp, for attention_gluon.py.

A group of Gluon's meets before it arrives at a barrier, for one thread arrives for all. LEAN: each warp arrives by itself, as soon as its
own part of a product is there, and no warp waits for the others. Gluon does not name addresses in shared memory: such barriers lie in an
array that the kernel's assembly declares.
"""
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier

from .attention_places_gluon import barriers


@gluon.constexpr_function
def begun(NAME, COUNT, ARRIVALS):
    """Declares COUNT barriers, begins them by one thread and gives the address of the first."""
    text = f".shared .align 8 .b8 {NAME}[{8 * COUNT}]; {{.reg .pred one; .reg .b32 thread; mov.u32 $0, {NAME}; "
    text += "mov.u32 thread, %tid.x; setp.eq.u32 one, thread, 0; "
    return text + "".join(f"@one mbarrier.init.shared::cta.b64 [$0 + {8 * i}], {ARRIVALS}; " for i in range(COUNT)) + "}"


@gluon.jit
def slots_to_fill(NAME: gl.constexpr, STAGES: gl.constexpr, GROUPS: gl.constexpr, LEAN: gl.constexpr):
    """The barriers of the slots of a ring, to be passed to the functions below. NAME: of the array."""
    if LEAN:
        code: gl.constexpr = begun(NAME, STAGES, 4 * GROUPS)
        return gl.inline_asm_elementwise(code, "=r", [], dtype=gl.int32, is_pure=False, pack=1)
    else:
        return barriers(STAGES, GROUPS)


@gluon.jit
def await_free(empty, slot, phase, LEAN: gl.constexpr):
    """Wait until nobody reads a slot any more."""
    if LEAN:
        gl.inline_asm_elementwise("{.reg .pred complete; again: mbarrier.try_wait.parity.shared.b64 complete, [$1], $2; "
                                  "@!complete bra.uni again; mov.b32 $0, 0;}", "=r,r,r", [empty + 8 * slot, phase], dtype=gl.int32,
                                  is_pure=False, pack=1)
    else:
        mbarrier.wait(empty.index(slot), phase)


@gluon.jit
def give_back(empty, slot, LEAN: gl.constexpr):
    """A group reads a slot no more."""
    if LEAN:
        gl.inline_asm_elementwise("{.reg .pred one; .reg .b32 lane; mov.u32 lane, %laneid; setp.eq.u32 one, lane, 0; "
                                  "bar.warp.sync 0xffffffff; @one mbarrier.arrive.shared::cta.b64 _, [$1]; mov.b32 $0, 0;}", "=r,r",
                                  [empty + 8 * slot], dtype=gl.int32, is_pure=False, pack=1)
    else:
        mbarrier.arrive(empty.index(slot), count=1)
