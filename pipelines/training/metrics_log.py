"""Writes the metrics of a run to metrics.jsonl and TensorBoard, and draws curves.png.

Object stores cannot append to a file, so each new entry would rewrite the whole log. Therefore, a
remote log is kept in memory and in a local temporary directory. Both files are uploaded before each
checkpoint and at the end of the run.
"""

import json
import math
import os
import tempfile
import time
from collections.abc import Iterable, Mapping

import tensorflow as tf
from absl import logging

from albert_tf.jobs import pictures
from albert_tf.storage import files

# Expected values for random guessing between two labels. They are drawn as dotted lines.
_CHANCE = {
    "sentence_order_loss": math.log(2),
    **dict.fromkeys(("sentence_order_accuracy", "openings_accuracy", "inside_accuracy"), 0.5),
}
_BASELINE = "heldout_most_frequent_accuracy"  # of always predicting the most frequent piece


class MetricsLog:
    """Logs scalars for each step to MODEL_DIR/metrics.jsonl and MODEL_DIR/tensorboard.

    `step` is the step of the restored checkpoint. Entries of later steps are deleted, but not from
    local TensorBoard files. `writes` must be True on exactly one host of a run.
    """

    def __init__(self, model_dir: str, step: int, writes: bool = True):
        self._path = os.path.join(model_dir, "metrics.jsonl")
        self._entries = [entry for entry in read_metrics(model_dir) if entry["step"] <= step]
        self._writes = writes
        self._curves = os.path.join(model_dir, "tensorboard")
        self._space: tempfile.TemporaryDirectory[str] | None = None
        if not writes:
            return
        if files.is_remote(model_dir):
            self._space = tempfile.TemporaryDirectory()  # deleted automatically at exit
            self._writer = tf.summary.create_file_writer(self._space.name)
            for entry in self._entries:
                self._write_curves(entry)
        else:
            files.write_atomically(self._path, self._lines())
            self._writer = tf.summary.create_file_writer(self._curves)

    def entries(self, names: Iterable[str]) -> list[dict[str, float]]:
        """Returns the entries that have one of the metrics, in order."""
        return [entry for entry in self._entries if not entry.keys().isdisjoint(names)]

    def write(self, step: int, scalars: dict[str, float]) -> None:
        """Logs the scalars of one step, with the current Unix time in seconds."""
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

    def upload(self) -> None:
        """Uploads a remote log, and deletes the TensorBoard files of earlier processes.

        Call this before saving a checkpoint, because a resumed run needs all earlier log entries.
        If the upload fails, a warning is logged.
        """
        if not self._space:
            return
        try:
            files.write_atomically(self._path, self._lines())
            self._writer.flush()
            (name,) = os.listdir(self._space.name)
            with open(os.path.join(self._space.name, name), "rb") as file:
                files.write_atomically(os.path.join(self._curves, name), file.read())
            for other in {*files.names_in(self._curves)} - {name}:
                files.remove(os.path.join(self._curves, other))
        except (OSError, tf.errors.OpError) as error:
            logging.warning("the log is not stored, training continues: %s", error)

    def _lines(self) -> str:
        return "".join(json.dumps(entry) + "\n" for entry in self._entries)


def accuracy_text(name: str, scalars: Mapping[str, float]) -> str:
    """Formats an accuracy with the number of its labels, if known: `openings acc 1.000 of 2`."""
    kind = name.removesuffix("_accuracy")
    pairs = scalars.get(f"{kind}_pairs")
    of_pairs = "" if pairs is None else f" of {pairs:,.0f}"
    shown = kind.removeprefix("heldout_").replace("_", " ")
    return f"{shown} acc {scalars[name]:.3f}{of_pairs}"


def read_metrics(model_dir: str) -> list[dict[str, float]]:
    """Returns the entries of MODEL_DIR/metrics.jsonl. Skips truncated and damaged lines."""
    path = os.path.join(model_dir, "metrics.jsonl")
    if not tf.io.gfile.exists(path):
        return []
    with tf.io.gfile.GFile(path) as file:
        lines = file.read().split("\n")
    entries = []
    # A complete line ends in a newline, so text after the last newline is skipped.
    for number, line in enumerate(lines[:-1], start=1):
        try:
            entries.append(json.loads(line))
        except ValueError:
            logging.warning("%s:%d is damaged and skipped", path, number)
    return entries


def draw_curves(model_dir: str) -> str:
    """Plots losses, accuracies, learning rate and gradient norm. Returns the path of the PNG.

    A metric that was never logged has no panel.
    """
    entries = read_metrics(model_dir)
    logged = {name.removeprefix("heldout_") for entry in entries for name in entry}
    panels = [
        ("masked-LM loss, nats", "masked_lm_loss"),
        ("masked-LM accuracy", "masked_lm_accuracy"),
        ("sentence-order loss, nats", "sentence_order_loss"),
        ("sentence-order accuracy", "sentence_order_accuracy"),
        ("order accuracy: openings of documents", "openings_accuracy"),
        ("order accuracy: inside documents", "inside_accuracy"),
        ("learning rate", "learning_rate"),
        ("gradient norm", "gradient_norm"),
    ]
    panels = [(title, name) for title, name in panels if name in logged]
    columns = max(1, math.ceil(len(panels) / 2))
    figure = pictures.new_figure(4.25 * columns, 7)
    axes = figure.subplots(2, columns, squeeze=False)
    for axis in axes.T.flat[len(panels) :]:
        axis.set_axis_off()
    for axis, (title, name) in zip(axes.T.flat, panels):
        styles = {name: "-", f"heldout_{name}": "o-"}
        if name.startswith("masked_lm"):
            styles[f"heldout_{name.replace('masked_lm', 'masked_lm_at_mask')}"] = "s--"
        for curve, style in styles.items():
            if points := [(e["step"], e[curve]) for e in entries if curve in e]:
                axis.plot(*zip(*points), style, linewidth=1.2, markersize=3)
        if name == "masked_lm_accuracy":
            for baseline in [e[_BASELINE] for e in entries if _BASELINE in e][-1:]:
                axis.axhline(baseline, color="black", linestyle=":", linewidth=1)
        if name in _CHANCE:
            axis.axhline(_CHANCE[name], color="black", linestyle=":", linewidth=1)
        kind = name.removesuffix("_accuracy")
        held_out = [e for e in entries if f"heldout_{kind}_pairs" in e]
        if held_out:
            # Two standard errors of an accuracy of 0.5: 2 * sqrt(0.5 * 0.5 / pairs).
            band = 1 / math.sqrt(held_out[-1][f"heldout_{kind}_pairs"])
            axis.axhspan(0.5 - band, 0.5 + band, color="black", alpha=0.12, linewidth=0)
            for rival, style in (("words", ":"), ("overlap", "-.")):
                value = held_out[-1].get(f"heldout_{kind}_{rival}_accuracy")
                if value is not None:
                    axis.axhline(value, color="grey", linestyle=style, linewidth=1, label=rival)
            if axis.get_legend_handles_labels()[0]:
                axis.legend(title="baselines", fontsize=8, title_fontsize=8)
        axis.set_title(title)
        axis.set_xlabel("step")
        axis.xaxis.get_major_locator().set_params(integer=True)
        axis.grid(alpha=0.3)
    if any("heldout_loss" in entry for entry in entries):
        axes[0, 0].legend(["training", "held out", "held out, at [MASK]"])
    return pictures.write(figure, os.path.join(model_dir, "curves.png"))
