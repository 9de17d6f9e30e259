"""A stand-in for the part of TensorFlow Serving that loads versions and answers for labels.

It does what version 2.15.1 was seen to do, or what its sources say (server_core.cc,
get_model_status_impl.cc, http_rest_api_handler.cc):
- It reads the config file at every poll. It checks labels first: one that is to leave a version for
  another that is not loaded refuses the whole file, and only the log says so.
- A version without a directory is ignored. One version is loaded at a time. A broken one is LOADING
  through all tries, then END with an error. The status call ignores labels.
"""

import contextlib
import http.server
import json
import re
import threading

from google.protobuf import text_format
from tensorflow_serving.config import model_server_config_pb2

_PATH = re.compile(r"/v1/models/albert(?:/labels/(\w+))?(/metadata)?")
LOADED = ("AVAILABLE", "OK")


class QuietHandler(http.server.BaseHTTPRequestHandler):
    """Logs nothing; `reply` sends a status and text, bytes or what becomes JSON."""

    def reply(self, code, answer):
        self.send_response(code)
        self.end_headers()
        body = answer if isinstance(answer, (bytes, str)) else json.dumps(answer)
        self.wfile.write(body if isinstance(body, bytes) else body.encode())

    def body(self):
        return self.rfile.read(int(self.headers["Content-Length"]))

    def log_message(self, *_):
        pass


@contextlib.contextmanager
def serving(handler, tls=None):
    """Serves HTTP on loopback, by an ssl.SSLContext if one is given; yields the port."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    if tls:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, args=[0.05], daemon=True)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class ModelServer:
    """Serves the versions of a config file; `before_poll(self)` may make a fault.

    Args:
      config: path of the config file.
      directories: the versions that there are.
      broken: those of them that do not load.
      load_polls: polls that loading takes.
    """

    def __init__(self, config, directories, broken=(), load_polls=3):
        self.config, self.directories, self.broken = config, set(directories), set(broken)
        self.load_polls, self.before_poll = load_polls, lambda server: None
        self.states, self.labels, self.log, self.url = {}, {}, [], None
        self._aspired, self._loading, self._polls = [], None, 0

    def poll(self):
        self.before_poll(self)
        if self._loading is not None:
            self._polls += 1
            if self._polls >= self.load_polls:
                is_broken = self._loading in self.broken
                self.states[self._loading] = ("END", "INTERNAL") if is_broken else LOADED
                self._loading = None
        self._read_config()
        for version in self._aspired:
            if self._loading is None and self.states.get(version, ("END", "OK")) == ("END", "OK"):
                self._loading, self._polls = version, 0
                self.states[version] = ("LOADING", "OK")

    def _read_config(self):
        config = model_server_config_pb2.ModelServerConfig()
        text_format.Parse(self.config.read_text(), config)
        (model,) = config.model_config_list.config
        for label, version in model.version_labels.items():
            is_loaded = self.states.get(version) == LOADED
            # --allow_version_labels_for_unavailable_models
            if not is_loaded and self.labels.get(label, version) != version:
                self.log.append(f"label {label}: version {version} is not available")
                return
        self.labels = dict(model.version_labels)
        asked = set(model.model_version_policy.specific.versions) & self.directories
        for version in set(self._aspired) - asked:
            if self.states.get(version) == LOADED:
                self.states[version] = ("END", "OK")
        self._aspired = sorted(asked)

    def answer(self, path):
        match = _PATH.fullmatch(path)
        if match is None:
            return 404, {"error": "Not Found"}
        label, metadata = match.groups()
        if not metadata:
            statuses = []
            for version, (state, code) in self.states.items():
                status = {"error_code": code, "error_message": "" if code == "OK" else "bad"}
                statuses.append({"version": str(version), "state": state, "status": status})
            return 200, {"model_version_status": statuses}
        if label not in self.labels:
            return 400, {"error": f"Unrecognized servable version label: {label}"}
        version = self.labels[label]
        if self.states.get(version) != LOADED:
            return 404, {"error": f"Servable not found for request: Specific(albert, {version})"}
        spec = {"name": "albert", "signature_name": "", "version": str(version)}
        return 200, {"model_spec": spec, "metadata": {}}

    @contextlib.contextmanager
    def running(self):
        """Polls and answers at `url`, once the first versions are loaded."""
        stand_in, stop = self, threading.Event()

        class Handler(QuietHandler):
            def do_GET(self):
                self.reply(*stand_in.answer(self.path))

        while not self.states or self._loading is not None:
            self.poll()

        def poll():
            while not stop.wait(0.01):
                self.poll()

        thread = threading.Thread(target=poll)
        thread.start()
        with serving(Handler) as port:
            self.url = f"http://127.0.0.1:{port}"
            try:
                yield self
            finally:
                stop.set()
                thread.join()
