"""The settings allowed in a producer's configuration, and those that are ours."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from dedup_sdk import ConfigurationError
from dedup_sdk.producer import DedupProducer
from dedup_sdk.producer._settings import producer_settings

if TYPE_CHECKING:
    from pathlib import Path

LEAST = {"bootstrap.servers": "127.0.0.1:9", "log_level": 0}


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        ({"transactional.id": "a"}, "transactional.id: .* use a plain Producer"),
        ({"acks": 0}, "acks=0 lets the brokers lose"),
        ({"acks": "1"}, "acks='1' lets the brokers lose"),
        ({"request.required.acks": 1}, "request.required.acks=1 lets"),
        ({"delivery.report.only.error": True}, "stays in the outbox forever"),
        ({"partitioner": "random"}, "choose e.g. consistent_random"),
    ],
)
def test_what_would_break_a_promise_is_refused(tmp_path: Path, config: dict[str, Any], sentence: str) -> None:
    """With a sentence that has the remedy, before anything is made."""
    with pytest.raises(ConfigurationError, match=sentence):
        DedupProducer({**LEAST, **config}, outbox=tmp_path / "outbox")
    assert not (tmp_path / "outbox").exists()


def test_what_is_set_by_us_gives_way_to_the_user() -> None:
    """Idempotence, all acknowledgements and no end of trying.

    An acknowledgement's other name and a time limit stay as they are given.
    """
    assert producer_settings({"a": 1}).client == {
        "a": 1, "acks": "all", "enable.idempotence": True, "delivery.timeout.ms": 0
    }  # fmt: skip
    given = {
        "request.required.acks": -1,
        "enable.idempotence": False,
        "message.timeout.ms": 500,
        "acks": "-1",
    }
    assert producer_settings(given).client == given


@pytest.mark.parametrize(
    ("setting", "values"),
    [
        ("outbox", [None, 5, b"x", "", "a\0b", []]),
        ("keys", [5, "x"]),
        ("on_refused", [5, "x"]),
        ("id_header", ["", None, 5, b"x"]),
        ("on_damage", ["", "ignore", None]),
        ("fsync", ["false", 1, None]),
        ("most_waiting", [0, -1, True, 1.5, "2", None]),
        ("lock_wait", ["1", -1, float("nan"), None]),
        ("close_timeout", ["1", -1, float("inf"), None]),
    ],
)
def test_a_setting_of_the_wrong_kind_is_refused(tmp_path: Path, setting: str, values: list[Any]) -> None:
    """In one line with its name and its value."""
    for value in values:
        with pytest.raises(ConfigurationError, match=f"^{setting}=") as raised:
            DedupProducer(LEAST, **{"outbox": tmp_path / "outbox", setting: value})
        assert "\n" not in str(raised.value)


def test_a_client_that_cannot_be_made_leaves_the_outbox_free(tmp_path: Path) -> None:
    """The next one opens it."""
    with pytest.raises(Exception, match="No such configuration property"):
        DedupProducer({**LEAST, "no.such.setting": 1}, outbox=tmp_path, lock_wait=0)
    DedupProducer(LEAST, outbox=tmp_path, lock_wait=0).close()
