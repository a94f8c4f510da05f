"""Mistakes of a user who is new here: each gets one line, with the value and the next step, where it is made.

The list is from trials by people who had read the README only. A call with too many or too few arguments is not in
it where Python's own line names the argument.
"""

from __future__ import annotations

import datetime as dt
import functools
import re
from concurrent.futures import Future
from decimal import Decimal
from fractions import Fraction
from functools import wraps
from typing import TYPE_CHECKING, Any, NamedTuple
from unittest.mock import MagicMock, Mock

import numpy as np
import pytest
from confluent_kafka import DeserializingConsumer, KafkaException

from dedup_sdk import (
    ConfigurationError,
    DedupConsumer,
    LastId,
    Lookup,
    MemoryStore,
    Recovery,
    RocksStore,
    Window,
    Windows,
    header,
    ids,
)
from dedup_sdk._cli.app import run
from dedup_sdk.errors import IdSpecError
from tests.support.consuming import iterate_all, poll_some, run_all

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.mock.conftest import Make, Send

LEAST: dict[str, Any] = {"bootstrap.servers": "localhost:1", "group.id": "billing", "log_level": 0}
LOOKUP = Lookup(id="key", window="1h")
MOST_CHARACTERS = 300
_ADDRESS = re.compile(r"0x[0-9a-f]{6}")
_PRIVATE = re.compile(r"dedup_sdk\.(?!ids\.|orders\b|errors\b)\w+|\b_[a-z]\w+\(")


class Mistake(NamedTuple):
    """A call with a mistake; ``says`` are the parts that its one line must have."""

    made: Callable[[], object]
    says: tuple[str, ...]
    error: type[Exception] = ConfigurationError


def consumer(config: Any = None, **options: Any) -> None:
    """Make a consumer, and close it if that is possible."""
    given: dict[str, Any] = {"dedup": LOOKUP, "store": MemoryStore(), **options}
    DedupConsumer(LEAST if config is None else config, **given).close()


def client(**settings: Any) -> None:
    """Make a consumer with these settings of the client in addition; those without a value are left out."""
    consumer({name: value for name, value in (LEAST | settings).items() if value is not None})


def with_consumer(use: Callable[[Any], object], **options: Any) -> None:
    """Use a consumer with a mistake."""
    given: dict[str, Any] = {"dedup": LOOKUP, "store": MemoryStore(), **options}
    with DedupConsumer(LEAST, **given) as made:
        use(made)


def untyped(function: Any) -> Any:
    """A public name for calls that a type checker would refuse."""
    return function


async def handle_async(_message: object) -> None:
    """A handler for another kind of loop."""


def handle_each(message: object) -> Any:
    """A handler whose code runs when somebody iterates."""
    yield message


def handle_two(message: object, context: object) -> None:
    """A handler of another library."""


class AsyncHandler:
    """A handler with state."""

    async def __call__(self, _message: object) -> None:
        """Handle a message, for another kind of loop."""


lookup, recovery, window = untyped(Lookup), untyped(Recovery), untyped(Window)
FORMS = "write header:NAME, key, unframed-key, json:/POINTER"
WINDOWS = "write e.g. 7d, 1h30m"

CONFIGURATION = {
    "no group.id": Mistake(lambda: client(**{"group.id": None}), ("group.id is missing", "'group.id': 'billing'")),
    "an empty group.id": Mistake(lambda: client(**{"group.id": ""}), ("group.id is missing", "add it")),
    "group.id in bytes": Mistake(lambda: client(**{"group.id": b"g"}), ("group.id=b'g'", "give text")),
    "no bootstrap.servers": Mistake(
        lambda: client(**{"bootstrap.servers": None}), ("bootstrap.servers is missing", "'localhost:9092'")
    ),
    "a list of bootstrap.servers": Mistake(
        lambda: client(**{"bootstrap.servers": ["a:9092", "b:9092"]}), ("['a:9092', 'b:9092']", "give text", "commas")
    ),
    "None": Mistake(lambda: DedupConsumer(untyped(None), dedup=LOOKUP, store="x"), ("of type NoneType", "dictionary")),
    "an address": Mistake(lambda: consumer("localhost:9092"), ("of type str", "give the dictionary")),
    "names of kafka-python": Mistake(
        lambda: consumer({"bootstrap_servers": "localhost:1", "group_id": "g"}), ("group_id", "have dots", "'group.id'")
    ),
    "one name of kafka-python": Mistake(
        lambda: client(bootstrap_servers="localhost:1"), ("bootstrap_servers", "put 'bootstrap.servers'")
    ),
    "names of kafka-python as arguments": Mistake(
        lambda: consumer(value_deserializer=print), ("value_deserializer=", "put 'value.deserializer'")
    ),
    "a misspelt name": Mistake(
        lambda: client(**{"auto.offset.rest": "earliest"}),
        ('"auto.offset.rest"', "did you mean auto.offset.reset?"), KafkaException,
    ),
    "a name of nothing": Mistake(
        lambda: client(**{"no.such": 1}), ('"no.such"', "librdkafka's CONFIGURATION.md"), KafkaException
    ),
    "auto.offset.reset": Mistake(
        lambda: client(**{"auto.offset.reset": "foo"}), ("auto.offset.reset='foo'", "choose earliest, latest or error")
    ),
    "enable.auto.commit=True": Mistake(
        lambda: client(**{"enable.auto.commit": True}), ("enable.auto.commit=true", "leave it out", "set false")
    ),
    "enable.auto.commit='yes'": Mistake(
        lambda: client(**{"enable.auto.commit": "yes"}), ("enable.auto.commit='yes'", "give true or false")
    ),
    "enable.auto.offset.store=True": Mistake(
        lambda: client(**{"enable.auto.offset.store": True}), ("enable.auto.offset.store=true", "leave it out")
    ),
    "session.timeout.ms='10s'": Mistake(
        lambda: client(**{"session.timeout.ms": "10s"}), ("session.timeout.ms='10s'", "milliseconds, e.g. 45000")
    ),
    "value.deserializer": Mistake(
        lambda: client(**{"value.deserializer": print}), ("value.deserializer", "call the deserializer in the loop")
    ),
    "a mixed-in consumer": Mistake(
        lambda: type("Both", (DedupConsumer, DeserializingConsumer), {}),
        ("Both mixes DeserializingConsumer", "call the deserializer in the loop"), TypeError,
    ),
}  # fmt: skip

CONSUMER = {
    "no dedup": Mistake(lambda: untyped(DedupConsumer)(LEAST, store="x"), ("'dedup'",), TypeError),
    "no store": Mistake(lambda: untyped(DedupConsumer)(LEAST, dedup=LOOKUP), ("'store'",), TypeError),
    "store=None": Mistake(lambda: consumer(store=None), ("store=None", "give a folder, e.g. 'var/dedup'")),
    "a class as store": Mistake(lambda: consumer(store=RocksStore), ("store=<class RocksStore>", "give a folder")),
    "a URL as store": Mistake(lambda: consumer(store="s3://bucket/x"), ("store='s3://bucket/x'", "of this machine")),
    "dedup as a dictionary": Mistake(lambda: consumer(dedup={"id": "key"}), ("{'id': 'key'}", "Lookup(id=header(")),
    "dedup as an ID": Mistake(lambda: consumer(dedup=header("x")), ("header:x", "Lookup(id=header(")),
    "dedup as a class": Mistake(lambda: consumer(dedup=Lookup), ("dedup=<class Lookup>", "Lookup(id=header(")),
    "two strategies": Mistake(lambda: consumer(dedup=[LOOKUP, LOOKUP]), ("dedup=[Lookup(", "Lookup(id=header(")),
    "completion": Mistake(lambda: consumer(completion="manual"), ("'manual'", "choose on-next-call or explicit")),
    "durability": Mistake(lambda: consumer(durability="fsync"), ("'fsync'", "choose record, batch or commit")),
    "mode": Mistake(lambda: consumer(mode="dry-run"), ("mode='dry-run'", "choose dedup or observe")),
    "windw=": Mistake(lambda: consumer(windw="7d"), ("windw=", "did you mean window=", "Lookup(window=")),
    "window=": Mistake(lambda: consumer(window="7d"), ("window=", "write dedup=Lookup(window=...)")),
    "workers=": Mistake(lambda: consumer(workers=4), ("workers=", "write run(workers=...)")),
    "timeout=": Mistake(lambda: consumer(timeout=4), ("timeout=", "write recovery=Recovery(timeout=...)")),
    "snapshot=": Mistake(lambda: consumer(snapshot="x"), ("snapshot= moved", "recovery=Recovery(snapshot=...)")),
    "history=": Mistake(lambda: consumer(history="none"), ("history= moved", "recovery=Recovery(history=...)")),
    "recent_marks=": Mistake(lambda: consumer(recent_marks=5), ("recent_marks= moved", "store=RocksStore(")),
    "dead_letters=": Mistake(lambda: consumer(dead_letters="x"), ("dead_letters= moved", "run(dead_letters=...)")),
    "topics=": Mistake(lambda: consumer(topics=["orders"]), ("topics=", "DedupConsumer takes completion, dedup,")),
    "idle_timeout": Mistake(lambda: consumer(idle_timeout="5"), ("idle_timeout='5'", "give seconds, e.g. 30")),
    "observers": Mistake(lambda: consumer(observers=print), ("observers=<function print>", "give a list")),
    "an observer of two": Mistake(
        lambda: consumer(observers=[handle_two]), ("<function handle_two>", "(message, context)", "of one event")
    ),
    "shared as a URL": Mistake(lambda: consumer(shared="redis://localhost"), ("'redis://localhost'", "RedisStore(")),
    "recovery as a path": Mistake(lambda: consumer(recovery="s"), ("recovery='s'", "Recovery(snapshot=")),
    "recovery as a class": Mistake(lambda: consumer(recovery=Recovery), ("<class Recovery>", "Recovery(snapshot=")),
    "Recovery(timeout='abc')": Mistake(
        lambda: recovery(timeout="abc"), ("Recovery(...): timeout='abc'", "give seconds, e.g. 30")
    ),
    "Recovery(history='all')": Mistake(
        lambda: recovery(history="all"), ("Recovery(...): history='all'", "choose none or assume-processed")
    ),
    "Recovery(on_full_disk=)": Mistake(
        lambda: recovery(on_full_disk="deliver"),
        ("Recovery(...): on_full_disk='deliver'", "choose pause or unverified")
    ),
    "Recovery(snapshot=5)": Mistake(
        lambda: recovery(snapshot=5), ("Recovery(...): snapshot=5", "give a folder or a URL")
    ),
    "a URL without driver": Mistake(
        lambda: recovery(snapshot="nosuch://b/x"),
        ("Recovery(...): snapshot='nosuch://b/x'", "no driver for 'nosuch'", "install")
    ),
    "Recovery(window=)": Mistake(lambda: recovery(window="7d"), ("'window'",), TypeError),
    "recent_marks=0": Mistake(lambda: MemoryStore(recent_marks=0), ("recent_marks=0", "give at least 1")),
    "both units and observe": Mistake(
        lambda: consumer(dedup=Lookup(id="key", window="7d", unit="header:u"), mode="observe"),
        ("mode='observe'", "leave out unit"),
    ),
}  # fmt: skip

IDS = {
    "a bare name": Mistake(lambda: lookup(id="dedup-id", window="1h"), ("'dedup-id'", FORMS), IdSpecError),
    "no name of a header": Mistake(lambda: lookup(id="header:", window="1h"), ("'header:'", FORMS), IdSpecError),
    "a misspelt form": Mistake(lambda: lookup(id="headers:x", window="1h"), ("'headers:x'", FORMS), IdSpecError),
    "bytes": Mistake(lambda: lookup(id=b"key", window="1h"), ("b'key'", FORMS), IdSpecError),
    "a list": Mistake(lambda: lookup(id=["key"], window="1h"), ("['key']", FORMS), IdSpecError),
    "header(bytes)": Mistake(lambda: untyped(header)(b"x"), ("b'x'", "write e.g. header('dedup-id')"), IdSpecError),
    "a lambda": Mistake(
        lambda: lookup(id=lambda record: record.key, window="1h"),
        ("<lambda>", 'ids.function(<lambda>, name="order-id", version="1")'), IdSpecError,
    ),
    "function() of text": Mistake(
        lambda: untyped(ids.function)("key", name="k", version="1"), ("function('key')", "plain function"), IdSpecError
    ),
    "function() of a coroutine": Mistake(
        lambda: untyped(ids.function)(handle_async, name="k", version="1"),
        ("function(<function handle_async>)", "plain function"), IdSpecError,
    ),
    "function() of no argument": Mistake(
        lambda: untyped(ids.function)(lambda: "x", name="k", version="1"),
        ("function(<function <lambda>>)", "its arguments are ()", "one Record"), IdSpecError,
    ),
    "version=1": Mistake(
        lambda: untyped(ids.py)("os:getpid", version=1), ("py('os:getpid')", "version 1;", 'version="1"'), IdSpecError
    ),
    "no slash": Mistake(lambda: ids.json("order.id"), ("'order.id'", "json:/order/id"), IdSpecError),
    "a JSON path": Mistake(lambda: ids.json("$.order.id"), ("'$.order.id'", "json:/order/id"), IdSpecError),
    "no such module": Mistake(
        lambda: ids.py("nope.mod:f", version="1"), ("py:nope.mod:f@1", "No module named 'nope'", "sys.path"),
        IdSpecError
    ),
    "no such function": Mistake(
        lambda: ids.py("json:nope", version="1"), ("py:json:nope@1", "no attribute 'nope'", "CALLABLE"), IdSpecError
    ),
    "py: without a version": Mistake(
        lambda: lookup(id="py:json:dumps", window="1h"), ("py:json:dumps", "py:json:dumps@1"), IdSpecError
    ),
    "a type as order": Mistake(lambda: untyped(LastId)(id="key", order=int), ("<class int>", "orders.integer()")),
    "positional": Mistake(lambda: lookup("key", "1h"), ("Lookup", "positional"), TypeError),
    "no window": Mistake(lambda: lookup(id="key"), ("'window'",), TypeError),
    "windows=": Mistake(lambda: lookup(id="key", windows="1h"), ("'windows'",), TypeError),
    "on_missing_id": Mistake(
        lambda: lookup(id="key", window="1h", on_missing_id="skip"), ("'skip'", "choose process, discard or fail")
    ),
}  # fmt: skip

WINDOW = {
    **{
        f"window={text!r}": Mistake(functools.partial(lookup, id="key", window=text), (repr(text), WINDOWS))
        for text in ("7 days", "7D", "-1d", "1.5h", "", "20000", "7d+", "30min")
    },
    "window='0s'": Mistake(lambda: lookup(id="key", window="0s"), ("window of zero", "Window(days=7)")),
    "window='7d+1h'": Mistake(lambda: lookup(id="key", window="7d+1h"), ("'7d+1h'", "e.g. 1d12h")),
    "window=7": Mistake(lambda: lookup(id="key", window=7), ("window=7 ", "Window(days=7)")),
    "window=None": Mistake(lambda: lookup(id="key", window=None), ("window=None", "Window(days=7)")),
    "window by topic": Mistake(
        lambda: lookup(id="key", window={"orders": "7d"}), ("{'orders': '7d'}", "Windows(default='7d', topics=")
    ),
    "a negative timedelta": Mistake(
        lambda: lookup(id="key", window=dt.timedelta(days=-1)), ("timedelta(days=-1)", "timedelta(days=7)")
    ),
    "Window(7)": Mistake(lambda: window(7), ("Window", "positional"), TypeError),
    "Window(months=1)": Mistake(lambda: window(days=7, months=1), ("'months'",), TypeError),
    "Window(days='7')": Mistake(lambda: window(days="7"), ("Window(days='7')", "Window(days=7)")),
    "Window()": Mistake(window, ("window of zero", "Window(days=7)")),
    "Windows(topics=[...])": Mistake(
        lambda: untyped(Windows)(default="7d", topics=["a"]), ("topics=['a']", "{'orders': Window(days=7)}")
    ),
}  # fmt: skip

RUNNING = "would count as handled before its code has run"
CALLS = {
    "subscribe('orders')": Mistake(
        lambda: with_consumer(lambda c: c.subscribe("orders")), ("'orders'", "subscribe(['orders'])"), TypeError
    ),
    "subscribe([b'orders'])": Mistake(
        lambda: with_consumer(lambda c: c.subscribe([b"orders"])), ("b'orders' is not a topic's name", "give text"),
        TypeError
    ),
    "subscribe(['\\ud800'])": Mistake(
        lambda: with_consumer(lambda c: c.subscribe(["\ud800"])), ("'\\ud800' is not a topic's name", "give text"),
        TypeError
    ),
    "pause(['orders'])": Mistake(
        lambda: with_consumer(lambda c: c.pause(["orders"])),
        ("partitions=['orders']", "TopicPartition('orders', 0"), TypeError
    ),
    "resume(generator)": Mistake(
        lambda: with_consumer(lambda c: c.resume(each for each in list[Any]())),
        ("partitions=<generator>", "a list of"), TypeError
    ),
    "assign(None)": Mistake(
        lambda: with_consumer(lambda c: c.assign(None)), ("partitions=None", "a list of TopicPartition"), TypeError
    ),
    "commit(offsets=['a'])": Mistake(
        lambda: with_consumer(lambda c: c.commit(offsets=["a"])), ("offsets=['a']", "a list of TopicPartition"),
        TypeError
    ),
    "subscribe([])": Mistake(
        lambda: with_consumer(lambda c: c.subscribe([])), ("topics=[]", "subscribe(['orders'])"), KafkaException
    ),
    "subscribe(['orders', 'orders'])": Mistake(
        lambda: with_consumer(lambda c: c.subscribe(["orders", "orders"])),
        ("topics=['orders', 'orders']", "give each topic once"),
        KafkaException,
    ),
    "subscribe(['^('])": Mistake(
        lambda: with_consumer(lambda c: c.subscribe(["^("])), ("topics=['^(']", "without errors"), KafkaException
    ),
    "poll(nan)": Mistake(
        lambda: with_consumer(lambda c: c.poll(float("nan"))),
        ("timeout=nan", "give seconds, e.g. 1.0, or -1 for no limit"),
        ValueError,
    ),
    "consume(1, nan)": Mistake(
        lambda: with_consumer(lambda c: c.consume(1, Decimal("nan"))),
        ("timeout=Decimal('NaN')", "or -1 for no limit"),
        ValueError,
    ),
    "complete(1)": Mistake(
        lambda: with_consumer(lambda c: c.complete(1)), ("message=1", "give a message that poll()"), TypeError
    ),
    "poll('1')": Mistake(lambda: with_consumer(lambda c: c.poll("1")), ("timeout='1'", "give seconds"), TypeError),
    "consume('10')": Mistake(
        lambda: with_consumer(lambda c: c.consume("10")), ("num_messages='10'", "whole number"), TypeError
    ),
    "complete('x')": Mistake(lambda: with_consumer(lambda c: c.complete("x")), ("message='x'", "poll()"), TypeError),
    "complete(None)": Mistake(lambda: with_consumer(lambda c: c.complete(None)), ("message=None", "poll()"), TypeError),
    "complete([...])": Mistake(lambda: with_consumer(lambda c: c.complete([])), ("message=[]", "poll()"), TypeError),
    "commit('x')": Mistake(lambda: with_consumer(lambda c: c.commit("x")), ("message='x'", "poll()"), TypeError),
    "seek((...))": Mistake(
        lambda: with_consumer(lambda c: c.seek(("orders", 0, 5))), ("('orders', 0, 5)", "TopicPartition("), TypeError
    ),
    "stop_on_signals('SIGTERM')": Mistake(
        lambda: with_consumer(lambda c: c.stop_on_signals("SIGTERM").__enter__()), ("'SIGTERM'", "signal.SIGTERM")
    ),
    "async with": Mistake(
        lambda: with_consumer(lambda c: c.__aenter__()), ("DedupConsumer", "'__aenter__'"), AttributeError
    ),
    "run(None)": Mistake(lambda: with_consumer(lambda c: c.run(None)), ("handler=None", "function of a message")),
    "run(async function)": Mistake(
        lambda: with_consumer(lambda c: c.run(handle_async)), ("<function handle_async>", RUNNING, "plain function")
    ),
    "run(async object)": Mistake(
        lambda: with_consumer(lambda c: c.run(AsyncHandler())), ("<AsyncHandler>", RUNNING, "plain function")
    ),
    "run(async partial)": Mistake(
        lambda: with_consumer(lambda c: c.run(functools.partial(handle_async))), (RUNNING, "plain function")
    ),
    "run(generator)": Mistake(
        lambda: with_consumer(lambda c: c.run(handle_each)), ("<function handle_each>", RUNNING, "plain function")
    ),
    "run(function of two)": Mistake(
        lambda: with_consumer(lambda c: c.run(handle_two)),
        ("its arguments are (message, context)", "a function of a message"),
    ),
    "run(on_error=)": Mistake(
        lambda: with_consumer(lambda c: c.run(print, on_error="skip")), ("'skip'", "choose raise, retry or dead-letter")
    ),
    "run(workers='4')": Mistake(
        lambda: with_consumer(lambda c: c.run(print, workers="4")), ("workers='4'", "a number of threads from 1")
    ),
    "run(order=)": Mistake(
        lambda: with_consumer(lambda c: c.run(print, order="partition")), ("'partition'", "choose key or none")
    ),
    "run(dead_letters=) alone": Mistake(
        lambda: with_consumer(lambda c: c.run(print, dead_letters="d")), ("'d'", "choose on_error='dead-letter'")
    ),
    "run(attempts=) alone": Mistake(
        lambda: with_consumer(lambda c: c.run(print, attempts=3)), ("attempts=3", "choose on_error='retry'")
    ),
    "run(retry_on=[...])": Mistake(
        lambda: with_consumer(lambda c: c.run(print, on_error="retry", retry_on=[OSError])),
        ("OSError", "a tuple of them")
    ),
}  # fmt: skip
GROUPS = {
    "configuration": CONFIGURATION, "consumer": CONSUMER, "IDs": IDS, "window": WINDOW, "calls": CALLS,
}  # fmt: skip


@pytest.mark.parametrize(
    "mistake",
    [
        pytest.param(each, id=f"{group}: {name}")
        for group, mistakes in GROUPS.items()
        for name, each in mistakes.items()
    ],
)
def test_a_mistake_gets_one_clear_line(mistake: Mistake) -> None:
    """Where it is made, with the value and the next step, and without names that only this package knows."""
    with pytest.raises(mistake.error) as caught:
        mistake.made()
    said = str(caught.value)
    for part in mistake.says:
        assert part in said
    assert "\n" not in said
    assert len(said) <= MOST_CHARACTERS
    assert not _ADDRESS.search(said)
    assert not _PRIVATE.search(said)


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("file", "is a file; give a folder"),
        ("file/below", "cannot be written: Not a directory; check the path"),
    ],
)
def test_a_store_that_is_no_folder_is_refused(tmp_path: Path, path: str, says: str) -> None:
    """When the consumer is made, not when a partition comes."""
    (tmp_path / "file").touch()
    with pytest.raises(ConfigurationError) as caught:
        consumer(store=tmp_path / path)
    assert str(caught.value).startswith(f"store='{tmp_path / path}' {says}")


@pytest.mark.parametrize(
    ("content", "says"), [(None, "does not exist"), ("", "does not exist"), ("junk", "is not JSON")]
)
def test_a_snapshot_that_cannot_be_read_is_told(
    make: Make, tmp_path: Path, caplog: pytest.LogCaptureFixture, content: str | None, says: str
) -> None:
    """When the consumer is made; it may not need the snapshot, so that it begins."""
    folder = tmp_path / "snapshot"
    if content is not None:
        folder.mkdir()
    if content:
        (folder / "manifest.json").write_text(content)
    make(recovery=Recovery(snapshot=folder))
    [told] = [each for each in caplog.records if each.name == "dedup_sdk"]
    assert told.levelname == "WARNING"
    assert str(folder) in told.getMessage()
    assert says in told.getMessage()


@pytest.mark.parametrize("other", ["memory://bucket/snapshots", "readable"])
def test_one_snapshot_that_can_be_read_is_enough(
    make: Make, send: Send, tmp_path: Path, caplog: pytest.LogCaptureFixture, other: str
) -> None:
    """And URLs are tried only when a partition needs one."""
    place = other
    if other == "readable":
        place = str(tmp_path / "snapshot")
        send("a")
        with make("orders", store=tmp_path / "store") as consumer:
            poll_some(consumer, 1)
        assert run(["snapshot", "--store", str(tmp_path / "store"), "--output", place, "--quiet"]) == 0
    caplog.clear()
    make(recovery=Recovery(snapshot=[tmp_path / "missing", place]))
    assert [each.getMessage() for each in caplog.records if each.name == "dedup_sdk"] == []


def test_a_consumer_without_a_topic_says_so_once(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    """A call for messages waits in vain then, as with the plain client, which says nothing."""
    made = make()
    assert made.poll(0) is None
    assert made.consume(1, 0) == []
    assert [each.getMessage() for each in caplog.records if each.name == "dedup_sdk"] == [
        "no message can come: call subscribe(['orders']) or assign() before you ask for messages"
    ]


def test_a_topic_that_is_missing_is_named(make: Make) -> None:
    """While the loop waits for it: somebody may create it."""
    made = make("no-such-topic")
    event = None
    while event is None:
        event = made.poll(0.1)
    error = event.error()
    assert error is not None
    assert "no-such-topic" in error.str()


def not_called(handle: Callable[[object], object]) -> Callable[[object], object]:
    """A plain function that hides the kind of the other one."""
    return lambda message: handle(message)  # noqa: PLW0108 (that is the mistake)


def wrapped(message: object) -> object:
    """A function whose signature a mock is given."""
    return message


def pair(first: object, second: object) -> object:
    """The wrapped arguments."""
    return first, second


@pytest.mark.parametrize(
    "handler",
    [
        wraps(pair)(lambda message: pair(message, 1)),
        Mock(),
        Mock(spec=wrapped),
        MagicMock(),
        MagicMock(spec=wrapped),
        functools.partial(pair, 1),
        print,
    ],
    ids=["wrapped", "mock", "mock-spec", "magic", "magic-spec", "partial", "print"],
)
def test_a_handler_that_works_is_taken(make: Make, send: Send, handler: Callable[[object], object]) -> None:
    """Whatever `inspect` says of it."""
    send("a")
    made = make("orders")
    run_all(made, handler)
    assert iterate_all(made) == []


@pytest.mark.parametrize(
    "timeout", [Decimal("0.05"), np.float16(0.05), np.float32(0.05), np.int64(0), Fraction(1, 20), None]
)
def test_a_timeout_is_any_number(make: Make, send: Send, timeout: object) -> None:
    """As in the plain client; None waits until something comes."""
    send("a", "b")
    made: Any = make("orders")
    assert poll_some(made, 1)
    assert made.poll(timeout).value() == b"b"


@pytest.mark.parametrize(
    ("handler", "kind"),
    [
        (not_called(handle_async), "coroutine"),
        (not_called(handle_each), "generator"),
        (lambda _: Future(), "Future"),
    ],
)
def test_a_message_whose_handler_has_not_run_is_not_completed(
    make: Make, send: Send, handler: Callable[[object], object], kind: str
) -> None:
    """A function that only makes a coroutine, or a generator, has handled nothing: the message comes again."""
    send("a")
    made = make("orders")
    with pytest.raises(
        TypeError, match=f"^the handler returned a {kind}, so that its code may not have run: give a plain"
    ):
        run_all(made, handler, on_error="dead-letter", wait_initial=0.01)
    assert [message.value() for message in iterate_all(made)] == [b"a"]
