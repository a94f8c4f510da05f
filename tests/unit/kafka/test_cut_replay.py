"""A log that is cut while its tail is replayed, and does not grow again: the replay ends, and recovery begins anew."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from confluent_kafka import TopicPartition

from dedup_sdk import RecoveryError, VerdictKind
from tests.support.machine import LOG, Machine, lived, text_at
from tests.support.one_partition import TOPIC, Cluster, ListReader

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dedup_sdk._kafka.client.reader import Slice, TailReader
    from dedup_sdk._kafka.client.settings import Reset
    from dedup_sdk.ids._spec import ReadsKeys

CUT_AT = 4


class CuttingReader(ListReader):
    """A reader whose log is cut back after its first piece."""

    def slices(self, start: int, end: int, spec: ReadsKeys) -> Iterator[Slice | None]:
        """See `TailReader`."""
        for piece in super().slices(start, end, spec):
            yield piece
            del self._world.log[CUT_AT:]


class ShortReader(ListReader):
    """A reader whose log is cut back before it is asked for its bounds."""

    def bounds(self) -> tuple[int, int]:
        """See `TailReader`."""
        del self._world.log[CUT_AT:]
        return super().bounds()


def machine_without_a_disk(
    cluster: Cluster, make_reader: type[ListReader], metadata: str, reset: Reset = "earliest"
) -> Machine:
    """A machine that has to replay records that others committed, on a log that is cut meanwhile."""
    lived(cluster)
    cluster.committed = TopicPartition(TOPIC, 0, len(LOG), metadata)
    machine = Machine(cluster, reset=reset)

    def tail_reader(topic: str, partition: int) -> TailReader:
        del topic, partition
        return make_reader(cluster)

    machine.client.tail_reader = tail_reader  # type: ignore[method-assign]
    return machine


@pytest.mark.parametrize("make_reader", [CuttingReader, ShortReader])
def test_what_the_broker_still_has_of_the_epoch_stays_completed(make_reader: type[ListReader]) -> None:
    """Records before the cut are not repeated, and those instead of the lost ones are handled."""
    cluster = Cluster([*LOG], ends={3: CUT_AT})
    machine = machine_without_a_disk(cluster, make_reader, text_at(len(LOG), epoch=3))

    assert machine.handle_all() == []
    machine.client.tail_reader = lambda *_: ListReader(cluster)  # type: ignore[method-assign]
    cluster.log += [b"x", b"a"]
    assert machine.handle_all() == [(CUT_AT, VerdictKind.FRESH)]
    assert [(event.name, event.offset) for event in machine.listener.seen] == [("log-truncated", CUT_AT)]


@pytest.mark.parametrize("make_reader", [CuttingReader, ShortReader])
def test_where_nobody_knows_the_epoch_everything_is_delivered(make_reader: type[ListReader]) -> None:
    """Of a log that ends too early nobody can say how far it is the old one."""
    machine = machine_without_a_disk(Cluster([*LOG]), make_reader, text_at(len(LOG)))

    assert machine.handle_all() == [(offset, VerdictKind.UNVERIFIED) for offset in range(CUT_AT)]
    assert [event.name for event in machine.listener.seen] == ["log-truncated"]


@pytest.mark.parametrize("make_reader", [CuttingReader, ShortReader])
def test_without_a_policy_it_is_an_error(make_reader: type[ListReader]) -> None:
    """auto.offset.reset=error: the group's offset and the log's end are named."""
    metadata = text_at(len(LOG))
    machine = machine_without_a_disk(Cluster([*LOG]), make_reader, metadata, reset="error")

    with pytest.raises(RecoveryError, match="committed 6, but the log ends at 4"):
        machine.up_to_date()
