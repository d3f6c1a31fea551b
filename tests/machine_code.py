"""What machine code uses and what it says, without compiling again what did not change.

A compilation is a function of its key: the source of a kernel and of all it calls, the specialisation, the target and Triton's version. So
tests/records/machine_code.txt holds for each key what the code was found to use, and `used` compiles only what it does not know, and one
in EACH of the others, which must come out as recorded. After a change of kernels, write the record anew (without it tests take longer, and
pass all the same): `python -m pytest -m records --update-records`.
"""
import functools
import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from tritorch.cuda import compiler
from tritorch.testing.ptx.cubin import runs_ahead

RECORD = Path(__file__).parent / "records" / "machine_code.txt"
WHAT = ("registers", "spills", "shared", "load", "store", "wgmma", "tma", "ahead")
EACH = 128
asked = {}                                                               # {key: {name: number}} of this process
again = set()                                                            # keys that it compiled


@functools.cache
def known():
    """{key: {name: number}} of the record: a line has a key, the numbers of WHAT, and what else was asked for as JSON."""
    lines = [line.split(None, 1 + len(WHAT)) for line in RECORD.read_text().splitlines()] if RECORD.exists() else []
    return {key: dict(zip(WHAT, map(int, rest))) | json.loads("".join(rest[len(WHAT):]) or "{}") for key, *rest in lines}


def elsewhere(spec, arch):
    """A specialisation for an architecture whose kernels may not begin early."""
    if arch >= 90 or "launch_pdl" not in spec.options:
        return spec
    settled = {**spec.constexprs, (spec.kernel.arg_names.index("launch_pdl"),): False}
    return replace(spec, constexprs=settled, options={name: v for name, v in spec.options.items() if name != "launch_pdl"})


def used(specs, arch, workers=None, texts=(), **facts):
    """For each specialisation a dict of `compiler.resources`, as "ahead" whether its wgmma run ahead (`cubin.runs_ahead`), how often each
    of `texts` is in its PTX, and what functions of a `compiler.Compiled` find: whole numbers, recorded under the names in `facts`. All must
    compile."""
    specs, facts = [elsewhere(spec, arch) for spec in specs], {**{text: functools.partial(_count, text) for text in texts}, **facts}
    names = {*WHAT, *facts}
    keys = [spec.key(arch)[:16] for spec in specs]
    unseen = {key: spec for key, spec in zip(keys, specs)
              if not names <= {*known().get(key, ()), *asked.get(key, ())} or int(key, 16) % EACH == 0 and key not in again}
    found = compiler.compile_many(unseen.values(), [arch], workers)
    failed = [str(c) for c in found if isinstance(c, compiler.CompileError)]
    assert not failed, f"{len(failed)} of {len(specs)}:\n" + "\n".join(failed[:10])
    with ThreadPoolExecutor() as pool:
        for key, numbers in zip(unseen, pool.map(functools.partial(_numbers, facts=facts), found)):
            before = known().get(key, {})
            other = {name: (number, before[name]) for name, number in numbers.items() if before.get(name, number) != number}
            assert not other, f"{unseen[key]} for sm_{arch}, found and recorded: {other}"
            asked[key] = asked.get(key, {}) | numbers
            again.add(key)
    for key in keys:
        asked[key] = {name: known()[key][name] for name in names if name in known().get(key, ())} | asked.get(key, {})
    return [asked[key] for key in keys]


def _count(text, compiled):
    return compiled.ptx.count(text)


def _numbers(compiled, facts):
    numbers = *compiler.resources(compiled).values(), int(runs_ahead(compiled))
    return dict(zip(WHAT, numbers)) | {name: int(find(compiled)) for name, find in facts.items()}


def write(whole):
    """Record what was asked for, and nothing else if that was all that the tests ask."""
    lines = []
    for key in sorted({*asked, *(() if whole else known())}):
        numbers = ({} if whole else known().get(key, {})) | asked.get(key, {})
        more = {name: number for name, number in sorted(numbers.items()) if name not in WHAT}
        lines.append(" ".join([key, *(str(numbers[name]) for name in WHAT), *([json.dumps(more)] if more else [])]))
    RECORD.write_text("".join(f"{line}\n" for line in lines))
