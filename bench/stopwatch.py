"""bench stopwatch [FAMILY …] --only NAME [--kernel NAME]: for how many clocks the warps of kernels wait, and at which line; on a GPU.

Before a kernel is assembled, each place of its PTX where a warp may wait (for an mbarrier, a barrier of a block, its own products or
copies) is put between two readings of the clock. One lane of each warp adds the difference to a place in memory of its own, and from the
kernel's first instruction to its last as well. What is left of that is the time in which the warp was at work, or waited for what no
instruction names: an issue slot, a result. A reading and the addition take some 30 clocks, and they hold the kernel up.

The kernels are compiled anew and kept nowhere but in this process, which must not have loaded them before. CTAs that come to the same of
ROWS rows add up.
"""
import contextlib
import re
from dataclasses import dataclass, field

import numpy as np

from bench import anchors, predict, rows
from bench.sides import Sides
from tritorch.cuda import driver

ROWS, WARPS = 132, 32                                            # of CTAs and their warps that have a place of their own
MOST, KERNELS = 96, 8                                            # places in a kernel; kernels of a case, the first ones
WAITS = {"mbarrier": r"\{\s*\.reg \.pred complete;.*?\n\}", "products": r"wgmma\.wait_group\.sync\.aligned \d+;",
         "barrier": r"\b(?:bar|barrier)\.sync(?:\.aligned)?\s+0[^;]*;|\bbarrier\.cluster\.wait[^;]*;",
         "copies": r"cp\.async\.(?:bulk\.)?wait_(?:group|all)[^;]*;"}
PLACE = r"^[ \t]*\.loc[^\n]*//(?P<place>[^\n]*)"
_FOUND = re.compile("|".join([PLACE, r"(?P<ret>^[ \t]*ret;)", *(f"(?P<{kind}>{text})" for kind, text in WAITS.items())]), re.M | re.S)
READ = "mov.u64 {0}, %clock64;"
ADD = """
.reg .pred %swl; .reg .b32 %swt, %swc, %swn; .reg .b64 %swa, %swb;
mov.u32 %swc, %ctaid.z; mov.u32 %swn, %nctaid.y; mov.u32 %swt, %ctaid.y; mad.lo.u32 %swc, %swc, %swn, %swt;
mov.u32 %swn, %nctaid.x; mov.u32 %swt, %ctaid.x; mad.lo.u32 %swc, %swc, %swn, %swt; rem.u32 %swc, %swc, {rows};
mov.u32 %swt, %tid.x; and.b32 %swn, %swt, 31; setp.eq.u32 %swl, %swn, 0; shr.u32 %swt, %swt, 5; mad.lo.u32 %swc, %swc, {warps}, %swt;
mov.u64 %swb, {address}; mad.wide.u32 %swa, %swc, {stride}, %swb;
@%swl red.relaxed.gpu.global.add.u64 [%swa], {value}; @%swl red.relaxed.gpu.global.add.u64 [%swa+8], 1;
"""


@dataclass
class Timed:
    """A kernel under the watch: its places (what is waited for, where), and (ROWS, WARPS, MOST, 2) clocks and visits. Place 0 is all of it,
    visited at its begin and its end."""

    name: str
    counts: object
    places: list = field(default_factory=lambda: [("whole", "")])

    def add(self, place, value):
        """PTX that adds a number of clocks to a place."""
        if place not in self.places:
            self.places.append(place)
        number = self.places.index(place)
        assert number < MOST, f"{self.name} waits at more than {MOST} places"
        address = self.counts.data_ptr() + 16 * number
        return ADD.format(rows=ROWS, warps=WARPS, address=address, stride=16 * MOST, value=value)


def lines_of(comment):
    """"a.py:12 < b.py:34" of a place and its callers, innermost first; a caller in the same file is a number."""
    found, last = [], None
    for file, line in re.findall(r"([\w.]+):(\d+)", re.sub(r"(:\d+):\d+", r"\1", comment)):
        found.append(line if file == last else f"{file}:{line}")
        last = file
    return " < ".join(found)


def stamped(ptx, timed):
    """The same kernel with the watch inside."""
    opening = (re.search(r"griddepcontrol\.wait;", ptx) or re.search(r"\.entry[^{]*\{", ptx)).end()     # no one's memory may be used before
    where = ""

    def change(found):
        nonlocal where
        kind = found.lastgroup
        if kind == "place":
            where = lines_of(found["place"])
            return found[0]
        if kind == "ret":
            return "{ .reg .b64 %sw1; " + READ.format("%sw1") + timed.add(("whole", ""), "%sw1") + "}\nret;"
        before, after = READ.format("%sw0"), READ.format("%sw1") + " sub.s64 %sw1, %sw1, %sw0;"
        return f"{{ .reg .b64 %sw0, %sw1; {before}\n{found[0]}\n{after}{timed.add((kind, where), '%sw1')}}}"

    begin = "\n{ .reg .b64 %sw1; " + READ.format("%sw1") + " neg.s64 %sw1, %sw1;" + timed.add(("whole", ""), "%sw1") + "}\n"
    return ptx[:opening] + begin + _FOUND.sub(change, ptx[opening:])


@contextlib.contextmanager
def watching(wanted=""):
    """Inside, the first kernels whose names contain `wanted` are compiled with the watch; yields the list of what was (Timed)."""
    import triton

    import tritorch
    from tritorch.cuda import ahead, compiler, compiler_pool
    from tritorch.cuda.compiler_early import changing

    memory, found = tritorch.from_numpy(np.zeros((KERNELS, ROWS, WARPS, MOST, 2), np.int64)).to("cuda"), []

    def change(ptx):
        name = re.search(r"\.entry (\w+)", ptx)[1]
        if wanted not in name or len(found) == KERNELS:
            return ptx
        found.append(Timed(name, memory[len(found)]))
        return stamped(ptx, found[-1])

    make = compiler_pool.compile_now
    compiler_pool.compile_now = lambda spec, arch, path: compiler.compile_here(spec, arch)             # in this process, and kept nowhere
    try:
        with ahead.staying(), changing(change), triton.knobs.compilation.scope():
            triton.knobs.compilation.always_compile = True       # what is in the cache has no watch
            yield found
    finally:
        compiler_pool.compile_now = make


def report(timed, counts):
    """[line]: of warps that do the same, clocks of a CTA's call at each place, most first. counts: what came to those of `timed`."""
    counts = counts[:, :, :len(timed.places)]
    there = counts[:, :, 0, 1] > 0
    said, kinds = [f"{timed.name}: {int(there.any(1).sum())} rows of CTAs"], {}
    for warp in range(WARPS):
        if there[:, warp].any():
            kinds.setdefault(tuple(np.flatnonzero(counts[:, warp, :, 1].any(0))), []).append(warp)
    for places, warps in kinds.items():
        mine = counts[:, warps][there[:, warps]]
        runs = mine[:, 0, 1].sum() / 2
        clocks, visits = mine[..., 0].sum(0) / runs, mine[..., 1].sum(0) / runs
        waited = clocks[list(places[1:])].sum()
        said.append(f"  warps {', '.join(map(str, warps))}: {clocks[0]:.0f} clocks, {1 - waited / clocks[0]:.0%} of them in no wait")
        for place in sorted(places[1:], key=lambda place: -clocks[place]):
            kind, where = timed.places[place]
            share, each = clocks[place] / clocks[0], clocks[place] / visits[place]
            said.append(f"    {share:6.1%} {visits[place]:8.1f} x {each:8.0f}  {kind:9} {where}")
    return said


def main(args):
    if driver.current().name != "nvidia":
        print("stopwatch: expected a GPU")
        return 1
    import tritorch

    for family, case in anchors.cases(args.families or [f for f in predict.FAMILIES if f != "gpt2"]):
        if not rows.asked(args.only, case.name):
            continue
        print(f"\n{family}: {case.name}", flush=True)
        inputs = Sides(alone=True).inputs(case)[0]
        with anchors.precision(tritorch, case.precision), watching(args.kernel) as found:
            thunk = case.build(tritorch, *inputs)
            thunk(), thunk()                                     # the first calls compile and find memory
            before = [timed.counts.cpu().numpy().copy() for timed in found]
            thunk()
            for timed, earlier in zip(found, before):
                counts = timed.counts.cpu().numpy() - earlier
                if counts.any():
                    print(*report(timed, counts), sep="\n", flush=True)
    return 0
