"""What `bench predict` makes up for where only a few CTAs of a launch run."""
import numpy as np
import pytest

pytest.importorskip("triton")

import triton  # noqa: E402
import triton.language as tl  # noqa: E402

import tritorch as torch  # noqa: E402
from bench import launches, left_out, predict  # noqa: E402
from tritorch.cuda import driver  # noqa: E402
from tritorch.cuda.launch import launch  # noqa: E402
from tritorch.ops import ordering  # noqa: E402
from tritorch.testing.ptx import device, trace  # noqa: E402


@triton.jit
def add_one(y_ptr, x_ptr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + i, tl.load(x_ptr + i) + 1)


@pytest.fixture
def gpu():
    with device.simulate(90) as fake:
        yield fake


@pytest.mark.parametrize("few, ctas", [(0, 2), (1 << 16, 300)])
def test_launches_of_few_instructions_run_whole(gpu, few, ctas):
    """And those whose CTAs are all traced, once."""
    x, more, y = torch.zeros(300 * 64, device="cuda"), torch.zeros(300 * 64, device="cuda"), torch.zeros(64, device="cuda")
    with trace.tracing(gpu, blocks=8, few=few) as found:
        launch(add_one, (300,), more, x, BLOCK=64, num_warps=1)
        launch(add_one, (1,), y, y, BLOCK=64, num_warps=1)
    assert [len(one.blocks) for one in found] == [2, 1]
    assert (more.cpu().numpy() == 1).sum() == 64 * ctas and y.tolist() == [1.0] * 64


@pytest.mark.parametrize("choice", [ordering.GLUON[0], ordering.RADIX[0]], ids=["votes", "ranks"])
@pytest.mark.parametrize("falling", [False, True])
def test_radix_passes_are_made_up_for(gpu, choice, falling):
    """Launches that do nothing, completed, and the small ones between them sort a row of both zeros; as the kernels do, to the last bit."""
    rng = np.random.default_rng(0)
    n = 3 * (1 << choice["LOG"]) - 77
    x = np.round(rng.normal(size=n) * 40).astype(np.float32) / 8
    x[:2], k = (0.0, -0.0), n // 2
    with driver.using(driver.current()):
        account = launches.Beside(driver.current())
        values, indices = torch.zeros(1, k, device="cuda"), torch.zeros(1, k, dtype=torch.int64, device="cuda")
        row = torch.from_numpy(x[None]).to("cuda")

        def run(kernel, launched):
            if kernel.program.name in ("spread_kernel", "base_kernel"):
                type(gpu)._run(gpu, kernel, launched)

        with trace.running(gpu, run), predict.completing(account, gpu.memory):
            ordering._passes(values, indices, row, 1, n, 32, choice, {"FALLING": falling, "RAW": False})
        driver.current().load = account.real
        want = np.argsort(-x if falling else x, kind="stable")[:k]
        np.testing.assert_array_equal(indices.cpu().numpy()[0], want)
        assert values.cpu().numpy().tobytes() == x[want].tobytes() and account.then is None


def test_other_launches_are_left_alone(gpu):
    x = torch.ones(4, device="cuda")
    left_out.complete({"x_ptr": x, "y_ptr": None, "digit_shift": 0}, gpu.memory)
    assert x.tolist() == [1.0] * 4
