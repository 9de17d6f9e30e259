"""Scores simple models on the rows of a fine-tuned model, for comparison."""

from collections.abc import Iterable, Mapping

import numpy as np

from ..scoring.word_baseline import has_words
from ..task import Task

# To train on. More is sampled, so that baselines take seconds and less than 1 GB.
MOST_ROWS, _MOST_CHARACTERS, _MOST_WITHOUT_SPACES = 20_000, 20_000_000, 1_000_000


def score_baselines(task: Task, divisions: Iterable[tuple[list, list]]) -> dict[str, dict]:
    """Maps the names of Task.baselines to their `metrics` and `intervals`.

    `divisions` are pairs of train and dev. The predictions for all dev sets are scored together.
    `sampled_rows` is the number of training rows, if these are a sample of train.
    """
    rows: dict[str, list[dict]] = {}
    sampled = {}
    for train, dev in divisions:
        sample = _sample(train)
        if len(sample) < len(train):
            sampled = {"sampled_rows": len(sample)}
        for name, found in task.baselines(sample, dev).items():
            rows.setdefault(name, []).extend(found)
    return {
        name: {"metrics": task.score(found), "intervals": task.intervals(found), **sampled}
        for name, found in rows.items()
    }


def _sample(examples: list) -> list:
    texts = [text for example in examples for text in example.separated]
    most = _MOST_CHARACTERS if has_words(texts) else _MOST_WITHOUT_SPACES
    number = min(MOST_ROWS, 1 + most * len(examples) // max(1, sum(map(len, texts))))
    chosen = np.random.default_rng(0).permutation(len(examples))[:number]
    return [examples[place] for place in np.sort(chosen)]


def describe_baselines(baselines: Mapping[str, dict], metric: str) -> str:
    """Formats the baselines of a metric, such as "; words alone 0.8710 (0.8370 to 0.9000)"."""
    text = ""
    for name, found in baselines.items():
        rows = f" of {found['sampled_rows']:,} rows" if "sampled_rows" in found else ""
        text += f"; {name}{rows} {found['metrics'][metric]:.4f}"
        if name != "majority" and (interval := found["intervals"].get(metric)):
            text += " ({:.4f} to {:.4f})".format(*interval)
    return text


def warn_of_baselines(baselines: Mapping[str, dict], metric: str, value: float) -> None:
    """Prints a warning if the model's `value` of a metric is not above the baselines."""
    values = {name: found["metrics"][metric] for name, found in baselines.items()}
    best = max(values, key=values.__getitem__, default="")
    if values and value <= values[best]:
        print(
            f"warning: {metric} {value:.4f} is not above {values[best]:.4f} of {best}: try other "
            "first weights, more steps, another --learning_rate or more rows; without a gain, "
            f"{'a constant answer' if best == 'majority' else 'a model of words'} is enough"
        )
