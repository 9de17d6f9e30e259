"""Queries a TF Serving server over gRPC or REST. `export.ask --server=...` is the program.

ask_rest requires only Python's standard library.
"""

import base64
import functools
import http.client
import json
import ssl
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import NamedTuple

from albert_tf.storage.errors import UserError, shown

WITHOUT_INPUTS = ("labels", "tokenization_info")  # signatures, only supported over gRPC
_TLS = "grpcs://"
# The server rejects calls that exceed --grpc_max_threads instead of queueing them.
_RETRY = {
    "name": [{}],  # applies to all methods
    "retryPolicy": {
        "maxAttempts": 5,  # the maximum in gRPC
        "initialBackoff": "0.5s",
        "maxBackoff": "4s",
        "backoffMultiplier": 2,
        "retryableStatusCodes": ["RESOURCE_EXHAUSTED"],
    },
}
_EXPECTED = "expected TF Serving's REST API there"
# Errors of proxies, whose answers may be pages for people.
_OF_PROXIES = {
    413: "too large for the proxy: send fewer rows in a request",
    502: "no server behind the proxy",
    503: "no server behind the proxy",
    504: "the server behind the proxy did not answer in time",
}


class Options(NamedTuple):
    """Options of a request.

    Attributes:
      model: name of the model in the server's config.
      label: version label. None selects the newest version, even if it is a canary.
      timeout: timeout in seconds.
      ca_file: PEM file of the certificate authority. Default: the system's list.
      client_certificate: PEM file with a certificate and its private key, for a server or proxy
        that verifies its clients.
    """

    model: str = "albert"
    label: str | None = "stable"  # defined in models.config
    timeout: float = 60.0
    ca_file: str | None = None
    client_certificate: str | None = None


def ask_grpc(
    server: str, inputs: dict[str, list], signature: str = "serving_default", **options
) -> dict[str, list]:
    """Queries a server over gRPC; returns a dict of nested lists, in which strings are str.

    All calls of a process share one connection per server. Calls that the server rejects with
    RESOURCE_EXHAUSTED are retried up to four times with backoff. `spans` is returned as lists of
    dicts. `server` is HOST:PORT, or grpcs://HOST:PORT if the server uses TLS (--ssl_config_file).
    `inputs` maps input names to lists of texts, bytes or numbers. `options` are fields of Options.

    Raises a UserError if the server fails or is unreachable, or if inputs are not tensors.
    """
    import grpc
    import tensorflow as tf
    from tensorflow_serving.apis import predict_pb2, prediction_service_pb2_grpc

    given = Options(**options)
    request = predict_pb2.PredictRequest()
    request.model_spec.name, request.model_spec.signature_name = given.model, signature
    if given.label:
        request.model_spec.version_label = given.label
    for name, value in inputs.items():
        try:
            request.inputs[name].CopyFrom(tf.make_tensor_proto(value))
        except (TypeError, ValueError) as error:
            raise UserError(
                f"{name}={value!r} is no tensor: expected equally many values in each row"
            ) from error
    channel = _channel(server, given.ca_file, given.client_certificate)
    stub = prediction_service_pb2_grpc.PredictionServiceStub(channel)
    try:
        response = stub.Predict(request, timeout=given.timeout)
    except grpc.RpcError as error:
        code, details = error.code().name, error.details()
        raise UserError(f"{server}, model {given.model!r}: {code}: {details}") from error
    return _with_spans_read(
        {name: texts(tf.make_ndarray(proto).tolist()) for name, proto in response.outputs.items()}
    )


@functools.lru_cache(maxsize=16)
def _channel(server: str, ca_file: str | None, client_certificate: str | None):
    """Returns the connection to a server, which is shared by all threads."""
    import grpc

    options = [
        # No size limit, because sequence_output of a batch can exceed gRPC's default of 4 MB.
        ("grpc.max_receive_message_length", -1),
        # Reconnect to a restarted server within seconds. The default is up to two minutes.
        ("grpc.max_reconnect_backoff_ms", 2000),
        ("grpc.service_config", json.dumps({"methodConfig": [_RETRY]})),
    ]
    _tls_context(server, _TLS, ca_file, client_certificate)  # checks the files, as gRPC does not
    if not server.startswith(_TLS):
        return grpc.insecure_channel(server, options)
    authority, certificate = (
        Path(path).read_bytes() if path else None for path in (ca_file, client_certificate)
    )
    credentials = grpc.ssl_channel_credentials(authority, certificate, certificate)
    return grpc.secure_channel(server.removeprefix(_TLS), credentials, options)


def texts(values):
    """Returns nested lists in which bytes are decoded."""
    if isinstance(values, list):
        return [texts(value) for value in values]
    return values.decode("utf-8", "replace") if isinstance(values, bytes) else values


def ask_rest(
    server: str, inputs: dict[str, list], signature: str = "serving_default", **options
) -> dict[str, list]:
    """Same as ask_grpc, but over REST; `server` is http://HOST:PORT or https://HOST:PORT.

    REST omits the name of a single output, which is therefore returned as `outputs`. Signatures
    without inputs are rejected, because the server would return status 400.
    """
    if signature in WITHOUT_INPUTS:
        raise UserError(
            f"TF Serving's REST API has no request for {signature!r}, which has no inputs: ask its "
            "gRPC port (--server=HOST:8500)"
        )
    given = Options(**options)
    path = f"/v1/models/{urllib.parse.quote(given.model)}"
    if given.label:
        path += f"/labels/{urllib.parse.quote(given.label)}"
    body = json.dumps({"signature_name": signature, "inputs": inputs}, default=_as_json).encode()
    url, headers = f"{server.rstrip('/')}{path}:predict", {"Content-Type": "application/json"}
    try:
        request = urllib.request.Request(url, body, headers)
    except ValueError as error:
        raise UserError(f"{server}: {error}: expected http://HOST:PORT") from error
    context = _tls_context(server, "https://", given.ca_file, given.client_certificate)
    try:
        with urllib.request.urlopen(request, timeout=given.timeout, context=context) as response:
            outputs = json.load(response)["outputs"]
    except urllib.error.HTTPError as error:
        raise UserError(f"{request.full_url}: {_reason(error)}") from error
    except (http.client.HTTPException, OSError) as error:  # OSError includes urllib's errors
        raise UserError(
            f"{request.full_url}: {error!r}: {_EXPECTED}; for its gRPC port leave http:// out"
        ) from error
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(f"{request.full_url}: an answer of another form: {_EXPECTED}") from error
    return _with_spans_read(outputs) if isinstance(outputs, dict) else {"outputs": outputs}


def _tls_context(
    server: str, scheme: str, ca_file: str | None, client_certificate: str | None
) -> ssl.SSLContext | None:
    """Returns the settings for TLS, or None for the defaults. `scheme` marks servers with TLS."""
    if not ca_file and not client_certificate:
        return None
    if not server.startswith(scheme):
        flag = f"ca_file={ca_file}" if ca_file else f"client_certificate={client_certificate}"
        raise UserError(f"--{flag} is for {scheme}, got {server}")
    try:
        context = ssl.create_default_context(cafile=ca_file)
    except OSError as error:  # includes ssl.SSLError
        raise UserError(f"--ca_file={ca_file}: {error}") from error
    try:
        if client_certificate:
            context.load_cert_chain(client_certificate)
    except OSError as error:
        raise UserError(
            f"--client_certificate={client_certificate}: {error}: expected a certificate and its "
            "private key in a PEM file"
        ) from error
    return context


def _with_spans_read(outputs: dict[str, list]) -> dict[str, list]:
    """Parses the JSON in the output `spans`, if it exists, to lists of dicts."""
    if "spans" not in outputs:
        return outputs
    try:
        return {**outputs, "spans": [json.loads(row) for row in outputs["spans"]]}
    except (TypeError, ValueError) as error:
        raise UserError(
            f"spans={shown(outputs['spans'])}: {error}: expected JSON in each row: check the "
            "model's weights for NaN"
        ) from error


def _as_json(value):
    """Converts bytes to base64 and arrays to lists, as expected by the REST API."""
    if isinstance(value, bytes):
        return {"b64": base64.b64encode(value).decode()}
    return value.tolist()


def _reason(error: urllib.error.HTTPError) -> str:
    body = error.read().decode("utf-8", "replace")
    try:
        return f"{error.code}: {json.loads(body)['error']}"
    except (ValueError, KeyError, TypeError):
        return f"{error.code} {error.reason}: {_OF_PROXIES.get(error.code, _EXPECTED)}"
