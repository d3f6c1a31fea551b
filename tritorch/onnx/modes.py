"""Whether an export is going on, and enumerations of the exporter's options."""
import contextlib
import enum
import threading


class TrainingMode(enum.Enum):
    """The mode in which a module is exported with dynamo=False: that of evaluation, its own, that of training."""

    EVAL, PRESERVE, TRAINING = 0, 1, 2


class OperatorExportTypes(enum.Enum):
    """How operators without a rule are exported: only ONNX, where they are refused, is done."""

    ONNX, ONNX_ATEN, ONNX_ATEN_FALLBACK, ONNX_FALLTHROUGH = 0, 1, 2, 3


class _Place(threading.local):
    writer, exporting = None, False                                      # writer: of the rule that is being asked


place = _Place()


@contextlib.contextmanager
def exporting():
    """Inside, `is_in_onnx_export()` is True."""
    place.exporting = True
    try:
        yield
    finally:
        place.exporting = False


def is_in_onnx_export():
    """Whether this thread is inside of `export`: models may ask, to leave out what looks at elements.

    >>> import tritorch as torch
    >>> torch.onnx.is_in_onnx_export()
    False
    """
    return place.exporting
