"""Evaluates a pre-trained ALBERT on minimal pairs of a right and a wrong sentence.

The model prefers the sentence with the higher pseudo-log-likelihood (see albert_tf/scoring.py).
Prints how often it prefers the right sentence, for each group of pairs and as the mean over all
groups, with 95 % intervals. Scores that differ by at most a millionth of their value are a tie,
which counts as one half. Chance is 50 %. With --corpus, also prints the accuracy of a baseline that
uses only word frequencies, and the model's accuracy on pairs of known words. Known words occur at
least twice in the corpus. OUTPUT.json contains all results. OUTPUT.csv contains the pairs, their
scores in nats and their numbers of pieces.

In a .jsonl, .csv or .tsv file, each row is a pair (as in BLiMP). In a .txt file, a pair is two
lines, with the wrong sentence first (as in Zorro), and the name of the file is the group.

Examples:
  python -m pipelines.minimal_pairs --checkpoint=runs/base --corpus='corpus/*.txt' \\
      --input_file='blimp/data/*.jsonl' --output=runs/base_blimp
  python -m pipelines.minimal_pairs --checkpoint=runs/base --corpus='corpus/*.txt' \\
      --input_file='zorro/*.txt' --output=runs/base_zorro
"""

import functools
import json
import math
import os
import re
import unicodedata
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from absl import flags

from albert_tf import metrics
from albert_tf.checkpoints import pretrained
from albert_tf.checkpoints.opening import ALBERT_TF, open_model
from albert_tf.jobs import program
from albert_tf.scoring import MASKING_HELP, MASKINGS, SentenceScorer
from albert_tf.storage import files
from albert_tf.storage.errors import UserError
from albert_tf.storage.progress import Progress
from albert_tf.text.tokenization import AlbertTokenizer
from .data.text_files import ending
from .tasks.reading.rows import read_text_lines
from .tasks.reading.tables import as_label, as_text, read_table, write_table

FLAGS = flags.FLAGS

# A word is known if the corpus contains it at least this often. BabyLM has the same rule for its
# own corpus, and scores only pairs of known words of BLiMP.
_KNOWN_COUNT = 2

# Columns of OUTPUT.csv, besides those of the pairs.
_RESULTS = ("score_good", "score_bad", "pieces_good", "pieces_bad")


class Pair(NamedTuple):
    """A right and a wrong sentence that differ in one point, and the name of their group."""

    good: str
    bad: str
    group: str


def define_flags() -> None:
    """Defines the flags of this program. Other programs may use the same flag names."""
    flags.DEFINE_string(
        "checkpoint", None, "A model directory or one of its checkpoints.", required=True
    )
    flags.DEFINE_string("input_file", None, "Files of pairs (paths or globs).", required=True)
    flags.DEFINE_string(
        "output",
        None,
        "Path prefix of the output files. A later --input_file should not match OUTPUT.csv.",
        required=True,
    )
    flags.DEFINE_string("good_column", "sentence_good", "Column of the right sentence.")
    flags.DEFINE_string("bad_column", "sentence_bad", "Column of the wrong sentence.")
    flags.DEFINE_string("group_column", "UID", "Column of the group's name.")
    flags.DEFINE_string(
        "corpus",
        None,
        "Training text of the model (paths or globs), in which the baseline counts words. They are "
        "lower-cased, and punctuation is ignored. Words that occur at least twice are known.",
    )
    flags.DEFINE_integer(
        "pairs_per_group", None, "Use only the first N pairs of each group. Default: all.", 1
    )
    flags.DEFINE_enum("masking", MASKINGS[0], MASKINGS, MASKING_HELP)


def main(_) -> None:
    """Runs the program with the values of its flags."""
    if not os.path.basename(FLAGS.output):
        raise UserError(
            f"--output={FLAGS.output}: no file name at its end; expected a path prefix, such as "
            f"{FLAGS.output}pairs"
        )
    paths = files.match_files(FLAGS.input_file, "input_file")
    corpus = files.match_files(FLAGS.corpus, "corpus") if FLAGS.corpus else []
    outputs = [f"{FLAGS.output}.{suffix}" for suffix in ("json", "csv")]
    files.check_no_input("output", outputs, [*paths, *corpus])
    columns = FLAGS.good_column, FLAGS.bad_column, FLAGS.group_column
    if clash := sorted({*columns} & {*_RESULTS}):
        raise UserError(
            f"--good_column, --bad_column, --group_column: OUTPUT.csv has results named {clash[0]}:"
            " rename the column in the table, and give its new name"
        )
    pairs = read_pairs(paths, columns, FLAGS.pairs_per_group)
    opened = open_model(FLAGS.checkpoint, [ALBERT_TF], pretrained=True)
    groups = len({pair.group for pair in pairs})
    print(f"{len(pairs):,} pairs of {groups:,} groups, scored by {opened.checkpoint}", flush=True)
    model, tokenizer, *_ = pretrained.load(opened, AlbertTokenizer.load(opened.directory))
    scorer = SentenceScorer(model, tokenizer, masks_rest_of_word=FLAGS.masking == "word")
    baseline = compare_words(count_words(corpus), pairs) if corpus else {}
    scores, lengths = score(scorer, pairs)
    names = ("input_file", "pairs_per_group", "masking", "corpus")
    result = {"checkpoint": opened.checkpoint, **{name: FLAGS[name].value for name in names}}
    result |= figures(pairs, _right(*scores), **baseline)
    table = dict(zip(columns, zip(*pairs)))
    table |= {name: values.tolist() for name, values in zip(_RESULTS, (*scores, *lengths))}
    write_table(f"{FLAGS.output}.csv", table)
    files.write_atomically(f"{FLAGS.output}.json", json.dumps(result, indent=2) + "\n")
    print(report(result), flush=True)
    print(f"written to {FLAGS.output}.json and {FLAGS.output}.csv")


def read_pairs(
    paths: Sequence[str], columns: Sequence[str], pairs_per_group: int | None
) -> list[Pair]:
    """Reads pairs from files. The formats are described in the module's docstring.

    `columns` are the names of a table's columns: right sentence, wrong sentence, group.
    """
    pairs: list[Pair] = []
    counts: dict[str, int] = {}
    names = Counter(_group(path) for path in paths if ending(path) == ".txt")
    if twice := [name for name, number in names.items() if number > 1]:
        raise UserError(f"two files {twice[0]}.txt would be one group: rename one of them")
    for path in paths:
        read = _read_lines(path) if ending(path) == ".txt" else _read_rows(path, columns)
        for number, pair in read:
            if not pair.good.strip() or not pair.bad.strip():
                raise UserError(f"{path}:{number}: an empty sentence; expected two sentences")
            counts[pair.group] = counts.get(pair.group, 0) + 1
            if pairs_per_group is None or counts[pair.group] <= pairs_per_group:
                pairs.append(pair)
    return pairs


def _read_rows(path: str, columns: Sequence[str]) -> Iterator[tuple[int | str, Pair]]:
    *of_sentences, of_group = columns
    for number, row in read_table(path, columns):
        where = f"{path}:{number}"
        good, bad = (as_text(row[name], name, where) for name in of_sentences)
        yield number, Pair(good, bad, as_label(row[of_group], of_group, where))


def _read_lines(path: str) -> Iterator[tuple[int, Pair]]:
    lines = [line for _, line in read_text_lines(path)]
    if not lines or len(lines) % 2:
        raise UserError(
            f"{path}: {len(lines):,} lines; expected pairs, the wrong sentence in the first line "
            "and the right one in the second"
        )
    group = _group(path)
    for number, (bad, good) in enumerate(zip(lines[::2], lines[1::2])):
        yield 2 * number + 1, Pair(good, bad, group)


def _group(path: str) -> str:
    return os.path.basename(path).rpartition(".txt")[0]


def score(scorer: SentenceScorer, pairs: Sequence[Pair]) -> tuple[np.ndarray, np.ndarray]:
    """Returns pseudo-log-likelihoods and numbers of pieces, each [2 (right, wrong), pairs]."""
    # Encode all sentences in one call, so that sentences that are too long fail at the start.
    texts = [pair.good for pair in pairs] + [pair.bad for pair in pairs]
    encoded, done = scorer.encode(texts), 0
    lengths = [*map(len, encoded)]
    if 0 in lengths:
        place = lengths.index(0)
        raise UserError(
            f"group {pairs[place % len(pairs)].group!r}: the sentence {texts[place]!r} has no "
            "pieces: remove the pair"
        )

    with Progress("scoring", sum(lengths), unit="piece") as progress:

        def on_batch(pieces: int) -> None:
            nonlocal done
            done += pieces
            progress.update(done)

        found = scorer.score_pieces(encoded, on_batch)
    scores = np.array([one.log_likelihood for one in found])
    return scores.reshape(2, len(pairs)), np.array(lengths).reshape(2, len(pairs))


def words_of(text: str) -> list[str]:
    """Returns the words of a text in lower case, without punctuation."""
    return _word_pattern().findall(text.lower())


@functools.cache
def _word_pattern() -> re.Pattern[str]:
    """Returns a pattern for letters, digits and combining marks, such as Hindi vowel signs."""
    marks = (c for c in map(chr, range(0x1E000)) if unicodedata.category(c).startswith("M"))
    return re.compile(rf"[\w{''.join(marks)}]+")


def count_words(paths: Sequence[str]) -> Counter[str]:
    """Counts the words in text files, which may be compressed.

    In scripts without spaces, a whole run of characters counts as one word. Most words of the pairs
    are then unknown.
    """
    if of_json := next((path for path in paths if ending(path) == ".jsonl"), None):
        raise UserError(f"--corpus: {of_json} is JSON; expected files of plain text")
    counts: Counter[str] = Counter()
    with Progress("counting words", len(paths), unit="file") as progress:
        for number, path in enumerate(paths, start=1):
            for _, line in read_text_lines(path):
                counts.update(words_of(line))
            progress.update(number)
    if not counts:
        raise UserError(f"--corpus: no words in {', '.join(paths)}")
    return counts


def compare_words(counts: Mapping[str, int], pairs: Sequence[Pair]) -> dict[str, np.ndarray]:
    """Returns the baseline `words`, the result of `_right` for a unigram model, and `known`.

    `known` is bool [pairs], True if the corpus contains all words of a pair often enough.
    """
    known = {word for word, count in counts.items() if count >= _KNOWN_COUNT}
    words = [{*words_of(f"{pair.good} {pair.bad}")} for pair in pairs]
    good, bad = (sum_log_frequencies(counts, side) for side in zip(*(p[:2] for p in pairs)))
    is_known = np.array([bool(found) and found <= known for found in words])
    return {"words": _right(good, bad), "known": is_known}


def sum_log_frequencies(counts: Mapping[str, int], texts: Sequence[str]) -> np.ndarray:
    """Returns the log probability of each text under a unigram word model, float64 [texts]."""
    # Add one to each count, so that the logarithm is finite for unknown words.
    total = sum(counts.values()) + len(counts) + 1
    return np.array(
        [sum(math.log((counts.get(word, 0) + 1) / total) for word in words_of(t)) for t in texts]
    )


def _right(good: np.ndarray, bad: np.ndarray) -> np.ndarray:
    """Returns 1 for pairs whose right sentence has the higher score, 0.5 for ties, else 0."""
    # Treat differences within rounding error as ties.
    is_tie = np.isclose(good, bad, rtol=1e-6, atol=0)
    return np.where(is_tie, 0.5, good > bad)


def figures(
    pairs: Sequence[Pair],
    model: np.ndarray,
    words: np.ndarray | None = None,
    known: np.ndarray | None = None,
) -> dict[str, dict]:
    """Computes the accuracies of each group and of all groups.

    The accuracy of several groups is the mean of their accuracies.

    Args:
      pairs: the pairs.
      model: the model's result of `_right`, float [pairs].
      words: with a corpus, the baseline's result of `_right`, see `compare_words`.
      known: with a corpus, whether all words of a pair are known.

    Returns:
      {"mean": accuracies, "groups": {group: accuracies}}. Accuracies have the number of `pairs`,
      the accuracy of the `model` and its `interval`. With a corpus they also have the accuracy of
      `words`, the number of `known_pairs` and the model's accuracy on these, `model_on_known`.
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
        if words is not None and known is not None:
            of_known = model[of_group & known]
            values |= {"words": float(words[of_group].mean()), "known_pairs": len(of_known)}
            if len(of_known):
                values["model_on_known"] = float(of_known.mean())
    return {"mean": _mean([*groups.values()]), "groups": groups}


def _mean(groups: Sequence[dict]) -> dict:
    """Returns the mean accuracies of groups, and sums of their numbers of pairs."""
    mean = {}
    for name in ("pairs", "known_pairs", "words", "model", "model_on_known"):
        # A group without pairs of known words has no accuracy on them.
        if found := [values[name] for values in groups if name in values]:
            mean[name] = sum(found) if name.endswith("pairs") else float(np.mean(found))
    # Interval for a mean of independent proportions. Source: Newcombe 1998, method 10.
    shares = np.array([values["model"] for values in groups])
    ends = np.array([values["interval"] for values in groups]).T
    below, above = np.sqrt(((ends - shares) ** 2).sum(axis=1)) / len(groups)
    return {**mean, "interval": [float(mean["model"] - below), float(mean["model"] + above)]}


def _interval(right: float, number: int) -> list[float]:
    """Returns Wilson's interval. For n + 1/2 right pairs, averages the intervals of n and n + 1."""
    ends = (
        metrics.wilson_interval(count, number) for count in (math.floor(right), math.ceil(right))
    )
    return [sum(pair) / 2 for pair in zip(*ends)]


def report(result: dict) -> str:
    """Formats the output of `figures`."""
    parts = [*result["groups"].items()]
    if len(parts) > 1:
        parts.append(("mean of the groups", result["mean"]))
    width = max(len(name) for name, _ in parts)
    return "\n".join(f"  {name:{width}}  {_line(values)}" for name, values in parts)


def _line(values: dict) -> str:
    low, high = (100 * value for value in values["interval"])
    line = f"{100 * values['model']:5.1f} % ({low:.1f} to {high:.1f}) of {values['pairs']:,} pairs"
    if "words" in values:
        line += f", words alone {100 * values['words']:5.1f} %"
        line += f", {values['known_pairs']:,} pairs of known words"
    if "model_on_known" in values:
        line += f": {100 * values['model_on_known']:.1f} %"
    return line


if __name__ == "__main__":
    define_flags()
    program.run(main)
