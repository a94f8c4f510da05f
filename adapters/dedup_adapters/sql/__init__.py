"""The inbox: a message's ID is stored in the transaction of its work, so that it is handled exactly once.

    inbox = Inbox(engine, group="billing")
    inbox.create()

    for message in consumer:
        with consumer.once(message), engine.begin() as connection, inbox.once(connection, message) as first:
            if first:
                connection.execute(insert(payments).values(...))

first
    no message with this ID was handled inside the window.
handled
    the transaction that stored the message's ID was committed. A rollback leaves nothing: the message is
    first again.

For PostgreSQL, SQLite, MySQL and MariaDB, by SQLAlchemy (extra ``[sql]``).
"""

try:
    import sqlalchemy  # noqa: F401 (whether it is there)
except ImportError as error:  # pragma: no cover (the environment has it)
    raise ImportError(
        "dedup_adapters.sql needs SQLAlchemy: pip install 'dedup-sdk[sql]', and your database's driver"
    ) from error

from dedup_adapters.sql._errors import InboxError, OutOfOrderError, is_retryable
from dedup_adapters.sql._inbox import Inbox, InboxCounts
from dedup_adapters.sql._offsets import KeptOffsets
from dedup_adapters.sql._shared import SharedStore

__all__ = [
    "Inbox",
    "InboxCounts",
    "InboxError",
    "KeptOffsets",
    "OutOfOrderError",
    "SharedStore",
    "is_retryable",
]
