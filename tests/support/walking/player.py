"""The acts of each step of a walk."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, KafkaError

from tests.support.walking.course import Course
from tests.support.walking.walk import more

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.support.walking.walk import Step


class Player(Course):
    """Does the steps of a walk."""

    def play(self, steps: Sequence[Step]) -> None:
        """Do the steps, then look at the rest; raises `BrokenPromiseError`, or an error that no call may raise."""
        try:
            for step in steps:
                getattr(self, "_" + step.name.replace(" ", "_"))(step.a, step.b)
            self.finish()
        finally:
            self.abandon()

    def _partition(self, a: int) -> int:
        return a % len(self.oracle.log)

    # --- messages ------------------------------------------------------------------------------------------------

    def _poll(self, a: int, _: int) -> None:
        for _ in range(1 + a % 4):
            self.member.poll_patiently()

    def _glance(self, a: int, _: int) -> None:
        self.member.poll((0, 0, 0.01)[a % 3])

    def _consume(self, a: int, _: int) -> None:
        self.member.consume(1 + a % 8)

    def _iterate(self, a: int, _: int) -> None:
        if not self.member.numbers:
            return
        messages: Any = iter(self.member.consumer)
        for _ in range(1 + a % 4):
            self.member.asked()
            how, message = self.member.call_loop(next, messages, None)
            if how != "ok" or message is None:
                break
            self.member.take([message])
        messages.close()

    def _some(self, a: int) -> Any:
        held = self.member.in_hand or self.member.poll_patiently()
        return held[a % len(held)] if held else None

    def _any(self, a: int, b: int) -> Any:
        if b % 3 == 0 and self.member.history:
            return self.member.history[a % len(self.member.history)]
        return self._some(a)

    def _complete(self, a: int, b: int) -> None:
        if (message := self._any(a, b)) is not None:
            self.member.complete(message)

    def _complete_all(self, a: int, _: int) -> None:
        for message in self.member.in_hand[:: 1 if a % 2 else -1]:
            self.member.complete(message)

    def _complete_twice(self, a: int, b: int) -> None:
        if (message := self._any(a, b)) is not None:
            self.member.complete(message)
            self.member.complete(message)

    def _complete_foreign(self, a: int, b: int) -> None:
        if self.old:
            message = self.old[a % len(self.old)]
            (self.member.complete if b % 2 else self.member.release)(message)

    def _release(self, a: int, b: int) -> None:
        if (message := self._any(a, b)) is not None:
            self.member.release(message)

    def _release_twice(self, a: int, b: int) -> None:
        if (message := self._any(a, b)) is not None:
            self.member.release(message)
            self.member.release(message)

    def _once(self, a: int, _: int) -> None:
        if (message := self._some(a)) is not None:
            self.member.once(message, fails=False)

    def _once_fails(self, a: int, _: int) -> None:
        if (message := self._some(a)) is not None:
            self.member.once(message, fails=True)

    def _run(self, a: int, b: int) -> None:
        if self.member.numbers:
            self.member.run(a, b)

    # --- offsets -------------------------------------------------------------------------------------------------

    def _commit(self, a: int, _: int) -> None:
        self.member.commit(waits=a % 2 == 0)

    def _commit_message(self, a: int, b: int) -> None:
        if (message := self._any(a, b)) is not None:
            self.member.commit(message, waits=b % 2 == 0)

    def _commit_offsets(self, a: int, b: int) -> None:
        number = self._partition(a)
        self.member.commit(below={number: b % (len(self.oracle.log[number]) + 2)}, waits=a % 2 == 0)

    def _store_message(self, a: int, b: int) -> None:
        if (message := self._any(a, b)) is not None:
            self.member.store_offsets(message)

    def _store_offsets(self, a: int, b: int) -> None:
        number = self._partition(a)
        self.member.store_offsets(below={number: b % (len(self.oracle.log[number]) + 2)})

    def _commit_refused(self, a: int, _: int) -> None:
        self.oracle.forgetful = True
        self.kafka.push_errors("OffsetCommit", KafkaError.REBALANCE_IN_PROGRESS, 1 + a % 2)

    # --- places --------------------------------------------------------------------------------------------------

    def _position(self, number: int) -> int:
        [at] = self.member.consumer.position(self.member.at({number: 0}))
        return max(0, at.offset)

    def _seek_back(self, a: int, b: int) -> None:
        number = self._partition(a)
        self.member.seek(number, b % (self._position(number) + 1))

    def _seek_near(self, a: int, b: int) -> None:
        number = self._partition(a)
        target = self._position(number) + b % 5 - 2
        self.member.seek(number, min(max(0, target), len(self.oracle.log[number])))

    def _seek_away(self, a: int, b: int) -> None:
        number = self._partition(a)
        self.member.seek(number, b % (len(self.oracle.log[number]) + 1))

    def _seek_edge(self, a: int, b: int) -> None:
        number = self._partition(a)
        if b % 3:
            self.member.seek(number, 0, OFFSET_BEGINNING)
        else:
            self.member.seek(number, len(self.oracle.log[number]), OFFSET_END)

    def _chosen(self, a: int, b: int) -> list[Any]:
        numbers = self.member.numbers if b % 4 else list(self.oracle.log)
        return self.member.at(dict.fromkeys(numbers if a % 3 == 0 else numbers[a % 2 :][:1], 0))

    def _pause(self, a: int, b: int) -> None:
        self.member.call(self.member.consumer.pause, self._chosen(a, b))

    def _resume(self, a: int, b: int) -> None:
        self.member.call(self.member.consumer.resume, self._chosen(a, b))

    def _assign(self, a: int, _: int) -> None:
        numbers = list(self.oracle.log)
        if self.other is not None:
            self.oracle.forgetful = True
        self.member.place_at(dict.fromkeys(numbers if a % 3 else numbers[: 1 + a % len(numbers)]))

    def _assign_at(self, a: int, b: int) -> None:
        number = self._partition(a)
        self.member.place_at(
            {**dict.fromkeys(self.oracle.log), number: b % (len(self.oracle.log[number]) + 1)}
        )

    def _unassign(self, _: int, __: int) -> None:
        how, _ = self.member.call(self.member.consumer.unassign)
        self._went(how, list(self.oracle.log))

    def _take_one(self, a: int, b: int) -> None:
        number = self._partition(a)
        target = b // 4 % (len(self.oracle.log[number]) + 1) if b % 4 == 0 else None
        self.member.place_at({number: target}, "incremental_assign")

    def _leave_one(self, a: int, _: int) -> None:
        number = self._partition(a)
        how, _ = self.member.call(self.member.consumer.incremental_unassign, self.member.at({number: 0}))
        self._went(how, [number])

    def _went(self, how: str, numbers: list[int]) -> None:
        if how == "ok":
            self.oracle.forget(self.member.owner, numbers)
        elif how == "refused":
            self.oracle.fault()

    def _subscribe(self, _: int, __: int) -> None:
        self.member.subscribe()
        self._poll(7, 0)

    def _unsubscribe(self, _: int, __: int) -> None:
        self.member.call(self.member.consumer.unsubscribe)
        self.oracle.doubt(self.member.owner)

    # --- looking -------------------------------------------------------------------------------------------------

    def _ask(self, _: int, __: int) -> None:
        consumer = self.member.consumer
        self._look_at_committed(self.member)
        for message in self.member.history[-3:]:
            self.member.call(consumer.verdict, message)
            self.member.call(consumer.holds, message)
        self.member.call(consumer.position, self.member.at(dict.fromkeys(self.oracle.log, 0)))
        self.member.call(consumer.counters.as_dict)
        assert len(consumer.partition_statuses) <= len(self.oracle.log)

    def _produce(self, a: int, b: int) -> None:
        number = self._partition(a)
        for each in range(1 + b % 3):
            self._send(number, more(self.walk, number, len(self.oracle.log[number]), b // 3 + each))
        self._flush()

    # --- ends and beginnings -------------------------------------------------------------------------------------

    def _reopen(self, _: int, __: int) -> None:
        self._end(self.member)
        self._begin()

    def _leave_block(self, _: int, __: int) -> None:
        self._end(self.member, block=True)
        self._begin()

    def _call_closed(self, a: int, b: int) -> None:
        self._end(self.member)
        consumer, here = self.member.consumer, self.member.at({0: 0})
        calls: tuple[tuple[Any, ...], ...] = (
            (consumer.poll, 0), (consumer.consume, 1, 0), (consumer.commit,), (consumer.seek, here[0]),
            (consumer.pause, here),
            (consumer.assign, here), (consumer.unassign,), (consumer.position, here), (consumer.run, print),
            (consumer.unsubscribe,),
            (consumer.subscribe, [self.topic]), (consumer.store_offsets, None, here), (next, iter(consumer)),
            (consumer.incremental_assign, here), (consumer.resume, here), (consumer.incremental_unassign, here),
        )  # fmt: skip
        with contextlib.suppress(RuntimeError):
            self.member.call(*calls[(a + b) % len(calls)])
        self._begin()

    def _kill(self, _: int, __: int) -> None:
        self._die(self.member)
        self._begin()

    def _lose_store(self, a: int, _: int) -> None:
        if a % 2:
            self._die(self.member)
        else:
            self._end(self.member)
            self.oracle.fault()
        self.store = self._make_store()
        self._begin()

    def _interrupt(self, a: int, b: int) -> None:
        self.member.place = 1 + a % (60 if b % 3 else 600)

    # --- the group -----------------------------------------------------------------------------------------------

    def _join(self, a: int, _: int) -> None:
        if self.other is None:
            own = a % 2 == 0
            self.oracle.forgetful |= own
            self.other = self._make(self._make_store() if own else self.store)
            self.other.subscribe()
            self._other_polls(a, 0)

    def _other_polls(self, a: int, _: int) -> None:
        for _ in range(5 + a % 10):
            if self.other is not None:
                self.other.poll(0.03)
                self.member.poll(0.03)

    def _leave(self, _: int, __: int) -> None:
        self._end_other()

    def _kill_other(self, _: int, __: int) -> None:
        if self.other is not None:
            self._die(self.other)
            self.other = None

    def _lost(self, _: int, __: int) -> None:
        self.kafka.push_errors("Heartbeat", KafkaError.UNKNOWN_MEMBER_ID, 1)
        self._poll(7, 0)
