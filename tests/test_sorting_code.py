"""Machine code of large sorts, selections and sums over indices: nothing is spilled but addresses, memory is read in vectors."""
import pytest

pytest.importorskip("triton")

from test_product_code import launched  # noqa: E402

import tritorch as T  # noqa: E402
from tritorch.cuda.compiler import CompileError, compile_many, resources  # noqa: E402
from tritorch.ops.picking import table_gradient  # noqa: E402
from tritorch.ops.sorting import sorted_first  # noqa: E402

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
    for spec, compiled in zip(specs, compile_many(specs, [90], workers=2)):
        assert not isinstance(compiled, CompileError), str(compiled)
        used = resources(compiled)
        assert used["spills"] <= ADDRESSES.get(spec.kernel.__name__, 0), (spec, used)
        if spec.kernel.__name__ == "segments_kernel":
            assert "ld.global.v4.b32" in compiled.ptx and "st.global.v4.b32" in compiled.ptx
