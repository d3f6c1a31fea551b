"""How tiles lie in shared memory: the swizzle that TMA and wgmma agree on, and the descriptors of wgmma.

Eight threads that read a column of a tile whose rows are 128 bytes apart would all meet the same banks. So the 16-byte chunks of a row are
exchanged: the number of the chunk is XORed with the number of the row mod 8. Hardware takes both from the address itself, which is why
tiles that are swizzled by 128 bytes begin at multiples of 1024, and why a pointer into a row may be advanced as if nothing were exchanged.
"""
import numpy as np

CHUNK = 16
SPANS = {0: 16, 1: 128, 2: 64, 3: 32}               # what bits 62 and 63 of a descriptor mean, in bytes of a row
_CHUNK_BITS = {16: 0, 32: 1, 64: 3, 128: 7}


def swizzled(addresses, span):
    """Where bytes lie that would be at `addresses` without a swizzle: bits 4 to 6 ^= bits 7 to 9, as far as `span` bytes reach."""
    return addresses ^ (addresses >> 7 & _CHUNK_BITS[span]) << 4


class Descriptor:
    """A matrix in shared memory as wgmma takes it (PTX ISA, "Matrix Descriptor Format"); the fields count 16 bytes."""

    def __init__(self, bits):
        self.start, self.leading, self.stride = ((bits >> at & 0x3FFF) * CHUNK for at in (0, 16, 32))
        self.span = SPANS[bits >> 62]
        assert not bits >> 49 & 7, "the machine has no base offset in descriptors"
        assert self.span == CHUNK or self.start % (8 * self.span) < self.span, (
            f"a matrix at {self.start:#x}: without a base offset a swizzle by {self.span} bytes begins at multiples of {8 * self.span}")
        assert not bits & ~(0x3FFF | 0x3FFF << 16 | 0x3FFF << 32 | 7 << 49 | 3 << 62), f"descriptor {bits:#x} has unknown bits"

    def places(self, extent, width, turned):
        """(extent, 32 // width) addresses of the elements of `width` bytes; `extent` is that of M or N, the other one is K.

        The canonical layouts of the PTX ISA. Along its contiguous direction a matrix has rows of `span` bytes, eight of which are an atom:
        - K contiguous: the atoms of 8 rows follow at `stride`; without a swizzle the second chunk of K is `leading` away;
        - M or N contiguous (`turned`): atoms of `span` bytes along it follow at `leading`, of 8 steps of K at `stride`; without a swizzle
          the two change places.
        """
        per = CHUNK // width
        i, k = np.ogrid[:extent, :2 * per]
        if turned:
            along, across = (self.stride, self.leading) if self.span == CHUNK else (self.leading, self.stride)
            wide = self.span // width
            offsets = i % wide * width + i // wide * along + k % 8 * self.span + k // 8 * across
        else:
            second = self.leading if self.span == CHUNK else CHUNK
            offsets = i % 8 * self.span + i // 8 * self.stride + k % per * width + k // per * second
        return swizzled(self.start + offsets, self.span)
