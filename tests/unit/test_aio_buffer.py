from __future__ import annotations

from confluent_kafka import Message

from dedup_sdk.aio._buffer import End, EndsBy, MessageBuffer


def test_messages_that_come_again_at_different_times_keep_their_order() -> None:
    """Each comes before all others, but for those before it in its partition."""
    buffer = MessageBuffer()
    first, second, third, other = (
        Message(topic="orders", partition=partition, offset=offset)
        for partition, offset in [(0, 5), (0, 6), (0, 7), (1, 1)]
    )
    buffer.put([first, second, third, other])
    for each in buffer.take(2, EndsBy.CALL):
        buffer.end([each], End.RELEASED)
    buffer.take_ended()

    buffer.put([first])
    buffer.put([second])

    assert buffer.take(4, EndsBy.NEXT) == [first, second, third, other]
