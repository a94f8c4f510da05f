"""The remains of an earlier version, a store and the text of a commit.

They vouch for nothing, and nothing is lost by them.
"""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from rocksdict import AccessType, Options, Rdict

from dedup_sdk._store.identity import FORMAT
from dedup_sdk._store.paths import list_partitions
from tests.support.consuming import committed, committed_metadata, poll_quiet, values

if TYPE_CHECKING:
    from pathlib import Path

    from dedup_sdk.testing import MockKafka
    from tests.mock.conftest import Make, Send

OLDER_TEXT = "dedup/1 low=0 complete=1 era="


def make_older(store: Path) -> None:
    """Lower the format that the one partition of a store says it has."""
    [partition] = list_partitions(store)
    folder = str(partition.path)
    families = {name: Options(raw_mode=True) for name in Rdict.list_cf(folder)}
    database = Rdict(
        folder, Options(raw_mode=True), column_families=families, access_type=AccessType.read_write()
    )
    default = database.get_column_family("default")
    identity: dict[str, Any] = json.loads(default[b"identity"] or b"")
    assert identity["format"] == FORMAT
    default.put(b"identity", json.dumps({**identity, "format": FORMAT - 1}).encode())
    database.close()


@pytest.mark.parametrize("older_text", [False, True])
def test_an_older_store_is_set_aside_and_nothing_is_lost(
    make: Make,
    send: Send,
    kafka: MockKafka,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    *,
    older_text: bool,
) -> None:
    """One line says where it is kept.

    A commit of today's format has the log folded again; an older text is void, too.
    """
    store = tmp_path / "store"
    send("a", "b", "c")
    with make("orders", store=store) as before:
        assert values(poll_quiet(before)) == ["a", "b", "c"]
        if older_text:
            before.commit(asynchronous=False)
            at = [TopicPartition("orders", 0, 3, OLDER_TEXT)]
            Consumer.commit(before, offsets=at, asynchronous=False)
    assert committed(kafka.bootstrap, "g", "orders").offset == 3
    make_older(store)
    send("a", "d")

    with caplog.at_level(logging.INFO, "dedup_sdk"), make("orders", store=store) as after:
        # By a text that is void nothing before it counts as handled.
        assert values(poll_quiet(after)) == (["a", "d"] if older_text else ["d"])
        assert after.counters.verdicts["unverified"] == (2 if older_text else 0)
        assert after.counters.events["rule-changed"] == 1
    [line] = [each.getMessage() for each in caplog.records if "kept as" in each.getMessage()]
    assert f"has format {FORMAT - 1}, this version reads {FORMAT}" in line
    [aside] = store.rglob("0.damaged-*")
    assert f"it is kept as {aside};" in line
    assert (aside / "CURRENT").exists()
    metadata = committed_metadata(kafka.bootstrap, "g", "orders")
    assert metadata is not None
    assert metadata.low == (3 if older_text else 0)

    send("a", "d")
    assert values(poll_quiet(make("orders", store=store))) == []
