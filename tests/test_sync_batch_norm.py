"""SyncBatchNorm: parts of a batch in several processes have the statistics, results and gradients of the whole batch."""
import numpy as np
import pytest
from worlds import world

import tritorch as torch
from tritorch import distributed as dist
from tritorch import nn

SHAPES = [((7, 3), (3, 4)), ((7, 3, 5), (5, 2)), ((6, 4, 3, 2), (2, 4)), ((6, 4, 3, 2), (0, 6)), ((5, 2), (1, 4)),
          ((4, 2, 2, 1, 3), (1, 3))]
KINDS = [{}, {"bias": False}, {"affine": False}, {"momentum": None}, {"track_running_stats": False}, {"eps": 0.1, "momentum": 0.5}]
CASES = [(SHAPES[k], options) for k, options in enumerate(KINDS)] + [(shape, {}) for shape in SHAPES]


def numbers(shape, seed):
    return torch.from_numpy(np.random.default_rng(seed).normal(2, 3, shape))


def normalized(kind, shape, start, stop, dtype, options):
    """What a norm of this kind does with a part of the batch: results, gradient, those of weight and bias, statistics."""
    norm = kind(shape[1], dtype=torch.float32 if dtype is torch.bfloat16 else dtype, **options)
    norm._check_input_dim = lambda x: None
    with torch.no_grad():
        for k, p in enumerate(norm.parameters()):
            p.copy_(numbers(shape[1:2], 5 + k))
    x, g = [numbers(shape, seed)[start:stop].to(dtype) for seed in (0, 1)]
    x.requires_grad_()
    for _ in range(2):
        y = norm(x)
    y.backward(g)
    norm.train(not norm.track_running_stats)
    evaluated = norm(x) if norm.track_running_stats else y
    return [t.detach().double().numpy() for t in (y, x.grad, evaluated, *[p.grad for p in norm.parameters()], *norm.buffers())]


def parts(rank, size, dtype):
    out = []
    for (shape, sizes), options in CASES:
        start = sum(sizes[:rank])
        out.append(normalized(nn.SyncBatchNorm, shape, start, start + sizes[rank], dtype, options))
    return out


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
@pytest.mark.filterwarnings("ignore")
def test_parts_are_normalized_as_the_whole(dtype, tmp_path):
    dtype = getattr(torch, dtype)
    tolerance = {torch.float64: 1e-12, torch.float32: 2e-5, torch.bfloat16: 2e-2}[dtype]
    for (a, b), ((shape, _), options) in zip(zip(*world(parts, 2, tmp_path, dtype)), CASES):
        whole = normalized(nn.BatchNorm1d, shape, 0, shape[0], dtype, options)
        affine = 2 * options.get("affine", True) - (not options.get("bias", True))
        for k, (one, other, wanted) in enumerate(zip(a, b, whole)):
            got = np.concatenate([one, other]) if k < 3 else one + other if k < 3 + affine else one
            np.testing.assert_allclose(got, wanted, rtol=tolerance, atol=tolerance * max(1, abs(wanted).max(initial=0)))
            assert k < 3 + affine or np.array_equal(one, other)


def curvature(rank, size, kind):
    """The gradients of the norm of gradients."""
    whole = size == 1
    norm = kind(3, dtype=torch.float64)
    norm.weight.data = numbers((3,), 5)
    x, g = [numbers((6, 3, 2), seed)[slice(0, 6) if whole else slice(rank * 2, 2 + rank * 4)] for seed in (0, 1)]
    x.requires_grad_()
    y = norm(x)
    gx, gw = torch.autograd.grad((y * g).sum(), (x, norm.weight), create_graph=True)
    (gx.square().sum() + (gw * numbers((3,), 7)).sum()).backward()
    return x.grad.numpy(), norm.weight.grad.numpy()


def test_gradients_of_gradients(tmp_path):
    (a, aw), (b, bw) = world(curvature, 2, tmp_path, nn.SyncBatchNorm)
    x, w = curvature(0, 1, nn.BatchNorm1d)
    np.testing.assert_allclose(np.concatenate([a, b]), x, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(aw + bw, w, rtol=1e-10, atol=1e-12)


def halves(rank, size):
    group = [dist.new_group([0, 1]), dist.new_group([2, 3])][rank // 2]
    net = nn.SyncBatchNorm.convert_sync_batchnorm(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)), group)
    norm = net[1]
    x = torch.full((1, 2), float(rank))
    norm(x)
    single = nn.SyncBatchNorm(2, process_group=[dist.new_group([r]) for r in range(4)][rank])
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        single(x)
    with pytest.raises(ValueError, match="2 dims or more"):
        norm(torch.ones(2))
    return norm.running_mean.tolist(), norm.num_batches_tracked.item()


def test_groups_have_statistics_of_their_own(tmp_path):
    found = world(halves, 4, tmp_path)
    assert found[0] == found[1] and found[2] == found[3]
    np.testing.assert_allclose([found[0][0], found[2][0]], [[0.05] * 2, [0.25] * 2], rtol=1e-6)
    assert found[0][1] == 1


def test_one_process_needs_no_other():
    x = torch.randn(4, 3)
    for begun in (False, True):
        if begun:
            dist.init_process_group("gloo", rank=0, world_size=1)
        try:
            assert torch.equal(nn.SyncBatchNorm(3)(x), nn.BatchNorm1d(3)(x))
        finally:
            if begun:
                dist.destroy_process_group()
