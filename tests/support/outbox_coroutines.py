"""A process that writes messages in `AsyncSession`s, in the transactions of its work, and sends them; it is killed.

At the place that it is asked for it says so and stands still, so that who drives it kills it just there.
"""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from itertools import count
from typing import TYPE_CHECKING, Any

from sqlalchemy import create_engine, insert, make_url
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

from dedup_adapters.sql_outbox import SqlOutbox
from tests.support.outboxes import make_producer
from tests.support.sql_outbox_worker import PATIENCE_S, TOPIC, WORK

if TYPE_CHECKING:
    from collections.abc import Sequence
    from multiprocessing.connection import Connection as Pipe

    from dedup_sdk.producer import Step, Stored

PLACES = ("added", "committed", "sending", "confirmed")
"""Where it is killed: the message is in the open transaction, committed, read to be sent, confirmed but not removed."""
APART = "apart"
"""Broken: the message has a transaction of its own, behind that of the work; killed between the two."""
_MOST_VISITS = 6
_ROLLED_BACK_SHARE = 0.2
_SENDS = {"sqlite+aiosqlite": "sqlite", "postgresql+asyncpg": "postgresql+psycopg"}
"""The driver of the sending engine."""


class _Place:
    def __init__(self, driver: Pipe, name: str, visits: int) -> None:
        self._driver, self._name, self._visits = driver, name, visits

    def at(self, name: str) -> None:
        """Stand still, if it is here, after some visits."""
        if name == self._name:
            self._visits -= 1
            if not self._visits:
                self._driver.send("here")
                self._driver.recv()


class _Sending(SqlOutbox):
    place: _Place

    def fresh(self, known: Sequence[int], most: int) -> list[Stored]:
        """See `Outbox`."""
        found = super().fresh(known, most)
        if found:
            self.place.at("sending")
        return found

    def apply(self, step: Step) -> Sequence[int]:
        """See `Outbox`."""
        if step.removed:
            self.place.at("confirmed")
        return super().apply(step)


async def _work(driver: Pipe, kind: str, bootstrap: str, url: str, first: int) -> None:
    source = random.Random(first)
    place = _Place(driver, kind, source.randint(1, _MOST_VISITS))
    engine = create_async_engine(url)
    outbox, at = SqlOutbox(engine), make_url(url)
    sending = _Sending(create_engine(at.set(drivername=_SENDS.get(at.drivername, at.drivername))))
    sending.place = place

    async def write(session: AsyncSession, number: int) -> None:
        body = str(number)
        key = await outbox.add(session, TOPIC, body, key=f"k{number % 7}")
        place.at("added")
        await session.execute(insert(WORK).values(body=body, dedup_id=key))

    async def write_apart(number: int) -> None:
        async with AsyncSession(engine) as session, session.begin():
            await session.execute(insert(WORK).values(body=str(number)))
        place.at(APART)
        async with AsyncSession(engine) as session, session.begin():
            await outbox.add(session, TOPIC, str(number))

    with make_producer(bootstrap, sending, lock_wait=PATIENCE_S) as producer:
        for number in count(first, 10):
            if kind == APART:
                await write_apart(number)
                continue
            with suppress(asyncio.CancelledError):
                async with AsyncSession(engine) as session, session.begin():
                    for each in range(source.randrange(1, 4)):
                        await write(session, number + each)
                    if source.random() < _ROLLED_BACK_SHARE:
                        raise asyncio.CancelledError
            place.at("committed")
            producer.poll(0.001)


def main(driver: Any, kind: str, bootstrap: str, url: str, first: int) -> None:
    """Work until the end of the process; each message is a number, from the first on."""
    asyncio.run(_work(driver, kind, bootstrap, url, first))
