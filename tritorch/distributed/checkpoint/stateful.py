"""What can be saved and loaded as a whole."""
from typing import Any, Protocol, TypeVar, runtime_checkable


@runtime_checkable
class Stateful(Protocol):
    """An object with a state dict, as modules and optimizers have it: `save` asks for it, `load` fills it and gives it back.

    >>> import tritorch as torch
    >>> from tritorch.distributed.checkpoint.stateful import Stateful
    >>> isinstance(torch.nn.Linear(1, 1), Stateful), isinstance({}, Stateful)
    (True, False)
    """

    def state_dict(self) -> dict[str, Any]:
        """The state, as a dictionary."""
        ...

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take the state back."""
        ...


StatefulT = TypeVar("StatefulT", bound=Stateful)
