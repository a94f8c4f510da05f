"""Topics that a group lived through: the rules, their logs, the life, and where the same history can be read again."""

from __future__ import annotations

import random
import uuid
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple

from dedup_adapters import artemis
from dedup_sdk import Deduplicator, LastId, Lookup, Record, Recovery, Window, header, id_spec, orders
from dedup_sdk._store.backup import snapshot_store
from dedup_sdk._store.paths import list_partitions
from dedup_sdk._store.snapshot import read_snapshot
from dedup_sdk.ids import key
from dedup_sdk.ids._redrive import REDRIVE_HEADER, redrive_value
from dedup_sdk.shared import ClaimKind
from dedup_sdk.shared._scope import scope_name, scoped_ids
from spark_backfill.archive_options import KAFKA
from tests.support.archives import write_json_lines, write_parquet
from tests.support.consuming import make_consumer, poll_some, poll_through, replayed, run_through
from tests.support.known_marks import newest_of
from tests.support.lives import in_window
from tests.support.producing import outgoing, produce
from tests.support.surviving import copy_at_one_moment
from tests.support.unit_logs import unit_log
from tests.support.unit_world import record_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from dedup_sdk._store.manifest import Manifest, PartitionManifest
    from dedup_sdk._strategy import Strategy
    from dedup_sdk.shared import ClaimStore
    from tests.support.brokers import Broker
    from tests.support.known_marks import Kept

BASE_MS = 1_700_000_000_000
PARTITIONS = (0, 1)
ARCHIVE = ("--archive-isolation", "read_committed")
JSON = (
    "--format",
    "json",
    "--columns",
    "timestamp=ts:ms,key=key:base64,value=value:base64,headers=headers:base64",
)
_IDLE_S = 0.5
_NOW_S = BASE_MS / 1_000 + 10**6
_SERVERS = ("3e11fa47-71ca-11e1-9e33-c80aa9429562", "2174b383-5441-11e8-b90a-c80aa9429562")
Position = tuple[int, int]
"""Partition and offset."""


class Said(NamedTuple):
    """A strategy, and the options that say the same to the job."""

    strategy: Strategy
    options: tuple[str, ...]


def looked_up(id: str, window: str, **more: Any) -> Said:  # noqa: A002 (as the option is called)
    """IDs that are looked up, in a window."""
    unit = ("--unit", "header:dedup-unit", "--unit-mode", more["unit_mode"]) if more else ()
    strategy = Lookup(id=id_spec(id), window=Window.parse(window), **more)
    return Said(strategy, ("--id", id, "--window", window, *unit))


def in_units(window: str, mode: str = "all-or-nothing") -> Said:
    """The same for records that belong to units."""
    return looked_up("header:dedup-id", window, unit=header("dedup-unit"), unit_mode=mode)


ID_CACHE = Said(artemis.duplicate_detection(id=key(), id_cache_size=60), ("--id", "key", "--window", "60n"))
_BY_GTID = LastId(id=header("gtid"), order=orders.mysql_gtid(), source=header("producer"), reorder_depth=6)
GTIDS = Said(
    _BY_GTID,
    ("--id", "header:gtid", "--order", "mysql-gtid", "--source-id", "header:producer", "--reorder-depth", "6"),
)  # fmt: skip
SEQUENCES = Said(
    LastId(id=header("sequence"), order=orders.integer(), source=id_spec("key")),
    ("--id", "header:sequence", "--order", "integer", "--source-id", "key"),
)
SECOND = Said(
    replace(_BY_GTID, otherwise=Lookup(id=header("other"), window=Window(days=40))),
    (*GTIDS.options, "--otherwise", "header:other", "--otherwise-window", "40d"),
)


# --- logs: by offset, without holes ----------------------------------------------------------------------------


def singles(group: str, count: int, *, step_ms: int = 50) -> list[Record]:
    """Duplicates near and far, records without an ID, late ones, and letters that were sent back.

    To this group, to another one, some of them twice.
    """
    found = []
    for partition in PARTITIONS:
        draw, log = Random(partition), list[Record]()
        for number in range(count):
            ident = b"%d" % draw.randrange(120)
            named = [("dedup-id", ident)] if draw.random() > 0.05 else []
            log.append(
                Record(
                    "",
                    partition,
                    0,
                    0,
                    ident if draw.random() > 0.05 else None,
                    b'{"id": "%s"}' % ident,
                    [*named, ("sequence", b"%d" % (number // 2))],
                )
            )
            log += _sent_back(draw, log, group, ["another group"])
        found += [
            _placed(each, offset, step_ms * draw.choice((0, 0, 0, 2))) for offset, each in enumerate(log)
        ]
    return [replace(each, timestamp_ms=BASE_MS + step_ms * each.offset - each.timestamp_ms) for each in found]


def _placed(record: Record, offset: int, late_ms: int = 0) -> Record:
    return replace(record, offset=offset, timestamp_ms=late_ms)


def _sent_back(draw: Random, log: Sequence[Record], group: str, others: Sequence[str]) -> list[Record]:
    """One of the last records as a dead letter that was sent back, or nothing."""
    back = draw.random()
    if back > 0.2:
        return []
    failed = draw.choice(log[-30:])
    whose = group if back < 0.12 or not others else draw.choice(others)
    value = redrive_value(whose, "orders", failed.partition, log.index(failed), BASE_MS)
    return [replace(failed, headers=[*failed.headers, (REDRIVE_HEADER, value)])]


def units(group: str, count: int, *, idents: int = 400, redriven: bool = False) -> list[Record]:
    """Units of several producers that overlap, some of them rejected, and records without one.

    Letters may have been sent back.
    """
    found = []
    for partition in PARTITIONS:
        draw, log = Random(7 + partition), list[Record]()
        # Now and then no unit is open, so that a cut that lies outside all of them is near.
        for begin in range(0, count, 40):
            for entry in unit_log(draw, count=40, idents=idents, begin=1_000 * begin):
                # No unit crosses partitions.
                record = record_of(replace(entry, unit=entry.unit and f"{partition}/{entry.unit}"))
                log.append(replace(record, partition=partition))
                log += _sent_back(draw, log, group, []) if redriven else []
        found += [
            replace(each, offset=offset, timestamp_ms=BASE_MS + 20 * offset, value=b"%d" % offset)
            for offset, each in enumerate(log)
        ]
    return found


def gtids(count: int, *, calm_from: int) -> list[Record]:
    """Late and repeated IDs of some producers, another server now and then, bad ones, some without an ID or source.

    From offset ``calm_from`` on nothing is so late that it depends on the records in flight whether it is known.
    """
    source, found = random.Random(3), []
    for partition in PARTITIONS:
        newest: Counter[str | None] = Counter()
        for offset in range(count):
            producer = source.choice(["p", "p", "p", "q", "r", "r", None])
            newest[producer] += source.choice([0, 1, 1, 2])
            calm = offset >= calm_from
            number = max(newest[producer] - source.choice([0, 0, 0, 0, 1, 3, 3 if calm else 9]), 1)
            server = _SERVERS[not calm and source.random() < 0.02]
            ident = source.choices([f"{server}:{number}", "bad", None], [30, 1, 1])[0]
            headers = [
                (name, text.encode()) for name, text in (("producer", producer), ("gtid", ident)) if text
            ]
            found.append(Record("", partition, offset, BASE_MS + 50 * offset, None, b"x", headers))
    return found


def with_others(records: Iterable[Record], *, unreadable_from: int) -> list[Record]:
    """Records most of which bear another ID, too, that comes again now and then.

    From an offset on the order can read none of their own.
    """
    source, found = random.Random(7), []
    for each in records:
        other = source.choice([None, *range(150)])
        named = {**dict(each.headers), **({"other": b"some-%d" % other} if other else {})}
        if each.offset >= unreadable_from and "gtid" in named:
            named["gtid"] = b"bad"
        found.append(replace(each, headers=list(named.items())))
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A rule that a group lives by, and its history.

    Attributes:
        said: the strategy, and the job's options.
        log: the records for a group of this name.
        early: up to this offset the group has lived through each partition.
        sources: where the job reads the history.
        base: where the group stood when a snapshot was made from the first source; the last source's is on top of it.
            0: there is none.
        killed: the consumer completed in disorder, and its disk is as of some moment before its last commit.
        expires: its window forgets something of the log.
        whole_topic: the job is told of no group, and finds by itself where a snapshot may end.
        shared: the last run's snapshot is loaded into a store that consumers share, too.
    """

    said: Said
    log: Callable[[str], list[Record]]
    early: int
    sources: tuple[str, ...]
    base: int = 0
    killed: bool = False
    expires: bool = False
    whole_topic: bool = False
    shared: bool = False

    @property
    def in_units(self) -> bool:
        """Whether records belong to units, one of which is open where the group stands."""
        return "--unit" in self.said.options


PARQUET, TWICE, LINES = "parquet", "parquet with rows twice", "json lines"
# Each kind of fold (by time, by count, in the order of IDs, of units) meets each reader; the kinds of ID, and the
# rest, are spread over the pairs.
RULES = {
    "header": Rule(
        said=looked_up("header:dedup-id", "1h"), log=lambda group: singles(group, 220), early=200,
        sources=(KAFKA, KAFKA), base=130, killed=True,
    ),
    "key-expiring": Rule(
        said=looked_up("key", "10m"), log=lambda group: singles(group, 220, step_ms=5_000), early=200,
        sources=(PARQUET, TWICE, LINES), expires=True, shared=True,
    ),
    "json": Rule(
        said=looked_up("json:/id", "1h"), log=lambda group: singles(group, 220), early=200, sources=(KAFKA, PARQUET),
    ),
    "id-cache": Rule(
        said=ID_CACHE, log=lambda group: singles(group, 220), early=200,
        sources=(KAFKA, TWICE), base=130, killed=True, expires=True,
    ),
    "count-expiring": Rule(
        said=looked_up("header:dedup-id", "3m+60n"), log=lambda group: singles(group, 220, step_ms=3_000), early=200,
        sources=(KAFKA, PARQUET, LINES), base=130, expires=True,
    ),
    "gtid": Rule(
        said=GTIDS, log=lambda _: gtids(360, calm_from=300), early=300, sources=(KAFKA, TWICE), whole_topic=True,
    ),
    "sequence": Rule(
        said=SEQUENCES, log=lambda group: singles(group, 220), early=200, sources=(KAFKA, PARQUET),
    ),
    "second-opinion": Rule(
        said=SECOND, log=lambda _: with_others(gtids(260, calm_from=200), unreadable_from=200), early=200,
        sources=(KAFKA, LINES), killed=True,
    ),
    "units": Rule(
        said=in_units("1h"), log=lambda group: units(group, 200, idents=90, redriven=True), early=200,
        sources=(KAFKA, LINES),
    ),
    "units-count": Rule(
        said=in_units("40n"), log=lambda group: units(group, 240), early=200, sources=(KAFKA, PARQUET), expires=True,
    ),
    "units-members": Rule(
        said=in_units("1h+40n", "members"), log=lambda group: units(group, 240), early=200, sources=(TWICE,),
        whole_topic=True, expires=True,
    ),
}  # fmt: skip


class Life:
    """A group that lives by a rule in a topic of its own, and its own snapshot of its marks."""

    def __init__(self, name: str, broker: Broker, folder: Path) -> None:
        self.rule, self.broker, self.folder = RULES[name], broker, folder
        # The records are old: without this the broker would delete them some time.
        self.topic = broker.create_topic(
            f"{name}-{uuid.uuid4().hex[:8]}", len(PARTITIONS), {"retention.ms": "-1"}
        )
        self.group = f"{self.topic} & co"
        self.log = [replace(each, topic=self.topic) for each in self.rule.log(self.group)]
        self.early = self.between(0, self.rule.early)
        self.late = [each for each in self.log if each.offset >= self.rule.early]
        self._store, self._lived = folder / "store", 0
        whose = ("--whole-topic",) if self.rule.whole_topic else ("--group", self.group)
        self.given = (
            "--topic", self.topic, *whose, "--bootstrap", broker.bootstrap, *self.rule.said.options,
        )  # fmt: skip

    def live_until(self, offset: int) -> None:
        """Live through the records of each partition that lie below an offset, and that were not there before."""
        produce(self.broker.bootstrap, self.topic, outgoing(self.between(self._lived, offset)))
        if self.rule.killed and not self._lived:
            self._be_killed(self._store)
        with self.consumer(self._store, idle_timeout=_IDLE_S) as consumer:
            run_through(consumer, self.topic, lambda _message: None)
            assert consumer.counters.verdicts["duplicate"] > 0
        self._lived = offset

    def snapshot(self) -> Manifest:
        """Return the group's own snapshot, which lies in ``own``."""
        return snapshot_store(list_partitions(self._store), self._store, self.folder / "own")

    def between(self, begin: int, end: int) -> list[Record]:
        """The records of all partitions at these offsets."""
        return [each for each in self.log if begin <= each.offset < end]

    def _be_killed(self, store: Path) -> None:
        with self.consumer(self.folder / "alive", completion="explicit") as killed:
            held = poll_some(killed, 120)
            Random(5).shuffle(held)
            for number, message in enumerate(held):
                if message.offset() % 50 != 30:
                    killed.complete(message)
                if number == 80:
                    copy_at_one_moment(self.folder / "alive", store)

    def consumer(self, store: Path, **options: Any) -> Any:
        """A consumer of the group, subscribed to the topic."""
        strategy = self.rule.said.strategy
        consumer = make_consumer(self.broker.bootstrap, self.group, store, dedup=strategy, **options)
        consumer.subscribe([self.topic])
        return consumer

    def source(self, name: str) -> list[str]:
        """The options for a source; the files of an archive are not in order."""
        if name == KAFKA:
            return ["--source", name]
        if name == LINES:
            return [
                "--source",
                str(write_json_lines(self.folder / "lines.jsonl", self.early)),
                *ARCHIVE,
                *JSON,
            ]
        again = self.early[100:300] if name == TWICE else []
        archive = write_parquet(self.folder / name, [*self.early[::-1], *again], files=3)
        return ["--source", str(archive), *ARCHIVE]

    def remembered(self, manifest: Manifest, folder: Path) -> list[tuple[Any, ...]]:
        """The marks that all snapshots of this life agree on, however they were made.

        Of a window that forgets, those that a next record could still meet; numbers that time forgets are left out by
        the job alone. Of units not the newest time, which may be that of one that is open.
        """
        expires, time_ms = self.rule.expires, self.rule.said.strategy.window_of(self.topic).time_ms
        return [
            (each.partition, each.low, each.high, each.known.accepted)
            + (() if self.rule.in_units else (each.known.newest_ms,))
            + (() if expires and time_ms is not None else (each.known.since_number,))
            + ((self._alive(each, folder),) if expires else (each.known.since_ms, each.marks, each.fingerprint))
            for each in manifest.partitions
        ]  # fmt: skip

    def _alive(self, entry: PartitionManifest, folder: Path) -> dict[bytes, Kept]:
        newest_ms = max(each.timestamp_ms for each in self.early if each.partition == entry.partition)
        is_alive = in_window(self.rule.said.strategy.window_of(self.topic), newest_ms)
        marks = newest_of(read_snapshot(folder, entry))
        alive = {digest: mark for digest, mark in marks.items() if is_alive(mark, entry.known.accepted)}
        assert len(alive) >= 30, "take another log"
        return alive

    def told_by_shared(
        self, own: Manifest, store: ClaimStore
    ) -> tuple[dict[bytes, int | None], dict[bytes, int | None]]:
        """Return when each ID of the group's own snapshot was seen last, as a shared memory tells it, and as it must.

        In whatever partition that was. None: a next record, half a window after the newest one, is to be handled.
        """
        window_ms = self.rule.said.strategy.window_of(self.topic).time_ms
        assert window_ms is not None
        next_ms = max(each.known.newest_ms for each in own.partitions) + window_ms // 2
        seen: dict[bytes, int] = {}
        for entry in own.partitions:
            for digest, mark in newest_of(read_snapshot(self.folder / "own", entry)).items():
                seen[digest] = max(seen.get(digest, -1), mark.timestamp_ms)
        scope = scope_name(
            "topic", id_spec=own.id_spec, cluster=own.cluster, group=self.group, topic=self.topic
        )
        claims = store.claim(
            scoped_ids(scope, seen), "next", 60_000, timestamps_ms=[next_ms] * len(seen), window_ms=window_ms
        )
        told = [claim.seen_ms if claim.kind is ClaimKind.DUPLICATE else None for claim in claims]
        must = {digest: at_ms if next_ms - at_ms <= window_ms else None for digest, at_ms in seen.items()}
        assert {at_ms is None for at_ms in must.values()} == {True, False}, "take another log"
        return dict(zip(seen, told, strict=True)), must

    def go_on(self, snapshot: Path) -> list[Position]:
        """Send the late records to a consumer that begins with a snapshot; return its messages."""
        produce(self.broker.bootstrap, self.topic, outgoing(self.late))
        with self.consumer(self.folder / "new", recovery=Recovery(snapshot=snapshot)) as consumer:
            came = poll_through(consumer, self.topic)
            assert [replayed(consumer, self.topic, number) for number in PARTITIONS] == [0, 0]
            details = {status.partition: status.detail for status in consumer.partition_statuses}
            assert "snapshot of" in details[0]
            assert consumer.counters.verdicts["duplicate"] > 0
        return [(each.partition(), each.offset()) for each in came]

    def would_be_handed_out(self) -> tuple[set[Position], set[Position]]:
        """Of the early records, and of the late ones, those that an engine hands out.

        It lives through all of them one by one.
        """
        with Deduplicator(self.rule.said.strategy, group=self.group, clock=lambda: _NOW_S) as engine:
            early, late = (_handed_out(engine, part) for part in (self.early, self.late))
        return early, late


def _handed_out(engine: Deduplicator, records: Sequence[Record]) -> set[Position]:
    found: set[Position] = set()
    for record in records:
        [verdict] = engine.admit([record])
        due = [record] if verdict.deliver else []
        due += [each.record for each in engine.settle_units() if each.verdict.deliver]
        while due:
            found |= {(each.partition, each.offset) for each in due}
            due = [each.record for each in engine.complete(due) if each.verdict.deliver]
    return found
