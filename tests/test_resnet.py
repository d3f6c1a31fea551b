"""ResNet: parameters as torchvision names them, the same numbers in both memory formats and on both devices, no copies, and it learns."""
import numpy as np
import pytest

import tritorch as T
from bench import resnet
from bench.models import twin

SMALL = dict(blocks=(1, 1), classes=10, width=8, channels=1)


def small(library="tritorch", device="cpu", last=False):
    program = twin.load(resnet.MODEL, library)
    torch = program.torch
    torch.manual_seed(0)
    return program, program.ResNet(**SMALL).to(device).to(memory_format=torch.channels_last if last else torch.contiguous_format)


def test_names_and_shapes_are_torchvisions():
    model = twin.load(resnet.MODEL).ResNet()
    state = model.state_dict()
    shapes = {"conv1.weight": (64, 3, 7, 7), "bn1.running_var": (64,), "layer1.0.downsample.0.weight": (256, 64, 1, 1),
              "layer2.0.conv2.weight": (128, 128, 3, 3), "layer4.2.bn3.weight": (2048,), "fc.weight": (1000, 2048)}
    assert {name: tuple(state[name].shape) for name in shapes} == shapes
    assert len(state) == 320 and sum(p.numel() for p in model.parameters()) == 25_557_032
    assert model.layer2[0].conv2.stride == (2, 2) and model.layer2[0].conv1.stride == (1, 1)


def steps(library="tritorch", device="cpu", last=False, count=3, start=None):
    """Losses, gradients of the last step and their strides, from the same weights and images."""
    program, model = small(library, device, last)
    torch = program.torch
    if start is not None:
        model.load_state_dict({name: torch.from_numpy(value.copy()) for name, value in start.items()})
    draw = np.random.default_rng(0)
    images = torch.from_numpy(draw.standard_normal((4, 1, 20, 20)).astype(np.float32)).to(device)
    images = images.to(memory_format=torch.channels_last if last else torch.contiguous_format)
    labels = torch.from_numpy(draw.integers(0, 10, 4)).to(device)
    optimizer, losses = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9), []
    for _ in range(count):
        losses.append(float(program.train_step(model, optimizer, images, labels)))
    torch.nn.functional.cross_entropy(model(images), labels).backward()
    gradients = {name: p.grad for name, p in model.named_parameters()}
    strides = {name: tuple(g.stride()) for name, g in gradients.items()}
    return losses, {name: g.detach().cpu().numpy() for name, g in gradients.items()}, strides


def start():
    return {name: value.numpy().copy() for name, value in small()[1].state_dict().items()}


def agree(one, other):
    np.testing.assert_allclose(one[0], other[0], rtol=2e-4, atol=2e-4)
    for name, want in other[1].items():
        np.testing.assert_allclose(one[1][name], want, rtol=5e-3, atol=5e-4 * max(1.0, np.abs(want).max()), err_msg=name)


def test_both_formats_give_the_same_numbers():
    agree(steps(last=True), steps())


def test_pytorch_gives_the_same_numbers_and_layouts():
    pytest.importorskip("torch")
    ours, theirs = steps(last=True, start=start()), steps("torch", last=True, start=start())
    agree(ours, theirs)
    assert ours[2] == theirs[2]


def test_the_simulated_gpu_gives_the_same_numbers(cuda):
    agree(steps(device="cuda", last=True, count=1), steps(last=True, count=1))


def test_a_step_in_channels_last_order_copies_nothing():
    """But for the casts of autocast (images, weights, their gradients) and the three channels of the images, which become four."""
    pytest.importorskip("triton")
    for last in (True, False):
        launches, copies, _ = resnet.counted(2, 64, last, blocks=(1, 1))
        same = [(x, out) for _, x, out in copies if x.split("[")[0] == out.split("[")[0] and "[2, " in x and "[2, 3, " not in x]
        assert launches and copies and bool(same) is not last, same


def test_a_compiled_step_rectifies_in_the_norms():
    pytest.importorskip("triton")
    for last in (True, False):
        eager, compiled = [resnet.counted(2, 64, last, blocks=(1, 1), compiled=c)[0] for c in (False, True)]
        assert {x.kernel for x in eager if x.operator == "relu"} == {"pointwise.unary_flat"}
        assert {x.kernel for x in compiled if x.operator == "relu"} == {"batchnorm.apply_kernel"} and len(compiled) < len(eager)


def test_learns_to_read_digits():
    datasets = pytest.importorskip("sklearn.datasets")
    data = datasets.load_digits()
    images = T.from_numpy(data.images.astype(np.float32) / 8 - 1).unsqueeze(1).to(memory_format=T.channels_last)
    labels = T.from_numpy(data.target.astype(np.int64))
    images = T.nn.functional.interpolate(images, scale_factor=2)
    program, model = small(last=True)
    optimizer, order = T.optim.AdamW(model.parameters(), lr=4e-3), np.random.default_rng(0)
    for _ in range(100):
        batch = T.from_numpy(order.integers(0, 1500, 32))
        program.train_step(model, optimizer, images[batch], labels[batch])
    model.eval()
    with T.no_grad():
        right = (model(images[1500:]).argmax(1) == labels[1500:]).float().mean().item()
    assert right > 0.8
