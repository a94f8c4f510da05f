"""The answers of a circular cache of n, worked out by hand from the words of Artemis' and HornetQ's pages."""

from __future__ import annotations

import pytest

from dedup_adapters import artemis, hornetq
from dedup_sdk import Deduplicator, Lookup, Record

VECTORS = [
    # A cache of 3: the fourth ID overwrites the first, so that the first is new again.
    (3, "a b c d a", "n n n n n"),
    # Found after n - 1 further ones...
    (3, "a b c a", "n n n d"),
    # ...and a duplicate takes no slot, nor does it make its ID younger: d overwrites a all the same.
    (3, "a b c a d a", "n n n d n n"),
    (3, "a a a a b c a d a", "n d d d n n d n n"),
    # When a is new again it takes the slot of b.
    (3, "a b c d a b c", "n n n n n n n"),
    (3, "a b c d a c d b", "n n n n n d d n"),
    # A cache of one remembers the last.
    (1, "a a b a a", "n d n n d"),
    (2, "a b a b c b a", "n n d d n d n"),
    # Messages without an ID are not looked at and take no slot.
    (2, "a - b - - a", "n n n n n d"),
    (1, "- - a - - a", "n n n n n d"),
    # An empty ID is an ID.
    (2, "'' a '' b ''", "n n d n n"),
    # No cache: no detection.
    (0, "a a - a ''", "n n n n n"),
]


def answers(dedup: Lookup, header: str, ids: str) -> str:
    """The verdicts on messages with these IDs: (n)ew or (d)uplicate."""
    engine, said = Deduplicator(dedup), []
    for offset, text in enumerate(ids.split()):
        bytes_ = b"" if text == "''" else text.encode()
        record = Record("orders", 0, offset, headers=[] if text == "-" else [(header, bytes_)])
        [verdict] = engine.admit([record])
        said.append("n" if verdict.deliver else "d")
        engine.complete([record] if verdict.deliver else [])
    return " ".join(said)


@pytest.mark.parametrize(("size", "ids", "said"), VECTORS)
def test_a_cache_by_hand(size: int, ids: str, said: str) -> None:
    """Both brokers have the same cache."""
    assert answers(artemis.duplicate_detection(id_cache_size=size), artemis.DUPLICATE_ID, ids) == said
    assert answers(hornetq.duplicate_detection(id_cache_size=size), hornetq.DUPLICATE_ID, ids) == said


@pytest.mark.slow
@pytest.mark.parametrize(("broker", "size"), [(artemis, 20_000), (hornetq, 2_000)])
def test_the_usual_sizes(broker: object, size: int) -> None:
    """Found after n - 1 further IDs, gone after n."""
    dedup = broker.duplicate_detection()  # type: ignore[attr-defined]
    for further, deliver in ((size - 1, False), (size, True)):
        engine = Deduplicator(dedup)
        ids = ["first", *map(str, range(further)), "first"]
        batch = [
            Record("orders", 0, offset, headers=[(broker.DUPLICATE_ID, text.encode())])  # type: ignore[attr-defined]
            for offset, text in enumerate(ids)
        ]
        engine.complete([
            record for record, verdict in zip(batch[:-1], engine.admit(batch[:-1]), strict=True) if verdict.deliver
        ])  # fmt: skip
        [verdict] = engine.admit(batch[-1:])
        assert verdict.deliver is deliver


def test_each_partition_has_its_own_cache() -> None:
    """There is no order across them, and so no cache."""
    engine = Deduplicator(artemis.duplicate_detection(id_cache_size=1))
    for partition in (0, 1):
        record = Record("orders", partition, 0, headers=[(artemis.DUPLICATE_ID, b"a")])
        [verdict] = engine.admit([record])
        assert verdict.deliver
        engine.complete([record])
