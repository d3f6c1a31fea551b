"""PyTorch's names for the files of this package: `nn.modules.batchnorm` and so on, for programs that import from there."""
import sys

from tritorch.nn import (
    activation,
    adaptive,
    attention,
    container,
    conv,
    distance,
    dropout,
    hooks,
    lazy,
    linear,
    loss,
    module,
    norm,
    padding,
    pooling,
    recurrent_cells,
    rnn,
    shaping,
    sizes,
    sparse,
    transformer,
)
from tritorch.nn.module import Module
from tritorch.nn.state_dict import IncompatibleKeys, consume_prefix_in_state_dict_if_present

__path__: list[str] = []                                                 # makes the names below importable as modules
_FILES = {"activation": activation, "adaptive": adaptive, "container": container, "conv": conv, "distance": distance, "dropout":
          dropout, "lazy": lazy, "linear": linear, "loss": loss, "module": module, "padding": padding, "pooling": pooling, "rnn": rnn,
          "sparse": sparse, "transformer": transformer, "batchnorm": norm, "instancenorm": norm, "normalization": norm, "flatten":
          shaping, "fold": shaping, "pixelshuffle": shaping, "channelshuffle": shaping, "upsampling": shaping, "utils": sizes}
sys.modules.update({f"{__name__}.{name}": file for name, file in _FILES.items()})
globals().update(_FILES)
for _file, _other, _names in ((activation, attention, ["MultiheadAttention"]), (linear, attention, ["NonDynamicallyQuantizableLinear"]),
                              (linear, lazy, ["LazyLinear"]), (rnn, recurrent_cells, ["GRUCell", "LSTMCell", "RNNCell", "RNNCellBase"]),
                              (conv, lazy, [f"LazyConv{kind}{n}d" for kind in ("", "Transpose") for n in (1, 2, 3)]),
                              (norm, lazy, [f"Lazy{kind}Norm{n}d" for kind in ("Batch", "Instance") for n in (1, 2, 3)])):
    vars(_file).update({name: getattr(_other, name) for name in _names})
vars(module).update(_IncompatibleKeys=IncompatibleKeys)
vars(sizes).update(consume_prefix_in_state_dict_if_present=consume_prefix_in_state_dict_if_present)
vars(module).update({name: f for name, f in vars(hooks).items() if name.startswith("register_module_")})


def __getattr__(name):
    """`nn.modules.Linear` is nn.Linear, and so are the other classes of layers."""
    value = getattr(sys.modules["tritorch.nn"], name, None) if name[:1].isupper() else None
    if isinstance(value, type) and issubclass(value, Module):
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
