r"""Asks an exported model: what stands at each [MASK], which of two sentences comes first.

The answers are the SavedModel's alone: this program loads it with TensorFlow and tensorflow-text
and holds no model code.

Examples:
  python -m export.ask --saved_model=exports/base \
    --fill_mask="The [MASK] function returns an array." --fill_mask="It [MASK] two [MASK]."
  python -m export.ask --saved_model=exports/base/3 \
    --pair="First open the file. ||| Then read from it."
"""

from __future__ import annotations

import os
import warnings

import tensorflow as tf
from absl import flags

from albert_tf import program
from export import versions

FLAGS = flags.FLAGS

_PAIR_SEPARATOR = "|||"


def define_flags() -> None:
    """Defines the flags; not at import, as programs share the names of flags."""
    flags.DEFINE_string(
        "saved_model", None, "A SavedModel, or the directory of its versions.", required=True
    )
    flags.DEFINE_multi_string("fill_mask", [], "A text with [MASK]; may be given several times.")
    flags.DEFINE_multi_string(
        "pair", [], "Two sentences with ||| between them; may be given several times."
    )


def main(_) -> None:
    """Reads the flags."""
    # Bytes of the shell that are no UTF-8 become U+FFFD, as in the model: they can be printed.
    masked_texts, pairs = (
        [os.fsencode(text).decode("utf-8", "replace") for text in texts]
        for texts in (FLAGS.fill_mask, FLAGS.pair)
    )
    print(*ask(saved_model=FLAGS.saved_model, masked_texts=masked_texts, pairs=pairs), sep="\n")


def ask(*, saved_model: str, masked_texts: list[str], pairs: list[str]) -> list[str]:
    """Returns the answers of a SavedModel in lines to read."""
    split_pairs = [pair.split(_PAIR_SEPARATOR) for pair in pairs]
    for pair, sentences in zip(pairs, split_pairs):
        if len(sentences) != 2 or not all(map(str.strip, sentences)):
            raise ValueError(f"--pair={pair!r}: expected two sentences with ||| between them")
    for text in masked_texts:
        if "[MASK]" not in text:
            raise ValueError(f"--fill_mask={text!r} holds no [MASK]")
    if not masked_texts and not pairs:
        raise ValueError("nothing is asked: give --fill_mask or --pair")
    path = versions.newest_saved_model(saved_model)
    # Registers the operations that the tokenizer in the graph is made of.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its dependencies warn of each other's end of life
        import tensorflow_text  # noqa: F401
    model = tf.saved_model.load(path)
    lines = [f"{path} answers"]
    if masked_texts:
        lines += _fill_masks(model.signatures["fill_mask"], masked_texts)
    if pairs:
        lines += _judge_order(model.signatures["serving_default"], split_pairs)
    return lines


def _fill_masks(fill_mask, texts: list[str]) -> list[str]:
    answer = {name: t.numpy() for name, t in fill_mask(text=tf.constant(texts)).items()}
    lines = []
    for row, text in enumerate(texts):
        lines += ["", text]
        for mask in range(answer["num_masks"][row]):
            candidates = zip(answer["pieces"][row, mask], answer["probabilities"][row, mask])
            words = (f"{piece.decode()} {100 * p:.1f} %" for piece, p in candidates)
            lines.append(f"  [MASK] {mask + 1}: {',  '.join(words)}")
    return [*lines, "", "(a word begins at ▁; a piece without it goes on with the word before)"]


def _judge_order(serving_default, pairs: list[list[str]]) -> list[str]:
    def in_order(first, second):
        answer = serving_default(text=tf.constant(first), text_pair=tf.constant(second))
        return answer["in_order_probability"].numpy()

    first, second = ([sentence.strip() for sentence in side] for side in zip(*pairs))
    lines = []
    for a, b, forward, backward in zip(
        first, second, in_order(first, second), in_order(second, first)
    ):
        lines += [
            "",
            f"A: {a}",
            f"B: {b}",
            f"  read as A B: in order with {100 * forward:.1f} %",
            f"  read as B A: in order with {100 * backward:.1f} %",
        ]
    return lines


if __name__ == "__main__":
    define_flags()
    program.run(main)
