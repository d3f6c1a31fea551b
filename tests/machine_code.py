"""What machine code uses, without compiling again what did not change.

A compilation is a function of its key: the source of a kernel and of all it calls, the specialisation, the target and Triton's version. So
tests/records/machine_code.txt holds for each key what the code was found to use, and `used` compiles only what it does not know, and one
in EACH of the others, which must come out as recorded. After a change of kernels, write the record anew (without it tests take longer, and
pass all the same): `python -m pytest -m records --update-records`.
"""
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tritorch.cuda import compiler
from tritorch.testing.ptx.cubin import runs_ahead

RECORD = Path(__file__).parent / "records" / "machine_code.txt"
WHAT = ("registers", "spills", "shared", "load", "store", "wgmma", "tma", "ahead")
EACH = 32
asked = {}                                                               # {key: numbers} of this process
_known = None


def known():
    """{key: numbers} of the record."""
    global _known
    if _known is None:
        lines = [line.split() for line in RECORD.read_text().splitlines()] if RECORD.exists() else []
        _known = {key: tuple(map(int, numbers)) for key, *numbers in lines}
    return _known


def used(specs, arch, workers=None):
    """For each specialisation a dict of `compiler.resources`, and as "ahead" whether its wgmma run ahead (`cubin.runs_ahead`). All must
    compile."""
    specs = list(specs)
    keys = [spec.key(arch)[:16] for spec in specs]
    unseen = {key: spec for key, spec in zip(keys, specs) if key not in asked and (key not in known() or int(key, 16) % EACH == 0)}
    found = compiler.compile_many(unseen.values(), [arch], workers)
    failed = [str(c) for c in found if isinstance(c, compiler.CompileError)]
    assert not failed, f"{len(failed)} of {len(specs)}:\n" + "\n".join(failed[:10])
    with ThreadPoolExecutor() as pool:
        for key, numbers in zip(unseen, pool.map(_numbers, found)):
            before = known().get(key, numbers)
            assert numbers == before, f"{unseen[key]} for sm_{arch} uses {numbers}, its record says {before} ({', '.join(WHAT)})"
            asked[key] = numbers
    asked.update({key: known()[key] for key in keys if key not in asked})
    return [dict(zip(WHAT, asked[key])) for key in keys]


def _numbers(compiled):
    return (*compiler.resources(compiled).values(), int(runs_ahead(compiled)))


def write(whole):
    """Record what was asked for, and nothing else if that was all that the tests ask."""
    lines = (f"{key} {' '.join(map(str, numbers))}\n" for key, numbers in sorted({**({} if whole else known()), **asked}.items()))
    RECORD.write_text("".join(lines))
