"""All that the plain client tells the group, and its owner, side by side with ours: field by field, after one log."""

from __future__ import annotations

import json
import re
import time
from contextlib import closing
from typing import TYPE_CHECKING, Any, Final

import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import AdminClient

from dedup_sdk import DedupConsumer, MemoryStore
from tests.support.consuming import PATIENCE_S, lookup
from tests.support.pages import ROOT
from tests.support.producing import produce, with_ids

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.conftest import MakeTopic
    from tests.support.brokers import Broker

COUNT: Final = 6
_PAGE: Final = (ROOT / "docs" / "differences.md").read_text(encoding="utf-8")
_ROWS: Final = re.findall(r"^\| (`.*?) \|", _PAGE.split("## Fields")[1], re.MULTILINE)
MEANT: Final = frozenset(re.findall(r"`([\w.]+)`", " ".join(_ROWS)))
"""The fields in which ours differs: the page has the reasons."""
OF_THE_MOMENT: Final = {
    "ts", "time", "age", "name", "replyq", "msg_cnt", "msg_size", "tx", "tx_bytes", "rx", "rx_bytes", "rxmsg_bytes",
    "rxmsgs", "rxbytes", "rx_ver_drops", "fetchq_cnt", "fetchq_size", "fetch_state", "metadata_age", "stateage",
    "rebalance_age", "rebalance_cnt", "rebalance_reason", "msgs", "rtt", "metadata_cache_cnt", "acked_msgid",
}  # fmt: skip
"""Fields of the statistics that are times, volumes and states of the moment."""


def told(
    broker: Broker, topic: str, group: str, config: dict[str, Any], make: Callable[..., Any]
) -> dict[str, Any]:
    """Let a consumer handle all records; return what it, and the group, say then."""
    statistics: list[str] = []
    commits: list[list[TopicPartition]] = []
    settings = {
        "bootstrap.servers": broker.bootstrap, "group.id": group, "client.id": "shop", "log_level": 0,
        "auto.offset.reset": "earliest", "auto.commit.interval.ms": 100, "statistics.interval.ms": 100,
        "stats_cb": statistics.append, "on_commit": lambda _, partitions: commits.append(partitions), **config,
    }  # fmt: skip
    admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
    place = TopicPartition(topic, 0)
    with closing(make(settings)) as consumer:
        consumer.subscribe([topic])

        def is_over() -> bool:
            last = json.loads(statistics[-1]) if statistics else {}
            known = last.get("topics", {}).get(topic, {}).get("partitions", {}).get("0", {})
            return bool(
                known.get("committed_offset") == COUNT and known.get("eof_offset") == COUNT and commits
            )

        until = time.monotonic() + PATIENCE_S
        while not is_over():
            assert time.monotonic() < until, statistics[-1:]
            consumer.poll(0.05)
        about = admin.describe_consumer_groups([group])[group].result(PATIENCE_S)
        [member] = about.members
        return {
            "commit": fields_of(committed(admin, group)),
            "on_commit": fields_of(commits[-1][0]),
            "committed": {**fields_of(consumer.committed([place], PATIENCE_S)[0]), "metadata": None},
            "position": fields_of(consumer.position([place])[0]),
            "assignment": fields_of(consumer.assignment()[0]),
            "watermarks": consumer.get_watermark_offsets(place, PATIENCE_S),
            "cached watermarks": consumer.get_watermark_offsets(place, cached=True),
            "group": {
                "state": about.state, "type": about.type, "assignor": about.partition_assignor,
                "client": member.client_id, "host": member.host, "instance": member.group_instance_id,
                "has id": member.member_id == consumer.memberid(),
                "assignment": [fields_of(tp) for tp in member.assignment.topic_partitions],
            },
            "statistics": figures(json.loads(statistics[-1]), topic),
        }  # fmt: skip


def committed(admin: AdminClient, group: str) -> TopicPartition:
    """The group's only commit."""
    answer = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])[group]
    found: list[TopicPartition] = answer.result(PATIENCE_S).topic_partitions
    assert len(found) == 1
    return found[0]


def fields_of(tp: TopicPartition) -> dict[str, Any]:
    """All that a partition's value says, but for its topic."""
    return {
        "partition": tp.partition, "offset": tp.offset, "epoch": tp.leader_epoch, "metadata": tp.metadata,
        "error": tp.error,
    }  # fmt: skip


def figures(statistics: dict[str, Any], topic: str) -> dict[str, Any]:
    """What the statistics say of the client, its group, and the partition."""
    partition = statistics["topics"][topic]["partitions"]["0"]
    return {
        "names": sorted(statistics),
        "client": {name: statistics[name] for name in ("client_id", "type", "simple_cnt")},
        "group": steady(statistics["cgrp"]),
        "partition": steady(partition),
        "partition's names": sorted(partition),
    }


def steady(values: dict[str, Any]) -> dict[str, Any]:
    """The fields that are no figures of the moment."""
    return {name: value for name, value in values.items() if name not in OF_THE_MOMENT}


def differences(plain: Any, ours: Any, name: str = "") -> dict[str, tuple[Any, Any]]:
    """Where two values differ, by the path of the field."""
    if isinstance(plain, dict) and isinstance(ours, dict):
        found: dict[str, tuple[Any, Any]] = {}
        for key in {*plain, *ours}:
            found |= differences(plain.get(key), ours.get(key), f"{name}.{key}" if name else str(key))
        return found
    return {} if plain == ours else {name: (plain, ours)}


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"group.instance.id": "one", "partition.assignment.strategy": "cooperative-sticky"},
        {"group.protocol": "consumer"},
    ],
    ids=["classic", "static", "consumer"],
)
def test_group_and_owner_are_told_as_much(
    broker: Broker, make_topic: MakeTopic, group: str, config: dict[str, Any]
) -> None:
    """The difference of each field is meant, and has a reason."""
    topic = make_topic()
    produce(broker.bootstrap, topic, with_ids(*map(str, range(COUNT))))
    plain = told(broker, topic, f"{group}-plain", config, Consumer)
    ours = told(
        broker,
        topic,
        f"{group}-ours",
        config,
        lambda settings: DedupConsumer(settings, dedup=lookup(), store=MemoryStore()),
    )
    found = differences(plain, ours)
    assert {name: values for name, values in found.items() if name not in MEANT} == {}
    assert set(found) == MEANT
