from __future__ import annotations

from confluent_kafka import KafkaError, Message

from dedup_sdk.aio._buffer import End, MessageBuffer


def test_whoever_releases_a_message_returns_all_behind_it() -> None:
    """Also what the thread has fetched meanwhile, and an event: until the thread passes that on, nothing is queued."""
    buffer = MessageBuffer(id, list)
    first, second, third, other, late = _messages((0, 5), (0, 6), (0, 7), (1, 1), (1, 2))
    event = Message(error=KafkaError(KafkaError._ALL_BROKERS_DOWN))
    buffer.put([first, second, third, event, other])
    assert buffer.take(2, by_call=True) == [first, second]

    assert buffer.end([second], End.RELEASED) == [second]
    assert buffer.end([second], End.RELEASED) == []
    buffer.put([late])

    assert len(buffer) == 0
    ended = buffer.take_ended()
    assert ended[End.RELEASED] == [second]
    assert ended[End.RETURNED] == [third, event, other, late]
    assert buffer.taken() == [first]
    buffer.put([second])
    assert buffer.take(2, by_call=True) == [second]


def _messages(*places: tuple[int, int]) -> list[Message]:
    return [Message(topic="orders", partition=partition, offset=offset) for partition, offset in places]


def test_each_message_of_a_grant_is_queued_until_it_is_taken() -> None:
    """What the thread takes back of it is never taken; the one in hand is waited for; those before it are completed."""
    buffer = MessageBuffer(id, list)
    first, second, third, gone, other = messages = _messages((0, 5), (0, 6), (0, 7), (0, 8), (1, 1))
    buffer.put(messages)
    assert buffer.take(1, by_call=False) == [first]
    granted = buffer.grant(10)

    assert granted.popleft() is second
    assert granted.popleft() is third
    assert len(buffer) == 2
    assert buffer.take_back({("orders", 0)}) == [gone]
    assert not granted
    assert buffer.taken({("orders", 0)}) == [third]
    assert buffer.take_ended()[End.COMPLETED] == [first, second]
    buffer.end_hand()
    assert buffer.take(2, by_call=False) == [other]


def test_a_grant_has_no_events_and_ends_with_a_release() -> None:
    """An iteration looks at events, and at messages that come again, one by one."""
    buffer = MessageBuffer(id, list)
    event = Message(error=KafkaError(KafkaError._ALL_BROKERS_DOWN))
    first, second, third = _messages((0, 5), (0, 6), (0, 7))
    buffer.put([first, event, second, third])
    assert buffer.take(1, by_call=False) == [first]
    assert not buffer.grant(10)
    buffer.end_hand()
    assert buffer.take(2, by_call=False) == [event, second]
    granted = buffer.grant(10)
    assert list(granted) == [third]

    buffer.end_hand(End.RELEASED)

    assert not granted
    assert not buffer.grant(10)
    assert len(buffer) == 0
