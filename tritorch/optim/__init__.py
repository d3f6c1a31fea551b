"""Optimizers and learning rate schedules, under the names of torch.optim."""
from tritorch.optim import lr_scheduler
from tritorch.optim.adam import Adam, AdamW
from tritorch.optim.optimizer import Optimizer
from tritorch.optim.sgd import SGD

__all__ = ["SGD", "Adam", "AdamW", "Optimizer", "lr_scheduler"]
