"""The completion policies: when a delivered message is complete that nobody named.

`OnNextCall`   a call for more completes the messages of the calls before
`ByOffsets`    a commit, or stored offsets, complete the messages below
`ByName`       nothing: each message ends by `DedupConsumer.complete`
`ByWorkers`    the same, while `DedupConsumer.run` or `DedupConsumer.transactions` is at work
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import ClassVar

from dedup_sdk._engine.partition import Partition
from dedup_sdk._kafka.assign.commits import Coordinates
from dedup_sdk._kafka.deliver.delivery import Delivery


class ByName:
    """Completes nothing by itself."""

    completes_unnamed: ClassVar[bool] = False
    completes_on_next_call: ClassVar[bool] = False
    counts: ClassVar[bool] = True

    def __init__(self, delivery: Delivery) -> None:
        self._delivery = delivery

    def ask_for_more(self) -> Iterable[Partition]:
        """Let go of the messages that the application got."""
        self._delivery.let_go()
        return ()

    def commit(self, ends: Mapping[Coordinates, int | None], *, named: bool) -> Iterable[Partition]:  # noqa: ARG002 (no offsets count)
        """Complete nothing."""
        return ()

    def move(self) -> Iterable[Partition]:
        """Complete nothing."""
        return ()

    def skip(self, ends: Mapping[Coordinates, int]) -> Iterable[Partition]:  # noqa: ARG002 (no offsets count)
        """Complete nothing."""
        return ()

    def close(self) -> None:
        """Complete nothing."""


class ByWorkers(ByName):
    """Messages end by the outcomes of handlers; whoever calls these counts the messages as delivered."""

    counts: ClassVar[bool] = False


class ByOffsets(ByName):
    """A commit completes what lies below its offsets; one that names none completes all, unless ``only_stored``."""

    completes_unnamed: ClassVar[bool] = True

    def __init__(self, delivery: Delivery, *, only_stored: bool) -> None:
        super().__init__(delivery)
        self._only_stored = only_stored

    def commit(self, ends: Mapping[Coordinates, int | None], *, named: bool) -> Iterable[Partition]:
        """Complete the delivered messages below these offsets."""
        return self._delivery.complete_below(ends) if named or not self._only_stored else ()

    def close(self) -> None:
        """Exclude the messages of the last call: a commit in the callback of the close may follow."""
        self._delivery.take_out_last()


class OnNextCall(ByName):
    """A call for more completes the messages of the calls before; so does a commit."""

    completes_unnamed: ClassVar[bool] = True
    completes_on_next_call: ClassVar[bool] = True

    def __init__(self, delivery: Delivery) -> None:
        super().__init__(delivery)
        # Each call for messages begins with it: no call of ours in between.
        self.ask_for_more = delivery.complete_given  # type: ignore[method-assign]

    def commit(self, ends: Mapping[Coordinates, int | None], *, named: bool) -> Iterable[Partition]:
        """Complete the delivered messages below these offsets."""
        # First: a message that `poll` takes meanwhile is not among these.
        given = self._delivery.batch.given
        below = named or self._delivery.on_the_way
        return self._delivery.complete_below(ends) if below else self._delivery.complete_given(given)

    def move(self) -> Iterable[Partition]:
        """Complete the messages delivered before the last call, whose own ones may be unhandled."""
        return self._delivery.complete_but_last()

    def skip(self, ends: Mapping[Coordinates, int]) -> Iterable[Partition]:
        """Complete the delivered messages below these offsets."""
        return self._delivery.complete_below(ends)
