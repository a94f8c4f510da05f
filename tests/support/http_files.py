"""A folder behind HTTP on this machine, which notes what is asked for, and by whom."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Generator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any, NamedTuple


class Asked(NamedTuple):
    """A request: the path, and ``user:password``, empty without."""

    path: str
    login: str


class _Files(SimpleHTTPRequestHandler):
    def __init__(self, *arguments: Any, asked: list[Asked], **settings: Any) -> None:
        self._asked = asked
        super().__init__(*arguments, **settings)

    def do_GET(self) -> None:
        login = self.headers.get("Authorization", "").removeprefix("Basic ")
        self._asked.append(Asked(self.path, b64decode(login).decode()))
        super().do_GET()

    def log_message(self, *_: Any) -> None:
        """Tests print nothing."""


@contextmanager
def served(folder: Path) -> Generator[tuple[str, list[Asked]]]:
    """Serve a folder; yield ``host:port`` and the requests so far."""
    asked: list[Asked] = []
    handler = partial(_Files, asked=asked, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_address[1]}", asked
        finally:
            server.shutdown()
            thread.join()
