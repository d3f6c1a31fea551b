"""Machine code of large sorts, selections and sums over indices: nothing is spilled but addresses, memory is read in vectors."""
import pytest

pytest.importorskip("triton")

import machine_code  # noqa: E402
from test_product_code import launched  # noqa: E402

import tritorch as T  # noqa: E402
from tritorch.ops.embedding import table_gradient  # noqa: E402
from tritorch.ops.sorting import sorted_first  # noqa: E402

pytestmark = pytest.mark.records

CALLS = {
    "rows": lambda e: sorted_first(e(64, 4096), 4096, 1, False),
    "radix": lambda e: sorted_first(e(1 << 24), 1 << 24, 0, False),
    "first": lambda e: [sorted_first(e(64, 4096), 64, 1, True), e(64, 4096).kthvalue(2048)],
    "sums": lambda e: [e(32768, 1024).index_add(0, e(32768, dtype=T.int64), e(32768, 1024)),
                       table_gradient(e(65536, 1024, dtype=T.bfloat16), e(65536, dtype=T.int64), 50304, -1)],
}


ADDRESSES = {"sort_rows_kernel": 128}                                    # bytes, of places in shared memory: so three CTAs fit


@pytest.mark.parametrize("name", CALLS)
def test_no_keys_are_spilled(name):
    specs = launched(CALLS[name])
    assert specs
    vectors = "ld.global.v4.b32", "st.global.v4.b32"
    for spec, code in zip(specs, machine_code.used(specs, 90, texts=vectors)):
        assert code["spills"] <= ADDRESSES.get(spec.kernel.__name__, 0), (spec, code)
        if spec.kernel.__name__ == "segments_kernel":
            assert all(code[text] for text in vectors), (spec, code)
