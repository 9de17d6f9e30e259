"""An object store in memory that TensorFlow's own gs:// file system talks to, with faults to order.

TensorFlow's HTTP client (libcurl) sends everything to the proxy of `https_proxy`: a server of this
module on loopback, which answers CONNECT with TLS of a certificate that CURL_CA_BUNDLE names, and
then plays the JSON API of Google's storage (https://cloud.google.com/storage/docs/json_api/v1).
"""

import contextlib
import dataclasses
import datetime
import http.server
import json
import re
import ssl
import threading
import urllib.parse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

HOSTS = ("www.googleapis.com", "storage.googleapis.com")


class Request(NamedTuple):
    """One request, and the name of the object with its bucket, or the listed prefix."""

    kind: str  # list, stat, read, start, write, copy, delete or bucket
    name: str


@dataclasses.dataclass
class Rule:
    """What happens to some requests. The first rule that fits a request applies.

    Attributes:
      kind: as of a Request; "": any.
      name: a regular expression that is searched in the request's name.
      after: so many of these requests pass first.
      times: so many requests fail then; None: all.
      code: the HTTP status they get; None: they are answered as ever.
      call: called before anything is done (of a kill: before the request has an effect).
      call_after: called when the request had its effect, but its answer is not sent yet.
    """

    kind: str = ""
    name: str = ""
    after: int = 0
    times: int | None = 1
    code: int | None = None
    call: Callable[[], None] | None = None
    call_after: Callable[[], None] | None = None
    seen: int = 0

    def applies(self, request: Request) -> bool:
        """Counts a request if it is one of the rule's; tells whether it is to fail."""
        if self.kind not in ("", request.kind) or not re.search(self.name, request.name):
            return False
        self.seen += 1
        past = self.seen - self.after
        return past > 0 and (self.times is None or past <= self.times)


class ObjectStore:
    """Buckets in memory, all of which exist.

    Attributes:
      objects: "bucket/name" -> bytes.
      requests: all that were made, in order.
      rules: faults; may be changed at any time.
    """

    def __init__(self, directory: Path):
        self.objects: dict[str, bytes] = {}
        self.requests: list[Request] = []
        self.rules: list[Rule] = []
        self.lock = threading.RLock()
        self._generations: dict[str, int] = {}
        self.sessions: dict[str, tuple[str, bytearray]] = {}
        key_file, self._certificate = write_certificate(directory, HOSTS)
        self.tls = tls_context(key_file, self._certificate)
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
        self._server.daemon_threads = True
        self._server.block_on_close = False
        self._server.store = self

    def __enter__(self) -> "ObjectStore":
        threading.Thread(target=self._server.serve_forever, args=[0.05], daemon=True).start()
        return self

    def __exit__(self, *_) -> None:
        self._server.shutdown()
        self._server.server_close()

    def settings(self) -> dict[str, str]:
        """Returns the environment variables that lead TensorFlow's gs:// here."""
        return {
            "https_proxy": f"http://127.0.0.1:{self._server.server_port}",
            "CURL_CA_BUNDLE": str(self._certificate),
            "NO_GCE_CHECK": "true",
            "GCS_STAT_CACHE_MAX_AGE": "0",  # what a test puts into the store is seen at once
        }

    def put(self, name: str, data: bytes) -> None:
        with self.lock:
            self.objects[name] = data
            self._generations[name] = self._generations.get(name, 0) + 1

    def upload(self, directory: Path, prefix: str) -> None:
        """Stores the files of a directory, or one file, under a name."""
        if directory.is_file():
            self.put(prefix, directory.read_bytes())
        for path in filter(Path.is_file, directory.rglob("*")):
            self.put(f"{prefix}/{path.relative_to(directory)}", path.read_bytes())

    def under(self, prefix: str) -> dict[str, bytes]:
        """Returns the objects whose names begin with `prefix`, by the rest of the name."""
        with self.lock:
            return {
                name[len(prefix) :]: data
                for name, data in sorted(self.objects.items())
                if name.startswith(prefix) and not name.endswith("/")
            }

    def description(self, name: str) -> dict:
        bucket, _, key = name.partition("/")
        size, generation = len(self.objects[name]), self._generations[name]
        described = {"bucket": bucket, "name": key, "updated": "2026-01-01T00:00:00.000Z"}
        return {**described, "size": str(size), "generation": str(generation)}


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_) -> None:
        pass

    def do_CONNECT(self) -> None:
        self.send_response(200)
        self.end_headers()
        try:
            self.connection = self.server.store.tls.wrap_socket(self.connection, server_side=True)
        except OSError:
            self.close_connection = True
            return
        self.rfile = self.connection.makefile("rb")
        self.wfile = self.connection.makefile("wb", 0)
        self.close_connection = False

    def handle(self) -> None:
        with contextlib.suppress(OSError):  # of a client that was killed
            super().handle()

    def do_GET(self) -> None:
        url = urllib.parse.urlsplit(self.path)
        query = dict(urllib.parse.parse_qsl(url.query, keep_blank_values=True))
        chunked = self.headers.get("Transfer-Encoding") == "chunked"
        size = int(self.headers.get("Content-Length") or 0)
        body = self._chunks() if chunked else self.rfile.read(size)
        kind, name, argument = self._route(url.path, query)
        store = self.server.store
        request = Request(kind, name)
        with store.lock:
            store.requests.append(request)
            rules = [rule for rule in list(store.rules) if rule.applies(request)]
        rule = (rules or [Rule()])[0]
        if rule.call:
            rule.call()
        if rule.code is not None:
            self._answer(rule.code, {"error": {"code": rule.code, "message": "a fault to order"}})
            return
        with store.lock:
            answer = getattr(self, f"_{kind}")(name, argument, query, body)
        if rule.call_after:
            rule.call_after()
        self._answer(*answer)

    do_POST = do_PUT = do_DELETE = do_GET  # noqa: N815

    def _chunks(self) -> bytes:
        data = b""
        while size := int(self.rfile.readline(), 16):
            data += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return data

    def _route(self, path: str, query: dict) -> tuple[str, str, str]:
        """Returns the kind of a request, the name it is about, and an argument of some kinds."""
        quoted = path.split("/")
        parts = [urllib.parse.unquote(part) for part in quoted]
        if path.startswith("/upload/session/"):
            session = parts[-1]
            return "write", self.server.store.sessions.get(session, ("?", b""))[0], session
        if path.startswith("/upload/storage/v1/b/"):
            kind = "start" if query.get("uploadType") == "resumable" else "write"
            return kind, f"{parts[5]}/{query['name']}", ""
        if not path.startswith("/storage/v1/b/"):
            return "read", urllib.parse.unquote(path[1:]), ""
        if len(parts) == 5:
            return "bucket", parts[4], ""
        if len(parts) == 6:
            return "list", f"{parts[4]}/{query.get('prefix', '')}", parts[4]
        name = f"{parts[4]}/{parts[6]}"
        if len(parts) > 8:  # .../rewriteTo/b/BUCKET/o/NAME
            return "copy", name, f"{parts[9]}/{parts[11]}"
        return ("delete" if self.command == "DELETE" else "stat"), name, ""

    def _list(self, below, bucket, query, body):
        store, names, prefixes = self.server.store, set(), set()
        for name in store.objects:
            if name.startswith(below):
                delimiter = query.get("delimiter") or "\0"  # no name has this one
                head, found, _ = name[len(below) :].partition(delimiter)
                (prefixes if found else names).add(query.get("prefix", "") + head + found)
        limit, start = int(query.get("maxResults", 1000)), query.get("pageToken", "")
        entries = sorted(entry for entry in names | prefixes if entry > start)
        page, more = entries[:limit], entries[limit:]
        items = [store.description(f"{bucket}/{name}") for name in page if name in names]
        answer = {"items": items, "prefixes": [entry for entry in page if entry in prefixes]}
        return 200, {**answer, "nextPageToken": page[-1]} if more else answer

    def _stat(self, name, argument, query, body):
        store = self.server.store
        return (200, store.description(name)) if name in store.objects else (404, {})

    def _read(self, name, argument, query, body):
        data = self.server.store.objects.get(name)
        if data is None:
            return 404, {}
        found = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", "bytes=0-"))
        first, last = int(found[1]), int(found[2] or len(data))
        if first >= len(data):
            return 416, b""
        return 206, data[first : last + 1]

    def _start(self, name, argument, query, body):
        store = self.server.store
        session = f"{len(store.sessions):08d}"
        store.sessions[session] = (name, bytearray())
        return 200, {}, {"Location": f"https://www.googleapis.com/upload/session/{session}"}

    def _write(self, name, session, query, body):
        store = self.server.store
        if session:
            if session not in store.sessions:
                return 404, {}
            name, data = store.sessions[session]
            data += body
            # An empty object comes without a range.
            total = int(self.headers.get("Content-Range", "0").rpartition("/")[2])
            if len(data) < total:
                return 308, b"", {"Range": f"bytes=0-{len(data) - 1}"} if data else {}
            body = bytes(data)
        elif query.get("ifGenerationMatch") == "0" and name in store.objects:
            return 412, {}
        store.put(name, body)
        return 200, store.description(name)

    def _copy(self, name, target, query, body):
        store = self.server.store
        if name not in store.objects:
            return 404, {}
        store.put(target, store.objects[name])
        return 200, {"done": True, "resource": store.description(target)}

    def _delete(self, name, argument, query, body):
        store = self.server.store
        return (404, {}) if store.objects.pop(name, None) is None else (204, b"")

    def _bucket(self, name, argument, query, body):
        return 200, {"name": name, "location": "EUROPE-WEST1"}

    def _answer(self, code: int, body: dict | bytes, headers: dict[str, str] = {}) -> None:  # noqa: B006
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(code)
        for name, value in headers.items():
            self.send_header(name, value)
        if code != 204:
            self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def write_certificate(directory: Path, hosts: Sequence[str]) -> tuple[Path, Path]:
    """Writes a certificate that signs itself; returns the paths of its key and of itself."""
    now, days = datetime.datetime.now(datetime.timezone.utc), datetime.timedelta(days=2)
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, hosts[0])])
    builder = x509.CertificateBuilder().subject_name(name).issuer_name(name)
    builder = builder.public_key(key.public_key()).serial_number(x509.random_serial_number())
    builder = builder.not_valid_before(now - days).not_valid_after(now + days)
    names = x509.SubjectAlternativeName([x509.DNSName(host) for host in hosts])
    authority = x509.BasicConstraints(ca=True, path_length=None)
    for extension in (names, authority):
        builder = builder.add_extension(extension, critical=False)
    pem, plain = serialization.Encoding.PEM, serialization.NoEncryption()
    key_file, certificate = directory / "key.pem", directory / "certificate.pem"
    key_file.write_bytes(key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain))
    certificate.write_bytes(builder.sign(key, hashes.SHA256()).public_bytes(pem))
    return key_file, certificate


def tls_context(key_file: Path, certificate: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key_file)
    return context
