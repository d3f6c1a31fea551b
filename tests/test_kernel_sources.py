"""What Triton's compiler makes of a kernel's source that Python would not."""
import ast
from pathlib import Path

import pytest

KERNELS = sorted((Path(__file__).parent.parent / "triton_kernels").glob("*.py"))
LOST = '''
def kernel(slot, steps):
    before = slot
    for k in range(steps):
        give_back(before)
        before = slot
        slot = after(slot)
'''


def copies(statement):
    """(x, y) of every `x = y` between names, alone or in tuples."""
    for target in statement.targets:
        parts = zip(target.elts, statement.value.elts) if isinstance(target, ast.Tuple) and isinstance(statement.value, ast.Tuple) else [
            (target, statement.value)]
        yield from ((a.id, b.id) for a, b in parts if isinstance(a, ast.Name) and isinstance(b, ast.Name))


def forgotten(tree):
    """Names that a loop is to carry on and Triton takes for constant: equal to another before the loop, and again in it, before that
    one changes. Its dry run over the loop's body then finds the value with which the name came in."""
    for function in [f for f in ast.walk(tree) if isinstance(f, ast.FunctionDef)]:
        for loop in [n for n in ast.walk(function) if isinstance(n, (ast.For, ast.While))]:
            inside = [n for n in ast.walk(loop) if isinstance(n, ast.Assign)]
            before = {pair for n in ast.walk(function) if isinstance(n, ast.Assign) and n.lineno < loop.lineno for pair in copies(n)}
            written = {name.id for n in ast.walk(loop) for name in ast.walk(n)
                       if isinstance(name, ast.Name) and isinstance(name.ctx, ast.Store)}
            for n in inside:
                yield from (f"{function.name}: {x} = {y}, line {n.lineno}" for x, y in copies(n)
                            if y in written and ((x, y) in before or (y, x) in before))


@pytest.mark.parametrize("path", KERNELS, ids=lambda p: p.name)
def test_loops_carry_what_they_are_to_carry(path):
    assert not list(forgotten(ast.parse(path.read_text(encoding="utf-8"))))


def test_the_rule_finds_what_it_is_for():
    assert list(forgotten(ast.parse(LOST))) == ["kernel: before = slot, line 6"]
