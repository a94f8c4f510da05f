"""Keys are unique across threads, forks, restarts and clock steps, and say where they come from."""

from __future__ import annotations

import os
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from dedup_sdk import ConfigurationError
from dedup_sdk.producer import ProducerKey, ProducerKeys, Uuid7Keys

if TYPE_CHECKING:
    from collections.abc import Callable

MAKERS = [ProducerKeys, Uuid7Keys]


def test_a_key_says_where_and_when_it_was_made() -> None:
    """Address (dashes and all), process, thread, time and increment can be read back."""
    before = time.time_ns() // 1_000_000
    make = ProducerKeys("eu-west-1:shop")
    first, second = ProducerKey.read(make()), ProducerKey.read(make())
    assert first is not None
    assert second is not None
    assert (first.address, first.process, first.thread) == (
        "eu-west-1:shop",
        os.getpid(),
        threading.get_native_id(),
    )
    assert before <= first.made_ms <= time.time_ns() // 1_000_000
    assert (first.increment, second.increment, second.nonce) == (1, 2, first.nonce)


@pytest.mark.parametrize(
    "key", [b"", b"order-1", b"a-1-2-3-4-5", b"-1-2-0123456789abcdef-4-5", b"a-1-2-0123456789abcdeX-4-5",
            b"a-1-2-0123456789abcdef-4-\xb2", b"\xff" * 9, b"a-" * 400, b"a-1-2-0123456789abcdef--5-5"],
)  # fmt: skip
def test_a_key_of_another_kind_is_told(key: bytes) -> None:
    """A key that `ProducerKeys` did not make is None, whatever it is."""
    assert ProducerKey.read(key) is None


@pytest.mark.parametrize("maker", MAKERS)
def test_threads_share_no_key(maker: Callable[[], Any]) -> None:
    """Eight threads at once, and eight after them, whose numbers the system gives again."""
    make = maker()
    made: list[bytes] = []

    def work() -> None:
        made.extend([make() for _ in range(500)])

    for _ in range(2):
        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(set(made)) == len(made) == 8_000


@pytest.mark.parametrize("maker", MAKERS)
def test_a_fork_shares_no_key(maker: Callable[[], Any]) -> None:
    """Parent and children go on from the same state, and make other keys."""
    make = maker()
    make()
    made = [make() for _ in range(100)]
    for _ in range(2):
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            os.write(writing, b" ".join([make() for _ in range(100)]))
            os._exit(0)
        os.close(writing)
        with os.fdopen(reading, "rb") as pipe:
            made += pipe.read().split()
        os.waitpid(child, 0)
        made += [make() for _ in range(100)]
    assert len(set(made)) == len(made) == 500


def test_a_clock_that_is_set_back_makes_no_key_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the process has the number of an earlier one, and the thread too: as after a container's restart."""
    monkeypatch.setattr(time, "time_ns", lambda: 1_700_000_000_000_000_000)
    monkeypatch.setattr(os, "getpid", lambda: 1)
    monkeypatch.setattr(threading, "get_native_id", lambda: 1)
    earlier, later = ProducerKeys("shop"), ProducerKeys("shop")
    made = [make() for make in (earlier, later) for _ in range(50)]
    assert len(set(made)) == 100


def test_uuids_are_of_version_7_and_ascend() -> None:
    """By time, so that `orders.uuid_order` compares them."""
    make = Uuid7Keys()
    made = [make() for _ in range(100)]
    assert {key[14:15] for key in made} == {b"7"}
    assert made == sorted(made)


def test_without_the_library_uuids_are_refused_in_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """The line names the extra."""
    monkeypatch.setitem(sys.modules, "uuid_utils", None)
    monkeypatch.delattr("uuid.uuid7", raising=False)
    with pytest.raises(ConfigurationError, match=r"dedup-sdk\[uuid\]"):
        Uuid7Keys()


@pytest.mark.parametrize("address", ["", "a b", "é", "x" * 129, 5, "a\n", "a/b"])
def test_an_address_that_no_key_can_bear_is_refused(address: Any) -> None:
    """In one line with the value."""
    with pytest.raises(ConfigurationError, match="address="):
        ProducerKeys(address)
