"""The geometry of elementwise loops, on layouts that each take another way through the kernel."""
import numpy as np
import pytest

import tritorch as torch
from tritorch.cuda import compiler, driver
from tritorch.cuda.dry import DryDriver
from tritorch.ops.tiling import programs, tile_candidates, walk
from tritorch.shape import contiguous_strides

LAYOUTS = {
    "transposed": lambda x: x.view(96, 70).t(),
    "reversed": lambda x: x.view(7, 10, 96).permute(2, 1, 0),
    "heads": lambda x: x.view(5, 12, 16, 7).transpose(1, 2),
    "to channels last": lambda x: x.view(4, 42, 8, 5).permute(0, 2, 3, 1),
    "from channels last": lambda x: x.view(4, 8, 5, 42).permute(0, 3, 1, 2),
    "few columns": lambda x: x.view(2240, 3)[:, :2],
    "few rows turned": lambda x: x.view(2240, 3).t(),
    "odd rows": lambda x: x.view(70, 96)[1:, :-1],
    "even rows": lambda x: x.view(84, 80)[:, 8:],
    "every other": lambda x: x.view(70, 96)[::2, 1::3],
    "a row": lambda x: x[:96].expand(50, 96),
    "a column": lambda x: x[:50, None].expand(50, 96),
    "one": lambda x: x[3].expand(50, 96),
    "pixels": lambda x: x.view(7, 2, 2, 12, 20).permute(0, 3, 1, 4, 2),
    "pixels back": lambda x: x.view(7, 12, 2, 20, 2).permute(0, 2, 4, 1, 3),
    "patches": lambda x: x.view(5, 7, 8, 6, 4).permute(0, 3, 1, 2, 4),
    "doubled": lambda x: x[:420].view(7, 3, 1, 20, 1).expand(7, 3, 2, 20, 2),
    "gaps everywhere": lambda x: x.view(7, 8, 5, 6, 4)[1:, ::2, 1:, 1:, 1:],
    "channels": lambda x: x[:6].view(1, 6, 1).expand(4, 6, 50),
}


@pytest.fixture(params=["simulated", "hardware"])
def tiles(request, monkeypatch, cuda):
    monkeypatch.setattr(driver, "hardware_tiles", request.param == "hardware")


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16, torch.uint8])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_operands_and_destinations_of_any_layout(layout, kind, tiles):
    x = torch.arange(6720, device="cuda").to(kind)
    view, expected = LAYOUTS[layout](x), LAYOUTS[layout](x.cpu())
    np.testing.assert_array_equal(view.contiguous().cpu().float().numpy(), expected.float().numpy())
    dense = torch.arange(view.numel(), device="cuda").to(kind).view(view.shape)
    for a, b in ((view, dense), (dense, view), (view, view)):
        np.testing.assert_array_equal((a + b).cpu().float().numpy(), (a.cpu() + b.cpu()).float().numpy())
    if 0 not in view.strides:
        view.copy_(dense)
        expected.copy_(dense.cpu())
        np.testing.assert_array_equal(x.cpu().float().numpy(), _whole(expected, x))


def _whole(view, like):
    """The memory under a view, as numbers."""
    return torch.as_strided(view, like.shape, (1,), 0).float().numpy()


def strides_of(*shape):
    return contiguous_strides(shape)


def test_the_columns_are_the_destinations_and_the_rows_those_of_a_transposed_operand():
    way = walk((8, 32, 16, 64), strides_of(8, 32, 16, 64), (32768, 1, 2048, 32))
    assert way.transposed and way.shape == (8, 32, 1024) and way.strides == ((32768, 1024, 1), (32768, 1, 32))
    assert way.forms == (1 + 2 + 8, 1 + 2 + 4)


def test_channels_last_on_both_sides_is_one_run():
    way = walk((8, 32, 16, 64), (32768, 1, 2048, 32), (32768, 1, 2048, 32))
    assert way.shape == (1, 8 * 32 * 16 * 64) and not way.transposed


def test_rows_too_few_for_a_program_take_in_the_outer_dims():
    way = walk((32, 64, 56, 2, 56, 2), strides_of(32, 64, 56, 2, 56, 2), (200704, 3136, 56, 0, 1, 0))
    assert way.rows == 32 * 64 * 56 * 2 * 56 and way.shape == (32 * 64 * 56, 2, 56, 2)
    assert way.forms == (1 + 2 + 8 + 16 + 32, 1 + 16), "the destination goes on evenly, the doubled operand does not"
    assert programs(way, {"BLOCK_M": 512, "BLOCK_N": 2}) == 32 * 64 * 56 * 2 * 56 // 512
    assert walk((8, 24, 32), strides_of(8, 24, 32), (4096, 64, 1)).rows == 24, "768 elements are enough"


def test_what_divides_the_sizes_is_known_where_16_does_not():
    assert walk((64, 1000), (1000, 1), (0, 1)).even == (1, 8)
    assert walk((64, 1024), (1024, 1), (0, 1)).even == (1, 1)
    assert walk((64, 1001), (1001, 1), (0, 1)).even == (1, 1)


def test_offsets_past_31_bits_are_wide():
    assert not walk((1 << 10, 1 << 10), (1 << 20, 1), (1 << 10, 1)).wide
    assert walk((1 << 10, 1 << 10), (1 << 22, 1), (1 << 10, 1)).wide
    assert not walk((1 << 10, 3, 1 << 10), (1 << 24, 1 << 14, 1), (1 << 22, 1 << 12, 2)).wide, "outer offsets are 64 bits anyway"


def test_candidates_fit_the_operands(monkeypatch, cuda):
    monkeypatch.setattr(driver, "hardware_tiles", True)
    for shape, strides in (((3, 100000), (1, 3)), ((100000, 3), (1, 100000)), ((5, 7), (7, 1)), ((4096, 4096), (1, 4096))):
        way = walk(shape, strides_of(*shape), strides)
        for c in tile_candidates(way, 4):
            assert c["BLOCK_M"] * c["BLOCK_N"] <= 8192
            assert c["BLOCK_M"] < 2 * way.shape[-2] and c["BLOCK_N"] < 2 * way.shape[-1]


def test_an_odd_number_of_elements_is_moved_as_fast_as_an_even_one():
    machine_code = pytest.importorskip("machine_code")
    with driver.using(DryDriver(90)), compiler.recording() as record:
        x = torch.empty(1025, 1023, dtype=torch.bfloat16, device="cuda")
        torch.where(x.clone() + x > 0, x, 0.0)
    counts = {spec.kernel.__name__: code["ld.global.v4"]
              for spec, code in zip(record.values(), machine_code.used(record.values(), 90, texts=["ld.global.v4"]))}
    assert set(counts) == {"unary_flat", "binary_flat", "ternary_flat"} and all(counts.values())


@pytest.mark.parametrize("kind", [torch.float64, torch.float32, torch.bfloat16, torch.int64, torch.bool])
def test_odd_numbers_of_elements(kind, tiles):
    x = (torch.arange(66_001) % 7 - 3).to(kind)
    there = x.cuda()
    whole = torch.zeros(66_003, dtype=kind, device="cuda")
    whole[1:-1].copy_(there)
    np.testing.assert_array_equal(whole.cpu().float().numpy(), np.pad(x.float().numpy(), 1))
    for call in (lambda x: torch.where(x > 0, x, 1), lambda x: x.flip(0) == x, lambda x: x * x, lambda x: torch.where(x != 0, 2, x)):
        np.testing.assert_array_equal(call(there).cpu().float().numpy(), call(x).float().numpy())
