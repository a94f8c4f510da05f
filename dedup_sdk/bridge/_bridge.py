"""`Bridge`: copies records between topics, each with one dedup ID that stays the same in every resend."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final, Literal, NamedTuple
from zlib import crc32

from confluent_kafka import KafkaException

from dedup_sdk._admin.broker_check import is_silence, no_broker
from dedup_sdk._checks import choice, configuration, flag, seconds, whole
from dedup_sdk._kafka.client.client import has_topic_ids
from dedup_sdk._kafka.client.client_errors import is_retriable, text_of
from dedup_sdk._kafka.client.fields import offsets_of
from dedup_sdk._kafka.client.guards import CallbackErrors
from dedup_sdk._masking import masked_text, shown
from dedup_sdk.bridge._counters import BridgeCounters
from dedup_sdk.bridge._record_ids import RecordIds, source_id
from dedup_sdk.bridge._routes import Routes, coordinates, topic_list
from dedup_sdk.bridge._settings import source_settings, target_settings
from dedup_sdk.bridge._source import EndOffsets, Source
from dedup_sdk.bridge._source_log import PartitionId, differing_topic
from dedup_sdk.bridge._target import (
    START_S,
    BatchFailedError,
    Commit,
    Copy,
    RecordRefusedError,
    RecordsRefusedError,
    Target,
    Transactions,
)
from dedup_sdk.errors import BridgeError, ConfigurationError
from dedup_sdk.ids._spec import IdSpec, id_spec

log = logging.getLogger("dedup_sdk")

Partitions = Literal["key", "same"]
OnRefused = Literal["fail", "skip"]
BATCH_RECORDS: Final = 10_000
_FIRST_PAUSE_S: Final = 0.2
_MOST_PAUSE_S: Final = 5.0
_ASK_AGAIN_S: Final = 0.5
_MOST_ONE_BY_ONE: Final = 200
"""The most records of a batch that is written record by record: a transaction has a time limit."""
_FORMER_KEY: Final = "dedup-former-key"


class Bridge:
    """Copies records between topics: of one cluster, or of two.

        Bridge(
            {"bootstrap.servers": "old:9092"}, {"bootstrap.servers": "new:9092"}, topics=["orders"],
        ).run()

    Headers, key, value (null too) and timestamp are kept. A record without a dedup ID gets one made of its position in
    the source and its content, so that it has the same ID when it is sent again: the `DedupConsumer` of the target sees
    each record once, however often the bridge was killed. Several bridges with the same arguments share the work.

    Args:
        source: as for `confluent_kafka.Consumer`.
        target: as for `confluent_kafka.Producer`.
        topics: names, and patterns that begin with ``^``; default: all but those that begin with two
            underscores.
        rename: the topic's name at the target; ``{topic}`` stands for its name at the source.
        id: the ID spec; to add IDs it must be ``header:NAME``.
        use_duplicate_detection: whether to add IDs.
        rekey_by_id: whether the ID becomes the record's key, so that equal IDs go to the same partition.
        partitions: ``key``: the target's partitioner chooses by the key, and without a key the ID decides;
            ``same``: the same number.
        transactions: ``auto``: each batch is one transaction where the target allows it; ``always``;
            ``never``.
        on_refused: the reaction to a record that the target refuses as it is (too large, a refused
            timestamp): ``fail``: the bridge ends, and names it; ``skip``: it is left out, counted, and
            named in the log.
        group: the consumer group; default: ``group.id`` of ``source``, else one made of the target's
            cluster and ``rename``.
        batch_records: the most records of a batch.

    Raises `ConfigurationError` for settings that contradict each other or a promise.
    """

    def __init__(
        self,
        source: Mapping[str, Any],
        target: Mapping[str, Any],
        *,
        topics: str | Iterable[str] = "^.*",
        rename: str = "{topic}",
        id: str | IdSpec = "header:dedup-id",  # noqa: A002 (as everywhere in this package)
        use_duplicate_detection: bool = True,
        rekey_by_id: bool = False,
        partitions: Partitions = "key",
        transactions: Transactions = "auto",
        on_refused: OnRefused = "fail",
        group: str | None = None,
        batch_records: int = BATCH_RECORDS,
    ) -> None:
        choice("partitions", partitions, ("key", "same"))
        choice("transactions", transactions, ("auto", "always", "never"))
        choice("on_refused", on_refused, ("fail", "skip"))
        flag("use_duplicate_detection", use_duplicate_detection)
        flag("rekey_by_id", rekey_by_id)
        if rekey_by_id and partitions == "same":
            raise ConfigurationError(
                'rekey_by_id=True chooses the partition by the ID, partitions="same" by the source; choose one'
            )
        self._batch_records = whole("batch_records", batch_records, advice="give how many, e.g. 10_000")
        self._topics = topic_list(topics)
        self._record_ids = RecordIds(id_spec(id), adds=use_duplicate_detection)
        self._source_config = configuration("source", source, client="Consumer")
        self._group = group or self._source_config.get("group.id")
        self._target_settings = target_settings(configuration("target", target, client="Producer"))
        # Wrong settings must fail here, not in `run`.
        source_settings(self._source_config, str(self._group or "bridge"), reports_ends=False)
        Routes(self._topics, rename, lambda _: 0)
        self._rename, self._transactions, self._on_refused = rename, transactions, on_refused
        self._adds, self._rekeys, self._keeps_partition = (
            use_duplicate_detection,
            rekey_by_id,
            partitions == "same",
        )
        self.counters = BridgeCounters()
        self._callback_errors = CallbackErrors()
        self._ending = threading.Event()
        self._source: Source | None = None
        self._skipped: set[tuple[str, int, int]] = set()
        self._one_by_one_until: dict[PartitionId, int] = {}
        """The offsets up to which records are written one by one, to find those that the target refuses."""
        self._too_large_together = False
        self._warned_of_headers: set[str] = set()
        self._atomic = False

    # --- running ---------------------------------------------------------------------------------------------------

    def run(
        self,
        *,
        until_end: bool = False,
        report: Callable[[Bridge], None] | None = None,
        report_every: float = 10.0,
    ) -> None:
        """Copy records until `stop`; may be called again.

        Args:
            until_end: stop when the group has copied all records that the topics had at the start.
            report: called every ``report_every`` seconds, e.g. to print `counters` and `lag`.
            report_every: seconds between two calls.

        Raises `BridgeError` for an error that does not pass by itself, and, after the batch, the exception of a
        callback in the settings of ``source`` or ``target``. While one cluster does not answer the bridge waits, and
        logs it.
        """
        report_every_s = seconds("report_every", report_every)
        flag("until_end", until_end)
        self._ending.clear()
        errors = self._callback_errors = CallbackErrors()
        settings = replace(self._target_settings, client=errors.around(self._target_settings.client))
        target = Target(settings, self._ending.is_set)
        try:
            source = self._open(target, reports_ends=until_end)
            ends = None
            if until_end:
                known = self._asked("source", lambda: source.ends(source.partitions(self._routes.reads)))
                ends = EndOffsets(known)
            self._move(source, target, report or (lambda _: None), report_every_s, ends)
        except _StoppedError:
            pass  # stopped before the first batch
        finally:
            target.close()
            if self._source is not None:
                self._source.close()
                self._source = None
        errors.raise_kept()

    def stop(self) -> None:
        """Make `run` return after the current batch; from any thread, or a signal handler."""
        self._ending.set()

    def lag(self) -> int:
        """Return the number of offsets that this bridge has not copied yet, as far as it knows the ends.

        0 while it does not run.
        """
        return 0 if self._source is None else self._source.lag()

    def _open(self, target: Target, *, reports_ends: bool) -> Source:
        there = self._asked("target", target.cluster_id)
        group = str(self._group or f"dedup-bridge-{there}-{self._rename}")
        source = Source(
            source_settings(
                self._callback_errors.around(self._source_config), group, reports_ends=reports_ends
            ),
            self._topics,
            self.counters,
        )
        self._source = source
        self._routes = Routes(self._topics, self._rename, target.topics.count)
        found = {topic for topic, _ in self._asked("source", lambda: source.partitions(self._routes.reads))}
        one_cluster = self._asked("source", source.cluster_id) == there and self._is_one_cluster(there, found)
        if one_cluster:
            self._routes.refuse_loops()
        for topic in sorted(found | {each for each in self._topics if not each.startswith("^")}):
            if topic not in found:
                raise BridgeError(
                    f"the source has no topic {shown(topic)}; name an existing one, or a pattern such as '^{topic}'"
                )
            self._asked("target", partial(self._routes.target_of, topic))
        why = target.open(self._transactions)
        self._atomic = one_cluster and target.is_transactional
        log.info(
            "bridge: group %s, %s, %s", group, "one cluster" if one_cluster else "two clusters",
            "batches and offsets in transactions" if self._atomic
            else "batches in transactions, offsets after them" if target.is_transactional
            else f"no transactions{': ' if why else ''}{masked_text(why)}",
            extra={"event": "bridge-began"},
        )  # fmt: skip
        return source

    def _is_one_cluster(self, cluster: str, topics: Iterable[str]) -> bool:
        """Whether source and target, which have the same cluster ID, are one cluster; the IDs of topics decide."""
        ends = (self._source_config, self._target_settings.client)
        if not has_topic_ids(cluster) or ends[0].get("bootstrap.servers") == ends[1].get("bootstrap.servers"):
            return True
        told = differing_topic(*ends, {*topics, *map(self._routes.name_of, topics)})
        if told is not None:
            log.warning(
                "bridge: source and target have the same cluster ID (%s), but topic %s differs, so that "
                "they are treated as two clusters; "
                "give them different IDs", cluster, told,
                extra={"event": "bridge-same-cluster"},
            )  # fmt: skip
        return told is None

    def _asked(self, end: str, ask: Callable[[], Any]) -> Any:
        """Return the answer of the source or target; retry while it starts."""
        until = time.monotonic() + START_S
        while True:
            try:
                return ask()
            except KafkaException as error:
                self._callback_errors.raise_kept()
                if not is_retriable(error) or time.monotonic() > until:
                    if not is_silence(error):
                        raise BridgeError(
                            f"the {end} does not answer: {text_of(error)}; check its bootstrap servers and settings"
                        ) from None
                    servers = self._source_config if end == "source" else self._target_settings.client
                    said = no_broker(
                        servers.get("bootstrap.servers", ""), START_S, text_of(error),
                        check=f"the bootstrap servers and settings of the {end}",
                    )  # fmt: skip
                    raise BridgeError(said) from None
                if self._ending.wait(_ASK_AGAIN_S):
                    raise _StoppedError from None

    def _move(
        self, source: Source, target: Target, report: Callable[[Bridge], None], report_every_s: float,
        ends: EndOffsets | None,
    ) -> None:  # fmt: skip
        pause_s, next_report = _FIRST_PAUSE_S, time.monotonic() + report_every_s
        while not self._ending.is_set():
            # Offsets are void once their partition is revoked, or its topic is deleted and created again.
            self._one_by_one_until = {
                partition_id: next_one
                for partition_id, next_one in self._one_by_one_until.items()
                if source.has(partition_id)
            }
            self._skipped = {each for each in self._skipped if source.has(each[:2])}
            target.serve()
            batch = source.read(
                min(self._batch_records, _MOST_ONE_BY_ONE) if self._one_by_one_until else self._batch_records
            )
            if not batch:
                source.copied({}, committed=True)
            elif self._copy(source, target, batch):
                pause_s = _FIRST_PAUSE_S
            else:
                self._ending.wait(pause_s)
                pause_s = min(2 * pause_s, _MOST_PAUSE_S)
            if time.monotonic() >= next_report:
                report(self)
                next_report = time.monotonic() + report_every_s
            self._callback_errors.raise_kept()
            if ends is not None and not batch and ends.are_reached(source):
                return

    # --- a batch ---------------------------------------------------------------------------------------------------

    def _copy(self, source: Source, target: Target, batch: list[Any]) -> bool:
        """Write a batch and commit its offsets; false where it must be read again."""
        batch, offsets = self._without_changed_logs(source, batch)
        if not batch:
            return True
        one_by_one = bool(self._one_by_one_until)
        try:
            copies, added = self._copies(source, target, batch)
            commit = Commit(source.positions(offsets), source.member) if self._atomic else None
            target.write(copies, commit, one_by_one=one_by_one)
        except KafkaException as error:
            if not is_retriable(error):
                raise BridgeError(
                    f"the source or target does not answer: {text_of(error)}; fix the cause"
                ) from None
            self._retry_later(source, target, batch, BatchFailedError(error.args[0]))
            return False
        except (BatchFailedError, RecordRefusedError) as failed:
            self._retry_later(source, target, batch, failed)
            return isinstance(failed, RecordRefusedError)
        source.copied(offsets, committed=self._atomic)
        self._count_batch(batch, added)
        if one_by_one:
            self._one_by_one_until = {
                p: o for p, o in self._one_by_one_until.items() if offsets.get(p, -1) < o
            }
            if not self._one_by_one_until and self._too_large_together:
                self._too_large_together = False
                target.shrink()
        return True

    def _retry_later(
        self, source: Source, target: Target, batch: list[Any], failed: BatchFailedError | RecordRefusedError
    ) -> None:
        self.counters.repeated += 1
        if isinstance(failed, RecordRefusedError):
            self._refuse(failed)
        elif isinstance(failed, RecordsRefusedError):
            self._write_one_by_one(batch)
            self._too_large_together = failed.is_too_large
        is_refusal = isinstance(failed, RecordRefusedError | RecordsRefusedError)
        log.log(
            logging.DEBUG if self._ending.is_set() or is_refusal else logging.WARNING,
            "bridge: a batch of %d records is sent again: %s", len(batch), masked_text(str(failed)),
            extra={"event": "bridge-batch-repeated"},
        )  # fmt: skip
        while True:
            try:
                target.abort_batch(failed)
            except BatchFailedError as still:
                if not is_retriable(KafkaException(still.error)):
                    raise BridgeError(
                        f"the target's transactions no longer work: {still}; fix the cause"
                    ) from None
                failed = still
                if self._ending.wait(_FIRST_PAUSE_S):
                    return
            else:
                break
        source.rewind(batch, to_committed=self._atomic)

    @staticmethod
    def _without_changed_logs(source: Source, batch: list[Any]) -> tuple[list[Any], dict[PartitionId, int]]:
        """Return a batch without partitions whose log seems recreated or truncated, and the next offsets.

        It seems so where offsets go back, behind the copied ones or inside the batch. Such a partition is read again,
        so that a record which the client returned twice is copied once.
        """
        partition_ids = [(message.topic(), message.partition()) for message in batch]
        offsets = offsets_of(batch)
        back = source.behind_copied(dict(zip(reversed(partition_ids), reversed(offsets), strict=True)))
        lasts: dict[PartitionId, int] = {}
        again: set[PartitionId] = set()
        for partition_id, offset in zip(partition_ids, offsets, strict=True):
            if offset <= lasts.get(partition_id, -1):
                again.add(partition_id)
            lasts[partition_id] = offset
        for each in again:
            lowest = min(offsets[row] for row, of in enumerate(partition_ids) if of == each)
            back[each] = min(lowest, back.get(each, lowest))
        source.recheck(back)
        kept = (
            [
                message
                for message, partition_id in zip(batch, partition_ids, strict=True)
                if partition_id not in back
            ]
            if back
            else batch
        )
        return kept, {
            partition_id: offset + 1 for partition_id, offset in lasts.items() if partition_id not in back
        }

    def _write_one_by_one(self, batch: list[Any]) -> None:
        for partition_id, offset in ((((each.topic(), each.partition())), each.offset()) for each in batch):
            self._one_by_one_until[partition_id] = max(
                offset + 1, self._one_by_one_until.get(partition_id, -1)
            )

    def _refuse(self, refused: RecordRefusedError) -> None:
        message = refused.message
        self._too_large_together = False
        said = (
            f"the target refuses {coordinates(message)} ({len(message)} bytes, "
            f"key of {len(message.key() or b'')}): {masked_text(str(refused))}"
        )
        if self._on_refused == "fail":
            raise BridgeError(
                f"{said}; raise the target's limits (max.message.bytes of its topic, message.max.bytes "
                "of the bridge's settings), or leave such records out: --on-refused skip"
            )
        log.warning("bridge: %s; it is left out", said, extra={"event": "bridge-record-left-out"})
        self._skipped.add((message.topic(), message.partition(), message.offset()))

    def _count_batch(self, batch: list[Any], added: _Added) -> None:
        counters = self.counters
        left_out = 0
        if self._skipped:
            passed = {(each.topic(), each.partition(), each.offset()) for each in batch} & self._skipped
            left_out = len(passed)
            self._skipped -= passed
        counters.batches += 1
        counters.skipped += left_out
        counters.copied += len(batch) - left_out
        counters.named += added.named
        self._warn_of_headers(added.nameless)

    def _warn_of_headers(self, nameless: list[tuple[Any, int]]) -> None:
        for message, count in nameless:
            self.counters.nameless_headers += count
            if message.topic() not in self._warned_of_headers:
                self._warned_of_headers.add(message.topic())
                log.warning(
                    "bridge: %s has %d headers whose names are not UTF-8; the client cannot send them, so "
                    "they are not copied, neither here nor elsewhere "
                    "in %s", coordinates(message), count, message.topic(),
                    extra={"event": "bridge-headers-left-out"},
                )  # fmt: skip

    def _copies(self, source: Source, target: Target, batch: list[Any]) -> tuple[list[Copy], _Added]:
        """Return the records to send, and how many got an ID or lost headers."""
        all_headers, digests, nameless = self._record_ids.read(batch)
        adds, rekeys, keeps = self._adds, self._rekeys, self._keeps_partition
        id_header, skipped = self._record_ids.header or "", self._skipped
        prefixes: dict[PartitionId, str] = {}
        routes: dict[str, tuple[str, int]] = {}
        copies: list[Copy] = []
        named = 0
        for message, given, digest in zip(batch, all_headers, digests, strict=True):
            if skipped and (message.topic(), message.partition(), message.offset()) in skipped:
                continue
            headers, key, dedup_id = given, message.key(), digest
            topic, count = routes.get(message.topic()) or self._route(target, message.topic(), routes)
            if dedup_id is None:
                partition_id = (message.topic(), message.partition())
                prefix = prefixes.get(partition_id) or prefixes.setdefault(
                    partition_id, source.id_prefix(partition_id)
                )
                dedup_id = source_id(prefix, message, given)
                if adds:
                    headers = [*(given or ()), (id_header, dedup_id)]
                    named += 1
            if rekeys and (adds or digest is not None):
                former, key = key, self._record_ids.key_of(headers or (), dedup_id)
                if former is not None and former != key:
                    headers = [*(headers or ()), (_FORMER_KEY, former)]
            partition = -1
            if keeps:
                partition = message.partition()
                if partition >= count:
                    raise BridgeError(
                        f"{coordinates(message)} has no partition {partition} in the target's {shown(topic)}, "
                        f"which has {count}; add partitions there, or give --partitions key"
                    )
            elif key is None or (not key and target.scatters_empty_keys):
                partition = crc32(dedup_id) % count
            copies.append(Copy(message, topic, partition, key, headers))
        return copies, _Added(named, nameless)

    def _route(self, target: Target, topic: str, routes: dict[str, tuple[str, int]]) -> tuple[str, int]:
        name = self._routes.target_of(topic)
        count = target.topics.count(name)
        if not count:
            raise BridgeError(f"the target's topic {shown(name)} is gone; create it again")
        routes[topic] = name, count
        return routes[topic]


class _Added(NamedTuple):
    """The number of records that got an ID, and the messages with headers that are not copied, with their number."""

    named: int
    nameless: list[tuple[Any, int]]


class _StoppedError(Exception):
    """The bridge was stopped while it waited for an answer."""
