"""Kernels that begin before the one in front of them has ended, as the NVIDIA driver is asked to start them."""
from test_nvidia_stub import function, read, stub  # noqa: F401


def test_kernels_that_begin_early_have_a_configuration_for_each_grid_and_stream(stub):  # noqa: F811
    fake, _ = stub
    k = function(stub, {"n": "i32"}, pdl=True)
    for grid, stream in ((3, 0x51), (3, 0x51), (4, 0x51), (3, 0x52)):
        k.launch(grid, 2, 1, stream, [grid])
        name, config, handle, address, extra = fake.calls[-1]
        assert (name, handle, extra) == ("cuLaunchKernelEx", 0x91, 0) and read(address, 0, "i") == grid
        assert (config.gridDimX, config.gridDimY, config.hStream, config.numAttrs) == (grid, 2, ("stream", stream), 1)
    configs = [call[1] for call in fake.named("cuLaunchKernelEx")]
    assert configs[0] is configs[1] and len(set(map(id, configs))) == 3
