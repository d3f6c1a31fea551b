"""Functions of one sample made functions of a batch: `torch.func.vmap` and what is built on it, beside the same function called for each
sample and beside PyTorch's vmap, on the CPU. Inputs and weights are the same."""
import importlib
import importlib.util
import math

import numpy as np

import tritorch
from bench import rows
from bench.timing import PAUSE, race

SIDES = {"vmap": "vmap", "each": "a call for each sample"}


def mlp(lib, p, x):
    for w, b in zip(p[0:4:2], p[1:4:2]):
        x = (x @ w.T + b).tanh()
    return x @ p[4].T + p[5]


def convnet(lib, p, x):
    F = lib.nn.functional
    x = F.max_pool2d(F.conv2d(x, p[0], p[1]).relu(), 2)
    x = F.max_pool2d(F.conv2d(x, p[2], p[3]).relu(), 2)
    return x.flatten(1) @ p[4].T + p[5]


def transformer(lib, p, x):
    """One block with 4 heads of 16."""
    F = lib.nn.functional
    q, k, v = (F.layer_norm(x, (64,), p[0]) @ p[1]).unflatten(-1, (3, 4, 16)).permute(1, 2, 0, 3)
    x = x + F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(0, 1).flatten(1) @ p[2]
    return x + F.gelu(F.layer_norm(x, (64,), p[3]) @ p[4]) @ p[5]


MLP = [(256, 784), (256,), (256, 256), (256,), (10, 256), (10,)]
CONVNET = [(8, 1, 3, 3), (8,), (16, 8, 3, 3), (16,), (10, 400), (10,)]
BLOCK = [(64,), (64, 192), (64, 64), (64,), (64, 256), (256, 64)]


def of_classes(net):
    """The loss of one sample of a net of batches."""
    def loss(lib, p, x, y):
        return lib.nn.functional.cross_entropy(net(lib, p, x[None]), y[None])

    return loss


def per_sample(loss):
    """(by vmap, by a call for each sample): the gradient of the weights for every sample."""
    def by_vmap(lib, p, x, y):
        return lib.func.vmap(lib.func.grad(lambda p, x, y: loss(lib, p, x, y)), (None, 0, 0))(p, x, y)

    def each(lib, p, x, y):
        one = lib.func.grad(lambda p, x, y: loss(lib, p, x, y))
        return [lib.stack(column) for column in zip(*[one(p, x[k], y[k]) for k in range(len(x))])]

    return by_vmap, each


def ensemble(lib, p, x, y):
    return lib.func.vmap(lambda p, x: mlp(lib, p, x), (0, None))(p, x)


def ensemble_each(lib, p, x, y):
    return lib.stack([mlp(lib, [w[k] for w in p], x) for k in range(len(p[0]))])


def jacobian(lib, p, x, y):
    return lib.func.jacrev(lambda x: mlp(lib, p, x))(x)


def jacobian_each(lib, p, x, y):
    made, pull = lib.func.vjp(lambda x: mlp(lib, p, x), x)
    return lib.stack([pull(unit)[0] for unit in lib.eye(made.numel())])


def hessian(lib, p, x, y):
    return lib.func.hessian(lambda x: mlp(lib, p, x).logsumexp(-1))(x)


def hessian_each(lib, p, x, y):
    slope = lib.func.grad(lambda x: mlp(lib, p, x).logsumexp(-1))
    return lib.stack([lib.func.jvp(slope, (x,), (unit,))[1] for unit in lib.eye(x.numel())])


def cases():
    """{name: (shapes of the weights, shape of the inputs, by vmap, by a call for each sample)}"""
    small = [(64, 64), (64,), (64, 64), (64,), (10, 64), (10,)]
    return {
        "gradients of an MLP 784-256-256-10 for 64 samples": (MLP, (64, 784), *per_sample(of_classes(mlp))),
        "gradients of a convnet for 32 images of 28 x 28": (CONVNET, (32, 1, 28, 28), *per_sample(of_classes(convnet))),
        "gradients of a transformer block for 16 sequences of 64": (
            BLOCK, (16, 64, 64), *per_sample(lambda lib, p, x, y: transformer(lib, p, x).square().mean())),
        "an ensemble of 16 MLPs, 64 samples": ([(16, *s) for s in small], (64, 64), ensemble, ensemble_each),
        "Jacobian of an MLP 784-256-256-10": (MLP, (784,), jacobian, jacobian_each),
        "Hessian of an MLP 64-64-64-10": (small, (64,), hessian, hessian_each),
    }


def main(args):
    torch = importlib.import_module("torch") if importlib.util.find_spec("torch") else None
    found, generator = [], np.random.default_rng(0)
    for name, (weights, shape, *ways) in cases().items():
        if not rows.asked(args.only, name):
            continue
        arrays = [generator.standard_normal(s, dtype="float32") / math.sqrt(s[-1]) for s in weights]
        x, y = generator.standard_normal(shape, dtype="float32"), generator.integers(0, 10, shape[0])
        sides, theirs = {}, {"torch": (torch, ways[0])} if torch else {}
        for side, (lib, way) in {"vmap": (tritorch, ways[0]), "each": (tritorch, ways[1]), **theirs}.items():
            inputs = [lib.from_numpy(a.copy()) for a in arrays], lib.from_numpy(x.copy()), lib.from_numpy(y.copy())
            sides[side] = lambda way=way, lib=lib, inputs=inputs: way(lib, *inputs)
        times = race(sides, rounds=3 if args.quick else 7, pause=PAUSE)
        for side, words in SIDES.items():
            found.append(rows.row(f"vmap: {name}, {words}", "ms", 1e3 * times[side], 1e3 * times["torch"] if torch else None, "torch"))
        print(f"{name}: " + ", ".join(f"{side} {1e3 * t:.2f} ms" for side, t in times.items()), flush=True)
    versions = [f"torch {torch.__version__}"] if torch else []
    rows.record("vmap", found, "python -m bench vmap", *versions, keep=not (args.quick or args.only))
