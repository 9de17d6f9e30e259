"""Verifies that an export works without our code and has the same outputs as the model in memory.

A new process loads the SavedModel with only TensorFlow and tensorflow-text and runs a fixed set of
requests. The outputs must equal the outputs of the module's functions in memory, and their
tokenizer must return the pieces of the Python tokenizer. The outputs of a bfloat16 export must also
be close to the outputs of the float32 model.
"""

import json
import os
import pickle
import subprocess
import sys

import numpy as np
import tensorflow as tf

TOLERANCE = 1e-5  # absolute and relative
# Maximum relative error of an output, which is the root mean square of the difference from the
# float32 model, divided by max(1, root mean square of the output). albert_base has about 0.01.
BFLOAT16_TOLERANCE = 0.05
_IMPOSSIBLE = 1e20  # scores of impossible answers have a larger absolute value

_LONG = "One sentence, said again and again, is longer than any table of positions. " * 99
# Pairs of texts. The second text may be empty.
_TEXTS: list[tuple[str | bytes, str | bytes]] = [
    ("The [MASK] function returns an array.", "It takes no arguments."),
    ("Das Mädchen lief über die Straße, [MASK] es war spät[MASK].", ""),
    ("Où sont les neiges d'antan ?", "Mais où sont-elles ?"),
    ("В начале было слово.", b"\xff"),
    ("北京是中国的[MASK]。", ""),
    ("東京は日本の首都です。", "日本は島国です。"),
    ("서울은 한국의 수도이다.", ""),
    ("العربية لغة [MASK] جميلة", " "),
    ("हिन्दी एक भाषा है।", "और यह दूसरा वाक्य है।"),
    ("ภาษาไทยไม่มีช่องว่าง", ""),
    ("\U0001f469\u200d\U0001f469\u200d\U0001f467 1,000 [CLS] <pad> a\x00b\u2028c", "[SEP]"),
    ("[MASK][MASK] [MASK]", ""),
    ("", "Nothing came before."),
    (" \t\u3000", ""),
    (b"caf\xe9 \xff\xc3", ""),
]
_LONG_TEXTS = [(_LONG, "short"), ("short", _LONG), (_LONG + "[MASK]", _LONG), ("[MASK] " * 50, "")]


def verify(saved_model: str, module, functions: dict, exact=None) -> float:
    """Compares a SavedModel, loaded in a new process, with the ServingModule in memory.

    `functions` maps signature names to the module's functions. For a bfloat16 module, `exact` is
    the same module in float32. Returns the largest absolute difference or, with `exact`, the
    largest relative error (see BFLOAT16_TOLERANCE). Raises a RuntimeError if outputs differ, or if
    the process fails or imports our code.
    """
    _check_tokenizer(module)
    questions = _questions(module, functions)
    answers = _in_fresh_process(os.path.abspath(saved_model), questions)
    # Not eagerly: gelu is rounded to bfloat16 if it is not fused with a matmul.
    largest = max(map(_difference, questions, _answers(functions, questions), answers))
    if exact is None:
        return largest
    expected = _answers(exact.functions(), questions)
    differences = [*map(_rounding, expected, answers)]
    for (signature, _), difference in zip(questions, differences):
        if not difference <= BFLOAT16_TOLERANCE:
            raise RuntimeError(
                f"{signature} in bfloat16 is {difference:.2g} from the float32 model's answer, "
                f"more than {BFLOAT16_TOLERANCE}: export this model in float32"
            )
    return max(differences)


def _check_tokenizer(module) -> None:
    """Raises a RuntimeError if the tokenizer in the graph and in Python find other pieces."""
    texts = [text for pair in (*_TEXTS, *_LONG_TEXTS) for text in pair]
    decoded = [t if isinstance(t, str) else t.decode("utf-8", "replace") for t in texts]
    in_graph = module.tokenizer(tf.constant(texts, tf.string)).to_list()
    in_python = module.served.tokenizer.encode_batch(decoded)
    for text, theirs, ours in zip(decoded, in_graph, in_python):
        if theirs != [*map(int, ours)]:
            raise RuntimeError(
                f"the tokenizer in the graph divides {text[:80]!r} otherwise than in Python"
            )


def _in_fresh_process(saved_model: str, questions: list[tuple[str, dict]]) -> list[dict]:
    """Runs `_main` in a new process that cannot import our code, and returns the answers."""
    # Neither the current directory nor, because of runpy, that of this file is on sys.path.
    start = (
        "import runpy, sys; sys.path[:] = filter(None, sys.path); sys.argv.pop(0); "
        "runpy.run_path(sys.argv[0], run_name='__main__')"
    )
    process = subprocess.run(
        [sys.executable, "-c", start, os.path.abspath(__file__), saved_model],
        input=pickle.dumps(questions),
        capture_output=True,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": "-1"},
    )
    if process.returncode:
        error = process.stderr.decode(errors="replace")
        raise RuntimeError(f"{saved_model!r} fails in a fresh process:\n{error}")
    return pickle.loads(process.stdout)


def _questions(module, functions: dict) -> list[tuple[str, dict[str, np.ndarray]]]:
    """Returns (signature name, inputs) pairs: short, long and empty batches for each signature."""
    rng = np.random.RandomState(20200426)
    lengths = np.array([[11], [3], [7]])
    real = (np.arange(11) < lengths).astype(np.int32)
    ids = {
        "input_ids": real * rng.randint(0, module.sizes["vocab_size"], real.shape).astype(np.int32),
        "input_mask": real,
        "segment_ids": real * (np.arange(11) >= 5).astype(np.int32),
        "mlm_positions": rng.randint(0, 11, [3, 2]).astype(np.int32),
    }
    choices = module.sizes.get("choices", 1)
    batches = [
        {
            **_as_inputs([text for text, _ in pairs], [pair for _, pair in pairs], choices),
            **{name: values[:size] for name, values in ids.items()},
        }
        for pairs, size in ((_TEXTS, 3), (_LONG_TEXTS, 1), ([], 0))
    ]
    questions = []
    for signature, function in sorted(functions.items()):
        names = [spec.name for spec in tf.nest.flatten(function.structured_input_signature)]
        for batch in batches if names else [{}]:
            questions.append((signature, {name: batch[name] for name in names}))
    return questions


def _as_inputs(texts: list, pairs: list, choices: int) -> dict[str, np.ndarray]:
    """Returns a dict of the text inputs of all kinds, each of shape [rows, ...]."""
    first, second = (np.array(column, object) for column in (texts, pairs))
    # Append a number to repeated texts, because equal choices would make the answer ambiguous.
    options = [
        [f"{text} {i}" if i >= len(texts) else text for text in np.roll(first, -i)]
        for i in range(choices)
    ]
    return {
        "text": first,
        "text_pair": second,
        "question": second,
        "context": first,
        "words": _padded([text.split() or [""] for text in texts]),
        "options": np.array(options, object).T,
    }


def _padded(rows: list[list]) -> np.ndarray:
    """Converts rows of words to an object array [rows, words]; pads shorter rows with ""."""
    table = np.full([len(rows), max(map(len, rows), default=1)], "", object)
    for places, row in zip(table, rows):
        places[: len(row)] = row
    return table


def _answers(functions: dict, questions: list[tuple[str, dict[str, np.ndarray]]]) -> list[dict]:
    answers = []
    for signature, inputs in questions:
        tensors = {
            # TensorFlow cannot infer the dtype of an empty list of texts.
            name: tf.constant(value, tf.string if value.dtype == object else None)
            for name, value in inputs.items()
        }
        answer = {name: t.numpy() for name, t in functions[signature](**tensors).items()}
        if "vocab_file" in answer:  # compare the content, because paths differ
            with tf.io.gfile.GFile(answer["vocab_file"], "rb") as file:
                answer["vocab_file"] = np.array(file.read(), object)
        answers.append(answer)
    return answers


def _difference(question: tuple[str, dict], expected: dict, answer: dict) -> float:
    """Returns the largest difference between outputs; raises a RuntimeError above TOLERANCE."""
    largest = 0.0
    expected, answer = _with_probabilities_apart(expected), _with_probabilities_apart(answer)
    if expected.keys() != answer.keys():
        raise RuntimeError(f"{question[0]} returns {sorted(answer)}, not {sorted(expected)}")
    for name, ours in expected.items():
        theirs = answer[name]
        equal = ours.shape == theirs.shape and ours.dtype == theirs.dtype
        if equal and ours.dtype.kind == "f":
            equal = np.allclose(ours, theirs, rtol=TOLERANCE, atol=TOLERANCE)
            largest = max(largest, float(np.abs(ours - theirs).max(initial=0.0)))
        elif equal and name == "pieces":
            certain = _certain_ranks(expected["probabilities"])
            equal = np.array_equal(ours[certain], theirs[certain])
        elif equal:
            equal = np.array_equal(ours, theirs)
        if not equal:
            raise RuntimeError(
                f"{question[0]} returns another {name} than the model in memory, for {question[1]}"
            )
    return largest


def _with_probabilities_apart(outputs: dict) -> dict:
    """Moves the probabilities in `spans` to a numeric output, which may differ by rounding."""
    if "spans" not in outputs:
        return outputs
    rows = [json.loads(row) for row in outputs["spans"]]
    probabilities = [span.pop("probability") for row in rows for span in row]
    return {
        **outputs,
        "spans": np.array([json.dumps(row) for row in rows], object),
        "probabilities of spans": np.array(probabilities, np.float32),
    }


def _rounding(expected: dict, answer: dict) -> float:
    """Returns the largest relative error of all outputs (see BFLOAT16_TOLERANCE)."""
    differences = [0.0]
    for name, exact in expected.items():
        if exact.dtype.kind == "f" and (compared := ~(np.abs(exact) > _IMPOSSIBLE)).any():
            exact, given = exact[compared].astype(np.float64), answer[name][compared]
            scale = max(1.0, np.mean(np.square(exact)))
            differences.append(np.sqrt(np.mean(np.square(given - exact)) / scale))
    return float(np.max(differences))  # NaN if any value is NaN


def _certain_ranks(probabilities: np.ndarray) -> np.ndarray:
    """Returns True for ranks that rounding cannot swap (same shape); False for the last rank."""
    gaps = np.diff(-probabilities, axis=-1) > TOLERANCE
    edge = np.ones_like(gaps[..., :1])
    return np.concatenate([edge, gaps], -1) & np.concatenate([gaps, ~edge], -1)


def _main(saved_model: str) -> None:
    """Runs the requests from stdin in the new process and writes the outputs to stdout."""
    output = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # nothing else may be written to stdout
    for name in ("albert_tf", "pipelines", "export"):
        # None makes imports fail, even if the package is installed. Typeshed does not allow None.
        sys.modules[name] = None  # type: ignore[assignment]

    import tensorflow_text  # noqa: F401  Registers ops that are built into TF Serving.

    model = tf.saved_model.load(saved_model)
    with output:
        pickle.dump(_answers(model.signatures, pickle.load(sys.stdin.buffer)), output)


if __name__ == "__main__":
    _main(sys.argv[1])
