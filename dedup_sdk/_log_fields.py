"""Fields of log records: topic, partition, offset and event, for logs that programs read.

Each record of this package's loggers has the attributes ``topic``, ``partition``, ``offset`` and ``event``, as if they
were given by ``extra=``. One filter sets them, from the text of the call and its arguments: ``%s[%d]`` stands for topic
and partition everywhere, and ``@%d`` or ``offset %d`` for an offset. What a line does not name is None.

``event`` is the name of the line in `EVENTS`: it stays when the text changes. A line on an event of a partition has the
name of that event. `tests/docs/test_log_lines.py` holds the table equal to the calls.
"""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Final

FIELDS: Final = ("topic", "partition", "offset", "event")
LOGGERS: Final = (
    "dedup_sdk", "dedup_sdk._store.database", "dedup_sdk._store.generations", "dedup_sdk._store.rocks",
)  # fmt: skip
"""The loggers of this package."""
_OF_ARGUMENT: Final = "%s[%d]: %s: %s; going on at"
"""The beginning of the text of a line on an event of a partition, whose name is its third argument."""

EVENTS: Final[dict[str, dict[str, str]]] = {
    "_kafka/session.py": {
        "%s %s: %s; verdicts": "rebalance",
        "ready %s: %s": "partitions-ready",
        "the group's offsets are not known yet": "group-offsets-unknown",
        "%s[%d]: the start offset is not known yet": "start-offset-unknown",
        "commit on revoke failed": "commit-on-revoke-failed",
        "%s[%d]: abandoned after": "partition-abandoned",
        "%s[%d]: closing failed": "partition-close-failed",
        "commit before leaving failed": "commit-before-leaving-failed",
        "%s[%d]: paused: %d records wait": "backlog",
        "commit failed": "commit-failed",
    },
    "_kafka/assignment_api.py": {"no message can come": "not-subscribed"},
    "_kafka/framed_keys.py": {"%s: the keys begin with a schema's ID": "framed-keys"},
    "_kafka/missing_ids.py": {
        "%s: %d of %d records have no ID": "records-without-id",
        "%s has no ID by %s: %s raised": "id-function-raised",
    },
    "_kafka/assignment.py": {
        "%s[%d]: %d records are in flight": "nothing-completed",
        "%s[%d] is closed": "partition-failed",
        "the consumer closes while": "closed-while-recovering",
        "%s[%d]: your program assigned it at %d": "assigned-below-commit",
    },
    "_kafka/client_errors.py": {"%s: %s": "client-error"},
    "_kafka/commits.py": {
        "%s[%d]: the broker refused commit metadata": "commit-metadata-refused",
        "%s[%d]: commit of offset %d failed": "commit-refused",
    },
    "_kafka/consumer.py": {
        "consumer_group_metadata()": "transactions-complete-nothing",
        "%s: it is closed now": "dropped-without-close",
        "closing a consumer that was dropped failed": "dropped-close-failed",
        "closing failed too": "close-failed",
    },
    "_kafka/loop.py": {
        "another thread called poll()": "second-poller",
        "%s[%d]: %s; asking again": "broker-asked-again",
    },
    "_kafka/guards.py": {
        "%s() was ignored": "call-while-closing",
        "a callback raised while the consumer closes": "callback-raised-while-closing",
        "another error came": "second-error",
    },
    "_kafka/reader.py": {
        "%d readers did not close": "readers-not-closed",
        "%s The replay continues": "replay-waits",
    },
    "_kafka/closing.py": {
        "the member could not leave": "group-not-left",
        "the client did not close": "client-not-closed",
    },
    "_engine/partition.py": {
        "an observer failed at %s[%d]@%d": "observer-failed",
        "%s: completed IDs stay in memory": "store-not-writable",
        "%s: the store can be written again": "store-writable-again",
        "%s: disk full: dropped": "unwritten-marks-dropped",
        "%s: the store was above max_disk": "oldest-marks-dropped",
    },
    "_engine/deduplicator.py": {
        "an observer failed at %s": "observer-failed",
        _OF_ARGUMENT: "partition-event",
    },
    "_kafka/recovery.py": {
        "%s: %s": "recovery",
        "%s[%d]: offsets %d to %d are gone": "history-gone",
        "%s[%d]: its damaged store is kept": "store-damaged",
        "%s[%d]: store-locked": "store-locked",
        "%s[%d] waits for its store": "store-waited-for",
        "%s[%d]: recovery is repeated later": "recovery-repeated",
        "%s[%d]: the group's offsets are not known yet": "group-offsets-unknown",
        "commit of where the history begins failed": "beginning-commit-failed",
        "%s[%d]: the metadata of the committed offset %d belongs to another log": "commit-of-another-log",
        "%s[%d]: up to offset %d the group used another rule": "commit-of-another-rule",
        "%s[%d]: the group has committed %d without": "commit-without-history",
        "%s[%d]: the group has committed %d, and": "history-assumed",
        "%s[%d]: the metadata of the committed offset %d names a completed record": "commit-of-other-records",
        "%s[%d]: the group's commits are gone": "commits-gone",
        "%s[%d]: the group has no committed offset": "commits-gone-reset",
        "%s[%d]: a commit of %d came after": "late-commit",
        "%s[%d]: its store has offsets up to %d as processed": "rewound",
        "Recovery(snapshot=...): no snapshot can be read now": "snapshot-unreadable",
        "%s[%d]: snapshot not taken": "snapshot-not-taken",
        "%s[%d]: snapshot %s taken": "snapshot-taken",
    },
    "_kafka/log_check.py": {
        "%s[%d]: the group committed %d, but a transaction": "open-transaction",
    },
    "_store/database.py": {"this process may open": "file-limit-raised"},
    "_store/generations.py": {
        "store %s: RocksDB's Bloom filters are off": "bloom-filters-off",
        "store %s: the filter image was not written": "filter-image-not-written",
        "store %s: filter image not usable": "filter-image-unusable",
        "store %s: filter words of %s not usable": "filter-words-unusable",
    },
    "_store/rocks.py": {"installed snapshot": "snapshot-installed"},
    "_units/gate.py": {
        "%s[%d]: unit %s": "unit-unfinished",
        "%s": "unit-crosses",
    },
    "_runner/runner.py": {
        "%s[%d]@%d: the handler failed": "handler-failed",
        "%s[%d]@%d: stopped waiting": "handler-not-ended",
        "waiting for the running handlers failed": "handlers-not-ended",
    },
    "aio/_consumer.py": {"closing failed too": "async-close-failed"},
    "aio/_observers.py": {
        "%d events wait for coroutine observers": "observers-slow",
        "%d events of coroutine observers": "observer-not-ended",
        "an observer failed at %s": "observer-failed",
    },
    "aio/_owner.py": {
        "closing failed, after a cancellation": "async-close-failed",
        "an AsyncDedupConsumer was left open": "async-left-open",
        "closing an AsyncDedupConsumer": "async-close-failed",
        "%s[%d]@%d: stopped waiting": "handler-not-ended",
    },
    "aio/_run.py": {
        "%s[%d]@%d: its handler ignored": "handler-ignored-cancellation",
        "%s[%d]@%d: the handler failed": "handler-failed",
    },
    "shared/_acknowledgements.py": {
        "%s; until it answers": "shared-outage",
        "the shared store answers again": "shared-outage-ended",
        "shared store unreachable": "shared-completions-unsent",
    },
    "shared/_claims.py": {"%s[%d] was rewound": "shared-rewound"},
    "shared/_leases.py": {"lease renewal failed": "lease-renewal-failed"},
    "shared/_settings.py": {
        "%s: equal IDs are one message": "shared-origins",
        "lease=%g s is shorter": "lease-too-short",
    },
    "producer/_pipeline.py": {
        "outbox: row %s is not a message": "outbox-row-unreadable",
        "outbox: %s": "outbox-not-writable",
        "outbox: writing works again": "outbox-writable-again",
        "outbox: a message for topic": "outbox-message-refused",
        "outbox: unexpected error": "outbox-ended",
    },
    "producer/_producer.py": {"outbox: %s not confirmed": "outbox-unconfirmed"},
    "producer/_sqlite_outbox.py": {
        "%s": "outbox-file-failed",
        "outbox: %s was damaged": "outbox-damaged",
    },
    "bridge/_bridge.py": {
        "bridge: group": "bridge-began",
        "bridge: a batch of %d records is sent again": "bridge-batch-repeated",
        "bridge: %s; it is left out": "bridge-record-left-out",
        "bridge: source and target have the same cluster ID": "bridge-same-cluster",
        "bridge: %s has %d headers": "bridge-headers-left-out",
    },
    "bridge/_source.py": {
        "bridge: topic %s was deleted and created again": "bridge-topic-recreated",
        "bridge: %s[%d] ended at": "bridge-log-truncated",
        "bridge: the group's offsets of topic": "bridge-offsets-of-another-cluster",
        "bridge: the group's commit failed": "bridge-commit-failed",
        "bridge: joins its group again": "bridge-joins-again",
        "bridge: %s[%d] had records": "bridge-partition-gone",
        "bridge: topic %s was deleted at the source": "bridge-topic-gone",
    },
    "bridge/_target.py": {"bridge: the target refuses large requests": "bridge-smaller-batches"},
}  # fmt: skip
"""For each file the names of its lines, by the beginning of their text; the longest beginning that fits counts."""

_PACKAGE: Final = str(Path(__file__).parent) + "/"
_PLACEHOLDER: Final = re.compile(r"%[-#0 +]*[\d.]*[a-zA-Z]")
_PLACE: Final = re.compile(r"(?P<topic>.+)\[(?P<partition>\d+)\](?:@(?P<offset>\d+))?")


def set_fields(record: logging.LogRecord) -> bool:
    """Set `FIELDS` of a record, which passes; nothing of this may fail, because the line would be lost."""
    arguments = record.args if isinstance(record.args, tuple) else ()
    fields = {**dict.fromkeys(FIELDS), **fields_of(str(record.msg), arguments)}
    fields["event"] = event_of(record.pathname.removeprefix(_PACKAGE), str(record.msg), arguments)
    record.__dict__.update(fields)
    return True


def event_of(file: str, text: str, arguments: tuple[object, ...]) -> str | None:
    """Return the name of a line; None if it has none, as lines at level DEBUG."""
    if text.startswith(_OF_ARGUMENT) and len(arguments) > 2:  # noqa: PLR2004 (the place in the text above)
        return str(arguments[2])
    fitting = [begins for begins in EVENTS.get(file, {}) if text.startswith(begins)]
    return EVENTS[file][max(fitting, key=len)] if fitting else None


def fields_of(text: str, arguments: tuple[object, ...]) -> dict[str, object]:
    """Return topic, partition and offset, as far as a line names them: the first of each."""
    fields: dict[str, object] = {}
    end = 0
    for found, argument in zip(_PLACEHOLDER.finditer(text), arguments, strict=False):
        between, end = text[end : found.start()], found.end()
        if text.startswith("[%d]", end):
            fields.setdefault("topic", argument)
        elif between == "[":
            fields.setdefault("partition", argument)
        elif between == "]@" or (found[0] == "%d" and between.endswith(("offset ", "going on at "))):
            fields.setdefault("offset", argument)
        elif not fields and isinstance(argument, str) and (place := _PLACE.fullmatch(argument)):
            fields["topic"], fields["partition"] = place["topic"], int(place["partition"])
            if place["offset"] is not None:
                fields["offset"] = int(place["offset"])
    return fields


def set_log_fields() -> None:
    """Have each record of this package's loggers get its fields."""
    for name in LOGGERS:
        logging.getLogger(name).addFilter(set_fields)
