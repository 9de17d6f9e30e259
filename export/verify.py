"""Verifies that an export works without our code and has the same outputs as the model in memory.

A new process loads the SavedModel with only TensorFlow and tensorflow-text and runs fixed requests.
A bfloat16 export must also be close to the float32 model. The tokenizer in the graph must return
the pieces of the Python tokenizer.
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
    largest relative error (see BFLOAT16_TOLERANCE). Raises a RuntimeError if outputs or pieces
    differ, or if the process fails or imports our code.
    """
    texts = [tf.compat.as_bytes(text) for pair in (*_TEXTS, *_LONG_TEXTS) for text in pair]
    decoded = [text.decode("utf-8", "replace") for text in texts]
    in_graph = module.tokenizer(tf.constant(texts)).to_list()
    for text, theirs, ours in zip(decoded, in_graph, module.served.tokenizer.encode_batch(decoded)):
        if theirs != [*map(int, ours)]:
            raise RuntimeError(f"graph and Python divide {text[:80]!r} into other pieces")
    questions = _questions(module, functions)
    saved_model = os.path.abspath(saved_model)
    # With runpy, the directory of this file is not on sys.path.
    start = "import runpy, sys; runpy.run_path(sys.argv[1])['_answer_requests'](sys.argv[2])"
    process = subprocess.run(
        [sys.executable, "-c", start, os.path.abspath(__file__), saved_model],
        input=pickle.dumps(questions),
        capture_output=True,
        cwd=saved_model,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": "-1"},
    )
    if process.returncode:
        error = process.stderr.decode(errors="replace")
        raise RuntimeError(f"{saved_model!r} fails in a fresh process:\n{error}")
    answers = pickle.loads(process.stdout)
    # Not eagerly: gelu is rounded to bfloat16 if it is not fused with a matmul.
    largest = max(map(_difference, questions, _answers(functions, questions), answers))
    if exact is None:
        return largest
    differences = [*map(_rounding, _answers(exact.functions(), questions), answers)]
    for (signature, _), difference in zip(questions, differences):
        if not difference <= BFLOAT16_TOLERANCE:
            above = f"{difference:.2g} from the float32 model, above {BFLOAT16_TOLERANCE}"
            raise RuntimeError(f"{signature} in bfloat16 is {above}: export this model in float32")
    return max(differences)


def largest_difference(module, answer) -> float:
    """Compares outputs of `answer` with the module's `serving_default`, for fixed texts.

    `answer` maps a dict of texts, bytes [batch], to a dict of some of the outputs. Returns and
    raises the same as `verify` without `exact`.
    """
    functions = {"serving_default": module.function("serving_default")}
    questions = [asked for asked in _questions(module, functions) if len(asked[1]["text"])]
    differences = []
    for question, expected in zip(questions, _answers(functions, questions)):
        found = answer(question[1])
        differences.append(_difference(question, {name: expected[name] for name in found}, found))
    return max(differences)


def _questions(module, functions: dict) -> list[tuple[str, dict[str, np.ndarray]]]:
    """Returns (signature name, inputs) pairs: short, long and empty batches for each signature."""
    rng = np.random.RandomState(20200426)
    real = (np.arange(11) < [[11], [3], [7]]).astype(np.int32)
    ids = {
        "input_ids": real * rng.randint(0, module.sizes["vocab_size"], real.shape).astype(np.int32),
        "input_mask": real,
        "segment_ids": real * (np.arange(11) >= 5).astype(np.int32),
        "mlm_positions": rng.randint(0, 11, [3, 2]).astype(np.int32),
    }
    batches, choices = [], range(module.sizes["choices"])
    for pairs, size in ((_TEXTS, 3), (_LONG_TEXTS, 1), ([], 0)):
        texts = [[*map(tf.compat.as_bytes, pair)] for pair in pairs]
        first, second = np.array(texts, object).reshape([-1, 2]).T
        # Numbered, because equal choices would make the answer ambiguous.
        options = [[b"%s %d" % (text, i) for text in np.roll(first, -i)] for i in choices]
        batch = {name: values[:size] for name, values in ids.items()}
        batch.update(text=first, text_pair=second, question=second, context=first)
        batch["words"] = tf.strings.split(tf.constant(first, tf.string)).to_tensor().numpy()
        batch["options"] = np.array(options, object).T
        batches.append(batch)
    return [
        (signature, {name: batch[name] for name in function.structured_input_signature[1]})
        for signature, function in sorted(functions.items())
        for batch in batches
    ]


def _answers(functions: dict, questions: list[tuple[str, dict[str, np.ndarray]]]) -> list[dict]:
    answers = []
    for signature, inputs in questions:
        tensors = {  # with the dtype, because TensorFlow cannot infer it if there are no texts
            name: tf.constant(value, tf.string if value.dtype == object else None)
            for name, value in inputs.items()
        }
        answer = {name: t.numpy() for name, t in functions[signature](**tensors).items()}
        if "vocab_file" in answer:  # compare the content, because paths differ
            answer["vocab_file"] = np.array(tf.io.read_file(answer["vocab_file"]), object)
        answers.append(answer)
    return answers


def _difference(question: tuple[str, dict], expected: dict, answer: dict) -> float:
    """Returns the largest difference between outputs; raises a RuntimeError above TOLERANCE."""
    signature, inputs = question
    expected, answer = _with_probabilities_apart(expected), _with_probabilities_apart(answer)
    forms = [{name: (a.shape, a.dtype) for name, a in of.items()} for of in (answer, expected)]
    if forms[0] != forms[1]:
        raise RuntimeError(f"{signature} returns {forms[0]}, not {forms[1]}, for {inputs}")
    largest = 0.0
    for name, ours in expected.items():
        theirs = answer[name]
        if ours.dtype.kind == "f":
            is_equal = np.allclose(ours, theirs, rtol=TOLERANCE, atol=TOLERANCE)
            largest = max(largest, float(np.abs(ours - theirs).max(initial=0.0)))
        elif name == "pieces":  # rounding may swap ranks of equal probability, and the last rank
            gaps = np.diff(-expected["probabilities"], axis=-1) > TOLERANCE
            certain = np.insert(gaps, 0, True, -1) & np.insert(gaps, gaps.shape[-1], False, -1)
            is_equal = np.array_equal(ours[certain], theirs[certain])
        else:
            is_equal = np.array_equal(ours, theirs)
        if not is_equal:
            raise RuntimeError(f"{signature} returns another {name} than in memory, for {inputs}")
    return largest


def _with_probabilities_apart(outputs: dict) -> dict:
    """Moves the probabilities in `spans` to a numeric output, which may differ by rounding."""
    if "spans" not in outputs:
        return outputs
    rows = [json.loads(row) for row in outputs["spans"]]
    probabilities = [span.pop("probability") for row in rows for span in row]
    apart = {"probabilities of spans": np.array(probabilities, np.float32)}
    return {**outputs, **apart, "spans": np.array([json.dumps(row) for row in rows], object)}


def _rounding(expected: dict, answer: dict) -> float:
    """Returns the largest relative error of all outputs (see BFLOAT16_TOLERANCE)."""
    differences = [0.0]
    for name, exact in expected.items():
        # Scores of impossible answers have a larger absolute value.
        if exact.dtype.kind == "f" and (compared := ~(np.abs(exact) > 1e20)).any():
            exact, given = exact[compared].astype(np.float64), answer[name][compared]
            scale = max(1.0, np.mean(np.square(exact)))
            differences.append(np.sqrt(np.mean(np.square(given - exact)) / scale))
    return float(np.max(differences))  # NaN if any value is NaN


def _answer_requests(saved_model: str) -> None:
    """Answers the requests from stdin on stdout, in the new process, without our code."""
    output = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # nothing else may be written to stdout
    # None makes imports fail, even if the package is installed. Typeshed does not allow None.
    sys.modules.update(dict.fromkeys(("albert_tf", "pipelines", "export")))  # type: ignore[arg-type]

    import tensorflow_text  # noqa: F401  Registers ops that are built into TF Serving.

    model = tf.saved_model.load(saved_model)
    with output:
        pickle.dump(_answers(model.signatures, pickle.load(sys.stdin.buffer)), output)
