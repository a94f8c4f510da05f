"""Names in the tables of MySQL and MariaDB, whose collations pad them with blanks: "a" and "a " would be one."""

from __future__ import annotations

import pytest
from sqlalchemy import create_engine

from dedup_adapters.sql import Inbox
from dedup_adapters.sql_outbox import SqlOutbox

DIALECTS = ["mysql", "mariadb"]


@pytest.mark.parametrize("dialect", DIALECTS)
def test_names_in_keys_are_bytes(dialect: str) -> None:
    """All text of an inbox is in a key, or compared."""
    made = Inbox(create_engine(f"{dialect}+pymysql://localhost/d"), group="billing").ddl()
    assert [made.count(f"{name} VARBINARY(") for name in ("consumer_group", "topic", "topic_id")] == [2, 1, 1]
    assert not any(word in made for word in ("CHAR(", "TEXT", "COLLATE"))


@pytest.mark.parametrize("dialect", DIALECTS)
def test_no_name_of_an_outbox_is_in_a_key(dialect: str) -> None:
    """Its topics have a collation, so they may only be stored and read."""
    table = SqlOutbox(create_engine(f"{dialect}+pymysql://localhost/d")).table
    assert [column.name for column in table.primary_key.columns] == ["id"]
    assert not table.indexes
    assert len(table.constraints) == 1
