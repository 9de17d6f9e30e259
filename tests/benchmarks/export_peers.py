"""Other servers of ALBERT, for comparison in the benchmark `export`.

Each function returns two functions. answer(input_ids), int32 [batch, seq_len] without padding,
returns the pooled output [batch, hidden], or probabilities, of a random model with albert_base's
shape. The other one multiplies two square matrices with the same library. Each function imports its
own libraries, so that a process loads only those of the side that it measures.

Raises:
  ImportError: if a side's packages are missing.
"""

import os
import shutil
import tempfile
from collections.abc import Iterable

import numpy as np

from tests.benchmarks.measuring import CEILING_SIZE, tensorflow_product, torch_product
from tests.benchmarks.train_step_peers import huggingface_config


def huggingface_torch(vocab_size: int, compiled: bool, dtype: str):
    """AlbertModel in torch, eager or compiled, with weights in a dtype."""
    os.environ["USE_TORCH"] = "1"  # then transformers does not import TensorFlow
    import torch
    from transformers import AlbertModel

    if compiled and not (os.environ.get("CXX") or shutil.which("g++")):
        raise ImportError("no g++, and torch.compile needs a C++ compiler")
    model = AlbertModel(huggingface_config(vocab_size)).eval().to(getattr(torch, dtype))
    forward = torch.compile(model, dynamic=False) if compiled else model

    def answer(input_ids):
        ids = torch.from_numpy(input_ids).long()
        with torch.inference_mode():
            pooled = forward(input_ids=ids, attention_mask=torch.ones_like(ids)).pooler_output
            return pooled.float().numpy()

    return answer, torch_product(dtype)


def onnxruntime(vocab_size: int, int8: bool):
    """AlbertModel in onnxruntime, with a graph fused by onnxruntime.transformers.

    The weights are constants in the file. With `int8` the weights are int8, and activations are
    quantized at run time ("dynamic").
    """
    os.environ["USE_TORCH"] = "1"
    import onnx
    import torch
    from onnxruntime.quantization import QuantType, quantize_dynamic
    from onnxruntime.transformers import optimizer
    from transformers import AlbertModel

    class Pooled(torch.nn.Module):
        def __init__(self):
            super().__init__()
            config = huggingface_config(vocab_size)
            config._attn_implementation = "eager"  # the form that onnxruntime can fuse
            self.model = AlbertModel(config).eval()

        def forward(self, input_ids, attention_mask):
            return self.model(input_ids=input_ids, attention_mask=attention_mask).pooler_output

    ids = torch.full([2, 16], 7)
    names = ["input_ids", "attention_mask"]
    with tempfile.TemporaryDirectory() as directory:
        path = os.path.join(directory, "albert.onnx")
        torch.onnx.export(
            Pooled(),
            (ids, torch.ones_like(ids)),
            path,
            input_names=names,
            output_names=["pooled_output"],
            dynamic_axes={name: {0: "batch", 1: "seq_len"} for name in names},
            dynamo=False,
        )
        fused = optimizer.optimize_model(path, model_type="bert", num_heads=12, hidden_size=768)
        fused.save_model_to_file(path)
        if int8:
            quantized = os.path.join(directory, "int8.onnx")
            quantize_dynamic(
                path,
                quantized,
                weight_type=QuantType.QInt8,
                # The fused operations are not in ONNX, so the types of their outputs are unknown.
                extra_options={"DefaultTensorType": onnx.TensorProto.FLOAT},
            )
            path = quantized
        return our_onnx(path)


def our_onnx(path: str):
    """An ONNX file with one output in onnxruntime, such as our classifier."""
    import onnx  # noqa: F401  # if it is missing, there is no file
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = len(os.sched_getaffinity(0))
    session = ort.InferenceSession(path, options)
    names = {value.name for value in session.get_inputs()}

    def answer(input_ids):
        inputs = onnx_inputs(input_ids)
        inputs["attention_mask"] = inputs["input_mask"]
        inputs = {name: inputs[name] for name in names}
        return session.run(None, inputs)[0]

    return answer, _onnxruntime_product(options)


def onnx_inputs(input_ids) -> dict[str, np.ndarray]:
    """Returns the inputs of our ONNX file, int64 [batch, seq_len], without padding."""
    ids = input_ids.astype(np.int64)
    return {"input_ids": ids, "input_mask": np.ones_like(ids), "segment_ids": np.zeros_like(ids)}


def quantize_by_nncf(path: str, batches: Iterable[dict], output: str) -> None:
    """Writes OpenVINO's int8 form of our ONNX file, OUTPUT.xml, with its weights beside it.

    Weights and activations are int8; the ranges of activations are those of the `batches`.
    """
    import nncf
    import openvino

    batches = list(batches)
    model = nncf.quantize(
        openvino.Core().read_model(path),
        nncf.Dataset(batches),
        model_type=nncf.ModelType.TRANSFORMER,
        subset_size=len(batches),
    )
    openvino.save_model(model, output, compress_to_fp16=False)


def our_openvino(path: str, dtype: str):
    """Our ONNX file, or one of `quantize_by_nncf`, in OpenVINO."""
    import openvino
    from openvino import opset13

    def compiled(model):
        return openvino.Core().compile_model(
            model,
            "CPU",
            {
                "INFERENCE_PRECISION_HINT": {"float32": "f32", "bfloat16": "bf16"}[dtype],
                "INFERENCE_NUM_THREADS": len(os.sched_getaffinity(0)),
                "PERFORMANCE_HINT": "LATENCY",
            },
        )

    model = compiled(path)
    size = CEILING_SIZE
    a, b = (opset13.parameter([size, size], np.float32) for _ in range(2))
    product = compiled(openvino.Model([opset13.matmul(a, b, False, False)], [a, b]))
    matrices = list(np.random.default_rng(0).normal(size=[2, size, size]).astype(np.float32))
    return (lambda ids: model(onnx_inputs(ids))[0]), lambda: product(matrices)


def our_tflite(path: str):
    """Our TFLite file, which takes one sequence of a fixed length at a time."""
    import tensorflow as tf

    threads = len(os.sched_getaffinity(0))
    runner = tf.lite.Interpreter(path, num_threads=threads).get_signature_runner()

    def answer(input_ids):
        rows = []
        for row in input_ids[:, np.newaxis]:
            outputs = runner(
                input_ids=row, input_mask=np.ones_like(row), segment_ids=np.zeros_like(row)
            )
            rows.append(outputs["probabilities"])
        return np.concatenate(rows)

    return answer, tensorflow_product()


def _onnxruntime_product(options):
    import onnx
    import onnxruntime as ort

    helper, tensor_type = onnx.helper, onnx.TensorProto.FLOAT
    size = CEILING_SIZE
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["a", "b"], ["c"])],
        "product",
        [helper.make_tensor_value_info(name, tensor_type, [size, size]) for name in "ab"],
        [helper.make_tensor_value_info("c", tensor_type, [size, size])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 8
    product = ort.InferenceSession(model.SerializeToString(), options)
    a, b = np.random.default_rng(0).normal(size=[2, size, size]).astype(np.float32)
    return lambda: product.run(None, {"a": a, "b": b})
