from __future__ import annotations

from confluent_kafka import KafkaError, Message

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


def _messages(*places: tuple[int, int]) -> list[Message]:
    return [Message(topic="orders", partition=partition, offset=offset) for partition, offset in places]


def test_each_message_of_a_grant_is_queued_until_it_is_taken() -> None:
    """What the thread takes back of it is never taken; the one in hand is waited for; those before it are completed."""
    buffer = MessageBuffer()
    first, second, third, gone, other = messages = _messages((0, 5), (0, 6), (0, 7), (0, 8), (1, 1))
    buffer.put(messages)
    assert buffer.take(1, EndsBy.NEXT) == [first]
    granted = buffer.grant(10)
    assert granted is not None

    assert granted.popleft() is second
    assert buffer.take_ended() == ([first], [])
    assert granted.popleft() is third
    assert len(buffer) == 2
    assert buffer.take_back({("orders", 0)}) == [gone]
    assert not granted
    assert buffer.out_of({("orders", 0)}) == [third]
    assert buffer.take_ended() == ([second], [])
    assert buffer.take(2, EndsBy.NEXT) == [other]


def test_a_grant_has_no_events_and_ends_with_a_release() -> None:
    """An iteration looks at events, and at messages that come again, one by one."""
    buffer = MessageBuffer()
    event = Message(error=KafkaError(KafkaError._ALL_BROKERS_DOWN))
    first, second, third = _messages((0, 5), (0, 6), (0, 7))
    buffer.put([first, event, second, third])
    assert buffer.take(1, EndsBy.NEXT) == [first]
    assert buffer.grant(10) is None
    assert buffer.take(2, EndsBy.NEXT) == [event, second]
    granted = buffer.grant(10)
    assert granted is not None
    assert len(granted) == 1

    buffer.end_last(End.RELEASED)

    assert not granted
    assert buffer.grant(10) is None
    assert len(buffer) == 1
