"""A network that learns handwritten digits and can tell little about any one of them: differentially private SGD, by gradients per sample.

    pip install scikit-learn                                       # for its 1797 digits of 8x8 pixels
    python tutorials/private_digits.py

No single image may steer a step: each one's gradient is clipped to the length CLIP, then noise of that size is added to their sum (Abadi et
al., "Deep Learning with Differential Privacy", 2016, https://arxiv.org/abs/1607.00133). That needs the gradient of every image, which a
usual backward pass has already summed up. `torch.func` has it: `grad` makes a function of one image and its label into one that gives its
gradients, and `vmap` makes that a function of a batch, which runs once for all images. The network is that of digits_cnn.py.
Change the import below (and there) to `import torch` and the same file runs on PyTorch.
"""
import argparse
import math

from digits_cnn import Net, accuracy, datasets

import tritorch as torch
from tritorch.func import functional_call, grad_and_value, vmap
from tritorch.nn import functional as F

CLIP, DELTA = 1.0, 1e-4                                              # the largest gradient of one image; the chance that a promise fails


def gradients_of_each(model, parameters, images, labels):
    """{name: the gradient of a parameter for every image, along the first dim}, and the loss of every image."""

    def loss(parameters, image, label):
        return F.cross_entropy(functional_call(model, parameters, (image[None],)), label[None])

    return vmap(grad_and_value(loss), in_dims=(None, 0, 0), randomness="different")(parameters, images, labels)


def private_gradients(gradients, noise):
    """Their sum, no image's part longer than CLIP, with normal noise of `noise` times that length."""
    squares = [g.flatten(1).square().sum(1) for g in gradients.values()]
    scale = (CLIP / (sum(squares).sqrt() + 1e-6)).clamp(max=1.0)         # one for each image
    return {name: torch.einsum("n,n...->...", scale, g) + noise * CLIP * torch.randn(g.shape[1:], device=g.device)
            for name, g in gradients.items()}


def epsilon(rate, noise, steps):
    """After so many steps, each with every image in it at this rate: what anybody can learn of one image is a factor e^ε of how likely
    things seem, but for the chance DELTA. Rényi differential privacy of a sampled Gaussian, by its integer orders (Mironov, Talwar and
    Zhang, 2019, https://arxiv.org/abs/1908.10530, section 3.3), turned into ε (Mironov, 2017, proposition 3)."""
    found = []
    for order in range(2, 64):
        terms = [math.log(math.comb(order, k)) + k * math.log(rate) + (order - k) * math.log1p(-rate) + (k * k - k) / (2 * noise**2)
                 for k in range(order + 1)]
        top = max(terms)
        moment = top + math.log(sum(math.exp(t - top) for t in terms))
        found.append((steps * moment + math.log(1 / DELTA)) / (order - 1))
    return min(found)


def train(model, dataset, device, steps, rate, noise):
    """SGD with momentum; each step takes each image with the chance `rate`. Yields the step and the mean loss of its images."""
    images, labels = [x.to(device) for x in dataset.tensors]
    parameters = dict(model.named_parameters())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    model.train()
    for step in range(1, steps + 1):
        chosen = torch.rand(len(images)) < rate
        picked = chosen.nonzero().squeeze(1).to(device)
        frozen = {name: p.detach() for name, p in parameters.items()}
        gradients, losses = gradients_of_each(model, frozen, images[picked], labels[picked])
        for name, g in private_gradients(gradients, noise).items():
            parameters[name].grad = g / (rate * len(images))
        optimizer.step()
        yield step, losses.mean().item()


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--rate", type=float, default=0.1, help="the chance of an image to be in a step")
    parser.add_argument("--noise", type=float, default=1.5, help="the noise over the largest gradient of one image")
    args = parser.parse_args(arguments)
    torch.manual_seed(0)
    model = Net().to(args.device)
    learn, test = datasets()
    for step, loss in train(model, learn, args.device, args.steps, args.rate, args.noise):
        if step % 25 == 0 or step == args.steps:
            print(f"step {step} loss {loss:.3f}, ε = {epsilon(args.rate, args.noise, step):.2f} at δ = {DELTA}", flush=True)
    print(f"accuracy on {len(test)} digits never seen: {100 * accuracy(model, test, args.device):.1f} %")


if __name__ == "__main__":
    main()
