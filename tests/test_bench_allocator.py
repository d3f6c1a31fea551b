"""The caching allocator needs no more memory than PyTorch's rules would, and asks the driver no more often."""
import pytest

pytest.importorskip("triton")

from bench import allocator  # noqa: E402
from bench.caching import TorchRules  # noqa: E402

MIB = 1 << 20


def test_torchs_rules():
    rules = TorchRules()
    small, medium, large = [rules.allocate(n) for n in (1, 2 * MIB, 19 * MIB)]
    assert (small.size, medium.size, large.size) == (512, 2 * MIB, 20 * MIB)       # 1 MiB is not worth a cut
    assert rules.reserved == (2 + 20 + 20) * MIB and rules.allocated == 512 + 22 * MIB and rules.driver_calls == 3
    second = rules.allocate(3 * MIB)
    assert second.ptr == medium.ptr + medium.size and rules.driver_calls == 3
    rules.give_back(medium)
    rules.give_back(second)
    assert rules.allocate(8 * MIB).ptr == medium.ptr                               # neighbours were joined
    rules.give_back(large)
    rules.total = rules.reserved + 2 * MIB
    rules.allocate(21 * MIB)                                                       # needs the 20 that are cached back
    assert rules.reserved == (2 + 20 + 22) * MIB and rules.driver_calls == 5
    with pytest.raises(MemoryError):
        rules.allocate(21 * MIB)
    assert rules.peak_allocated == 512 + 30 * MIB and rules.peak_reserved == 44 * MIB


@pytest.mark.parametrize("seed", range(4))
def test_random_requests_take_no_more_memory_than_under_torchs_rules(seed):
    ours, theirs = allocator.both(allocator.random_tape(seed))
    assert ours[0] <= theirs[0] and ours[1] <= 1.03 * theirs[1] and ours[2] <= 1.03 * theirs[2]


def test_a_step_of_resnet_takes_no_more_memory_and_after_warm_up_no_driver_call():
    events = allocator.steps_of(allocator.resnet50(2, True))
    assert sum(nbytes is not None for _, nbytes, _ in events) > 1000
    ours, theirs = allocator.both(events)
    assert ours[0] <= theirs[0] and ours[1] <= 1.02 * theirs[1] and ours[3] == theirs[3] == 0
