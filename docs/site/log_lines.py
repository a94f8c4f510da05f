"""Writes the page docs/log-lines.md from the calls in the code: ``python docs/site/log_lines.py > docs/log-lines.md``.

`LINES` has one sentence for each line that ``dedup_sdk`` can log at INFO or above. The texts and levels are read from
the code, so the page cannot name a line that is not logged.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from dedup_sdk._log_fields import EVENTS

PACKAGE: Final = Path(__file__).parents[2] / "dedup_sdk"

_LEVELS: Final = {
    "info": "INFO",
    "warning": "WARNING",
    "error": "ERROR",
    "exception": "ERROR",
    "critical": "CRITICAL",
}
_IN_VARIABLES: Final = {"line": "ready %s: %s"}
_PLACEHOLDER: Final = re.compile(r"%(\.\d)?[srdgf]")
_WORD: Final = re.compile(r"(?<!%)\b[a-z]{3,}")
_HEAD: Final = """\
# Log lines

Every line that `dedup_sdk` writes at level `INFO` or above (logger `dedup_sdk`; stores: `dedup_sdk._store`), with its
cause and your next step. `orders[0]` stands for topic and partition, `…` for a part that differs. Debug lines and lines
of the client are not here. Each record has the fields `event`, `topic`, `partition` and `offset`
([logs as JSON](monitoring.md#logs)). This page is made from the code.
"""


class Call(NamedTuple):
    """A call of a logger: the file in the package, the text with its placeholders, and the level."""

    file: str
    text: str
    level: str


class Line(NamedTuple):
    """One line of the page. ``begins`` identifies the call in ``file``: the beginning of its text.

    ``shown`` replaces a text that is only placeholders.
    """

    file: str
    begins: str
    advice: str
    shown: str = ""


LINES: Final[dict[str, list[Line]]] = {
    "Rebalances": [
        Line(
            "_kafka/session.py", "%s %s: %s; verdicts",
            "The group assigned partitions to this consumer, or took them away (`lost`: without a last commit). "
            "Nothing to do; many in a row mean an unstable group: check `max.poll.interval.ms` and restarts.",
            "assigned (or: revoked, lost) … partitions: …; verdicts since the last rebalance: …",
        ),
        Line(
            "_kafka/session.py", "line",
            "These partitions deliver now, and those after `still recovering` do not yet. Nothing to do; if one stays, "
            "look up its [hindrance](reference.md#states-of-a-partition).",
            "ready … partitions: …; … still recovering: …",
        ),
        Line(
            "_kafka/session.py", "the group's offsets are not known yet",
            "The coordinator did not answer at the assignment; the request is repeated. If it stays, check brokers.",
        ),
        Line(
            "_kafka/session.py", "%s[%d]: the start offset is not known yet",
            "A broker was slow at the assignment; recovery asks again. Nothing to do.",
        ),
        Line(
            "_kafka/session.py", "commit on revoke failed",
            "The group or a broker refused the last commit of a revoked partition. Expect repeats; if it comes often, "
            "check the coordinator, and raise `revoke_deadline`.",
        ),
        Line(
            "_kafka/session.py", "%s[%d]: abandoned after",
            "Handlers, the disk or the broker took longer than `revoke_deadline`. Expect repeats; raise "
            "`revoke_deadline`, or shorten the handlers.",
        ),
        Line(
            "_kafka/session.py", "%s[%d]: closing failed",
            "The store of a partition that was taken away could not be written. Expect repeats; check the disk.",
        ),
        Line(
            "_kafka/session.py", "commit before leaving failed",
            "The last commit before the consumer left did not succeed. Messages since the one before come again.",
        ),
    ],
    "Consumer": [
        Line(
            "_kafka/assignment_api.py", "no message can come",
            "The program asks for messages before it chose a topic. Call `subscribe()` or `assign()` first.",
        ),
        Line(
            "_kafka/framed_keys.py", "%s: the keys begin with a schema's ID",
            "Use `unframed-key` as the [ID](schema-registry.md): the key without the schema's ID.",
        ),
        Line(
            "_kafka/missing_ids.py", "%s: %d of %d records have no ID",
            "The ID spec does not fit the topic, so its duplicates are handled. The end of the line has what is known "
            "of these records, e.g. their headers: correct the spec, or the producer "
            "([IDs](ids.md#records-without-an-id)).",
        ),
        Line(
            "_kafka/missing_ids.py", "%s has no ID by %s: %s raised",
            "Your ID function raised its first exception. Correct the function, at the file and line that the line "
            "has.",
        ),
        Line(
            "_kafka/assignment.py", "%s[%d]: %d records are in flight",
            "The program completes no message, so nothing is remembered. Call `store_offsets()` or `commit()` for "
            "handled messages ([completion](completion.md)).",
        ),
        Line(
            "_kafka/assignment.py", "%s[%d] is closed",
            "An error outside the client and the store came twice at one offset, so the partition stopped. Remove the "
            "cause, then restart the consumer.",
        ),
        Line(
            "_kafka/session.py", "%s[%d]: paused: %d records wait",
            "One message is not completed, and too many duplicates of it or records after it wait. Find the handler "
            "that hangs.",
        ),
        Line(
            "_kafka/client_errors.py", "%s: %s",
            "The client reports an error that it recovers from by itself, named by its code. If it stays, check the "
            "brokers, the network, and the rights of the user.",
            "_TRANSPORT: …",
        ),
        Line(
            "_kafka/commits.py", "%s[%d]: the broker refused commit metadata",
            "The broker's `offset.metadata.max.bytes` is smaller than the commit's text. Raise it to 4096 or more, or "
            "expect repeats of messages that were completed out of order.",
        ),
        Line(
            "_kafka/commits.py", "%s[%d]: commit of offset %d failed",
            "The group rejected a commit, mostly during a rebalance. Nothing to do unless it stays; then check the "
            "coordinator and the rights of the user.",
        ),
        Line(
            "_kafka/session.py", "commit failed",
            "The client could not send a commit. Nothing to do unless it stays; then check the coordinator.",
        ),
        Line(
            "_kafka/consumer.py", "consumer_group_metadata()",
            "The program lets a transaction commit its offsets, which completes no message here. Call "
            "`store_offsets()` after each committed transaction ([completion](completion.md)).",
        ),
        Line(
            "_kafka/loop.py", "another thread called poll()",
            "Two threads use one consumer, and a call was refused. Give each thread its own consumer, or poll in one.",
        ),
        Line(
            "_kafka/loop.py", "%s[%d]: %s; asking again",
            "A broker did not answer a request about the offset that ends or begins a partition; it is repeated. If it "
            "stays, check the broker.",
        ),
        Line(
            "_kafka/guards.py", "%s() was ignored",
            "A callback tried to change the assignment while the consumer closed. Remove that call from the callback.",
        ),
        Line(
            "_kafka/assignment.py", "the consumer closes while",
            "Your program ended before the partitions had recovered. If its loop ends with the first `None`, "
            "[iterate with `idle_timeout`](completion.md#when-does-a-loop-end).",
        ),
        Line(
            "_kafka/guards.py", "a callback raised while the consumer closes",
            "A callback of yours raised inside `close()`, where nobody would get the error. Mend the callback.",
        ),
        Line(
            "_kafka/guards.py", "another error came",
            "A second error came before the first one reached your program. Correct your callbacks; report an error of "
            "this package.",
        ),
        Line(
            "_kafka/reader.py", "%d readers did not close",
            "A client of a recovery waits for its broker, and the consumer goes on. Check the broker; report it if it "
            "stays.",
        ),
        Line(
            "_kafka/closing.py", "the member could not leave",
            "The coordinator did not answer at the end. Nothing to do: the group removes the member later.",
        ),
        Line(
            "_kafka/closing.py", "the client did not close",
            "The client waits for a coordinator that does not answer, and the program goes on. Check the coordinator.",
        ),
        Line(
            "_kafka/consumer.py", "%s: it is closed now",
            "The program dropped the last reference to a consumer. Use it in a `with` block, or call `close()`.",
        ),
        Line(
            "_kafka/consumer.py", "closing a consumer that was dropped failed",
            "As above, and the close raised the error that follows. Call `close()` yourself, and handle its error.",
        ),
        Line(
            "_kafka/consumer.py", "closing failed too",
            "Your block raised an error, and closing raised another, which follows. Look at the first one first.",
        ),
        Line(
            "_engine/partition.py", "an observer failed at %s[%d]@%d",
            "Your observer raised an error for a verdict; it was ignored. Correct the observer.",
        ),
        Line(
            "_engine/deduplicator.py", "an observer failed at %s",
            "Your observer's `partition_event` raised an error; it was ignored. Correct the observer.",
        ),
    ],
    "Recovery": [
        Line(
            "_engine/deduplicator.py", "%s[%d]: %s: %s; going on at",
            "A partition event: each has its cause and next step in the [list of "
            "events](reference.md#events).",
            "orders[0]: log-truncated: …; going on at …",
        ),
        Line(
            "_kafka/recovery.py", "%s: %s",
            "A replay goes on, and the line has its rate and remaining time. Nothing to do; a "
            "[snapshot](snapshots.md) makes it shorter.",
            "orders[0]: replayed up to offset … of …, … offsets a second, … to go",
        ),
        Line(
            "_kafka/recovery.py", "%s[%d]: offsets %d to %d are gone",
            "Retention removed records of the window. Raise `retention.ms`, or keep "
            "[snapshots](snapshots.md).",
        ),
        Line(
            "_kafka/recovery.py", "%s[%d]: its damaged store is kept",
            "The disk changed bytes of the store, or lost them. Check the disk, then delete the folder that was kept.",
        ),
        Line(
            "_kafka/recovery.py", "%s[%d]: store-locked",
            "Another process of this host keeps the store open. End that process.",
        ),
        Line(
            "_kafka/recovery.py", "%s[%d] waits for its store",
            "The store cannot be opened now: at `INFO` another process has it, at `ERROR` the disk is full or failing, "
            "or the process may open too few files. One line for all partitions. End the process; make room; raise "
            "`ulimit -Hn`.",
        ),
        Line(
            "_store/database.py", "this process may open",
            "The store needs many files, so the soft limit of the process was raised to the hard one.",
        ),
        Line(
            "_kafka/recovery.py", "%s[%d]: recovery is repeated later",
            "A broker did not answer during the recovery. If it stays, check the partition's leader and the rights of "
            "the user.",
        ),
        Line(
            "_kafka/recovery.py", "%s[%d]: the group's offsets are not known yet",
            "The coordinator does not answer. If it stays, check the brokers and the rights of the group.",
        ),
        Line(
            "_kafka/recovery.py", "commit of where the history begins failed",
            "The first commit of a partition was not accepted, so it delivers nothing yet. If it stays, check the "
            "coordinator and the rights of the group.",
        ),
        Line(
            "_kafka/reader.py", "%s The replay continues",
            "The broker sends no records to a replay for a minute. If it stays, check the partition's leader.",
            "no record … The replay continues when records arrive",
        ),
        Line(
            "_kafka/log_check.py", "%s[%d]: the group committed %d, but a transaction",
            "A producer left a transaction open before the committed offset. Wait for its timeout, or abort it with "
            "`kafka-transactions.sh`.",
        ),
        Line(
            "_kafka/recovery.py", "%s[%d]: the metadata of the committed offset %d belongs to another log",
            "The group's offsets come from another cluster or a deleted topic. If they are a true copy, consider "
            '`Recovery(history="assume-processed")`; otherwise wait until the window has filled.',
        ),
        Line(
            "_kafka/recovery.py", "%s[%d]: up to offset %d the group used another rule",
            "The ID spec, strategy, kind of window or `isolation.level` changed. Nothing to do if you meant it; else "
            "restore the old setting.",
        ),
        Line(
            "_kafka/recovery.py", "%s[%d]: the group has committed %d without",
            "The group was used before without this package, or a tool or another program has set its offsets. Choose "
            "with `dedup adopt` or `Recovery(history=)` ([first steps](start.md#your-group-exists-already)); to set "
            "a group back, use `dedup rewind`.",
        ),
        Line(
            "_kafka/assignment.py", "%s[%d]: your program assigned it at %d",
            "Your `on_assign` or `assign()` gives an offset below the committed one. Choose with "
            "[`Recovery(set_back=)`](recovery.md).",
        ),
        Line(
            "_kafka/recovery.py", "%s[%d]: the group has committed %d, and",
            "The last commit has no valid text, because the group was used without this package or a tool reset it. "
            "Use `dedup rewind` instead of a reset tool.",
        ),
        Line(
            "_kafka/recovery.py", "%s[%d]: the metadata of the committed offset %d names a completed record",
            "The log was cut above the committed offset. Expect repeats, and look for the cause in the brokers "
            "(unclean leader election).",
        ),
        Line(
            "_kafka/recovery.py", "%s[%d]: the group's commits are gone",
            "The group's offsets were deleted, or expired (`offsets.retention.minutes`). Nothing to do if delivery is "
            "to go on where it stopped; to handle earlier records again, use `dedup rewind`.",
        ),
        Line(
            "_kafka/recovery.py", "%s[%d]: the group has no committed offset",
            "The group's offsets are gone, and your program begins elsewhere (`Recovery(without_commit=\"reset\")`, or "
            "offsets from `on_assign`): messages from there on are handled. Nothing to do if you meant it.",
        ),
        Line(
            "_kafka/recovery.py", "%s[%d]: a commit of %d came after",
            "An older commit arrived late; the store knows better. Nothing to do.",
        ),
        Line(
            "_kafka/recovery.py", "%s[%d]: its store has offsets up to %d as processed",
            "The store is ahead of the group, after a crash or a restored snapshot. If those records were never "
            "handled, remove the store.",
        ),
        Line(
            "_kafka/recovery.py",
            "Recovery(snapshot=...): no snapshot can be read now",
            "The folders of `Recovery(snapshot=)` are missing, empty or unreadable. Correct the path or the rights, or "
            "make a snapshot.",
        ),
        Line(
            "_kafka/recovery.py", "%s[%d]: snapshot not taken",
            "No snapshot fits, for the reasons in the line, and the topic is replayed. Make a newer snapshot, or "
            "correct the path.",
        ),
        Line(
            "_kafka/recovery.py", "%s[%d]: snapshot %s taken",
            "The best snapshot was installed; others were passed over for the reasons in the line. Nothing to do.",
        ),
    ],
    "Store": [
        Line(
            "_engine/partition.py", "%s: completed IDs stay in memory",
            "The disk is full, failing or read-only. Make room ([disk full](operations.md#when-the-disk-is-full)).",
        ),
        Line(
            "_engine/partition.py", "%s: the store can be written again",
            "The trouble of the line before is over. Nothing to do.",
        ),
        Line(
            "_engine/partition.py", "%s: disk full: dropped",
            'With `on_full_disk="unverified"` memory had no room for more marks, so that duplicates of them are '
            "delivered. Make room.",
        ),
        Line(
            "_engine/partition.py", "%s: the store was above max_disk",
            "`max_disk` is too small for the window, which is shorter now. Raise `max_disk`, or shorten the window.",
        ),
        Line(
            "_store/generations.py", "store %s: RocksDB's Bloom filters are off",
            "The store's RocksDB files have lost a setting, so that look-ups are slow. Stop the consumer, and move the "
            "store away: recovery makes it again.",
        ),
        Line(
            "_store/generations.py", "store %s: the filter image was not written",
            "The disk refused a file that only speeds up the next start. Check the disk if it repeats.",
        ),
        Line(
            "_store/generations.py", "store %s: filter image not usable",
            "A crash, or changed bytes; the filters are made again. Check the disk if it comes without a crash.",
        ),
        Line(
            "_store/generations.py", "store %s: filter words of %s not usable",
            "A file of the store has changed bytes; the filter is made again from the keys. Check the disk.",
        ),
        Line("_store/rocks.py", "installed snapshot", "A snapshot was installed for a partition. Nothing to do."),
    ],
    "Units": [
        Line(
            "_units/gate.py", "%s[%d]: unit %s",
            "A unit was never ended, or is larger than the limits, and is delivered record by record. Correct the "
            "producer, or raise `Unit(records=, megabytes=)`.",
        ),
        Line(
            "_units/gate.py", "%s",
            "The producer sent one unit to two partitions, so it cannot be kept whole. Send a unit to one partition.",
            "unit … has records in orders[0] from offset … and in orders[1] from offset …: they are delivered one by "
            "one, as unverified; send a unit to one partition, e.g. with one key",
        ),
    ],
    "Handlers": [
        Line(
            "_runner/runner.py", "%s[%d]@%d: the handler failed",
            "A handler raised in all of its attempts, and the message goes to the dead letters. Correct the cause, "
            "then [redrive](handlers.md) it.",
        ),
        Line(
            "_runner/runner.py", "%s[%d]@%d: stopped waiting",
            "A handler or dead letter did not end in time, and the message comes again. Shorten the handler, or raise "
            "the limit.",
        ),
        Line(
            "_runner/runner.py", "waiting for the running handlers failed",
            "`run()` ended with the error that follows while handlers were running. Their messages come again.",
        ),
    ],
    "asyncio": [
        Line(
            "aio/_consumer.py", "closing failed too",
            "`async with` ended with an error, and closing raised another one: see that one above.",
        ),
        Line(
            "aio/_observers.py", "%d events wait for coroutine observers",
            "The event loop does the observers' work later than events come. Let observers only note their events.",
        ),
        Line(
            "aio/_observers.py", "%d events of coroutine observers",
            "An observer ran on for half of `revoke_deadline` after the consumer was closed. See what it awaits.",
        ),
        Line(
            "aio/_observers.py", "an observer failed at %s",
            "Your coroutine observer raised an error; it was ignored. Correct the observer.",
        ),
        Line(
            "aio/_owner.py", "closing failed, after a cancellation",
            "`close()` was cancelled, so that its own error follows here. Completed work may come again.",
        ),
        Line(
            "aio/_owner.py", "an AsyncDedupConsumer was left open",
            "The program dropped a consumer, or ended its event loop, without closing it. Use `async with`.",
        ),
        Line(
            "aio/_owner.py", "closing an AsyncDedupConsumer",
            "The error of closing such a consumer follows. Completed work may come again.",
        ),
        Line(
            "aio/_owner.py", "%s[%d]@%d: stopped waiting",
            "In a rebalance a message was not ended within half of `revoke_deadline`. Shorten the handler, or raise "
            "the limit.",
        ),
        Line(
            "aio/_run.py", "%s[%d]@%d: its handler ignored",
            "A handler went on for half of `revoke_deadline` after its cancellation. Let it end by "
            "`asyncio.CancelledError`.",
        ),
        Line(
            "aio/_run.py", "%s[%d]@%d: the handler failed",
            "A handler raised in all of its attempts, and the message goes to the dead letters. Correct the cause, "
            "then [redrive](handlers.md) it.",
        ),
    ],
    "Shared memory": [
        Line(
            "shared/_acknowledgements.py", "%s; until it answers",
            "The shared store (Redis or a database) does not answer. Check it; `Shared(on_outage=)` says whether "
            "messages wait.",
            "…; until it answers, new messages are held back (or: are delivered as unverified)",
        ),
        Line(
            "shared/_acknowledgements.py", "the shared store answers again",
            "The outage of the line before is over. Nothing to do.",
        ),
        Line(
            "shared/_acknowledgements.py", "shared store unreachable",
            "The consumer closed during an outage, and completed IDs are only in its own store. Load them with "
            "`dedup snapshots load`.",
        ),
        Line(
            "shared/_claims.py", "%s[%d] was rewound",
            "The group was set back, but the shared memory still knows its IDs. Give `Shared` another prefix to handle "
            "these records again.",
        ),
        Line(
            "shared/_leases.py", "lease renewal failed",
            "Renewing the claims raised the error that follows; it is tried again. If it repeats, check the store.",
        ),
        Line(
            "shared/_settings.py", "%s: equal IDs are one message",
            "Two topics share a scope by `origins=`. Keep it for mirrors; use dead letters for retry topics.",
        ),
        Line(
            "shared/_settings.py", "lease=%g s is shorter",
            "A stopped process could lose its claims and keep its partitions. Give a lease of at least "
            "`session.timeout.ms`.",
        ),
    ],
    "Producer and outbox": [
        Line(
            "producer/_pipeline.py", "outbox: row %s is not a message",
            "Another program changed a row of the outbox. Look at the row, and delete it.",
        ),
        Line(
            "producer/_pipeline.py", "outbox: %s",
            "The outbox's disk is full (`WARNING`; it goes on when there is room), or its file failed for good "
            "(`ERROR`; make another producer). Make room, or check the disk.",
            "outbox: …",
        ),
        Line(
            "producer/_pipeline.py", "outbox: writing works again",
            "The trouble of the warning before is over. Nothing to do.",
        ),
        Line(
            "producer/_pipeline.py", "outbox: a message for topic",
            "The broker refused a message for good (too large, no rights, no topic). Correct the cause, then restart, "
            "or give `on_refused=`.",
        ),
        Line(
            "producer/_pipeline.py", "outbox: unexpected error",
            "The outbox's thread ended with the error that follows. Make another producer: it sends the rest.",
        ),
        Line(
            "producer/_producer.py", "outbox: %s not confirmed",
            "The producer closed before the broker confirmed all messages. Start a producer on the same outbox.",
        ),
        Line(
            "producer/_sqlite_outbox.py", "%s",
            "The end of the outbox's log is damaged, mostly by a power cut or a failing disk. Find the missing "
            "messages at their source, and send them again.",
            "outbox …: its log is damaged, and the messages behind the damage are missing; it is kept as …",
        ),
        Line(
            "producer/_sqlite_outbox.py", "outbox: %s was damaged",
            'The outbox was not readable, and `on_damage="set-aside"` began a new one. Find its messages at their '
            "source, and send them again.",
        ),
    ],
    "Bridge": [
        Line("bridge/_bridge.py", "bridge: group", "The bridge began, with these guarantees. Nothing to do."),
        Line(
            "bridge/_bridge.py", "bridge: a batch of %d records is sent again",
            "The target did not take a batch. If it stays, the line has the cause.",
        ),
        Line(
            "bridge/_bridge.py", "bridge: %s; it is left out",
            "With `--on-refused skip` a record that the target refuses is not copied. Raise the target's limits, and "
            "copy it again.",
            "bridge: the target refuses …; it is left out",
        ),
        Line(
            "bridge/_bridge.py", "bridge: source and target have the same cluster ID",
            "Two clusters were formatted with one ID, so transactions across them are not used. Give them different "
            "IDs.",
        ),
        Line(
            "bridge/_bridge.py", "bridge: %s has %d headers",
            "The source has header names that the client cannot send. Correct the producer if you need them.",
        ),
        Line(
            "bridge/_source.py", "bridge: topic %s was deleted and created again",
            "The source topic is a new one. Nothing to do if you meant it.",
        ),
        Line(
            "bridge/_source.py", "bridge: %s[%d] ended at",
            "The source's log was cut while the bridge ran. Look for the cause in the source's brokers.",
        ),
        Line(
            "bridge/_source.py", "bridge: the group's offsets of topic",
            "The bridge's group was copied from another cluster. Check that these offsets fit, or use another group.",
        ),
        Line(
            "bridge/_source.py", "bridge: the group's commit failed",
            "A commit was not accepted, and is repeated. If it stays, check the source's coordinator.",
        ),
        Line(
            "bridge/_source.py", "bridge: joins its group again",
            "The group removed the bridge after a fatal error. Nothing to do unless it repeats.",
        ),
        Line(
            "bridge/_source.py", "bridge: %s[%d] had records",
            "A partition of the source vanished during a run to the end. Its records that were not copied are lost.",
        ),
        Line(
            "bridge/_source.py", "bridge: topic %s was deleted at the source",
            "A topic of the bridge is gone. Remove it from the bridge, or create it again.",
        ),
        Line(
            "bridge/_target.py", "bridge: the target refuses large requests",
            "The target takes only smaller requests than the bridge's batches, which are smaller now. Nothing to do.",
        ),
    ],
}  # fmt: skip
"""The lines of the page, by heading."""


def calls() -> Iterator[Call]:
    """Yield the calls of loggers in the package, those at DEBUG left out, in the order of files and lines."""
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and isinstance(node.func.value, ast.Name)
                and node.func.value.id in ("log", "logger", "logging")
                and (node.func.attr in _LEVELS or node.func.attr == "log")
            ):
                level = _LEVELS.get(node.func.attr)
                arguments = node.args if level else node.args[1:]
                levels = [each.attr for each in ast.walk(node.args[0]) if isinstance(each, ast.Attribute)]
                level = level or ", ".join(each for each in levels if each in ("INFO", "WARNING", "ERROR"))
                text = arguments[0]
                template = text.value if isinstance(text, ast.Constant) else ast.unparse(text)
                yield Call(path.relative_to(PACKAGE).as_posix(), str(template), level)


def line_of(call: Call) -> Line | None:
    """Return the line that explains a call: of those whose beginning fits, the longest."""
    fitting = [
        line for lines in LINES.values() for line in lines if line.file == call.file if _fits(line, call)
    ]
    return max(fitting, key=lambda line: len(line.begins), default=None)


def _fits(line: Line, call: Call) -> bool:
    """Whether a call's text begins as the line says; where that has no word, it must be the whole text."""
    return call.text == line.begins or (call.text.startswith(line.begins) and bool(_WORD.search(line.begins)))


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


def beginning_of(line: Line) -> str:
    """Return the beginning of a line's text as the logger gets it: one call has its text in a variable."""
    return _IN_VARIABLES.get(line.begins, line.begins)


def _event(line: Line) -> str:
    name = EVENTS[line.file][beginning_of(line)]
    return "the name of the [event](reference.md#events)" if name == "partition-event" else f"`{name}`"


def _shown(text: str) -> str:
    """Return a text as people see it: a partition for its placeholders, an ellipsis for any other."""
    return _PLACEHOLDER.sub("…", text.replace("%s[%d]", "orders[0]").replace("`", ""))


if __name__ == "__main__":
    sys.stdout.write(page())
