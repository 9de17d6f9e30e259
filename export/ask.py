r"""Queries an exported model, in this process or on a TF Serving server.

A pre-trained model predicts the piece at each [MASK] of a text, and the order of two sentences. A
fine-tuned model predicts the label of a text or pair, the answer to a question, or the best of
several options. Repeat a flag to ask several questions.

Examples:
  python -m export.ask --saved_model=exports/base/3 --pair="Open the file. ||| Then read it."
  python -m export.ask --saved_model=exports/base \
    --text="The [MASK] function returns an array." --text="It [MASK] two [MASK]."
  python -m export.ask --saved_model=exports/squad --question="Who sings?" --context="Birds sing."
  python -m export.ask --server=http://localhost:8501 --label=canary --text="A ticket."
  python -m export.ask --server=localhost:8500 --signature=labels
"""

import json
import operator
import os
from collections.abc import Callable
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

_MOST_VALUES = 8  # maximum number of values printed per output
_IN_ORDER = "in_order_probability"
# The flags of texts: help and example.
TEXTS = {
    "pair": ("Two texts, separated by |||.", "Ada met Bob. ||| He smiled."),
    "text": ("Text.", "Ada met Bob."),
    "question": ("Question.", "Who sings?"),
    "context": ("Text that the question is about.", "Seven small birds sing."),
    "options": ("Answers to choose from, separated by |||.", "Birds."),
}
# Maps a signature and its inputs to its outputs, lists with a value per row.
Call = Callable[[str, dict[str, list]], dict[str, list]]


def define_flags() -> None:
    """Defines the flags. This is not done at import, because programs share flag names."""
    define = flags.DEFINE_string
    define("saved_model", None, "A SavedModel, or a directory with its versions.")
    define("server", None, "HOST:PORT for gRPC, http://HOST:PORT for REST.")
    define("model", "albert", "The model's name in the server's config.")
    define("label", "stable", "Version label in models.config. Empty: the newest version.")
    define("signature", "", "Default: fill_mask for texts with [MASK], else serving_default.")
    for name, (meaning, _) in TEXTS.items():
        flags.DEFINE_multi_string(name, [], meaning)


def main(_) -> None:
    """Runs the program with the values of its flags."""
    if bool(FLAGS.saved_model) == bool(FLAGS.server):
        raise UserError("give --saved_model or --server, one of them")
    # As in the model, invalid UTF-8 is replaced by U+FFFD, so that the text can be printed.
    given = {
        name: [os.fsencode(text).decode("utf-8", "replace") for text in texts]
        for name in TEXTS
        if (texts := FLAGS[name].value)
    }
    call = load(FLAGS.saved_model) if FLAGS.saved_model else _ask_server
    print(*ask(call, given, FLAGS.signature), sep="\n")


def ask(call: Call, given: dict[str, list[str]], signature: str = "") -> list[str]:
    """Sends the texts of flags, by name; returns the formatted answers as lines."""
    inputs: dict[str, list] = dict(given)
    for name in {"pair", "options"} & inputs.keys():
        inputs[name] = [[part.strip() for part in text.split("|||")] for text in inputs[name]]
    pairs = inputs.pop("pair", [])
    _check_texts(pairs, inputs)
    lines, masked = [], []
    if not signature and inputs.keys() == {"text"}:
        masked = [text for text in inputs["text"] if "[MASK]" in text]
        inputs["text"] = [text for text in inputs["text"] if "[MASK]" not in text]
    signature = signature or "serving_default"
    if masked:
        lines += _answers({"text": masked}, call("fill_mask", {"text": masked}))
        lines += ["", "(a word begins at ▁; a piece without it continues the word before)"]
    if any(inputs.values()) or not given:
        lines += _answers(inputs, call(signature, inputs))
    if pairs:
        first, second = map(list, zip(*pairs))
        of_pairs = {"text": first, "text_pair": second}
        answers = call(signature, of_pairs)
        if _IN_ORDER in answers:
            swapped = call(signature, {"text": second, "text_pair": first})[_IN_ORDER]
            answers[f"{_IN_ORDER}, swapped"] = swapped
        lines += _answers(of_pairs, answers)
        if _IN_ORDER in answers and len(pairs) > 1:
            share = f"{sum(map(operator.gt, answers[_IN_ORDER], swapped))} of {len(pairs)}"
            lines += ["", f"rather in order as given than swapped: {share} pairs (by chance half)"]
    return lines


def _check_texts(pairs: list[list[str]], inputs: dict[str, list]) -> None:
    for pair in pairs:
        if len(pair) != 2 or not all(pair):
            raise UserError(f"--pair: expected two sentences with ||| between them, got {pair}")
    if len({*map(len, inputs.values())}) > 1:
        counts = ", ".join(f"{len(values)} of --{name}" for name, values in inputs.items())
        raise UserError(f"{counts}: repeat each flag equally often, once per question")
    if len({*map(len, inputs.get("options", []))}) > 1:
        raise UserError("--options: expected equally many options for each question")


def _ask_server(signature: str, inputs: dict[str, list]) -> dict[str, list]:
    ask_server = client.ask_rest if "://" in FLAGS.server else client.ask_grpc
    return ask_server(FLAGS.server, inputs, signature, FLAGS.model, FLAGS.label)


def load(saved_model: str) -> Call:
    """Loads a SavedModel without model code, and returns a function that calls its signatures."""
    path = versions.newest_saved_model(saved_model)
    if path is None:
        versions.refuse_parent(saved_model)
        remedy = "export a model first, see python -m export.export_saved_model --help"
        raise UserError(f"no SavedModel at {saved_model!r}, nor a version of one in it: {remedy}")
    import_tensorflow_text()
    model = versions.load_saved_model(path)
    print(f"{path} answers")

    def call(signature: str, inputs: dict[str, list]) -> dict[str, list]:
        if signature not in model.signatures:
            raise UserError(
                f"{path!r} has no signature {signature!r}, only {', '.join(model.signatures)} "
                "(for texts that contain [MASK], give --signature=serving_default)"
            )
        function = model.signatures[signature]
        _check_inputs(f"{path!r}, {signature}", function, inputs)
        found = function(**{name: tf.constant(values) for name, values in inputs.items()})
        return client.decoded({name: np.asarray(of).tolist() for name, of in found.items()})

    return call


def _check_inputs(where: str, function: Any, inputs: dict[str, list]) -> None:
    """Raises a UserError if a signature has other inputs, or chooses among other options."""
    specs, choices = function.structured_input_signature[1], set()
    if "options" in specs:
        choices = {function.structured_outputs["probabilities"].shape[1]}
    if inputs.keys() != specs.keys() or {*map(len, inputs.get("options", ()))} != choices:
        names = ["pair"] if "text_pair" in specs else sorted(specs)
        needed = " and ".join(f"--{name}" if name in TEXTS else name for name in names)
        number = f" with {choices.pop()} options" if choices else ""
        given = ", ".join(f"--{name}" for name in inputs) or "none"
        raise UserError(f"{where} needs {needed or 'no texts'}{number}, given {given}")


def _answers(inputs: dict[str, list], outputs: dict[str, list]) -> list[str]:
    """Formats the inputs and outputs of each row."""
    outputs = dict(sorted(outputs.items()))
    if not inputs:
        return [f"{name}: {_readable(value)}" for name, value in outputs.items()]
    lines = []
    for row, _ in enumerate(next(iter(inputs.values()))):
        answer = {name: values[row] for name, values in outputs.items()}
        if "num_masks" in answer:
            answer = _filled(inputs["text"][row], **answer)
        lines += ["", *(f"{name}: {_readable(texts[row])}" for name, texts in inputs.items())]
        lines += [f"  {name}: {_readable(value)}" for name, value in answer.items()]
    return lines


def _filled(text: str, num_masks: int, pieces: list, probabilities: list) -> dict[str, str]:
    """Returns the candidates for each [MASK] of a text."""
    filled = {}
    for mask in range(num_masks):
        candidates = zip(pieces[mask], probabilities[mask])
        words = ",  ".join(f"{piece} {100 * p:.1f} %" for piece, p in candidates)
        filled[f"[MASK] {mask + 1}"] = words
    if more := text.count("[MASK]") - num_masks:
        filled["no answer"] = f"{more} more [MASK], too far back or too many"
    return filled


def _readable(value) -> str:
    """Formats a string, a number, a list of strings or numbers, or the spans of a text."""
    if not isinstance(value, list):
        return f"{value:.6g}" if isinstance(value, float) else str(value)
    if value and isinstance(value[0], dict):
        return json.dumps(value, ensure_ascii=False)
    if len(value) > _MOST_VALUES and isinstance(value[0], float):  # such as an embedding
        return f"{len(value)} numbers"
    shown = [_readable(part) for part in value[:_MOST_VALUES]]
    return ", ".join(shown) + ", ..." * (len(value) > _MOST_VALUES)


if __name__ == "__main__":
    define_flags()
    program.run(main)
