"""The bounds of nginx.conf, by nginx itself in front of stand-ins for the REST and gRPC ports."""

import contextlib
import gzip
import http.client
import http.server
import json
import re
import shutil
import socket
import ssl
import subprocess
import urllib.request
from concurrent import futures
from pathlib import Path

import grpc
import numpy as np
import pytest
import tensorflow as tf
from tensorflow_serving.apis import (
    model_management_pb2,
    model_service_pb2_grpc,
    predict_pb2,
    prediction_service_pb2_grpc,
)

from albert_tf.storage.errors import UserError
from export.serving import client
from tests.export.stand_in import QuietHandler, serving
from tests.jobs import free_port, wait_for
from tests.object_store import write_certificate

SERVING = Path(client.__file__).parent
PREDICT = "/v1/models/albert/labels/stable:predict"
# Debian: nginx and libnginx-mod-http-js.
NGINX = shutil.which("nginx") or "/usr/sbin/nginx"
MODULES = Path(NGINX).resolve().parents[1] / "lib/nginx/modules"
seen = []  # path, body and encoding of what came through


class Handler(QuietHandler):
    """Answers with what it got. A real server would end at nested JSON, packed or not."""

    def do_POST(self):  # noqa: N802
        body = self.body()
        seen.append((self.path, body, self.headers["Content-Encoding"]))
        self.reply(200, {"outputs": {"got": [len(body)], "label": ["a"]}})

    def do_GET(self):  # noqa: N802
        seen.append((self.path, b"", None))
        self.reply(200, {"model_version_status": [{"version": "1", "state": "AVAILABLE"}]})


@contextlib.contextmanager
def nginx(directory, rest, grpc_upstream, keys=None):
    """Yields the ports of nginx for REST and gRPC, with its limits of time ten times shorter.

    `keys` is a directory with the files that the commented lines of nginx.conf name.
    """
    if not (MODULES / "ngx_http_js_module.so").exists():
        pytest.skip(f"no nginx with its module for JavaScript at {MODULES}")
    ports = free_port(), free_port()
    config = (SERVING / "nginx.conf").read_text()
    assert re.findall(r"timeout 10s", config) and "/config/bounds.js" in config
    if keys:
        config = re.sub("# (ssl_)", r"\1", re.sub(r"(listen \d+)", r"\1 ssl", config))
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    temporary = "".join(f"{kind}_temp_path {directory}/{kind};" for kind in kinds)
    for ours, theirs in (
        ("modules/", f"{MODULES}/"),
        ("/config/", f"{SERVING}/"),
        ("/keys/", f"{keys}/"),
        ("listen 8080", f"listen 127.0.0.1:{ports[0]}"),
        ("listen 8081", f"listen 127.0.0.1:{ports[1]}"),
        ("albert:8501", f"127.0.0.1:{rest}"),
        ("albert:8500", f"127.0.0.1:{grpc_upstream}"),
        ("timeout 10s", "timeout 1s"),
        ("/tmp/nginx.pid", f"{directory}/pid"),
        ("http {", f"http {{ {temporary}"),
    ):
        assert ours in config
        config = config.replace(ours, theirs)
    (directory / "nginx.conf").write_text(config)
    command = [NGINX, "-p", str(directory), "-c", str(directory / "nginx.conf")]
    # The workers must be able to write to the directory of the test.
    command += ["-g", f"daemon off; user {directory.owner()} {directory.group()};"]
    process = subprocess.Popen(command)
    try:
        for port in ports:
            wait_for(
                lambda port=port: not socket.socket().connect_ex(("127.0.0.1", port)),
                [process],
                timeout=60,
            )
        assert process.poll() is None
        yield ports
    finally:
        process.terminate()
        process.wait(30)


@pytest.fixture(scope="module")
def port(tmp_path_factory):
    """The port of nginx for REST, before the stand-in."""
    with serving(Handler) as rest, nginx(tmp_path_factory.mktemp("nginx"), rest, 1) as (port, _):
        yield port


def send(port, body, path=PREDICT, headers=(), method="POST"):
    """Returns the status, and whether the request came through."""
    del seen[:]
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request(method, path, body, dict(headers))
        status = connection.getresponse().status
    except (BrokenPipeError, ConnectionResetError):  # nginx need not read what is too large
        status = 413
    connection.close()
    return status, bool(seen)


def test_ordinary_requests_pass(port):
    texts = {"text": ['[[[[[[[[[[{{{ "quoted" \\', "é\n"], "text_pair": ["\\", '"[']}
    for inputs, signature in (
        (texts, "serving_default"),
        ({"text": [b"\xff\x00"]}, "fill_mask"),
        ({"input_ids": np.ones([100, 128], int)}, "tokens"),
    ):
        del seen[:]
        answers = client.ask_rest(f"http://127.0.0.1:{port}", inputs, signature=signature)
        [(path, body, _)] = seen
        assert path == PREDICT and answers["got"] == [len(body)]
        assert json.loads(body)["signature_name"] == signature
    assert send(port, None, "/v1/models/albert", method="GET")[0] == 200


def test_nested_large_and_other_requests_are_refused(port):
    deep = b"[" * 100_000 + b"]" * 100_000
    for body in (
        deep,
        b'{"inputs": ' + b'{"a":' * 40_000,
        b'{"inputs": ["]]]]]]]", "\\"]]]", ' + deep + b"]}",
        # Of bytes that are no UTF-8, none swallows the quote behind it.
        b'["\xe2", "\xf0\x9f", ' + deep,
    ):
        assert send(port, body) == (400, False)
        assert send(port, body, path="/V1/models/albert:predict") == (400, False)
    assert send(port, b" " * 300_000) == (413, False)
    assert send(port, b" " * 10_000_000) == (413, False)
    assert send(port, b"{}", path="/monitoring/prometheus/metrics") == (404, False)
    assert send(port, None, "/monitoring/prometheus/metrics", method="GET") == (404, False)
    assert send(port, b"{}", method="PUT") == (403, False)
    assert send(port, None, method="HEAD")[0] != 403
    # A path is matched as it is resolved, and passed as it was sent.
    for path in ("/monitoring/prometheus/metrics/../../../v1/", "/v1/../monitoring/"):
        assert send(port, None, path, method="GET") == (404, False)
    # What is packed is not unpacked behind the bounds: for the server, bytes that are no JSON.
    packed = gzip.compress(b"[" * 100_000)
    assert send(port, packed, headers={"Content-Encoding": "gzip"}) == (200, True)
    assert seen == [(PREDICT, packed, None)]
    # Eight levels pass, nine do not.
    assert send(port, b"[" * 8 + b"]" * 8) == (200, True)
    assert send(port, b"[" * 9 + b"]" * 9) == (400, False)


def test_errors_of_the_proxy_are_json_and_one_clear_line(tmp_path, port):
    large, texts = {"text": ["a" * 300_000]}, {"text": ["a"]}
    with pytest.raises(UserError, match=r"413 .*the request is too large for the proxy"):
        client.ask_rest(f"http://127.0.0.1:{port}", large)
    with nginx(tmp_path, rest=1, grpc_upstream=1) as ports:
        with pytest.raises(UserError, match=r"502 .*no server behind the proxy"):
            client.ask_rest(f"http://127.0.0.1:{ports[0]}", texts)
        with pytest.raises(UserError, match=r"UNAVAILABLE: no server behind the proxy"):
            client.ask_grpc(f"127.0.0.1:{ports[1]}", texts)


@pytest.mark.parametrize(
    ("head", "status", "reason"),
    [
        ("GET /v1/%ZZ HTTP/1.1", 400, "malformed"),  # nginx has no URI of this and the next two
        ("NONSENSE", 400, "malformed"),
        (f"GET /v1/{'a' * 20_000} HTTP/1.1", 414, "path .* too long"),
        (f"GET /v1/ HTTP/1.1\r\nX: {'a' * 20_000}", 400, "malformed"),
        ("GET /v1/ HTTP/3.0", 505, "cannot process"),
        ("POST /v1/ HTTP/1.1\r\nTransfer-Encoding: deflate", 501, "cannot process"),
        ("TRACE /v1/ HTTP/1.1", 405, "GET, HEAD and POST alone"),
        ("GET /_error HTTP/1.1", 404, "passes /v1/"),
    ],
)
def test_every_refusal_has_its_status_and_is_json(port, head, status, reason):
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        connection.sendall(f"{head}\r\nHost: a\r\nConnection: close\r\n\r\n".encode())
        answer = b"".join(iter(lambda: connection.recv(9000), b"")).decode()
    head, _, body = answer.partition("\r\n\r\n")
    assert head.split()[1] == str(status)
    assert re.search(reason, json.loads(body)["error"])


class PredictionService(prediction_service_pb2_grpc.PredictionServiceServicer):
    def Predict(self, request, context):  # noqa: N802
        response = predict_pb2.PredictResponse()
        response.outputs["got"].CopyFrom(request.inputs["text"])
        return response


class ModelService(model_service_pb2_grpc.ModelServiceServicer):
    def HandleReloadConfigRequest(self, request, context):  # noqa: N802
        return model_management_pb2.ReloadConfigResponse()


@pytest.fixture(scope="module")
def grpc_upstream():
    server = grpc.server(futures.ThreadPoolExecutor(4))
    prediction_service_pb2_grpc.add_PredictionServiceServicer_to_server(PredictionService(), server)
    model_service_pb2_grpc.add_ModelServiceServicer_to_server(ModelService(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield port
    server.stop(None)


@pytest.mark.parametrize("has_keys", [False, True])
def test_grpc_clients_can_ask_and_change_nothing(tmp_path, grpc_upstream, has_keys):
    if has_keys:
        key, certificate = (
            path.read_bytes() for path in write_certificate(tmp_path, ["localhost"])
        )
        (tmp_path / "server-key.pem").write_bytes(key)
        for name in ("server.pem", "clients.pem"):
            (tmp_path / name).write_bytes(certificate)
        own = grpc.ssl_channel_credentials(certificate, key, certificate)
        nobody = grpc.ssl_channel_credentials(certificate)
    with nginx(tmp_path, 1, grpc_upstream, tmp_path if has_keys else None) as (rest, port):
        server = f"localhost:{port}"
        channel = grpc.secure_channel(server, own) if has_keys else grpc.insecure_channel(server)
        assert predict(channel, ["a", "é"]) == [b"a", "é".encode()]
        with pytest.raises(grpc.RpcError, match=r"INVALID_ARGUMENT(.|\n)*too large for the proxy"):
            predict(channel, ["a" * 300_000])
        request = model_management_pb2.ReloadConfigRequest()
        with pytest.raises(grpc.RpcError) as refused:
            model_service_pb2_grpc.ModelServiceStub(channel).HandleReloadConfigRequest(request)
        assert refused.value.code() == grpc.StatusCode.UNIMPLEMENTED
        assert "PredictionService (gRPC) alone" in refused.value.details()
        if has_keys:
            with pytest.raises(grpc.RpcError, match=r"UNAUTHENTICATED(.|\n)*the proxy expected"):
                predict(grpc.secure_channel(server, nobody), ["a"])
            context = ssl.create_default_context(cadata=certificate.decode())
            with pytest.raises(urllib.error.HTTPError, match="400"):
                urllib.request.urlopen(f"https://localhost:{rest}/v1/", context=context)
    with grpc.insecure_channel(f"127.0.0.1:{grpc_upstream}") as channel:  # not through nginx
        assert model_service_pb2_grpc.ModelServiceStub(channel).HandleReloadConfigRequest(request)


def predict(channel, texts):
    request = predict_pb2.PredictRequest()
    request.inputs["text"].CopyFrom(tf.make_tensor_proto(texts))
    stub = prediction_service_pb2_grpc.PredictionServiceStub(channel)
    return tf.make_ndarray(stub.Predict(request, timeout=60).outputs["got"]).tolist()


def test_bodies_in_chunks_are_bounded(port):
    """nginx holds one in a file if it is too large with the heads of its chunks."""
    fine = b'{"inputs": {"text": ["%s"]}}' % (b"a" * 100_000)
    for body, size, expected in (
        (fine, 1000, (200, True)),
        (b"[" * 100_000, 1000, (400, False)),
        (b"[" * 240_000, 100_000, (400, False)),
        (b"[" * 200_000, 7, (413, False)),  # 343 kB with the chunks' heads: in a file
        (b"[" * 900_000, 100_000, (413, False)),
    ):
        chunks = [body[i : i + size] for i in range(0, len(body), size)]
        assert send(port, iter(chunks)) == expected
