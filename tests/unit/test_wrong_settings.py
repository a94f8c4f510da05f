"""Settings of the wrong type, out of range or not a number.

Each is refused in one line with its name, its value, and the remedy.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from dedup_sdk import (
    ConfigurationError,
    DedupConsumer,
    Deduplicator,
    Lookup,
    MemoryStore,
    Recovery,
    RocksStore,
    Window,
    header,
)
from dedup_sdk._masking import shown
from dedup_sdk.bridge import Bridge
from dedup_sdk.producer import DedupProducer

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

NAN, INFINITE, HUGE = float("nan"), float("inf"), 10**30
NO_SECONDS = ["1", b"1", True, [], NAN, INFINITE, -1, -0.5, HUGE]
NO_COUNT = ["2", True, False, 1.5, NAN, [], 0, -1, HUGE]
NO_WORD = ["", "no such word", b"batch", True, 1, [], None]
NO_FLAG = ["false", 1, None, []]
NO_TEXT = [b"x", 5, True, []]
NO_FUNCTIONS = [5, "print", print, [5], None, True]
NO_FUNCTION = [5, "print", None]
OLD_STORE = SimpleNamespace(open=print)
LOOKUP = Lookup(id=header("id"), window=Window(days=1))
LEAST = {"bootstrap.servers": "127.0.0.1:9", "group.id": "billing", "log_level": 0}

CONSUMER: dict[str, list[Any]] = {
    "dedup": [None, "header:id", Lookup, Window(days=1)],
    "store": [None, 5, True, b"var", "", [], MemoryStore, OLD_STORE],
    "completion": NO_WORD,
    "durability": NO_WORD,
    "mode": NO_WORD,
    "recovery": [None, 5, {"timeout": 5}, "snapshots"],
    "observers": NO_FUNCTIONS,
    "idle_timeout": NO_SECONDS,
    "revoke_deadline": NO_SECONDS,
}
RECOVERY: dict[str, list[Any]] = {
    "snapshot": [5, True, b"x", "", [""], [None], [5], "x\0", [__file__]],
    "history": [each for each in NO_WORD if each is not None],
    "timeout": NO_SECONDS,
    "on_full_disk": NO_WORD,
}
CLIENT: dict[str, list[Any]] = {
    "auto.commit.interval.ms": ["soon", [], NAN, INFINITE, True, None],
    "max.poll.interval.ms": ["soon", NAN, INFINITE, True],
    "session.timeout.ms": ["soon", NAN, INFINITE, True],
    "auto.offset.reset": ["sometime", 5, True, []],
    "enable.auto.commit": ["perhaps", 5, []],
    "enable.auto.offset.store": ["perhaps", 5, []],
    "group.id": ["", None, " ", "\0"],
}
RUN: dict[str, list[Any]] = {
    "handler": NO_FUNCTION,
    "on_error": NO_WORD,
    "dead_letters": ["", *NO_TEXT, "orders.failed", "a b", "a\0b", "\ud800", "x" * 250],
    "workers": [*NO_COUNT, None, 20_000],
    "order": NO_WORD,
    "attempts": NO_COUNT,
    "retry_on": [None, "OSError", OSError(), [OSError], (), (OSError, "x"), int, BaseException],
    "wait_initial": [*NO_SECONDS, None],
    "wait_max": [*NO_SECONDS, None],
    "max_in_flight": [*NO_COUNT, None],
}
ENGINE: dict[str, list[Any]] = {
    "strategy": [None, "header:id", Lookup, Window(days=1)],
    "store": [OLD_STORE, 5, "var/dedup", MemoryStore],
    "cluster": [*NO_TEXT, None],
    "group": [*NO_TEXT, None],
    "isolation": [*NO_TEXT, None],
    "observers": NO_FUNCTIONS,
    "clock": NO_FUNCTION,
    "tolerates_full_disk": NO_FLAG,
    "forgets_unwritten": NO_FLAG,
}
NO_OFFSET = ["5", True, 1.5, NAN, -1, 2**63, []]
NO_LENGTH = ["1", b"1", True, None, [], NAN, INFINITE, -1, HUGE]
NO_BYTES = ["2", True, 1.5, NAN, [], 0, -1, HUGE]
TABLE: list[tuple[str, Callable[..., object], dict[str, list[Any]]]] = [
    ("DedupConsumer", lambda **s: DedupConsumer(LEAST, **{"dedup": LOOKUP, "store": MemoryStore(), **s}), CONSUMER),
    ("Recovery", Recovery, RECOVERY),
    ("client", lambda **s: DedupConsumer({**LEAST, **s}, dedup=LOOKUP, store=MemoryStore()), CLIENT),
    ("Deduplicator", lambda **s: Deduplicator(**{"strategy": LOOKUP, **s}), ENGINE),
    ("MemoryStore", MemoryStore, {"recent_marks": [*NO_COUNT, None]}),
    ("open", lambda **s: Deduplicator(LOOKUP).open("t", 0, **s), {"low": NO_OFFSET, "committed": NO_OFFSET}),
    (
        "Lookup",
        lambda **s: Lookup(**{"id": "header:id", "window": "7d", **s}),
        {"id": [None, 5, b"header:id", [], "", "no:such"], "window": [None, 7, b"7d", [], "", "7", "-7d"],
         "on_missing_id": NO_WORD},
    ),
    (
        "Window",
        Window,
        {
            **dict.fromkeys(("days", "hours", "minutes", "seconds", "milliseconds"), NO_LENGTH),
            "count": ["2", b"2", True, 1.5, NAN, [], 0, -1, HUGE],
        },
    ),
    ("Window.parse", Window.parse, {"text": [None, 7, b"7d", "", "7", "-7d", "7d+7d"]}),
]  # fmt: skip


def cases(settings: dict[str, list[Any]]) -> list[Any]:
    """Each setting with each wrong value."""
    return [
        pytest.param(name, value, id=f"{name}={value!r}"[:60])
        for name in settings
        for value in settings[name]
    ]


def assert_refused(make: Callable[..., object], name: str, value: Any) -> None:
    """It is refused in one line, which names the setting or its subject, and shows the value."""
    with pytest.raises(ConfigurationError) as caught:
        make(**{name: value})
    said = str(caught.value)
    assert "\n" not in said
    assert {"text": "window", "id": "id"}.get(name, name) in said
    parts = value if isinstance(value, list) else []
    assert any(shown(each) in said or repr(each) in said for each in (value, *parts)) or not value


@pytest.mark.parametrize(
    ("make", "name", "value"),
    [
        pytest.param(make, *case.values, id=f"{what} {case.id}")
        for what, make, settings in TABLE
        for case in cases(settings)
    ],
)
def test_a_wrong_setting_is_refused(make: Callable[..., object], name: str, value: Any) -> None:
    """Where it is given, and not when it is used first."""
    assert_refused(make, name, value)


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda given: DedupConsumer(given, dedup=LOOKUP, store=MemoryStore()), "the configuration"),
        (lambda given: DedupProducer(given, outbox="outbox"), "the configuration"),
        (lambda given: Bridge(given, LEAST), "source"),
        (lambda given: Bridge(LEAST, given), "target"),
    ],
    ids=["consumer", "producer", "source", "target"],
)
@pytest.mark.parametrize("given", ["redis://app:hunter2@host", 5, ["a"], [("sasl.password", "hunter2")]])
def test_a_configuration_that_is_no_dictionary_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Callable[[Any], object], name: str, given: Any
) -> None:
    """By its type alone: it may have a password anywhere. No outbox is made for it."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigurationError) as caught:
        make(given)
    assert str(caught.value).startswith(f"{name} is of type {type(given).__name__}; give the dictionary that")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("name", "value"), cases(RUN))
def test_a_wrong_setting_of_run_is_refused(name: str, value: Any) -> None:
    """Before a thread is started, or a message is asked for."""
    with DedupConsumer(LEAST, dedup=LOOKUP, store=MemoryStore()) as consumer:
        assert_refused(lambda **s: consumer.run(**{"handler": print, "on_error": "retry", **s}), name, value)


@pytest.mark.parametrize(
    ("name", "value"),
    cases({
        **dict.fromkeys(("block_cache_bytes", "generation_marks", "max_disk"), NO_BYTES),
        "recent_marks": [*NO_COUNT, None],
        "fsync": NO_FLAG,
        "lock_wait": NO_SECONDS,
    }),
)  # fmt: skip
def test_a_wrong_setting_of_a_store_is_refused(tmp_path: Path, name: str, value: Any) -> None:
    """No folder is made for it."""
    assert_refused(lambda **s: RocksStore(tmp_path / "store", **s), name, value)
    assert list(tmp_path.iterdir()) == []


def test_what_is_as_good_as_a_number_is_taken() -> None:
    """Numpy's numbers, as they come out of a configuration that was computed."""
    import numpy as np

    options: dict[str, Any] = {
        "store": MemoryStore(recent_marks=np.int64(5)),  # type: ignore[arg-type]
        "idle_timeout": np.float64(0.5),
        "revoke_deadline": 1_000_000_000,
    }
    with DedupConsumer(LEAST, dedup=LOOKUP, **options) as consumer:
        consumer.stop()
    assert Window(count=5) == Window.parse("5n")
