"""Counts the labels of a fine-tuned classifier that change when it is served in another precision.

All sides answer the same rows, padded to the trained length if a side needs a fixed length. The
first side is the model in memory, in float32. The other sides are compared with it: number of
labels that differ, the task's metrics, largest difference of a probability. Sides whose packages
are missing are skipped. The benchmark `export` measures speed.

ours: the model in memory, float32.
export, export_bfloat16: SavedModels of export.export_saved_model, with text as input.
tflite, tflite_int8: our TFLite file, without and with --quantize (int8 weights, float activations).
onnxruntime, onnxruntime_int8: our ONNX file, without and with --quantize (int8 both).
openvino, openvino_bfloat16: our ONNX file in OpenVINO. openvino_int8: the file quantized
by NNCF, with static ranges of activations from rows of GLUE's training set.
torch, torch_bfloat16: the model converted to Hugging Face's format, with weights in this dtype.
torch_autocast: the same model under torch's autocast to bfloat16.
torch_int8: the same model with torch's own dynamic quantization, as a control for ours.
pipeline: transformers' text-classification pipeline with the same model and text as input.

Example:
  python -m tests.benchmarks.agreement --checkpoint=runs/cola/seed_1 \\
      --data=../shared/data/glue/CoLA
"""

import os
import tempfile
from collections.abc import Callable
from functools import partial

import numpy as np
import tensorflow as tf
from absl import flags, logging
from scipy import special

from albert_tf.checkpoints.conversion import convert as convert_model
from albert_tf.checkpoints.opening import open_model
from albert_tf.jobs import program
from albert_tf.storage import files
from albert_tf.storage.errors import UserError
from albert_tf.text.tokenization import AlbertTokenizer
from pipelines.tasks import glue
from pipelines.tasks.running import fine_tuned
from pipelines.tasks.running.batches import make_batch
from pipelines.tasks.task import read_files
from tests.benchmarks.export_peers import quantize_by_nncf
from tests.benchmarks.measuring import define_sides, print_table

FLAGS = flags.FLAGS

# Name of an input in exports -> in the model.
_INPUTS = {
    "input_ids": "input_word_ids",
    "input_mask": "input_mask",
    "segment_ids": "input_type_ids",
}
_BATCH_SIZE = 32
_CALIBRATION_ROWS = 300

Ids = dict[str, np.ndarray]
# A function (ids, examples) -> probabilities, and the number of rows per call.
Answer = tuple[Callable[[Ids, list], np.ndarray], int]


def define_flags() -> None:
    """Defines the flags."""
    flags.DEFINE_string("checkpoint", None, "A run of pipelines.finetune.", required=True)
    flags.DEFINE_string(
        "data", None, "GLUE's directory of the task, or a labelled table.", required=True
    )
    define_sides(_SIDES, "What to compare with the model in memory.")


def main(_) -> None:
    """Reads the flags."""
    logging.set_verbosity(logging.ERROR)
    compare(FLAGS.checkpoint, FLAGS.data, FLAGS.sides)


def compare(checkpoint: str, data: str, sides: list[str]) -> None:
    """Prints one line per side."""
    checkpoint = fine_tuned.find_model(checkpoint)
    description = open_model(checkpoint).task
    if description["kind"] != "classifier":
        raise UserError(f"--checkpoint: a {description['kind']}, expected a classifier")
    if os.path.isdir(data):
        task = glue.GlueTask(description["task"], data)
        examples = task.read("dev")
    else:
        task = fine_tuned.task_of(description, {})
        examples = list(read_files(task, files.match_files(data, "data")))
    if any(example.label is None for example in examples):
        raise UserError(f"--data={data}: rows without labels, expected labels of all")
    sequences, ids = _encoded(checkpoint, task, examples)
    outputs = fine_tuned.FineTunedRun(open_model(checkpoint), task).outputs(sequences)
    expected = special.softmax(np.stack([output["logits"] for output in outputs]), axis=1)
    rows = []
    with tempfile.TemporaryDirectory() as directory:
        for side in sides:
            try:
                answer, size = _SIDES[side](checkpoint, directory)
            except (ImportError, UserError) as error:
                print(f"{side} is left out: {str(error).splitlines()[0]}")
                continue
            batches = [slice(begin, begin + size) for begin in range(0, len(examples), size)]
            found = [
                answer({name: values[rows_of] for name, values in ids.items()}, examples[rows_of])
                for rows_of in batches
            ]
            rows.append(_row(side, np.concatenate(found), expected, task, examples))
    rows.insert(0, _row("ours", expected, expected, task, examples))
    columns = {"side": "", "labels that change": ".0f", "of": ".0f", "probability": ".1e"}
    print_table({**columns, **dict.fromkeys(task.metrics, ".4f")}, rows)


def _encoded(checkpoint: str, task, examples: list) -> tuple[list, Ids]:
    """Returns the examples' sequences, and their ids padded to the trained length."""
    length = open_model(checkpoint).task["max_seq_length"]
    sequences, _ = task.encode(examples, AlbertTokenizer.load(checkpoint), length, False)
    batch = make_batch(sequences, np.arange(len(examples)), length)
    return sequences, {ours: batch[name] for ours, name in _INPUTS.items()}


def _row(side: str, found: np.ndarray, expected: np.ndarray, task, examples: list) -> list:
    answers = task.answers(examples, None, [{"probabilities": row} for row in found])
    scores = task.score(answers.rows())
    changed = (found.argmax(axis=1) != expected.argmax(axis=1)).sum()
    difference = np.abs(found - expected).max()
    return [side, changed, len(found), difference, *(scores[name] for name in task.metrics)]


def _export(precision: str, checkpoint: str, directory: str) -> Answer:
    import tensorflow_text  # noqa: F401

    from export.export_saved_model import export

    output = os.path.join(directory, precision)
    signature = tf.saved_model.load(
        export(checkpoint=checkpoint, output=output, precision=precision)
    ).signatures["serving_default"]

    def answer(_, examples: list) -> np.ndarray:
        texts = {"text": [example.text for example in examples]}
        if examples[0].text_pair is not None:
            texts["text_pair"] = [example.text_pair for example in examples]
        inputs = {name: tf.constant(values) for name, values in texts.items()}
        return signature(**inputs)["probabilities"].numpy()

    return answer, _BATCH_SIZE


def _tflite(quantize: bool, checkpoint: str, directory: str) -> Answer:
    from export import fixed_graph, tflite

    path = os.path.join(directory, f"{quantize}.tflite")
    tflite.convert(fixed_graph.load(checkpoint), path, quantize)
    runner = tf.lite.Interpreter(model_path=path).get_signature_runner()
    return lambda ids, _: runner(**ids)["probabilities"], 1


def _onnxruntime(int8: bool, checkpoint: str, directory: str) -> Answer:
    import onnxruntime

    from export import fixed_graph, onnx

    path = os.path.join(directory, f"{int8}.onnx")
    onnx.convert(fixed_graph.load(checkpoint), path, quantize=int8)
    session = onnxruntime.InferenceSession(path)

    return lambda ids, _: session.run(["probabilities"], _int64(ids))[0], _BATCH_SIZE


def _int64(ids: Ids) -> Ids:
    return {name: np.asarray(rows, np.int64) for name, rows in ids.items()}


def _openvino(form: str, checkpoint: str, directory: str) -> Answer:
    import openvino

    from export import fixed_graph, onnx

    path = os.path.join(directory, "openvino.onnx")
    onnx.convert(fixed_graph.load(checkpoint), path)
    if form == "int8":
        rows = _calibration(checkpoint)
        path, source = os.path.join(directory, "openvino.xml"), path
        quantize_by_nncf(source, rows, path)
    hint = {"INFERENCE_PRECISION_HINT": "bf16" if form == "bfloat16" else "f32"}
    model = openvino.Core().compile_model(path, "CPU", hint)
    return lambda ids, _: model(_int64(ids))["probabilities"], _BATCH_SIZE


def _calibration(checkpoint: str) -> list[Ids]:
    """Returns rows of the training set in --data, each a batch of one without padding."""
    if not os.path.isdir(FLAGS.data):
        raise UserError("a table has no training rows for static ranges, expected GLUE's directory")
    task = glue.GlueTask(open_model(checkpoint).task["task"], FLAGS.data)
    _, ids = _encoded(checkpoint, task, list(task.read("train"))[:_CALIBRATION_ROWS])
    lengths = np.sum(ids["input_mask"], axis=1)
    return [
        _int64({name: rows[i : i + 1, :length] for name, rows in ids.items()})
        for i, length in enumerate(lengths)
    ]


def _huggingface(checkpoint: str, directory: str) -> str:
    os.environ["USE_TORCH"] = "1"  # read by transformers at its import
    path = os.path.join(directory, "huggingface")
    if not os.path.exists(path):
        convert_model(open_model(checkpoint), path, "huggingface")
    return path


def _pipeline(checkpoint: str, directory: str) -> Answer:
    path = _huggingface(checkpoint, directory)
    from transformers import pipeline

    length = open_model(checkpoint).task["max_seq_length"]
    options = {"top_k": None, "truncation": True, "max_length": length, "padding": True}
    classify = pipeline("text-classification", model=path, **options)

    def answer(_, examples: list) -> np.ndarray:
        texts = [{"text": example.text, "text_pair": example.text_pair} for example in examples]
        names = classify.model.config.label2id
        scores = [
            {names[label["label"]]: label["score"] for label in row} for row in classify(texts)
        ]
        return np.array([[row[number] for number in sorted(row)] for row in scores])

    return answer, _BATCH_SIZE


def _torch(weights: str, autocast: bool, checkpoint: str, directory: str) -> Answer:
    path = _huggingface(checkpoint, directory)
    import torch
    from transformers import AutoModelForSequenceClassification

    model = AutoModelForSequenceClassification.from_pretrained(path).eval()
    if weights == "qint8":
        model = torch.ao.quantization.quantize_dynamic(model, {torch.nn.Linear}, torch.qint8)
    else:
        model = model.to(getattr(torch, weights))
    names = dict(zip(_INPUTS, ("input_ids", "attention_mask", "token_type_ids")))

    def answer(ids: Ids, _) -> np.ndarray:
        inputs = {names[name]: torch.from_numpy(rows).long() for name, rows in ids.items()}
        with torch.inference_mode(), torch.autocast("cpu", enabled=autocast):
            return special.softmax(model(**inputs).logits.float().numpy(), axis=1)

    return answer, _BATCH_SIZE


_SIDES: dict[str, Callable[[str, str], Answer]] = {
    "export": partial(_export, "float32"),
    "export_bfloat16": partial(_export, "bfloat16"),
    "tflite": partial(_tflite, False),
    "tflite_int8": partial(_tflite, True),
    "onnxruntime": partial(_onnxruntime, False),
    "onnxruntime_int8": partial(_onnxruntime, True),
    "openvino": partial(_openvino, "float32"),
    "openvino_bfloat16": partial(_openvino, "bfloat16"),
    "openvino_int8": partial(_openvino, "int8"),
    "torch": partial(_torch, "float32", False),
    "torch_bfloat16": partial(_torch, "bfloat16", False),
    "torch_autocast": partial(_torch, "float32", True),
    "torch_int8": partial(_torch, "qint8", False),
    "pipeline": _pipeline,
}


if __name__ == "__main__":
    define_flags()
    program.run(main)
