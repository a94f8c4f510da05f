from __future__ import annotations

import inspect
import pkgutil
from importlib import import_module
from types import ModuleType

import pytest

import dedup_adapters
import dedup_sdk
import dedup_sdk.orders
import dedup_sdk.testing
import spark_backfill

PUBLIC = [
    "Bridge",
    "BridgeCounters",
    "BridgeError",
    "Claim",
    "ClaimKind",
    "ClaimStore",
    "ConfigurationError",
    "Counters",
    "Coverage",
    "DeadLetter",
    "DeadLetterError",
    "DedupConsumer",
    "DedupError",
    "DedupProducer",
    "Deduplicator",
    "ForeignStoreError",
    "IdSpec",
    "IdSpecError",
    "KafkaHelperError",
    "LastId",
    "Lookup",
    "MemoryClaimStore",
    "MemoryStore",
    "MissingIdError",
    "OutboxDamagedError",
    "OutboxError",
    "OutboxFullError",
    "OutboxLockedError",
    "PartitionEvent",
    "PartitionObserver",
    "PartitionStatus",
    "ProducerKey",
    "ProducerKeys",
    "Record",
    "RecoveryError",
    "RocksStore",
    "Settled",
    "Shared",
    "SharedStoreError",
    "SnapshotError",
    "StoreCorruptError",
    "StoreError",
    "StoreLockedError",
    "StoreUnavailableError",
    "Unit",
    "Uuid7Keys",
    "Verdict",
    "VerdictEvent",
    "VerdictKind",
    "Window",
    "Windows",
    "cloudevents",
    "header",
    "id_spec",
    "ids_of",
    "json",
    "key",
    "py",
    "required_window",
    "scope_name",
    "scoped_ids",
    "value",
]
PACKAGES = [dedup_sdk, dedup_adapters, spark_backfill]


def modules() -> list[str]:
    """Every module of the wheel but those that run when they are imported."""
    return [
        module.name
        for package in PACKAGES
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
        if not module.name.endswith("__main__")
    ]


def test_the_public_names_are_these() -> None:
    """What users may import is decided, sorted, and there."""
    assert dedup_sdk.__all__ == PUBLIC == sorted(PUBLIC)
    assert all(hasattr(dedup_sdk, name) for name in PUBLIC)
    assert dedup_sdk.testing.__all__ == ["CuttingProxy", "LocalKafka", "MockKafka", "free_port"]
    assert all(getattr(dedup_sdk.testing, name) for name in dedup_sdk.testing.__all__)
    assert dedup_sdk.orders.__all__ == sorted(dedup_sdk.orders.__all__)
    assert all(getattr(dedup_sdk.orders, name).__doc__ for name in dedup_sdk.orders.__all__)


@pytest.mark.parametrize("name", PUBLIC)
def test_a_public_name_says_what_it_is(name: str) -> None:
    """Each exported class and function has a docstring of its own, and so have its public methods."""
    public = getattr(dedup_sdk, name)
    assert public.__doc__
    assert not public.__doc__.startswith(f"{name}("), "a dataclass without a docstring gets its signature"
    for member, value in vars(public).items() if inspect.isclass(public) else ():
        if inspect.isfunction(value) and not member.startswith("_"):
            assert value.__doc__, member


@pytest.mark.parametrize("name", modules())
def test_a_module_says_what_it_holds(name: str) -> None:
    """Each module has a docstring, and so has every public function, class and method that it defines."""
    module = import_module(name)
    assert module.__doc__
    for member, value in vars(module).items():
        if member.startswith("_") or getattr(value, "__module__", None) != name:
            continue
        if inspect.isclass(value) or inspect.isfunction(value):
            assert value.__doc__, member
        for method, function in vars(value).items() if inspect.isclass(value) else ():
            if inspect.isfunction(function) and not method.startswith("_"):
                assert function.__doc__, f"{member}.{method}"


def test_walking_finds_the_modules() -> None:
    """The test above is about all of the code."""
    found = set(modules())
    assert {"dedup_sdk.decision", "dedup_sdk.store.rocks", "spark_backfill.job"} <= found
    assert isinstance(import_module("dedup_sdk"), ModuleType)
