r"""Converts a checkpoint to an OpenVINO model: texts as input, labels or embeddings as output.

Writes the versions OUTPUT/1, OUTPUT/2 and so on, which OpenVINO Model Server loads: model.xml and
model.bin, with the tokenizer inside. Inputs are `text` and, for tasks with pairs, `text_pair`,
string [batch]. Outputs are as in the SavedModel's `serving_default`, without `unknown_share`.
Kinds: encoder, embedder, classifier, regressor and multilabel. A pre-trained model becomes an
encoder. Long texts are tokenized as a whole, and then truncated.

With --calibration_file, matmuls become int8 (NNCF). Ranges of activations come from the first 300
rows. With --dev_file, the task's metrics are printed before and after, and a model that loses more
than --max_accuracy_loss is not written.

Requires the extra `openvino`. Before quantization, answers to fixed texts in many languages must be
within 1e-5 of the model's.

Examples:
  python -m export.openvino --checkpoint=runs/rte/seed_1 --output=models/rte
  python -m export.openvino --checkpoint=runs/tickets/seed_1 --output=models/tickets \
    --calibration_file=train.csv --dev_file=dev.csv
"""

import importlib
import io
import json
import logging
import os
from typing import Any

import numpy as np
import tensorflow as tf
from absl import flags
from absl import logging as absl_logging

from albert_tf.jobs import program
from albert_tf.storage import files, versions
from albert_tf.storage.errors import UserError
from albert_tf.text.packing import FEATURES
from . import fixed_graph, onnx
from .kinds import ENCODER, PRETRAINING
from .modules.serving_module import TextModule
from .verify import largest_difference

FLAGS = flags.FLAGS

_CALIBRATION_ROWS = 300
_BATCH_SIZE = 32


def define_flags() -> None:
    """Defines the flags. This is not done at import, because programs share flag names."""
    fixed_graph.define_flags("Directory for the versions.")
    flags.DEFINE_string(
        "calibration_file",
        None,
        "Quantize with the texts of these tables (paths or globs), read as in pipelines.predict.",
    )
    flags.DEFINE_string("dev_file", None, "Labelled tables (paths or globs) to score the model on.")
    flags.DEFINE_float(
        "max_accuracy_loss",
        0.01,
        "Highest loss by quantization of the task's first metric on --dev_file.",
    )


def main(_) -> None:
    """Runs the program with the values of its flags."""
    tf.config.set_visible_devices([], "GPU")
    absl_logging.set_verbosity(absl_logging.ERROR)
    names = ("checkpoint", "output", "kind", "calibration_file", "dev_file", "max_accuracy_loss")
    arguments: dict[str, Any] = {name: FLAGS[name].value for name in names}
    convert(**arguments)


def convert(
    checkpoint: str,
    output: str,
    kind: str | None = None,
    calibration_file: str | None = None,
    dev_file: str | None = None,
    max_accuracy_loss: float = 0.01,
) -> str:
    """Writes a version and returns its directory. For the arguments see the flags.

    Raises a UserError if a package is missing, the kind is not supported, or int8 loses too much.
    """
    graph = onnx.import_extra(f"{__package__}.openvino_graph", "openvino")
    module = fixed_graph.load(checkpoint, kind)
    if not isinstance(module, TextModule) or module.served.kind == PRETRAINING:
        raise UserError(
            f"{checkpoint!r}: no OpenVINO model of kind {module.served.kind} can take texts: use "
            f"export.onnx, or --kind={ENCODER}"
        )
    if dev_file and module.served.kind in (ENCODER, "embedder"):
        raise UserError(f"--dev_file: kind {module.served.kind} has no metric: remove the flag")
    rows = _read(module, calibration_file, "calibration_file")[1] if calibration_file else []
    dev = _read(module, dev_file, "dev_file") if dev_file else None
    data = io.BytesIO(onnx.build(module).SerializeToString())
    ids_model = graph.openvino.Core().read_model(data)
    model = graph.with_texts(module, ids_model.clone())
    difference = largest_difference(module, graph.answering(model))
    print(f"every answer equals the model's (largest difference {difference:.1e})", flush=True)
    before = _score("float32", graph.answering(model), *dev) if dev else 0.0
    if rows:
        model = graph.with_texts(module, _quantize(module, ids_model, rows))
        if dev:
            after = _score("int8", graph.answering(model), *dev)
            _check_loss(dev[0].best_metric, before, after, max_accuracy_loss)
    final = os.path.join(output, str(max(versions.existing(output), default=0) + 1))
    described = fixed_graph.description(module.served, final)
    for name in ("kind", "labels", "has_pairs", "max_seq_length"):
        model.set_rt_info(json.dumps(described[name]), ["model_info", name])
    with files.new_directory(final) as partial:
        path = os.path.join(partial, "model.xml")
        graph.openvino.save_model(model, path, compress_to_fp16=False)
    print(f"{final}: {module.served.kind}{' in int8' if rows else ''}")
    return final


def _read(module: TextModule, paths: str, flag_name: str) -> tuple:
    """Returns the task and the examples of tables, which are read as in pipelines.predict."""
    tasks, task = program.installed_module("pipelines.tasks"), module.served.task
    name = "fine_tuned" if task else "pretrained"
    running = importlib.import_module(f"{tasks}.running.{name}")
    task = running.task_of(task, {}) if task else running.text_task({}, None)
    read_files = importlib.import_module(f"{tasks}.task").read_files
    found = files.match_files(paths, flag_name)
    return task, list(read_files(task, found, needs_answers=flag_name == "dev_file"))


def _quantize(module: TextModule, ids_model, rows: list):
    """Returns a model of piece ids in int8, with ranges of activations from the first rows."""
    nncf = onnx.import_extra("nncf", "openvino")
    nncf.set_log_level(logging.ERROR)
    inputs = []
    for example in rows[:_CALIBRATION_ROWS]:
        texts = {name: tf.constant([text]) for name, text in example.inputs().items()}
        packed = module.pack_texts(**{"text_pair": None, **texts})
        length = int(tf.reduce_sum(packed["input_mask"]))  # without padding
        inputs.append({name: np.int64(packed[name][:, :length]) for name in FEATURES})
    print(f"int8: ranges of activations from {len(inputs)} rows", flush=True)
    kind, data = nncf.ModelType.TRANSFORMER, nncf.Dataset(inputs)
    return nncf.quantize(ids_model, data, model_type=kind, subset_size=len(inputs))


def _score(form: str, answer, task, examples: list) -> float:
    """Prints the task's metrics, and returns the first one.

    `answer` is a result of openvino_graph.answering.
    """
    outputs = []
    for begin in range(0, len(examples), _BATCH_SIZE):
        rows = [example.inputs() for example in examples[begin : begin + _BATCH_SIZE]]
        found = answer({name: [row[name].encode() for row in rows] for name in rows[0]})
        outputs += [dict(zip(found, values)) for values in zip(*found.values())]
    metrics = task.score(task.answers(examples, None, outputs).rows())
    for name, value in metrics.items():
        print(f"  {form:<8} {name} {value:.4f}", flush=True)
    return metrics[task.best_metric]


def _check_loss(metric: str, before: float, after: float, most: float) -> None:
    """Raises a UserError if quantization lowers a metric by more than `most`."""
    if not before - after <= most:  # also for NaN
        raise UserError(
            f"int8 lowers {metric} from {before:.4f} to {after:.4f}, more than "
            f"--max_accuracy_loss={most}: take other rows for --calibration_file, or omit it"
        )


if __name__ == "__main__":
    define_flags()
    program.run(main)
