"""Fields of log records: topic, partition, offset and event, for logs that programs read.

Each record of this package's loggers has the attributes ``event``, ``topic``, ``partition`` and ``offset``. Each call
gives its event as ``extra={"event": ...}``, a name that stays when the text changes. One filter sets the others, from
the text of the call and its arguments: ``%s[%d]`` stands for topic and partition everywhere, and ``@%d`` or
``offset %d`` for an offset. A field that a line does not name is None.
"""

from __future__ import annotations

import logging
import re
from typing import Final

FIELDS: Final = ("topic", "partition", "offset", "event")
LOGGERS: Final = (
    "dedup_sdk", "dedup_sdk._store.database", "dedup_sdk._store.generations", "dedup_sdk._store.rocks",
    "dedup_adapters",
)  # fmt: skip
"""The loggers of this package."""
_PLACEHOLDER: Final = re.compile(r"%[-#0 +]*[\d.]*[a-zA-Z]")
_PLACE: Final = re.compile(r"(?P<topic>.+)\[(?P<partition>\d+)\](?:@(?P<offset>\d+))?")


def set_fields(record: logging.LogRecord) -> bool:
    """Set those of `FIELDS` that the call did not give; nothing of this may fail, because the line would be lost."""
    arguments = record.args if isinstance(record.args, tuple) else ()
    fields = {**dict.fromkeys(FIELDS), **fields_of(str(record.msg), arguments)}
    record.__dict__.update({**fields, **record.__dict__})
    return True


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
