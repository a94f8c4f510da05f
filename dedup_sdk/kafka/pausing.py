"""Partitions that wait on request, and what the client is told of that.

What was fetched of a partition when it was paused is dropped, and read again before the next fetch. While another thread is
inside the client, pauses and resumptions are put off, and told when it is free: as it is by then.
"""

from __future__ import annotations

from confluent_kafka import TopicPartition

from dedup_sdk.kafka.handout import Coordinates
from dedup_sdk.kafka.placement import Placement, coordinates_in


class Pausing(Placement):
    """Pause and resume, as the plain client's, from any thread."""

    _put_off: set[Coordinates]
    """Partitions whose pause or resumption the client has not heard of: it was busy with another thread."""

    def pause(self, partitions: list[TopicPartition]) -> None:
        """Stop partitions from delivering, until `resume`: what was fetched already waits too. From any thread."""
        with self._lock:
            self._check_open()
            paused = coordinates_in(partitions)
            if self._assigning is not None:
                self._pausing |= paused
            self._tell_client(
                [tp for tp in partitions if self._assigning is None or tp not in self._assigning], pause=True
            )
            self._session.note_pause(paused, paused=True)
            self._whole(self._hand.set_aside, {c for c in paused if self._partition_of(*c) is not None})
            self._drop_fetched(paused)

    def resume(self, partitions: list[TopicPartition]) -> None:
        """Let partitions deliver again; one that still recovers starts when it is up to date. From any thread."""
        with self._lock:
            self._check_open()
            resumed = coordinates_in(partitions)
            self._pausing -= resumed
            self._session.note_pause(resumed, paused=False)
            self._whole(self._hand.bring_back, resumed)
            self._tidy_at = 0.0
            self._tell_client(partitions, pause=False)

    def _tell_client(self, partitions: list[TopicPartition], *, pause: bool) -> None:
        if self._turns.busy_elsewhere:
            # Not waited for: the thread inside may wait for ours, in a rebalance. It does this when it comes out.
            self._put_off |= coordinates_in(partitions)
            self._tidy_at = 0.0
        elif pause:
            super().pause(partitions)
        else:
            super().resume(self._session.resumable(partitions))

    def _tell_what_was_put_off(self) -> None:
        """Tell the client of seeks, pauses and resumptions by other threads; what went meanwhile is left out."""
        while self._seeks:
            coordinates, target = self._seeks.popitem()
            if coordinates in self._session.assigned:
                self._guard.run(self._seek, target)
        self._tell_pauses()

    def _tell_pauses(self) -> None:
        """Tell the client whether the partitions that it has not heard of are paused: as it is now, whatever came in between."""
        put_off, self._put_off = self._put_off, set()
        for coordinates in put_off & self._session.assigned.keys():
            paused = self._session.assigned[coordinates].user_paused
            self._tell_client([TopicPartition(*coordinates)], pause=paused)

    def _read_again(self) -> None:
        """Before a fetch: go back for what was dropped of the last one, but for partitions that the user keeps paused.

        The thread that fetches does so itself: in the middle of its fetch old and new messages could not be told apart. What
        the client has not heard of it hears before: a partition that is paused must not be fetched.
        """
        with self._lock:
            self._tell_pauses()
            self._gone.clear()
            due = {
                c
                for c in self._dropped
                if c not in self._session.assigned or not self._session.assigned[c].user_paused
            }
            if due:
                self._note_stops()
                self._dropped -= due
                self._session.refetch(due)
                self._drop_moved()
