"""The devices of the suite: the CPU, and a CUDA device that is simulated unless `-m gpu` asks for the real one.

With TRITORCH_PTX=80 or 90 the real one is a GPU of that compute capability made of numpy, which executes compiled kernels
(tritorch.testing.ptx). With --kernels-to FILE nothing runs on it: the kernels that tests launch are listed.
"""
import contextlib
import gc
import os
import sys
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")      # before numpy comes: its threads spin, and took 57 of the 95 s of test_gemm.py

import pytest  # noqa: E402

gc.disable()                                            # until all tests are collected

SURROUNDINGS = pytest.StashKey()
HOPPER = {"persistent", "gluon", "exact_gluon", "together_gluon"}       # kernels of candidates


def on_gpu(config):
    return config.option.markexpr.strip() == "gpu"


def pytest_addoption(parser):
    parser.addoption("--update-records", action="store_true", help="write tests/records anew")
    parser.addoption("--kernels-to", metavar="FILE", type=Path, help="list what -m gpu launches, to compile it ahead; with python -O and "
                     "--assert=plain, since no result is right")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """`-m gpu` selects every test that uses the `cuda` fixture, but for parameters that say the CPU, or the simulator's block sizes,
    which a GPU does not have: there it would run the same test twice."""
    if on_gpu(config):
        for item in items:
            values = parameters(item).values()
            if "cuda" in item.fixturenames and not any(isinstance(v, str) and v in ("cpu", "simulated") for v in values):
                item.add_marker(pytest.mark.gpu)
    elif os.environ.get("TRITORCH_CUDA") == "native":                      # which has a GPU's block sizes in both cases of `tiles`
        twice = {item for item in items if "cuda" in item.fixturenames and parameters(item).get("tiles") == "simulated"}
        config.hook.pytest_deselected(items=[item for item in items if item in twice])
        items[:] = [item for item in items if item not in twice]


def parameters(item):
    return item.callspec.params if hasattr(item, "callspec") else {}


def pytest_configure(config):
    if config.option.update_records and (hasattr(config, "workerinput") or getattr(config.option, "numprocesses", None)):
        raise pytest.UsageError("--update-records writes what one process asked for: run it without -n")
    if on_gpu(config):
        config.pluginmanager.register(Guard(config))
    if config.option.kernels_to:
        import numpy as np

        np.testing.assert_allclose = np.testing.assert_array_equal = lambda *args, **options: None


@pytest.hookimpl(trylast=True)
def pytest_collection_finish(session):
    """The collector need not look at 20,000 tests, and at all modules, again and again: that was a fourth of collection's time. Nor at what
    tests make as often as by default: that was 3 % of test_ops."""
    gc.freeze()
    gc.set_threshold(20_000)
    gc.enable()


def pytest_sessionfinish(session):
    if session.config.option.update_records and not session.testsfailed:
        import machine_code

        machine_code.write(whole=session.config.option.markexpr.strip() == "records")


def pytest_unconfigure(config):
    if config.option.kernels_to:
        write_kernels(config.option.kernels_to)


def surroundings():
    """What a test shares with those that come after it in its process: switches, and what answers to the name of PyTorch. Variables of
    other names are set by libraries when they are imported."""
    environment = {key: value for key, value in os.environ.items() if key.startswith(("TRITORCH_", "TRITON_", "CUDA_", "PYTHON"))}
    return environment, getattr(sys.modules.get("torch"), "__version__", None)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item):
    """A call that an earlier test has made runs its implementation again: this test may have changed what that goes by."""
    if "tritorch.cuda.driver" in sys.modules:
        sys.modules["tritorch.cuda.driver"].forget_calls()
    item.stash[SURROUNDINGS] = surroundings()
    return (yield)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item):
    """A switch that stays on turns later tests into others, or into skipped ones, and nobody hears of it."""
    yield
    forget_dtensors()
    (before, torch), (after, torch_now) = item.stash[SURROUNDINGS], surroundings()
    changed = sorted(key for key in before | after if before.get(key) != after.get(key))
    for key in changed:
        os.environ.update({key: before[key]}) if key in before else os.environ.pop(key)
    if changed or torch not in (None, torch_now):
        pytest.fail(f"expected the environment and PyTorch as before the test, found others: {changed or torch_now}")


def forget_dtensors():
    """Once there was one, all operators are seen by an interpreter: a later test may look at what there is without it."""
    storage, modes = sys.modules.get("tritorch.storage"), sys.modules.get("tritorch.autograd.modes")
    if storage is not None and storage.Spread.kind is not None:
        storage.Spread.kind = modes.State.interpreter = None
        modes.state.__dict__.pop("interpreter", None)


class Guard:
    """A kernel that breaks the device makes every later call fail: end the run there, and say which test it was. And where a GPU stands
    on a machine without scipy, what is compared with it is left out."""

    def __init__(self, config):
        self.config = config

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self):
        try:
            return (yield)
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] == "scipy":
                pytest.skip("the CPU's side of this test is scipy's, which is not installed here")
            raise

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report):
        """Where nobody waits for pytest's end to see why tests failed, it is said at once: a run may not live until then."""
        if report.failed and self.config.option.no_summary:
            terminal = self.config.pluginmanager.getplugin("terminalreporter")
            terminal.ensure_newline()
            terminal.write_line(report.longreprtext)

    def pytest_runtest_logfinish(self, nodeid):
        from tritorch.cuda import driver

        if driver.chosen() and driver.current().name == "nvidia":
            try:
                driver.current().synchronize(0)
            except driver.DriverError as error:
                pytest.exit(f"{nodeid} broke the device: {error}", returncode=3)


@pytest.fixture(scope="session")
def cuda(request):
    """A CUDA device: the real one under `-m gpu`, or the one made of PTX, else the simulated one, or the native one if TRITORCH_CUDA says
    so."""
    import tritorch as torch

    if request.config.option.kernels_to:
        with listing(int(os.environ.get("TRITORCH_PTX", 90))):
            yield torch.device("cuda:0")
    elif on_gpu(request.config) and os.environ.get("TRITORCH_PTX"):
        from tritorch.testing.ptx.device import simulate

        with simulate(int(os.environ["TRITORCH_PTX"])):
            yield torch.device("cuda:0")
    elif on_gpu(request.config):
        if not torch.cuda.is_available():
            pytest.skip("no GPU on this machine")
        yield torch.device("cuda:0")
    else:
        with torch.cuda.simulate(native=os.environ.get("TRITORCH_CUDA") == "native"):
            yield torch.device("cuda:0")


@pytest.fixture
def native():
    """The native device, whatever TRITORCH_CUDA says."""
    import tritorch as torch

    with torch.cuda.simulate(native=True) as device:
        yield device


launched = {}


@contextlib.contextmanager
def listing(arch):
    """A device of an architecture on which nothing runs. pytest may end and begin it several times."""
    from tritorch.cuda import compiler, driver
    from tritorch.cuda.dry import DryDriver

    with driver.using(DryDriver(arch)), compiler.recording() as record:
        yield
    launched.update(record)


def write_kernels(file):
    """The package's own that were launched there."""
    from tritorch.cuda import kernel_list

    ours = [spec for spec in launched.values() if all(kernel.__module__.startswith("triton_kernels.") for kernel in kernels_in(spec))]
    kernel_list.save(file, ours)


def kernels_in(*values):
    """Of a specialisation, and of the tuples in it."""
    from tritorch.cuda import compiler

    for value in values:
        if isinstance(value, compiler.Specialisation):
            yield from kernels_in(value.kernel, *value.constexprs.values())
        elif isinstance(value, tuple):
            yield from kernels_in(*value)
        elif isinstance(value, compiler.triton.JITFunction):
            yield value


@pytest.fixture(autouse=True)
def device_can_run_what_is_forced(request, monkeypatch):
    """Tests that force a Hopper kernel on an older GPU, or on the native device, are left out there, and those of a kind of kernel that
    is to be avoided: it may hang."""
    if not ((on_gpu(request.config) or os.environ.get("TRITORCH_CUDA") == "native") and "cuda" in request.fixturenames):
        return
    request.getfixturevalue("cuda")
    from tritorch.cuda import driver, tuner

    forcing = tuner.forcing

    def forced(family, candidate):
        if candidate.get("kernel") in HOPPER and driver.current().device_properties(0).major < 9:
            pytest.skip("TMA came with Hopper")
        if candidate.get("kernel") in os.environ.get("TRITORCH_AVOID", "").split(","):
            pytest.skip("TRITORCH_AVOID names this kind of kernel")
        return forcing(family, candidate)

    monkeypatch.setattr(tuner, "forcing", forced)


@pytest.fixture(params=["simulated", "hardware"])
def tiles(request, monkeypatch):
    """Both choices of block sizes: those for the simulator and those for a GPU."""
    monkeypatch.setattr("tritorch.cuda.driver.hardware_tiles", request.param == "hardware")
