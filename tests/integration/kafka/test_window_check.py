"""A window that does not fit its topic, as a real broker tells of it."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

from dedup_sdk import Window
from dedup_sdk._cli.app import run
from dedup_sdk._kafka.client.client import Client
from tests.support.consuming import PATIENCE_S, commit_plainly, lookup, make_consumer, poll_quiet
from tests.support.producing import Outgoing, produce

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from dedup_sdk._kafka.client.client import PendingRequest
    from tests.conftest import MakeTopic
    from tests.support.brokers import Broker


def test_a_window_that_does_not_fit_is_told_of_once(
    broker: Broker, make_topic: MakeTopic, group: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A topic that keeps less than the window, and stamps late.

    Each is one event with both numbers, for two partitions.
    """
    topic = make_topic(
        partitions=2, config={"retention.ms": "100000", "message.timestamp.type": "LogAppendTime"}
    )
    window = lookup(window=Window(milliseconds=400_001))
    with make_consumer(broker.bootstrap, group, tmp_path, dedup=window) as consumer:
        consumer.subscribe([topic])
        until = time.monotonic() + PATIENCE_S
        while not consumer.counters.events:
            consumer.poll(0.1)
            assert time.monotonic() < until
        poll_quiet(consumer)
        assert consumer.counters.events == {"window-beyond-retention": 1, "window-too-short": 1}
    beyond, short = (line for line in caplog.messages if "window-" in line)
    assert "the window is 6 min 40 s 1 ms, but the topic keeps only 1 min 40 s (retention.ms)" in beyond
    assert "sent again 9 min later" in short


def test_a_window_that_fits_is_no_news(
    broker: Broker, make_topic: MakeTopic, group: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A week, and a topic as brokers make them."""
    asked: list[PendingRequest] = []
    ask = Client.topic_settings

    def noted(client: Client, topic: str) -> PendingRequest | None:
        request = ask(client, topic)
        assert request is not None
        asked.append(request)
        return request

    monkeypatch.setattr(Client, "topic_settings", noted)
    topic = make_topic(partitions=1)
    with make_consumer(broker.bootstrap, group, tmp_path) as consumer:
        consumer.subscribe([topic])
        poll_quiet(consumer)
        until = time.monotonic() + PATIENCE_S
        while not asked or not asked[0].answer.done():
            consumer.poll(0.1)
            assert time.monotonic() < until
        assert asked[0].answer.result()["retention.ms"].value is not None
        poll_quiet(consumer)
        assert consumer.counters.events == {}
    assert len(asked) == 1


def test_the_command_says_what_fits(
    broker: Broker, make_topic: MakeTopic, group: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The topic's real retention, the producer's own timeout, and how far the group is behind.

    Its status says whether all of it fits.
    """
    topic = make_topic(partitions=2, config={"retention.ms": "7200000"})
    now_ms = time.time_ns() // 1_000_000
    sent = [
        Outgoing(value=b"x", partition=0, timestamp_ms=now_ms - minutes * 60_000) for minutes in (50, 40, 10)
    ]
    produce(broker.bootstrap, topic, sent)
    properties = tmp_path / "producer.properties"
    properties.write_text("delivery.timeout.ms=600000\n")
    command = ["window-check", "--bootstrap", broker.bootstrap, "--topic", topic, "--json"]

    def ask(*arguments: str) -> tuple[int, dict[str, Any]]:
        status = run([*command, *arguments])
        return status, json.loads(capsys.readouterr().out)

    status, said = ask("--window", "100m", "--producer-config", str(properties))
    assert (status, said["misfits"], said["lag_ms"]) == (0, {}, None)
    assert (said["needed_ms"], said["retention_ms"]) == (900_000, 7_200_000)
    assert ask("--window", "14m", "--producer-config", str(properties))[1]["misfits"].keys() == {
        "window-too-short"
    }
    assert ask("--window", "14m")[0] == 0
    # A group that never committed is not behind; one that stands at the second record is behind by that one's age.
    assert ask("--window", "100m", "--group", group)[1]["lag_ms"] == 0
    commit_plainly(broker.bootstrap, group, topic, 1)
    status, said = ask("--window", "100m", "--group", group)
    assert (status, [*said["misfits"]]) == (1, ["window-beyond-retention"])
    assert 2_400_000 <= said["lag_ms"] < 2_400_000 + 120_000
    commit_plainly(broker.bootstrap, group, topic, 3)
    assert ask("--window", "100m", "--group", group)[1]["lag_ms"] == 0
    assert (
        run(["window-check", "--bootstrap", broker.bootstrap, "--topic", f"{topic}-not", "--window", "1h"])
        == 1
    )
    assert "-not' cannot be read: " in capsys.readouterr().err
