"""Activations: the operators, with PyTorch's `inplace`, and those composed of others."""

