"""Modules of quantization: fused ones (`intrinsic`), those that fake-quantize their weights (`qat`), functions as modules (`quantized`)."""
import importlib


def __getattr__(name):
    if name in ("intrinsic", "qat", "quantized"):
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
