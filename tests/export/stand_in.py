"""An HTTP server on loopback, for stand-ins of other servers."""

import contextlib
import http.server
import json
import threading


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
def serving(handler):
    """Serves HTTP on loopback; yields the port."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, args=[0.05], daemon=True)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
