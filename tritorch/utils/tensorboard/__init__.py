"""Logs for TensorBoard, under the names of torch.utils.tensorboard. Wants the package tensorboard: `pip install 'tritorch[monitoring]'`.

Graphs, embeddings, meshes and custom layouts are not written.
"""
import os
import socket
import time

try:
    from tensorboard.compat.proto.event_pb2 import Event, SessionLog
    from tensorboard.summary.writer.event_file_writer import EventFileWriter
except ImportError as error:
    raise ImportError("tensorboard: expected the package tensorboard, got none; use pip install 'tritorch[monitoring]'") from error

from tritorch.errors import check
from tritorch.utils.tensorboard import summaries

__all__ = ["FileWriter", "SummaryWriter"]


class FileWriter:
    """Writes events into a folder, from a thread of its own."""

    def __init__(self, log_dir, max_queue=10, flush_secs=120, filename_suffix=""):
        self.event_writer = EventFileWriter(str(log_dir), max_queue, flush_secs, filename_suffix)
        self.flush, self.close = self.event_writer.flush, self.event_writer.close

    def get_logdir(self):
        """The folder."""
        return self.event_writer.get_logdir()

    def add_event(self, event, step=None, walltime=None):
        """Write an event, at a step, at a time (seconds since 1970; now)."""
        event.wall_time = time.time() if walltime is None else walltime
        if step is not None:
            event.step = int(step)
        self.event_writer.add_event(event)

    def add_summary(self, summary, global_step=None, walltime=None):
        """Write a summary as an event."""
        self.add_event(Event(summary=summary), global_step, walltime)


class SummaryWriter:
    """Writes what TensorBoard shows into a folder: `log_dir`, or runs/<time>_<host><comment>.

    purge_step: what an earlier, broken run wrote from this step on is not shown. max_queue, flush_secs: when events are written to disk.
    Every `add_…` takes a tag ("loss/train"), the values, a global_step and a walltime (seconds since 1970; now). Values that are on a GPU
    are waited for.

    >>> from tritorch.utils.tensorboard import SummaryWriter             # doctest: +SKIP
    >>> with SummaryWriter("runs/first") as writer:
    ...     writer.add_scalar("loss", 0.5, 1)
    """

    def __init__(self, log_dir=None, comment="", purge_step=None, max_queue=10, flush_secs=120, filename_suffix=""):
        if not log_dir:
            log_dir = os.path.join("runs", f"{time.strftime('%b%d_%H-%M-%S')}_{socket.gethostname()}{comment}")
        self.log_dir, self._options = os.fspath(log_dir), (max_queue, flush_secs, filename_suffix)
        self.file_writer = FileWriter(self.log_dir, *self._options)
        self.all_writers = {self.log_dir: self.file_writer}
        if purge_step is not None:
            self.file_writer.add_event(Event(file_version="brain.Event:2"), purge_step)
            self.file_writer.add_event(Event(session_log=SessionLog(status=SessionLog.START)), purge_step)

    def get_logdir(self):
        """The folder."""
        return self.log_dir

    def _write(self, summary, global_step, walltime):
        check(self.all_writers, "SummaryWriter", "a writer that is open", "a closed one")
        self.file_writer.add_summary(summary, global_step, walltime)

    def add_scalar(self, tag, scalar_value, global_step=None, walltime=None, new_style=False, double_precision=False):
        """One number."""
        self._write(summaries.scalar(tag, scalar_value, new_style, double_precision), global_step, walltime)

    def add_scalars(self, main_tag, tag_scalar_dict, global_step=None, walltime=None):
        """Several numbers in one diagram, {name: number}: each has a folder of its own."""
        for tag, value in tag_scalar_dict.items():
            folder = f"{self.log_dir}/{main_tag.replace('/', '_')}_{tag}"
            if folder not in self.all_writers:
                self.all_writers[folder] = FileWriter(folder, *self._options)
            self.all_writers[folder].add_summary(summaries.scalar(main_tag, value), global_step, walltime)

    def add_tensor(self, tag, tensor, global_step=None, walltime=None):
        """A tensor as it is."""
        self._write(summaries.tensor(tag, tensor), global_step, walltime)

    def add_histogram(self, tag, values, global_step=None, bins="tensorflow", walltime=None, max_bins=None):
        """How values are spread; bins: "tensorflow" (exponential), or what numpy.histogram takes."""
        self._write(summaries.histogram(tag, values, bins, max_bins), global_step, walltime)

    def add_histogram_raw(self, tag, min, max, num, sum, sum_squares, bucket_limits, bucket_counts, global_step=None, walltime=None):
        """A histogram that has been counted. Long, because it has so many facts."""
        self._write(summaries.histogram_raw(tag, min, max, num, sum, sum_squares, bucket_limits, bucket_counts), global_step, walltime)

    def add_image(self, tag, img_tensor, global_step=None, walltime=None, dataformats="CHW"):
        """A picture: floats in [0, 1] or bytes, its dims named by `dataformats` ("CHW", "HWC", "HW")."""
        self._write(summaries.image(tag, img_tensor, dataformats), global_step, walltime)

    def add_images(self, tag, img_tensor, global_step=None, walltime=None, dataformats="NCHW"):
        """Several pictures side by side."""
        self._write(summaries.images(tag, img_tensor, dataformats), global_step, walltime)

    def add_figure(self, tag, figure, global_step=None, close=True, walltime=None):
        """A figure of matplotlib's or a list of them, which are closed afterwards."""
        self._write(summaries.figure(tag, figure), global_step, walltime)
        if close:
            from matplotlib import pyplot

            for one in figure if isinstance(figure, (list, tuple)) else [figure]:
                pyplot.close(one)

    def add_video(self, tag, vid_tensor, global_step=None, fps=4, walltime=None):
        """A moving picture (N, T, C, H, W)."""
        self._write(summaries.video(tag, vid_tensor, fps), global_step, walltime)

    def add_audio(self, tag, snd_tensor, global_step=None, sample_rate=44100, walltime=None):
        """Sound: one channel of values in [-1, 1]."""
        self._write(summaries.audio(tag, snd_tensor, sample_rate), global_step, walltime)

    def add_text(self, tag, text_string, global_step=None, walltime=None):
        """Markdown."""
        self._write(summaries.text(tag, text_string), global_step, walltime)

    def add_pr_curve(self, tag, labels, predictions, global_step=None, num_thresholds=127, weights=None, walltime=None):
        """Precision and recall of predictions in [0, 1] of labels 0 or 1. Long, because it has so many facts."""
        self._write(summaries.pr_curve(tag, labels, predictions, num_thresholds, weights), global_step, walltime)

    def add_pr_curve_raw(self, tag, true_positive_counts, false_positive_counts, true_negative_counts, false_negative_counts, precision,
                         recall, global_step=None, num_thresholds=127, weights=None, walltime=None):
        """A curve that has been counted, one entry a threshold. Long, because it has so many facts."""
        self._write(summaries.pr_curve_raw(tag, true_positive_counts, false_positive_counts, true_negative_counts, false_negative_counts,
                                           precision, recall, num_thresholds), global_step, walltime)

    def add_hparams(self, hparam_dict, metric_dict, hparam_domain_discrete=None, run_name=None, global_step=None):
        """Hyperparameters and what came of them, {name: value} each, as a run of its own in the folder; domains: {name: values}."""
        check(type(hparam_dict) is dict and type(metric_dict) is dict, "add_hparams", "two dicts", type(hparam_dict).__name__,
              type(metric_dict).__name__, error=TypeError)
        told = list(summaries.hparams(hparam_dict, metric_dict, hparam_domain_discrete or {}))
        with SummaryWriter(os.path.join(self.log_dir, run_name or str(time.time()))) as run:
            for summary in told:
                run.file_writer.add_summary(summary, global_step)
            for name, value in metric_dict.items():
                run.add_scalar(name, value, global_step)

    def flush(self):
        """Write what is queued to disk."""
        for writer in self.all_writers.values():
            writer.flush()

    def close(self):
        """Write what is queued, and end."""
        for writer in self.all_writers.values():
            writer.flush()
            writer.close()
        self.all_writers = {}

    def __enter__(self):
        return self

    def __exit__(self, exc_type, exc_val, exc_tb):
        self.close()
