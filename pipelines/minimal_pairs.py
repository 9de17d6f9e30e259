"""Evaluates a pre-trained ALBERT on minimal pairs of a right and a wrong sentence.

The model prefers the sentence with the higher pseudo-log-likelihood (see albert_tf/scoring.py).
Prints how often it prefers the right sentence, for each group of pairs and as the mean over all
groups, with 95 % intervals. Scores that differ by at most a millionth of their value are a tie,
which counts as one half. Chance is 50 %. With --corpus, also prints the accuracy of a baseline that
uses only word frequencies, and the model's accuracy on pairs of known words. OUTPUT.json contains
all results. OUTPUT.csv contains the pairs and their scores in nats.

In a .jsonl, .csv or .tsv file, each row is a pair with the columns of BLiMP: sentence_good,
sentence_bad and UID, which is the group. In a .txt file, a pair is two lines, with the wrong
sentence first (as in Zorro), and the name of the file is the group.

Example:
  python -m pipelines.minimal_pairs --checkpoint=runs/base --corpus='corpus/*.txt' \\
      --input_file='blimp/data/*.jsonl' --output=runs/base_blimp
"""

import dataclasses
import itertools
import math
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from absl import flags

from albert_tf import metrics
from albert_tf.checkpoints import pretrained
from albert_tf.checkpoints.opening import ALBERT_TF, open_model
from albert_tf.jobs import program
from albert_tf.jobs.settings import define_settings_flags, setting, settings_from_flags
from albert_tf.scoring import SentenceScorer
from albert_tf.storage import files
from albert_tf.storage.errors import UserError
from albert_tf.storage.progress import Progress
from albert_tf.text.tokenization import AlbertTokenizer
from albert_tf.text.words import split_words
from .data.text_files import ending
from .tasks.reading.rows import read_text_lines
from .tasks.reading.tables import as_label, as_text, read_table, write_table

# The columns of a table of pairs, as in BLiMP, in the order of Pair's fields.
_COLUMNS = ("sentence_good", "sentence_bad", "UID")


class Pair(NamedTuple):
    """A right and a wrong sentence that differ in one point, and their group."""

    good: str
    bad: str
    group: str


@dataclasses.dataclass(frozen=True)
class Settings:
    """Inputs, outputs and how to score."""

    checkpoint: str = setting(flags.DEFINE_string, "A model directory or one of its checkpoints.")
    input_file: str = setting(flags.DEFINE_string, "Files of pairs (paths or globs).")
    output: str = setting(flags.DEFINE_string, "Path prefix of the output files.")
    pairs_per_group: int | None = setting(
        flags.DEFINE_integer, "Use only the first N pairs of each group.", None, lower_bound=1
    )
    corpus: str | None = setting(
        flags.DEFINE_string,
        "Training text of the model (paths or globs), in which the baseline counts words, ignoring "
        "case and punctuation. Words that occur at least twice are known.",
        None,
    )


def define_flags() -> None:
    """Defines the flags of this program. Other programs may use the same flag names."""
    define_settings_flags(Settings)


def main(_) -> None:
    """Scores the pairs, prints a report and writes OUTPUT.json and OUTPUT.csv."""
    settings = settings_from_flags(Settings)
    output = settings.output
    paths = files.match_files(settings.input_file, "input_file")
    corpus = files.match_files(settings.corpus, "corpus") if settings.corpus else []
    files.check_no_input("output", [f"{output}.json", f"{output}.csv"], [*paths, *corpus])
    pairs = read_pairs(paths, settings.pairs_per_group)
    opened = open_model(settings.checkpoint, [ALBERT_TF], pretrained=True)
    groups = len({pair.group for pair in pairs})
    print(f"{len(pairs):,} pairs of {groups:,} groups, scored by {opened.checkpoint}", flush=True)
    model, tokenizer, *_ = pretrained.load(opened, AlbertTokenizer.load(opened.directory))
    scorer = SentenceScorer(model, tokenizer)
    baseline = compare_words(count_words(corpus), pairs) if corpus else {}
    scores = score(scorer, pairs)
    result = {**dataclasses.asdict(settings), "checkpoint": opened.checkpoint}
    del result["output"]
    result |= figures(pairs, _right(*scores), baseline)
    columns = zip((*_COLUMNS, "score_good", "score_bad"), (*zip(*pairs), *scores.tolist()))
    write_table(f"{output}.csv", dict(columns))
    files.write_json(f"{output}.json", result)
    print(report(result), flush=True)
    print(f"written to {output}.json and {output}.csv")


def read_pairs(paths: Sequence[str], pairs_per_group: int | None) -> list[Pair]:
    """Reads pairs from files. The formats are described in the module's docstring."""
    pairs: list[Pair] = []
    counts: Counter[str] = Counter()
    for pair in itertools.chain.from_iterable(map(_read, paths)):
        counts[pair.group] += 1
        if pairs_per_group is None or counts[pair.group] <= pairs_per_group:
            pairs.append(pair)
    return pairs


def _read(path: str) -> Iterator[Pair]:
    if ending(path) != ".txt":
        for number, row in read_table(path, _COLUMNS):
            where = f"{path}:{number}"
            good, bad = (as_text(row[name], name, where) for name in _COLUMNS[:2])
            yield Pair(good, bad, as_label(row["UID"], "UID", where))
        return
    lines = [line for _, line in read_text_lines(path)]
    if not lines or len(lines) % 2:
        raise UserError(f"{path}: {len(lines):,} lines; expected a wrong and a right one in turn")
    group = os.path.basename(path).rpartition(".txt")[0]
    yield from (Pair(good, bad, group) for bad, good in zip(lines[::2], lines[1::2]))


def score(scorer: SentenceScorer, pairs: Sequence[Pair]) -> np.ndarray:
    """Returns pseudo-log-likelihoods, [2 (right, wrong), pairs]."""
    # Encode all sentences in one call, so that sentences that are too long fail at the start.
    texts = [pair.good for pair in pairs] + [pair.bad for pair in pairs]
    encoded = scorer.encode(texts)
    for text, ids in zip(texts, encoded):
        if not len(ids):
            raise UserError(f"the sentence {text!r} has no pieces: remove its pair")
    with Progress("scoring", sum(map(len, encoded)), unit="piece") as progress:
        found = scorer.score_pieces(encoded, progress.update)
    return np.reshape([one.log_likelihood for one in found], [2, len(pairs)])


def _words(text: str) -> list[str]:
    """Returns the words of a text in lower case, without punctuation."""
    text = text.lower()
    words = (text[start:limit] for start, limit in split_words(text).tolist())
    return [word for word in words if word[0].isalnum()]


def count_words(paths: Sequence[str]) -> Counter[str]:
    """Counts the words in text files, which may be compressed."""
    counts: Counter[str] = Counter()
    for path in paths:
        for _, line in read_text_lines(path):
            counts.update(_words(line))
    return counts


def compare_words(counts: Mapping[str, int], pairs: Sequence[Pair]) -> dict[str, np.ndarray]:
    """Returns `words`, the unigram model's result of `_right`, and `known`, bool [pairs]."""
    total = sum(counts.values()) + len(counts) + 1

    def log_probability(words: Sequence[str]) -> float:
        # Add one to each count, so that the logarithm is finite for unknown words.
        return sum(math.log((counts.get(word, 0) + 1) / total) for word in words)

    words = [(_words(pair.good), _words(pair.bad)) for pair in pairs]
    good, bad = np.array([[*map(log_probability, sides)] for sides in words]).T
    rarest = [min((counts.get(word, 0) for word in (*a, *b)), default=0) for a, b in words]
    return {"words": _right(good, bad), "known": np.array(rarest) >= 2}  # BabyLM's rule, too


def _right(good: np.ndarray, bad: np.ndarray) -> np.ndarray:
    """Returns 1 for pairs whose right sentence has the higher score, 0.5 for ties, else 0."""
    return np.where(np.isclose(good, bad, rtol=1e-6, atol=0), 0.5, good > bad)


def figures(
    pairs: Sequence[Pair], model: np.ndarray, baseline: Mapping[str, np.ndarray]
) -> dict[str, dict]:
    """Computes accuracies: {"mean": of all groups, "groups": {group: of its pairs}}.

    `model` is the model's result of `_right`, float [pairs]. `baseline` is the result of
    compare_words, or {} without a corpus.
    """
    names = np.array([pair.group for pair in pairs])
    groups = {}
    for group in dict.fromkeys(names.tolist()):
        of_group = names == group
        right = model[of_group]
        groups[group] = values = {
            "pairs": len(right),
            "model": float(right.mean()),
            "interval": _interval(right.sum(), len(right)),
        }
        if baseline:
            of_known = model[of_group & baseline["known"]]
            values["words"] = float(baseline["words"][of_group].mean())
            values["known_pairs"] = len(of_known)
            if len(of_known):
                values["model_on_known"] = float(of_known.mean())
    return {"mean": _mean([*groups.values()]), "groups": groups}


def _mean(groups: Sequence[dict]) -> dict:
    """Returns the means of accuracies and sums of numbers of pairs, where groups have them."""
    mean = {}
    for name in ("pairs", "known_pairs", "words", "model", "model_on_known"):
        if found := [values[name] for values in groups if name in values]:
            mean[name] = sum(found) if name.endswith("pairs") else float(np.mean(found))
    # Interval for a mean of independent proportions. Source: Newcombe 1998, method 10.
    shares = np.array([values["model"] for values in groups])
    ends = np.array([values["interval"] for values in groups]).T
    below, above = np.sqrt(((ends - shares) ** 2).sum(axis=1)) / len(groups)
    return {**mean, "interval": [float(mean["model"] - below), float(mean["model"] + above)]}


def _interval(right: float, number: int) -> list[float]:
    """Returns Wilson's interval. For n + 1/2 right pairs, averages the intervals of n and n + 1."""
    counts = math.floor(right), math.ceil(right)
    return np.mean([metrics.wilson_interval(n, number) for n in counts], axis=0).tolist()


def report(result: dict) -> str:
    """Formats the output of `figures`."""
    parts = dict(result["groups"])
    if len(parts) > 1:
        parts["mean of the groups"] = result["mean"]
    width, lines = max(map(len, parts)), []
    for name, values in parts.items():
        accuracy, low, high = (100 * value for value in (values["model"], *values["interval"]))
        line = f"  {name:{width}}  {accuracy:5.1f} % ({low:.1f} to {high:.1f})"
        line += f" of {values['pairs']:,} pairs"
        if "words" in values:
            line += f", words alone {100 * values['words']:5.1f} %"
            line += f", {values['known_pairs']:,} pairs of known words"
        if "model_on_known" in values:
            line += f": {100 * values['model_on_known']:.1f} %"
        lines.append(line)
    return "\n".join(lines)


if __name__ == "__main__":
    define_flags()
    program.run(main)
