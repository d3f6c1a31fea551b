"""A Fourier neural operator learns what heat, wind and friction make of a wave: complex tensors, `fft` and complex parameters.

The data are solutions of Burgers' equation u_t + u u_x = ν u_xx on a ring, by a pseudo-spectral method written with the same `fft`.
The network (Li et al., "Fourier Neural Operator for Parametric Partial Differential Equations", 2021) multiplies the lowest frequencies
of its channels by complex weights. What it learns on 64 points holds on 256, for which it was never trained.

    python tutorials/fourier_operator.py
"""
import argparse
import math
import time

import tritorch as torch
from tritorch import nn

POINTS, MODES, WIDTH, VISCOSITY, END = 64, 12, 24, 0.05, 0.5
device = "cuda" if torch.cuda.is_available() else "cpu"


def waves(count, points):
    """Smooth random starts, (count, points): a few sines of random heights and places."""
    k = torch.arange(1, 5.0)
    height, shift = torch.randn(count, 4, 1) / k[:, None], 2 * math.pi * torch.rand(count, 4, 1)
    x = 2 * math.pi * torch.arange(points) / points
    return (height * torch.sin(k[:, None] * x + shift)).sum(1).to(device)


def burgers(u, steps=200):
    """u at time END: in frequencies the friction is a factor, and the wind, -(u²)ₓ / 2, goes by Heun's method."""
    points, dt = u.shape[-1], END / steps
    k = torch.fft.rfftfreq(points, 1 / points, device=u.device)
    friction, kept = torch.exp(-VISCOSITY * k**2 * dt), k < points / 3   # what two thirds of the frequencies make does not fold back
    wind = -0.5j * k * kept

    def slope(spectrum):
        return wind * torch.fft.rfft(torch.fft.irfft(spectrum, points) ** 2)

    spectrum = torch.fft.rfft(u)
    for _ in range(steps):
        first = slope(spectrum)
        second = slope(friction * (spectrum + dt * first))
        spectrum = friction * (spectrum + dt / 2 * first) + dt / 2 * second
    return torch.fft.irfft(spectrum, points)


class SpectralConv(nn.Module):
    """A convolution around the whole ring: the lowest frequencies times a complex matrix each."""

    def __init__(self, width, modes):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(modes, width, width, dtype=torch.complex64) / width)

    def forward(self, x):                                                # (batch, width, points)
        spectrum = torch.fft.rfft(x)
        modes = self.weight.shape[0]
        low = (spectrum[..., :modes].permute(2, 0, 1) @ self.weight).permute(1, 2, 0)
        return torch.fft.irfft(torch.cat([low, torch.zeros_like(spectrum[..., modes:])], -1), x.shape[-1])


class FourierOperator(nn.Module):
    def __init__(self, width=WIDTH, modes=MODES, layers=3):
        super().__init__()
        self.lift, self.project = nn.Conv1d(1, width, 1), nn.Sequential(nn.Conv1d(width, 64, 1), nn.GELU(), nn.Conv1d(64, 1, 1))
        self.spectral = nn.ModuleList(SpectralConv(width, modes) for _ in range(layers))
        self.local = nn.ModuleList(nn.Conv1d(width, width, 1) for _ in range(layers))

    def forward(self, u):                                                # (batch, points)
        x = self.lift(u.unsqueeze(1))
        for spectral, local in zip(self.spectral, self.local):
            x = x + nn.functional.gelu(spectral(x) + local(x))
        return self.project(x).squeeze(1)


def error(prediction, truth):
    """The mean of ‖prediction - truth‖ / ‖truth‖."""
    return (torch.linalg.vector_norm(prediction - truth, dim=-1) / torch.linalg.vector_norm(truth, dim=-1)).mean()


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=300, help="batches of 32 (default 300)")
    steps = parser.parse_args(arguments).steps
    torch.manual_seed(0)
    starts, fine = waves(512, POINTS), waves(32, 4 * POINTS)
    with torch.no_grad():
        ends, fine_ends = burgers(starts), burgers(fine, 800)
    model = FourierOperator().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 4e-3, total_steps=steps)
    began = time.perf_counter()
    for step in range(steps):
        picked = torch.randint(512, (32,), device=device)
        loss = error(model(starts[picked]), ends[picked])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if step % 100 == 99 or step == steps - 1:
            print(f"step {step + 1}: training error {loss.item():.3f}")
    with torch.no_grad():
        coarse, finer, still = error(model(fine[:, ::4]), fine_ends[:, ::4]), error(model(fine), fine_ends), error(fine, fine_ends)
    print(f"{time.perf_counter() - began:.1f} s; error on new waves {coarse.item():.3f}, on four times as many points {finer.item():.3f}; "
          f"of leaving them as they were {still.item():.3f}")
    return coarse.item(), finer.item(), still.item()


if __name__ == "__main__":
    main()
