"""A process that writes messages in the transactions of its work, and sends them, until it is killed.

At the moments that it is asked for it says so and stands still, so that who drives it kills it just there.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

from sqlalchemy import Column, Integer, LargeBinary, MetaData, String, Table, create_engine, insert

from dedup_adapters.sql_outbox import SqlOutbox
from dedup_sdk.producer import Step
from tests.support.outboxes import make_producer

if TYPE_CHECKING:
    from collections.abc import Sequence
    from multiprocessing.connection import Connection as Pipe

    from dedup_sdk.producer import Stored

TOPIC = "orders"
WORK = Table(
    "work",
    MetaData(),
    Column("number", Integer, primary_key=True, autoincrement=True),
    Column("body", String(200)),
    Column("dedup_id", LargeBinary(200)),
)
"""The work done, each row with the dedup key of the message that tells of it.

Without one where only persist() said so.
"""
PATIENCE_S = 60.0
_ROLLED_BACK_SHARE = 0.2
_OWN_SHARE = 0.3
_ENOUGH = 20


class _AtRemoval(SqlOutbox):
    """Stands still with messages that are confirmed, and still in the table."""

    driver: Pipe

    def apply(self, step: Step) -> Sequence[int]:
        """See `Outbox`."""
        if step.removed:
            _stand_still(self.driver)
        return super().apply(step)


class _Hasty(SqlOutbox):
    """Broken: messages read to be sent are removed, and then sent."""

    driver: Pipe

    def fresh(self, known: Sequence[int], most: int) -> list[Stored]:
        """See `Outbox`."""
        found = super().fresh(known, most)
        if found:
            self.apply(Step(removed=[each.id for each in found]))
            _stand_still(self.driver)
        return found


KINDS: dict[str, type[SqlOutbox]] = {"anywhere": SqlOutbox, "at-removal": _AtRemoval, "hasty": _Hasty}


def _stand_still(driver: Pipe) -> None:
    driver.send("here")
    driver.recv()


def main(driver: Pipe, kind: str, bootstrap: str, url: str, first: int) -> None:
    """Work until the end of the process; each message is a number, from the first on, or one with a "p" before it."""
    engine = create_engine(url)
    outbox: Any = KINDS[kind](engine)
    outbox.driver = driver
    source, number = random.Random(first), first
    with make_producer(bootstrap, outbox, lock_wait=PATIENCE_S) as producer:
        while True:
            producer.poll(0.001)
            if kind != "anywhere" and number > first + _ENOUGH:
                # SQLite has one writer at a time, and now it is the producer's turn.
                continue
            with engine.connect() as connection:
                for _ in range(source.randrange(1, 6)):
                    body = f"{number}"
                    key = outbox.add(connection, TOPIC, body, key=f"k{number % 7}")
                    connection.execute(insert(WORK).values(body=body, dedup_id=key))
                    number += 1
                if source.random() < _ROLLED_BACK_SHARE:
                    connection.rollback()
                else:
                    connection.commit()
            if source.random() < _OWN_SHARE:
                body = f"p{number}"
                number += 1
                producer.produce(TOPIC, body)
                producer.persist(PATIENCE_S)
                with engine.begin() as connection:
                    connection.execute(insert(WORK).values(body=body))
            if kind == "anywhere":
                driver.send("at work")
