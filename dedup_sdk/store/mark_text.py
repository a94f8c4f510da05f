"""Marks as text that can be compared: what a dump and a comparison of snapshots print."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import repeat

from dedup_sdk.marks import DIGEST_BYTES, Marks
from dedup_sdk.store.fingerprint import payload_word

_HEX_DIGITS = 2 * DIGEST_BYTES


def mark_texts(marks: Marks) -> Iterator[tuple[str, str]]:
    """Yield of each mark its digest in hexadecimal, and its offset and timestamp (ms).

    One that has a payload says ``payload=BYTES:CHECKSUM`` behind them, so that payloads of one size are told apart.
    """
    digests = marks.digests.hex()
    cut = (digests[at : at + _HEX_DIGITS] for at in range(0, len(digests), _HEX_DIGITS))
    columns = zip(
        cut, marks.offsets.tolist(), marks.timestamps.tolist(), marks.payloads or repeat(b""), strict=False
    )
    for digest, offset, timestamp_ms, payload in columns:
        text = f"{offset} {timestamp_ms}"
        yield (
            digest,
            f"{text} payload={len(payload)}:{payload_word(payload):016x}" if payload else text,
        )
