"""The metrics of all seeds (median and spread), and the test sets that a run has predicted."""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Mapping, Sequence

import tensorflow as tf

from albert_tf import files

RESULTS_FILE = "results.json"
_TEST_SETS_FILE = "test_sets.json"


def name_test_sets(
    output_dir: str,
    fingerprints: Mapping[str, str],
    paths: Mapping[str, Sequence[str]],
    writes: bool,
) -> dict[str, str]:
    """Returns a name for each test set: its own, or NAME_2 and so on if another set has that.

    The figures of earlier sets stay under their names. OUTPUT_DIR/test_sets.json holds all.

    Args:
      output_dir: of fine-tuning; its test_sets.json is read, and written if `writes`.
      fingerprints: name of the split -> hash of its examples.
      paths: name of the split -> its files, for the reader of that file.
      writes: whether this host writes files.
    """
    file = os.path.join(output_dir, _TEST_SETS_FILE)
    known = files.read_json(file) if tf.io.gfile.exists(file) else {}
    names, before = {}, len(known)
    for split, fingerprint in fingerprints.items():
        number, name = 1, split
        while name in known and known[name]["fingerprint"] != fingerprint:
            number += 1
            name = f"{split}_{number}"
        known.setdefault(name, {"fingerprint": fingerprint, "files": list(paths.get(split, ()))})
        names[split] = name
    if writes and len(known) > before:
        files.write_atomically(file, json.dumps(known, indent=2) + "\n")
    return names


def summarise(task: str, best_metric: str, results: Mapping[int, Mapping[str, dict]]) -> dict:
    """Returns, of each split with answers, all seeds' metrics with median, lowest and highest.

    Args:
      task: as of --task.
      best_metric: the metric that chose each seed's best weights.
      results: seed -> split -> metrics. A set that not every seed was asked is of those that were.
    """
    summary = {"task": task, "best_metric": best_metric}
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
    """Writes OUTPUT_DIR/results.json and prints its medians."""
    path = os.path.join(output_dir, RESULTS_FILE)
    files.write_atomically(path, json.dumps(summary, indent=2) + "\n")
    for split, metrics in summary.items():
        if not isinstance(metrics, dict):
            continue
        number = len(metrics["seeds"])
        print(f"\n{summary['task']} on {split}, {number} {'seed' if number == 1 else 'seeds'}")
        for name, median in metrics["median"].items():
            low, high = metrics["lowest"][name], metrics["highest"][name]
            print(f"  {name:<24} median {median:8.4f}   {low:.4f} to {high:.4f}")
    print(f"results      {path}")
