"""What the machine code itself says about its kernel: it is what a real driver goes by, so it has to agree with the PTX."""
import struct

import numpy as np

_KERNEL_PARAMETER, _REGISTERS = 0x17, 0x2F       # EIATTR_KPARAM_INFO, EIATTR_REGCOUNT
_WITH_BYTES = 4                                 # EIFMT_SVAL: the other formats hold their value in the size field
_WARPGROUP, _DEPBAR = 0x9C5, 47                  # opcode of sm_90 in the low 12 bits; the bit that tells DEPBAR from ARRIVE


def sections(elf):
    """(name, bytes) of the sections of an ELF file of 64 bits."""
    start, = struct.unpack_from("<Q", elf, 0x28)
    size, count, names = struct.unpack_from("<HHH", elf, 0x3A)
    heads = [struct.unpack_from("<IIQQQQ", elf, start + i * size) for i in range(count)]
    for head in heads:
        name = elf[heads[names][4] + head[0]:].partition(b"\0")[0].decode()
        yield name, elf[head[4]:head[4] + head[5]]


def attributes(notes):
    """(attribute, bytes) of a .nv.info section."""
    at = 0
    while at < len(notes):
        form, attribute, size = struct.unpack_from("<BBH", notes, at)
        at += 4
        if form == _WITH_BYTES:
            yield attribute, notes[at:at + size]
            at += size


def describe(elf, kernel):
    """([(offset, size) of every parameter], registers of a thread)."""
    found, registers = [], 0
    for name, notes in sections(elf):
        if name == f".nv.info.{kernel}":
            for attribute, data in attributes(notes):
                if attribute == _KERNEL_PARAMETER:
                    _, _, offset, packed = struct.unpack_from("<IHHI", data)
                    found.append((offset, packed >> 18))
        elif name == ".nv.info":
            registers = max((struct.unpack_from("<II", data)[1] for attribute, data in attributes(notes) if attribute == _REGISTERS),
                            default=0)
    return sorted(found), registers


def runs_ahead(compiled):
    """Whether wgmma is waited for no more often than the PTX says. Where ptxas cannot tell who writes a register of sums (it says so under
    -v, C7510 to C7520) or runs out of registers, it waits behind every single product."""
    code = b"".join(data for name, data in sections(compiled.cubin) if name.startswith(".text."))
    words = np.frombuffer(code, np.uint64)[::2]                          # an instruction has two; the second is about its scheduling
    waits = (words & np.uint64(0xFFF) == _WARPGROUP) & (words >> np.uint64(_DEPBAR) & np.uint64(1) == 1)
    return np.count_nonzero(waits) <= compiled.ptx.count("wgmma.wait_group")
