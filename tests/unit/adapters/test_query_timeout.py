"""Connections of questions that nobody answers are cut, and no others."""

from __future__ import annotations

import gc
import socket
import threading
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from dedup_adapters.sql._query_timeout import QueryTimeout

_FOREVER_S = 3_600.0


class Ends(NamedTuple):
    """Both ends of a connection; a socket tells its number as drivers' connections do."""

    driver: socket.socket
    server: socket.socket


@pytest.fixture
def ends() -> Iterator[Ends]:
    """A connection to a server that says nothing."""
    driver, server = socket.socketpair()
    with driver, server:
        driver.settimeout(60)
        yield Ends(driver, server)


def watchers() -> list[threading.Thread]:
    """The threads that look after questions."""
    return [thread for thread in threading.enumerate() if thread.name == "dedup-answers"]


def test_who_waits_for_an_overdue_answer_is_told_that_the_connection_is_gone(ends: Ends) -> None:
    """Whenever the connection was made: also one that is made when the time is over already is not waited for."""
    timeout = QueryTimeout(0.01)
    with timeout.query() as query:
        query.watch(ends.driver)
        assert ends.driver.recv(1) == b""
        assert query.overdue
        later, server = socket.socketpair()
        with later, server:
            later.settimeout(60)
            timeout.watch(later)
            assert later.recv(1) == b""
    timeout.close()


def test_what_was_answered_keeps_its_connection(ends: Ends) -> None:
    """However long it is used for other things after that."""
    timeout = QueryTimeout(0.01)
    with timeout.query() as query:
        query.watch(ends.driver)
        # As if it had been answered just before the look.
        query.end()
        while not query.overdue:
            timeout.cut_overdue()
    timeout.cut_overdue()
    ends.server.send(b"x")
    assert ends.driver.recv(1) == b"x"
    timeout.close()


def test_what_is_overdue_stays_so(ends: Ends) -> None:
    """Also for a thread that looked at the clock before the one that cut the connection."""
    with QueryTimeout(_FOREVER_S).query() as query:
        query.watch(ends.driver)
        assert query.cut_if_overdue(float("inf"))
        assert query.cut_if_overdue(0.0)
        assert query.overdue


def test_a_question_of_another_thread_has_its_own_connections(ends: Ends) -> None:
    """Connections a thread makes outside its questions are nobody's to cut."""
    timeout = QueryTimeout(_FOREVER_S)
    timeout.watch(ends.driver)
    with timeout.query() as query:
        other = threading.Thread(target=timeout.watch, args=[ends.driver])
        other.start()
        other.join()
        assert query.cut_if_overdue(float("inf"))
    ends.server.send(b"x")
    assert ends.driver.recv(1) == b"x"
    timeout.close()


def test_the_number_of_a_closed_connection_is_another_ones(ends: Ends) -> None:
    """The next connection that gets it is not cut in the place of that."""
    timeout = QueryTimeout(_FOREVER_S)
    with timeout.query() as query:
        first, server = socket.socketpair()
        query.watch(first)
        number = first.fileno()
        first.close()
        second = socket.fromfd(ends.driver.fileno(), socket.AF_UNIX, socket.SOCK_STREAM)
        assert second.fileno() == number
        assert query.cut_if_overdue(float("inf"))
        ends.server.send(b"x")
        assert second.recv(1) == b"x"
        second.close()
        server.close()
    timeout.close()


def test_a_driver_without_a_socket_is_left_alone() -> None:
    """Also one whose connection is closed."""
    closed = socket.socket()
    closed.close()
    timeout = QueryTimeout(_FOREVER_S)
    with timeout.query() as query:
        query.watch(object())
        query.watch(closed)
        assert query.cut_if_overdue(float("inf"))
    timeout.close()


def test_the_thread_lives_as_long_as_who_asks() -> None:
    """It ends when that is closed, and begins anew with the next question.

    It does not keep alive a connection that nobody closes.
    """
    before = watchers()
    timeout = QueryTimeout(_FOREVER_S)
    assert watchers() == before
    for _ in range(2):
        with timeout.query():
            [thread] = set(watchers()) - set(before)
        with timeout.query():
            assert set(watchers()) - set(before) == {thread}
        timeout.close()
        thread.join(60)
        assert not thread.is_alive()
    with timeout.query():
        [thread] = set(watchers()) - set(before)
    del timeout
    gc.collect()
    thread.join(60)
    assert not thread.is_alive()
