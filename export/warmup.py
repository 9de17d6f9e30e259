"""Requests that TF Serving answers before a version gets its first real one.

The first answers of a version are slow: TensorFlow optimizes a signature's graph at its first call
and prepares products of each new shape. TF Serving replays assets.extra/tf_serving_warmup_requests
while the version before still answers.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import numpy as np
import tensorflow as tf
from tensorflow_serving.apis import predict_pb2, prediction_log_pb2

from .records import FEATURES, serialize
from .signatures import Field, Signature

WARMUP_FILE = os.path.join("assets.extra", "tf_serving_warmup_requests")

# Batch sizes, and how many pieces a row has at most: what a server meets, at little cost, as a
# version waits for them (TF Serving takes 1,000 at most).
_SHAPES = ((1, 16), (1, 64), (1, 512), (4, 16), (4, 64))

# Of names in signatures.py that a request chooses, beside batch and seq_len.
_PREDICTIONS = 3


def write_warmup_requests(
    saved_model: str, signatures: dict[str, Signature], sizes: dict[str, int]
) -> None:
    """Writes the warm-up requests of a SavedModel into its directory.

    Signatures without inputs compute nothing and are left out. `sizes` has the dimensions that the
    model fixes, such as "choices".
    """
    path = os.path.join(saved_model, WARMUP_FILE)
    tf.io.gfile.makedirs(os.path.dirname(path))
    with tf.io.TFRecordWriter(path) as writer:
        for request in _requests(signatures, sizes):
            log = prediction_log_pb2.PredictLog(request=request)
            writer.write(prediction_log_pb2.PredictionLog(predict_log=log).SerializeToString())


def _requests(
    signatures: dict[str, Signature], sizes: dict[str, int]
) -> Iterator[predict_pb2.PredictRequest]:
    for name, signature in signatures.items():
        if not signature.inputs:
            continue
        for batch, seq_len in _SHAPES:
            seq_len = min(seq_len, sizes["max_seq_length"])
            chosen = {"predictions": _PREDICTIONS, "words": seq_len // 2}
            dimensions = {**sizes, **chosen, "batch": batch, "seq_len": seq_len}
            request = predict_pb2.PredictRequest()
            # TF Serving looks at the signature's name only: the model is the one it loads.
            request.model_spec.name = "albert"
            request.model_spec.signature_name = name
            for key, field in signature.inputs.items():
                value = _input(key, field, dimensions)
                request.inputs[key].CopyFrom(tf.make_tensor_proto(value))
            yield request


def _input(name: str, field: Field, dimensions: dict[str, int]) -> np.ndarray:
    """Returns an input of the right shape; its content does not matter."""
    shape = [d if isinstance(d, int) else dimensions[d] for d in field.shape]
    if field.dtype != tf.string:
        # A piece, a real one, the second segment, the second position: 1 is right for all.
        return np.ones(shape, field.dtype.as_numpy_dtype)
    seq_len = dimensions["seq_len"]
    if name == "examples":
        ones = np.ones(dimensions.get("choices", 1) * seq_len, np.int64)
        text = serialize(dict.fromkeys(FEATURES, ones))
    elif name == "words":
        text = b"a"
    else:
        # In nearly every vocabulary a piece a word; half the length, as a second text may follow.
        text = b"[MASK]" + b" a" * (seq_len // 2)
    return np.full(shape, text, object)
