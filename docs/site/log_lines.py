"""Writes the page docs/log-lines.md from the calls in the code: ``python docs/site/log_lines.py > docs/log-lines.md``.

`LINES` has one sentence for each line that this package can log at INFO or above, by the event that its call names. The
texts and levels are read from the code, so the page cannot name a line that is not logged.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

_ROOT: Final = Path(__file__).parents[2]
FOLDERS: Final = (_ROOT / "dedup_sdk", _ROOT / "adapters" / "dedup_adapters")
"""The folders of the package's code."""

_LEVELS: Final = {
    "debug": "DEBUG",
    "info": "INFO",
    "warning": "WARNING",
    "error": "ERROR",
    "exception": "ERROR",
    "critical": "CRITICAL",
}
_PLACEHOLDER: Final = re.compile(r"%(\.\d)?[srdgf]")
_OF_PARTITION: Final = "event.name"
"""The event of a line on an event of a partition, as the call names it."""
_HEAD: Final = """\
# Log lines

Every line that this package writes at level `INFO` or above (logger `dedup_sdk`; stores: `dedup_sdk._store`; adapters:
`dedup_adapters`), with its cause and your next step. `orders[0]` stands for topic and partition, `…` for a part that
differs. Debug lines and lines of the client are not here. Each record has the fields `event`, `topic`, `partition` and
`offset` ([logs as JSON](monitoring.md#logs)). This page is made from the code.
"""


class Call(NamedTuple):
    """A call of a logger: the file in its folder of `FOLDERS`, the text with its placeholders, and the level.

    ``event``: the name that its ``extra=`` gives, or the expression there; empty without one.
    """

    file: str
    text: str
    level: str
    event: str


class Line(NamedTuple):
    """One line of the page, for the calls of ``file`` with an event.

    ``shown`` replaces a text that is only placeholders, or one of several.
    """

    file: str
    event: str
    advice: str
    shown: str = ""


LINES: Final[dict[str, list[Line]]] = {
    "Rebalances": [
        Line(
            "_kafka/recover/session.py", "rebalance",
            "The group assigned partitions to this consumer, or took them away (`lost`: without a last commit). "
            "Nothing to do; many in a row mean an unstable group: check `max.poll.interval.ms` and restarts.",
            "assigned (or: revoked, lost) … partitions: …; verdicts since the last rebalance: …",
        ),
        Line(
            "_kafka/recover/session.py", "partitions-ready",
            "These partitions deliver now, and those after `still recovering` do not yet. Nothing to do; if one stays, "
            "look up its [hindrance](reference.md#states-of-a-partition).",
            "ready … partitions: …; … still recovering: …",
        ),
        Line(
            "_kafka/recover/session.py", "group-offsets-unknown",
            "The coordinator did not answer at the assignment; the request is repeated. If it stays, check brokers.",
        ),
        Line(
            "_kafka/recover/session.py", "start-offset-unknown",
            "A broker was slow at the assignment; recovery asks again. Nothing to do.",
        ),
        Line(
            "_kafka/recover/session.py", "commit-on-revoke-failed",
            "The group or a broker refused the last commit of a revoked partition. Expect repeats; if it comes often, "
            "check the coordinator, and raise `revoke_deadline`.",
        ),
        Line(
            "_kafka/recover/session.py", "partition-abandoned",
            "Handlers, the disk or the broker took longer than `revoke_deadline`. Expect repeats; raise "
            "`revoke_deadline`, or shorten the handlers.",
        ),
        Line(
            "_kafka/recover/session.py", "partition-close-failed",
            "The store of a partition that was taken away could not be written. Expect repeats; check the disk.",
        ),
        Line(
            "_kafka/recover/session.py", "commit-before-leaving-failed",
            "The last commit before the consumer left did not succeed. Messages since the one before come again.",
        ),
    ],
    "Consumer": [
        Line(
            "_kafka/deliver/assignment_api.py", "not-subscribed",
            "The program asks for messages before it chose a topic. Call `subscribe()` or `assign()` first.",
        ),
        Line(
            "_advice/framed_keys.py", "framed-keys",
            "Use `unframed-key` as the [ID](schema-registry.md): the key without the schema's ID.",
        ),
        Line(
            "_advice/missing_ids.py", "records-without-id",
            "The ID spec does not fit the topic, so its duplicates are handled. The end of the line has what is known "
            "of these records, e.g. their headers: correct the spec, or the producer "
            "([IDs](ids.md#records-without-an-id)).",
        ),
        Line(
            "_advice/missing_ids.py", "id-function-raised",
            "Your ID function raised its first exception. Correct the function, at the file and line that the line "
            "has.",
        ),
        Line(
            "_kafka/assign/assignment.py", "nothing-completed",
            "The program completes no message, so nothing is remembered. Call `store_offsets()` or `commit()` for "
            "handled messages ([completion](completion.md)).",
        ),
        Line(
            "_kafka/assign/assignment.py", "partition-failed",
            "An error outside the client and the store came twice at one offset, so the partition stopped. Remove the "
            "cause, then restart the consumer.",
        ),
        Line(
            "_kafka/recover/upkeep.py", "backlog",
            "One message is not completed, and too many duplicates of it or records after it wait. Find the handler "
            "that hangs.",
        ),
        Line(
            "_kafka/client/client_errors.py", "client-error",
            "The client reports an error that it recovers from by itself, named by its code. If it stays, check the "
            "brokers, the network, and the rights of the user.",
            "_TRANSPORT: …",
        ),
        Line(
            "_kafka/assign/assignment.py", "commit-metadata-refused",
            "The broker's `offset.metadata.max.bytes` is smaller than the commit's text. Raise it to 4096 or more, or "
            "expect repeats of messages that were completed out of order.",
        ),
        Line(
            "_kafka/assign/commits.py", "commit-refused",
            "The group rejected a commit, mostly during a rebalance. Nothing to do unless it stays; then check the "
            "coordinator and the rights of the user.",
        ),
        Line(
            "_kafka/assign/commits.py", "commits-not-accepted",
            "A group accepts commits of its members, and of others only while it has no members. Give a program that "
            "assigns partitions itself a `group.id` of its own, and after `unsubscribe()` a new consumer.",
        ),
        Line(
            "_kafka/recover/upkeep.py", "commit-failed",
            "The client could not send a commit. Nothing to do unless it stays; then check the coordinator.",
        ),
        Line(
            "_kafka/consumer.py", "transactions-complete-nothing",
            "The program lets a transaction commit offsets of its own, which complete no message here and have no "
            "text. Use [`transactions()`](transactions.md), or the offsets of `transaction_offsets(messages)`.",
        ),
        Line(
            "_kafka/deliver/poller.py", "second-poller",
            "Two threads use one consumer, and a call was refused. Give each thread its own consumer, or poll in one.",
        ),
        Line(
            "_kafka/deliver/judge.py", "broker-asked-again",
            "A broker did not answer a request about the offset that ends or begins a partition; it is repeated. If it "
            "stays, check the broker.",
        ),
        Line(
            "_kafka/client/guards.py", "call-while-closing",
            "A callback tried to change the assignment while the consumer closed. Remove that call from the callback.",
        ),
        Line(
            "_kafka/assign/health.py", "closed-while-recovering",
            "Your program ended before the partitions had recovered. If its loop ends with the first `None`, "
            "[iterate with `idle_timeout`](completion.md#when-does-a-loop-end).",
        ),
        Line(
            "_kafka/client/guards.py", "callback-raised-while-closing",
            "A callback of yours raised inside `close()`, where nobody would get the error. Mend the callback.",
        ),
        Line(
            "_kafka/client/guards.py", "second-error",
            "A second error came before the first one reached your program. Correct your callbacks; report an error of "
            "this package.",
        ),
        Line(
            "_kafka/client/reader.py", "readers-not-closed",
            "A client of a recovery waits for its broker, and the consumer goes on. Check the broker; report it if it "
            "stays.",
        ),
        Line(
            "_kafka/client/closing.py", "group-not-left",
            "The coordinator did not answer at the end. Nothing to do: the group removes the member later.",
        ),
        Line(
            "_kafka/client/closing.py", "client-not-closed",
            "The client waits for a coordinator that does not answer, and the program goes on. Check the coordinator.",
        ),
        Line(
            "_kafka/consumer.py", "dropped-without-close",
            "The program dropped the last reference to a consumer. Use it in a `with` block, or call `close()`.",
        ),
        Line(
            "_kafka/consumer.py", "dropped-close-failed",
            "As above, and the close raised the error that follows. Call `close()` yourself, and handle its error.",
        ),
        Line(
            "_kafka/consumer.py", "close-failed",
            "Your block raised an error, and closing raised another, which follows. Look at the first one first.",
        ),
        Line(
            "_engine/partition.py", "observer-failed",
            "Your observer raised an error for a verdict; it was ignored. Correct the observer.",
        ),
        Line(
            "_engine/deduplicator.py", "observer-failed",
            "Your observer's `partition_event` raised an error; it was ignored. Correct the observer.",
        ),
    ],
    "Recovery": [
        Line(
            "_engine/deduplicator.py", "event.name",
            "A partition event: each has its cause and next step in the [list of "
            "events](reference.md#events).",
            "orders[0]: log-truncated: …; going on at …",
        ),
        Line(
            "_kafka/recover/replay.py", "recovery",
            "A replay goes on, and the line has its rate and remaining time. Nothing to do; a "
            "[snapshot](snapshots.md) makes it shorter.",
            "orders[0]: replayed up to offset … of …, … offsets a second, … to go",
        ),
        Line(
            "_kafka/recover/replay.py", "history-gone",
            "Retention removed records of the window. Raise `retention.ms`, or keep "
            "[snapshots](snapshots.md).",
        ),
        Line(
            "_kafka/recover/store.py", "store-damaged",
            "The disk changed bytes of the store, or lost them. Check the disk, then delete the folder that was kept.",
        ),
        Line(
            "_kafka/recover/store.py", "store-locked",
            "Another process of this host keeps the store open. End that process.",
        ),
        Line(
            "_kafka/recover/store.py", "store-waited-for",
            "Another process of this host has the store, e.g. the one that this one replaces. If it stays, end that.",
        ),
        Line(
            "_kafka/recover/scheduler.py", "store-waited-for",
            "The store cannot be opened now: the disk is full or failing, or the process may open too few files. One "
            "line for all partitions. Make room; raise `ulimit -Hn`.",
        ),
        Line(
            "_store/database.py", "file-limit-raised",
            "The store needs many files, so the soft limit of the process was raised to the hard one.",
        ),
        Line(
            "_kafka/recover/scheduler.py", "recovery-repeated",
            "A broker did not answer during the recovery, or retention overtook it: coverage begins later then. If it "
            "stays, check the partition's leader and the rights of the user.",
        ),
        Line(
            "_kafka/recover/scheduler.py", "group-offsets-unknown",
            "The coordinator does not answer. If it stays, check the brokers and the rights of the group.",
        ),
        Line(
            "_kafka/recover/scheduler.py", "beginning-commit-failed",
            "The first commit of a partition was not accepted, so it delivers nothing yet. If it stays, check the "
            "coordinator and the rights of the group.",
        ),
        Line(
            "_kafka/client/reader.py", "replay-waits",
            "The broker sends no records to a replay for a minute. If it stays, check the partition's leader.",
            "no record … The replay continues when records arrive",
        ),
        Line(
            "_kafka/recover/log_check.py", "open-transaction",
            "A producer left a transaction open before the committed offset. Wait for its timeout, or abort it with "
            "`kafka-transactions.sh`.",
        ),
        Line(
            "_kafka/recover/history.py", "commit-of-another-log",
            "The group's offsets come from another cluster or a deleted topic. If they are a true copy, consider "
            '`Recovery(history="assume-processed")`; otherwise wait until the window has filled.',
        ),
        Line(
            "_kafka/recover/history.py", "commit-of-another-rule",
            "The ID spec, strategy, kind of window or `isolation.level` changed. Nothing to do if you meant it; else "
            "restore the old setting.",
        ),
        Line(
            "_kafka/recover/history.py", "commit-without-history",
            "The group was used before without this package, or a tool or another program has set its offsets. Choose "
            "with `dedup adopt` or `Recovery(history=)` ([first steps](start.md#your-group-exists-already)); to set "
            "a group back, use `dedup rewind`.",
        ),
        Line(
            "_kafka/assign/start.py", "assigned-below-commit",
            "Your `on_assign` or `assign()` gives an offset below the committed one. Choose with "
            "[`Recovery(set_back=)`](recovery.md).",
        ),
        Line(
            "_kafka/recover/history.py", "history-assumed",
            "The last commit has no valid text, because the group was used without this package or a tool reset it. "
            "Use `dedup rewind` instead of a reset tool.",
        ),
        Line(
            "_kafka/recover/history.py", "commit-of-other-records",
            "The log was cut above the committed offset. Expect repeats, and look for the cause in the brokers "
            "(unclean leader election).",
        ),
        Line(
            "_kafka/recover/history.py", "commits-gone",
            "The group's offsets were deleted, or expired (`offsets.retention.minutes`). Nothing to do if delivery is "
            "to go on where it stopped; to handle earlier records again, use `dedup rewind`.",
        ),
        Line(
            "_kafka/recover/history.py", "commits-gone-reset",
            "The group's offsets are gone, and your program begins elsewhere (`Recovery(without_commit=\"reset\")`, or "
            "offsets from `on_assign`): messages from there on are handled. Nothing to do if you meant it.",
        ),
        Line(
            "_kafka/recover/history.py", "late-commit",
            "An older commit arrived late; the store knows better. Nothing to do.",
        ),
        Line(
            "_kafka/recover/history.py", "rewound",
            "The store is ahead of the group, after a crash or a restored snapshot. If those records were never "
            "handled, remove the store.",
        ),
        Line(
            "_kafka/recover/settings.py", "snapshot-unreadable",
            "The folders of `Recovery(snapshot=)` are missing, empty or unreadable. Correct the path or the rights, or "
            "make a snapshot.",
        ),
        Line(
            "_kafka/recover/snapshot.py", "snapshot-not-taken",
            "No snapshot fits, for the reasons in the line, and the topic is replayed. Make a newer snapshot, or "
            "correct the path.",
        ),
        Line(
            "_kafka/recover/snapshot.py", "snapshot-taken",
            "The best snapshot was installed; others were passed over for the reasons in the line. Nothing to do.",
        ),
    ],
    "Store": [
        Line(
            "_engine/partition.py", "store-not-writable",
            "The disk is full, failing or read-only. Make room ([disk full](operations.md#when-the-disk-is-full)).",
        ),
        Line(
            "_engine/partition.py", "store-writable-again",
            "The trouble of the line before is over. Nothing to do.",
        ),
        Line(
            "_engine/partition.py", "unwritten-marks-dropped",
            'With `on_full_disk="unverified"` memory had no room for more marks, so that duplicates of them are '
            "delivered. Make room.",
        ),
        Line(
            "_engine/partition.py", "oldest-marks-dropped",
            "`max_disk` is too small for the window, which is shorter now. Raise `max_disk`, or shorten the window.",
        ),
        Line(
            "_store/generations.py", "bloom-filters-off",
            "The store's RocksDB files have lost a setting, so that look-ups are slow. Stop the consumer, and move the "
            "store away: recovery makes it again.",
        ),
        Line(
            "_store/generations.py", "filter-image-not-written",
            "The disk refused a file that only speeds up the next start. Check the disk if it repeats.",
        ),
        Line(
            "_store/generations.py", "filter-image-unusable",
            "A crash, or changed bytes; the filters are made again. Check the disk if it comes without a crash.",
        ),
        Line(
            "_store/generations.py", "filter-words-unusable",
            "A file of the store has changed bytes; the filter is made again from the keys. Check the disk.",
        ),
        Line(
            "_store/rocks.py", "store-not-reopened",
            "The store must be opened again. Its partition waits: remove the cause.",
        ),
        Line("_store/rocks.py", "snapshot-installed", "A snapshot was installed for a partition. Nothing to do."),
    ],
    "Units": [
        Line(
            "_units/gate.py", "unit-unfinished",
            "A unit was never ended, or is larger than the limits, and is delivered record by record. Correct the "
            "producer, or raise `Unit(records=, megabytes=)`.",
        ),
        Line(
            "_units/gate.py", "unit-crosses",
            "The producer sent one unit to two partitions, so it cannot be kept whole. Send a unit to one partition.",
            "unit … has records in orders[0] from offset … and in orders[1] from offset …: they are delivered one by "
            "one, as unverified; send a unit to one partition, e.g. with one key",
        ),
    ],
    "Handlers": [
        Line(
            "_transactions/committer.py", "transaction-aborted",
            "A [transaction](transactions.md) was given up, and its messages come again (`released`). Nothing to do, "
            "unless the same cause comes again and again, e.g. because your code takes longer than "
            "`transaction.timeout.ms`.",
        ),
        Line(
            "_transactions/committer.py", "transaction-not-aborted",
            "The broker did not confirm that a transaction was aborted. Close the consumer and start again.",
        ),
        Line(
            "_transactions/committer.py", "transaction-settled",
            "The connection broke while a transaction was committed; the group's offsets told how it ended. Nothing to "
            "do.",
        ),
        Line(
            "_runner/dead_letters.py", "handler-failed",
            "A handler raised in all of its attempts, and the message goes to the dead letters. Correct the cause, "
            "then [redrive](handlers.md) it.",
        ),
        Line(
            "_runner/runner.py", "handler-not-ended",
            "A handler or dead letter did not end in time, and the message comes again. Shorten the handler, or raise "
            "the limit.",
        ),
        Line(
            "_runner/runner.py", "handlers-not-ended",
            "`run()` ended with the error that follows while handlers were running. Their messages come again.",
        ),
    ],
    "asyncio": [
        Line(
            "aio/_consumer.py", "async-close-failed",
            "`async with` ended with an error, and closing raised another one: see that one above.",
        ),
        Line(
            "aio/_observers.py", "observers-slow",
            "The event loop does the observers' work later than events come. Let observers only note their events.",
        ),
        Line(
            "aio/_observers.py", "observer-not-ended",
            "An observer ran on for half of `revoke_deadline` after the consumer was closed. See what it awaits.",
        ),
        Line(
            "aio/_observers.py", "observer-failed",
            "Your coroutine observer raised an error; it was ignored. Correct the observer.",
        ),
        Line(
            "aio/_owner.py", "async-close-failed",
            "Nobody called `close()`, so that its error follows here. Completed work may come again.",
        ),
        Line(
            "aio/_owner.py", "async-left-open",
            "The program dropped a consumer, or ended its event loop, without closing it. Use `async with`.",
        ),
        Line(
            "aio/_owner.py", "handler-not-ended",
            "In a rebalance a message was not ended within half of `revoke_deadline`. Shorten the handler, or raise "
            "the limit.",
        ),
        Line(
            "aio/_run.py", "handler-ignored-cancellation",
            "A handler went on for half of `revoke_deadline` after its cancellation. Let it end by "
            "`asyncio.CancelledError`.",
        ),
    ],
    "Shared memory": [
        Line(
            "shared/_acknowledgements.py", "shared-outage",
            "The shared store (Redis or a database) does not answer. Check it; `Shared(on_outage=)` says whether "
            "messages wait.",
            "…; until it answers, new messages are held back (or: are delivered as unverified)",
        ),
        Line(
            "shared/_acknowledgements.py", "shared-outage-ended",
            "The outage of the line before is over. Nothing to do.",
        ),
        Line(
            "shared/_acknowledgements.py", "shared-completions-unsent",
            "The consumer closed during an outage, and completed IDs are only in its own store. Load them with "
            "`dedup snapshots load`.",
        ),
        Line(
            "shared/_claims.py", "shared-rewound",
            "The group was set back, but the shared memory still knows its IDs. Give `Shared` another prefix to handle "
            "these records again.",
        ),
        Line(
            "shared/_leases.py", "lease-renewal-failed",
            "Renewing the claims raised the error that follows; it is tried again. If it repeats, check the store.",
        ),
        Line(
            "shared/_settings.py", "shared-origins",
            "Two topics share a scope by `origins=`. Keep it for mirrors; use dead letters for retry topics.",
        ),
        Line(
            "shared/_settings.py", "lease-too-short",
            "A stopped process could lose its claims and keep its partitions. Give a lease of at least "
            "`session.timeout.ms`.",
        ),
    ],
    "Producer and outbox": [
        Line(
            "producer/_pipeline.py", "outbox-row-unreadable",
            "Another program changed a row of the outbox. Look at the row, and delete it.",
        ),
        Line(
            "producer/_pipeline.py", "outbox-not-writable",
            "The outbox's disk is full (`WARNING`; it goes on when there is room), or its file failed for good "
            "(`ERROR`; make another producer). Make room, or check the disk.",
            "outbox: …",
        ),
        Line(
            "producer/_pipeline.py", "outbox-writable-again",
            "The trouble of the warning before is over. Nothing to do.",
        ),
        Line(
            "producer/_pipeline.py", "outbox-message-refused",
            "The broker refused a message for good (too large, no rights, no topic). Correct the cause, then restart, "
            "or give `on_refused=`.",
        ),
        Line(
            "producer/_pipeline.py", "outbox-ended",
            "The outbox's thread ended with the error that follows. Make another producer: it sends the rest.",
        ),
        Line(
            "producer/_producer.py", "outbox-unconfirmed",
            "The producer closed before the broker confirmed all messages. Start a producer on the same outbox.",
        ),
        Line(
            "producer/_sqlite_outbox.py", "outbox-file-failed",
            "The end of the outbox's log is damaged, mostly by a power cut or a failing disk. Find the missing "
            "messages at their source, and send them again.",
            "outbox …: its log is damaged, and the messages behind the damage are missing; it is kept as …",
        ),
        Line(
            "producer/_sqlite_outbox.py", "outbox-damaged",
            'The outbox was not readable, and `on_damage="set-aside"` began a new one. Find its messages at their '
            "source, and send them again.",
        ),
    ],
    "Bridge": [
        Line("bridge/_bridge.py", "bridge-began", "The bridge began, with these guarantees. Nothing to do."),
        Line(
            "bridge/_bridge.py", "bridge-batch-repeated",
            "The target did not take a batch. If it stays, the line has the cause.",
        ),
        Line(
            "bridge/_bridge.py", "bridge-record-left-out",
            "With `--on-refused skip` a record that the target refuses is not copied. Raise the target's limits, and "
            "copy it again.",
            "bridge: the target refuses …; it is left out",
        ),
        Line(
            "bridge/_bridge.py", "bridge-same-cluster",
            "Two clusters were formatted with one ID, so transactions across them are not used. Give them different "
            "IDs.",
        ),
        Line(
            "bridge/_bridge.py", "bridge-headers-left-out",
            "The source has header names that the client cannot send. Correct the producer if you need them.",
        ),
        Line(
            "bridge/_source.py", "bridge-topic-recreated",
            "The source topic is a new one. Nothing to do if you meant it.",
        ),
        Line(
            "bridge/_source.py", "bridge-log-truncated",
            "The source's log was cut while the bridge ran. Look for the cause in the source's brokers.",
        ),
        Line(
            "bridge/_source.py", "bridge-offsets-of-another-cluster",
            "The bridge's group was copied from another cluster. Check that these offsets fit, or use another group.",
        ),
        Line(
            "bridge/_source.py", "bridge-commit-failed",
            "A commit was not accepted, and is repeated. If it stays, check the source's coordinator.",
        ),
        Line(
            "bridge/_source.py", "bridge-joins-again",
            "The group removed the bridge after a fatal error. Nothing to do unless it repeats.",
        ),
        Line(
            "bridge/_source.py", "bridge-partition-gone",
            "A partition of the source vanished during a run to the end. Its records that were not copied are lost.",
        ),
        Line(
            "bridge/_source.py", "bridge-topic-gone",
            "A topic of the bridge is gone. Remove it from the bridge, or create it again.",
        ),
        Line(
            "bridge/_target.py", "bridge-smaller-batches",
            "The target takes only smaller requests than the bridge's batches, which are smaller now. Nothing to do.",
        ),
    ],
    "Adapters": [
        Line(
            "redis/_clients.py", "redis-without-time-limit",
            "The client that you gave waits without a limit for a server that does not answer. Set its "
            "`socket_timeout`.",
        ),
        Line(
            "redis/_clients.py", "redis-settings-unknown",
            "The user may not read the server's settings. Check that it persists IDs and evicts none.",
        ),
        Line(
            "redis/_clients.py", "redis-not-persistent",
            "A restart of the server forgets IDs, and their duplicates are delivered. Set `appendonly yes` and "
            "`appendfsync everysec`.",
        ),
        Line(
            "redis/_clients.py", "redis-evicts",
            "A full server drops IDs within their window. Set `maxmemory-policy noeviction`.",
        ),
        Line(
            "sql/_shared.py", "sql-without-time-limit",
            "With this driver no time limit ends the wait for a server that does not answer. Use the one that the line "
            "names.",
        ),
        Line(
            "sql/_offsets.py", "sql-offset-unusable",
            "The topic was made again, or its log cut, after the offset in your database was stored. Nothing to do if "
            "you meant it.",
        ),
        Line(
            "_broker_file.py", "broker-file-left-out",
            "The broker's file has settings that the SDK does not need, or cannot keep. Look at each of them.",
            "…: not carried over: …",
        ),
    ],
}  # fmt: skip
"""The lines of the page, by heading."""


def calls() -> Iterator[Call]:
    """Yield the calls of loggers in the package, in the order of files and lines."""
    for folder in FOLDERS:
        for path in sorted(folder.rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if (
                    isinstance(node, ast.Call)
                    and isinstance(node.func, ast.Attribute)
                    and isinstance(node.func.value, ast.Name)
                    and node.func.value.id in ("log", "logger", "logging")
                    and (node.func.attr in _LEVELS or node.func.attr == "log")
                ):
                    yield _read(path.relative_to(folder).as_posix(), node, _LEVELS.get(node.func.attr))


def _read(file: str, node: ast.Call, level: str | None) -> Call:
    arguments = node.args if level else node.args[1:]
    levels = [each.attr for each in ast.walk(node.args[0]) if isinstance(each, ast.Attribute)]
    level = level or ", ".join(each for each in levels if each in ("INFO", "WARNING", "ERROR"))
    extra = [each.value for each in node.keywords if each.arg == "extra" and isinstance(each.value, ast.Dict)]
    events = [
        value
        for fields in extra
        for name, value in zip(fields.keys, fields.values, strict=True)
        if isinstance(name, ast.Constant) and name.value == "event"
    ]
    return Call(file, _text(arguments[0]), level, _text(events[0]) if events else "")


def _text(node: ast.expr) -> str:
    return str(node.value) if isinstance(node, ast.Constant) else ast.unparse(node)


def line_of(call: Call) -> Line | None:
    """Return the line that explains a call."""
    each = (line for lines in LINES.values() for line in lines)
    return next((line for line in each if (line.file, line.event) == (call.file, call.event)), None)


def page() -> str:
    """Return the page as Markdown."""
    found: dict[Line, list[Call]] = {}
    for call in calls():
        if line := line_of(call):
            found.setdefault(line, []).append(call)
    parts = [_HEAD]
    for heading, lines in LINES.items():
        parts.append(
            f"\n## {heading}\n\n| level | line | `event` | cause and next step |\n|---|---|---|---|\n"
        )
        for line in lines:
            levels = ", ".join(sorted({call.level for call in found[line]}))
            shown = line.shown or _shown(found[line][0].text)
            parts.append(f"| {levels} | `{shown}` | {_event(line)} | {line.advice} |\n")
    return "".join(parts)


def _event(line: Line) -> str:
    of_partition = "the name of the [event](reference.md#events)"
    return of_partition if line.event == _OF_PARTITION else f"`{line.event}`"


def _shown(text: str) -> str:
    """Return a text as people see it: a partition for its placeholders, an ellipsis for any other."""
    return _PLACEHOLDER.sub("…", text.replace("%s[%d]", "orders[0]").replace("`", ""))


if __name__ == "__main__":
    sys.stdout.write(page())
