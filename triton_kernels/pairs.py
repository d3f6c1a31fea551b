"""Complex numbers in kernels: a pair of blocks (real, imaginary). In memory they are words of 64 bits, of which a complex64 is one and a
complex128 two; COMPUTE is "c64" or "c128"."""
import triton
import triton.language as tl


@triton.jit
def halves(words):
    """The pair in words that hold a complex64 each."""
    return words.to(tl.uint32).to(tl.float32, bitcast=True), (words >> 32).to(tl.uint32).to(tl.float32, bitcast=True)


@triton.jit
def word(re, im):
    """A pair of float32 in one word."""
    return (im.to(tl.uint32, bitcast=True).to(tl.uint64) << 32) | re.to(tl.uint32, bitcast=True).to(tl.uint64)


@triton.jit
def load_pair(x_ptr, offsets, mask, COMPUTE: tl.constexpr):
    """A block of complex numbers; a real operand has zeros as its imaginary part."""
    if x_ptr.dtype.element_ty == tl.uint64:
        if COMPUTE == "c64":
            return halves(tl.load(x_ptr + offsets, mask=mask))
        else:
            twice = offsets.to(tl.int64) * 2
            re, im = tl.load(x_ptr + twice, mask=mask), tl.load(x_ptr + twice + 1, mask=mask)
            return re.to(tl.float64, bitcast=True), im.to(tl.float64, bitcast=True)
    else:
        re = tl.load(x_ptr + offsets, mask=mask)
        re = re.to(tl.float32) if COMPUTE == "c64" else re.to(tl.float64)
        return re, tl.zeros_like(re)


@triton.jit
def full_pair(number, offsets, COMPUTE: tl.constexpr):
    """A number (real, imaginary) spread out."""
    if COMPUTE == "c64":
        return tl.full(offsets.shape, number[0], tl.float32), tl.full(offsets.shape, number[1], tl.float32)
    else:
        return tl.full(offsets.shape, number[0], tl.float64), tl.full(offsets.shape, number[1], tl.float64)


@triton.jit
def store_pair(out_ptr, offsets, re, im, mask):
    """Into words: one for a pair of float32, two for float64."""
    if re.dtype == tl.float32:
        tl.store(out_ptr + offsets, word(re, im), mask=mask)
    else:
        twice = offsets.to(tl.int64) * 2
        tl.store(out_ptr + twice, re.to(tl.uint64, bitcast=True), mask=mask)
        tl.store(out_ptr + twice + 1, im.to(tl.uint64, bitcast=True), mask=mask)
