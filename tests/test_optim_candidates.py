"""Every way that the tuner may choose for kernels over lists of tensors gives what the CPU gives, and tuning changes no parameter."""
import numpy as np
import pytest
from optimizers import assert_near, trajectory

import tritorch
from tritorch.cuda import driver, tuner
from tritorch.ops import multitensor, optimize


@pytest.fixture
def small_tiles(cuda, monkeypatch):
    """The blocks of a GPU."""
    if driver.current().name == "simulated":
        monkeypatch.setattr(driver, "hardware_tiles", True)


def norms(device):
    rng = np.random.default_rng(0)
    tensors = [tritorch.tensor(rng.standard_normal(n).astype("f4")).to(device) for n in (3, 9000, 70000)]
    found = [optimize.total_norm(tensors, power) for power in (2.0, 1.0, float("inf"))]
    optimize.clip_by_norm(tensors, found[0], 1.0)
    return [x.cpu().numpy() for x in (*found, *tensors)]


@pytest.mark.parametrize("blocks", sorted({*multitensor.BLOCKS, *optimize.NORM_BLOCKS, *optimize.SCALE_BLOCKS}))
def test_all_blocks_agree(cuda, small_tiles, blocks):
    with tuner.forcing("multi_tensor", dict(zip(("BLOCK", "num_warps"), blocks))):
        assert_near(norms(cuda), norms("cpu"), 1e-5)
        for cls, options in (("AdamW", {"amsgrad": True}), ("SGD", {"momentum": 0.9})) if blocks in multitensor.BLOCKS else ():
            assert_near(trajectory(tritorch, cls, options, device=cuda, steps=3), trajectory(tritorch, cls, options, steps=3), 2e-6)


def test_what_is_tried_is_not_what_is_trained(cuda, small_tiles):
    """Candidates run on stand-ins: the numbers are those of the tensors, whatever is done to them."""
    met = []

    def measure(family, key, candidates, run, known):
        if family == "multi_tensor":
            met.append(key)
            for candidate in candidates:
                run(candidate)
                run(candidate)
        return None

    with tuner.measuring(measure):
        found = trajectory(tritorch, "AdamW", {"fused": True}, device=cuda, steps=3)
        norms(cuda)
    assert {key[:4] for key in met} >= {("update_kernel", "adam", 4, 4), ("norm_kernel", "square", 4, 1), ("scale_kernel", "", 4, 1)}
    assert_near(found, trajectory(tritorch, "AdamW", {"fused": True}, steps=3), 2e-6)
