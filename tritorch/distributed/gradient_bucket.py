"""What a communication hook of DistributedDataParallel gets: gradients that are to become those of all ranks."""

__all__ = ["GradBucket"]


class GradBucket:
    """The gradients of several parameters in one flat tensor, `buffer()`, and as `gradients()` in the shapes of `parameters()`."""

    def __init__(self, index, buffer, gradients, parameters, is_last):
        self._index, self._buffer, self._gradients, self._parameters, self._is_last = index, buffer, gradients, parameters, is_last

    def index(self):
        """The number of the bucket: 0 holds the gradients that come first."""
        return self._index

    def buffer(self):
        """The flat tensor, of one dimension."""
        return self._buffer

    def gradients(self):
        """A list of views of the flat tensor, one a parameter."""
        return list(self._gradients)

    def parameters(self):
        """A list of the parameters."""
        return list(self._parameters)

    def is_last(self):
        """Whether this is the last bucket of the backward pass."""
        return self._is_last

    def set_buffer(self, buffer):
        """Let `buffer()` be another tensor from now on: a compressed one, mostly."""
        self._buffer = buffer
