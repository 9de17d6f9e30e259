"""The warm-up file holds requests that every signature answers, as TF Serving reads it."""

import numpy as np
import pytest
import tensorflow as tf
from tensorflow_serving.apis import prediction_log_pb2

from export.kinds import MODULES
from export.signatures import of_task
from export.warmup import WARMUP_FILE, write_warmup_requests
from tests.export.conftest import MAX_SEQ_LENGTH


def read_requests(saved_model):
    return [
        prediction_log_pb2.PredictionLog.FromString(record.numpy()).predict_log.request
        for record in tf.data.TFRecordDataset(str(saved_model / WARMUP_FILE))
    ]


def test_an_export_answers_its_warmup_requests(exported, loaded, tokenizer):
    requests = read_requests(exported)
    for request in requests:
        inputs = {n: tf.constant(tf.make_ndarray(proto)) for n, proto in request.inputs.items()}
        answers = loaded.signatures[request.model_spec.signature_name](**inputs)
        batch = next(iter(inputs.values())).shape[0]
        for name, answer in answers.items():
            assert answer.shape[0] == batch, name
            if answer.dtype.is_floating:
                assert np.isfinite(answer).all(), name
    assert 5 < len(requests) <= 1000  # TF Serving refuses more
    # Half of the 16 pieces of the shortest rows, and of the longest rows.
    texts = [tf.make_ndarray(r.inputs["text"])[0] for r in requests if "text" in r.inputs]
    lengths = {len(tokenizer.encode(text.decode())) for text in texts}
    assert max(lengths) - min(lengths) == MAX_SEQ_LENGTH // 2 - 16 // 2


@pytest.mark.parametrize("kind", sorted(MODULES))
def test_every_kind_has_requests(tmp_path, kind):
    sizes = {"choices": 5, "labels": 3, "hidden_size": 7, "vocab_size": 11, "max_seq_length": 64}
    table = of_task(kind, {}, 2)
    write_warmup_requests(str(tmp_path), table, sizes)
    requests = read_requests(tmp_path)
    asked = {name for name, signature in table.items() if signature.inputs}
    assert {request.model_spec.signature_name for request in requests} == asked
    for request in requests:
        fields = table[request.model_spec.signature_name].inputs
        arrays = {name: tf.make_ndarray(proto) for name, proto in request.inputs.items()}
        ranks = {name: len(field.shape) for name, field in fields.items()}
        assert {name: array.ndim for name, array in arrays.items()} == ranks
        assert "options" not in arrays or arrays["options"].shape[1] == 5
