"""The curves of a run: metrics.jsonl, TensorBoard, and a picture.

An object store has no appending: there each entry would fetch and store the whole log again. So a
remote log is kept in memory and in local temporary space, and uploaded with each checkpoint.
"""

from __future__ import annotations

import io
import json
import os
import tempfile

import tensorflow as tf
from absl import logging

from albert_tf import files


class MetricsLog:
    """Writes scalars by step to MODEL_DIR/metrics.jsonl and MODEL_DIR/tensorboard.

    Args:
      model_dir: the run's directory.
      step: where the run stands; what a killed run logged beyond it is taken back from
        metrics.jsonl. TensorBoard keeps it beside what the run logs when it comes there again.
      writes: false on all hosts of a run but one.
    """

    def __init__(self, model_dir: str, step: int, writes: bool = True):
        self._path = os.path.join(model_dir, "metrics.jsonl")
        self._entries = [entry for entry in read_metrics(model_dir) if entry["step"] <= step]
        self._writes = writes
        self._curves = os.path.join(model_dir, "tensorboard")
        self._space = None
        self._stored = -1  # entries that are in the store
        if not writes:
            return
        directory = self._curves
        if files.is_remote(model_dir):
            self._space = tempfile.TemporaryDirectory()  # removes itself
            directory = self._space.name
        else:
            files.write_atomically(self._path, self._lines())
        self._writer = tf.summary.create_file_writer(directory)

    def values(self, name: str, since: int = 0) -> list[float]:
        """Returns what was logged of one metric after step `since`, in order."""
        return [entry[name] for entry in self._entries if entry["step"] > since and name in entry]

    def has(self, name: str, step: int) -> bool:
        """Tells whether a metric was logged at a step."""
        return any(entry["step"] == step and name in entry for entry in self._entries)

    def write(self, step: int, scalars: dict[str, float]) -> None:
        """Logs the scalars of one step."""
        self._entries.append({"step": step, **scalars})
        if not self._writes:
            return
        if not self._space:
            with tf.io.gfile.GFile(self._path, "a") as file:
                file.write(json.dumps({"step": step, **scalars}) + "\n")
        with self._writer.as_default(step):
            for name, value in scalars.items():
                tf.summary.scalar(name, value)
        self._writer.flush()

    def upload(self) -> None:
        """Stores a remote log, before each checkpoint and at the end; a failure is a warning.

        A checkpoint without the log up to its step would leave a gap in the curves after a kill.
        """
        if not self._space or self._stored == len(self._entries):
            return
        try:
            files.write_atomically(self._path, self._lines())
            for name in os.listdir(self._space.name):
                local = os.path.join(self._space.name, name)
                tf.io.gfile.copy(local, os.path.join(self._curves, name), overwrite=True)
            self._stored = len(self._entries)
        except (OSError, tf.errors.OpError) as error:
            logging.warning("the log is not stored, training continues: %s", error)

    def _lines(self) -> str:
        return "".join(json.dumps(entry) + "\n" for entry in self._entries)


def read_metrics(model_dir: str) -> list[dict[str, float]]:
    """Returns the entries of MODEL_DIR/metrics.jsonl; a line cut off by a kill is left out."""
    path = os.path.join(model_dir, "metrics.jsonl")
    if not tf.io.gfile.exists(path):
        return []
    with tf.io.gfile.GFile(path) as file:
        lines = file.read().split("\n")
    entries = []
    # Every whole line ends in a newline: what stands behind the last one was being written.
    for number, line in enumerate(lines[:-1], start=1):
        try:
            entries.append(json.loads(line))
        except ValueError:
            logging.warning("%s:%d is damaged and left out", path, number)
    return entries


def draw_curves(model_dir: str) -> str:
    """Draws loss, accuracies, learning rate and gradient norm; returns the PNG's path."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    entries = read_metrics(model_dir)
    panels = (
        ("masked-LM loss, nats", "masked_lm_loss"),
        ("masked-LM accuracy", "masked_lm_accuracy"),
        ("sentence-order loss, nats", "sentence_order_loss"),
        ("sentence-order accuracy", "sentence_order_accuracy"),
        ("learning rate", "learning_rate"),
        ("gradient norm", "gradient_norm"),
    )
    figure, axes = pyplot.subplots(2, 3, figsize=(13, 7), constrained_layout=True)
    for axis, (title, name) in zip(axes.T.flat, panels):
        for prefix, style in (("", "-"), ("heldout_", "o-")):
            points = [(e["step"], e[prefix + name]) for e in entries if prefix + name in e]
            if points:
                axis.plot(*zip(*points), style, linewidth=1.2, markersize=3)
        axis.set_title(title)
        axis.set_xlabel("step")
        axis.grid(alpha=0.3)
    if any("heldout_loss" in entry for entry in entries):
        axes[0, 0].legend(["training", "held out"])
    path = os.path.join(model_dir, "curves.png")
    image = io.BytesIO()
    figure.savefig(image, format="png", dpi=110)
    pyplot.close(figure)
    files.write_atomically(path, image.getvalue())
    return path
