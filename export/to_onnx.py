"""Builds the ONNX graph of a module, for `python -m export.convert --format=onnx`."""

import importlib
import json
import math
import os
import re
import tempfile

import numpy as np
import tensorflow as tf

from albert_tf.kinds import KINDS, Kind
from albert_tf.layers.primitives import LAYER_NORM_EPSILON
from albert_tf.storage.errors import UserError
from albert_tf.text.packing import FEATURES
from . import fixed_graph
from .kinds import PRETRAINING
from .modules.serving_module import ServingModule

TOLERANCE = 1e-4
_COMPARED_LENGTHS = ((2,), (17, 5, 11), (64, 23))  # lengths of the rows, per batch
_OPSET, _IR_VERSION = 20, 9  # from 2023; the first with the tanh form of Gelu
_PARTS = "encoder|classifier|span|masked_lm|sentence_order"  # parts of a model with weights
# TensorFlow ops that a Kind's `answers` may use, and the ONNX ops that compute the same.
_OPS = {op: op for op in ("Identity", "MatMul", "Mul", "Sigmoid", "Softmax", "Sqrt")}
_OPS |= {"AddV2": "Add", "Maximum": "Max", "RealDiv": "Div", "Sum": "ReduceSum"}


def convert(module: ServingModule, output: str, quantize: bool = False) -> dict[str, float]:
    """Writes an ONNX model; returns the largest difference from the checkpoint, by output."""
    onnx, onnxruntime = import_extra("onnx"), import_extra("onnxruntime")
    model = build(module)
    model.metadata_props.extend(
        onnx.StringStringEntryProto(key=key, value=json.dumps(value))
        for key, value in fixed_graph.description(module.served, output).items()
    )
    onnx.checker.check_model(model)
    data = model.SerializeToString()
    differences = _differences(onnxruntime.InferenceSession(data), module)
    if not all(difference <= TOLERANCE for difference in differences.values()):
        found = f"{max(differences.values()):.1e} from the model's, expected {TOLERANCE} at most"
        remedy = "use another version of onnxruntime, or export.export_saved_model"
        raise UserError(f"onnxruntime's answers are {found}: {remedy}")
    if quantize:
        data = _quantized(model)
        differences = _differences(onnxruntime.InferenceSession(data), module)
    fixed_graph.write(module, output, data, differences, " in int8" if quantize else "")
    return differences


def _quantized(model) -> bytes:
    """Returns a serialized ModelProto with int8 weights in matmuls."""
    quantization = import_extra("onnxruntime.quantization")
    with tempfile.TemporaryDirectory() as directory:
        path = os.path.join(directory, "int8.onnx")
        quantization.quantize_dynamic(model, path, weight_type=quantization.QuantType.QInt8)
        with open(path, "rb") as file:
            return file.read()


def import_extra(name: str, extra: str = "onnx"):
    """Returns a package of an extra. Raises a UserError if it is missing."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise UserError(
            f"{error.name or name} is missing: pip install 'albert_tf[{extra}]'"
        ) from error


def build(module: ServingModule):
    """Returns the ModelProto of a module that was loaded by fixed_graph.load."""
    return _Graph(import_extra("onnx"), module).model()


class _Graph:
    """Builds the ONNX graph of a module."""

    def __init__(self, onnx, module: ServingModule):
        self.onnx, self.module = onnx, module
        self.config = module.encoder.config
        self.nodes: list = []  # NodeProto
        self.initializers: dict[str, np.ndarray] = {}
        # Names such as `encoder/attention_0/query/kernel`, without the names of model and block.
        self.weights = {
            re.sub(rf"^.*?({_PARTS})/(block_\d+_\d+/)?", r"\1/", v.name[:-2]): v.numpy()
            for v in module.model.variables
        }

    def model(self):
        """Returns the ModelProto."""
        helper, types, axes = self.onnx.helper, self.onnx.TensorProto, ["batch", "seq_len"]
        outputs = self._outputs()
        for name, tensor in outputs.items():
            self.nodes.append(helper.make_node("Identity", [tensor], [name]))
        info, from_array = helper.make_tensor_value_info, self.onnx.numpy_helper.from_array
        ids = [info(name, types.INT64, axes) for name in FEATURES]
        ours = fixed_graph.traced(self.module, [None, None]).structured_outputs
        shapes = {n: [d or axis for d, axis in zip(ours[n].shape, [*axes, ""])] for n in outputs}
        answers = [info(name, types.FLOAT, shape) for name, shape in shapes.items()]
        tensors = [from_array(array, name) for name, array in self.initializers.items()]
        graph = helper.make_graph(self.nodes, "albert", ids, answers, tensors)
        versions = {"opset_imports": [helper.make_opsetid("", _OPSET)], "ir_version": _IR_VERSION}
        return helper.make_model(graph, **versions, producer_name="albert_tf")

    def _outputs(self) -> dict[str, str]:
        """Adds all nodes; returns a dict mapping output names to tensor names."""
        served = self.module.served
        kind = KINDS.get(served.kind)  # None for pre-trained models and encoders
        pooled_alone = kind is not None and kind.has_pooler
        sequence_output, pooled_output = self._encode(pooled_alone)
        if served.kind == PRETRAINING:
            return self._pretrained(sequence_output, pooled_output)
        if kind is None:
            return {"sequence_output": sequence_output, "pooled_output": pooled_output}
        if not kind.our_head:
            pooled = self._pool(sequence_output, served.task["pooling"])
            return self._answers(kind, pooled, [None, self.config.hidden_size])
        logits = self._dense(pooled_output if pooled_alone else sequence_output, kind.our_head)
        width = kind.num_outputs(served.task)
        return self._answers(kind, logits, [None, width] if pooled_alone else [None, None, width])

    def _pool(self, output: str, pooling: str) -> str:
        """Adds sentences.pooled; returns the name of its output [b, H]."""
        if pooling == "cls":
            return self._op("Gather", output, self._constant(0), axis=1)
        mask = self._op("Cast", "input_mask", to=self.onnx.TensorProto.FLOAT)
        weights, axis = self._op("Unsqueeze", mask, self._constant([2])), self._constant([1])
        terms = self._op("Mul", output, weights), weights
        return self._op("Div", *(self._op("ReduceSum", x, axis, keepdims=0) for x in terms))

    def _answers(self, kind: Kind, logits: str, shape: list) -> dict[str, str]:
        """Adds the TensorFlow ops of `kind.answers`; returns the same as `_outputs`."""
        function = tf.function(kind.answers, autograph=False)
        function = function.get_concrete_function(tf.TensorSpec(shape))
        names = {function.inputs[0].name: logits}
        for op in function.graph.get_operations():
            inputs = [names[tensor.name] for tensor in op.inputs]
            for i, tensor in enumerate(op.outputs):
                if op.type in _OPS:
                    names[tensor.name] = self._op(_OPS[op.type], *inputs)
                elif op.type == "Unpack":
                    names[tensor.name] = self._op("Gather", *inputs, self._constant(i), axis=-1)
                elif op.type == "Const":
                    value = tf.make_ndarray(op.get_attr("value"))
                    names[tensor.name] = self._constant(value, value.dtype)
                elif op.type != "Placeholder":
                    raise UserError(f"kind {kind.name!r}: no ONNX op for {op.type}: add it to _OPS")
        return {name: names[of.name] for name, of in function.structured_outputs.items()}

    def _pretrained(self, sequence_output: str, pooled_output: str) -> dict[str, str]:
        """Adds the heads of a pre-trained model; returns the same as `_outputs`."""
        x = self._activate(self._dense(sequence_output, "masked_lm/transform"))
        table = self._op("Transpose", "encoder/embeddings/word_embeddings", perm=[1, 0])
        logits = self._op("MatMul", self._layer_norm(x, "masked_lm"), table)
        logits = self._op("Add", logits, self._weight("masked_lm/output_bias"))
        order = self._dense(pooled_output, "sentence_order/classifier")
        return {"mlm_logits": logits, "sop_log_probs": self._op("LogSoftmax", order, axis=-1)}

    def _op(self, op_type: str, *inputs: str, rule: str = "", **attributes) -> str:
        """Adds a node and returns the name of its output. `rule` is shown if the node fails."""
        name = f"{op_type}_{len(self.nodes)}"
        node = self.onnx.helper.make_node(op_type, inputs, [name], rule or name, **attributes)
        self.nodes.append(node)
        return name

    def _constant(self, values, dtype=np.int64) -> str:
        array = np.asarray(values, dtype)
        name = f"constant_{array.dtype}_{array.tolist()}"
        self.initializers[name] = array
        return name

    def _weight(self, name: str) -> str:
        self.initializers[name] = self.weights[name]
        return name

    def _dense(self, x: str, name: str) -> str:
        product = self._op("MatMul", x, self._weight(f"{name}/kernel"))
        return self._op("Add", product, self._weight(f"{name}/bias"))

    def _layer_norm(self, x: str, name: str) -> str:
        parts = [self._weight(f"{name}/layer_norm/{part}") for part in ("gamma", "beta")]
        return self._op("LayerNormalization", x, *parts, axis=-1, epsilon=LAYER_NORM_EPSILON)

    def _encode(self, pooled_alone: bool) -> tuple[str, str]:
        """Adds the encoder; returns names of outputs [b, L, H] (or [b, 1, H]) and pooled [b, H]."""
        ids, mask, segments = self._same_shape()
        is_real = self._look_up(self._constant([False, True], np.bool_), mask, "input_mask")
        scores = (self._constant(score, np.float32) for score in (0.0, -10000.0))
        bias = self._op("Where", is_real, *scores)
        bias = self._op("Unsqueeze", bias, self._constant([1, 2]))  # [b, 1, 1, L]
        x = self._embed(ids, segments)
        plan = self.module.encoder.plan
        for layer, (attention, feed_forward) in enumerate(plan):
            # If only the pooled output is used, the last block needs queries only at [CLS].
            asking = x
            if pooled_alone and layer == len(plan) - 1:
                start, end, axis = map(self._constant, ([0], [1], [1]))
                asking = self._op("Slice", x, start, end, axis)
            x = self._attend(asking, x, bias, f"encoder/attention_{attention}")
            x = self._feed_forward(x, f"encoder/feed_forward_{feed_forward}")
        first = self._op("Gather", x, self._constant(0), axis=1)
        return x, self._op("Tanh", self._dense(first, "encoder/pooler"))

    def _activate(self, x: str) -> str:
        if self.config.hidden_act == "relu":
            return self._op("Relu", x)
        form = "tanh" if self.config.hidden_act == "gelu" else "none"
        return self._op("Gelu", x, approximate=form)

    def _same_shape(self) -> list[str]:
        """Returns the names of the inputs, with a check that all have the same shape."""
        last = self._constant([-1])
        inputs = [self._op("Unsqueeze", name, last) for name in FEATURES]
        rule = f"{', '.join(FEATURES)} must have one shape"
        joined = self._op("Concat", *inputs, axis=-1, rule=rule)
        numbers = (self._constant(i) for i in range(len(FEATURES)))
        return [self._op("Gather", joined, number, axis=2) for number in numbers]

    def _look_up(self, table: str, index: str, name: str) -> str:
        """Looks up rows of a table. If `index` is out of range, the error contains `name`."""
        num_rows = len(self.initializers[table])
        beyond = self._constant(num_rows)
        # In ONNX, negative indices count from the end.
        is_negative = self._op("Less", index, self._constant(0))
        index = self._op("Where", is_negative, beyond, index)
        return self._op("Gather", table, index, rule=f"{name} must be 0 to {num_rows - 1}")

    def _embed(self, ids: str, segments: str) -> str:
        scope, tables = "encoder/embeddings", ("word", "position", "token_type")
        words, positions, types = (self._weight(f"{scope}/{name}_embeddings") for name in tables)
        x = self._look_up(words, ids, "input_ids")
        shape = self._op("Shape", ids)
        seq_len = self._op("Gather", shape, self._constant([1]))
        zero = self._constant([0])
        x = self._op("Add", x, self._op("Slice", positions, zero, seq_len, zero))
        x = self._op("Add", x, self._look_up(types, segments, "segment_ids"))
        x = self._layer_norm(x, scope)
        if self.module.encoder.embeddings.projection is None:
            return x
        return self._dense(x, f"{scope}/projection")

    def _attend(self, asking: str, x: str, bias: str, scope: str) -> str:
        """Adds LayerNorm(asking + Attention(asking, x))."""
        num_heads, hidden_size = self.config.num_attention_heads, self.config.hidden_size
        head_size = hidden_size // num_heads
        heads = self._constant([0, 0, num_heads, head_size])

        def split(y, order):
            return self._op("Transpose", self._op("Reshape", y, heads), perm=order)

        scale = self._constant(1.0 / math.sqrt(head_size), np.float32)
        query = split(self._op("Mul", self._dense(asking, f"{scope}/query"), scale), [0, 2, 1, 3])
        key = split(self._dense(x, f"{scope}/key"), [0, 2, 3, 1])
        value = split(self._dense(x, f"{scope}/value"), [0, 2, 1, 3])
        scores = self._op("Add", self._op("MatMul", query, key), bias)
        context = self._op("MatMul", self._op("Softmax", scores, axis=-1), value)
        context = self._op("Transpose", context, perm=[0, 2, 1, 3])
        joined = self._constant([0, 0, hidden_size])
        output = self._dense(self._op("Reshape", context, joined), f"{scope}/output")
        return self._layer_norm(self._op("Add", asking, output), scope)

    def _feed_forward(self, x: str, scope: str) -> str:
        """Adds LayerNorm(x + FeedForward(x))."""
        inner = self._activate(self._dense(x, f"{scope}/intermediate"))
        return self._layer_norm(self._op("Add", x, self._dense(inner, f"{scope}/output")), scope)


def _differences(session, module: ServingModule) -> dict[str, float]:
    """Returns the largest difference between onnxruntime and the model, by output."""
    masks = []
    for row_lengths in _COMPARED_LENGTHS:
        lengths = np.minimum(row_lengths, module.max_seq_length)[:, np.newaxis]
        masks.append((np.arange(lengths.max()) < lengths).astype(np.int32))
    names = [output.name for output in session.get_outputs()]

    def run(inputs):
        inputs = {name: value.astype(np.int64) for name, value in inputs.items()}
        return dict(zip(names, session.run(names, inputs)))

    return fixed_graph.differences(module, run, masks)
