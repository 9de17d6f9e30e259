"""Evaluates a pre-trained ALBERT on minimal pairs of a right and a wrong sentence.

The model prefers the sentence with the higher pseudo-log-likelihood (see albert_tf/scoring.py).
Prints how often it prefers the right sentence: for each group of pairs, and as means over the
groups of each field and over all groups. All have 95 % intervals. Scores that differ by at most
a millionth of their value are a tie, which counts as one half. Chance is 50 %. Also prints the
accuracy on pairs whose sentences have equal numbers of pieces. With --corpus, also prints the
accuracy of a baseline that uses only word frequencies, and the model's accuracy on pairs of known
words. Known words occur at least twice in the corpus. With --published, also prints the accuracies
of other models. OUTPUT.json contains all results. OUTPUT.csv contains the pairs with their scores
in nats and their numbers of pieces. OUTPUT.png is a chart with one bar per group.

In a .jsonl, .csv or .tsv file, each row is a pair (as in BLiMP). In a .txt file, a pair is two
lines, with the wrong sentence first (as in Zorro). The name of a .txt file is the group, and the
part before its last hyphen is the field.

Accuracies of other models are shown as they are in the table of --published, also with
--pairs_per_group. BLiMP's pairs have the field s-selection, which BLiMP's own table of models
counts as argument_structure.

Examples:
  python -m pipelines.minimal_pairs --checkpoint=runs/base --corpus='corpus/*.txt' \\
      --input_file='blimp/data/*.jsonl' --field_column=linguistics_term \\
      --published=blimp/models_summary.jsonl --published_columns=ngram,lstm,txl,gpt2 \\
      --output=runs/base_blimp
  python -m pipelines.minimal_pairs --checkpoint=runs/base --corpus='corpus/*.txt' \\
      --input_file='zorro/*.txt' --output=runs/base_zorro
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import itertools
import json
import math
import os
import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence, Set
from typing import NamedTuple

import numpy as np
from absl import flags

from albert_tf import metrics
from albert_tf.checkpoints import model_directory
from albert_tf.jobs import pictures, program
from albert_tf.jobs.settings import define_settings_flags, setting, settings_from_flags
from albert_tf.scoring import MASKING_HELP, MASKINGS, SentenceScorer
from albert_tf.storage import files
from albert_tf.storage.errors import UserError
from albert_tf.storage.progress import Progress
from albert_tf.text.tokenization import AlbertTokenizer
from .data.text_files import ending
from .tasks.reading.rows import read_text_lines, read_text_parts
from .tasks.reading.tables import as_label, as_number, as_text, read_table, write_table

FLAGS = flags.FLAGS

# Subsets of pairs that have accuracies of their own. The more pieces a sentence has, the lower is
# its score, so a pair with unequal numbers says more about the vocabulary than about grammar.
_SUBSETS = {"known": "pairs of known words", "equal_length": "pairs with equal numbers of pieces"}

# A word is known if the corpus contains it at least this often. BabyLM has the same rule for its
# own corpus, and scores only pairs of known words of BLiMP.
_KNOWN_COUNT = 2

# Columns of OUTPUT.csv, besides those of the pairs.
_RESULTS = ("score_good", "score_bad", "pieces_good", "pieces_bad")


class Pair(NamedTuple):
    """A right and a wrong sentence that differ in one point, and the names of group and field.

    A field is a set of groups. The field is None if it is not known.
    """

    good: str
    bad: str
    group: str
    field: str | None = None


@dataclasses.dataclass(frozen=True)
class Columns:
    """Column names of a table of pairs."""

    good_column: str = setting(
        flags.DEFINE_string, "Column of the right sentence.", "sentence_good"
    )
    bad_column: str = setting(flags.DEFINE_string, "Column of the wrong sentence.", "sentence_bad")
    group_column: str = setting(flags.DEFINE_string, "Column of the group's name.", "UID")
    field_column: str | None = setting(
        flags.DEFINE_string,
        "Column of the field's name, for means over the groups of each field. Default: none.",
        None,
    )

    def __post_init__(self):
        """Raises a UserError if a column has the name of a column of results."""
        for flag, column in dataclasses.asdict(self).items():
            if column in _RESULTS:
                raise UserError(
                    f"--{flag}={column}: OUTPUT.csv has results of this name: rename "
                    "the column in the table, and give its new name"
                )


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
    define_settings_flags(Columns)
    flags.DEFINE_string(
        "corpus",
        None,
        "Training text of the model (paths or globs), in which the baseline counts words. They are "
        "lower-cased, and punctuation is ignored. Words that occur at least twice are known.",
    )
    flags.DEFINE_string(
        "published",
        None,
        "Table of other models' accuracies (.jsonl, .csv, .tsv), to be shown beside the model's. "
        "Each row has a group's name in --group_column. --pairs_per_group does not affect them.",
    )
    flags.DEFINE_list(
        "published_columns",
        None,
        "Columns of --published, one per model. Each value is a number between 0 and 1.",
    )
    flags.DEFINE_integer(
        "pairs_per_group", None, "Use only the first N pairs of each group. Default: all.", 1
    )
    flags.DEFINE_enum("masking", MASKINGS[0], MASKINGS, MASKING_HELP)


def main(_) -> None:
    """Runs the program with the values of its flags."""
    if bool(FLAGS.published) != bool(FLAGS.published_columns):
        raise UserError("--published and --published_columns need each other: give both or neither")
    if not os.path.basename(FLAGS.output):
        raise UserError(
            f"--output={FLAGS.output}: no file name at its end; expected a path prefix, such as "
            f"{FLAGS.output}pairs"
        )
    paths = files.match_files(FLAGS.input_file, "input_file")
    corpus = files.match_files(FLAGS.corpus, "corpus") if FLAGS.corpus else []
    inputs = [*paths, *corpus, *([FLAGS.published] if FLAGS.published else [])]
    outputs = [f"{FLAGS.output}.{suffix}" for suffix in ("json", "csv", "png")]
    files.check_no_input("output", outputs, inputs)
    columns = settings_from_flags(Columns)
    pairs = read_pairs(paths, columns, FLAGS.pairs_per_group)
    groups = {pair.group for pair in pairs}
    published = None
    if FLAGS.published:
        published = read_published(
            FLAGS.published, FLAGS.published_columns, columns.group_column, groups
        )
    _, checkpoint = model_directory.find_checkpoint(FLAGS.checkpoint)
    print(f"{len(pairs):,} pairs of {len(groups):,} groups, scored by {checkpoint}", flush=True)
    model, model_dir = model_directory.load_for_pretraining(checkpoint)
    tokenizer = AlbertTokenizer.load(model_dir)
    right, subsets = {}, {}
    if corpus:
        counts = count_words(corpus)
        sides = [pair.good for pair in pairs], [pair.bad for pair in pairs]
        right["words"] = _right(*(sum_log_frequencies(counts, side) for side in sides))
        words = [{*words_of(f"{pair.good} {pair.bad}")} for pair in pairs]
        known = {word for word, count in counts.items() if count >= _KNOWN_COUNT}
        subsets["known"] = np.array([bool(found) and found <= known for found in words])
    scorer = SentenceScorer(model, tokenizer, masks_rest_of_word=FLAGS.masking == "word")
    scores, lengths = score(scorer, pairs)
    right["model"] = _right(*scores)
    subsets["equal_length"] = lengths[0] == lengths[1]
    names = ("input_file", "pairs_per_group", "masking", "corpus")
    result = {"checkpoint": checkpoint, **{name: FLAGS[name].value for name in names}}
    result |= figures(pairs, right, subsets, published)
    write_table(f"{FLAGS.output}.csv", scored_pairs(pairs, scores, lengths, columns))
    files.write_atomically(f"{FLAGS.output}.json", json.dumps(result, indent=2) + "\n")
    print(report(result), flush=True)
    draw(result, f"{FLAGS.output}.png")
    print(f"written to {FLAGS.output}.json, {FLAGS.output}.csv and {FLAGS.output}.png")


def read_pairs(paths: Sequence[str], columns: Columns, pairs_per_group: int | None) -> list[Pair]:
    """Reads pairs from files. The formats are described in the module's docstring."""
    pairs: list[Pair] = []
    counts: dict[str, int] = {}
    fields: dict[str, str] = {}
    text_files: dict[str, str] = {}  # maps a group to its .txt file
    for path in paths:
        if ending(path) == ".txt" and text_files.setdefault(_group(path), path) != path:
            raise UserError(
                f"{path} and {text_files[_group(path)]} would be one group, {_group(path)!r}: "
                "rename one of them"
            )
        read = _read_lines(path) if ending(path) == ".txt" else _read_rows(path, columns)
        for number, pair in read:
            if not pair.good.strip() or not pair.bad.strip():
                raise UserError(f"{path}:{number}: an empty sentence; expected two sentences")
            field = fields.setdefault(pair.group, pair.field) if pair.field else None
            if field != pair.field:
                raise UserError(
                    f"{path}:{number}: group {pair.group!r} has the field {pair.field!r} here, but "
                    f"{field!r} in an earlier row; expected one field per group (--field_column; "
                    "for a .txt file, the part of its name before the last hyphen)"
                )
            counts[pair.group] = counts.get(pair.group, 0) + 1
            if pairs_per_group is None or counts[pair.group] <= pairs_per_group:
                pairs.append(pair)
    return pairs


def _read_rows(path: str, columns: Columns) -> Iterator[tuple[int, Pair]]:
    *of_sentences, of_group, of_field = dataclasses.astuple(columns)
    labels = [of_group, of_field] if of_field else [of_group]
    for number, row in read_table(path, [*of_sentences, *labels]):
        where = f"{path}:{number}"
        good, bad = (as_text(row[name], name, where) for name in of_sentences)
        yield number, Pair(good, bad, *(as_label(row[name], name, where) for name in labels))


def _read_lines(path: str) -> Iterator[tuple[int, Pair]]:
    lines = [line for _, line in read_text_lines(path)]
    if not lines or len(lines) % 2:
        raise UserError(
            f"{path}: {len(lines):,} lines; expected pairs, the wrong sentence in the first line "
            "and the right one in the second"
        )
    group = _group(path)
    for number, (bad, good) in enumerate(zip(lines[::2], lines[1::2])):
        yield 2 * number + 1, Pair(good, bad, group, group.rpartition("-")[0] or None)


def _group(path: str) -> str:
    return os.path.basename(path).rpartition(".txt")[0]


def read_published(
    path: str, models: Sequence[str], group_column: str, groups: Set[str]
) -> dict[str, dict[str, float]]:
    """Returns the accuracies of other models in each group: {group: {model: accuracy}}.

    Args:
      path: a table with one row per group. Rows of groups that are not in `groups` are ignored.
      models: the columns of the accuracies, which are between 0 and 1.
      group_column: the column of the group's name.
      groups: the groups of the pairs. Raises a UserError if the table lacks one of them.
    """
    published: dict[str, dict[str, float]] = {}
    for number, row in read_table(path, [group_column, *models]):
        where = f"{path}:{number}"
        group = as_label(row[group_column], group_column, where)
        if group not in groups:
            continue
        if group in published:
            raise UserError(f"{where}: a second row of group {group!r}; expected one row")
        published[group] = {name: as_number(row[name], name, where) for name in models}
        for name, value in published[group].items():
            if not 0 <= value <= 1:
                raise UserError(
                    f"{where}: {name!r} is {value}; expected an accuracy between 0 and 1"
                )
    if missing := sorted(groups - published.keys()):
        raise UserError(f"{path}: no row of group {missing[0]!r}; expected a row for each group")
    return published


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


def scored_pairs(
    pairs: Sequence[Pair], scores: np.ndarray, lengths: np.ndarray, columns: Columns
) -> dict[str, Sequence]:
    """Returns columns of the pairs, which `read_pairs` accepts, and of the results of `score`."""
    of_fields = {}
    if any(pair.field for pair in pairs):
        of_fields = {columns.field_column or "field": [pair.field for pair in pairs]}
    return {
        **of_fields,
        columns.group_column: [pair.group for pair in pairs],
        columns.good_column: [pair.good for pair in pairs],
        columns.bad_column: [pair.bad for pair in pairs],
        **{name: values.tolist() for name, values in zip(_RESULTS, (*scores, *lengths))},
    }


def words_of(text: str) -> list[str]:
    """Returns the words of a text in lower case, without punctuation."""
    return _word_pattern().findall(text.lower())


@functools.cache
def _word_pattern() -> re.Pattern[str]:
    """Returns a pattern for letters, digits and combining marks, such as Hindi vowel signs."""
    marks = (c for c in map(chr, range(0x1E000)) if unicodedata.category(c).startswith("M"))
    return re.compile(rf"[\w{''.join(marks)}]+")


def count_words(paths: Sequence[str]) -> collections.Counter[str]:
    """Counts the words in text files, which may be compressed.

    In scripts without spaces, a whole run of characters counts as one word. Most words of the pairs
    are then unknown.
    """
    if of_json := next((path for path in paths if ending(path) == ".jsonl"), None):
        raise UserError(f"--corpus: {of_json} is JSON; expected files of plain text")
    counts: collections.Counter[str] = collections.Counter()
    sizes, before = files.sizes(paths), 0
    with Progress("counting words", sum(sizes.values()), unit="byte") as progress:
        for path in paths:
            on_read = functools.partial(lambda before, done: progress.update(before + done), before)
            for _, line in read_text_parts(path, on_read):
                counts.update(words_of(line))
            before += sizes[path]
    if not counts:
        raise UserError(f"--corpus: no words in {', '.join(paths)}")
    return counts


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
    right: dict[str, np.ndarray],
    subsets: Mapping[str, np.ndarray] | None = None,
    published: dict[str, dict[str, float]] | None = None,
) -> dict:
    """Computes the accuracies of each group, of each field and of all groups.

    The accuracy of several groups is the mean of their accuracies.

    Args:
      pairs: the pairs. Groups without a field count for no field.
      right: maps the name of a scorer to the result of `_right`, float [pairs].
      subsets: maps a name of `_SUBSETS` to bool [pairs], True for pairs of the subset. Each part
        of the result has `NAME_pairs`, the number of such pairs, and `model_on_NAME`, the model's
        accuracy on them. Without such pairs, `model_on_NAME` is omitted.
      published: the result of `read_published`.

    Returns:
      {"mean": accuracies, "fields": {field: accuracies}, "groups": {group: accuracies}}.
    """
    names = np.array([pair.group for pair in pairs])
    # A group may come from several files, some of which name no field.
    fields = {pair.group: None for pair in pairs}
    fields.update({pair.group: pair.field for pair in pairs if pair.field})
    groups = {}
    for group in fields:
        found = {name: values[names == group] for name, values in right.items()}
        number = len(found["model"])
        groups[group] = {
            "pairs": number,
            **{name: float(values.mean()) for name, values in found.items()},
            "interval": _interval(found["model"].sum(), number),
        }
        for name, chosen in (subsets or {}).items():
            of_subset = right["model"][(names == group) & chosen]
            groups[group][f"{name}_pairs"] = len(of_subset)
            if len(of_subset):
                groups[group][f"model_on_{name}"] = float(of_subset.mean())
        if published is not None:
            groups[group]["published"] = published[group]
    of_fields = {
        name: _mean([groups[group] for group, field in fields.items() if field == name])
        for name in dict.fromkeys(fields.values())
        if name is not None
    }
    return {"mean": _mean([*groups.values()]), "fields": of_fields, "groups": groups}


def _mean(groups: Sequence[dict]) -> dict:
    """Returns the mean accuracies of groups, and sums of their numbers of pairs."""
    mean = {
        name: sum(values[name] for values in groups)
        for name in ("pairs", *(f"{name}_pairs" for name in _SUBSETS))
        if name in groups[0]
    }
    for name in ("words", "model", *(f"model_on_{name}" for name in _SUBSETS)):
        # A group without pairs of a subset has no accuracy on them.
        if found := [values[name] for values in groups if name in values]:
            mean[name] = float(np.mean(found))
    if "published" in groups[0]:
        of_models = [values["published"] for values in groups]
        mean["published"] = {
            name: float(np.mean([values[name] for values in of_models])) for name in of_models[0]
        }
    # Interval for a mean of independent proportions. Source: Newcombe 1998, method 10.
    shares = np.array([values["model"] for values in groups])
    ends = np.array([values["interval"] for values in groups]).T
    below, above = np.sqrt(((ends - shares) ** 2).sum(axis=1)) / len(groups)
    return {**mean, "interval": [float(mean["model"] - below), float(mean["model"] + above)]}


def _interval(right: float, number: int) -> list[float]:
    """Returns Wilson's interval. For n + 1/2 right pairs, averages the intervals of n and n + 1."""
    ends = (
        metrics.wilson_interval(value, number) for value in (math.floor(right), math.ceil(right))
    )
    return [sum(pair) / 2 for pair in zip(*ends)]


def report(result: dict) -> str:
    """Formats the output of `figures`."""
    parts = [*result["groups"].items()]
    if len(parts) > 1:
        parts += [(f"field {field}", values) for field, values in result["fields"].items()]
        parts.append(("mean of the groups", result["mean"]))
    width = max(len(name) for name, _ in parts)
    return "\n".join(f"  {name:{width}}  {_line(values)}" for name, values in parts)


def _line(values: dict) -> str:
    low, high = (100 * value for value in values["interval"])
    line = f"{100 * values['model']:5.1f} % ({low:.1f} to {high:.1f}) of {values['pairs']:,} pairs"
    for name, value in values.get("published", {}).items():
        line += f", {name} {100 * value:.1f} %"
    if "words" in values:
        line += f", words alone {100 * values['words']:5.1f} %"
    for name, description in _SUBSETS.items():
        if f"{name}_pairs" in values:
            line += f", {values[f'{name}_pairs']:,} {description}"
        if f"model_on_{name}" in values:
            line += f": {100 * values[f'model_on_{name}']:.1f} %"
    return line


def draw(result: dict, path: str) -> None:
    """Plots one bar with interval per group, the chance level, the baseline and other models."""
    groups = dict(sorted(result["groups"].items(), key=lambda item: item[1]["model"]))
    places = np.arange(len(groups))
    shares = np.array([100 * values["model"] for values in groups.values()])
    intervals = 100 * np.array([values["interval"] for values in groups.values()]).T
    figure = pictures.new_figure(9, 1.5 + 0.22 * len(groups))
    axes = figure.subplots()
    axes.barh(places, shares, xerr=np.abs(intervals - shares), color="#9ab8d9", ecolor="#44566c")

    def mark(values: Sequence[float], mean: float, name: str, **style) -> None:
        # Matplotlib omits a label that begins with "_" from the legend.
        label = f"mean {100 * mean:.1f} %: {name}"
        values = 100 * np.array(values)
        axes.plot(values, places, label=label, linestyle="", clip_on=False, **style)

    if "words" in result["mean"]:
        words = [values["words"] for values in groups.values()]
        mark(words, result["mean"]["words"], "words alone", marker="|", color="black")
    for marker, name in zip(itertools.cycle("ovsD^P"), result["mean"].get("published", ())):
        of_groups = [values["published"][name] for values in groups.values()]
        mark(of_groups, result["mean"]["published"][name], name, marker=marker, markersize=5)
    axes.axvline(50, color="black", linewidth=0.8, linestyle=":", label="chance")
    # Names may contain "$", which would begin a formula.
    axes.set_yticks(places, list(groups), fontsize=7, parse_math=False)
    axes.set_xlim(0, 100)
    axes.set_ylim(-1, len(groups))
    axes.set_xlabel("right sentence preferred, %")
    axes.set_title(f"mean of {len(groups)} groups: {100 * result['mean']['model']:.1f} %")
    legend = figure.legend(loc="outside lower center", ncols=3, fontsize=7)
    for text in legend.get_texts():
        text.set_parse_math(False)
    pictures.write(figure, path)


if __name__ == "__main__":
    define_flags()
    program.run(main)
