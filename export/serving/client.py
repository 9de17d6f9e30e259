"""Queries a TF Serving server over gRPC or REST. `export.ask --server=...` is the program.

ask_rest requires only Python's standard library.
"""

import base64
import functools
import http.client
import json
import urllib.error
import urllib.parse
import urllib.request

from albert_tf.storage.errors import UserError

_TIMEOUT = 60.0  # seconds, the same as --rest_api_timeout_in_ms in compose.yaml


def ask_grpc(
    server: str,
    inputs: dict[str, list],
    signature: str = "serving_default",
    model: str = "albert",
    label: str | None = "stable",
) -> dict[str, list]:
    """Queries a server over gRPC without TLS; returns nested lists, in which strings are str.

    All calls of a process share one connection per server, HOST:PORT. `inputs` maps input names to
    lists of texts, bytes or numbers. `model` and `label` are names in models.config. Label None
    selects the newest version, even a canary. The output `spans` is returned as lists of dicts.

    Raises a UserError if the server fails, is unreachable or needs more than 60 s.
    """
    import grpc
    import tensorflow as tf
    from tensorflow_serving.apis import predict_pb2, prediction_service_pb2_grpc

    request = predict_pb2.PredictRequest()
    request.model_spec.name, request.model_spec.signature_name = model, signature
    if label:
        request.model_spec.version_label = label
    for name, value in inputs.items():
        request.inputs[name].CopyFrom(tf.make_tensor_proto(value))
    stub = prediction_service_pb2_grpc.PredictionServiceStub(_channel(server))
    try:
        response = stub.Predict(request, timeout=_TIMEOUT)
    except grpc.RpcError as error:
        code, details = error.code().name, error.details()
        hint = "; expected TF Serving's gRPC port there; for its REST port begin with http://"
        details = f"{details}{hint}" if code == "UNAVAILABLE" else details
        raise UserError(f"{server}, model {model!r}: {code}: {details}") from error
    return decoded({name: tf.make_ndarray(of).tolist() for name, of in response.outputs.items()})


@functools.lru_cache(maxsize=16)
def _channel(server: str):
    """Returns the connection to a server, which is shared by all threads."""
    import grpc

    options = [
        # No size limit, because sequence_output of a batch can exceed gRPC's default of 4 MB.
        ("grpc.max_receive_message_length", -1),
        # Reconnect to a restarted server within seconds. The default is up to two minutes.
        ("grpc.max_reconnect_backoff_ms", 2000),
    ]
    return grpc.insecure_channel(server, options)


def ask_rest(
    server: str,
    inputs: dict[str, list],
    signature: str = "serving_default",
    model: str = "albert",
    label: str | None = "stable",
) -> dict[str, list]:
    """Same as ask_grpc, but over REST; `server` is http://HOST:PORT.

    REST has no signatures without inputs. It omits the name of a single output, which is therefore
    returned as `outputs`.
    """
    names = urllib.parse.quote(f"{model}/labels/{label}" if label else model)
    url = f"{server.rstrip('/')}/v1/models/{names}:predict"
    body = json.dumps({"signature_name": signature, "inputs": inputs}, default=_as_json).encode()
    try:
        request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=_TIMEOUT) as response:
            outputs = json.load(response)["outputs"]
        return decoded(outputs if isinstance(outputs, dict) else {"outputs": outputs})
    except urllib.error.HTTPError as error:
        reply = " ".join(error.read(2000).decode("utf-8", "replace").split())  # JSON, or a page
        raise UserError(f"{url}: {error.code} {error.reason}: {reply}") from error
    # Unreachable, an invalid URL, or an answer of another form. OSError includes urllib's errors.
    except (http.client.HTTPException, OSError, LookupError, TypeError, ValueError) as error:
        hint = "expected TF Serving's REST API there; for its gRPC port leave http:// out"
        raise UserError(f"{url}: {error!r}: {hint}") from error


def decoded(outputs: dict[str, list]) -> dict[str, list]:
    """Decodes bytes in nested lists, and parses the JSON in the output `spans`, if it exists."""
    found = {name: _texts(values) for name, values in outputs.items()}
    if "spans" in found:
        found["spans"] = [*map(json.loads, found["spans"])]
    return found


def _texts(values):
    if isinstance(values, list):
        return [_texts(value) for value in values]
    return values.decode("utf-8", "replace") if isinstance(values, bytes) else values


def _as_json(value):
    """Converts bytes to base64 and arrays to lists, as expected by the REST API."""
    if isinstance(value, bytes):
        return {"b64": base64.b64encode(value).decode()}
    return value.tolist()
