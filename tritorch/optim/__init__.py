"""Optimizers and learning rate schedules, under the names of torch.optim."""
from tritorch.optim import lr_scheduler, swa_utils
from tritorch.optim.adagrad import Adadelta, Adagrad, RMSprop
from tritorch.optim.adam import Adam, AdamW
from tritorch.optim.adam_variants import Adamax, NAdam, RAdam
from tritorch.optim.averaging import ASGD, Rprop
from tritorch.optim.factored import Adafactor, Muon
from tritorch.optim.lbfgs import LBFGS
from tritorch.optim.optimizer import Optimizer
from tritorch.optim.sgd import SGD
from tritorch.optim.sparse_adam import SparseAdam

__all__ = ["ASGD", "Adadelta", "Adafactor", "Adagrad", "Adam", "AdamW", "Adamax", "LBFGS", "Muon", "NAdam", "Optimizer", "RAdam", "RMSprop",
           "Rprop", "SGD", "SparseAdam", "lr_scheduler", "swa_utils"]
