from __future__ import annotations

import errno
import inspect
import re
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import DeserializingConsumer
from hypothesis import given
from hypothesis import strategies as st

from dedup_sdk import ConfigurationError, DedupConsumer, Lookup, MemoryStore, RocksStore, Window, header
from dedup_sdk._kafka.client.settings import admin_settings, client_settings, reader_settings
from dedup_sdk.ids import key

MOST_SETTINGS = 10
LEAST = {"bootstrap.servers": "127.0.0.1:9", "group.id": "billing", "log_level": 0}


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        ({"enable.auto.commit": True}, "enable.auto.commit=true lets the client commit .* leave it out"),
        ({"enable.auto.commit": "true"}, "enable.auto.commit=true"),
        (
            {"enable.auto.offset.store": "TRUE"},
            "enable.auto.offset.store=true .* loses messages; leave it out",
        ),
        ({"enable.auto.commit": "perhaps"}, "enable.auto.commit='perhaps': give true or false"),
        ({"auto.offset.reset": "sometime"}, "auto.offset.reset='sometime': choose earliest, latest or error"),
        ({"auto.commit.interval.ms": "soon"}, "auto.commit.interval.ms='soon': give a number"),
        ({"group.id": ""}, "group.id is missing"),
        ({"group.id": " "}, "group.id=' ' is not valid; give a name"),
        ({"group.id": "\0"}, "is not valid; give a name"),
        ({"group.id": "\udcff"}, "group.id: its value is not valid UTF-8; write it again"),
        ({"client.id": "\udcff"}, "client.id: its value is not valid UTF-8; write it again"),
        ({"\udcff": "1"}, "the setting name .* is not valid UTF-8; write it again"),
        ({"default.topic.config": {"auto.offset.reset": "sometime"}}, "auto.offset.reset='sometime'"),
    ],
)
def test_what_would_break_a_promise_is_refused(config: dict[str, Any], sentence: str) -> None:
    """In one line that names the setting, its value and the remedy; never silently overridden."""
    with pytest.raises(ConfigurationError, match=sentence) as caught:
        client_settings({**LEAST, **config})

    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("config", "kind"),
    [(None, "NoneType"), ([("sasl.password", "hunter2")], "list"), ("sasl.password=hunter2", "str")],
)
def test_a_configuration_that_is_none_is_refused(config: Any, kind: str) -> None:
    """Something else than a dictionary is named by its type, and not shown: it may hold a password."""
    with pytest.raises(
        ConfigurationError, match=f"configuration is of type {kind}; give the dictionary"
    ) as caught:
        DedupConsumer(config, dedup=Lookup(id=header("id"), window=Window(days=1)), store=MemoryStore())

    assert "hunter2" not in str(caught.value)


def test_a_password_that_is_no_text_is_not_shown() -> None:
    """A text that UTF-8 cannot write is refused by the setting's name alone."""
    with pytest.raises(ConfigurationError, match=r"sasl\.password: its value") as caught:
        client_settings({**LEAST, "sasl.password": "hunter2\udcff"})

    assert "hunter2" not in str(caught.value)


def test_settings_show_no_password() -> None:
    """Their repr has the group, and nothing of librdkafka's settings."""
    shown = repr(client_settings({**LEAST, "sasl.password": "hunter2", "ssl.key.password": "hunter2"}))

    assert "billing" in shown
    assert "hunter2" not in shown


def test_settings_by_keyword_are_refused_like_those_in_the_dictionary() -> None:
    """The plain client takes both; neither is a way around the refusal."""
    given: dict[str, Any] = {
        "enable.auto.commit": True,
        "dedup": Lookup(id=header("id"), window=Window(days=1)),
    }
    with pytest.raises(ConfigurationError, match=r"enable\.auto\.commit=true"):
        DedupConsumer(LEAST, store=MemoryStore(), **given)


@pytest.mark.parametrize(
    ("config", "reset"),
    [
        ({}, "latest"), ({"auto.offset.reset": "earliest"}, "earliest"),
        ({"auto.offset.reset": "smallest"}, "earliest"),
        ({"auto.offset.reset": "beginning"}, "earliest"), ({"auto.offset.reset": "end"}, "latest"),
        ({"auto.offset.reset": "error"}, "error"), ({"auto.offset.reset": "none"}, "error"),
        ({"default.topic.config": {"auto.offset.reset": "earliest"}}, "earliest"),
    ],
)  # fmt: skip
def test_the_reset_policy_is_ours(config: dict[str, Any], reset: str) -> None:
    """The client gets "error", so that no jump goes unseen; the user's policy is applied by us."""
    settings = client_settings({**LEAST, **config})

    assert settings.reset == reset
    assert settings.client["auto.offset.reset"] == "error"


@pytest.mark.parametrize(
    ("config", "interval_s", "only_user"),
    [
        ({}, 5.0, False), ({"auto.commit.interval.ms": "250"}, 0.25, False),
        ({"auto.commit.interval.ms": 0}, float("inf"), False), ({"enable.auto.commit": False}, 5.0, True),
        ({"enable.auto.commit": "false", "auto.commit.interval.ms": 10}, 0.01, True),
    ],
)  # fmt: skip
def test_who_commits_and_when(config: dict[str, Any], interval_s: float, only_user: bool) -> None:  # noqa: FBT001
    """Unset: we do, on the interval; false: only the user, but for hidden records."""
    settings = client_settings({**LEAST, **config})

    assert (settings.commit_interval_s, settings.only_user_commits) == (interval_s, only_user)
    assert settings.client["enable.auto.commit"] is False
    assert settings.client["enable.auto.offset.store"] is False


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({}, (False, True, 5.0)),
        ({"enable.auto.offset.store": "false"}, (True, False, 5.0)),
        ({"enable.auto.offset.store": False, "enable.auto.commit": True}, (True, False, 5.0)),
        ({"enable.auto.offset.store": False, "enable.auto.commit": False}, (True, False, 5.0)),
        ({"enable.auto.commit": False}, (False, False, 5.0)),
    ],
)
def test_who_says_what_is_handled(config: dict[str, Any], expected: tuple[bool, bool, float]) -> None:
    """Unset: asking for more does; where the user stores offsets or commits, only that."""
    settings = client_settings({**LEAST, **config})

    assert (
        settings.only_stored, settings.completes_on_next_call, settings.commit_interval_s
    ) == expected  # fmt: skip
    assert settings.client["enable.auto.commit"] is False


def test_the_fetch_setting_is_a_default_only() -> None:
    """The quick value is set where the user says nothing, and left where they do."""
    assert client_settings(LEAST).client["fetch.queue.backoff.ms"] == 1
    assert client_settings({**LEAST, "fetch.queue.backoff.ms": 700}).client["fetch.queue.backoff.ms"] == 700


@pytest.mark.parametrize(
    ("config", "deadline_s", "expected"),
    [
        ({}, None, 30_000),
        ({}, 24.0, 12_000),
        ({}, 5.0, 10_000),
        ({"max.poll.interval.ms": 3_600_000}, None, 60_000),
        ({"socket.timeout.ms": 7_000}, None, 7_000),
        ({"partition.assignment.strategy": "range"}, None, None),
    ],
)
def test_a_connection_is_given_up_while_a_consumer_closes(
    config: dict[str, Any], deadline_s: float | None, expected: int | None
) -> None:
    """In half of the deadline, or as the user says; only where a rebalance can hold back a member's commits."""
    config = {**LEAST, "partition.assignment.strategy": "cooperative-sticky", **config}
    settings = client_settings(config, revoke_deadline=deadline_s)
    assert settings.client.get("socket.timeout.ms") == expected
    assert settings.request_timeout_s == (60 if expected is None else expected / 1_000)


def test_the_users_dictionary_is_left_as_it_is() -> None:
    """It may be used for other clients too."""
    config = {**LEAST, "on_commit": print, "default.topic.config": {"auto.offset.reset": "earliest"}}
    before = dict(config)
    client_settings(config)

    assert config == before


@pytest.mark.parametrize(
    ("config", "incremental"),
    [
        ({}, False), ({"partition.assignment.strategy": "range,roundrobin"}, False),
        ({"partition.assignment.strategy": "cooperative-sticky"}, True), ({"group.protocol": "consumer"}, True),
        ({"group.protocol": "CONSUMER"}, True), ({"group.protocol": "classic"}, False),
    ],
)  # fmt: skip
def test_the_groups_protocol_is_recognised(config: dict[str, Any], incremental: bool) -> None:  # noqa: FBT001
    """Cooperative assignors and KIP-848 bring deltas, the eager ones whole assignments."""
    assert client_settings({**LEAST, **config}).incremental is incremental


def test_a_reader_is_no_member_and_reads_at_the_same_level() -> None:
    """The reader of a recovery has the connection and the isolation level, not the group's settings or callbacks."""
    config = {
        **LEAST, "session.timeout.ms": 6000, "group.instance.id": "one", "isolation.level": "read_uncommitted",
        "sasl.password": "secret", "stats_cb": print, "group.protocol": "classic", "max.poll.interval.ms": 6000,
    }  # fmt: skip
    reader = reader_settings(client_settings(config))

    assert {
        "session.timeout.ms",
        "group.instance.id",
        "stats_cb",
        "group.protocol",
        "max.poll.interval.ms",
    } & set(reader) == set()
    assert (reader["isolation.level"], reader["sasl.password"], reader["group.id"]) == (
        "read_uncommitted",
        "secret",
        "billing",
    )
    assert reader["enable.partition.eof"] == "True"


def test_an_admin_gets_the_connection_only() -> None:
    """Settings of a consumer would be refused by it."""
    config = {
        **LEAST,
        "sasl.username": "u",
        "ssl.ca.location": "ca",
        "fetch.min.bytes": 7,
        "on_commit": print,
    }
    admin = admin_settings(client_settings(config).client)

    assert set(admin) == {"bootstrap.servers", "log_level", "sasl.username", "ssl.ca.location"}


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"completion": "later"}, "completion='later': choose on-next-call or explicit"),
        ({"mode": "dry"}, "mode='dry': choose dedup or observe"),
        ({"recovery": {"timeout": 5}}, r"recovery={'timeout': 5}: give e\.g\. Recovery\("),
        ({"dedup": "header:id"}, "dedup='header:id': give a strategy"),
        ({"store": 7}, "store=7: give a folder"),
    ],
)
def test_options_that_are_none_are_refused(options: dict[str, Any], sentence: str) -> None:
    """In one line that names the value and the choices."""
    given = {"dedup": Lookup(id=header("id"), window=Window(days=1)), "store": MemoryStore(), **options}
    with pytest.raises(ConfigurationError, match=sentence):
        DedupConsumer(LEAST, **given)


@given(st.text())
def test_any_text_for_a_flag_is_understood_or_refused(text: str) -> None:
    """A flag never passes for another value."""
    try:
        settings = client_settings({**LEAST, "enable.auto.commit": text})
    except ConfigurationError:
        return
    assert text.lower() in ("false", "0")
    assert settings.only_user_commits


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("sotre", "did you mean store="),
        ("timeout", r"write recovery=Recovery\(timeout="),
        ("snapshots", r"did you mean snapshot=, as in recovery=Recovery\(snapshot="),
        ("windw", r"did you mean window=, as in dedup=Lookup\(window=\.\.\.\)\?$"),
        ("reorder_depht", r"as in dedup=LastId\(reorder_depth="),
        ("worker", r"did you mean workers=, as in run\(workers="),
        ("f_sync", r"as in store=RocksStore\('var/dedup', fsync="),
        ("group_id", "put 'group.id' into the configuration"),
        ("bootstrap_servers", "put 'bootstrap.servers' into the configuration"),
        ("x", "DedupConsumer takes completion, "),
    ],
)
def test_an_unknown_argument_is_told_before_the_client_sees_it(name: str, meant: str) -> None:
    """With the one that was meant."""
    argument: dict[str, Any] = {name: "7d"}
    with pytest.raises(ConfigurationError, match=f"^unknown argument {name}=; .*{meant}"):
        DedupConsumer({"group.id": "g"}, dedup=Lookup(id=key(), window="1h"), store=MemoryStore(), **argument)


@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("dead_letters", "run(dead_letters=...)"),
        ("history", "recovery=Recovery(history=...)"),
        ("on_full_disk", "recovery=Recovery(on_full_disk=...)"),
        ("recent_marks", "store=RocksStore('var/dedup', recent_marks=...)"),
        ("recovery_timeout", "recovery=Recovery(timeout=...)"),
        ("snapshot", "recovery=Recovery(snapshot=...)"),
    ],
)
def test_an_argument_of_an_earlier_version_is_told_where_it_is_now(name: str, place: str) -> None:
    """In one line; the old spelling does not work any more."""
    argument: dict[str, Any] = {name: None}
    with pytest.raises(ConfigurationError, match=f"^{re.escape(f'{name}= moved; write {place}')}$"):
        DedupConsumer({"group.id": "g"}, dedup=Lookup(id=key(), window="1h"), store=MemoryStore(), **argument)


def test_the_configuration_may_be_keyword_arguments() -> None:
    """As the plain client takes it, callbacks and other names without a dot among them."""
    conf: dict[str, Any] = {
        "bootstrap.servers": "localhost:1",
        "group.id": "g",
        "log_level": 0,
        "error_cb": print,
    }
    with DedupConsumer(**conf, dedup=Lookup(id=key(), window="1h"), store=MemoryStore()) as consumer:
        assert consumer.assignment() == []
    with pytest.raises(ConfigurationError, match=r"group\.id is missing"):
        DedupConsumer(dedup=Lookup(id=key(), window="1h"), store=MemoryStore())


def test_what_is_no_message_is_refused() -> None:
    """By each call that takes one, in one line."""
    with DedupConsumer(
        {"bootstrap.servers": "localhost:1", "group.id": "g", "log_level": 0},
        dedup=Lookup(id=key(), window="1h"), store=MemoryStore(), completion="explicit",
    ) as consumer:  # fmt: skip
        other: Any = "orders"
        for call in (consumer.complete, consumer.release, consumer.holds, consumer.verdict):
            with pytest.raises(TypeError, match=r"^message='orders': give a message that poll"):
                call(other)
        with pytest.raises(TypeError, match=r"^message='orders': give"), consumer.once(other):
            raise AssertionError("the block ran")


def test_the_consumer_has_few_settings_of_its_own() -> None:
    """At most ten: a new one has to take the place of another, or goes into a value such as `Recovery`."""
    parameters = inspect.signature(DedupConsumer).parameters.values()
    own = [each.name for each in parameters if each.kind is inspect.Parameter.KEYWORD_ONLY]
    assert "dedup" in own
    assert len(own) <= MOST_SETTINGS


def test_deserializers_are_called_in_the_loop() -> None:
    """They are settings of another consumer, which cannot be mixed in: each would read the records of the other one."""
    for name in ("key.deserializer", "value.deserializer"):
        with pytest.raises(
            ConfigurationError,
            match=f"^{name} is a setting of DeserializingConsumer alone: call the deserializer in the loop",
        ):
            DedupConsumer(
                {**LEAST, name: bytes.decode}, dedup=Lookup(id=key(), window="1h"), store=MemoryStore()
            )
    with pytest.raises(TypeError, match=r"^Both mixes DeserializingConsumer into DedupConsumer: call"):
        type("Both", (DedupConsumer, DeserializingConsumer), {})
    assert issubclass(type("Mine", (DedupConsumer,), {}), DedupConsumer)


@pytest.mark.parametrize("as_store", [False, True])
def test_a_folder_that_cannot_be_written_is_refused_when_the_consumer_is_made(
    tmp_path: Path, *, as_store: bool
) -> None:
    """Not with the first partition; a folder that is missing is made."""
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(
        ConfigurationError, match=r"^store='.*/file/store' cannot be written: Not a directory; check"
    ):
        consumer_over(file / "store", as_store=as_store)
    with pytest.raises(ConfigurationError, match=r"^store='.*/file' is a file; give a folder"):
        consumer_over(file, as_store=as_store)
    consumer_over(tmp_path / "new" / "store", as_store=as_store).close()
    assert list((tmp_path / "new" / "store").iterdir()) == []


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EMFILE, errno.EROFS])
def test_a_disk_that_fails_while_the_consumer_is_made_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """As later: a bad disk ends nothing."""

    def fail(**_: Any) -> None:
        raise OSError(number, "as told")

    monkeypatch.setattr("tempfile.TemporaryFile", fail)
    consumer_over(tmp_path / "store", as_store=False).close()


def consumer_over(path: Path, *, as_store: bool) -> DedupConsumer:
    """A consumer over the store in a folder, given as such or as an object."""
    store = RocksStore(path) if as_store else path
    return DedupConsumer(LEAST, dedup=Lookup(id=key(), window="1h"), store=store)


def test_a_callback_that_is_none_is_refused_at_once() -> None:
    """Not with the first commit."""
    with pytest.raises(ConfigurationError, match=r"^on_commit=5 is not callable: give a function"):
        client_settings({**LEAST, "on_commit": 5})
