"""The pages about a consumer: what probes, Prometheus and people get, from each kind of server."""

from __future__ import annotations

import asyncio
import logging
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from http.client import HTTPConnection
from threading import Event, Thread
from threading import enumerate as threads
from typing import TYPE_CHECKING, Any
from wsgiref.util import setup_testing_defaults

import pytest

from dedup_adapters.health import HealthServer, asgi_app, serve, wsgi_app
from dedup_sdk.errors import ConfigurationError
from tests.support.consuming import PATIENCE_S, make_consumer, poll_quiet, poll_some, wait_for

if TYPE_CHECKING:
    from dedup_sdk import DedupConsumer
    from dedup_sdk.testing import MockKafka
    from tests.mock.conftest import Make, Send

Reply = tuple[int, dict[str, str], str]
Ask = Callable[..., Reply]
PASSWORD = "hunter2-is-secret"


def ask_server(server: HealthServer, path: str, method: str = "GET") -> Reply:
    """Ask over the network."""
    connection = HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE_S)
    try:
        connection.request(method, path)
        reply = connection.getresponse()
        headers = {name.lower(): value for name, value in reply.getheaders()}
        return reply.status, headers, reply.read().decode()
    finally:
        connection.close()


def ask_wsgi(app: Any, path: str, method: str = "GET") -> Reply:
    """Ask as a WSGI server does."""
    environ: dict[str, Any] = {}
    setup_testing_defaults(environ)
    environ |= {"PATH_INFO": path, "REQUEST_METHOD": method}
    begun: list[Any] = []
    body = b"".join(app(environ, lambda status, headers: begun.append((status, headers))))
    status, headers = begun[0]
    return int(status.split()[0]), {name.lower(): value for name, value in headers}, body.decode()


def ask_asgi(app: Any, path: str, method: str = "GET", root: str = "") -> Reply:
    """Ask as an ASGI server does."""
    sent: list[dict[str, Any]] = []

    async def send(event: dict[str, Any]) -> None:
        sent.append(event)

    scope = {"type": "http", "path": root + path, "root_path": root, "method": method}
    asyncio.run(app(scope, None, send))
    headers = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    return sent[0]["status"], headers, b"".join(each.get("body", b"") for each in sent[1:]).decode()


@pytest.fixture
def consumer(make: Make, send: Send) -> DedupConsumer:
    """A consumer that has handled two messages and a duplicate, with a password in its settings."""
    send("order-4711", "order-4712", "order-4711")
    made = make("orders", config={"sasl.password": PASSWORD})
    poll_some(made, 2)
    poll_quiet(made, 0.3)
    return made


@pytest.fixture(params=["server", "wsgi", "asgi", "mounted"])
def ask(request: pytest.FixtureRequest, consumer: DedupConsumer) -> Iterator[Ask]:
    """Asks for a page, by each kind of server."""
    if request.param == "server":
        with serve(consumer, port=0, host="127.0.0.1") as server:
            yield lambda *arguments: ask_server(server, *arguments)
    elif request.param == "wsgi":
        app = wsgi_app(consumer)
        yield lambda *arguments: ask_wsgi(app, *arguments)
    else:
        other = asgi_app(consumer)
        root = "/dedup" if request.param == "mounted" else ""
        yield lambda path, method="GET": ask_asgi(other, path, method, root)


def test_a_consumer_that_delivers_is_ready(ask: Ask) -> None:
    """It is live, too."""
    assert ask("/livez")[::2] == (200, "ok\n")
    assert ask("/readyz")[::2] == (200, "ok\n")


def test_a_consumer_that_is_closed_is_not_ready(consumer: DedupConsumer) -> None:
    """It is alive: a restart does not help it; the reason says the next step."""
    app = wsgi_app(consumer)
    consumer.close()
    assert ask_wsgi(app, "/livez")[0] == 200
    status, _, text = ask_wsgi(app, "/readyz")
    assert (status, text) == (503, "the consumer is closed: make a new one to go on\n")
    assert "the consumer is closed" in ask_wsgi(app, "/")[2]


def test_a_thread_that_has_ended_is_not_live(consumer: DedupConsumer) -> None:
    """The health of the consumer would say so only after max.poll.interval.ms."""
    thread = Thread(target=print, args=("",))
    app = asgi_app(consumer, alive=thread.is_alive)
    assert [ask_asgi(app, path)[0] for path in ("/livez", "/readyz")] == [503, 503]
    assert "thread has ended" in ask_asgi(app, "/livez")[2]


def test_several_consumers_are_ready_together(consumer: DedupConsumer, make: Make) -> None:
    """One that has no assignment is named by its reason, and all are on one page."""
    second = make()
    app = wsgi_app(consumer, second)
    assert ask_wsgi(app, "/livez")[0] == 200
    status, _, text = ask_wsgi(app, "/readyz")
    assert (status, text) == (503, "no topic is subscribed: call subscribe() or assign()\n")
    assert ask_wsgi(app, "/")[2].count("<h2>Partitions</h2>") == 2
    with pytest.raises(ConfigurationError, match="no consumer is given"):
        wsgi_app()


def test_the_page_shows_partitions_and_ages(ask: Ask) -> None:
    """All of it is in one document: no script, nothing from elsewhere."""
    status, headers, page = ask("/")
    assert (status, headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert headers["cache-control"] == "no-store"
    for text in ("orders[0]", ">active</span>", "duplicates hidden<b>1</b>", "to 1 min", "<rect "):
        assert text in page
    assert "<script" not in page
    assert re.findall(r'(?:src|href)=["\']?(\w+:[^"\']*)', page) == ["data:,"]
    assert len(re.findall(r"url\(|@import", page)) == 0


def test_rates_come_with_the_second_look(consumer: DedupConsumer, send: Send) -> None:
    """A rate is the difference to an earlier look."""
    app = wsgi_app(consumer)
    assert "rates follow with the next look" in ask_wsgi(app, "/")[2]
    send("order-1", "order-2", "order-3")
    poll_some(consumer, 3)
    poll_quiet(consumer, 1.1)
    page = ask_wsgi(app, "/")[2]
    fresh = re.search(r'data-name="fresh/s">([\d.]+)<', page)
    assert fresh
    assert float(fresh[1]) > 0
    assert 'data-name="duplicate/s">0<' in page


def test_metrics_are_those_of_prometheus(ask: Ask) -> None:
    """In its text format, with the names of the registry."""
    status, headers, text = ask("/metrics")
    assert status == 200
    assert headers["content-type"].startswith("text/plain; version=")
    sample = re.search(r'^dedup_records_total\{.*verdict="duplicate",reason=""\} 1$', text, re.MULTILINE)
    assert sample
    assert 'group="g"' in sample[0]


def test_the_pages_need_no_other_package() -> None:
    """Prometheus' client is for programs that have a registry of their own."""
    script = """
import sys
sys.modules["prometheus_client"] = None
from dedup_adapters.health import wsgi_app
from dedup_sdk import MemoryStore, DedupConsumer, Lookup
consumer = DedupConsumer({"bootstrap.servers": "localhost:1", "group.id": "g", "log_level": 0},
                         dedup=Lookup(id="header:id", window="7d"), store=MemoryStore())
begun = []
environ = {"PATH_INFO": "/metrics", "REQUEST_METHOD": "GET"}
print(len(b"".join(wsgi_app(consumer)(environ, lambda status, headers: begun.append(status)))) > 1000, begun)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout == "True ['200 OK']\n"


@pytest.mark.parametrize("path", ["/", "/livez", "/readyz", "/metrics"])
def test_other_methods_get_a_clear_answer(ask: Ask, path: str) -> None:
    """HEAD has the headers of GET and no body; POST is refused."""
    status, headers, body = ask(path, "HEAD")
    assert (status, body) == (200, "")
    assert int(headers["content-length"]) > 0
    status, headers, body = ask(path, "POST")
    assert (status, headers["allow"], body) == (405, "GET, HEAD", "ask by GET or HEAD\n")


def test_a_page_that_is_none_is_not_found(ask: Ask) -> None:
    """The answer lists the pages, and repeats nothing of the request."""
    status, _, text = ask("/<script>alert(1)</script>")
    assert (status, text) == (404, "no such page: ask for one of /, /livez, /readyz, /metrics\n")


@pytest.mark.parametrize("path", ["/", "/livez", "/readyz", "/metrics", "/other"])
def test_no_page_has_an_id_a_value_or_a_password(ask: Ask, path: str) -> None:
    """Nor the text of an error that quotes them, as a handler's in the log."""
    logging.getLogger("dedup_sdk").warning(
        "%s[%d]@%d: the handler failed (attempts: %d), sending a dead letter: %s",
        "orders", 0, 7, 3, "KeyError: order-4711",
    )  # fmt: skip
    text = ask(path)[2]
    assert "4711" not in text
    assert PASSWORD not in text


def test_the_log_on_the_page_names_the_message_and_not_its_id(
    consumer: DedupConsumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Text of the package is shown, with numbers and topics; names that others chose are escaped."""
    app = wsgi_app(consumer)
    logger = logging.getLogger("dedup_sdk")
    logger.warning("%s[%d]@%d: the handler failed (100 %%): %s", "<b>shop</b>", 0, 7, "order-4711")
    logger.warning("nothing to add")
    with monkeypatch.context() as patched:
        patched.setattr(logging, "raiseExceptions", False)
        logger.warning("%d of them", "a text")
    page = ask_wsgi(app, "/")[2]
    assert "&lt;b&gt;shop&lt;/b&gt;[0]@7: the handler failed (100 %): …" in page
    assert "<b>shop" not in page
    assert "nothing to add" in page


def test_a_program_without_logging_still_sees_warnings(
    consumer: DedupConsumer, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python writes them to stderr only while no logger has a handler: the page's must not count."""
    wsgi_app(consumer)
    logger = logging.getLogger("dedup_sdk")
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    logger.warning("a disk is full")
    logger.info("all is well")
    assert capfd.readouterr().err == "a disk is full\n"
    monkeypatch.setattr(logging.getLogger(), "handlers", [logging.NullHandler()])
    logger.warning("a disk is full")
    assert capfd.readouterr().err == ""


# --- the server ----------------------------------------------------------------------------------------------------


def server_threads() -> list[str]:
    """The threads of servers."""
    return [each.name for each in threads() if each.name == "dedup-health"]


def test_the_server_ends_with_its_block(consumer: DedupConsumer) -> None:
    """Its port is free at once, and nobody listens there."""
    with serve(consumer, port=0) as server:
        port = server.port
        assert ask_server(server, "/livez")[0] == 200
    assert server_threads() == []
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)
    server.close()
    serve(consumer, port=port).close()


def test_the_server_ends_with_its_consumer(consumer: DedupConsumer) -> None:
    """Without a `with` block a closed consumer leaves no thread behind."""
    serve(consumer, port=0)
    assert server_threads()
    consumer.close()
    until = time.monotonic() + PATIENCE_S
    while server_threads():
        assert time.monotonic() < until
        time.sleep(0.02)


def test_a_server_keeps_no_consumer_alive(kafka: MockKafka) -> None:
    """One that is gone is not ready; the server ends."""
    import gc

    made = make_consumer(kafka.bootstrap, "g2", "ephemeral")
    app = wsgi_app(made)
    made.close()
    del made
    gc.collect()
    status, _, text = ask_wsgi(app, "/readyz")
    assert (status, text) == (503, "the consumer is gone: make a new one\n")
    assert ask_wsgi(app, "/")[0] == 200


def test_a_port_that_is_taken_is_refused(consumer: DedupConsumer) -> None:
    """The message says the next step; so for a port that is none, and an address of another machine."""
    with (
        serve(consumer, port=0) as server,
        pytest.raises(
            ConfigurationError, match=f"^port {server.port} is taken by another program; give another port"
        ),
    ):
        serve(consumer, port=server.port)
    for port in (-1, 65_536, True, "8080"):
        with pytest.raises(ConfigurationError, match="give a number from 0 to 65535"):
            serve(consumer, port=port)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match=r"'192\.0\.2\.1' cannot be listened on"):
        serve(consumer, port=0, host="192.0.2.1")
    assert server_threads() == []


def test_a_client_that_hangs_stops_no_other(
    consumer: DedupConsumer, capfd: pytest.CaptureFixture[str]
) -> None:
    """Nor one that speaks another language, or leaves before its answer; none of them leaves a traceback."""
    with serve(consumer, port=0) as server:
        address = ("127.0.0.1", server.port)
        hanging = [socket.create_connection(address, timeout=PATIENCE_S) for _ in range(20)]
        hanging[0].sendall(b"GET /live")
        assert ask_server(server, "/livez")[0] == 200
        for asked, status in ((b"\x16\x03\x01\x00\xff\r\n", b"400"), (b"BREW / HTTP/1.1\r\n\r\n", b"501")):
            with socket.create_connection(address, timeout=PATIENCE_S) as other:
                other.sendall(asked)
                answer = other.makefile("rb").read()
            assert answer.startswith(b"HTTP/1.0 " + status), answer
            assert answer.endswith(b": ask by GET or HEAD\n")
        with socket.create_connection(address, timeout=PATIENCE_S) as gone:
            gone.sendall(b"GET / HTTP/1.0\r\n\r\n")
            gone.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
        # A silent client is left after some seconds.
        assert hanging[1].recv(1) == b""
        for each in hanging:
            each.close()
        assert ask_server(server, "/readyz")[0] == 200
    assert "Traceback" not in capfd.readouterr().err


def test_a_page_waits_for_no_step(make: Make, send: Send) -> None:
    """An observer stands still, with the consumer's lock: each page is answered."""
    entered, over = Event(), Event()

    def stand_still(_: object) -> None:
        entered.set()
        assert over.wait(PATIENCE_S)

    send("a")
    consumer = make("orders", observers=[stand_still])
    with serve(consumer, port=0) as server:
        thread = Thread(target=poll_some, args=(consumer, 1))
        thread.start()
        try:
            assert entered.wait(PATIENCE_S)
            assert [ask_server(server, path)[0] for path in ("/livez", "/readyz", "/metrics", "/")] == [
                200
            ] * 4
        finally:
            over.set()
            thread.join(PATIENCE_S)


def test_an_error_of_the_consumer_is_an_answer(
    consumer: DedupConsumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a process that was forked: one line, without a traceback."""

    def broken() -> None:
        raise RuntimeError("made in another process")

    app = wsgi_app(consumer)
    monkeypatch.setattr(consumer, "metrics", broken)
    status, _, text = ask_wsgi(app, "/")
    assert status == 500
    assert text == "the consumer cannot be looked at: RuntimeError('made in another process')\n"


def test_an_asgi_server_may_tell_its_beginning_and_end(consumer: DedupConsumer) -> None:
    """And a websocket is closed."""
    app = asgi_app(consumer)

    def told(scope: str, *kinds: str) -> list[str]:
        waiting, sent = [{"type": kind} for kind in kinds], list[str]()

        async def receive() -> dict[str, str]:
            return waiting.pop(0)

        async def send(event: dict[str, str]) -> None:
            sent.append(event["type"])

        asyncio.run(app({"type": scope}, receive, send))  # type: ignore[arg-type]
        return sent

    assert told("lifespan", "lifespan.startup", "lifespan.shutdown") == [
        "lifespan.startup.complete", "lifespan.shutdown.complete",
    ]  # fmt: skip
    assert told("websocket", "websocket.connect") == ["websocket.close"]


def test_a_recovery_shows_its_progress(make: Make, send: Send) -> None:
    """A partition that waits for its store is named with its hindrance, and the page is not ready."""
    send("a", "b")
    owner = make("orders")
    poll_some(owner, 2)
    from confluent_kafka import TopicPartition

    consumer = make()
    consumer.assign([TopicPartition("orders", 0)])
    wait_for(consumer, lambda: "lock" in str(consumer.health().reasons), "the reason")
    page = ask_wsgi(wsgi_app(consumer), "/")[2]
    assert "not ready" in page
    assert "recovering: lock" in page
