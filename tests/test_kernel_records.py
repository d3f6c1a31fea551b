"""Every kernel that the operators' samples launch compiles for sm_80, sm_90 and sm_100, and uses no more than the record says.

The record is tests/records/kernels.json: registers and spilled bytes of a thread, shared bytes of a block, bits of the widest load and
store, numbers of wgmma and TMA instructions. After a deliberate change write it anew:
`python -m pytest -m records --update-records`.
"""
import json
import re
from pathlib import Path

import pytest

triton = pytest.importorskip("triton")
import machine_code  # noqa: E402

import tritorch as torch  # noqa: E402
import tritorch.linalg  # noqa: E402,F401
import tritorch.nn  # noqa: E402
import tritorch.ops.embedded  # noqa: E402,F401
import tritorch.ops.embedded_values  # noqa: E402,F401
import tritorch.ops.stft  # noqa: E402,F401
import tritorch.optim  # noqa: E402,F401
import tritorch.special  # noqa: E402,F401  the operators that only these load belong to the record as well
from tritorch.cuda import compiler  # noqa: E402
from tritorch.pairs import HOST, MADE  # noqa: E402
from tritorch.testing import cards  # noqa: E402

RECORD = Path(__file__).parent / "records" / "kernels.json"
ARCHITECTURES = (80, 90, 100)
RECORDED_WITH = "3.6"                                                    # of Triton; with another version they have to compile, that is all
WHAT = machine_code.WHAT[:7]
SET = re.compile(r"\*\w+|\w+=\w+")                                       # dtypes and choices in a label
ROOM = 1.15                                                              # registers may drift this far with ptxas


@pytest.fixture(scope="module")
def launched():
    """One specialisation of each kernel, scalar function, configuration and set of dtypes, by its label. Nobody looks at results: kernels
    do not run, which would take three times as long."""
    with pytest.MonkeyPatch.context() as patch, torch.cuda.simulate(seed=0), compiler.recording() as record:
        patch.setattr("tritorch.cuda.simulated.interpreter.Kernel.run", lambda *launch: None)
        where = torch.device("cuda:0")
        for op in torch.dispatch.registry.values():
            real = [(op, torch.float32), (op, torch.bfloat16)][:1 if op.complex == MADE else 2]         # there are none of half precision
            for card, kind in real + ([(cards.Complex(op), torch.float32)] if op.complex not in (None, MADE, HOST) else []):
                for args in cards.samples_of(card, kind):
                    outs, ins = cards.differentiable(op, cards.leaves(args, where))
                    if outs:
                        torch.autograd.grad(outs, ins, [torch.ones_like(o) for o in outs], allow_unused=True)
        torch.cuda.synchronize()
    ours = [spec for spec in reversed(record.values()) if spec.kernel.__module__.startswith("triton_kernels.")]     # not other tests'
    return dict(sorted({label(spec): spec for spec in ours}.items()))


def label(spec, named=True):
    """module.kernel, its scalar functions if they are to be named, and the dtypes of its pointers."""
    names = list(spec.signature)
    functions = [v.__name__ for path, v in sorted(spec.constexprs.items()) if named and hasattr(v, "cache_key")]
    kinds = [k for k in _flat(spec.signature.values()) if k.startswith(("*", "tensordesc"))]
    choices = [f"{names[path[0]]}={v}" for path, v in sorted(spec.constexprs.items())
               if len(path) == 1 and isinstance(v, (bool, str)) and names[path[0]].isupper()]
    kernel = spec.kernel
    return f"{kernel.__module__.rpartition('.')[2]}.{kernel.__name__}({', '.join([*functions, *kinds, *choices])})"


def _flat(kinds):
    for kind in kinds:
        if isinstance(kind, tuple):
            yield from _flat(kind)
        else:
            yield kind


def chosen(launched, same=True):
    """(name, architecture) to compile. sm_90: everything, but each scalar function only for one of those sets of dtypes that are the same
    with 16 bits taken for the 32 it computes in, and each set with one of the functions. sm_80: each kernel and scalar function once.
    sm_100: each kernel once, with other dtypes. With another version of Triton sm_90 alone, each kernel and scalar function once, of 16
    bits where there is a choice."""
    for arch in ARCHITECTURES if same else (90,):
        seen = set()
        for name in sorted(launched, key=lambda name: (("16" in name) is same and arch == 90, name), reverse=arch == 100):
            bare = label(launched[name], named=False)
            once = {SET.sub("", name)}
            alike = {80: once, 90: {re.sub(r"\*(bf|fp)16", "*fp32", name), bare}, 100: {SET.sub("", bare)}}[arch] if same else once
            if not alike <= seen:
                yield name, arch
            seen |= alike


@pytest.mark.smoke
@pytest.mark.records
@pytest.mark.timeout(1200)
def test_kernels_compile_within_their_record(launched, request):
    same = triton.__version__.startswith(RECORDED_WITH)
    pairs = list(chosen(launched, same))
    uses = {(name, arch): code for arch in ARCHITECTURES for names in [[name for name, of in pairs if of == arch]]
            for name, code in zip(names, machine_code.used([launched[name] for name in names], arch))}
    slow = [name for (name, arch), code in uses.items() if arch == 90 and not code["ahead"]]
    assert not slow, f"ptxas waits for single products of {slow}"
    if not same:
        pytest.skip(f"all compile; registers are recorded for Triton {RECORDED_WITH}")
    now = {}
    for (name, arch), usage in uses.items():
        now.setdefault(name, {})[f"sm_{arch}"] = [usage[what] for what in WHAT]
    if request.config.getoption("--update-records"):
        lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(value)}" for name, value in sorted(now.items()))
        RECORD.write_text("{\n" + lines + "\n}\n")
    record = json.loads(RECORD.read_text())
    missing = [name for name in now if now[name].keys() - record.get(name, {}).keys()]
    assert not missing, f"kernels without a record (write it with --update-records): {missing[:10]}"
    worse = [f"{name} {arch}: {have} for {record[name][arch]}" for name, value in now.items() for arch, have in value.items()
             if have[0] > record[name][arch][0] * ROOM + 8 or have[1] > record[name][arch][1]]
    assert not worse, f"{', '.join(WHAT)} beyond the record:\n" + "\n".join(worse[:20])
    lost = [f"{name} {arch}: {have} for {record[name][arch]}" for name, value in now.items() for arch, have in value.items()
            if any(h < r and (k < 5 or not h) for k, (h, r) in enumerate(zip(have[3:], record[name][arch][3:]), 3))]
    assert not lost, f"{', '.join(WHAT[3:])}: narrower than the record, or gone:\n" + "\n".join(lost[:20])


def ones(kind, path, never):
    """(paths of the integers in an argument's type that a caller may give as 1, the type where they are)."""
    if path[0] in never:
        return [], kind
    if isinstance(kind, tuple):
        parts = [ones(part, (*path, i), never) for i, part in enumerate(kind)]
        return [place for places, _ in parts for place in places], tuple(part for _, part in parts)
    return ([path], "constexpr") if kind in ("i32", "i64") else ([], kind)


def with_ones(spec):
    """The specialisation of a call whose integers are all 1: they are constants then, numbers of Python's without a dtype. A factor of 1
    of a product is never given."""
    never = {i for i, p in enumerate(spec.kernel.params) if p.do_not_specialize or p.annotation_type or p.name in ("alpha", "beta")}
    found = [ones(kind, (i,), never) for i, kind in enumerate(spec.signature.values())]
    places = [place for places, _ in found for place in places]
    attrs = {path: value for path, value in spec.attrs.items() if path not in places}
    return compiler.Specialisation(spec.kernel, dict(zip(spec.signature, [kind for _, kind in found])),
                                   spec.constexprs | dict.fromkeys(places, 1), attrs, spec.options), places


@pytest.mark.records
@pytest.mark.timeout(1200)
def test_every_integer_may_be_one(launched):
    """Of the interpreter's integers each has a dtype, so nothing else tells."""
    specs = {}
    for spec in launched.values():
        single, places = with_ones(spec)
        if places:
            specs.setdefault((spec.kernel.__name__, *places), single)
    machine_code.used(specs.values(), 90)
