"""As much of the S3 API as an archive uses, on this machine and in memory. ``python -m bench.archive`` uses a whole one."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class FakeBucket(ThreadingHTTPServer):
    """``objects`` by their paths. While ``is_away``, every request fails."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.objects: dict[str, bytes] = {}
        self.is_away = False
        self.refuses = False

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: FakeBucket

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # the name is the library's
        pass

    def do_PUT(self) -> None:
        data = self.rfile.read(int(self.headers["Content-Length"]))
        if self._may_go_on():
            self.server.objects[self.path] = data
            self._answer(200)

    def do_GET(self) -> None:
        if not self._may_go_on():
            return
        data = self.server.objects.get(self.path)
        if data is None:
            self._answer(404, b"<Error><Code>NoSuchKey</Code></Error>")
        elif wanted := self.headers.get("Range"):
            first, last = wanted.removeprefix("bytes=").split("-")
            part = data[int(first) : int(last) + 1]
            self._answer(206, part, f"bytes {first}-{int(first) + len(part) - 1}/{len(data)}")
        else:
            self._answer(200, data)

    def do_POST(self) -> None:
        """Deletes several at once."""
        wanted = self.rfile.read(int(self.headers["Content-Length"])).decode()
        if self._may_go_on():
            keys = re.findall("<Key>(.*?)</Key>", wanted)
            for key in keys:
                self.server.objects.pop(f"{self.path.partition('?')[0]}/{key}", None)
            deleted = "".join(f"<Deleted><Key>{key}</Key></Deleted>" for key in keys)
            self._answer(200, f"<DeleteResult>{deleted}</DeleteResult>".encode())

    def _may_go_on(self) -> bool:
        if self.server.is_away:
            self._answer(503)
        elif self.server.refuses:
            self._answer(403, b"<Error><Code>AccessDenied</Code></Error>")
        return not (self.server.is_away or self.server.refuses)

    def _answer(self, status: int, body: bytes = b"", part: str | None = None) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Last-Modified", "Sat, 01 Jan 2000 00:00:00 GMT")
        self.send_header("ETag", '"1"')
        if part is not None:
            self.send_header("Content-Range", part)
        self.end_headers()
        self.wfile.write(body)


@contextmanager
def fake_bucket() -> Iterator[FakeBucket]:
    with FakeBucket() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
