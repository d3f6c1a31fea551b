"""Optimizers and learning rate schedules, under the names of torch.optim."""
import sys

from tritorch.optim import adagrad, adam, adam_variants, averaging, functional, lr_scheduler, sgd, swa_utils
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

# PyTorch's names for the files, for programs that import from there
for _name, _file in dict(adadelta=adagrad, rmsprop=adagrad, adamw=adam, adamax=adam_variants, nadam=adam_variants, radam=adam_variants,
                         asgd=averaging, rprop=averaging).items():
    globals()[_name] = sys.modules[f"{__name__}.{_name}"] = _file
for _file, _name in (adagrad, "adagrad rmsprop"), (adam, "adam adamw"), (sgd, "sgd"):
    vars(_file).update({name: getattr(functional, name) for name in _name.split()})
_functional = sys.modules[f"{__name__}._functional"] = functional
