"""Notes on kernels' sources: what is cut out and keyed by them is what Python and Triton find themselves, before and after every edit."""
import ast
import dataclasses
import gc
import importlib
import inspect
import linecache
import random
import sys
import threading
import time
from pathlib import Path

import pytest

triton = pytest.importorskip("triton")

from triton.runtime import jit  # noqa: E402

from tritorch.cuda import compiler, compiler_keys, compiler_worker, sources, tuner  # noqa: E402
from tritorch.cuda.compiler_keys import key_of  # noqa: E402

KERNEL = '''
import triton
import triton.language as tl
from {name}_far import LIMIT, far, scaled
from {name}_near import near
import {name}_near as module

STEP = tl.constexpr(2)
PLAIN = 7


@triton.jit
def stored_kernel(out_ptr, N, ACT: tl.constexpr, BLOCK: tl.constexpr = STEP):
    """A kernel.

    with text at the end of lines """
    i = tl.arange(0, BLOCK)
    x = near(i) + module.near(i)                # twice the same function counts
    for STEP_INSIDE in range(3):
        x += near(x) * STEP
    tl.store(out_ptr + i, ACT(x), mask=i < min(N, LIMIT))
    # the last line of it


# not a line of it
@triton.jit(
    do_not_specialize=["n"],
)
def other_kernel(out_ptr, n):
    tl.store(out_ptr, tl.sum(tl.zeros((4,), tl.int32), 0) + n + (
        1))
'''
NEAR = '''
import triton
from {name}_far import far as further


@triton.jit
def near(x):
    return further(x)
'''
FAR = '''
import triton
import triton.language as tl

LIMIT = tl.constexpr(64)
OFFSET = tl.constexpr(1.0)


@triton.jit
def far(x):
    return x + OFFSET


@triton.jit
def scaled(x):
    return x * 2
'''
EDITS = {
    "kernel": ("", "range(3)", "range(4)"), "helper two files away": ("_far", "x + OFFSET", "x - OFFSET"),
    "constant": ("", "constexpr(2)", "constexpr(4)"), "constant two files away": ("_far", "constexpr(1.0)", "constexpr(-1.0)"),
    "constant of a constexpr's type": ("_far", "constexpr(64)", "constexpr(64.0)"), "which function": ("_near", "far as", "scaled as"),
    "line": ("", "STEP = ", "\nSTEP = "),
}


class Files:
    """Three modules, and what a new process makes of them."""

    def __init__(self, folder, name):
        self.folder, self.name = folder, name
        self.texts = {"": KERNEL, "_near": NEAR, "_far": FAR}

    def edit(self, part, old, new):
        assert old in self.texts[part]
        self.texts[part] = self.texts[part].replace(old, new)

    def load(self):
        for part, text in self.texts.items():
            (self.folder / f"{self.name}{part}.py").write_text(text.format(name=self.name))
            sys.modules.pop(f"{self.name}{part}", None)
        importlib.invalidate_caches()
        sources._notes.clear()
        linecache.clearcache()
        return sources.load(self.name)

    def key(self):
        """By notes; it is Triton's own."""
        kernel = self.load().stored_kernel
        found = key_of(kernel)
        assert found == files_own(self.load())
        return found


@pytest.fixture
def files(tmp_path, monkeypatch):
    name = f"noted_{tmp_path.name.replace('-', '_')}"
    monkeypatch.setenv("TRITORCH_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)                # two texts of one second and one length
    monkeypatch.setattr(sources, "_PACKAGES", (name, f"{name}_near", f"{name}_far"))
    monkeypatch.syspath_prepend(tmp_path)
    yield Files(tmp_path, name)
    for part in ("", "_near", "_far"):
        sys.modules.pop(f"{name}{part}", None)


@pytest.fixture
def parsed(monkeypatch):
    """Names of what Triton had parsed."""
    found, parse = [], compiler_keys._parse
    monkeypatch.setattr(compiler_keys, "_parse", lambda self: found.append(self.__name__) or parse(self))
    return found


def notes():
    return sorted((compiler.cache_folder() / "sources").iterdir())


def fresh():
    """Nobody has asked for a key yet."""
    gc.unfreeze()                                                        # tests/conftest.py hides what tests import
    for f in gc.get_objects():
        if type(f).__name__ in ("JITFunction", "GluonJITFunction", "ConstexprFunction"):
            f.hash, f.used_global_vals = None, {}
    gc.freeze()


@pytest.mark.smoke
def test_keys_of_all_our_kernels_are_tritons():
    folder = Path(__file__).parent.parent / "triton_kernels"
    modules = [sources.load(f"triton_kernels.{path.stem}") for path in folder.glob("*.py") if path.stem != "__init__"]
    functions = [f for m in modules for f in vars(m).values() if isinstance(f, jit.JITCallable) and f.__module__ == m.__name__]
    fresh()
    keys = [key_of(f) for f in functions]
    assert len(keys) > 500
    fresh()
    others_first = random.Random(0).sample(functions, len(functions))
    assert dict(zip(others_first, map(key_of, others_first))) == dict(zip(functions, keys))
    for f, key in zip(functions, keys):                                  # Triton parses, and knows those of the functions that are called
        f.hash = None
        assert f.cache_key == key


def test_a_second_process_parses_and_cuts_nothing(files, parsed, monkeypatch):
    first = key_of(files.load().stored_kernel)
    assert sorted(set(parsed)) == ["far", "near", "stored_kernel"]
    parsed.clear()
    monkeypatch.setattr(inspect, "getblock", None)
    again = files.load()
    assert key_of(again.stored_kernel) == first and not parsed and again.stored_kernel.used_global_vals
    assert key_of(again.other_kernel) != first and parsed == ["other_kernel"]


def test_it_is_cut_where_python_cuts(files):
    for _ in range(2):
        module = files.load()
        for function in (module.stored_kernel, module.other_kernel, module.far):
            assert (function.raw_src, function.starting_line_number) == inspect.getsourcelines(function.fn)
    assert module.stored_kernel.raw_src[-1].strip() == "# the last line of it" and module.other_kernel.raw_src[-1].strip() == "1))"
    assert inspect.getsourcelines is sources._cut_by_python


@pytest.mark.parametrize("edit", EDITS.values(), ids=EDITS)
def test_every_edit_gives_another_key(files, edit):
    before = files.key()
    assert files.key() == before
    files.edit(*edit)
    assert files.key() != before
    files.edit(edit[0], edit[2], edit[1])
    assert files.key() == before


def test_edits_of_what_is_not_used_do_not(files):
    before = files.key()
    files.edit("", "n + (", "n - (")
    files.edit("", "PLAIN = 7", "PLAIN = 8")
    files.edit("_far", "x * 2", "x * 3")
    assert files.key() == before


def test_values_are_looked_up_in_every_process(files):
    """A package that is configured after its import."""
    before = files.key()
    module, far = files.load(), sys.modules[f"{files.name}_far"]
    far.OFFSET = triton.language.constexpr(2.0)
    changed = key_of(module.stored_kernel)
    assert changed != before and changed == files_own(module)
    module = files.load()
    module.near = sys.modules[f"{files.name}_far"].scaled
    assert key_of(module.stored_kernel) not in (before, changed)
    assert files.key() == before


def files_own(module):
    """Triton's own key of what is loaded, once it knows those of the functions that are called."""
    for function in (sys.modules[module.far.__module__].far, module.near, module.stored_kernel):
        function.hash, function.used_global_vals = None, {}
        key = function.cache_key
    return key


def test_keys_of_kernels_know_options_and_triton(files, monkeypatch, parsed):
    kernel, act = files.load().stored_kernel, sys.modules[f"{files.name}_far"]
    spec = compiler.Specialisation(kernel, {"out_ptr": "*fp32", "N": "i32", "ACT": "constexpr", "BLOCK": "constexpr"},
                                   {(2,): act.far, (3,): 8}, {}, {"num_warps": 4})
    others = [dataclasses.replace(spec, options={"num_warps": 8}), dataclasses.replace(spec, constexprs={(2,): act.scaled, (3,): 8})]
    keys = {each.key(90) for each in (spec, *others)} | {spec.key(80)}
    monkeypatch.setattr(triton, "__version__", "another")
    assert spec.key(90) not in keys and len(keys) == 4
    parsed.clear()
    key_of(files.load().stored_kernel)                                   # notes of another Triton say nothing
    assert "stored_kernel" in parsed


@pytest.mark.parametrize("damage", [lambda data: b"", lambda data: data[:-9], lambda data: data[:-4] + bytes([data[-4] ^ 1]) + data[-3:],
                                    lambda data: b"nonsense\n[1]"], ids=["empty", "cut off", "another letter", "nonsense"])
def test_damaged_notes_are_made_anew(files, damage, parsed):
    before, kept = files.key(), {path: path.read_bytes() for path in notes()}
    assert kept
    for path, data in kept.items():
        path.write_bytes(damage(data))
    parsed.clear()
    assert key_of(files.load().stored_kernel) == before and set(parsed) == {"stored_kernel", "near", "far"}
    assert {path: path.read_bytes() for path in notes()} == kept


def test_a_folder_that_cannot_be_written(files, monkeypatch, tmp_path):
    before = files.key()
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TRITORCH_CACHE_DIR", str(tmp_path / "file"))
    assert files.key() == before


def test_two_processes_write_at_once(files):
    kernels = files.load()
    key_of(kernels.stored_kernel)
    note = sources.note_on(kernels.__file__)
    one, other = sources.Note(note.text), sources.Note(note.text)
    one.names["one"], other.names["other"] = [[], []], [[], []]
    threads = [threading.Thread(target=each.write) for each in [one, other] * 8]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    other.write()
    one.write()
    names = sources.Note(note.text).names
    assert {"one", "other"} < set(names) and set(note.names) < set(names) and all(path.suffix == ".json" for path in notes())


def test_what_another_process_finds_meanwhile(files, parsed):
    """One that compiles is told of kernels after it has imported them."""
    module = files.load()
    before = key_of(module.stored_kernel)
    assert parsed
    for note in sources._notes.values():
        note.names = {}                                                  # as they were when the modules were imported
    for function in (module.stored_kernel, module.near, sys.modules[f"{files.name}_far"].far):
        function.hash, function.used_global_vals = None, {}
    parsed.clear()
    assert key_of(module.stored_kernel) == before and not parsed


def test_names_that_give_another_key_are_not_noted(files, monkeypatch, parsed):
    before, names_in = files.key(), compiler_keys._names_in
    for path in notes():
        path.unlink()
    monkeypatch.setattr(compiler_keys, "_names_in", lambda tree: [[], []] if "near" in ast.unparse(tree) else names_in(tree))
    assert key_of(files.load().stored_kernel) == before
    parsed.clear()
    assert key_of(files.load().stored_kernel) == before and sorted(set(parsed)) == ["near", "stored_kernel"]


def test_one_thread_parses_at_a_time(files, monkeypatch):
    """All who ask for keys, as the tuner does while other threads ask where a kernel is kept and send one to a process."""
    module, inside, most, parse = files.load(), [], [], ast.parse

    def slow(*args, **kw):
        inside.append(1)
        most.append(len(inside))
        time.sleep(0.02)
        inside.pop()
        return parse(*args, **kw)

    monkeypatch.setattr(jit.ast, "parse", slow)
    far = sys.modules[f"{files.name}_far"]
    spec = compiler.Specialisation(module.stored_kernel, {"out_ptr": "*fp32"}, {(1,): far.scaled}, {}, {})
    work = [lambda: compiler.path_of(spec, 90), lambda: tuner._measured_name("family", 1, module.other_kernel),
            lambda: compiler_worker._Pickler(open("/dev/null", "wb")).dump(far.scaled), lambda: key_of(far.far)]
    threads = [threading.Thread(target=each) for each in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(most) >= 4 and max(most) == 1


@pytest.mark.parametrize("part, old", [("", "near(x) * STEP"), ("_far", "x + OFFSET")], ids=["kernel", "two files away"])
def test_a_key_that_cannot_be_found_is_an_error_every_time(files, part, old):
    before = files.key()
    files.edit(part, old, f"inspect.signature({old})")
    files.edit(part, "import triton\n", "import inspect\nimport triton\n")
    module = files.load()
    for _ in range(2):
        with pytest.raises(RuntimeError, match="Unsupported function"):
            key_of(module.stored_kernel)
    assert module.stored_kernel.hash is None and key_of(module.other_kernel)
    files.edit(part, f"inspect.signature({old})", old)
    files.edit(part, "import inspect\nimport triton\n", "import triton\n")
    assert files.key() == before
