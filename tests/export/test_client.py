"""The client's requests, over real gRPC and HTTP, get the signatures' answers.

Servers of this test stand in for TF Serving: they read the messages it reads, answer by the loaded
SavedModel, and speak of errors as it does.
"""

import ast
import base64
import functools
import json
import re
from concurrent import futures
from pathlib import Path

import grpc
import numpy as np
import pytest
import tensorflow as tf
from google.protobuf import text_format
from tensorflow_serving.apis import predict_pb2, prediction_service_pb2_grpc
from tensorflow_serving.config import model_server_config_pb2

from albert_tf.storage.errors import UserError
from export.serving import client
from tests.export.stand_in import QuietHandler, serving
from tests.export.task_models import call
from tests.jobs import run, run_code

SERVING = Path(client.__file__).parent
TEXTS = {"text": ["The quick fox.", "Où sont-elles?"], "text_pair": ["Dogs run.", "北京"]}


@pytest.fixture(scope="module")
def answer(loaded):
    def answer(signature, inputs):
        if signature == "words":
            spans = np.array([json.dumps(spans) for spans in SPANS], object)
            return {"spans": spans, "num_spans": np.array([1, 0])}
        return call(loaded.signatures[signature], inputs)

    return answer


# What the stand-ins saw: the label of each request, and the connection of each over gRPC.
labels, peers = [], []
# What both answer to requests of words: the output of a tagger.
SPANS = [[{"start": 0, "end": 3, "label": "PER", "text": "Ada", "probability": 0.98}], []]


@pytest.fixture(scope="module")
def grpc_server(answer):
    class Service(prediction_service_pb2_grpc.PredictionServiceServicer):
        def Predict(self, request, context):  # noqa: N802
            spec = request.model_spec
            labels.append(spec.version_label)
            peers.append(context.peer())
            if spec.name != "albert" or spec.version_label not in ("", "stable"):
                context.abort(grpc.StatusCode.NOT_FOUND, f"no such model: {spec.version_label}")
            inputs = {name: tf.make_ndarray(proto) for name, proto in request.inputs.items()}
            response = predict_pb2.PredictResponse()
            for name, array in answer(spec.signature_name, inputs).items():
                response.outputs[name].CopyFrom(tf.make_tensor_proto(array))
            return response

    server = grpc.server(futures.ThreadPoolExecutor(max_workers=8))
    prediction_service_pb2_grpc.add_PredictionServiceServicer_to_server(Service(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"127.0.0.1:{port}"
    server.stop(None)


@pytest.fixture(scope="module")
def rest_server(answer):
    def decoded(entry):  # as TF Serving reads JSON: {"b64": ...} is bytes
        return base64.b64decode(entry["b64"]) if entry.keys() == {"b64"} else entry

    def predict(body):
        found = answer(body["signature_name"], body["inputs"]).items()
        values = {name: client._texts(array.tolist()) for name, array in found}
        # The real one leaves a single output's name away.
        return {"outputs": values if len(values) > 1 else next(iter(values.values()))}

    other_pages = {"/page/": "a page", "/list/": [1], "/object/": {"predictions": [1]}}

    class Handler(QuietHandler):
        def do_POST(self):  # noqa: N802
            body = json.loads(self.body(), object_hook=decoded)
            if re.fullmatch(r"/v1/models/albert(/labels/stable)?:predict", self.path):
                labels.append("stable" if "stable" in self.path else "")
                return self.reply(200, predict(body))
            if self.path.startswith("/v1/"):
                return self.reply(404, {"error": f"Servable not found: {self.path}"})
            for place, page in other_pages.items():
                if self.path.startswith(place):
                    return self.reply(200, page)
            self.reply(404, json.dumps("not JSON of an error"))

    with serving(Handler) as port:
        yield f"http://127.0.0.1:{port}"


@pytest.fixture(params=["grpc", "rest"])
def ask(request, grpc_server, rest_server):
    if request.param == "grpc":
        return functools.partial(client.ask_grpc, grpc_server)
    return functools.partial(client.ask_rest, rest_server)


@pytest.mark.parametrize("label", [None, "stable"])
def test_texts_get_the_answers_of_the_signature(ask, answer, label):
    answers = ask(TEXTS, label=label)
    # Without a label a request gets the newest version, a canary too.
    assert labels[-1] == (label or "")
    expected = answer("serving_default", TEXTS)
    assert answers.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_allclose(answers[name], values, rtol=1e-6)
    assert ask({"words": ["Ada", ""]}, "words") == {"spans": SPANS, "num_spans": [1, 0]}
    with pytest.raises(UserError, match=r"model 'albert'.*no such model|404 .*Servable not found"):
        ask(TEXTS, label="canary")


def test_no_server_another_or_no_tensor_is_one_clear_error(grpc_server, rest_server):
    with pytest.raises(UserError, match=r"UNAVAILABLE: .*; expected TF Serving's gRPC"):
        client.ask_grpc("127.0.0.1:1", TEXTS)
    elsewhere = r".*: expected TF Serving.*for its gRPC port leave http://"
    for server, message in {
        "http://127.0.0.1:1": rf":1/v1/models/albert/labels/stable:predict.*refused{elsewhere}",
        "http://[::1": rf"Invalid IPv6 URL{elsewhere}",
        f"{rest_server}/elsewhere": "404 Not Found: .*not JSON of an error",
        f"http://{grpc_server}": elsewhere,
        **{f"{rest_server}/{p}": f"/{p}/{elsewhere}" for p in ("page", "list", "object")},
    }.items():
        with pytest.raises(UserError, match=message):
            client.ask_rest(server, TEXTS)


def test_bytes_and_arrays_are_asked_and_strings_come_back_as_text(ask, answer):
    texts = {"text": [b"The [MASK] fox.", b"[MASK][MASK]"]}
    answers = ask(texts, signature="fill_mask")
    assert answers["num_masks"] == [1, 2]
    pieces = answer("fill_mask", texts)["pieces"]
    assert answers["pieces"][0][0][0] == pieces[0, 0, 0].decode()
    ids = {"input_ids": [2, 17, 3], "input_mask": [1, 1, 1], "segment_ids": [0, 0, 0]}
    arrays = {name: np.array([values], np.int32) for name, values in ids.items()}
    expected = answer("tokens", arrays)["pooled_output"]
    found = ask(arrays, signature="pooled")["pooled_output"]
    # The signatures sum in different orders. What a processor's instructions make of that differs.
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_calls_share_one_connection(grpc_server):
    del peers[:]
    with futures.ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: client.ask_grpc(grpc_server, TEXTS), range(4)))
    assert len(peers) == 4 and len(set(peers)) == 1


def test_the_program_asks_both_and_rest_needs_no_tensorflow(grpc_server, rest_server, tokenizer):
    code = """
import sys
sys.modules.update(tensorflow=None, grpc=None, numpy=None, absl=None)
from export.serving.client import ask_rest
print(ask_rest(sys.argv[1], {"text": ["A fox.", "B"], "text_pair": ["Dogs.", ""]}))
"""
    answers = ast.literal_eval(run_code(code, rest_server)[0])
    assert len(answers["in_order_probability"]) == 2 and answers["in_order_probability"][1] == 0.5
    out, _ = run("export.ask", f"--server={rest_server}", "--pair=A fox. ||| Dogs.")
    assert f"in_order_probability: {answers['in_order_probability'][0]:.6g}" in out
    printed, _ = run("export.ask", "--signature=tokenization_info", f"--server={grpc_server}")
    assert f"do_lower_case: {tokenizer.settings.do_lower_case}\n" in printed
    assert "/assets/spiece.model\n" in printed


def test_the_model_config_is_one():
    config = text_format.Parse(
        (SERVING / "models.config").read_text(), model_server_config_pb2.ModelServerConfig()
    )
    (model,) = config.model_config_list.config
    assert set(model.version_labels) == {"stable", "canary"}
    assert set(model.version_labels.values()) <= set(model.model_version_policy.specific.versions)
    compose = (SERVING / "compose.yaml").read_text()
    assert f"}}:{model.base_path}:ro" in compose
    for name in re.findall(r"/config/([\w.]+)", compose):
        assert (SERVING / name).exists()
    # As shipped it answers every signature.
    assert "batching" not in re.sub(r"(?m)^\s*#.*", "", compose)
    # It never splits a request: the server joins parts without a check of their widths.
    batching = (SERVING / "batching.config").read_text()
    assert "enable_large_batch_splitting { value: false }" in batching
    assert "max_execution_batch_size" not in batching
    # No port is open to other machines unless one says so.
    ports = re.findall(r'- "(.*):\d+:\d+"', compose)
    assert ports == ["127.0.0.1"] * 2 + ["${PROXY_ADDRESS:-127.0.0.1}"] * 2
