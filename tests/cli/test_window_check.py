"""The arguments that ``dedup window-check`` refuses, and the line of all commands where no broker is there."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from dedup_sdk._admin.broker_check import require_broker
from dedup_sdk.errors import RecoveryError
from dedup_sdk.testing import MockKafka

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.conftest import Dedup

NOBODY = ["--bootstrap", "127.0.0.1:9", "--topic", "orders"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--window", "7x"], "'7x' is not a window"),
        (["--window", "20000n"], "--window='20000n' is no length of time"),
        (["--window", "7d", "--max-retry", "soon"], "'soon' is not a window"),
        (["--window", "7d", "--silence", "off"], "--silence='off' is no length of time"),
        (["--window", "7d", "--client-config", "group.id"], "--client-config group.id cannot be read"),
        (["--window", "7d", "--client-config", "no.such.thing=hunter2"], "the client refuses its settings"),
        (["--window", "7d", "--client-config", "a.b=c", "sasl.password=hunter2"], "(sasl.password=***)"),
        (["--window", "7d", "--producer-config", "nowhere"], "--producer-config cannot be read"),
    ],
)
def test_wrong_usage_is_one_line(dedup: Dedup, arguments: list[str], said: str) -> None:
    """With the value to give instead, and without a value that may be a password."""
    done = dedup("window-check", *NOBODY, *arguments)
    assert (done.status, done.stdout) == (2, "")
    [line] = done.stderr.splitlines()
    assert said in line
    assert "hunter2" not in line


@pytest.mark.parametrize(
    ("content", "said"),
    [("acks=all", "has no delivery.timeout.ms"), ("delivery.timeout.ms=0", "is no time limit"),
     ("delivery.timeout.ms=soon", "is not a window"), (f"message.timeout.ms={'9' * 5000}", "is not a window")],
)  # fmt: skip
def test_a_producer_without_an_end_is_told(dedup: Dedup, tmp_path: Path, content: str, said: str) -> None:
    """Its file says for how long it tries, or the command has to."""
    file = tmp_path / "producer.properties"
    file.write_text(content)
    done = dedup("window-check", *NOBODY, "--window", "7d", "--producer-config", str(file))
    assert (done.status, done.stdout) == (2, "")
    [line] = done.stderr.splitlines()
    assert said in line


@pytest.mark.parametrize(
    "arguments",
    [
        ["window-check", *NOBODY, "--window", "7d"],
        ["rewind", *NOBODY, "--group", "billing", "--to-earliest"],
        ["redrive", *NOBODY[:2], "--from", "billing.dead-letters"],
    ],
    ids=lambda arguments: arguments[0],
)
def test_a_broker_that_is_away_is_one_line(
    dedup: Dedup, monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    """With the address, the cause, and the option to check; what was asked for is not blamed."""
    monkeypatch.setattr("dedup_sdk._admin.broker_check.DOWN_S", 1.2)
    done = dedup(*arguments)
    assert (done.status, done.stdout) == (1, "")
    assert done.stderr == (
        "dedup: no broker answers at 127.0.0.1:9 within 1 s "
        "(Connect to ipv4#127.0.0.1:9 failed: Connection refused); check --bootstrap\n"
    )


@pytest.mark.parametrize("settings", [{"security.protocol": "SSL"}, {"security.protocol": "SASL_PLAINTEXT"}])
def test_a_broker_that_refuses_the_settings_is_not_called_away(settings: dict[str, str]) -> None:
    """It is there: the line names the settings to check, and not the address."""
    settings = {**settings, "sasl.mechanisms": "PLAIN", "sasl.username": "u", "sasl.password": "secret-word"}
    with MockKafka() as kafka, pytest.raises(RecoveryError) as caught:
        require_broker({"bootstrap.servers": kafka.bootstrap, **settings}, RecoveryError)
    assert "accepts no connection with these settings" in str(caught.value)
    assert "check security.protocol" in str(caught.value)
    assert "secret-word" not in str(caught.value)
