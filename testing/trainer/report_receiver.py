"""A server on this machine that keeps the reports of progress that trainers send it."""

import contextlib
import http.server
import json
import threading
from collections.abc import Iterator
from typing import Any


class ReportReceiver(http.server.HTTPServer):
    """Keeps what it is sent."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.got: list[tuple[str | None, Any]] = []
        """The header with the token, and the report."""
        self.answers: list[int] = []
        """To the first requests; to the others 200."""

    @property
    def url(self) -> str:
        """The address for reports."""
        return f"http://127.0.0.1:{self.server_port}/progress"


class _Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        assert isinstance(self.server, ReportReceiver)
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.got.append((self.headers.get("Authorization"), json.loads(body)))
        self.send_response(self.server.answers.pop(0) if self.server.answers else 200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@contextlib.contextmanager
def receiving() -> Iterator[ReportReceiver]:
    """Run a server while the body runs."""
    server = ReportReceiver()
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
