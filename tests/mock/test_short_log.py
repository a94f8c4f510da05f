"""A log that ends before the place up to which recovery reads it, or begins behind the place that it reads next."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer

from dedup_sdk import MemoryStore, PartitionEvent, VerdictEvent, header
from dedup_sdk._kafka.client import reader as reader_module
from dedup_sdk._kafka.client.reader import Readers, TailReader
from dedup_sdk._kafka.client.settings import client_settings
from tests.support.consuming import numbers, poll_quiet, poll_some, values

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dedup_sdk.testing import MockKafka
    from tests.mock.conftest import Make, Send

SPEC = header("dedup-id")
BEYOND = 10


@pytest.fixture
def reader(kafka: MockKafka) -> Iterator[TailReader]:
    """A reader of a partition."""
    config = {"bootstrap.servers": kafka.bootstrap, "group.id": "g", "log_level": 0}
    readers = Readers(client_settings(config))
    opened = TailReader(readers, "orders", 0)
    yield opened
    opened.close()
    readers.close()


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A silence becomes an error soon."""
    monkeypatch.setattr(reader_module, "SILENCE_S", 60.0)


def read(reader: TailReader, start: int, end: int) -> list[int]:
    """The offsets that a replay reads."""
    return [offset for piece in reader.slices(start, end, SPEC) if piece for offset in piece.offsets]


def test_a_replay_ends_where_the_log_does(reader: TailReader, send: Send) -> None:
    """It does not wait for records that nobody will write."""
    send("a", "b", "c")
    assert read(reader, 0, BEYOND) == [0, 1, 2]


def test_a_replay_beyond_the_end_of_the_log_ends(reader: TailReader, send: Send) -> None:
    """The log was cut back behind the next read: the client says that the offset is out of range."""
    send("a", "b", "c")
    assert read(reader, BEYOND - 2, BEYOND) == []


def test_the_newest_timestamp_is_that_of_what_is_left(reader: TailReader, send: Send) -> None:
    """Where the window begins is looked for in the rest of the log."""
    before_ms = int(time.time() * 1000) - 1
    send("a", "b", "c")
    newest_ms: list[int | None] = []

    def ask() -> Iterator[None]:
        newest_ms.append((yield from reader.newest_before(BEYOND, 0)))

    assert all(step is None for step in ask())
    assert newest_ms[0] is not None
    assert newest_ms[0] >= before_ms


def test_a_log_that_only_seems_to_end_is_waited_for(
    reader: TailReader, send: Send, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker's word counts, and not that nothing more came: its records are read."""
    send("a", "b", "c")
    monkeypatch.setattr(TailReader, "bounds", lambda _: (0, BEYOND))
    pieces = reader.slices(0, 4, SPEC)
    deadline = time.monotonic() + 3
    offsets: list[int] = []
    while time.monotonic() < deadline or len(offsets) < 3:
        piece = next(pieces)
        offsets += piece.offsets if piece else []
    assert offsets == [0, 1, 2]
    send("d")
    assert [offset for piece in pieces if piece for offset in piece.offsets] == [3]


def test_a_log_that_ends_nowhere_is_waited_for(
    reader: TailReader, send: Send, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A broker that has more and does not give it now is not taken for a log that was cut, nor for an error.

    The log tells of it.
    """
    send("a")
    monkeypatch.setattr(TailReader, "bounds", lambda _: (0, BEYOND))
    monkeypatch.setattr(reader_module, "SILENCE_S", 0.5)
    offsets: list[int] = []
    for piece in reader.slices(0, BEYOND, SPEC):
        offsets += piece.offsets if piece else []
        if caplog.text.count("no record arrived from offset 1") == 2:
            break
    assert offsets == [0]


@pytest.mark.parametrize("few", [3, 1_000])
def test_a_replay_reads_each_record_once(
    kafka: MockKafka, send: Send, monkeypatch: pytest.MonkeyPatch, few: int
) -> None:
    """Also where the client returns some of them twice, in one fetch or in two: each counts once in a count window."""
    send(*map(str, range(20)))

    class Repeating(Consumer):
        def consume(self, num_messages: int = 1, timeout: float = -1) -> list[Any]:
            came = super().consume(min(num_messages, few), timeout)
            records = [each for each in came if each.error() is None]
            before, last[:] = last[:], records[-2:]
            return [*before, *came, *records[-1:]]

    last: list[Any] = []
    monkeypatch.setattr(reader_module, "Consumer", Repeating)
    readers = Readers(
        client_settings({"bootstrap.servers": kafka.bootstrap, "group.id": "g", "log_level": 0})
    )
    opened = TailReader(readers, "orders", 0)
    assert read(opened, 0, 20) == [*range(20)]
    opened.close()
    readers.close()


class Retention:
    """An observer that deletes records when a replay is about to read them."""

    def __init__(self, kafka: MockKafka, before: int) -> None:
        self._kafka, self._before = kafka, before

    def __call__(self, event: VerdictEvent) -> None:
        """Let a verdict pass."""

    def partition_event(self, event: PartitionEvent) -> None:
        """Delete the records, once."""
        if event.name == "recovery-started":
            self._kafka.delete_records(event.topic, event.partition, self._before)


@pytest.mark.parametrize("before", [6, 10])
def test_retention_that_overtakes_a_replay_has_coverage_begin_later(
    make: Make, send: Send, kafka: MockKafka, caplog: pytest.LogCaptureFixture, before: int
) -> None:
    """No call raises: IDs of deleted records are in doubt, as if the log had begun there before."""
    send(*numbers(0, 10))
    with make("orders") as first:
        assert values(poll_some(first, 10)) == numbers(0, 10)
    second = make("orders", store=MemoryStore(), observers=[Retention(kafka, before)])
    assert poll_quiet(second) == []
    assert "recovery-repeated" in {getattr(record, "event", None) for record in caplog.records}
    assert second.partition_statuses[0].hindrances == ("uncovered",)
    send("1", "9", "new")
    assert values(poll_quiet(second)) == (["1", "9", "new"] if before == 10 else ["1", "new"])
    assert second.counters.verdicts["fresh"] == 0
