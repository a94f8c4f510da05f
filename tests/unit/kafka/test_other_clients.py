"""The clients that this package opens beside the application's own, and which of its settings and callbacks they get.

A callback that raises inside such a client would end in the middle of a step; a setting that does not arrive may keep
it from its cluster.
"""

from __future__ import annotations

import ast
import ctypes
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, Producer

from dedup_sdk._kafka.client.guards import CallbackErrors
from dedup_sdk._kafka.client.settings import admin_settings, client_settings, reader_settings
from dedup_sdk.testing._mock_kafka import MockLibrary

ROOT = Path(__file__).parents[3]
CLIENTS = {"AdminClient", "Consumer", "Producer"}
OWN = "the application's own: CallbackErrors.around wraps its callbacks"
TEXT = "settings are text, so that they have no callback"
NONE = "settings are our own, without a callback"
OURS = {
    "dedup_sdk/_kafka/client/reader.py Readers.take": "reader_settings",
    "dedup_sdk/_kafka/client/questions.py Questions._take": "asking_settings",
    "dedup_sdk/_kafka/client/client.py MetadataRequests.admin": "admin_settings",
    "dedup_sdk/_runner/dead_letters.py DeadLetterProducer.__init__": "admin_settings",
    "dedup_sdk/_transactions/producer.py TransactionalProducer._made": OWN,
    "dedup_sdk/bridge/_source.py Source._make": OWN,
    "dedup_sdk/bridge/_target.py Target.__init__": "other_client",
    "dedup_sdk/_admin/broker_check.py require_broker": TEXT,
    "dedup_sdk/_admin/group_offsets.py GroupOffsets.__init__": TEXT,
    "dedup_sdk/_admin/group_offsets.py GroupOffsets._admin": TEXT,
    "dedup_sdk/_admin/window_question.py WindowQuestion.topic_settings": TEXT,
    "dedup_sdk/_admin/window_question.py WindowQuestion.lag_ms": TEXT,
    "dedup_sdk/_runner/redrive.py Redrive.__init__": TEXT,
    "dedup_sdk/_runner/redrive.py _Sender.__init__": TEXT,
    "spark_backfill/kafka_log.py KafkaLog.__init__": TEXT,
    "spark_backfill/kafka_log.py KafkaLog._made": TEXT,
    "dedup_sdk/_demo/oracle.py Topic.__init__": NONE,
    "dedup_sdk/_demo/flights.py RetryingProducer.__init__": NONE,
    "dedup_sdk/testing/_local_kafka.py _admin": NONE,
}
"""Where clients are made -> which function, or which rule, keeps the application's callbacks from raising into them."""


def made() -> set[str]:
    """Each function that makes a client."""
    found = set()
    for folder in ("dedup_sdk", "adapters/dedup_adapters", "spark_backfill"):
        for file in sorted((ROOT / folder).rglob("*.py")):
            for name, function in functions(ast.parse(file.read_text(encoding="utf-8"))):
                calls = (node.func for node in ast.walk(function) if isinstance(node, ast.Call))
                if any(isinstance(called, ast.Name) and called.id in CLIENTS for called in calls):
                    found.add(f"{file.relative_to(ROOT)} {name}")
    return found


def functions(tree: ast.AST, inside: str = "") -> list[tuple[str, ast.FunctionDef]]:
    """Return the functions of a module and of its classes, with their dotted names."""
    found = []
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ClassDef):
            found += functions(node, f"{inside}{node.name}.")
        elif isinstance(node, ast.FunctionDef):
            found.append((inside + node.name, node))
    return found


def test_every_client_has_a_rule_for_the_applications_callbacks() -> None:
    """Who makes another client decides here which rule it has; one that reads the consumer's settings names it."""
    there = made()
    assert sorted(there) == sorted(OURS)
    files = {name: (ROOT / name.split()[0]).read_text(encoding="utf-8") for name in there}
    by_function = {name: rule for name, rule in OURS.items() if rule not in (OWN, TEXT, NONE)}
    assert [name for name, rule in by_function.items() if f"{rule}(" not in files[name]] == []


class LoggerError(Exception):
    """The error of a logger."""


class FailingLogger:
    """A logger whose handlers raise."""

    def log(self, *_: Any) -> None:
        """Raise."""
        raise LoggerError


def fail(*_: Any) -> None:
    """A callback that raises."""
    raise LoggerError


GIVEN: dict[str, Any] = {
    "bootstrap.servers": "nowhere:1",
    "group.id": "g",
    "error_cb": fail,
    "stats_cb": fail,
    "statistics.interval.ms": 100,
    "throttle_cb": fail,
    "on_commit": fail,
    "oauth_cb": fail,
    "logger": FailingLogger(),
}
"""A configuration with each callback that a client of this library takes, but for those of rebalances."""


@pytest.mark.parametrize("of", ["reader", "admin"])
def test_other_clients_get_the_token_and_the_logger_only(of: str) -> None:
    """Each logs in and writes log lines by itself; events and figures are told of the application's client alone."""
    settings = client_settings(CallbackErrors().around(GIVEN))
    got = reader_settings(settings) if of == "reader" else admin_settings(settings.client)
    assert {name for name, value in got.items() if callable(value) or name == "logger"} == {
        "oauth_cb",
        "logger",
    }
    assert "statistics.interval.ms" not in got


def test_no_wrapped_callback_raises_into_a_client() -> None:
    """Its first exception is kept for the application's call; a token's function runs on a thread of the client."""
    errors = CallbackErrors()
    wrapped = errors.around(GIVEN)
    for name in ("error_cb", "stats_cb", "throttle_cb"):
        wrapped[name](KafkaError(KafkaError._TRANSPORT))
        with pytest.raises(LoggerError):
            errors.raise_kept()
    wrapped["logger"].log(20, "text")
    with pytest.raises(LoggerError):
        errors.raise_kept()
    with pytest.raises(LoggerError):
        wrapped["oauth_cb"]("")
    assert errors.kept is None


def test_the_clients_take_every_wrapped_callback() -> None:
    """The installed client accepts what is passed in place of the application's own."""
    # With a function for tokens each client would wait for one.
    given = {name: value for name, value in GIVEN.items() if name != "oauth_cb"}
    wrapped = CallbackErrors().around({**given, "log_level": 0})
    Consumer({**wrapped, "on_commit": fail}).close()
    Producer(admin_settings(wrapped)).flush(0)


def known_settings(file: Path) -> dict[str, set[str]]:
    """Each setting of the installed librdkafka -> the kinds of clients that know it: ``C``, ``P``, ``*`` for both."""
    libc = ctypes.CDLL(None)
    libc.fopen.restype, libc.fclose.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
    opened = libc.fopen(str(file).encode(), b"w")
    MockLibrary.load().call("rd_kafka_conf_properties_show", opened)
    libc.fclose(opened)
    known: dict[str, set[str]] = {}
    for line in file.read_text(encoding="utf-8").splitlines():
        cells = [each.strip() for each in line.split("|")]
        if len(cells) > 2 and cells[1] in ("C", "P", "*"):
            known.setdefault(cells[0], set()).add(cells[1])
    return known


SHARED_BUT_DROPPED = {
    "allow.auto.create.topics", "error_cb", "max.in.flight", "max.in.flight.requests.per.connection", "stats_cb",
    "statistics.interval.ms", "throttle_cb", "topic.blacklist",
}  # fmt: skip
"""Settings of both kinds of clients that are about the application's own client, or its topics."""


def test_a_client_that_asks_gets_every_setting_that_both_kinds_know(tmp_path: Path) -> None:
    """Of a consumer's settings only those are dropped that its kind alone has: a new one of librdkafka is kept."""
    known = known_settings(tmp_path / "settings")
    assert len(known) > 150
    kept = set(admin_settings(dict.fromkeys(known, "x")))
    assert kept == {name for name, kinds in known.items() if "*" in kinds} - SHARED_BUT_DROPPED


@pytest.mark.parametrize(
    "name",
    ["https.ca.location", "enable.sasl.oauthbearer.unsecure.jwt", "reconnect.backoff.max.ms",
     "metadata.recovery.strategy", "plugin.library.paths", "retry.backoff.ms", "sasl.password"],
)  # fmt: skip
def test_what_a_login_or_a_connection_needs_is_kept(name: str) -> None:
    """Else a consumer logs in, and then waits for ever for the answers of another client."""
    assert admin_settings({name: "x", "group.id": "g"}) == {name: "x"}
