"""Where the client reads the partitions in hand."""

from __future__ import annotations

from collections.abc import Mapping

from confluent_kafka import TopicPartition

from dedup_sdk.errors import RecoveryError
from dedup_sdk.kafka.assigned import Assigned, State
from dedup_sdk.kafka.client import Client
from dedup_sdk.kafka.commits import Coordinates


class Reading:
    """Moves partitions, also those that the client stopped reading, which it moves no more."""

    def __init__(self, assigned: Mapping[Coordinates, Assigned], client: Client) -> None:
        self._assigned = assigned
        self._client = client
        self.moved: set[Coordinates] = set()
        """Partitions that the client reads from another place than before: what it had fetched of them does not count."""

    def begin(self, assigned: Assigned, offset: int, leader_epoch: int | None) -> None:
        """Have a partition that is about to deliver read from an offset; `Client.seek` says what the epoch does."""
        topic, partition = assigned.topic, assigned.partition
        if assigned.stopped or not self._client.seek(topic, partition, offset, leader_epoch=leader_epoch):
            self._place_again(assigned, offset)
            if leader_epoch is not None and not self._client.seek(
                topic, partition, offset, leader_epoch=leader_epoch
            ):
                raise RecoveryError(
                    f"{topic}[{partition}] cannot be moved to offset {offset}: the client does not fetch it; try again"
                )
        self.moved.add((topic, partition))

    def again(self, assigned: Assigned) -> None:
        """Have a partition that delivers read again from where judging stands; one known to have stopped waits for its event."""
        if assigned.state is State.ACTIVE and assigned.held is not None and not assigned.stopped:
            position = assigned.held.lane.position
            if not self._client.seek(assigned.topic, assigned.partition, position):
                # It stopped, and the news went with what was interrupted: placed again, it stops and says so once more.
                self._place_again(assigned, position)

    def _place_again(self, assigned: Assigned, offset: int) -> None:
        others = [other for other in self._assigned.values() if other is not assigned]
        at = [TopicPartition(other.topic, other.partition, _reads_on_at(other)) for other in others]
        self._client.place_again(TopicPartition(assigned.topic, assigned.partition, offset), at)
        # The eager protocol has all of them assigned anew.
        self.moved.update(self._assigned)
        assigned.stopped = False
        for each in self._assigned.values():
            if is_fetched(each):
                self._client.resume(each.topic, each.partition)


def is_fetched(assigned: Assigned) -> bool:
    """Whether a partition delivers, and nobody has paused it."""
    return assigned.state is State.ACTIVE and not (assigned.user_paused or assigned.full)


def _reads_on_at(assigned: Assigned) -> int:
    if assigned.state is State.ACTIVE and assigned.held is not None:
        return assigned.held.lane.position
    return 0 if assigned.start is None else assigned.start.offset
