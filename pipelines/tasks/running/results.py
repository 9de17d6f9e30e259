"""Summarises the metrics of all seeds as median, lowest and highest values."""

import os
import re
import statistics
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from albert_tf.storage import files
from ..scoring.metrics import describe_figures_of_labels
from ..scoring.thresholds import describe_label_thresholds, describe_thresholds
from .baselines import describe_baselines, warn_of_baselines

RESULTS_FILE = "results.json"
COMBINATIONS_FILE = "combinations.json"


def stored_results(output_dir: str) -> dict[int, dict]:
    """Returns a dict that maps each finished seed to the content of its results.json."""
    names = tf.io.gfile.listdir(output_dir) if tf.io.gfile.isdir(output_dir) else []
    seeds = sorted(
        int(match[1]) for name in names if (match := re.fullmatch(r"seed_(\d+)/?", name))
    )
    paths = {seed: os.path.join(output_dir, f"seed_{seed}", RESULTS_FILE) for seed in seeds}
    return {seed: files.read_json(path) for seed, path in paths.items() if tf.io.gfile.exists(path)}


def summarise(task: str, best_metric: str, results: Mapping[int, Mapping[str, dict]]) -> dict:
    """Returns the metrics of each split: values of all seeds, median, lowest and highest.

    `results` maps a seed to a dict of metrics by split. Some seeds may lack some splits.
    """
    summary: dict[str, Any] = {"task": task, "best_metric": best_metric}
    for split in dict.fromkeys(split for metrics in results.values() for split in metrics):
        seeds = {str(seed): metrics[split] for seed, metrics in results.items() if split in metrics}
        names = next(iter(seeds.values()))
        values = {name: [metrics[name] for metrics in seeds.values()] for name in names}
        summary[split] = {
            "seeds": seeds,
            "median": {name: statistics.median(found) for name, found in values.items()},
            "lowest": {name: min(found) for name, found in values.items()},
            "highest": {name: max(found) for name, found in values.items()},
        }
    return summary


def write_summary(output_dir: str, summary: dict) -> None:
    """Writes OUTPUT_DIR/results.json. Prints medians and ranges (of one seed: intervals)."""
    path = os.path.join(output_dir, RESULTS_FILE)
    files.write_json(path, summary)
    of_seeds = stored_results(output_dir)
    for split, metrics in summary.items():
        if not isinstance(metrics, dict):
            continue
        number = len(metrics["seeds"])
        print(f"\n{summary['task']} on {split}, {number} {'seed' if number == 1 else 'seeds'}")
        seeds, metric = metrics["seeds"], summary["best_metric"]
        best = max(seeds, key=lambda seed: seeds[seed].get(metric, 0))
        details = of_seeds.get(int(best), {}).get("details", {}).get(split, {})
        baselines = metrics.get("baselines", {})
        for name, median in metrics["median"].items():
            spread = _range(metrics["lowest"][name], metrics["highest"][name])
            if number == 1 and (interval := details.get("intervals", {}).get(name)):
                spread = "   95 % interval {:.4f} to {:.4f}".format(*interval)
            spread += describe_baselines(baselines, name)
            print(f"  {name:<24} {'median ' * (number > 1)}{median:8.4f}{spread}")
        if split == "dev":
            for line in describe_details(details, best):
                print(f"  {line}")
        warn_of_baselines(baselines, metric, metrics["median"].get(metric))
    print(f"results      {path}")


def _range(low: float, high: float) -> str:
    """Formats a range, or returns an empty string if both numbers look the same."""
    return f"   {low:.4f} to {high:.4f}" * (f"{low:.4f}" != f"{high:.4f}")


def describe_details(details: Mapping[str, dict], seed: int | str) -> list[str]:
    """Formats the `details` of a seed's answers: metrics per label and chosen thresholds."""
    labels, lines, chosen = details.get("labels", {}), [], []
    if labels:
        lines = describe_figures_of_labels(labels, f"labels of seed {seed}")
        chosen = describe_label_thresholds(labels)
    if "thresholds" in details:
        chosen = describe_thresholds(details["thresholds"])
    if chosen:
        lines.append(f"chosen for seed {seed} on these rows: expect lower values on others")
    return lines + chosen


def write_combinations(output_dir: str, summaries: Mapping[str, dict]) -> None:
    """Writes OUTPUT_DIR/combinations.json: the results of several settings, and the best settings.

    The best settings are the first with the highest median of `best_metric` on dev. Results of
    earlier calls with this directory are kept.
    """
    path = os.path.join(output_dir, COMBINATIONS_FILE)
    earlier = files.read_json(path)["combinations"] if tf.io.gfile.exists(path) else {}
    summaries = {**earlier, **summaries}
    metric = next(iter(summaries.values()))["best_metric"]
    best = max(summaries, key=lambda name: summaries[name]["dev"]["median"][metric])
    files.write_json(path, {"best": best, "best_metric": metric, "combinations": summaries})
    width = max(8, *map(len, summaries))
    print(f"\n{'settings':<{width}} {'metric on dev':<24} {'median':>8}")
    for name, summary in summaries.items():
        dev = summary["dev"]
        for of_dev, median in dev["median"].items():
            spread = _range(dev["lowest"][of_dev], dev["highest"][of_dev])
            print(f"{name:<{width}} {of_dev:<24} {median:8.4f}{spread}")
    print(
        f"best     {os.path.join(output_dir, best)} by {metric}, chosen on these rows: expect a "
        f"lower value on others\nresults  {path}"
    )
