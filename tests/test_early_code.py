"""Machine code of products that begin before the kernel in front of them has ended: nothing of memory is touched before the wait for it."""
import re
from pathlib import Path

import pytest

triton = pytest.importorskip("triton")

import machine_code  # noqa: E402
from test_product_code import BF16, H200, launched  # noqa: E402

import triton_kernels  # noqa: E402
from tritorch.cuda import tuner  # noqa: E402
from tritorch.ops import gemm_choice as choice  # noqa: E402

pytestmark = pytest.mark.records
STATEMENT = re.compile(r"(@!?%\w+\s+)?([a-z][\w.:]*)\s*(.*)", re.S)
DISPATCH = 9                                                             # statements in which warps that met find their work


def statements(ptx):
    """(predicated, opcode, operands) of a kernel's instructions, and where its labels and tables of labels lead."""
    body = ptx[ptx.index("{", ptx.index(".entry")):]
    code, labels, tables = [], {}, {}
    for text in re.sub(r"//.*|^\s*\.loc.*", "", body, flags=re.M).split(";"):
        while label := re.match(r"[\s{}]*(\$L\w+|JTI\w+):", text):            # Triton 3.9 has other names for tables
            labels[label[1]], text = len(code), text[label.end():]
            if text.lstrip().startswith(".branchtargets"):
                tables[label[1]] = re.findall(r"\$L\w+", text)
        if found := STATEMENT.match(text.strip(" \t\n{}")):
            code.append((bool(found[1]), found[2], found[3]))
    return code, labels, tables


def touches(opcode):
    """Whether an instruction reads or writes global memory; a descriptor that is an argument may be fetched at any time."""
    word = opcode.split(".")[0]
    if word == "cp":
        return "commit_group" not in opcode and "wait_group" not in opcode
    return word in ("ld", "ldu", "st", "atom", "red", "multimem") and not re.search(r"\.(shared|param|local|const)", opcode)


def before_the_wait(ptx):
    """How many accesses of memory, ends of the kernel and barriers of all warps come before the wait on some way through it; a kernel
    that does not wait has at least one. Warps that wait at such a barrier to be given work are set to it by warps that have waited."""
    code, labels, tables = statements(ptx)
    found, seen, ways = 0, set(), [0]
    while ways:
        at = ways.pop()
        while at not in seen:
            seen.add(at)
            predicated, opcode, operands = code[at]
            if opcode == "griddepcontrol.wait" and not predicated:
                break
            ends, meets = opcode in ("ret", "exit"), opcode == "barrier.sync" and "," not in operands
            given = meets and any(word == "brx.idx" for _, word, _ in code[at:at + DISPATCH])
            found += touches(opcode) or ends or meets and not given
            if opcode.startswith("bra"):
                ways += [labels[name] for name in re.findall(r"\$L\w+", operands)]
            if opcode == "brx.idx":
                ways += [labels[name] for name in tables[operands.split(",")[1].strip()]]
            if given or (ends or opcode.startswith("br")) and not predicated:
                break
            at += 1
    return found


def early():
    """A specialisation of each kernel of a product that is launched so."""
    n, specs = 4096, {}
    for wide, found in ((False, choice.plain("half", n, n, n, 1, 2, H200)), (False, choice.persistent(n, n, n, 1, H200)),
                        (False, choice.gluon(n, n, n, 1, H200)), (False, choice.whole(64, n, n, 1, H200)),
                        (True, choice.whole(64, n, n, 1, H200, True)), (True, choice.groups(n, n, n, 1, H200)),
                        (True, choice.exact(n, n, n, 1, H200)),
                        (True, choice.exact(n, n, n, 1, H200, True)), (False, [(0, {**choice.FALLBACK, "kernel": "plain", "splits": 8})])):
        with tuner.forcing("matmul", found[0][1]):
            for spec in launched(lambda e, wide=wide: e(n, n) @ e(n, n) if wide else e(n, n, **BF16) @ e(n, n, **BF16)):
                if spec.options.get("launch_pdl"):
                    specs.setdefault(spec.kernel.__name__, spec)
    return specs


def test_nothing_is_touched_before_the_kernel_in_front_has_ended():
    specs = early()
    text = "".join(path.read_text() for path in Path(triton_kernels.__file__).parent.glob("*.py"))
    assert {*specs} == {*re.findall(r"def (\w+_kernel)\([^)]*launch_pdl", text)}
    for spec, code in zip(specs.values(), machine_code.used(specs.values(), 90, texts=["griddepcontrol.wait"], early=_early)):
        assert code["griddepcontrol.wait"] == 1 and code["early"] == 0, spec


def _early(compiled):
    return before_the_wait(compiled.ptx)


@pytest.mark.parametrize("count, body", [
    (0, "ld.param.b64 %rd1, [p];\n st.shared.b32 [%r1], 0;\n griddepcontrol.wait; // all\n ld.global.b32 %r2, [%rd1];\n ret;"),
    (1, "@%p1 ld.global.b32 %r2, [%rd1];\n griddepcontrol.wait;\n ret;"), (1, "cp.async.commit_group;\n ret;"),
    (2, "@%p1 bra $L_1;\n griddepcontrol.wait;\n $L_1:\n @%p2 st.global.v2.b32 [%rd1], {%r1, %r2};\n ret;"),
    (1, "bar.sync 0, 128;\n cp.async.bulk.tensor.3d.shared::cluster.global [%r1], [%rd1, {%r2}], [%r3];\n griddepcontrol.wait;\n ret;"),
    (0, "@%p1 bra $L_2;\n $L_1:\n barrier.sync 1;\n ld.shared.b8 %r1, [%r2];\n $L_t: .branchtargets\n $L_1, $L_3;\n brx.idx %r1, $L_t;\n"
        "$L_3:\n st.global.b32 [%rd1], 0;\n bra.uni $L_1;\n $L_2:\n griddepcontrol.wait;\n barrier.sync 1;\n ret;"),
    (1, "barrier.sync 1;\n griddepcontrol.wait;\n ret;"), (1, "@%p1 griddepcontrol.wait;\n ret;")])
def test_what_comes_too_early_is_found(count, body):
    assert before_the_wait(f".visible .entry kernel(.param .u64 p) .reqntid 128 {{\n .reg .b32 %r<9>;\n {body}\n}}") == count
