"""What programs ask of the one flat parameter that a unit has in PyTorch, and not here."""
from tritorch.autograd.modes import no_grad
from tritorch.distributed.fsdp.state_types import clean
from tritorch.nn.parameter import Parameter


class FlatParameter(Parameter):
    """The parameters of a unit as if they were one: their names, and what they have in common. No module has it among its parameters.
    Assigning `data` of another dtype casts them all, which is what accelerate does with models that were loaded with few digits."""

    def __new__(cls, state):
        (group,) = state.groups
        made = super().__new__(cls, group.flats[0].memory, any(cut.sharded.requires_grad for cut in group.cuts))
        own, unit = {id(cut.registered()) for cut in group.cuts}, state.modules[0]()
        made._group, made._fqns = group, [clean(name) for name, p in unit.module.named_parameters() if id(p) in own]
        return made

    @property
    def data(self):
        """The shards of this rank, one after the other."""
        return self.detach()

    @data.setter
    @no_grad()
    def data(self, other):
        for cut in self._group.cuts:
            cut.sharded.data = cut.sharded.data.to(other.dtype)
        self._group.adopt()


class Handle:
    """What PyTorch has between a unit and its flat parameter."""

    def __init__(self, flat_param):
        self.flat_param = flat_param
