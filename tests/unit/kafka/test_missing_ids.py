"""The warning for an ID spec that does not fit a topic."""

from __future__ import annotations

from typing import Any, cast

import pytest
from confluent_kafka import Message

from dedup_sdk import Record, Window, header, id_spec
from dedup_sdk._advice.missing_ids import LEAST, RECORDS, WAIT_S, MissingIds
from dedup_sdk.ids import Ids, IdSpec, RecordFields, function, json, key
from dedup_sdk.ids._columns import FailedCall, ReadOnce

FAILED = FailedCall("orders[0]@7", "order_id (shop.py:3)", "KeyError: 'id'")


def note(
    watch: MissingIds, topic: str, count: int, *, missing: int, headers: tuple[str, ...] = (), **more: Any
) -> None:
    """Have it see a batch of a topic of which the last ``missing`` records have no ID, for a ``reason``."""
    value, reason, failures = (more.get(name) for name in ("value", "reason", "failures"))
    message = Message(value=value, headers=[(name, b"1") for name in headers] if headers else None)
    messages: list[Any] = [message] * count
    reasons = dict.fromkeys(range(count - missing, count), reason or "absent")
    watch.note([topic] * count, messages, Ids([b"x" * 16] * count, reasons), failures)


def watch_of(spec: IdSpec, now_s: list[float] | None = None) -> MissingIds:
    """One that sees no topic yet; the topic "off" needs no IDs."""
    windows = lambda topic: Window.off() if topic == "off" else Window(days=1)  # noqa: E731
    return MissingIds(spec, windows, clock=lambda: now_s[0] if now_s else 0.0)


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The warnings."""
    assert {record.levelname for record in caplog.records} <= {"WARNING"}
    return [record.getMessage() for record in caplog.records]


@pytest.fixture
def watch() -> MissingIds:
    """One by the header "Id"."""
    return watch_of(header("Id"))


@pytest.mark.parametrize(("missing", "warned"), [(900, False), (901, True)])
def test_more_than_nine_of_ten(
    watch: MissingIds, caplog: pytest.LogCaptureFixture, missing: int, *, warned: bool
) -> None:
    """Of the first 1,000, over several batches."""
    note(watch, "orders", 600, missing=600, headers=("id", "trace"))
    assert (watch.counting, caplog.records) == (True, [])
    note(watch, "orders", 400, missing=missing - 600)
    assert watch.counting is False
    assert [record.levelname for record in caplog.records] == ["WARNING"] * warned
    if warned:
        assert caplog.records[0].getMessage() == (
            "orders: 901 of 1000 records have no ID by header:Id (absent: 901), so their duplicates are not "
            "recognised; these records have the headers 'id', 'trace': correct the ID spec, or the producer"
        )


def test_it_is_said_once_for_each_topic(watch: MissingIds, caplog: pytest.LogCaptureFixture) -> None:
    """Also where both come in one batch; a topic that remembers nothing needs no IDs."""
    for _ in range(3):
        for topic in ("orders", "payments", "off"):
            note(watch, topic, RECORDS, missing=RECORDS)
    assert [line.split(":")[0] for line in said(caplog)] == ["orders", "payments"]
    assert all("have no headers: correct" in line for line in said(caplog))


def test_only_records_since_the_first_one_without_an_id_count(
    watch: MissingIds, caplog: pytest.LogCaptureFixture
) -> None:
    """A producer that goes wrong later is noticed, too."""
    note(watch, "orders", 5, missing=0)
    note(watch, "orders", RECORDS, missing=RECORDS)
    assert len(caplog.records) == 1


def test_hostile_header_names_are_bounded(watch: MissingIds, caplog: pytest.LogCaptureFixture) -> None:
    """So many are named, each cut; else a topic could fill the memory, or the log."""
    messages: list[Any] = [
        Message(headers=[(f"{row}-{number}-" + "x" * 10_000, b"") for number in range(3)])
        for row in range(RECORDS)
    ]
    watch.note(["orders"] * RECORDS, messages, Ids([None] * RECORDS, dict.fromkeys(range(RECORDS), "absent")))
    [record] = caplog.records
    assert record.getMessage().count("-xxx") == 12
    assert ", ...: correct the ID spec" in record.getMessage()
    assert len(record.getMessage()) < 2_000


@pytest.mark.parametrize(("count", "warned"), [(LEAST - 1, False), (LEAST, True)])
@pytest.mark.parametrize("ends", [True, False])
def test_a_small_topic_is_warned_of(
    caplog: pytest.LogCaptureFixture, count: int, *, warned: bool, ends: bool
) -> None:
    """When its partitions end, or after a minute; once, and not because another topic ends."""
    now_s = [0.0]
    watch = watch_of(header("Id"), now_s)
    note(watch, "orders", count, missing=count)
    watch.look({"payments"})
    now_s[0] = WAIT_S - 1
    watch.look()
    assert said(caplog) == []
    now_s[0] += not ends
    for _ in range(2):
        watch.look({"orders"} if ends else ())
    assert [line.partition(" by ")[0] for line in said(caplog)] == [
        f"orders: {count} of {count} records have no ID"
    ] * warned
    note(watch, "orders", RECORDS, missing=RECORDS)
    assert len(said(caplog)) == 1


def test_a_small_topic_with_ids_is_looked_at_on(watch: MissingIds, caplog: pytest.LogCaptureFixture) -> None:
    """One of ten records with an ID is enough to wait for a thousand."""
    note(watch, "orders", 100, missing=90)
    watch.look({"orders"})
    assert (said(caplog), watch.counting) == ([], True)
    note(watch, "orders", 900, missing=900)
    assert [line[:23] for line in said(caplog)] == ["orders: 990 of 1000 rec"]


def test_the_first_exception_is_told_at_once(caplog: pytest.LogCaptureFixture) -> None:
    """Once, where IDs are needed; the summary has an example of its own topic, and names no headers."""
    watch = watch_of(function(lambda record: record.topic, name="order-id", version="1"))
    note(watch, "off", 1, missing=1, reason="failed", failures={"off": FAILED})
    assert said(caplog) == []
    for topic in ("orders", "payments"):
        failure = FAILED._replace(place=f"{topic}[0]@7")
        note(watch, topic, 20, missing=20, reason="failed", headers=("id",), failures={topic: failure})
    [line] = said(caplog)
    assert line == (
        "orders[0]@7 has no ID by function:order-id@1: order_id (shop.py:3) raised KeyError: 'id'; correct the "
        "function, or have it return None for a record without an ID (later errors are only counted, as "
        "unkeyed.failed)"
    )
    watch.look({"payments"})
    _, line = said(caplog)
    assert line == (
        "payments: 20 of 20 records have no ID by function:order-id@1 (failed: 20), so their duplicates are not "
        "recognised; e.g. at payments[0]@7, order_id (shop.py:3) raised KeyError: 'id': correct the function"
    )


@pytest.mark.parametrize(
    ("spec", "reason", "value", "remedy"),
    [
        (json("/id"), "malformed", b"\0\0\0\0\1x", "see docs/schema-registry.md"),
        (json("/id"), "malformed", b"<id>", "these values are not JSON in UTF-8: correct"),
        (json("/id"), "absent", b"{}", "not recognised; correct the ID spec"),
        (id_spec("cloudevents"), "malformed", b"x", "these values are not JSON in UTF-8: correct"),
        (id_spec("cloudevents"), "absent", b"x", "these records have the headers 'id': correct"),
        (key(), "absent", b"x", "not recognised; correct the ID spec"),
        (function(repr, name="n", version="1"), "not-scalar", b"x", "the function has to return a str or an int"),
        (function(repr, name="n", version="1"), "absent", b"x", "not recognised; correct the ID spec"),
    ],
)  # fmt: skip
def test_the_remedy_is_that_of_the_reason(
    caplog: pytest.LogCaptureFixture, spec: IdSpec, reason: str, value: bytes, remedy: str
) -> None:
    """Headers are named only where the spec reads them."""
    watch = watch_of(spec)
    note(watch, "orders", 20, missing=20, headers=("id",), reason=reason, value=value)
    watch.look({"orders"})
    [line] = said(caplog)
    assert remedy in line
    assert ("headers" in line) == ("headers" in remedy)


class UnprintableError(Exception):
    """Its text is another error."""

    def __str__(self) -> str:
        raise ValueError


@pytest.mark.parametrize(
    ("error", "shown"),
    [
        (KeyError("id"), "KeyError: 'id'"),
        (ValueError("two\n  lines, and \x1b[31m"), "ValueError: two lines, and [31m"),
        (ValueError("x" * 1_000), "ValueError: " + "x" * 300),
        (RuntimeError(), "RuntimeError"),
        (UnprintableError(), "UnprintableError: <str() of the error raised ValueError>"),
    ],
)
def test_the_exception_of_a_function_is_kept_as_text(error: Exception, shown: str) -> None:
    """The first one of each topic, with the record, the function and its line."""

    def boom(record: Record) -> str:
        if record.offset:
            raise LookupError
        raise error

    fields = ReadOnce(RecordFields([Record("orders", 3, offset) for offset in range(2)]))
    assert function(boom, name="n", version="1").digests(fields).missing == {0: "failed", 1: "failed"}
    line = boom.__code__.co_firstlineno + 3
    assert fields.failures == {"orders": ("orders[3]@0", f"boom (test_missing_ids.py:{line})", shown)}


def test_a_function_without_python_code_has_no_line() -> None:
    """Its name is told."""
    fields = ReadOnce(RecordFields([Record("orders", 3, 0)]))
    function(cast("Any", len), name="n", version="1").digests(fields)
    assert fields.failures["orders"].function == "len"


class Nameless(type):
    """A class of classes whose names cannot be read."""

    @property
    def __name__(cls) -> str:  # type: ignore[override]
        """No name."""
        raise ZeroDivisionError


class Odd:
    """A callable whose name is no text, and which raises an exception whose class has no name."""

    __name__ = None

    def __call__(self, _: Record) -> str:
        """Fail."""
        raise Nameless("NoName", (ValueError,), {})("password=hunter2")


def test_whatever_a_function_is_and_raises_its_record_has_no_id() -> None:
    """Texts that cannot be made stop nothing."""
    fields = ReadOnce(RecordFields([Record("orders", 3, 0)]))
    assert function(Odd(), name="n", version="1").digests(fields).missing == {0: "failed"}
    [(topic, failure)] = fields.failures.items()
    assert (topic, failure.error) == ("orders", "an exception: password=***")


def test_secrets_in_an_exception_are_masked(caplog: pytest.LogCaptureFixture) -> None:
    """Its text is other people's."""

    def leaks(_: Record) -> str:
        raise ValueError("https://u:pw@h/ password=hunter2")

    spec = function(leaks, name="n", version="1")
    fields = ReadOnce(RecordFields([Record("orders", 3, 0)]))
    found = spec.digests(fields)
    looking = MissingIds(spec, lambda _: Window(days=7))
    looking.note(["orders"], [Message(topic="orders")], Ids([None], found.missing), fields.failures)
    assert "hunter2" not in caplog.text
    assert "u:pw" not in caplog.text
    assert "ValueError" in caplog.text
