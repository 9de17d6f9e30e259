"""Compares several runs: prints their metrics and differing settings, and plots their curves.

A run is an output directory of pipelines.pretrain or pipelines.finetune. For fine-tuning with
several seeds, the median of each metric is printed. For pre-training, the metrics of the last
evaluation on held-out data are printed.

Examples:
  python -m pipelines.compare --runs='runs/*'
  python -m pipelines.compare --runs=runs/base,runs/deeper --output=curves.png
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from absl import flags

from albert_tf.checkpoints.model_directory import read_if_exists, recorded_settings
from albert_tf.jobs import pictures, program
from albert_tf.storage import files
from albert_tf.storage.errors import UserError
from .tasks.running.results import RESULTS_FILE, stored_results
from .training.metrics_log import read_metrics

FLAGS = flags.FLAGS

_EVALUATED = ("dev_", "heldout_masked_lm", "heldout_openings_accuracy", "heldout_inside_accuracy")


class ComparedRun(NamedTuple):
    """The recorded settings, metrics and curves of a run.

    Attributes:
      settings: content of run.json.
      figures: dict mapping the name of a metric to its value.
      curves: entries of metrics.jsonl. Fine-tuning has one list per seed.
    """

    path: str
    settings: dict[str, Any]
    figures: dict[str, float]
    curves: list[list[dict[str, float]]]


def define_flags() -> None:
    """Defines the flags of this program. Other programs may use the same flag names."""
    flags.DEFINE_list("runs", None, "Directories of runs, or glob patterns.", required=True)
    flags.DEFINE_string("output", None, "PNG file to which the curves are written.")


def main(_) -> None:
    """Runs the program with the values of its flags."""
    compare(FLAGS.runs, FLAGS.output)


def compare(patterns: Sequence[str], output: str | None = None) -> list[ComparedRun]:
    """Prints a comparison of the runs and returns them. Skips directories that contain no run.

    Raises:
      UserError: if no run is found.
    """
    paths = [path for pattern in patterns for path in sorted(files.expand(pattern.rstrip("/")))]
    # Other jobs also write a run.json, but without num_train_steps.
    runs = [_read(path) for path in paths if "num_train_steps" in recorded_settings(path)]
    if not runs:
        raise UserError(
            f"--runs={','.join(patterns)}: no directory of pretrain or finetune there: give their "
            "--model_dir or --output_dir, and OUTPUT_DIR/* after folds or several settings"
        )
    for number, run in enumerate(runs, start=1):
        print(f"{number:>3}  {run.path}")
    settings = [run.settings for run in runs]
    differing = {
        name: [values.get(name, "-") for values in settings]
        for name in dict.fromkeys(name for values in settings for name in values)
        if any(values.get(name) != settings[0].get(name) for values in settings)
    }
    _print_table("settings that differ", differing)
    names = dict.fromkeys(name for run in runs for name in run.figures)
    _print_table("figures", {name: [run.figures.get(name, "-") for run in runs] for name in names})
    if output:
        print(f"\ncurves       {_draw(runs, output)}")
    return runs


def _read(path: str) -> ComparedRun:
    settings = recorded_settings(path)
    if "task" not in settings:
        entries = read_metrics(path)
        evaluated = [entry for entry in entries if "heldout_loss" in entry]
        last = evaluated[-1] if evaluated else {}
        figures = {name: value for name, value in last.items() if name.startswith(_EVALUATED)}
        step = last.get("step", entries[-1]["step"] if entries else 0)
        return ComparedRun(path, settings, {"step": step, **figures}, [entries])
    summary = read_if_exists(path, RESULTS_FILE)
    figures = {
        f"{split} {name}": value
        for split, metrics in summary.items()
        if isinstance(metrics, dict)
        for name, value in metrics["median"].items()
    }
    seeds = stored_results(path)
    curves = [read_metrics(os.path.join(path, f"seed_{seed}")) for seed in seeds]
    return ComparedRun(path, settings, {"seeds": len(seeds), **figures}, curves)


def _print_table(title: str, rows: Mapping[str, Sequence[Any]]) -> None:
    """Prints a table with one row per name and one column per run."""
    print(f"\n{title}")
    for name, values in rows.items():
        print(f"  {name:<36}" + "".join(f"{_cell(value):>14}" for value in values))
    if not rows:
        print("  none")


def _cell(value: Any) -> str:
    """Formats a value in at most 13 characters. Values below 0.01 are not rounded."""
    is_figure = isinstance(value, float) and abs(value) > 0.01
    text = f"{value:.4f}" if is_figure else str(value)
    return text if len(text) < 14 else f"{text[:12]}~"


def _draw(runs: Sequence[ComparedRun], path: str) -> str:
    """Plots training loss and evaluation metrics, with one colour per run. Returns the path."""
    entries = [entry for run in runs for curve in run.curves for entry in curve]
    names = dict.fromkeys(n for entry in entries for n in entry if n.startswith(_EVALUATED))
    panels = ["loss", *names]
    columns = min(3, len(panels))
    rows = -(-len(panels) // columns)
    figure = pictures.new_figure(5 * columns, 3.5 * rows + 0.25 * len(runs))
    axes = figure.subplots(rows, columns, squeeze=False)
    for axis, name in zip(axes.flat, panels):
        for number, run in enumerate(runs):
            batch = run.settings["global_batch_size"]
            for curve in run.curves:
                points = [(entry["step"] * batch, entry[name]) for entry in curve if name in entry]
                if points:
                    style = "-" if name == "loss" else "o-"
                    axis.plot(*zip(*points), style, color=f"C{number}", linewidth=1.2, markersize=3)
        title = "training loss" if name == "loss" else name.replace("_", " ")
        axis.set_title(title, parse_math=False)
        axis.set_xlabel("examples")
        axis.locator_params(axis="x", nbins=6, integer=True)  # avoids overlapping labels
        axis.grid(alpha=0.3)
    for axis in list(axes.flat)[len(panels) :]:
        axis.set_axis_off()
    handles = [
        axes[0, 0].plot([], [], color=f"C{n}", label=run.path)[0] for n, run in enumerate(runs)
    ]
    figure.legend(handles=handles, loc="outside lower left", fontsize=8)
    return pictures.write(figure, path)


if __name__ == "__main__":
    define_flags()
    program.run(main)
