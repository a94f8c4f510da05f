"""Pages about consumers for probes, for Prometheus and for people.

    from dedup_adapters.health import serve

    with DedupConsumer(...) as consumer, serve(consumer, port=8080):
        ...

A consumer is a `DedupConsumer` or an `AsyncDedupConsumer`.

- ``/livez`` and ``/readyz``: 200, or 503 with the reasons of `DedupConsumer.health`, each with the next step.
- ``/metrics``: for Prometheus.
- ``/``: for a person. It loads nothing from elsewhere, and refreshes itself.

No page has an ID, a key or a value of a message, nor a setting of the client. Names of topics and groups are there, so
let only your own network reach the port. No page waits for a lock of a consumer, for a broker or the disk.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from threading import Event, Thread
from types import TracebackType
from typing import Any, Final, Self
from urllib.parse import urlsplit

from dedup_adapters._health_answers import Answer, Answers, answer_of
from dedup_adapters._looks import AnyConsumer
from dedup_sdk.errors import ConfigurationError, shown

__all__ = ["HealthServer", "asgi_app", "serve", "wsgi_app"]

_CLIENT_S: Final = 5.0
"""Seconds after which a client that says nothing is left."""
_LOOK_S: Final = 0.5
"""Seconds between two looks whether the server or its consumers are over."""
_HIGHEST_PORT: Final = 65_535

WsgiApp = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]
AsgiApp = Callable[
    [
        MutableMapping[str, Any],
        Callable[[], Awaitable[MutableMapping[str, Any]]],
        Callable[[MutableMapping[str, Any]], Awaitable[None]],
    ],
    Awaitable[None],
]


def wsgi_app(*consumers: AnyConsumer, alive: Callable[[], bool] | None = None) -> WsgiApp:
    """Return the pages as a WSGI application, which may be mounted at any path.

    ``alive``: asked for each answer; if it returns False, the consumers are not live. Give it the ``is_alive`` of a
    thread that runs a consumer: the health of a consumer shows only later that its thread has ended.
    """
    answers = Answers(consumers, alive)

    def app(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        method = environ["REQUEST_METHOD"]
        found = answers.answer(method, environ.get("PATH_INFO", ""))
        start_response(f"{found.status.value} {found.status.phrase}", list(found.headers))
        return [] if method == "HEAD" else [found.body]

    return app


def asgi_app(*consumers: AnyConsumer, alive: Callable[[], bool] | None = None) -> AsgiApp:
    """Return the pages as an ASGI application, which may be mounted at any path; ``alive`` as in `wsgi_app`."""
    answers = Answers(consumers, alive)

    async def app(scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await _live(receive, send)
        elif scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": 1000})
        else:
            # A framework that mounts an application leaves its own part in the path.
            path = scope["path"].removeprefix(scope.get("root_path", ""))
            found = answers.answer(scope["method"], path)
            headers = [(name.lower().encode(), value.encode()) for name, value in found.headers]
            await send(
                {
                    "type": "http.response.start",
                    "status": found.status.value,
                    "headers": headers,
                }
            )
            await send(
                {
                    "type": "http.response.body",
                    "body": b"" if scope["method"] == "HEAD" else found.body,
                }
            )

    return app


async def _live(receive: Any, send: Any) -> None:
    """Answer a server that tells its own beginning and end."""
    while True:
        kind = (await receive())["type"]
        await send({"type": f"{kind}.complete"})
        if kind == "lifespan.shutdown":
            return


class HealthServer:
    """A server of the pages, in a thread; a context manager. Made by `serve`."""

    def __init__(self, answers: Answers, host: str, port: int) -> None:
        self._answers = answers
        self._over = Event()
        self._server = _listening(answers, host, port)
        self.port: int = self._server.server_address[1]
        """The port on which it listens."""
        self._thread = Thread(target=self._serve, name="dedup-health", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the server, and free its port; may be called again."""
        self._over.set()
        self._thread.join()

    def _serve(self) -> None:
        with self._server as server:
            while not self._over.is_set() and not self._answers.is_over:
                server.handle_request()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def serve(
    *consumers: AnyConsumer, port: int = 8080, host: str = "", alive: Callable[[], bool] | None = None
) -> HealthServer:
    """Serve the pages from a thread, for a program that has no server of its own.

    ``host``: the address to listen on, e.g. ``127.0.0.1``; empty for all of the machine's. ``port=0`` takes a free one
    (`HealthServer.port`). ``alive`` as in `wsgi_app`. The server ends by ``close()``, at the end of a ``with`` block,
    or when all of its consumers are closed.

    Raises `ConfigurationError` if the port is taken or cannot be listened on.
    """
    if type(port) is not int or not 0 <= port <= _HIGHEST_PORT:
        raise ConfigurationError(f"port={shown(port)}: give a number from 0 to {_HIGHEST_PORT}, e.g. 8080")
    return HealthServer(Answers(consumers, alive), host, port)


class _Server(ThreadingHTTPServer):
    """Listens on IPv4, and on IPv6 where the machine has both and no address was given."""

    daemon_threads = True
    block_on_close = False
    timeout = _LOOK_S

    def __init__(self, answers: Answers, host: str, port: int) -> None:
        self.answers = answers
        if ":" in host or (not host and socket.has_dualstack_ipv6()):
            self.address_family = socket.AF_INET6
        super().__init__((host, port), _Handler)

    def server_bind(self) -> None:
        """Bind the socket; that of `HTTPServer` asks a name server for the host's name, which may take long."""
        if self.address_family == socket.AF_INET6:
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        TCPServer.server_bind(self)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: the client is gone, and an error of a page is its answer."""


def _listening(answers: Answers, host: str, port: int) -> _Server:
    try:
        return _Server(answers, host, port)
    except OSError as error:
        where = f"port {port}" + (f" of {shown(host)}" if host else "")
        if error.errno == errno.EADDRINUSE:
            raise ConfigurationError(
                f"{where} is taken by another program; give another port, or port=0 for a free one"
            ) from error
        raise ConfigurationError(
            f"{where} cannot be listened on ({error.strerror}); give another host or port"
        ) from error


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = _CLIENT_S
    # One packet for headers and body: each call of the system gives the interpreter to the consumer's thread.
    wbufsize = -1
    server_version, sys_version = "dedup", ""

    def do_GET(self) -> None:
        self._answer()

    do_HEAD = do_POST = do_PUT = do_DELETE = do_PATCH = do_OPTIONS = do_GET  # noqa: N815 (names of the base class)

    def _answer(self) -> None:
        self._send(self.server.answers.answer(self.command, urlsplit(self.path).path))

    def _send(self, found: Answer) -> None:
        self.send_response(found.status)
        for name, value in found.headers:
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(found.body)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Answer a request that cannot be read, or of an unknown method, with one line of our own."""
        del message, explain
        self.close_connection = True
        # The request line names none where it cannot be read, and then no headers would be sent.
        self.request_version = self.protocol_version
        status = HTTPStatus(code)
        self._send(answer_of(status, f"{status.phrase}: ask by GET or HEAD"))

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 (the name of the base class)
        """Say nothing: a line for each probe helps nobody."""
