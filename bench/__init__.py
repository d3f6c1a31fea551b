"""Measurements: `python -m bench` runs them, `bench/results/` keeps them. PyTorch, where it is installed, is measured beside us."""
