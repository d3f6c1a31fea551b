"""Training for integers: `ao.quantization`, and the modules it puts into a model, `ao.nn`. Both load when they are asked for."""
import importlib


def __getattr__(name):
    if name in ("nn", "quantization"):
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
