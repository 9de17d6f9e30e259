r"""Queries an exported model, in this process or on a TF Serving server.

A pre-trained model predicts the piece at each [MASK], predicts the order of two sentences, and
scores texts. A fine-tuned model predicts the label of a text or pair, the answer to a question, or
the best of several options. Repeat a flag to ask several questions. A SavedModel is loaded with
TensorFlow and tensorflow-text, without model code. A server is asked over gRPC, or over REST with
--server=http://... Labels of probabilities are printed for a SavedModel alone.

Examples:
  python -m export.ask --saved_model=exports/base \
    --fill_mask="The [MASK] function returns an array." --fill_mask="It [MASK] two [MASK]."
  python -m export.ask --saved_model=exports/base/3 \
    --pair="First open the file. ||| Then read from it."
  python -m export.ask --saved_model=exports/base --text="The bird sing." --text="The bird sings."
  python -m export.ask --saved_model=exports/squad --question="Who sings?" --context="Birds sing."
  python -m export.ask --server=http://localhost:8501 --label=canary --text="A ticket."
  python -m export.ask --server=localhost:8500 --signature=labels
"""

import operator
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from absl import flags

from albert_tf.jobs import program
from albert_tf.storage import versions
from albert_tf.storage.errors import UserError
from albert_tf.text.in_graph import import_tensorflow_text
from .serving import client

FLAGS = flags.FLAGS

_SEPARATOR = "|||"
_MOST_VALUES = 8  # maximum number of values printed per output
_IN_ORDER = "in_order_probability"
_INPUTS = {
    "text": "Text.",
    "question": "Question.",
    "context": "Text that the question is about.",
    "options": "Answers to choose from, separated by |||.",
}
_TEXTS = {
    "fill_mask": "Text with [MASK], for the signature fill_mask.",
    "pair": "Two texts, separated by |||.",
    **_INPUTS,
}
_STRINGS = {
    "saved_model": "A SavedModel, or a directory with its versions.",
    "server": "HOST:PORT or grpcs://HOST:PORT for gRPC; http:// or https://HOST:PORT for REST.",
    "ca_file": "PEM file of the certificate authority. Default: the system's list.",
    "client_certificate": "PEM file with a certificate of the client and its private key.",
    "model": "The model's name in the server's config.",
    "label": "Version label in the server's models.config. An empty label selects the newest "
    "version, even if it is a canary. Use it for servers without labels.",
    "signature": "Signature to call. Default: serving_default; for texts alone, score of a "
    "--saved_model.",
}
# Takes a signature and its inputs, lists of texts; returns its outputs, lists with a value per row.
Call = Callable[[str, dict[str, list]], dict[str, list]]


def flags_of(inputs: Mapping[str, str | Sequence[str]]) -> str:
    """Formats the inputs of one request as command-line flags of `export.ask`."""
    joined = {
        name: value if isinstance(value, str) else f" {_SEPARATOR} ".join(value)
        for name, value in inputs.items()
    }
    if "text_pair" in joined:
        joined = {"pair": f"{joined['text']} {_SEPARATOR} {joined['text_pair']}"}
    return " ".join(f'--{name}="{text}"' for name, text in joined.items())


def define_flags() -> None:
    """Defines the flags. This is not done at import, because programs share flag names."""
    options = client.Options()
    for name, meaning in _STRINGS.items():
        flags.DEFINE_string(name, getattr(options, name, None), meaning)
    flags.DEFINE_float(
        "timeout", options.timeout, "Seconds to wait for a server's response.", 0.0, 86_400.0
    )
    for name, meaning in _TEXTS.items():
        flags.DEFINE_multi_string(name, [], meaning)


def main(_) -> None:
    """Runs the program with the values of its flags."""
    if bool(FLAGS.saved_model) == bool(FLAGS.server):
        raise UserError("give --saved_model or --server, one of them")
    # As in the model, invalid UTF-8 is replaced by U+FFFD, so that the text can be printed.
    given: dict[str, list] = {
        name: [os.fsencode(text).decode("utf-8", "replace") for text in texts]
        for name in _TEXTS
        if (texts := FLAGS[name].value)
    }
    if "options" in given:
        given["options"] = [[*map(str.strip, o.split(_SEPARATOR))] for o in given["options"]]
    call = load(FLAGS.saved_model) if FLAGS.saved_model else connect(FLAGS.server)
    masked_texts, pairs = given.pop("fill_mask", ()), given.pop("pair", ())
    print(*ask(call, given, masked_texts, pairs, FLAGS.signature), sep="\n")


def ask(
    call: Call,
    inputs: dict[str, list],
    masked_texts: Sequence[str] = (),
    pairs: Sequence[str] = (),
    signature: str | None = None,
) -> list[str]:
    """Sends the requests and returns the formatted answers as lines."""
    for text in masked_texts:
        if "[MASK]" not in text:
            raise UserError(f"--fill_mask={text!r} holds no [MASK]")
    if len({*map(len, inputs.values())}) > 1:
        counts = ", ".join(f"{len(values)} of --{name}" for name, values in inputs.items())
        raise UserError(f"{counts}: repeat each flag equally often, once per question")
    split = [_split_pair(pair) for pair in pairs]
    without_inputs = signature in client.WITHOUT_INPUTS
    if not (masked_texts or split or inputs or without_inputs):
        raise UserError(f"nothing is asked: give --fill_mask, --pair or --{', --'.join(_INPUTS)}")
    lines = []
    if masked_texts:
        masked = {"text": list(masked_texts)}
        lines += _answers(masked, call("fill_mask", masked))
        lines += ["", "(a word begins at ▁; a piece without it continues the word before)"]
    if inputs or without_inputs:
        lines += _answers(inputs, call(signature or "", inputs))
    if split:
        first, second = map(list, zip(*split))
        of_pairs = {"text": first, "text_pair": second}
        answers = call(signature or "", of_pairs)
        if _IN_ORDER in answers:
            swapped = call(signature or "", {"text": second, "text_pair": first})[_IN_ORDER]
            answers[f"{_IN_ORDER}, swapped"] = swapped
        lines += _answers(of_pairs, answers)
        if _IN_ORDER in answers and len(split) > 1:
            share = f"{sum(map(operator.gt, answers[_IN_ORDER], swapped))} of {len(split)}"
            lines += ["", f"rather in order as given than swapped: {share} pairs (by chance half)"]
    return lines


def load(saved_model: str) -> Call:
    """Loads a SavedModel. The returned function refuses inputs that a signature does not have."""
    path = versions.newest_saved_model(saved_model)
    if path is None:
        versions.refuse_parent(saved_model)
        raise UserError(
            f"no SavedModel at {saved_model!r}, nor a version of one in it: export a model first, "
            "see python -m export.export_saved_model --help"
        )
    import_tensorflow_text()  # registers the ops of the in-graph tokenizer
    model = versions.load_saved_model(path)
    print(f"{path} answers")

    def call(signature: str, inputs: dict[str, list]) -> dict[str, list]:
        if not signature:
            is_text = inputs.keys() == {"text"} and "score" in model.signatures
            signature = "score" if is_text else "serving_default"
        if signature not in model.signatures:
            raise UserError(
                f"{path!r} has no signature {signature!r}, only {', '.join(model.signatures)} "
                "(exports of pre-trained models alone fill [MASK])"
            )
        function = model.signatures[signature]
        _check(f"{path!r}", signature, function, inputs)
        found = function(**{name: tf.constant(values) for name, values in inputs.items()})
        outputs = {name: client.texts(np.asarray(value).tolist()) for name, value in found.items()}
        if "labels" in model.signatures and inputs:
            outputs = _name_labels(outputs, call("labels", {})["labels"])
        return outputs

    return call


def _check(path: str, signature: str, function, inputs: dict[str, list]) -> None:
    """Raises a UserError if a signature has other inputs, or chooses among other options."""
    if inputs.keys() != (wanted := {*function.structured_input_signature[1]}):
        names = ["pair"] if "text_pair" in wanted else sorted(wanted)
        remedy = f"give --{' and --'.join(names)}"
        if not wanted <= {*_INPUTS, "text_pair"}:
            remedy = "call it in Python, it takes ids"
        raise UserError(
            f"{path} needs {' and '.join(sorted(wanted))} for {signature}, not "
            f"{' and '.join(sorted(inputs))}: {remedy}"
        )
    if "options" in inputs:
        choices = function.structured_outputs["probabilities"].shape[1]
        if wrong := [row for row in inputs["options"] if len(row) != choices]:
            raise UserError(
                f"{path} chooses among {choices} options, not {len(wrong[0])}: give "
                f"--options with {choices} texts, separated by {_SEPARATOR}"
            )


def connect(server: str) -> Call:
    """Returns a function that sends requests to a server, as the flags say."""
    ask_server = client.ask_rest if server.startswith(("http://", "https://")) else client.ask_grpc
    options = {name: FLAGS[name].value for name in client.Options._fields}
    return lambda signature, inputs: ask_server(
        server, inputs, signature or "serving_default", **options
    )


def _split_pair(pair: str) -> list[str]:
    sentences = [*map(str.strip, pair.split(_SEPARATOR))]
    if len(sentences) != 2 or not all(sentences):
        raise UserError(f"--pair={pair!r}: expected two sentences with ||| between them")
    return sentences


def _answers(inputs: dict[str, list], outputs: dict[str, list]) -> list[str]:
    """Formats the inputs and outputs of each row."""
    outputs = dict(sorted(outputs.items()))
    if not inputs:
        return _lines(outputs)
    lines = []
    for question, answer in zip(_rows(inputs), _rows(outputs)):
        lines += ["", *_lines(question)]
        is_filled = "num_masks" in answer
        lines += _masks(question["text"], **answer) if is_filled else _lines(answer, "  ")
    return lines


def _rows(columns: dict[str, list]) -> list[dict[str, Any]]:
    return [dict(zip(columns, values)) for values in zip(*columns.values())]


def _lines(values: dict[str, Any], indent: str = "") -> list[str]:
    return [f"{indent}{name}: {_readable(value)}" for name, value in values.items()]


def _name_labels(outputs: dict[str, list], labels: list[str]) -> dict[str, list]:
    """Returns the outputs with labels for places: those predicted, and the most probable first."""
    named = dict(outputs)
    for name in {"predicted", "probabilities"} & outputs.keys():
        if any(len(row) != len(labels) for row in outputs[name]):
            continue  # such as the probability of each word
        rows = [sorted(zip(row, labels), key=lambda pair: -pair[0]) for row in outputs[name]]
        if name == "predicted":
            named[name] = [[label for value, label in row if value] for row in rows]
        else:
            named[name] = [[f"{label} {value:.6g}" for value, label in row] for row in rows]
    return named


def _readable(value) -> str:
    """Formats a string, a number, or a list of strings or numbers."""
    if isinstance(value, list):
        if len(value) > _MOST_VALUES and isinstance(value[0], float):  # such as an embedding
            return f"{len(value)} numbers"
        shown = [_readable(part) for part in value[:_MOST_VALUES]]
        return ", ".join(shown) + ", ..." * (len(value) > _MOST_VALUES)
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _masks(text: str, num_masks: int, pieces: list, probabilities: list) -> list[str]:
    lines = []
    for mask in range(num_masks):
        candidates = zip(pieces[mask], probabilities[mask])
        words = ",  ".join(f"{piece} {100 * p:.1f} %" for piece, p in candidates)
        lines.append(f"  [MASK] {mask + 1}: {words}")
    if more := text.count("[MASK]") - num_masks:
        lines.append(f"  ({more} more [MASK] without an answer: too far back, or too many)")
    return lines


if __name__ == "__main__":
    define_flags()
    program.run(main)
