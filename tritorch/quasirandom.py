"""Sequences that fill the unit cube more evenly than random numbers do: torch.quasirandom."""
import warnings

import numpy as np

from tritorch.dtype import get_default_dtype
from tritorch.errors import check
from tritorch.interop import from_numpy
from tritorch.ops.random import randint

__all__ = ["SobolEngine"]


class SobolEngine:
    """Points of a Sobol sequence in [0, 1)^dimension, on the CPU, with the direction numbers of S. Joe and F. Y. Kuo (2008), those of
    scipy.stats.qmc.Sobol. dimension: from 1 to MAXDIM, 21201, else ValueError.

    scramble: lower triangular matrices and a shift by chance, both of bits (J. Matoušek, "On the L2-discrepancy for anchored boxes", 1998);
    seed says which, None: the generator of `tritorch.manual_seed`. Scrambled points are not those that PyTorch gives for a seed.

    >>> import tritorch as torch
    >>> engine = torch.quasirandom.SobolEngine(dimension=2)
    >>> engine.draw(3)
    tensor([[0.0000, 0.0000],
            [0.5000, 0.5000],
            [0.7500, 0.2500]])
    """

    MAXBIT, MAXDIM = 30, 21201

    def __init__(self, dimension, scramble=False, seed=None):
        from scipy.stats.qmc import Sobol  # its import takes longer than tritorch's

        known = isinstance(dimension, int) and 1 <= dimension <= self.MAXDIM
        check(known, "SobolEngine", f"a dimension from 1 to {self.MAXDIM}", dimension, error=ValueError)
        self.dimension, self.scramble, self.seed, self.num_generated = dimension, scramble, seed, 0
        number = (seed if seed is not None else randint(2**31, ()).item()) if scramble else 0
        self._sequence = Sobol(dimension, scramble=bool(scramble), bits=self.MAXBIT, seed=number % 2**64)

    def draw(self, n=1, out=None, dtype=None):
        """The next n points, (n, dimension), of the default dtype if none is given."""
        check(isinstance(n, int) and n >= 0, "SobolEngine.draw", "n >= 0", n, error=ValueError)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)                 # that powers of two are balanced best: draw_base2 minds that
            points = self._sequence.random(n) if n else np.empty((0, self.dimension))       # scipy's cannot draw none at first
        self.num_generated += n
        points = from_numpy(points).to(dtype or get_default_dtype())
        return points if out is None else out.resize_(points.shape).copy_(points)

    def draw_base2(self, m, out=None, dtype=None):
        """The next 2^m points; ValueError unless all that were drawn are then a power of two, for which the points are balanced."""
        after = self.num_generated + 2**m
        check(not after & (after - 1), "SobolEngine.draw_base2", "a power of two as the number of all points",
              f"{self.num_generated} + 2**{m} = {after}", use="draw", error=ValueError)
        return self.draw(2**m, out, dtype)

    def reset(self):
        """Begin again with the first point."""
        self._sequence.reset()
        self.num_generated = 0
        return self

    def fast_forward(self, n):
        """As if n points had been drawn."""
        check(isinstance(n, int) and n >= 0, "SobolEngine.fast_forward", "n >= 0", n, error=ValueError)
        if n:
            self._sequence.fast_forward(n)
        self.num_generated += n
        return self

    def __repr__(self):
        shown = [f"dimension={self.dimension}", *(["scramble=True"] if self.scramble else []),
                 *([f"seed={self.seed}"] if self.seed is not None else [])]
        return f"SobolEngine({', '.join(shown)})"
