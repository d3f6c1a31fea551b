"""What TensorBoard shows, as its protocol buffers: one function a kind, each returns a Summary. Values are tensors, arrays or numbers."""
import io
import wave

import numpy as np
from google.protobuf import struct_pb2
from tensorboard.compat.proto.summary_pb2 import HistogramProto, Summary, SummaryMetadata
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto

from tritorch.errors import check
from tritorch.tensor import Tensor

MOST = 127                                                               # thresholds of a precision-recall curve that TensorBoard takes


def as_array(x):
    """The values on the host, half precision as float32."""
    if isinstance(x, Tensor):
        x = x.detach().float() if x.dtype.is_floating_point and x.itemsize < 4 else x.detach()
        return x.cpu().numpy()
    return np.asarray(x)


def _metadata(plugin, content=b""):
    return SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name=plugin, content=content))


def _one(tag, **fields):
    return Summary(value=[Summary.Value(tag=tag, **fields)])


def _tensor(values, dtype="DT_FLOAT"):
    field = {"DT_FLOAT": "float_val", "DT_DOUBLE": "double_val"}[dtype]
    shape = TensorShapeProto(dim=[TensorShapeProto.Dim(size=n) for n in values.shape])
    return TensorProto(dtype=dtype, tensor_shape=shape, **{field: values.reshape(-1).tolist()})


def scalar(tag, value, new_style=False, double_precision=False):
    """One number."""
    value = as_array(value).reshape(-1)
    check(value.size == 1, "add_scalar", "one number", f"{value.size}", error=AssertionError)
    if not new_style:
        return _one(tag, simple_value=float(value[0]))
    from tensorboard.plugins.scalar.metadata import create_summary_metadata

    value = value.reshape(()).astype(np.float64 if double_precision else np.float32)
    return _one(tag, tensor=_tensor(value, "DT_DOUBLE" if double_precision else "DT_FLOAT"), metadata=create_summary_metadata("", ""))


def tensor(tag, values):
    """Numbers of any shape, as they are."""
    values = as_array(values)
    return _one(tag, tensor=_tensor(values, "DT_DOUBLE" if values.dtype == np.float64 else "DT_FLOAT"), metadata=_metadata("tensor"))


def text(tag, words):
    """Markdown."""
    from tensorboard.plugins.text.plugin_data_pb2 import TextPluginData

    shape = TensorShapeProto(dim=[TensorShapeProto.Dim(size=1)])
    return _one(f"{tag}/text_summary", tensor=TensorProto(dtype="DT_STRING", string_val=[words.encode()], tensor_shape=shape),
                metadata=_metadata("text", TextPluginData(version=0).SerializeToString()))


# ------------------------------------------------------------------ histograms
def _exponential_bins():
    """The limits that TensorFlow takes: each 1.1 times the one before, from 1e-12 to 1e20 and below 0."""
    limits = 1e-12 * 1.1 ** np.arange(int(np.log(1e32) / np.log(1.1)) + 1)
    return np.concatenate([-limits[::-1], [0.0], limits])


def histogram(tag, values, bins="tensorflow", max_bins=None):
    """How often values lie between limits: `bins` is "tensorflow" (exponential), or what numpy.histogram takes."""
    values = as_array(values).astype(np.float64).reshape(-1)
    check(values.size > 0, "add_histogram", "values", "none", error=ValueError)
    counts, limits = np.histogram(values, _exponential_bins() if isinstance(bins, str) and bins == "tensorflow" else bins)
    if max_bins is not None and counts.size > max_bins:
        starts = np.arange(0, counts.size, -(-counts.size // max_bins))
        counts, limits = np.add.reduceat(counts, starts), np.concatenate([limits[starts], limits[-1:]])
    full = np.flatnonzero(counts)
    first, last = (full[0], full[-1] + 1) if full.size else (0, counts.size)
    return histogram_raw(tag, values.min(), values.max(), values.size, values.sum(), values @ values,
                         limits[first:last + 1].tolist(), [0, *counts[first:last].tolist()])


def histogram_raw(tag, min, max, num, sum, sum_squares, bucket_limits, bucket_counts):
    """A histogram that has been counted: bucket k ends at the k-th limit."""
    check(len(bucket_limits) == len(bucket_counts), "add_histogram_raw", "as many counts as limits", len(bucket_counts), len(bucket_limits),
          error=ValueError)
    return _one(tag, histo=HistogramProto(min=min, max=max, num=num, sum=sum, sum_squares=sum_squares, bucket_limit=bucket_limits,
                                          bucket=bucket_counts))


def pr_curve(tag, labels, predictions, thresholds=MOST, weights=None):
    """Precision and recall of predictions in [0, 1] of labels 0 or 1, by thresholds."""
    labels, predictions = [as_array(x).astype(np.float64).reshape(-1) for x in (labels, predictions)]
    weights = np.ones_like(labels) if weights is None else np.broadcast_to(as_array(weights).astype(np.float64), labels.shape)
    thresholds = min(thresholds, MOST)
    at = np.floor(predictions * (thresholds - 1)).astype(np.int64)
    right, wrong = [np.bincount(at, w, thresholds)[::-1].cumsum()[::-1] for w in (labels * weights, (1 - labels) * weights)]
    positives = np.maximum(right + wrong, 1e-7)
    return pr_curve_raw(tag, right, wrong, wrong[0] - wrong, right[0] - right, right / positives, right / np.maximum(right[0], 1e-7))


def pr_curve_raw(tag, true_positives, false_positives, true_negatives, false_negatives, precision, recall, thresholds=MOST):
    """A curve that has been counted, one entry a threshold."""
    from tensorboard.plugins.pr_curve.plugin_data_pb2 import PrCurvePluginData

    rows = [true_positives, false_positives, true_negatives, false_negatives, precision, recall]
    content = PrCurvePluginData(version=0, num_thresholds=min(thresholds, MOST)).SerializeToString()
    return _one(tag, tensor=_tensor(np.stack([as_array(row).astype(np.float64) for row in rows])), metadata=_metadata("pr_curves", content))


# ------------------------------------------------------------------ pictures and sound
def _pixels(x, formats, wanted):
    """Bytes in the order of dims `wanted`: floats in [0, 1] times 255, one channel as three."""
    x, formats = as_array(x), formats.upper()
    check(x.ndim == len(formats) and len(set(formats)) == len(formats) and set(formats) <= set("NCHW"), "add_image",
          "a format that names each dim once", formats, x.shape, error=AssertionError)
    if "C" not in formats:
        x, formats = x[..., None], formats + "C"
    x = x.transpose([formats.index(d) for d in wanted])
    x = (np.clip(x * 255.0, 0, 255) if x.dtype.kind == "f" else x).astype(np.uint8)
    return np.repeat(x, 3, -1) if x.shape[-1] == 1 else x


def image(tag, x, formats="CHW"):
    """One picture."""
    return _picture(tag, _pixels(x, formats, "HWC"))


def images(tag, x, formats="NCHW"):
    """Several pictures side by side, in about as many rows as columns."""
    x = _pixels(x, formats, "NHWC")
    n, h, w, c = x.shape
    columns = int(np.ceil(np.sqrt(n)))
    rows = -(-n // columns)
    x = np.concatenate([x, np.zeros((rows * columns - n, h, w, c), np.uint8)])
    return _picture(tag, x.reshape(rows, columns, h, w, c).transpose(0, 2, 1, 3, 4).reshape(rows * h, columns * w, c))


def _picture(tag, pixels):
    from PIL import Image

    data = io.BytesIO()
    Image.fromarray(pixels).save(data, format="PNG")
    h, w, c = pixels.shape
    return _one(tag, image=Summary.Image(height=h, width=w, colorspace=c, encoded_image_string=data.getvalue()))


def figure(tag, figures):
    """Matplotlib's figures, side by side."""
    drawn = []
    for one in figures if isinstance(figures, (list, tuple)) else [figures]:
        one.canvas.draw()
        drawn.append(np.asarray(one.canvas.buffer_rgba())[..., :3])
    return image(tag, drawn[0], "HWC") if len(drawn) == 1 else images(tag, np.stack(drawn), "NHWC")


def video(tag, x, fps=4):
    """A moving picture (N, T, C, H, W), the N of them side by side, as a GIF."""
    from PIL import Image

    x = as_array(x)
    check(x.ndim == 5, "add_video", "a tensor (N, T, C, H, W)", x.shape, error=AssertionError)
    frames = [Image.fromarray(np.concatenate(list(_pixels(frame, "NCHW", "NHWC")), 1)) for frame in x.swapaxes(0, 1)]
    data = io.BytesIO()
    frames[0].save(data, format="GIF", save_all=True, append_images=frames[1:], duration=1000 / fps, loop=0)
    return _one(tag, image=Summary.Image(height=frames[0].height, width=frames[0].width, colorspace=3,
                                         encoded_image_string=data.getvalue()))


def audio(tag, x, sample_rate=44100):
    """Sound: one channel of values in [-1, 1], which are clipped there."""
    x = as_array(x).squeeze()
    check(x.ndim == 1, "add_audio", "one dim of samples", x.shape, error=AssertionError)
    data = io.BytesIO()
    with wave.open(data, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(sample_rate)
        file.writeframes((np.clip(x, -1, 1) * 32767).astype("<i2").tobytes())
    return _one(tag, audio=Summary.Audio(sample_rate=sample_rate, num_channels=1, length_frames=x.size,
                                         encoded_audio_string=data.getvalue(), content_type="audio/wav"))


# ------------------------------------------------------------------ hyperparameters
def hparams(values, metrics, domains):
    """The three summaries that tell of an experiment: what there is, with which values a run began, that it ended."""
    from tensorboard.plugins.hparams import api_pb2, metadata, plugin_data_pb2

    start, infos = plugin_data_pb2.SessionStartInfo(), []
    for name, value in values.items():
        if value is None:
            continue
        value = value.item() if isinstance(value, Tensor) else value
        check(isinstance(value, (bool, int, float, str)), "add_hparams", "numbers, bools, strings or tensors of one element",
              type(value).__name__, error=ValueError)
        kind, field = ("BOOL", "bool_value") if isinstance(value, bool) else ("STRING", "string_value") if isinstance(value, str) else (
            "FLOAT64", "number_value")
        setattr(start.hparams[name], field, value)
        domain = domains.get(name)
        among = None if domain is None else struct_pb2.ListValue(values=[struct_pb2.Value(**{field: v}) for v in domain])
        infos.append(api_pb2.HParamInfo(name=name, type=api_pb2.DataType.Value(f"DATA_TYPE_{kind}"), domain_discrete=among))
    told = [api_pb2.MetricInfo(name=api_pb2.MetricName(tag=name)) for name in metrics]
    for tag, content in ((metadata.EXPERIMENT_TAG, {"experiment": api_pb2.Experiment(hparam_infos=infos, metric_infos=told)}),
                         (metadata.SESSION_START_INFO_TAG, {"session_start_info": start}),
                         (metadata.SESSION_END_INFO_TAG, {"session_end_info": plugin_data_pb2.SessionEndInfo(
                             status=api_pb2.Status.Value("STATUS_SUCCESS"))})):
        data = plugin_data_pb2.HParamsPluginData(version=metadata.PLUGIN_DATA_VERSION, **content)
        yield _one(tag, metadata=_metadata(metadata.PLUGIN_NAME, data.SerializeToString()))
