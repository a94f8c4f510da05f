"""A topic with everything odd that a log can have, a group that lives through it in bursts, and what it must know.

Partitions are skewed, and the last one is empty for long. Transactions are committed, aborted, or open for some time,
with records behind them. There are duplicates, tombstones, IDs that are absent, null, empty, long, repeated or no text,
and dead letters of the group itself, some of which are sent back: to the group, twice, or to another group.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np
from confluent_kafka import Producer

from dedup_sdk import Recovery
from dedup_sdk._commit_text import parse_metadata
from dedup_sdk._marks import Marks
from dedup_sdk._store.backup import snapshot_store
from dedup_sdk._store.fingerprint import fingerprint
from dedup_sdk._store.paths import list_partitions
from dedup_sdk.ids import digest_one
from dedup_sdk.ids._redrive import REDRIVE_HEADER, redrive_prefix, redrive_value, redriven_digest
from tests.support.consuming import (
    PATIENCE_S,
    active,
    committed,
    make_consumer,
    poll_some,
    replayed,
    wait_for,
)
from tests.support.dead_letters import dead_letters
from tests.support.producing import Outgoing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from dedup_sdk._store.manifest import Manifest
    from tests.support.brokers import Broker

PARTITIONS = 4
BASE_MS = 1_700_000_000_000
_STEP_MS = 50
_ID = "dedup-id"
_IDLE_S = 0.5
_OTHERS = "another group"


class Sighting(NamedTuple):
    """A record of the log that committed readers see: where and when, and its ID in the eyes of the group."""

    partition: int
    offset: int
    timestamp_ms: int
    digest: bytes | None


class OddTopic:
    """The topic, its group with a store of its own, and what the group has to know. A context manager."""

    def __init__(self, broker: Broker, name: str, folder: Path, seed: int) -> None:
        self.bootstrap, self.folder, self.store = broker.bootstrap, folder, folder / "store"
        # The records are old: without this the broker would delete them some time.
        self.topic = broker.create_topic(name, PARTITIONS, {"retention.ms": "-1"})
        self.letters = broker.create_topic(f"{name}-letters", 1)
        self.group = f"{name} & co"
        self._draw, self._number, self._bursts = Random(seed), 0, 0
        self._seen: list[Sighting] = []
        self._undecided: list[Sighting] = []
        self._sent_back: set[bytes] = set()
        self.letters_sent_back = 0
        plain = {"bootstrap.servers": broker.bootstrap, "linger.ms": 1, "max.in.flight": 1, "log_level": 2}
        self._plain = Producer(plain)
        # Longer than any test lives: the broker does not decide in the place of the test.
        self._units = Producer({**plain, "transactional.id": name, "transaction.timeout.ms": 600_000})
        self._units.init_transactions(PATIENCE_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._undecided:
            self._units.abort_transaction(PATIENCE_S)

    @property
    def given(self) -> list[str]:
        """The options of the job for this topic and group."""
        whose = ["--bootstrap", self.bootstrap, "--topic", self.topic, "--group", self.group]
        return [*whose, "--id", f"header:{_ID}", "--window", "7d"]

    def burst(self, *, commits: bool) -> None:
        """Send records; ``commits``: what the open transaction of the burst before becomes. One is open at the end."""
        if self._undecided:
            self._end(commits=commits)
        self._send(self._plain, self._records(150))
        for ends_well, name in ((True, b"kept"), (False, b"gone")):
            self._begin(self._records(30, name=name))
            self._end(commits=ends_well)
        # What was aborted is sent again now and then.
        self._send(self._plain, [*self._records(5, name=b"gone"), *self._redriven(), *self._records(40)])
        self._begin([each for each in self._records(60) if each.partition == 1])
        self._send(self._plain, self._records(40))
        self._bursts += 1

    def live(self) -> None:
        """Have the group handle all that committed readers see; some of it becomes dead letters."""
        ends = self._visible_ends()

        def handle(message: Any) -> None:
            if message.value() == b"bad" and REDRIVE_HEADER not in _named(message):
                raise ValueError("no")

        def is_over() -> bool:
            found = {each.partition: each.position or 0 for each in consumer.partition_statuses}
            return all(found.get(partition, -1) >= end for partition, end in ends.items())

        with self._consumer(self.store, idle_timeout=_IDLE_S) as consumer:
            over = False
            while not over:
                over = is_over()
                consumer.run(
                    handle,
                    on_error="dead-letter",
                    dead_letters=self.letters,
                    attempts=1,
                    workers=3,
                    order="none",
                )
            counters = consumer.counters
            assert counters.verdicts["duplicate"] > 0
            assert counters.dead_lettered > 0

    def live_in_part(self) -> None:
        """Have the group complete some of it, in disorder and with gaps, above which it cannot commit."""
        with self._consumer(self.store, completion="explicit") as consumer:
            held = poll_some(consumer, 80)
            late = [*held[:30], *(each for number, each in enumerate(held[30:]) if number % 9)]
            self._draw.shuffle(late)
            for message in late:
                consumer.complete(message)
        assert any(text is not None and text.done for text in map(self._commit_text, range(PARTITIONS)))

    def snapshot_of_life(self) -> Manifest:
        """The snapshot ``lived`` of the group's own store."""
        return self._snapshot(self.store, "lived")

    def snapshot_of_replay(self) -> Manifest:
        """The snapshot ``replayed`` of a store of the group that began empty, and was replayed up to the commits."""
        with self._consumer(self.folder / "empty") as consumer:
            came = wait_for(consumer, lambda: len(active(consumer)) == PARTITIONS, "all partitions")
            assert not came
            assert all(replayed(consumer, self.topic, number) for number in range(PARTITIONS))
        return self._snapshot(self.folder / "empty", "replayed")

    def snapshot_of_installed(self, snapshot: Path) -> Manifest:
        """The snapshot ``installed`` of a store of the group that began empty, with a snapshot."""
        with self._consumer(self.folder / "new", recovery=Recovery(snapshot=snapshot)) as consumer:
            came = wait_for(consumer, lambda: len(active(consumer)) == PARTITIONS, "all partitions")
            assert not came
            assert not any(replayed(consumer, self.topic, number) for number in range(PARTITIONS))
        return self._snapshot(self.folder / "new", "installed")

    def cuts(self) -> dict[int, int]:
        """By partition the offset that the group has committed; partitions without one are left out."""
        found = {
            number: committed(self.bootstrap, self.group, self.topic, number).offset
            for number in range(PARTITIONS)
        }
        return {number: offset for number, offset in found.items() if offset >= 0}

    def must_know(self) -> dict[int, tuple[int, str]]:
        """By partition the commit, and the fingerprint of the last sighting of each ID before it, by a plain loop."""
        cuts = self.cuts()
        marks: dict[int, dict[bytes, tuple[int, int]]] = {number: {} for number in cuts}
        for each in sorted(self._seen, key=lambda each: each.offset):
            if each.digest is not None and each.offset < cuts.get(each.partition, -1):
                marks[each.partition][each.digest] = each.offset, each.timestamp_ms
        return {partition: (cut, _fingerprint(marks[partition])) for partition, cut in cuts.items()}

    def _records(self, count: int, *, name: bytes = b"order") -> list[Outgoing]:
        return [self._record(name) for _ in range(count)]

    def _record(self, name: bytes) -> Outgoing:
        draw = self._draw
        ident = b"hot" if draw.random() < 0.2 else b"%s-%d" % (name, draw.randrange(160) + 80 * self._bursts)
        odd: list[list[tuple[str, bytes | None]]] = [
            [],
            [(_ID, None)],
            [(_ID, ident), (_ID, None)],
            [(_ID, b"")],
            [(_ID, b"first"), ("other", b"x"), (_ID, ident)],
            [(_ID, ident[-1:] * 5_000)],
            [(_ID, b"\xff\x00\xfe" + ident[-1:])],
        ]
        self._number += 1
        return Outgoing(
            value=draw.choice([None, b"", b"bad", *[b"good"] * 17]),
            key=draw.choice([None, ident]),
            headers=draw.choice(odd) if draw.random() < 0.2 else [(_ID, ident)],
            partition=draw.choices(range(PARTITIONS), (70, 20, 9, 3 if self._bursts > 1 else 0))[0],
            timestamp_ms=BASE_MS + _STEP_MS * self._number - draw.choice((0, 0, 0, 3_000)),
        )

    def _redriven(self) -> list[Outgoing]:
        """Dead letters that were not sent back before, as tools send them back."""
        if not self._bursts:
            return []
        found: list[Outgoing] = []
        letters = {_named(each)[REDRIVE_HEADER]: each for each in dead_letters(self.bootstrap, self.letters)}
        for number, value in enumerate(sorted(letters.keys() - self._sent_back)):
            letter = letters[value]
            theirs = redrive_value(_OTHERS, self.topic, 0, number, BASE_MS)
            changed = {REDRIVE_HEADER: theirs} if number % 4 == 3 else {}
            self._number += 1
            sent_back = Outgoing(
                value=letter.value(),
                key=letter.key(),
                headers=[(name, changed.get(name, text)) for name, text in _headers(letter)],
                partition=int(_named(letter)["dedup-dead-letter-partition"]),
                timestamp_ms=BASE_MS + _STEP_MS * self._number,
            )
            found += [sent_back] * (2 if number % 4 == 1 else 1)
        self._sent_back |= letters.keys()
        self.letters_sent_back += len(found)
        return found

    def _begin(self, records: Iterable[Outgoing]) -> None:
        self._units.begin_transaction()
        self._undecided = self._sent(self._units, records)

    def _end(self, *, commits: bool) -> None:
        (self._units.commit_transaction if commits else self._units.abort_transaction)(PATIENCE_S)
        self._seen += self._undecided if commits else []
        self._undecided = []

    def _send(self, producer: Producer, records: Iterable[Outgoing]) -> None:
        self._seen += self._sent(producer, records)

    def _sent(self, producer: Producer, records: Iterable[Outgoing]) -> list[Sighting]:
        found: list[Sighting] = []

        def told(record: Outgoing) -> Callable[[Any, Any], None]:
            def delivered(error: Any, message: Any) -> None:
                assert error is None, error
                position = message.partition(), message.offset()
                found.append(Sighting(*position, record.timestamp_ms, self._digest(record)))

            return delivered

        count = 0
        for each in records:
            assert isinstance(each.headers, list)
            producer.produce(
                self.topic, each.value, each.key, each.partition, on_delivery=told(each),
                timestamp=each.timestamp_ms, headers=[(name, text) for name, text in each.headers],
            )  # fmt: skip
            count += 1
        assert producer.flush(PATIENCE_S) == 0
        assert len(found) == count
        return found

    def _digest(self, record: Outgoing) -> bytes | None:
        """The ID of a record in the eyes of the group, as the documents say it."""
        named = dict(record.headers)
        ident, back = named.get(_ID), named.get(REDRIVE_HEADER)
        if ident is None:
            return None
        plain = digest_one(ident)
        return redriven_digest(plain, back) if back and back.startswith(redrive_prefix(self.group)) else plain

    def _visible_ends(self) -> dict[int, int]:
        """By partition the offset behind the last record that committed readers see now."""
        bounds = {
            each.partition: each.offset for each in sorted(self._undecided, key=lambda each: -each.offset)
        }
        visible = [
            each
            for each in sorted(self._seen, key=lambda each: each.offset)
            if each.offset < bounds.get(each.partition, 2**63)
        ]
        return {each.partition: each.offset + 1 for each in visible}

    def _consumer(self, store: Path, **options: Any) -> Any:
        consumer = make_consumer(self.bootstrap, self.group, store, recent_marks=20, **options)
        consumer.subscribe([self.topic])
        return consumer

    def _commit_text(self, partition: int) -> Any:
        now = committed(self.bootstrap, self.group, self.topic, partition)
        return parse_metadata(now.metadata, committed=now.offset)

    def _snapshot(self, store: Path, name: str) -> Manifest:
        return snapshot_store(list_partitions(store), store, self.folder / name)


def _headers(message: Any) -> list[tuple[str, bytes | None]]:
    return message.headers() or []


def _named(message: Any) -> dict[str, bytes]:
    return {name: text for name, text in _headers(message) if text is not None}


def _fingerprint(marks: dict[bytes, tuple[int, int]]) -> str:
    columns = np.asarray([*marks.values()], np.int64).reshape(-1, 2)
    return fingerprint([Marks(b"".join(marks), columns[:, 0], columns[:, 1])])
