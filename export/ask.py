r"""Queries an exported model.

A pre-trained model predicts the piece at each [MASK], predicts the order of two sentences, and
scores texts. A fine-tuned model predicts the label of a text or pair, the answer to a question, or
the best of several options. The SavedModel is loaded with TensorFlow and tensorflow-text. No model
code is needed.

Examples:
  python -m export.ask --saved_model=exports/base \
    --fill_mask="The [MASK] function returns an array." --fill_mask="It [MASK] two [MASK]."
  python -m export.ask --saved_model=exports/base/3 \
    --pair="First open the file. ||| Then read from it."
  python -m export.ask --saved_model=exports/base --text="The bird sing." --text="The bird sings."
  python -m export.ask --saved_model=exports/rte --pair="Birds sing. ||| Someone sings."
  python -m export.ask --saved_model=exports/squad --question="Who sings?" --context="Birds sing."
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

import tensorflow as tf
from absl import flags

from albert_tf.jobs import program
from albert_tf.storage import versions
from albert_tf.storage.errors import UserError
from albert_tf.text.in_graph import import_tensorflow_text

FLAGS = flags.FLAGS

_PAIR_SEPARATOR = "|||"
_MOST_VALUES = 8  # maximum number of values printed per output, such as an embedding
# Maps the inputs of signatures to flags.
_FLAGS = {
    "text": "--text",
    "text_pair": "--pair",
    "question": "--question",
    "context": "--context",
    "options": "--option",
}


def flags_of(inputs: Mapping[str, str | Sequence[str]]) -> str:
    """Formats the inputs of one request as command-line flags of `export.ask`."""
    if "text_pair" in inputs:
        inputs = {"text_pair": f"{inputs['text']} {_PAIR_SEPARATOR} {inputs['text_pair']}"}
    return " ".join(
        f'{_FLAGS[name]}="{text}"'
        for name, value in inputs.items()
        for text in ([value] if isinstance(value, str) else value)
    )


def define_flags() -> None:
    """Defines the flags. This is not done at import, because programs share flag names."""
    flags.DEFINE_string(
        "saved_model", None, "A SavedModel, or a directory with its versions.", required=True
    )
    flags.DEFINE_multi_string("fill_mask", [], "Text with [MASK]. May be repeated.")
    flags.DEFINE_multi_string("pair", [], "Two sentences, separated by |||. May be repeated.")
    flags.DEFINE_multi_string("text", [], "Text. May be repeated.")
    flags.DEFINE_string("question", "", "Question about --context.")
    flags.DEFINE_string("context", "", "Text that --question is about.")
    flags.DEFINE_multi_string("option", [], "Possible answer. Repeat the flag for each option.")


def main(_) -> None:
    """Runs the program with the values of its flags."""

    # As in the model, invalid UTF-8 is replaced by U+FFFD, so that the text can be printed.
    def readable(texts):
        return [os.fsencode(text).decode("utf-8", "replace") for text in texts]

    question, context = readable([FLAGS.question, FLAGS.context])
    lines = ask(
        saved_model=FLAGS.saved_model,
        masked_texts=readable(FLAGS.fill_mask),
        pairs=readable(FLAGS.pair),
        texts=readable(FLAGS.text),
        question=question,
        context=context,
        options=readable(FLAGS.option),
    )
    print(*lines, sep="\n")


def ask(
    *,
    saved_model: str,
    masked_texts: Sequence[str] = (),
    pairs: Sequence[str] = (),
    texts: Sequence[str] = (),
    question: str = "",
    context: str = "",
    options: Sequence[str] = (),
) -> list[str]:
    """Queries a SavedModel and returns the formatted answers as lines."""
    for text in masked_texts:
        if "[MASK]" not in text:
            raise UserError(f"--fill_mask={text!r} holds no [MASK]")
    # Inputs of the requests.
    of_texts = [{"text": text} for text in texts]
    of_pairs = list(map(_split_pair, pairs))
    others: list[dict] = []
    if question or context or options:
        others = [{"question": question, "context": context}]
        if options:
            others[0]["options"] = list(options)
    if not (masked_texts or of_texts or of_pairs or others):
        raise UserError(
            "nothing is asked: give --fill_mask, --text or --pair, or --question and --context, "
            "with --option if the model chooses"
        )
    path = versions.newest_saved_model(saved_model)
    if path is None:
        versions.refuse_parent(saved_model)
        raise UserError(
            f"no SavedModel at {saved_model!r}, nor a version of one in it: export a model first, "
            "see python -m export.export_saved_model --help"
        )
    import_tensorflow_text()  # registers the ops of the in-graph tokenizer
    model = versions.load_saved_model(path)
    lines = [f"{path} answers"]
    if masked_texts:
        if "fill_mask" not in model.signatures:
            raise UserError(f"{path!r} fills no [MASK]: only exports of pre-trained models do")
        lines += _fill_masks(model.signatures["fill_mask"], masked_texts)
    if "serving_default" not in model.signatures:
        raise UserError(f"{path!r} has no serving_default: export_saved_model did not write it")
    serving_default = model.signatures["serving_default"]
    if "in_order_probability" in serving_default.structured_outputs:
        lines += _answers(path, model.signatures.get("score", serving_default), of_texts)
        lines += _answers(path, serving_default, others)
        return lines + (_judge_order(serving_default, of_pairs) if of_pairs else [])
    names = model.signatures["labels"]()["labels"] if "labels" in model.signatures else None
    return lines + _answers(path, serving_default, [*of_texts, *of_pairs, *others], names)


def _split_pair(pair: str) -> dict[str, str]:
    sentences = [*map(str.strip, pair.split(_PAIR_SEPARATOR))]
    if len(sentences) != 2 or not all(sentences):
        raise UserError(f"--pair={pair!r}: expected two sentences with ||| between them")
    return {"text": sentences[0], "text_pair": sentences[1]}


def _answers(path: str, signature, questions: list[dict], labels=None) -> list[str]:
    """Formats the answers as lines; raises a UserError if inputs do not match the signature.

    Probabilities are printed with their `labels`, the highest first.
    """
    wanted = set(signature.structured_input_signature[1])
    lines = []
    for inputs in questions:
        if inputs.keys() != wanted:
            # --pair contains both texts, so --text is not needed.
            names = wanted - {"text"} if "text_pair" in wanted else wanted
            flags_of_model = " and ".join(_FLAGS[name] for name in sorted(names))
            raise UserError(
                f"{path!r} needs {' and '.join(sorted(wanted))}, not "
                f"{' and '.join(sorted(inputs))}: give {flags_of_model}"
            )
        if "options" in inputs:
            asked = len(inputs["options"])
            choices = signature.structured_outputs["probabilities"].shape[1]
            if asked != choices:
                raise UserError(
                    f"{path!r} chooses among {choices} options, not {asked}: give --option "
                    f"{choices} times"
                )
        answers = signature(**{name: tf.constant([text]) for name, text in inputs.items()})
        lines += ["", *(f"{name}: {text}" for name, text in inputs.items())]
        for name, values in sorted(answers.items()):
            lines.append(f"  {name}: {_readable(_named(name, values[0], labels))}")
    return lines


def _named(name: str, values: tf.Tensor, labels: tf.Tensor | None):
    """Returns the values of an output, or what they say of the `labels`."""
    if labels is None or name not in ("predicted", "probabilities"):
        return values
    if name == "predicted":
        return tf.boolean_mask(labels, tf.cast(values, tf.bool))
    places = tf.argsort(values, direction="DESCENDING")
    numbers = tf.strings.as_string(tf.gather(values, places), precision=6, shortest=True)
    return tf.strings.join([tf.gather(labels, places), numbers], " ")


def _readable(values: tf.Tensor) -> str:
    """Formats a string, a number, or a list of strings or numbers."""
    if values.shape.rank:
        shown = [_readable(value) for value in values[:_MOST_VALUES]]
        return ", ".join(shown) + ", ..." * (len(values) > _MOST_VALUES)
    value = values.numpy()
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else f"{value:.6g}"


def _fill_masks(fill_mask, texts: Sequence[str]) -> list[str]:
    answer = {name: t.numpy() for name, t in fill_mask(text=tf.constant(texts)).items()}
    lines = []
    for row, text in enumerate(texts):
        lines += ["", text]
        for mask in range(answer["num_masks"][row]):
            candidates = zip(answer["pieces"][row, mask], answer["probabilities"][row, mask])
            words = (f"{piece.decode()} {100 * p:.1f} %" for piece, p in candidates)
            lines.append(f"  [MASK] {mask + 1}: {',  '.join(words)}")
        if more := text.count("[MASK]") - answer["num_masks"][row]:
            lines.append(f"  ({more} more [MASK] without an answer: too far back, or too many)")
    return [*lines, "", "(a word begins at ▁; a piece without it continues the word before)"]


def _judge_order(serving_default, pairs: list[dict[str, str]]) -> list[str]:
    def in_order(first, second):
        answer = serving_default(text=tf.constant(first), text_pair=tf.constant(second))
        return answer["in_order_probability"].numpy()

    first, second = ([pair[name] for pair in pairs] for name in ("text", "text_pair"))
    as_given, swapped = in_order(first, second), in_order(second, first)
    lines = []
    for a, b, forward, backward in zip(first, second, as_given, swapped):
        lines += [
            "",
            f"A: {a}",
            f"B: {b}",
            f"  read as A B: in order with {100 * forward:.1f} %",
            f"  read as B A: in order with {100 * backward:.1f} %",
        ]
    if len(pairs) > 1:
        share = f"{(as_given > swapped).sum()} of {len(pairs)}"
        lines += ["", f"rather in order as given than swapped: {share} pairs (by chance half)"]
    return lines


if __name__ == "__main__":
    define_flags()
    program.run(main)
