from __future__ import annotations

import ast
import inspect
import pickle
import pkgutil
import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import get_type_hints

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
    "original_headers",
    "py",
    "required_window",
    "scope_name",
    "scoped_ids",
    "value",
]
PACKAGES = [dedup_sdk, dedup_adapters, spark_backfill]
OPTIONAL = (
    "dedup_adapters",
    "dedup_sdk.bridge",
    "dedup_sdk.cli",
    "dedup_sdk.demo",
    "dedup_sdk.producer",
    "dedup_sdk.testing",
    "spark_backfill",
)
"""What a consumer does not need."""
MOST_MODULES_OF_A_CONSUMER = 80
"""A limit that only falls: lower it when there are fewer."""


def loaded(statement: str) -> set[str]:
    """The modules that a fresh interpreter has after a statement, beyond those that it begins with."""
    script = f"import sys; before = set(sys.modules); {statement}; print(*sorted(set(sys.modules) - before))"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60
    )
    return set(done.stdout.split())


def ours(names: set[str]) -> set[str]:
    """Those modules that are of this repository."""
    return {name for name in names if name.startswith(("dedup_sdk", "dedup_adapters", "spark_backfill"))}


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


def test_type_checkers_and_the_interpreter_find_the_same_names() -> None:
    """The imports that type checkers read, the table that the interpreter reads, and the list of names are one list."""
    tree = ast.parse(Path(dedup_sdk.__file__).read_text(encoding="utf-8"))
    (checked,) = [
        node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    ]
    imported = {
        alias.name: node.module
        for node in checked.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert imported == dedup_sdk._MODULE_OF
    assert sorted(imported) == dedup_sdk.__all__


def test_importing_the_package_loads_nothing_that_is_not_used() -> None:
    """`import dedup_sdk` loads no other module of ours, no client, no store, no asyncio."""
    found = loaded("import dedup_sdk")
    assert ours(found) == {"dedup_sdk"}
    assert found & {"asyncio", "confluent_kafka", "numpy", "rocksdict"} == set()


def test_a_name_loads_what_it_is_made_of() -> None:
    """A spec loads no client; a consumer loads no bridge, producer, command or test helper."""
    assert (
        loaded("from dedup_sdk import header, Window, DedupError")
        & {"asyncio", "confluent_kafka", "rocksdict"}
        == set()
    )
    consumer = ours(loaded("from dedup_sdk import DedupConsumer, Lookup, RocksStore"))
    assert {name for name in consumer if name.startswith(OPTIONAL)} == set()
    assert len(consumer) <= MOST_MODULES_OF_A_CONSUMER


def test_the_package_lists_its_names_before_they_are_loaded() -> None:
    """`dir()` has every public name, `import *` gives them, and a name that is none raises `AttributeError`."""
    assert set(PUBLIC) <= set(dir(dedup_sdk))
    everything: dict[str, object] = {}
    exec("from dedup_sdk import *", everything)  # noqa: S102 - it is what is tested
    assert set(PUBLIC) <= set(everything)
    with pytest.raises(AttributeError, match="no attribute 'Nonsense'"):
        getattr(dedup_sdk, "Nonsense")  # noqa: B009 - a type checker would refuse it


def test_public_classes_and_values_are_pickled() -> None:
    """A class is pickled by its module, a value by its class: both come back the same."""
    for name in PUBLIC:
        public = getattr(dedup_sdk, name)
        if inspect.isclass(public):
            assert pickle.loads(pickle.dumps(public)) is public  # noqa: S301 - our own
    strategy = dedup_sdk.Lookup(id="header:dedup-id", window=dedup_sdk.Window(days=7))
    assert pickle.loads(pickle.dumps(strategy)) == strategy  # noqa: S301 - our own


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


@pytest.mark.parametrize("name", ["Window", "Windows", "Lookup", "LastId", "Record", "Shared", "Unit"])
def test_the_hints_of_a_value_can_be_resolved(name: str) -> None:
    """Tools that read dataclasses (validators, injectors) ask for them."""
    assert get_type_hints(getattr(dedup_sdk, name))


def test_the_version_is_that_of_the_package() -> None:
    """As the metadata of the installed package has it."""
    declared = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]["version"]
    assert dedup_sdk.__version__ == declared
