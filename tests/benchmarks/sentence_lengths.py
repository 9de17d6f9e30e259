r"""What the lengths of sentences alone tell of a pair's label: it should be nothing.

Cuts documents into segments as the record job does, draws pairs as training does, and asks two
classifiers that see nothing but lengths: a logistic regression and boosted trees. Both are fitted
on three fifths of the documents and tested on the others. --shuffle_sentences takes away the order
of each document's sentences first: what is then told comes from how segments and pairs are made,
and from nothing in the text. Prints what has no label and what text is lost, too.

Example:
  python -m tests.benchmarks.sentence_lengths --input_file='novels/*.txt' \
      --spm_model_file=30k-clean.model --max_seq_length=128 --sentence_objective=sop
"""

from __future__ import annotations

import itertools
import random
import zlib

import numpy as np
import tensorflow as tf
from absl import flags
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from albert_tf import metrics
from albert_tf.jobs import program
from albert_tf.storage import files
from albert_tf.text.tokenization import AlbertTokenizer
from pipelines.data.corpus import read_documents
from pipelines.data.examples import ExampleOptions, example_draws
from pipelines.data.segments import Segment, split_document
from pipelines.data.sentence_pairs import choose_pairs, length_features

FLAGS = flags.FLAGS

_BATCH = 2048
_TEST_SHARE = 0.4


def define_flags() -> None:
    """Defines the flags."""
    flags.DEFINE_string("input_file", None, "One sentence a line.", required=True)
    flags.DEFINE_string("spm_model_file", None, "A SentencePiece model.", required=True)
    flags.DEFINE_integer("max_seq_length", 128, "Pieces in an example.", lower_bound=8)
    flags.DEFINE_enum("sentence_objective", "sop", ["sop", "nsp"], "Whose labels.")
    flags.DEFINE_float("short_seq_prob", 0.1, "Share of shorter segments.")
    flags.DEFINE_integer("num_pairs", 50_000, "Pairs with a label to test on, at least.")
    flags.DEFINE_bool("shuffle_sentences", False, "Shuffle the sentences of each document.")
    flags.DEFINE_enum(
        "pairs", "all", ["all", "openings", "inside"], "Of segments that open a document, or not."
    )


def main(_) -> None:
    """Reads the flags."""
    tokenizer = AlbertTokenizer(FLAGS.spm_model_file)
    documents = [
        tokenizer.encode_batch([text for _, text in document])
        for path in files.match_files(FLAGS.input_file, "input_file")
        for _, document in itertools.groupby(read_documents(path), key=lambda s: s[0])
    ]
    options = ExampleOptions(FLAGS.max_seq_length, sentence_objective=FLAGS.sentence_objective)
    result = tell_by_lengths(
        documents,
        tokenizer.word_starts().tolist(),
        options,
        FLAGS.short_seq_prob,
        FLAGS.num_pairs,
        FLAGS.shuffle_sentences,
        FLAGS.pairs,
    )
    print(
        f"{FLAGS.sentence_objective}, {FLAGS.pairs} pairs, at {FLAGS.max_seq_length}: "
        + ", ".join(f"{name} {value:.4g}" for name, value in result.items())
    )


def tell_by_lengths(
    documents: list[list[list[int]]],
    word_starts: list[bool],
    options: ExampleOptions,
    short_seq_prob: float,
    num_pairs: int,
    shuffle_sentences: bool = False,
    kind: str = "all",
) -> dict[str, float]:
    """Returns the accuracy of both classifiers in per cent, and what it was measured on.

    Args:
      documents: the pieces of each sentence of each document.
      num_pairs: labelled pairs to test on; the documents are cut anew until there are so many.
      kind: "all" pairs, "openings" (of segments that open a document) or those "inside" documents.
    """
    rng = random.Random(0)
    found: list[tuple[np.ndarray, ...]] = []
    lost = pieces = examples = positions = 0
    while sum(int(is_test.sum()) for *_, is_test in found) < num_pairs:
        segments = []
        for number, document in enumerate(documents):
            if shuffle_sentences:
                document = rng.sample(document, len(document))
            cut = split_document(document, options.max_seq_length, short_seq_prob, word_starts, rng)
            segments.extend(
                (number, segment)
                for segment in (itertools.islice(cut, 1) if kind == "openings" else cut)
                if kind != "inside" or not segment.opens_document
            )
        # Training sees them in any order.
        rng.shuffle(segments)
        seed = len(found)
        rows = min(_BATCH, len(segments))
        for first in range(0, len(segments) - rows + 1, rows):
            numbers, chosen = zip(*segments[first : first + rows])
            features, labels, weights, length = _pairs(chosen, numbers, options, seed + first)
            is_test = np.array([zlib.crc32(b"%d" % n) / 2**32 < _TEST_SHARE for n in numbers])
            has_label = weights > 0
            found.append((features[has_label], labels[has_label], is_test[has_label]))
            total = sum(len(segment.input_ids) for segment in chosen)
            pieces, examples = pieces + total, examples + len(chosen)
            lost += total - int(length.sum())
            positions += options.max_seq_length * len(chosen)
    features, labels, is_test = (np.concatenate(parts) for parts in zip(*found))
    train = ~is_test
    larger = max(labels[is_test].mean(), 1 - labels[is_test].mean())
    classifiers = {
        "logistic_regression": make_pipeline(StandardScaler(), LogisticRegression(max_iter=500)),
        "boosted_trees": HistGradientBoostingClassifier(max_iter=100, random_state=0),
    }
    accuracy = {
        name: 100
        * classifier.fit(features[train], labels[train]).score(features[is_test], labels[is_test])
        for name, classifier in classifiers.items()
    }
    low, high = metrics.wilson_interval(is_test.sum() / 2, is_test.sum())
    return {
        **accuracy,
        "chance_within": 50 * (high - low),
        "larger_class": 100 * larger,
        "pairs_trained": int(train.sum()),
        "pairs_tested": int(is_test.sum()),
        "no_label": 100 * (1 - len(labels) / examples),
        "text_lost": 100 * lost / pieces,
        "padding": 100 * (1 - (pieces - lost) / positions),
    }


def _pairs(segments: tuple[Segment, ...], documents, options: ExampleOptions, seed: int):
    """Returns length features, labels, weights and lengths of a batch of segments."""
    batch = {
        "input_ids": tf.RaggedTensor.from_row_lengths(
            np.zeros(sum(len(s.input_ids) for s in segments), np.int32),
            [len(s.input_ids) for s in segments],
        ),
        "sentence_starts": tf.ragged.constant([s.sentence_starts for s in segments], tf.int32),
        "room_before": tf.constant([[s.room_before] for s in segments], tf.int64),
        "opens_document": tf.constant([[s.opens_document] for s in segments], tf.int64),
        "document_id": tf.constant(np.array(documents)[:, np.newaxis], tf.int64),
    }
    draws = example_draws(options, len(segments), tf.constant([options.seed, seed], tf.int64))
    pairs = choose_pairs(
        batch,
        draws["split"][:, 0],
        draws["change"][:, 0],
        options.objective,
        options.max_seq_length,
    )
    features = length_features(pairs, batch)
    length = pairs.a.length + pairs.b.length
    return (
        features.numpy(),
        pairs.changed.numpy().astype(np.int32),
        pairs.has_label.numpy(),
        length.numpy(),
    )


if __name__ == "__main__":
    define_flags()
    program.run(main)
