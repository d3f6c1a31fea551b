"""The base of classes that say how the parameters of a module are spread over processes."""
import abc


class ParallelStyle(abc.ABC):
    """Subclasses give `_apply(module, device_mesh)`."""

    src_data_rank = 0

    @abc.abstractmethod
    def _apply(self, module, device_mesh): ...
