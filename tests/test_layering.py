"""The house's rules that a machine can see: who imports whom, what `import tritorch` loads, names and lengths of files."""
import ast
import functools
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
TREES = ("tritorch", "triton_kernels", "bench", "tutorials", "tests")
SOURCES = sorted(p.relative_to(ROOT) for tree in TREES for p in (ROOT / tree).rglob("*.py"))

# Top first. A module belongs to the row with the longest matching prefix and may import from its own row and from the rows below it.
LAYERS = [
    ["tritorch", "tritorch.cuda.amp", "tritorch.cuda.random", "tritorch.autograd.profiler", "tritorch.autograd.mutation",
     "tritorch.sparse.saving"],  # built on operators
    ["tritorch.ops", "tritorch.printing", "tritorch.sparse"],
    ["tritorch.dispatch", "tritorch.calling", "tritorch.repeat"],
    ["tritorch.autograd"],
    ["tritorch.generator", "tritorch.philox", "tritorch.precision"],
    ["tritorch.tensor", "tritorch.pairs"],
    ["tritorch.storage"],
    ["tritorch.cuda"],
    ["tritorch.errors", "tritorch.frames", "tritorch.dtype", "tritorch.device", "tritorch.shape", "tritorch.layout",
     "tritorch.memory_format", "tritorch.quiet", "tritorch.keywords", "tritorch.own_name", "tritorch.return_types"],
]
TRITON = ("tritorch.cuda.compiler", "tritorch.cuda.launch", "tritorch.cuda.native", "tritorch.cuda.simulated", "triton_kernels")
CUDA_BINDINGS = ("tritorch.cuda.nvidia",)
FORBIDDEN_NAMES = re.compile(r"^(utils?|helpers?|misc|common|.*_v2|.*_old|.*_new|.*_backup)\.py$")


def name_of(path):
    parts = path.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {name_of(p): p for p in SOURCES}


def statements(node, welcome=False):
    """(each statement at any depth, whether it is inside `try: … except ImportError`, of a package that is welcome but not required).
    Expressions hold none: to walk all of them took ten times as long."""
    for part in ("body", "orelse", "finalbody", "handlers", "cases"):
        handlers = getattr(node, "handlers", ()) if part == "body" else ()
        guarded = any("ImportError" in ast.dump(handler) for handler in handlers)
        for child in getattr(node, part, ()):
            yield child, welcome or guarded
            yield from statements(child, welcome or guarded)


@functools.cache
def content(path):
    """(every module that a file imports, at any depth, with the line and whether it is only welcome; the functions whose measure is not
    kept): `from a import b` counts as a.b when that is a module."""
    package = name_of(path).split(".") if path.name == "__init__.py" else name_of(path).split(".")[:-1]
    found, long = [], []
    for node, welcome in statements(ast.parse((ROOT / path).read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found += [(alias.name, node.lineno, welcome) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) + 1 - node.level] if node.level else []
            module = ".".join([*above, *([node.module] if node.module else [])])
            for alias in node.names:
                inner = f"{module}.{alias.name}"
                found.append((inner if inner in MODULES else module, node.lineno, welcome))
        elif isinstance(node, ast.FunctionDef):
            manual = ast.get_docstring(node) or ""
            body = node.body[bool(manual):]
            lines = node.end_lineno - body[0].lineno + 1 if body else 0
            if lines > 40 and not re.search(r"(?i)\blong", manual):
                long.append(f"{node.name}: {lines} lines; split it, or let its manual say why")
    return found, long


def within(module, prefixes):
    return any(module == p or module.startswith((p + ".", p + "_")) for p in prefixes)


def layer(module):
    matches = [(len(p), row) for row, prefixes in enumerate(LAYERS) for p in prefixes if module == p or module.startswith(p + ".")]
    return max(matches)[1]


def offenders(paths, bad, optional=True):
    return [f"{path}:{line} imports {module}" for path in paths for module, line, welcome in content(path)[0]
            if (optional or not welcome) and bad(name_of(path), module)]


PRODUCT = [p for p in SOURCES if p.parts[0] in ("tritorch", "triton_kernels")]


def test_imports_point_down():
    def up(importer, module):
        ours = importer.split(".")[0] == module.split(".")[0] == "tritorch"
        return ours and importer != "tritorch" and layer(module) < layer(importer)
    assert not offenders(PRODUCT, up)


def test_top_package_is_not_imported_from_below():
    """`import tritorch` inside the package would make every order of loading a riddle."""
    assert not offenders([p for p in PRODUCT if layer_is_below_top(p)], lambda importer, module: module == "tritorch")


def layer_is_below_top(path):
    return path.parts[0] == "tritorch" and layer(name_of(path)) > 0


def test_kernels_are_reached_through_the_launch_path_alone():
    assert not offenders([p for p in PRODUCT if p.parts[0] == "tritorch"], lambda _, module: module.split(".")[0] == "triton_kernels")


def test_kernels_import_triton_alone():
    kernels = [p for p in PRODUCT if p.parts[0] == "triton_kernels"]
    assert not offenders(kernels, lambda _, module: module.split(".")[0] not in ("triton", "triton_kernels"))


def test_kernels_name_each_other_relatively():
    """The package goes by another name where a program has a module triton_kernels (tritorch/cuda/own_kernels.py)."""
    absolute = re.compile(r"^\s*(from|import) triton_kernels", re.M)
    assert not [p for p in PRODUCT if p.parts[0] == "triton_kernels" and absolute.search((ROOT / p).read_text())]


def test_triton_stays_in_its_places():
    assert not offenders(PRODUCT, lambda importer, module: module.split(".")[0] == "triton" and not within(importer, TRITON))


def test_cuda_bindings_stay_in_the_nvidia_driver():
    assert not offenders(PRODUCT, lambda importer, module: module.split(".")[0] == "cuda" and not within(importer, CUDA_BINDINGS))


def test_torch_is_an_opponent_only():
    ours = [p for p in SOURCES if p.parts[0] not in ("tests", "bench")]
    assert not offenders(ours, lambda _, module: module.split(".")[0] in ("torch", "torchvision"))


def test_optional_packages_are_optional():
    required = sys.stdlib_module_names | {"tritorch", "triton_kernels", "triton", "cuda", "numpy", "ml_dtypes", "scipy", "tqdm"}
    for_logs = {"tensorboard", "google", "PIL", "matplotlib"}              # of a module that nobody imports who has no tensorboard

    def wrong(importer, module):
        package = module.split(".")[0]
        return package not in required and not (package in for_logs and within(importer, ("tritorch.utils.tensorboard",)))

    assert not offenders(PRODUCT, wrong, optional=False)


def test_import_is_light():
    code = "import sys, tritorch; print(*sorted({m.split('.')[0] for m in sys.modules}))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert not loaded & {"triton", "triton_kernels", "cuda", "torch", "scipy", "matplotlib", "tqdm", "pandas", "sklearn"}


@pytest.mark.parametrize("path", SOURCES, ids=str)
def test_file_and_functions_keep_their_measure(path):
    lines = (ROOT / path).read_text().splitlines()
    assert not FORBIDDEN_NAMES.match(path.name), "a name that says nothing: use a noun of the field"
    reason = re.search(r"(?i)\b(lines|long|length|one file)\b", "\n".join(lines[:5]))
    assert len(lines) <= 400 or reason, f"{len(lines)} lines: split it, or state in its first five lines why it is long"
    assert not content(path)[1]


def calls_itself(function):
    """Whether it does by its own name, or hands it to `map`."""
    for call in ast.walk(function):
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name):
            first = call.args[0] if call.func.id == "map" and call.args else call.func
            if isinstance(first, ast.Name) and first.id == function.name:
                return True
    return False


def test_no_function_inside_of_another_calls_itself():
    """It would know itself by its surroundings, a cycle: all that it looks at there would stay until the garbage collector comes."""
    elsewhere = ("tritorch/cuda/", "tritorch/testing/")                  # which look at no tensors and modules of users
    for path in SOURCES:
        if path.parts[0] == "tritorch" and not str(path).startswith(elsewhere):
            for outer in ast.walk(ast.parse((ROOT / path).read_text(encoding="utf-8"))):
                for inner in ast.walk(outer) if isinstance(outer, ast.FunctionDef) else ():
                    assert inner is outer or not isinstance(inner, ast.FunctionDef) or not calls_itself(inner), (path, inner.name)
