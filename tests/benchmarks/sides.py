"""Sides of the benchmark `export`: programs that run a fine-tuned classifier.

A process that measures memory loads only the packages of its side, so functions import them.

saved_model, saved_model_bfloat16: export.export_saved_model.
tflite, tflite_int8: our TFLite file, without and with --quantize (int8 weights, float activations).
onnx, onnx_int8: our ONNX file in onnxruntime, without and with --quantize (int8 both).
openvino, openvino_bfloat16: our ONNX file in OpenVINO, by its hint of precision.
openvino_int8: this file quantized by NNCF, with static ranges of activations.
torch, torch_bfloat16: the model in Hugging Face's format, with weights in this dtype.
torch_autocast: the same model under torch's autocast to bfloat16.
torch_int8: the same model with torch's own dynamic quantization.
torch_compiled, torch_compiled_bfloat16: the same model compiled.

Exports compute [CLS] alone in the last block; torch sides compute all positions.
"""

import os
import shutil
from collections.abc import Callable, Iterable, Mapping

import numpy as np

SIDES = (
    *("saved_model", "saved_model_bfloat16", "tflite", "tflite_int8", "onnx", "onnx_int8"),
    *("openvino", "openvino_bfloat16", "openvino_int8", "torch", "torch_bfloat16"),
    *("torch_autocast", "torch_int8", "torch_compiled", "torch_compiled_bfloat16"),
)
Ids = Mapping[str, np.ndarray]  # inputs of exports, int32 [batch, seq_len]


def write(side: str, checkpoint: str, path: str, calibration: Iterable[Ids]) -> None:
    """Writes what a side reads. Only openvino_int8 needs `calibration`: batches of inputs.

    Raises an ImportError or UserError if a package of the side is missing.
    """
    from albert_tf.checkpoints.conversion import convert
    from albert_tf.checkpoints.opening import open_model
    from export import export_saved_model, fixed_graph, to_onnx, to_tflite

    int8 = side.endswith("_int8")
    if side.startswith("saved_model"):
        export_saved_model.export(checkpoint=checkpoint, output=path, precision=_dtype(side))
    elif side.startswith("tflite"):
        to_tflite.convert(fixed_graph.load(checkpoint), path, quantize=int8)
    elif side.startswith("onnx"):
        to_onnx.convert(fixed_graph.load(checkpoint), path, quantize=int8)
    elif side.startswith("openvino"):
        to_onnx.convert(fixed_graph.load(checkpoint), path)
        if int8:
            _quantize_by_nncf(path, [_int64(ids) for ids in calibration])
    else:
        os.environ["USE_TORCH"] = "1"  # read by transformers at its import
        convert(open_model(checkpoint), path, "huggingface")


def load(side: str, path: str) -> Callable[[Ids, Mapping | None], np.ndarray]:
    """Returns a function (ids, texts) -> probabilities of a file of `write`.

    SavedModels read `texts`, a batch of their inputs as tensors. Without texts, they return the
    pooled output for the ids. Raises an ImportError if a package of the side is missing.
    """
    if side.startswith("saved_model"):
        return _saved_model(path)
    if side.startswith("tflite"):
        return _tflite(path)
    if side.startswith("openvino"):
        return _openvino(side, path)
    return _torch(side, path) if side.startswith("torch") else _onnxruntime(path)


def _dtype(side: str) -> str:
    return "bfloat16" if side.endswith("_bfloat16") else "float32"


def _int64(ids: Ids) -> dict[str, np.ndarray]:
    return {name: rows.astype(np.int64) for name, rows in ids.items()}


def _saved_model(path: str):
    import tensorflow as tf
    import tensorflow_text  # noqa: F401

    signatures = tf.saved_model.load(f"{path}/1").signatures

    def answer(ids, texts):
        if texts:
            return signatures["serving_default"](**texts)["probabilities"].numpy()
        ids = {name: tf.constant(rows) for name, rows in ids.items()}
        return signatures["pooled"](**ids)["pooled_output"].numpy()

    return answer


def _tflite(path: str):
    import tensorflow as tf

    threads = len(os.sched_getaffinity(0))
    runner = tf.lite.Interpreter(path, num_threads=threads).get_signature_runner()

    def answer(ids, _):
        rows = (dict(zip(ids, row)) for row in zip(*ids.values()))
        outputs = [runner(**{name: row[name][np.newaxis] for name in row}) for row in rows]
        return np.concatenate([output["probabilities"] for output in outputs])

    return answer


def _onnxruntime(path: str):
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = len(os.sched_getaffinity(0))
    session = onnxruntime.InferenceSession(path, options)
    return lambda ids, _: session.run(["probabilities"], _int64(ids))[0]


def _openvino(side: str, path: str):
    import openvino

    hints = {
        "INFERENCE_PRECISION_HINT": {"float32": "f32", "bfloat16": "bf16"}[_dtype(side)],
        "INFERENCE_NUM_THREADS": len(os.sched_getaffinity(0)),
        "PERFORMANCE_HINT": "LATENCY",
    }
    file = f"{path}.xml" if side.endswith("_int8") else path
    model = openvino.Core().compile_model(file, "CPU", hints)
    return lambda ids, _: model(_int64(ids))["probabilities"]


def _quantize_by_nncf(path: str, batches: list[Ids]) -> None:
    """Writes OpenVINO's int8 form of an ONNX file, PATH.xml, with its weights beside it."""
    import nncf
    import openvino

    model = nncf.quantize(
        openvino.Core().read_model(path),
        nncf.Dataset(batches),
        model_type=nncf.ModelType.TRANSFORMER,
        subset_size=len(batches),
    )
    openvino.save_model(model, f"{path}.xml", compress_to_fp16=False)


def _torch(side: str, path: str):
    os.environ["USE_TORCH"] = "1"  # then transformers does not import TensorFlow
    import torch
    from transformers import AutoModelForSequenceClassification

    model = AutoModelForSequenceClassification.from_pretrained(path).eval()
    model = model.to(getattr(torch, _dtype(side)))
    if side.endswith("_int8"):
        model = torch.ao.quantization.quantize_dynamic(model, {torch.nn.Linear}, torch.qint8)
    if "_compiled" in side:
        if not (os.environ.get("CXX") or shutil.which("g++")):
            raise ImportError("no g++, and torch.compile needs a C++ compiler")
        model = torch.compile(model, dynamic=False)

    def answer(ids, _):
        input_ids, input_mask, segment_ids = map(torch.from_numpy, _int64(ids).values())
        inputs = {"attention_mask": input_mask, "token_type_ids": segment_ids}
        with torch.inference_mode(), torch.autocast("cpu", enabled=side.endswith("_autocast")):
            return model(input_ids, **inputs).logits.float().softmax(1).numpy()

    return answer
