"""utils.tensorboard: what is written is read again by TensorBoard's own library."""
import io
import wave

import numpy as np
import pytest

import tritorch as torch

pytest.importorskip("tensorboard", reason="needs the package tensorboard")
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator  # noqa: E402

from tritorch.utils.tensorboard import SummaryWriter  # noqa: E402


def read(folder):
    found = EventAccumulator(str(folder), {"tensors": 0, "histograms": 0, "images": 0, "audio": 0, "scalars": 0})
    found.Reload()
    return found


def test_numbers_text_and_histograms(tmp_path):
    with SummaryWriter(tmp_path) as w:
        for step in range(3):
            w.add_scalar("loss/train", torch.tensor(0.5 / (step + 1)), step, walltime=step + 10.0)
        w.add_scalar("exact", 0.1, new_style=True, double_precision=True)
        w.add_scalars("both", {"a": 1, "b": torch.tensor([2.0])}, 7)
        w.add_histogram("spread", torch.tensor([-1.0, 0.0, 0.5, 0.5, 3.0], dtype=torch.bfloat16), 2)
        w.add_histogram("few", np.arange(100.0), bins="auto", max_bins=3)
        w.add_text("note", "**bold**")
        w.add_tensor("values", torch.arange(6.0).view(2, 3))
    found = read(tmp_path)
    told = [(e.step, e.value, e.wall_time) for e in found.Scalars("loss/train")]
    assert told == [(0, 0.5, 10.0), (1, 0.25, 11.0), (2, np.float32(0.5 / 3), 12.0)]
    assert found.Tensors("exact")[0].tensor_proto.double_val == [0.1]
    assert [read(tmp_path / f"both_{name}").Scalars("both")[0].value for name in "ab"] == [1.0, 2.0]
    histogram = found.Histograms("spread")[0].histogram_value
    assert (histogram.min, histogram.max, histogram.num, histogram.sum, histogram.sum_squares) == (-1.0, 3.0, 5.0, 3.0, 10.5)
    assert sum(histogram.bucket) == 5 and len(histogram.bucket) == len(histogram.bucket_limit)
    few = found.Histograms("few")[0].histogram_value
    assert len(few.bucket) <= 4 and sum(few.bucket) == 100 and few.bucket_limit[-1] == 99
    assert found.Tensors("note/text_summary")[0].tensor_proto.string_val == [b"**bold**"]
    assert found.Tensors("values")[0].tensor_proto.float_val == [0, 1, 2, 3, 4, 5]
    with pytest.raises(RuntimeError, match="open"):
        w.add_scalar("late", 1)
    with pytest.raises(AssertionError):
        SummaryWriter(tmp_path / "other").add_scalar("two", torch.ones(2))


def test_pictures_and_sound(tmp_path):
    image = pytest.importorskip("PIL.Image")
    picture = torch.rand(3, 4, 5)
    with SummaryWriter(tmp_path) as w:
        w.add_image("one", picture)
        w.add_image("grey", (picture[0] * 255).to(torch.uint8), dataformats="HW")
        w.add_images("many", torch.stack([picture] * 3))
        w.add_video("moving", torch.rand(2, 3, 3, 4, 5))
        w.add_audio("sound", torch.tensor([0.0, 1.0, -2.0]), sample_rate=8000)
        with pytest.raises(AssertionError):
            w.add_image("bad", picture, dataformats="HW")
    found = read(tmp_path)

    def pixels(tag):
        return np.asarray(image.open(io.BytesIO(found.Images(tag)[0].encoded_image_string)))

    want = (picture.numpy() * np.float32(255.0)).astype(np.uint8).transpose(1, 2, 0)
    assert np.array_equal(pixels("one"), want) and pixels("many").shape == (8, 10, 3)
    assert np.array_equal(pixels("many")[:4, 5:], want) and not pixels("many")[4:, 5:].any()
    assert np.array_equal(pixels("grey")[..., 0], (picture[0] * 255).to(torch.uint8).numpy()) and found.Images("moving")[0].width == 10
    with wave.open(io.BytesIO(found.Audio("sound")[0].encoded_audio_string)) as sound:
        assert sound.getframerate() == 8000 and np.frombuffer(sound.readframes(3), "<i2").tolist() == [0, 32767, -32767]


def test_curves_and_hyperparameters(tmp_path):
    from tensorboard.plugins.hparams import plugin_data_pb2

    labels, chances = torch.tensor([1, 0, 1, 1]), torch.tensor([0.9, 0.8, 0.4, 0.1], dtype=torch.float64)
    with SummaryWriter(tmp_path) as w:
        w.add_pr_curve("curve", labels, chances, num_thresholds=11)
        w.add_hparams({"lr": 0.1, "name": "sgd", "on": True, "left": None}, {"accuracy": 0.5}, {"lr": [0.1, 0.2]}, run_name="run")
        with pytest.raises(TypeError):
            w.add_hparams([], {})
        with pytest.raises(ValueError):
            w.add_hparams({"x": object()}, {})
    curve = np.array(read(tmp_path).Tensors("curve")[0].tensor_proto.float_val).reshape(6, 11)
    assert curve[:2, 0].tolist() == [3, 1] and curve[:2, 9].tolist() == [1, 0] and curve[4, 8] == 0.5 and np.allclose(curve[5, 2], 2 / 3)
    run = read(tmp_path / "run")
    assert run.Scalars("accuracy")[0].value == 0.5
    data = plugin_data_pb2.HParamsPluginData.FromString(run.SummaryMetadata("_hparams_/session_start_info").plugin_data.content)
    told = data.session_start_info.hparams
    assert (told["lr"].number_value, told["name"].string_value, told["on"].bool_value) == (0.1, "sgd", True) and "left" not in told
