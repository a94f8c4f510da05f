"""Tokens that a function makes (`oauth_cb`): for the driver of a backfill, and for the tasks of Spark."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dedup_sdk._store.snapshot import verify_snapshot
from dedup_sdk.testing._local_kafka import create_topic
from tests.support.kafka_container import KafkaContainer
from tests.support.producing import produce, with_ids

if TYPE_CHECKING:
    from collections.abc import Iterator

MODULE = """
import base64, json, os, sys, time
from pathlib import Path

def _part(content):
    return base64.urlsafe_b64encode(json.dumps(content).encode()).decode().rstrip("=")

def token(config):
    assert config == "of the shop", config
    now = time.time()
    Path(__file__).with_name(f"asked-{os.getpid()}").write_text(Path(sys.argv[0]).name)
    claims = {"sub": "shop", "iat": int(now), "exp": int(now) + 3600}
    return f"{_part({'alg': 'none'})}.{_part(claims)}.", now + 3600
"""


@pytest.fixture(scope="module")
def kafka() -> Iterator[KafkaContainer]:
    """A broker whose second listener wants a token; nobody signs those of a test."""
    config = {
        "sasl.enabled.mechanisms": "OAUTHBEARER",
        "listener.name.login.oauthbearer.sasl.jaas.config": (
            "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required "
            'unsecuredLoginStringClaim_sub="broker";'
        ),
    }
    with KafkaContainer(config=config, login_listener="LOGIN") as made:
        yield made


@pytest.mark.container
@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.parametrize("on_spark", [False, True], ids=["without Spark", "tasks of Spark"])
def test_each_process_that_reads_asks_for_its_token(
    kafka: KafkaContainer, tmp_path: Path, *, on_spark: bool
) -> None:
    """The module lies on the path; a task is a process of its own."""
    topic = f"orders-{on_spark}"
    create_topic(kafka.bootstrap, topic, partitions=2)
    produce(kafka.bootstrap, topic, with_ids("a", "b", "a"))
    modules = tmp_path / "modules"
    modules.mkdir()
    (modules / "shop_tokens.py").write_text(MODULE)
    host, port = kafka.address("LOGIN")
    settings = {
        "security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "OAUTHBEARER",
        "sasl.oauthbearer.config": "of the shop", "oauth_cb": "py:shop_tokens:token",
    }  # fmt: skip
    given = [each for name, value in settings.items() for each in ("--client-config", f"{name}={value}")]
    command = [
        str(Path(sys.executable).with_name("dedup")), "backfill", "--bootstrap", f"{host}:{port}", "--topic", topic,
        "--whole-topic", "--id", "header:dedup-id", "--window", "1d", *given, "--json", "--output",
        str(tmp_path / "snapshot"),
    ]  # fmt: skip
    environment = {**os.environ, "PYTHONPATH": str(modules)}
    if on_spark:
        environment["DEDUP_SPARK_ARGS"] = "--master local[2]"
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert (report["records"], report["marks"]) == (3, 2)
    verify_snapshot(str(tmp_path / "snapshot"))
    asked = list(modules.glob("asked-*"))
    assert len(asked) >= (2 if on_spark else 1), [each.read_text() for each in asked]
