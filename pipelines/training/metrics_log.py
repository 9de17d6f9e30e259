"""Writes the metrics of a run to metrics.jsonl and TensorBoard, and draws curves.png.

Object stores cannot append: each entry would fetch and store the whole log again. So a remote log
is kept in memory and in local temporary space. metrics.jsonl is uploaded before each checkpoint,
TensorBoard's file before every second checkpoint and at the end. An upload takes two requests.
"""

from __future__ import annotations

import json
import math
import os
import tempfile
import time

import tensorflow as tf
from absl import logging

from albert_tf.jobs import pictures
from albert_tf.storage import files

# The values of random guessing between two labels, drawn as dotted lines.
_CHANCE = {
    "sentence_order_loss": math.log(2),
    "sentence_order_accuracy": 0.5,
    "openings_accuracy": 0.5,
    "inside_accuracy": 0.5,
}


class MetricsLog:
    """Writes scalars by step to MODEL_DIR/metrics.jsonl and MODEL_DIR/tensorboard.

    `step` is the step of the restored checkpoint. Entries of later steps are removed from
    metrics.jsonl. Local TensorBoard files keep them beside the new entries; remote files are
    rewritten from metrics.jsonl. `writes` is true on one host of a run only.
    """

    def __init__(self, model_dir: str, step: int, writes: bool = True):
        self._path = os.path.join(model_dir, "metrics.jsonl")
        self._entries = [entry for entry in read_metrics(model_dir) if entry["step"] <= step]
        self._writes = writes
        self._curves = os.path.join(model_dir, "tensorboard")
        self._space = None
        # Entries uploaded by this process to metrics.jsonl and to TensorBoard's file; -1: no upload
        self._stored = self._stored_curves = -1
        self._uploads = 0
        if not writes:
            return
        if files.is_remote(model_dir):
            self._space = tempfile.TemporaryDirectory()  # removes itself
            self._writer = tf.summary.create_file_writer(self._space.name)
            for entry in self._entries:
                self._write_curves(entry)
        else:
            files.write_atomically(self._path, self._lines())
            self._writer = tf.summary.create_file_writer(self._curves)

    def values(self, name: str, since: int = 0) -> list[float]:
        """Returns the logged values of a metric after step `since`, in order."""
        return [entry[name] for entry in self._entries if entry["step"] > since and name in entry]

    def has(self, name: str, step: int) -> bool:
        """Returns whether a metric was logged at a step."""
        return any(entry["step"] == step and name in entry for entry in self._entries)

    def write(self, step: int, scalars: dict[str, float]) -> None:
        """Logs the scalars of one step with the time in seconds since 1970, UTC."""
        entry = {"step": step, "time": round(time.time()), **scalars}
        self._entries.append(entry)
        if not self._writes:
            return
        if not self._space:
            with tf.io.gfile.GFile(self._path, "a") as file:
                file.write(json.dumps(entry) + "\n")
        self._write_curves(entry)
        self._writer.flush()

    def _write_curves(self, entry: dict[str, float]) -> None:
        with self._writer.as_default(entry["step"]):
            for name, value in entry.items():
                if name not in ("step", "time"):
                    tf.summary.scalar(name, value)

    def upload(self, last: bool = False) -> None:
        """Uploads a remote log; a failure is only a warning.

        Call it before each checkpoint: the log must reach the step from which a run may resume.
        `last`: whether nothing more will be logged.
        """
        if not self._space:
            return
        try:
            if self._stored < len(self._entries):
                files.write_atomically(self._path, self._lines())
                self._stored = len(self._entries)
                self._uploads += 1
            if self._stored_curves < self._stored and (last or self._uploads % 2 == 0):
                self._upload_curves()
        except (OSError, tf.errors.OpError) as error:
            logging.warning("the log is not stored, training continues: %s", error)

    def _upload_curves(self) -> None:
        """Uploads TensorBoard's file, which has all entries; at first removes earlier files."""
        self._writer.flush()
        (name,) = os.listdir(self._space.name)
        with open(os.path.join(self._space.name, name), "rb") as file:
            # This takes two requests; tf.io.gfile.copy would take four.
            files.write_atomically(os.path.join(self._curves, name), file.read())
        if self._stored_curves < 0:
            for other in files.names_in(self._curves):
                if other != name:
                    files.remove(os.path.join(self._curves, other))
        self._stored_curves = len(self._entries)

    def _lines(self) -> str:
        return "".join(json.dumps(entry) + "\n" for entry in self._entries)


def read_metrics(model_dir: str) -> list[dict[str, float]]:
    """Returns the entries of MODEL_DIR/metrics.jsonl; a line that a kill truncated is skipped."""
    path = os.path.join(model_dir, "metrics.jsonl")
    if not tf.io.gfile.exists(path):
        return []
    with tf.io.gfile.GFile(path) as file:
        lines = file.read().split("\n")
    entries = []
    # Every complete line ends in a newline; text after the last newline is incomplete.
    for number, line in enumerate(lines[:-1], start=1):
        try:
            entries.append(json.loads(line))
        except ValueError:
            logging.warning("%s:%d is damaged and skipped", path, number)
    return entries


def draw_curves(model_dir: str) -> str:
    """Draws loss, accuracies, learning rate and gradient norm; returns the PNG's path."""
    entries = read_metrics(model_dir)
    panels = (
        ("masked-LM loss, nats", "masked_lm_loss"),
        ("masked-LM accuracy", "masked_lm_accuracy"),
        ("sentence-order loss, nats", "sentence_order_loss"),
        ("sentence-order accuracy", "sentence_order_accuracy"),
        ("order accuracy: openings of documents", "openings_accuracy"),
        ("order accuracy: inside documents", "inside_accuracy"),
        ("learning rate", "learning_rate"),
        ("gradient norm", "gradient_norm"),
    )
    figure = pictures.new_figure(17, 7)
    axes = figure.subplots(2, 4)
    for axis, (title, name) in zip(axes.T.flat, panels):
        for prefix, style in (("", "-"), ("heldout_", "o-")):
            points = [(e["step"], e[prefix + name]) for e in entries if prefix + name in e]
            if points:
                axis.plot(*zip(*points), style, linewidth=1.2, markersize=3)
        if name in _CHANCE:
            axis.axhline(_CHANCE[name], color="black", linestyle=":", linewidth=1)
        kind = name.removesuffix("_accuracy")
        held_out = [e for e in entries if f"heldout_{kind}_pairs" in e]
        if held_out:
            # Two standard errors of an accuracy at chance: 2 * sqrt(0.5 * 0.5 / pairs).
            band = 1 / math.sqrt(held_out[-1][f"heldout_{kind}_pairs"])
            axis.axhspan(0.5 - band, 0.5 + band, color="black", alpha=0.12, linewidth=0)
            for baseline, style in (("lengths", "--"), ("words", (0, (1, 3))), ("overlap", "-.")):
                value = held_out[-1].get(f"heldout_{kind}_{baseline}_accuracy")
                if value is not None:
                    axis.axhline(value, color="grey", linestyle=style, linewidth=1, label=baseline)
            if axis.get_legend_handles_labels()[0]:
                axis.legend(title="baselines", fontsize=8, title_fontsize=8)
        axis.set_title(title)
        axis.set_xlabel("step")
        axis.xaxis.get_major_locator().set_params(integer=True)
        axis.grid(alpha=0.3)
    if any("heldout_loss" in entry for entry in entries):
        axes[0, 0].legend(["training", "held out"])
    return pictures.write(figure, os.path.join(model_dir, "curves.png"))
