"""Machine code of small products on Hopper: every candidate fits, keeps its sums in registers, and no product waits for the one before."""
import pytest

pytest.importorskip("triton")

import machine_code  # noqa: E402
from test_product_code import BF16, H200, launched  # noqa: E402

import tritorch as T  # noqa: E402
from tritorch.cuda import tuner  # noqa: E402
from tritorch.ops import gemm_choice as choice  # noqa: E402
from tritorch.ops.linear import linear  # noqa: E402

pytestmark = pytest.mark.records


def each_once(found):
    """(BLOCK_M, BLOCK_N, BLOCK_K, STAGES, GROUPS, warps): the candidate that is not split."""
    return {tuple(c.get(name, 1) for name in ("BLOCK_M", "BLOCK_N", "BLOCK_K", "STAGES", "GROUPS", "num_warps")): c for _, c in found
            if c["splits"] == 1}


SMALL = each_once(choice.whole(1024, 64, 4096, 1, H200) + choice.whole(1024, 16, 4096, 1, H200, swapped=True))
PARTS = each_once(choice.whole(1024, 1024, 4096, 1, H200, True) + choice.whole(128, 128, 64, 1, H200, True))
PARTS |= each_once(choice.groups(1024, 1024, 4096, 1, H200))
SHORT = each_once(choice.groups(128, 128, 64, 1, H200))


@pytest.mark.parametrize("blocks", SHORT, ids=str)
def test_short_sums_stay_in_registers(blocks):
    """Also with what is lost where they are added up."""
    with tuner.forcing("matmul", SHORT[blocks]):
        specs = launched(lambda e: [e(2, 128, 64) @ e(2, 64, 128), e(2, 128, 64) @ e(2, 128, 64).mT])
    assert specs and not any(code["spills"] for code in machine_code.used(specs, 90))


@pytest.mark.parametrize("blocks", [*SMALL, *PARTS], ids=str)
def test_every_candidate(blocks):
    candidate, dtype = (SMALL[blocks], BF16) if blocks in SMALL else (PARTS[blocks], {"dtype": T.float32})
    with tuner.forcing("matmul", candidate):
        specs = launched(lambda e: [e(512, 512, **dtype) @ e(512, 512, **dtype),
                                    linear(e(512, 512, **dtype), e(512, 512, **dtype), e(512, **dtype))])
    specs = [s for s in specs if s.kernel.is_gluon()]
    assert len(specs) == 2
    for code in machine_code.used(specs, 90):
        assert code["spills"] <= 64 and code["shared"] <= H200[1] and code["ahead"] and code["wgmma"]
