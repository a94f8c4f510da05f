from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Message, cimpl

from dedup_sdk import Lookup, Window
from dedup_sdk._advice import missing_ids
from dedup_sdk._kafka.client.fields import as_record
from tests.support.bridging import copy_all, lying
from tests.support.consuming import lookup, poll_through, run_all
from tests.support.dead_letters import dead_letters

if TYPE_CHECKING:
    from dedup_sdk.testing import MockKafka
    from tests.mock.conftest import Make

_TIMES_TO_BE_FAST = 100
"""Python makes a call fast after some times; a fast one looks less at its arguments."""
_PRODUCER, _FLUSH_MS = 0, 10_000
_END, _TOPIC, _VALUE, _HEADERS = 0, 1, 4, 10


def send_odd(kafka: MockKafka, topic: str, headers: list[tuple[bytes, bytes]]) -> None:
    """Send a record with header names that need not be UTF-8, which the Python client cannot send."""
    # The client's module finds the symbols of the library that it is linked with.
    library = ctypes.CDLL(cimpl.__file__)
    pointer, size = ctypes.c_void_p, ctypes.c_size_t
    for name in ("rd_kafka_conf_new", "rd_kafka_new", "rd_kafka_headers_new"):
        getattr(library, name).restype = pointer
    settings, error = pointer(library.rd_kafka_conf_new()), ctypes.create_string_buffer(512)
    library.rd_kafka_conf_set(settings, b"bootstrap.servers", kafka.bootstrap.encode(), error, size(512))
    producer = pointer(library.rd_kafka_new(_PRODUCER, settings, error, size(512)))
    listed = pointer(library.rd_kafka_headers_new(size(len(headers))))
    for key, value in headers:
        library.rd_kafka_header_add(listed, key, size(len(key)), value, size(len(value)))
    failed = library.rd_kafka_producev(
        producer, _TOPIC, topic.encode(), _VALUE, b"v", size(1), _HEADERS, listed, _END
    )
    assert not failed
    assert not library.rd_kafka_flush(producer, _FLUSH_MS)
    library.rd_kafka_destroy(producer)


@pytest.mark.parametrize("by", ["header:dedup-id", "value"])
@pytest.mark.parametrize("read", [True, False])
def test_a_header_name_that_is_not_utf_8_costs_only_itself(
    *, make: Make, kafka: MockKafka, by: Any, read: bool
) -> None:
    """The message's other headers are read, its ID among them.

    Its dead letter has them, even where the handler read them first.
    """
    send_odd(kafka, "orders", [(b"dedup-id", b"7"), (b"\xff\xfe", b"x"), (b"trace", b"<NULL>")])

    def handle(message: Any) -> None:
        if read:
            message.headers()
        raise ValueError("no")

    for _ in range(_TIMES_TO_BE_FAST):
        as_record(Message(topic="orders", headers=[("dedup-id", b"1")]))
    consumer = make("orders", dedup=Lookup(id=by, window=Window(days=7)))
    run_all(consumer, handle, on_error="dead-letter", attempts=1)

    (sent,) = dead_letters(kafka.bootstrap)
    assert [*(sent.headers() or ())][:2] == [("dedup-id", b"7"), ("trace", b"<NULL>")]
    assert consumer.counters.verdicts["unkeyed"] == 0


def test_a_bridge_says_which_headers_it_cannot_carry(
    kafka: MockKafka, caplog: pytest.LogCaptureFixture
) -> None:
    """It copies the record without them, counts them, and names the first record of a topic that has some."""
    kafka.create_topic("copies")
    for number in range(3):
        odd = [(b"\xff\xfe", b"x"), (b"\xfe", b"y")] if number else []
        send_odd(kafka, "orders", [(b"dedup-id", b"%d" % number), *odd])
    counted = copy_all(kafka.bootstrap, kafka.bootstrap, rename="copies")
    assert (counted.copied, counted.named, counted.nameless_headers) == (3, 0, 4)
    got = sorted(each.ident or b"" for each in lying(kafka.bootstrap, "copies"))
    assert got == [b"0", b"1", b"2"]
    [line] = [each.getMessage() for each in caplog.records if "not UTF-8" in each.getMessage()]
    assert "@1 has 2 headers" in line


def test_the_warning_of_missing_ids_names_the_readable_headers(
    make: Make, kafka: MockKafka, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A name that is not UTF-8 is left out there, too."""
    monkeypatch.setattr(missing_ids, "RECORDS", 3)
    for _ in range(4):
        send_odd(kafka, "orders", [(b"\xff\xfe", b"x"), (b"trace", b"1")])
    consumer = make("orders", dedup=lookup(id="header:dedup-id"))
    assert len(poll_through(consumer, "orders")) == 4
    [warning] = [each.getMessage() for each in caplog.records if "have no ID" in each.getMessage()]
    assert "these records have the headers 'trace':" in warning
