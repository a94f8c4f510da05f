"""A URL with a password as the argument of any public class or function: refused, or taken, and never told."""

from __future__ import annotations

import importlib
import inspect
import logging
import os
from collections.abc import Callable, Iterator
from enum import Enum
from pathlib import Path
from typing import Any, Final

import pytest

from dedup_sdk import DedupConsumer, Lookup, MemoryStore, Window, header
from dedup_sdk.ids import id_spec
from dedup_sdk.orders import integer
from dedup_sdk.producer import DedupProducer

MODULES: Final = (
    "dedup_sdk", "dedup_sdk.bridge", "dedup_sdk.ids", "dedup_sdk.orders", "dedup_sdk.producer", "dedup_sdk.shared",
    "dedup_adapters.artemis", "dedup_adapters.cmq", "dedup_adapters.conventions", "dedup_adapters.hornetq",
    "dedup_adapters.redis", "dedup_adapters.solace", "dedup_adapters.sql", "dedup_adapters.sql_outbox",
)  # fmt: skip
SECRET: Final = "hunter2"
URL: Final = f"redis://app:{SECRET}/{SECRET}@127.0.0.1:9/0"
HARMLESS: Final[dict[str, Any]] = {
    "config": {"bootstrap.servers": "127.0.0.1:9", "group.id": "billing", "log_level": 0},
    "source": {"bootstrap.servers": "127.0.0.1:9", "log_level": 0},
    "target": {"bootstrap.servers": "127.0.0.1:9", "log_level": 0},
    "dedup": Lookup(id=header("id"), window=Window(days=1)),
    "strategy": Lookup(id=header("id"), window=Window(days=1)),
    "store": MemoryStore(),
    "id": id_spec("header:id"),
    "source_id": id_spec("header:source"),
    "order": integer(),
    "window": Window(days=1),
    "otherwise": Lookup(id=header("id"), window=Window(days=1)),
    "unit": header("unit"),
    "outbox": "outbox",
    "server": "redis://127.0.0.1:9/0",
    "scope": "topic",
}
"""Values for arguments that are not looked at, by name."""


def _public() -> Iterator[tuple[str, Callable[..., object]]]:
    for module in MODULES:
        found = importlib.import_module(module)
        for name in getattr(found, "__all__", None) or vars(found):
            each = getattr(found, name)
            if (
                name.startswith("_")
                or not callable(each)
                or not each.__module__.startswith(("dedup_", module))
            ):
                continue
            if not hasattr(found, "__all__") and each.__module__ != module:
                continue
            if isinstance(each, type) and issubclass(each, BaseException | Enum):
                continue
            yield f"{module}.{name}", each


def _cases() -> Iterator[Any]:
    for name, made in _public():
        try:
            parameters = inspect.signature(made).parameters
        except (TypeError, ValueError):
            continue
        for each in parameters.values():
            if each.kind not in {each.VAR_POSITIONAL, each.VAR_KEYWORD}:
                yield pytest.param(made, each.name, id=f"{name} {each.name}")


def _called(made: Callable[..., object], given: str) -> object:
    """Call a function with the URL as one argument, and harmless values, if any are known, as those it needs."""
    positional: list[object] = []
    named: dict[str, object] = {}
    for each in inspect.signature(made).parameters.values():
        if each.kind in {each.VAR_POSITIONAL, each.VAR_KEYWORD}:
            continue
        if each.name != given and each.default is not each.empty and each.kind != each.POSITIONAL_ONLY:
            continue
        value = URL if each.name == given else HARMLESS.get(each.name, URL)
        if each.kind == each.POSITIONAL_ONLY:
            positional.append(value)
        else:
            named[each.name] = value
    return made(*positional, **named)


@pytest.mark.parametrize(("made", "given"), list(_cases()))
def test_no_error_tells_a_password(
    made: Callable[..., object],
    given: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Neither an error nor a log line has it, and no folder bears its name."""
    monkeypatch.chdir(tmp_path)
    said = ""
    with caplog.at_level(logging.DEBUG):
        try:
            result = _called(made, given)
        except Exception as error:  # noqa: BLE001 (whatever it is, it is shown)
            said = str(error)
        else:
            if isinstance(result, DedupConsumer | DedupProducer):
                result.close()
    assert SECRET not in said
    assert SECRET not in caplog.text
    assert {*os.listdir()} <= {"outbox"}  # noqa: PTH208 (of the current folder)
