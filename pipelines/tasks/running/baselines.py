"""Scores simple models on the rows of a fine-tuned model, for comparison."""

from collections.abc import Callable, Iterable, Mapping

import tensorflow as tf

from albert_tf.storage import files
from ..task import Task


def kept_baselines(path: str, of: dict, metric: str, score: Callable[[], dict]) -> dict[str, dict]:
    """Returns `score()`, and prints its `metric`. It is kept at `path`, for the same `of`."""
    kept = files.read_json(path) if tf.io.gfile.exists(path) else {}
    baselines = kept["baselines"] if kept.get("of") == of else score()
    if baselines:
        files.write_json(path, {"of": of, "baselines": baselines})
        print(f"baselines    {metric} on dev{describe_baselines(baselines, metric)}", flush=True)
    return baselines


def score_baselines(task: Task, divisions: Iterable[tuple[list, list]]) -> dict[str, dict]:
    """Maps the names of Task.baselines to their `metrics` and `intervals`.

    `divisions` are pairs of train and dev. The predictions for all dev sets are scored together.
    `sampled_rows` is the number of training rows, if these are a sample of train. Prints a warning
    and returns an empty dict if a baseline cannot be fitted.
    """
    rows: dict[str, list[dict]] = {}
    sampled = {}
    for train, dev in divisions:
        sample = task.baseline_sample(train)
        if len(sample) < len(train):
            sampled = {"sampled_rows": len(sample)}
        try:
            baselines = task.baselines(sample, dev)
        except Exception as error:  # of scikit-learn: no reason to end fine-tuning
            print(f"warning: no baselines: {type(error).__name__}: {error}; going on without them")
            return {}
        for name, found in baselines.items():
            rows.setdefault(name, []).extend(found)
    return {name: {**scored(task, name, found), **sampled} for name, found in rows.items()}


def scored(task: Task, name: str, rows: list[dict]) -> dict:
    """Returns the `metrics` of a baseline's rows, and their `intervals` unless it is "majority"."""
    intervals = {} if name == "majority" else {"intervals": task.intervals(rows)}
    return {"metrics": task.score(rows), **intervals}


def describe_baselines(baselines: Mapping[str, dict], metric: str) -> str:
    """Formats the baselines of a metric, such as "; words alone 0.8710 (0.8370 to 0.9000)"."""
    text = ""
    for name, found in baselines.items():
        rows = f" of {found['sampled_rows']:,} rows" if "sampled_rows" in found else ""
        text += f"; {name}{rows} {found['metrics'][metric]:.4f}"
        if interval := found.get("intervals", {}).get(metric):
            text += " ({:.4f} to {:.4f})".format(*interval)
    return text


def warn_of_baselines(baselines: Mapping[str, dict], metric: str, value: float) -> None:
    """Prints a warning if the model's `value` of a metric is not above the baselines."""
    values = {name: found["metrics"][metric] for name, found in baselines.items()}
    best = max(values, key=values.__getitem__, default="")
    if values and value <= values[best]:
        low, _ = baselines[best].get("intervals", {}).get(metric, (values[best], 0))
        near = " (but within its interval)" if low <= value < values[best] else ""
        advice = (
            "try other first weights, more steps, another --learning_rate or more rows; without a "
            "gain, "
        ) * (value < 1)
        enough = {"majority": "a constant answer", "untrained": "the initial model"}
        print(
            f"warning: {metric} {value:.4f} is not above {values[best]:.4f} of {best}{near}: "
            f"{advice}{enough.get(best, 'a model of words')} is enough"
        )
