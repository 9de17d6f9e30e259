"""Writes warm-up requests, which TF Serving runs before a new version receives other requests.

The first requests to a version are slow, because TensorFlow optimizes the graph of a signature at
its first call and prepares matmuls for each new shape. TF Serving replays the file
assets.extra/tf_serving_warmup_requests while the previous version is still served.
"""

import itertools
import os

import numpy as np
import tensorflow as tf
from tensorflow_serving.apis import prediction_log_pb2

from .signatures import Field, Signature

WARMUP_FILE = os.path.join("assets.extra", "tf_serving_warmup_requests")
# (batch size, maximum length) of typical requests. The list is short, because a new version is not
# available until all requests have run. (TF Serving accepts at most 1,000.)
_SHAPES = ((1, 16), (1, 64), (1, 512), (4, 16), (4, 64))


def write_warmup_requests(
    saved_model: str, signatures: dict[str, Signature], sizes: dict[str, int]
) -> None:
    """Writes warm-up requests to a SavedModel. `sizes` has the dimensions fixed by the model."""
    path = os.path.join(saved_model, WARMUP_FILE)
    tf.io.gfile.makedirs(os.path.dirname(path))
    # Signatures without inputs need no warm-up.
    asked = [(name, signature) for name, signature in signatures.items() if signature.inputs]
    with tf.io.TFRecordWriter(path) as writer:
        for (name, signature), (batch, seq_len) in itertools.product(asked, _SHAPES):
            seq_len = min(seq_len, sizes["max_seq_length"])
            dimensions = {"batch": batch, "seq_len": seq_len, "words": seq_len // 2}
            dimensions = {**sizes, **dimensions, "predictions": 3}
            log = prediction_log_pb2.PredictionLog()
            request = log.predict_log.request
            request.model_spec.name = "albert"  # ignored: TF Serving uses the model that it loads
            request.model_spec.signature_name = name
            for key, field in signature.inputs.items():
                value = _input(key, field, dimensions)
                request.inputs[key].CopyFrom(tf.make_tensor_proto(value))
            writer.write(log.SerializeToString())


def _input(name: str, field: Field, dimensions: dict[str, int]) -> np.ndarray:
    """Returns an input of the right shape with arbitrary content."""
    shape = [d if isinstance(d, int) else dimensions[d] for d in field.shape]
    if field.dtype != tf.string:
        # 1 is a valid value of all inputs: a piece id, a mask, a segment id, or a position.
        return np.ones(shape, field.dtype.as_numpy_dtype)
    seq_len = dimensions["seq_len"]
    # " a" is one piece in nearly every vocabulary. Only half of seq_len is used, because the
    # request may contain a pair of texts.
    text = b"a" if name == "words" else b"[MASK]" + b" a" * (seq_len // 2)
    return np.full(shape, text, object)
