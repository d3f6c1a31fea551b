"""Kernels whose programs run in clusters: neighbours along the grid's first axis that reach each other's shared memory (from sm_90 on).

Triton 3.6 writes kernels of one program with its own shared memory; a cluster of its own (`num_ctas`) shares all that a kernel does. So a
kernel with a constexpr CLUSTER above 1 says by marks in its code (triton_kernels/matmul_cluster.py) what is to reach the whole cluster, and
this file writes that into the PTX that Triton makes of it: a load by TMA goes to all programs, an arrival at a barrier is counted at the
same place of all. A marked place that holds anything else is an error.

An arrival releases nothing to the other programs but the slot that was read: the reads are over by then, and no thread's writes are to be
seen. So it is of the scope that it has without words, as in CUTLASS (ClusterBarrier::arrive), and so is the wait: of ".release.cluster"
ptxas makes MEMBAR.ALL.GPU, which would wait in every step of a product, of ".acquire.cluster" CCTL.IVALL, which empties the first cache.
"""
import contextlib
import functools
import re
from pathlib import Path

from tritorch.cuda.compiler_early import changing

BEGIN, END = "// cluster: begin", "// cluster: end"
LOAD = r"(@%\w+ )?(cp\.async\.bulk\.tensor\.\dd)\.shared::c\w+\.global\.mbarrier::complete_tx::bytes( \[[^]]*\], \[[^]]*\], \[[^]]*\]);"
ARRIVE = r"(@%\w+ )?mbarrier\.arrive\.shared::cta\.b64 _, \[(%\w+)\];"
_CALLS = re.compile(r"\b(?:mbarrier|cp\.async|fence|barrier\.cluster|bra|ret)\b[^;]*;")


def size_of(spec):
    """How many programs of a kernel are a cluster."""
    names = [parameter.name for parameter in spec.kernel.params]
    return spec.constexprs.get((names.index("CLUSTER"),), 1) if "CLUSTER" in names else 1


def to_all(found, size):
    """A load by TMA that goes to all programs of a cluster, to the same places."""
    guard, load, operands = found.groups("")
    kind = "shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster"
    return f"{{ .reg .b16 %all; mov.b16 %all, {(1 << size) - 1}; {guard}{load}.{kind}{operands}, %all; }}"


def at_all(found, size):
    """An arrival, and the same at the barriers of the others."""
    guard, barrier = found.groups("")
    others = "".join(f"\n\txor.b32 %other, %self, {i}; mapa.shared::cluster.u32 %there, {barrier}, %other;\n"
                     f"\t{guard}mbarrier.arrive.shared::cluster.b64 _, [%there];" for i in range(1, size))
    return f"{found[0]}\n\t{{ .reg .b32 %self, %other, %there; mov.u32 %self, %cluster_ctarank;{others} }}"


RULES = ((LOAD, to_all), (ARRIVE, at_all))
DIRECTIVES = ".explicitcluster\n.reqnctapercluster {}\n"


@functools.cache
def source():
    """What the machine code of such a kernel depends on besides its own source."""
    return Path(__file__).read_text()


def reaching_all(ptx, size):
    """The same kernel for clusters of `size`, a power of two. Raises ValueError where it is not marked as expected."""
    opening = re.search(r"\.entry[^{]*(?=\{)", ptx).end()
    first, *parts = ptx[opening:].split(BEGIN)
    if not parts or END in first or "barrier.cluster." not in ptx:
        raise ValueError(f"a kernel for clusters of {size} marks what reaches all of one, and its programs meet first; this one does not")
    done, counts = [first], dict.fromkeys(RULES, 0)
    for part in parts:
        marked, end, rest = part.partition(END)
        if not end or END in rest:
            raise ValueError("what reaches all of a cluster is marked once at its begin and once at its end")
        for rule in RULES:
            pattern, change = rule
            calls = _CALLS.findall(marked)
            if re.search(pattern, marked) and len(calls) == len(re.findall(pattern, marked)):
                counts[rule] += len(calls)
                marked = re.sub(pattern, lambda found, change=change: change(found, size), marked)
                break
        else:
            raise ValueError(f"expected loads by TMA or arrivals to reach all of a cluster, got {_CALLS.findall(marked)}")
        done += [BEGIN, marked, END, rest]
    if 0 in counts.values():
        raise ValueError(f"expected marked loads and arrivals, got {list(counts.values())}")
    return ptx[:opening] + DIRECTIVES.format(size) + "".join(done)


@contextlib.contextmanager
def clustered(spec):
    """Compile a kernel for clusters, if it is one."""
    size = size_of(spec)
    with changing(lambda ptx: reaching_all(ptx, size)) if size > 1 else contextlib.nullcontext():
        yield
