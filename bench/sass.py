"""What ptxas made of a kernel: its machine instructions, counted by the pipe that they occupy."""
import collections
import functools
import re
import subprocess
import tempfile

import triton

from tritorch.testing.ptx.operands import Label
from tritorch.testing.ptx.trace import touches

# pipe, cycles that a warp keeps one scheduler's share of it busy, first words of the opcodes
_PIPES = [("double", 2, "DADD DMUL DFMA DSETP DMNMX"), ("mufu", 8, "MUFU F2F I2F F2I FRND POPC FLO BREV"),
          ("fma", 4, "IMAD.WIDE IMAD.HI"), ("fma", 2, "IMAD HFMA2.MMA"), ("fma", 1, "FFMA FMUL FADD HFMA2 HADD2 HMUL2 FFMA2"),
          ("none", 1, "U S2R S2UR CS2R R2UR BAR WARPSYNC BSSY BSYNC BRA EXIT LDC DEPBAR NANOSLEEP YIELD FENCE CCTL ERRBAR MEMBAR VOTEU"),
          ("lsu", 1, "LDG STG LDS STS LDL STL ATOM ATOMG ATOMS RED SHFL LDSM STSM REDUX LDGSTS MATCH VOTE LDGDEPBAR"),
          ("tensor", 8, "HMMA IMMA QMMA HGMMA IGMMA QGMMA DMMA WARPGROUP")]
_INSTRUCTION = re.compile(r"^\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_.]*)", re.M)
_LINE = re.compile(r'//## File "(?:[^"]*/)?([^"/]+)", line (\d+)')
_GLOBAL = ("LDG", "STG", "ATOM", "ATOMG", "RED")


def pipe(opcode):
    """(pipe, cycles); everything not named runs where integers and comparisons do, at half rate."""
    for name, busy, words in _PIPES:
        if any(opcode == w or opcode.startswith(w + ".") or w == "U" and opcode.startswith("U") for w in words.split()):
            return name, busy
    return "alu", 2


@functools.cache
def text(cubin, *options):
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [triton.knobs.nvidia.nvdisasm.path, "-c", *options, file.name]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@functools.cache
def opcodes(cubin):
    """Counter of the opcodes of a kernel, up to the branch to itself that ends it."""
    found = collections.Counter(_INSTRUCTION.findall(text(cubin)))
    del found["NOP"]
    return found


@functools.cache
def by_line(cubin):
    """{(file, line): Counter of the opcodes that come of it}."""
    found, here = collections.defaultdict(collections.Counter), ("", 0)
    for row in text(cubin, "-g").splitlines():
        if line := _LINE.search(row):
            here = line[1], int(line[2])
        elif instruction := _INSTRUCTION.match(row):
            found[here][instruction[1]] += instruction[1] != "NOP"
    return found


def copies(program, cubin):
    """{(file, line): how often ptxas put it into the machine code}, for what is in a loop that it has unrolled: so often as an access to
    global memory from there, which else is one instruction in both."""
    lines = [(file, int(line)) for file, line, *_ in (f"{ins.source or ':0'}:".split(":") for ins in program.code)]
    said = collections.Counter(line for line, ins in zip(lines, program.code) if touches(ins, "global"))
    made, found = by_line(cubin), {}
    for end, ins in enumerate(program.code):
        for operand in ins.operands if ins.name == "bra" else ():
            if operand.__class__ is Label and operand.target <= end:
                loop = set(lines[operand.target:end + 1])
                most = max([sum(count for opcode, count in made[line].items() if opcode.split(".")[0] in _GLOBAL) / said[line]
                            for line in loop & said.keys()], default=1)
                found |= {line: max(most, found.get(line, 1)) for line in loop if most >= 2}
    return found


def busy(cubin, copied=None):
    """(instructions, {pipe: cycles}) of all instructions of a kernel, each once; of lines that are `copied`, one copy."""
    total, cycles = 0.0, collections.Counter()
    lines = by_line(cubin).items() if copied else [(None, opcodes(cubin))]
    for line, counts in lines:
        for opcode, count in counts.items():
            name, each = pipe(opcode)
            count /= copied.get(line, 1) if copied else 1
            total += count
            cycles[name] += count * each
    return total, cycles


def waits(program, cubin):
    """What ptxas made of the groups of asynchronous products, in words, where it is not what the PTX says: how often a group ends, and how
    often so many may be under way behind a wait. ptxas ends and awaits each product by itself where it cannot tell who writes what."""
    said, made = collections.Counter(), collections.Counter()
    for ins in program.code:
        if ins.opcode.startswith("wgmma.commit_group"):
            said["commit"] += 1
        elif ins.opcode.startswith("wgmma.wait_group"):
            said[f"wait {ins.operands[-1].value}"] += 1
    made["commit"] = len(re.findall(r"GMMA\.[^;]*gsb0", text(cubin)))
    for number in re.findall(r"WARPGROUP\.DEPBAR\.LE gsb0, (0x[0-9a-f]+)", text(cubin)):
        made[f"wait {int(number, 16)}"] += 1
    return ", ".join(f"{made[what]} × {what}, {said[what]} in the PTX" for what in sorted(said | made) if said[what] != made[what])
