from __future__ import annotations

import pytest
from confluent_kafka import Message

from dedup_sdk import DeadLetter
from dedup_sdk._runner.dead_letters import PREFIX, Headers, original_headers

HEADERS: Headers = [("dedup-id", b"a"), ("trace", None), ("dedup-id", b"b")]


def message(headers: Headers) -> Message:
    """A message as a consumer gets it."""
    return Message(
        topic="orders", partition=3, offset=7, key=b"k", value=b"v", headers=list(headers), timestamp=(1, 42)
    )


def letter(**changes: object) -> DeadLetter:
    """A dead letter of that message."""
    said = {
        "topic": "orders", "partition": 3, "offset": 7, "timestamp_ms": 42, "group": "g", "attempts": 5,
        "digest": bytes(range(16)), "error_type": "ValueError", "error": "no",
    }  # fmt: skip
    return DeadLetter(**{**said, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"digest": None},
        {"error": "", "timestamp_ms": -1},
        {"timestamp_ms": 2**63 - 1, "offset": 2**63 - 1},
        {"topic": "ä", "group": "grüppe"},
    ],
)
def test_what_is_written_is_read(changes: dict[str, object]) -> None:
    """A dead letter keeps its facts in its headers, and its original headers are those of the message."""
    written = letter(**changes)
    sent = message(written.headers(message(HEADERS)))

    assert DeadLetter.read(sent) == written
    assert original_headers(sent) == HEADERS


def test_one_that_fails_again_describes_the_second_time() -> None:
    """Of a re-driven dead letter that fails again nothing of the first description is left."""
    once = message(letter().headers(message(HEADERS)))
    twice = message(letter(offset=99, attempts=1).headers(once))

    assert DeadLetter.read(twice) == letter(offset=99, attempts=1)
    assert len(twice.headers() or []) == len(once.headers() or [])


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("topic", b"\xff"),
        ("group", None),
        ("offset", b"seven"),
        ("offset", b"9" * 30),
        ("offset", b"9" * 19),
        ("partition", None),
    ],
)
def test_what_is_no_dead_letter_is_none(name: str, value: bytes | None) -> None:
    """A message without the description, or with one that makes no sense, is no dead letter of ours."""
    assert DeadLetter.read(message(HEADERS)) is None
    headers = letter().headers(message(HEADERS))
    assert DeadLetter.read(message([*headers, (PREFIX + name, value)])) is None


@pytest.mark.parametrize("value", [None, b"", b"soon", b"-1", b"9" * 30, b"\xff"])
def test_what_does_not_name_the_message_may_make_no_sense(value: bytes | None) -> None:
    """A time or a number of attempts that cannot be read leaves the dead letter one."""
    told: Headers = [
        (PREFIX + "timestamp-ms", value),
        (PREFIX + "attempts", value),
    ]
    sent = message([*letter().headers(message(HEADERS)), *told])

    assert DeadLetter.read(sent) == letter(timestamp_ms=-1, attempts=-1 if value == b"-1" else 0)


def test_a_digest_that_is_none_is_left_out() -> None:
    """Something else in the place of a digest does not count as one."""
    read = DeadLetter.read(message([*letter().headers(message([])), (PREFIX + "id", b"../../x")]))
    assert read is not None
    assert read.digest is None
