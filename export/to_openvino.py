"""Converts a module to an OpenVINO model, for `python -m export.convert --format=openvino`."""

import importlib
import io
import json
import logging
import os

import numpy as np
import tensorflow as tf

from albert_tf.jobs import program
from albert_tf.storage import files, versions
from albert_tf.storage.errors import UserError
from albert_tf.text.packing import FEATURES
from . import fixed_graph, to_onnx
from .kinds import ENCODER, PRETRAINING
from .modules.serving_module import ServingModule, TextModule
from .verify import largest_difference

_CALIBRATION_ROWS = 300
_BATCH_SIZE = 32


def convert(
    module: ServingModule,
    output: str,
    calibration_file: str | None,
    dev_file: str | None,
    max_accuracy_loss: float,
) -> str:
    """Writes a version and returns its directory. For the arguments see the flags.

    Raises a UserError if a package is missing, the kind is not supported, or int8 loses too much.
    """
    graph = to_onnx.import_extra(f"{__package__}.openvino_graph", "openvino")
    if not isinstance(module, TextModule) or module.served.kind == PRETRAINING:
        raise UserError(
            f"no OpenVINO model of kind {module.served.kind} can take texts: use --format=onnx, or "
            f"--kind={ENCODER}"
        )
    if dev_file and module.served.kind in (ENCODER, "embedder"):
        raise UserError(f"--dev_file: kind {module.served.kind} has no metric: remove the flag")
    rows = _read(module, calibration_file, "calibration_file")[1] if calibration_file else []
    dev = _read(module, dev_file, "dev_file") if dev_file else None
    data = io.BytesIO(to_onnx.build(module).SerializeToString())
    ids_model = graph.openvino.Core().read_model(data)
    model = graph.with_texts(module, ids_model.clone())
    difference = largest_difference(module, graph.answering(model))
    print(f"every answer equals the model's (largest difference {difference:.1e})", flush=True)
    before = _score("float32", graph.answering(model), *dev) if dev else 0.0
    if rows:
        model = graph.with_texts(module, _quantize(module, ids_model, rows))
        if dev:
            after = _score("int8", graph.answering(model), *dev)
            if not before - after <= max_accuracy_loss:  # also for NaN
                raise UserError(
                    f"int8 lowers {dev[0].best_metric} from {before:.4f} to {after:.4f}, more than "
                    f"--max_accuracy_loss={max_accuracy_loss}: take other rows for "
                    "--calibration_file, or omit it"
                )
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
    nncf = to_onnx.import_extra("nncf", "openvino")
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
