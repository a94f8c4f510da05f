"""The engine without Kafka: give it records, follow its verdicts, tell it how each ended.

For other clients, for tests, or to see the verdicts at work:

    python examples/plain_records.py
"""

from __future__ import annotations

from collections import deque

from dedup_sdk import Deduplicator, Lookup, MemoryStore, Record, Window, header

FAILS_ONCE = {1}
"""Offsets whose handler fails the first time."""


def main() -> None:
    """Handle three batches, of which the last is a redelivery of the first."""
    strategy = Lookup(id=header("dedup-id"), window=Window(hours=1))
    with Deduplicator(strategy, store=MemoryStore()) as engine:
        first = records("order-1", "order-2", "order-1", begin=0)
        for batch in (first, records("order-3", "order-2", begin=3), first):
            handle(engine, batch)
        counted = {kind: count for kind, count in engine.counters.verdicts.items() if count}
        print(f"done up to offset {engine.next_offset('orders', 0)}: {counted}")


def handle(engine: Deduplicator, batch: list[Record]) -> None:
    """Admit a batch, and carry on until nothing of it is in flight any more."""
    judged = deque(zip(batch, engine.admit(batch), strict=True))
    for record, verdict in judged:
        print(f"{name(record)}: {verdict.kind.value}")
    while judged:
        record, verdict = judged.popleft()
        if not verdict.deliver:
            continue
        if record.offset in FAILS_ONCE and verdict.attempt == 1:
            settled = engine.release([record])
            print(f"{name(record)}: its handler failed")
        else:
            settled = engine.complete([record])
            print(f"{name(record)}: handled")
        # Records that had to wait for this one are judged now, and come before anything new.
        for each in reversed(settled):
            again = f", attempt {each.verdict.attempt}" if each.verdict.deliver else ""
            print(f"{name(each.record)}: {each.verdict.kind.value}{again}")
            judged.appendleft((each.record, each.verdict))


def name(record: Record) -> str:
    """Offset and ID."""
    return f"{record.offset} {(record.headers[0][1] or b'').decode()}"


def records(*ids: str, begin: int) -> list[Record]:
    """Make records with these IDs at consecutive offsets of one partition."""
    return [
        Record(
            "orders",
            0,
            begin + index,
            timestamp_ms=1_700_000_000_000 + index,
            headers=[("dedup-id", dedup_id.encode())],
        )
        for index, dedup_id in enumerate(ids)
    ]


if __name__ == "__main__":
    main()
