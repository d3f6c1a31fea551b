"""Configurations: which observers or fake quantizers watch the results and the weights of a module."""
import functools
from collections import namedtuple

from tritorch.ao.quantization import fake_quantize as fq
from tritorch.ao.quantization import other_observers as obs
from tritorch.ao.quantization.histogram import HistogramObserver
from tritorch.ao.quantization.observer import MovingAverageMinMaxObserver
from tritorch.dtype import types
from tritorch.errors import check
from tritorch.nn.linear import Identity
from tritorch.nn.module import Module

BACKENDS = {"fbgemm": dict(reduce_range=True), "x86": dict(reduce_range=True), "qnnpack": dict(reduce_range=False), "onednn": {}}


class QConfig(namedtuple("QConfig", ["activation", "weight"])):
    """Constructors, without arguments, of what watches the results and the weights of a module. ValueError for modules themselves.

    >>> import tritorch as torch
    >>> q = torch.ao.quantization
    >>> q.QConfig(activation=q.MinMaxObserver.with_args(dtype=torch.qint8), weight=q.default_weight_observer).activation().quant_min
    -128
    """

    __slots__ = ()

    def __new__(cls, activation, weight):
        check(not isinstance(activation, Module) and not isinstance(weight, Module), "QConfig", "constructors", "modules",
              use="with_args of their classes", error=ValueError)
        return super().__new__(cls, activation, weight)


default_qconfig = QConfig(activation=obs.default_observer, weight=obs.default_weight_observer)
default_debug_qconfig = QConfig(weight=obs.default_weight_observer, activation=obs.default_debug_observer)
default_per_channel_qconfig = QConfig(activation=obs.default_observer, weight=obs.default_per_channel_weight_observer)
default_dynamic_qconfig = QConfig(activation=obs.default_dynamic_quant_observer, weight=obs.default_weight_observer)
float16_dynamic_qconfig = QConfig(activation=obs.PlaceholderObserver.with_args(dtype=types.float16, is_dynamic=True),
                                  weight=obs.PlaceholderObserver.with_args(dtype=types.float16))
float16_static_qconfig = QConfig(activation=obs.PlaceholderObserver.with_args(dtype=types.float16),
                                 weight=obs.PlaceholderObserver.with_args(dtype=types.float16))
per_channel_dynamic_qconfig = QConfig(activation=obs.default_dynamic_quant_observer, weight=obs.default_per_channel_weight_observer)
float_qparams_weight_only_qconfig = QConfig(activation=obs.default_placeholder_observer, weight=obs.default_float_qparams_observer)
float_qparams_weight_only_qconfig_4bit = QConfig(activation=obs.default_placeholder_observer,
                                                 weight=obs.default_float_qparams_observer_4bit)
default_qat_qconfig = QConfig(activation=fq.default_fake_quant, weight=fq.default_weight_fake_quant)
default_qat_qconfig_v2 = QConfig(activation=fq.default_fused_act_fake_quant, weight=fq.default_fused_wt_fake_quant)
default_dynamic_qat_qconfig = QConfig(activation=fq.default_dynamic_fake_quant, weight=fq.default_weight_fake_quant)
default_weight_only_qconfig = QConfig(activation=Identity, weight=fq.default_weight_fake_quant)
default_activation_only_qconfig = QConfig(activation=fq.default_fake_quant, weight=Identity)
default_reuse_input_qconfig = QConfig(activation=obs.default_reuse_input_observer, weight=obs.NoopObserver)
default_embedding_qat_qconfig = QConfig(activation=obs.NoopObserver.with_args(dtype=types.float32), weight=fq.default_embedding_fake_quant)
default_embedding_qat_qconfig_4bit = QConfig(activation=obs.NoopObserver.with_args(dtype=types.float32),
                                             weight=fq.default_embedding_fake_quant_4bit)


def _known(name, backend, version, versions):
    check(backend in BACKENDS, name, f"a backend out of {list(BACKENDS)}", repr(backend), error=AssertionError)
    check(version in versions, name, f"a version out of {versions}", version, error=AssertionError)


def get_default_qconfig(backend="x86", version=0):
    """The configuration for calibration: histograms of results, ranges of weights, of each channel but for "qnnpack".
    AssertionError, as in PyTorch, for others than "x86", "fbgemm", "qnnpack", "onednn"."""
    _known("get_default_qconfig", backend, version, (0,))
    weight = obs.default_weight_observer if backend == "qnnpack" else obs.default_per_channel_weight_observer
    return QConfig(activation=HistogramObserver.with_args(**BACKENDS[backend]), weight=weight)


def get_default_qat_qconfig(backend="x86", version=1):
    """The configuration for training: moving averages of ranges, of each channel of weights but for "qnnpack". Version 1 has the fused
    fake quantizers, 0 the others. AssertionError, as in PyTorch, for other backends and versions.

    >>> import tritorch as torch
    >>> torch.ao.quantization.get_default_qat_qconfig("fbgemm").weight().qscheme
    tritorch.per_channel_symmetric
    """
    _known("get_default_qat_qconfig", backend, version, (0, 1))
    kind = fq.FusedMovingAvgObsFakeQuantize if version else fq.FakeQuantize
    whole, each = ((fq.default_fused_wt_fake_quant, fq.default_fused_per_channel_wt_fake_quant) if version else
                   (fq.default_weight_fake_quant, fq.default_per_channel_weight_fake_quant))
    activation = kind.with_args(observer=MovingAverageMinMaxObserver, quant_min=0, quant_max=255, **BACKENDS[backend])
    return QConfig(activation=activation, weight=whole if backend == "qnnpack" else each)


def _alike(p, q):
    """Whether two constructors are the same class with the same arguments."""
    def facts(made):
        inner = made.p if hasattr(made, "p") else functools.partial(made)
        return inner.func, inner.keywords

    if p is None or q is None:
        return p is q
    (f, a), (g, b) = facts(p), facts(q)
    same = {k: _alike(a[k], b[k]) if hasattr(a[k], "p") and hasattr(b.get(k), "p") else a[k] == b.get(k) for k in a}
    return f == g and a.keys() == b.keys() and all(same.values())


def qconfig_equals(q1, q2):
    """Whether two configurations, or None, say the same."""
    if q1 is None or q2 is None:
        return q1 is q2
    return _alike(q1.activation, q2.activation) and _alike(q1.weight, q2.weight)


def memoryless(qconfig):
    """Whether results are watched anew each time: then what is watched is the input."""
    made = qconfig.activation()
    made = getattr(made, "activation_post_process", made)
    return getattr(made, "averaging_constant", None) == 1
