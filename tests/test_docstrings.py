"""Every public function, class and method has a manual, and every file says in its first line what it is."""
import importlib
import inspect
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PUBLIC = ["tritorch", *["tritorch." + name for name in (
    "accelerator", "amp", "autograd", "backends", "backends.cuda", "backends.cudnn", "cuda", "distributed", "distributed.device_mesh",
    "distributed.checkpoint", "distributed.checkpoint.state_dict", "distributed.fsdp", "distributed.nn.functional",
    "distributed.pipelining", "distributions", "distributions.constraint_registry", "distributions.constraints",
    "distributions.transforms", "distributions.utils", "func", "futures", "fx", "fx.experimental.optimization", "fx.graph_module",
    "fx.passes.graph_drawer", "fx.passes.infra.pass_base", "fx.passes.infra.pass_manager", "fx.passes.shape_prop",
    "fx.passes.split_module", "fx.passes.tools_common", "fx.proxy", "fx.subgraph_rewriter", "fx.traceback", "masked", "multiprocessing",
    "nn", "nn.attention", "nn.functional", "nn.init", "nn.utils", "optim", "optim.lr_scheduler", "profiler", "quasirandom", "random",
    "sparse", "testing", "utils.data")]]


def undocumented(name):
    """Public callables of a module, and methods of its classes, without a docstring."""
    module = importlib.import_module(name)
    for key in dir(module):
        value = getattr(module, key)
        if key.startswith("_") or inspect.ismodule(value) or not str(getattr(value, "__module__", "")).startswith("tritorch"):
            continue
        if callable(value) and not value.__doc__:
            yield f"{name}.{key}"
        if inspect.isclass(value):
            methods = [m for m, f in vars(value).items() if callable(f) or isinstance(f, (property, classmethod, staticmethod))]
            yield from (f"{name}.{key}.{m}" for m in methods if not m.startswith("_") and not inspect.getdoc(getattr(value, m)))


@pytest.mark.parametrize("name", PUBLIC)
def test_public_names_have_docstrings(name):
    assert not list(undocumented(name))


def test_files_say_what_they_are():
    files = [p for tree in ("tritorch", "triton_kernels", "bench", "tutorials", "tests") for p in (ROOT / tree).rglob("*.py")]
    assert not [str(p) for p in files if not p.read_text(encoding="utf-8").startswith('"""')]
