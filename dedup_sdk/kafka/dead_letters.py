"""What a dead letter says of the message that it stands for.

A dead letter has the key, the value and the headers of its message, and besides, each as text in a header whose name
begins with ``dedup-dead-letter-``:

    topic, partition, offset    the coordinates of the message
    timestamp-ms                its timestamp, -1 if it had none
    group                       the consumer group whose handler failed
    attempts                    how often its handler was called by then
    id                          the digest of its dedup ID, 32 hex digits; absent when it had none
    error-type, error           what the handler raised in the end, shortened, credentials masked

and the header ``dedup-redrive``, by which the message is handled once more where the dead letter is sent back with its headers
(`dedup_sdk.ids.redrive`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Self

from dedup_sdk.ids.redrive import REDRIVE_HEADER, redrive_value
from dedup_sdk.kafka.error_text import error_text
from dedup_sdk.kafka.fields import as_record
from dedup_sdk.marks import DIGEST_BYTES

PREFIX = "dedup-dead-letter-"

_NUMBER = re.compile(r"-?\d{1,19}", re.ASCII)
_SMALLEST, _LARGEST = -(2**63), 2**63 - 1
_DIGEST = re.compile(rf"[0-9a-f]{{{2 * DIGEST_BYTES}}}", re.ASCII)

Headers = list[tuple[str, str | bytes | None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """Which message failed, in which group, and why.

    ``timestamp_ms`` is -1 for a message without a timestamp, ``digest`` (16 bytes) None for one without an ID. ``error`` is
    one line of at most 1,000 characters.
    """

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    group: str
    attempts: int
    digest: bytes | None
    error_type: str
    error: str

    @classmethod
    def of(
        cls,
        message: Any,
        error: BaseException,
        *,
        group: str,
        attempts: int,
        digest: bytes | None,
    ) -> Self:
        """Describe a message whose handler failed for good."""
        return cls(
            topic=message.topic(), partition=message.partition(), offset=message.offset(),
            timestamp_ms=message.timestamp()[1], group=group, attempts=attempts, digest=digest,
            error_type=type(error).__qualname__, error=error_text(error),
        )  # fmt: skip

    @classmethod
    def read(cls, message: Any) -> Self | None:
        """Read the description off a message; None when it is no dead letter (or not one of ours).

        What does not name the message may be missing or senseless: ``timestamp_ms`` is -1 then, ``attempts`` 0.
        """
        said = _description(message)
        topic, group, digest = said.get("topic"), said.get("group"), said.get("id")
        partition, offset = _number(said.get("partition")), _number(said.get("offset"))
        if topic is None or group is None or partition is None or offset is None:
            return None
        timestamp_ms = _number(said.get("timestamp-ms"))
        return cls(
            topic=topic, partition=partition, offset=offset, timestamp_ms=-1 if timestamp_ms is None else timestamp_ms,
            group=group, attempts=_number(said.get("attempts")) or 0,
            digest=bytes.fromhex(digest) if digest is not None and _DIGEST.fullmatch(digest) else None,
            error_type=said.get("error-type") or "", error=said.get("error") or "",
        )  # fmt: skip

    def headers(self, message: Any) -> Headers:
        """Return the headers of the dead letter: those of the message, the description, and what has it handled again."""
        said = {
            "topic": self.topic, "partition": self.partition, "offset": self.offset,
            "timestamp-ms": self.timestamp_ms, "group": self.group, "attempts": self.attempts,
            "id": None if self.digest is None else self.digest.hex(),
            "error-type": self.error_type, "error": self.error,
        }  # fmt: skip
        described = [
            (PREFIX + name, str(value).encode()) for name, value in said.items() if value is not None
        ]
        again = redrive_value(self.group, self.topic, self.partition, self.offset, self.timestamp_ms)
        return [*original_headers(message), *described, (REDRIVE_HEADER, again)]


def original_headers(message: Any) -> Headers:
    """Return the headers that a message had before it was dead-lettered: what to copy to a message of your own."""
    return _without_ours(as_record(message).headers)


def _without_ours(headers: Iterable[tuple[str, bytes | None]]) -> Headers:
    return [
        (name, value) for name, value in headers if not name.startswith(PREFIX) and name != REDRIVE_HEADER
    ]


def _description(message: Any) -> dict[str, str | None]:
    # Of several headers with one name the last counts.
    return {
        name.removeprefix(PREFIX): _text(value)
        for name, value in as_record(message).headers
        if name.startswith(PREFIX)
    }


def _number(text: str | None) -> int | None:
    if text is None or _NUMBER.fullmatch(text) is None:
        return None
    number = int(text)
    return number if _SMALLEST <= number <= _LARGEST else None


def _text(value: bytes | None) -> str | None:
    try:
        return None if value is None else value.decode()
    except UnicodeDecodeError:
        return None
