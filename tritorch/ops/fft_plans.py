"""Which kernels transform lines of a length on a GPU: one that has whole lines in registers, up to LIMIT; for longer ones that are a · b
numbers one over lines of a, then what does lines of b; for a length without such factors the convolution with a chirp."""
import numpy as np

from tritorch.cuda.launch import kernels, launch, sm_count, tile
from tritorch.dtype import types
from tritorch.ops.loops import COMPLEX, launch_elementwise
from tritorch.shape import cdiv, next_power_of_2, prod
from tritorch.tensor import empty, strided

K, MIXED = kernels("fft"), kernels("fft_mixed")
LIMIT = {"c64": 4096, "c128": 2048}                                      # numbers of a tile of one line
LEAST = 16                                                               # the smallest first factor that is worth a pass
SHORT = 1 << 28                                                          # angles whose eighths of a circle are counted in 32 bits
RESIDENT = 6                                                             # programs of a multiprocessor that share the work of mixed factors
FEW = 2048                                                               # numbers of a tile: programs of eight warps, of which several run
BLOCK = 1024


class Ends:
    """What a transform of lines begins with and how it ends: LOAD and STORE of the kernels with what they ask for. `have` numbers are
    there along a line, `want` are wanted, counted as the tensors hold them."""

    def __init__(self, have, want, load="all", store="all", scale=1.0, middle=1.0, back=False, conj=False, pairs=(0, 0)):
        self.have, self.want, self.load, self.store, self.scale, self.middle = have, want, load, store, scale, middle
        self.back, self.conj, self.pairs = back, conj, pairs

    def with_(self, **changes):
        return Ends(**{**vars(self), **changes})


def transform(out, x, n, dims, steps, ends):
    """Transform lines of n numbers. `dims` has (size, stride of out, stride of x) of all other dims, `steps` the strides along a line of
    out and x: from number to number, where these are pairs of real numbers from pair to pair."""
    job = Job("c64" if x.dtype.to_real() is types.float32 else "c128", x.device)
    dims = merged([d for d in dims if d[0] != 1])
    if job.fits(n):
        job.tiles(out, x, n, dims, steps, ends)
    elif ends.store == "halved" or ends.store == "half" or ends.want < n * (2 if ends.store == "pairs" else 1):
        job.finished_apart(out, x, n, dims, steps, ends)
    else:
        job.lines(out, x, n, dims, steps, ends)


def merged(dims):
    """Neighbouring dims that are as one in both tensors."""
    made = []
    for size, *strides in sorted(dims, key=lambda d: (-d[1], -d[2])):
        if made and all(s * size == before for s, before in zip(strides, made[-1][1:])):
            made[-1] = (made[-1][0] * size, *strides)
        else:
            made.append((size, *strides))
    return made


class Job:
    """The launches of one call, in one dtype on one device."""

    def __init__(self, compute, device):
        self.compute, self.device, self.limit = compute, device, LIMIT[compute]
        self.number = float if compute == "c64" else np.float64

    def fits(self, n):
        return room(n, self.compute) <= self.limit

    def scratch(self, *shape):
        return empty(shape, types.complex64 if self.compute == "c64" else types.complex128, self.device)

    def lines(self, out, x, n, dims, steps, ends):
        """Lines of n numbers from x into out, all that there are."""
        if self.fits(n):
            return self.tiles(out, x, n, dims, steps, ends)
        a = first_factor(n, self.compute)
        if a == 1:
            return self.convolved(out, x, n, dims, steps, ends)
        b, sizes = n // a, [d[0] for d in dims]
        between, inside = self.scratch(*sizes, n), packed(sizes, n)
        self.tiles(between, x, a, [(d[0], s, d[2]) for d, s in zip(dims, inside)], (1, steps[1]),
                   ends.with_(store="all", want=n, scale=1.0), b)
        after = merged([(a, steps[0], b), *[(d[0], d[1], s) for d, s in zip(dims, inside)]])
        return self.lines(out, between, b, after, (steps[0] * a, 1), ends.with_(load="all", have=n, want=n * 2))

    def tiles(self, out, x, n, dims, steps, ends, cut=0):
        """One kernel. With `cut` the lines of x are cut into that many of n."""
        if cut:
            inner, outer, out_step = (cut, steps[0], steps[1]), dims, steps[0] * cut
        else:
            inner, outer = innermost(dims)
            out_step = steps[0]
        power, few = n & (n - 1) == 0, factors(n)
        shape, out_outer, x_outer = zip(*(outer or [(1, 0, 0)]))
        plain = ends.store == "all" and ends.load == "all" and power
        beside = inner[1] < out_step or inner[2] < steps[1]
        how = dict(CUT=cut > 0, WIDE=wide(n, cut, inner, (out_step, steps[1])), OUTER=len(shape), **self.flags(ends, "LOAD", "STORE"))
        places = shape, out_outer, x_outer
        lines = *inner, out_step, steps[1], *ends.pairs
        facts = ends.have, ends.want, self.number(ends.scale), self.number(ends.middle)
        if power or not few:
            log = tile_length(n).bit_length() - 1
            c, warps = lines_of_tile(log, inner[0], beside, plain, self.compute)
            launch(K.lines_kernel, (prod(shape) * cdiv(inner[0], c),), out, x, x if power else self.spectrum(n, log), *places, *lines, n,
                   *facts, CHIRP=not power, C=c, LOG=log, num_warps=warps, **how)
        else:
            c = mixed_lines(n, few, inner[0], beside, self.compute)
            count = prod(shape) * cdiv(inner[0], c)
            programs = min(count, RESIDENT * sm_count())
            launch(MIXED.mixed_kernel, (programs,), out, x, self.scratch(programs * c * n), *places, count, *lines, *facts, C=c, N=n,
                   PASSES=steps_of(n, few, c), num_warps=min(warps_for(next_power_of_2(c * n)), 16 if self.compute == "c64" else 8), **how)

    def flags(self, ends, *names):
        """What kernels are told as constexprs."""
        known = dict(LOAD=ends.load, STORE=ends.store)
        return dict(BACK=ends.back, CONJ=ends.conj, MIDDLE=ends.middle != 1, COMPUTE=self.compute, **{k: known[k] for k in names})

    def spectrum(self, n, log):
        """The transform of the chirp for lines of n. It is made for every call: by one program, and so nothing has to be kept."""
        made = self.scratch(1 << log)
        launch(K.spectrum_kernel, (1,), made, n, LOG=log, COMPUTE=self.compute, num_warps=warps_for(1 << log))
        return made

    def convolved(self, out, x, n, dims, steps, ends):
        """Lines whose length has a large prime factor, by transforms of a power of 2."""
        sizes, N = [d[0] for d in dims], next_power_of_2(2 * n - 1)
        count, block = prod(sizes), tile(BLOCK, 1 << 16)
        shape, _, x_outer = zip(*(dims or [(1, 0, 0)]))
        chirped, spectra = self.scratch(count + 1, N), self.scratch(count + 1, N)
        launch(K.into_chirp_kernel, ((count + 1) * cdiv(N, block),), chirped, x, shape, x_outer, count, steps[1], ends.pairs[1], n, N,
               ends.have, self.number(ends.middle), OUTER=len(shape), BLOCK=block, **self.flags(ends, "LOAD"))
        whole = [(count + 1, N, N)]
        self.lines(spectra, chirped, N, whole, (1, 1), Ends(N, N))
        signal = strided(spectra.storage, (count, N), (N, 1), 0, spectra.dtype)
        chirp = strided(spectra.storage, (count, N), (0, 1), count * N, spectra.dtype)
        launch_elementwise(signal, (signal, chirp), COMPLEX.mul, signal.dtype)
        self.lines(chirped, signal, N, [(count, N, N)], (1, 1), Ends(N, N, scale=1 / N, back=True))
        self.finish(out, chirped, n, N, dims, steps, ends, chirp=True)

    def finished_apart(self, out, x, n, dims, steps, ends):
        """Long lines of which a part is wanted, or one that is put together from both ends of what comes out."""
        sizes = [d[0] for d in dims]
        made, inside = self.scratch(*sizes, n), packed(sizes, n)
        self.lines(made, x, n, [(d[0], s, d[2]) for d, s in zip(dims, inside)], (1, steps[1]), ends.with_(
            store="all", want=n, scale=1.0))
        self.finish(out, made, n, n, dims, steps, ends)

    def finish(self, out, x, n, N, dims, steps, ends, chirp=False):
        """What is wanted of lines of n numbers that begin every N numbers in x."""
        block, (shape, out_outer, _) = tile(BLOCK, 1 << 16), zip(*(dims or [(1, 0, 0)]))
        launch(K.finish_kernel, (prod(shape) * cdiv(n, block),), out, x, shape, out_outer, steps[0], ends.pairs[0], n, N, ends.want,
               self.number(ends.scale), self.number(ends.middle), CHIRP=chirp, OUTER=len(shape), BLOCK=block, **self.flags(ends, "STORE"))


# ------------------------------------------------------------------ sizes
def as_pairs(n, dtype):
    """Whether n real numbers, or the spectrum of such, go as n / 2 complex ones, pairs of neighbours, for half the work. What these have
    to be put together from costs more where the whole is one plain tile: by prediction 112 µs for 56 of 16384 lines of 1024."""
    compute = "c64" if dtype is types.float32 else "c128"
    plain = factors(n) and room(n, compute) <= LIMIT[compute]
    return n % 2 == 0 and not plain


def factors(n):
    """The factors of the passes for n, of 2, 3, 4, 5, 7 and 8; () if there are others."""
    found = []
    for factor in (7, 5, 3, 8, 4, 2):
        while n % factor == 0 and not (factor == 8 and n == 16):         # which is 4 · 4
            n //= factor
            found.append(factor)
    return tuple(found) if n == 1 else ()


def room(n, compute):
    """Numbers that a line of n takes in a tile; mixed passes of complex128 need registers of two."""
    if n & (n - 1) == 0 or not factors(n):
        return tile_length(n)
    return n if compute == "c64" else 2 * n


def mixed_lines(n, few, inner, beside, compute):
    """How many lines a tile has: those that fill the blocks of its passes best."""
    wanted = max(FEW // n, min(8, 4096 // n) if beside and compute == "c64" else 1)
    most = max(min(tile(wanted, (1 << 15) // n), inner), 1)
    return max(range(most // 2 + 1, most + 1), key=lambda c: sum(c * n / (block * f) for f, _, block in steps_of(n, few, c)))


def steps_of(n, few, c):
    """(factor, product of those before, block) of each pass."""
    made, before = [], 1
    for factor in few:
        made.append((factor, before, next_power_of_2(c * n // factor)))
        before *= factor
    return tuple(made)


def tile_length(n):
    """Numbers that a line of n takes in registers: a power of 2, or as many as the convolution with a chirp has."""
    return n if n & (n - 1) == 0 else next_power_of_2(2 * n - 1)


def first_factor(n, compute):
    """The factor of n nearest to its root that a tile has four lines of, or more; 1 if there is none. Powers of 2 go first."""
    root, most = n ** 0.5, LIMIT[compute] // 4
    fitting = [a for a in range(LEAST, min(most, n // LEAST) + 1) if n % a == 0 and room(a, compute) <= most]
    return min(fitting, key=lambda a: max(a / root, root / a) * (1 if a & (a - 1) == 0 else 2 if factors(a) else 4), default=1)


def packed(sizes, last):
    """Strides of dims that lie without gaps before one of size `last`."""
    strides = [last]
    for size in reversed(sizes[1:]):
        strides.insert(0, strides[0] * size)
    return strides[:len(sizes)]


def innermost(dims):
    """The dim whose lines a tile has side by side, and the others: one that is long enough, of those the one with the least strides."""
    if not dims:
        return (1, 0, 0), []
    best = min(dims, key=lambda d: (-min(d[0], 32), min(d[1], d[2])))
    return best, [d for d in dims if d is not best]


def wide(n, cut, inner, steps):
    """Whether places of numbers in a line and side by side, or angles, take more than 32 bits."""
    length = n * max(cut, 1)
    return length >= SHORT or 2 * max(n * steps[0] + inner[0] * inner[1], length * steps[1] + inner[0] * inner[2]) >= 1 << 31


def lines_of_tile(log, inner, beside, plain, compute):
    """How many lines a tile has, and its warps: as many numbers as the registers of a program hold without spilling, eight a thread, and
    of plain complex64 up to sixteen, where eight lines that lie side by side want them."""
    most = (4096 if compute == "c64" else 2048) * (2 if plain else 1)
    count = max(FEW >> log, min(8, most >> log) if beside else 1)
    c = max(min(tile(count, (1 << 16) >> log), next_power_of_2(inner)), 1)
    return c, warps_for(c << log)


def warps_for(numbers):
    return max(1, min(numbers // 256, 16))
