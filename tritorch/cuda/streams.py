"""PyTorch's name for the file of streams and events, for programs that import from there."""
from tritorch.cuda.event import Event
from tritorch.cuda.stream import ExternalStream, Stream

__all__ = ["Event", "ExternalStream", "Stream"]
