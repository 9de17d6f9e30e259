"""Draws learning curves and confusion matrices as PNG files."""

import os
from collections.abc import Mapping, Sequence

import numpy as np

from albert_tf.jobs import pictures
from ...training.metrics_log import read_metrics
from ..reading.split_report import shortened

# With more labels, the cells of a confusion matrix would be too small to read.
MOST_LABELS = 40


def draw_learning_curves(
    model_dir: str, kept_step: int, best_metric: str, baselines: Mapping[str, dict]
) -> str:
    """Plots the training loss and the dev metrics by step. Returns the path of the PNG file.

    `kept_step` is the step of the kept weights. For `baselines` see score_baselines.
    """
    entries = read_metrics(model_dir)
    names = dict.fromkeys(name for entry in entries for name in entry if name.startswith("dev_"))
    panels = ["loss", *names]
    columns = min(3, len(panels))
    rows = -(-len(panels) // columns)
    figure = pictures.new_figure(4.5 * columns, 3.2 * rows)
    axes = figure.subplots(rows, columns, squeeze=False)
    for axis, name in zip(axes.flat, panels):
        points = [(entry["step"], entry[name]) for entry in entries if name in entry]
        axis.plot(*zip(*points), "-" if name == "loss" else "o-", linewidth=1.2, markersize=3)
        if name != "loss":
            axis.axvline(kept_step, color="grey", linestyle=":", label=f"kept: step {kept_step}")
        if name == f"dev_{best_metric}":
            for (label, found), style in zip(baselines.items(), ("--", "-.")):
                value = found["metrics"][best_metric]
                axis.axhline(value, color="black", linestyle=style, label=label)
            axis.legend(fontsize=8)
        title = "training loss" if name == "loss" else name.replace("_", " ")
        axis.set_title(title, parse_math=False)  # may contain names of entity types
        axis.set_xlabel("step")
        axis.xaxis.get_major_locator().set_params(integer=True)
        axis.grid(alpha=0.3)
    for axis in list(axes.flat)[len(panels) :]:
        axis.set_axis_off()
    return pictures.write(figure, os.path.join(model_dir, "curves.png"))


def draw_cosines(path: str, of_pairs: Sequence[float], of_others: Sequence[float]) -> str:
    """Draws histograms of the cosines of pairs and of random pairs. Returns the path of the PNG."""
    axis = pictures.new_figure(5, 3.4).subplots()
    bins = np.linspace(min(0, *of_pairs, *of_others), 1, 51)
    for name, values in (("pairs", of_pairs), ("random pairs", of_others)):
        axis.hist(values, bins, alpha=0.6, label=f"{name}, mean {np.mean(values):.2f}")
    axis.set(xlabel="cosine", ylabel="number of pairs")
    axis.legend(fontsize=8)
    return pictures.write(axis.figure, path)


def draw_confusion_matrix(path: str, labels: Sequence[str], counts: np.ndarray) -> str:
    """Draws a confusion matrix. Returns the path of the PNG file.

    There must be at most MOST_LABELS labels. `counts` is int64 [labels, predictions].
    """
    shares = counts / np.maximum(1, counts.sum(axis=1, keepdims=True))
    side = 2.5 + 0.5 * len(labels)
    figure = pictures.new_figure(side + 2, side)
    axis = figure.subplots()
    image = axis.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    for row, column in np.ndindex(counts.shape):
        color = "white" if shares[row, column] > 0.5 else "black"
        text = f"{counts[row, column]:,}"
        axis.text(column, row, text, ha="center", va="center", color=color, fontsize=8)
    names = [shortened(label, 24) for label in labels]
    axis.set_xticks(range(len(labels)), names, rotation=45, ha="right", parse_math=False)
    rows = counts.sum(axis=1)
    recalls = (f"{share:.0%}" if number else "-" for number, share in zip(rows, shares.diagonal()))
    described = (f"{n} ({m:,}; {r})" for n, m, r in zip(names, rows, recalls))
    axis.set_yticks(range(len(labels)), described, parse_math=False)
    figure.colorbar(image, shrink=0.8, label="share of the label's rows")
    name = os.path.basename(path).removesuffix("_confusion.png")
    axis.set_title(f"{name}: {rows.sum():,} rows", fontsize=10)
    axis.set_xlabel("prediction")
    axis.set_ylabel("label (rows; recall)")
    return pictures.write(figure, path)
